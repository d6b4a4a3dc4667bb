(() => {
  const three = v => v.toFixed(v >= 99.95 ? 0 : v >= 9.995 ? 1 : 2);
  const units = (v, table) => {
    const row = table.find(([least]) => v >= least);
    return row ? three(v / row[1]) + ' ' + row[2] : '0';
  };
  const forms = {
    count: v => Math.round(v).toLocaleString('en'),
    bytes: v => units(v, [[1e12,1e12,'TB'],[1e9,1e9,'GB'],[1e6,1e6,'MB'],[1e3,1e3,'kB'],[1e-9,1,'B']]),
    seconds: v => units(v, [[172800,86400,'d'],[5400,3600,'h'],[90,60,'min'],[.9995,1,'s'],[1e-4,1e-3,'ms']]),
    percent: v => (100 * v).toFixed(1) + ' %',
    number: v => v && (Math.abs(v) < 1e-3 || Math.abs(v) >= 1e5) ? v.toExponential(2) : String(+v.toPrecision(4)),
  };
  const tip = document.createElement('div');
  tip.className = 'tip';
  tip.hidden = true;
  document.body.append(tip);
  for (const svg of document.querySelectorAll('svg.plot')) {
    // A title would pop up beside the read-out.
    const title = svg.querySelector('title');
    svg.setAttribute('aria-label', title.textContent + '. ' + svg.querySelector('desc').textContent);
    title.remove();
    const ax = svg.dataset.x.split(' '), ay = svg.dataset.y.split(' ');
    const [x0, x1, left, right] = ax.slice(0, 4).map(Number), [y0, y1, bottom, top] = ay.slice(0, 4).map(Number);
    const log = ay[5] === '1';
    const at = (a, b, log, t) => log ? a * (b / a) ** t : a + t * (b - a);
    const value = py => {
      const t = (py - bottom) / (top - bottom);
      return at(y0, y1, log, t);
    };
    const series = [...svg.querySelectorAll(':scope>svg>g[data-name]:not([data-broken])')].map(g => ({
      g, points: g.firstElementChild.getAttribute('d').slice(1).split(' ').map(p => p.split(',').map(Number)),
    }));
    const make = name => document.createElementNS(svg.namespaceURI, name);
    const rule = svg.appendChild(make('path'));
    rule.setAttribute('style', 'stroke:currentColor;stroke-opacity:.4');
    const hide = () => { tip.hidden = true; rule.setAttribute('d', ''); };
    svg.addEventListener('pointerleave', hide);
    svg.addEventListener('pointermove', e => {
      const box = svg.getBoundingClientRect(), scale = svg.viewBox.baseVal.width / box.width;
      const px = (e.clientX - box.left) * scale;
      if (px < left - 4 || px > right + 4) return hide();
      const found = [];
      for (const s of series) {
        if (getComputedStyle(s.g).display === 'none') continue;
        const p = s.points.reduce((a, b) => Math.abs(b[0] - px) < Math.abs(a[0] - px) ? b : a);
        if (Math.abs(p[0] - px) <= 12) found.push([s, p]);
      }
      if (!found.length) return hide();
      found.sort((a, b) => a[1][1] - b[1][1]);
      const near = found.reduce((a, b) => Math.abs(b[1][0] - px) < Math.abs(a[1][0] - px) ? b : a)[1][0];
      rule.setAttribute('d', `M${near},${top}V${bottom}`);
      tip.replaceChildren();
      const head = tip.appendChild(document.createElement('div'));
      head.textContent = svg.dataset.xlabel + ' ' + forms[ax[4]](at(x0, x1, ax[5] === '1', (near - left) / (right - left)));
      for (const [s, p] of found) {
        const line = tip.appendChild(document.createElement('div'));
        line.appendChild(document.createElement('i')).style.background = getComputedStyle(s.g.firstElementChild).stroke;
        line.append(s.g.dataset.name);
        line.appendChild(document.createElement('b')).textContent = forms[ay[4]](value(p[1]));
      }
      tip.hidden = false;
      const w = tip.offsetWidth, h = tip.offsetHeight;
      tip.style.left = Math.max(4, e.clientX + 16 + w > innerWidth ? e.clientX - 16 - w : e.clientX + 16) + 'px';
      tip.style.top = Math.max(4, Math.min(e.clientY + 12, innerHeight - h - 4)) + 'px';
    });
  }
  const opened = [];
  addEventListener('beforeprint', () => {
    for (const d of document.querySelectorAll('details:not([open])')) { d.open = true; opened.push(d); }
  });
  addEventListener('afterprint', () => { for (const d of opened.splice(0)) d.open = false; });
})();
