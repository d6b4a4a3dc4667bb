"""The page's style sheet and its one script."""

from __future__ import annotations

CSS = """
:root{color-scheme:light dark;--bg:#fcfcfa;--ink:#1b1d21;--soft:#5a616b;--rule:#dedfda;--raise:#ffffff;--bad:#a8320f}
@media screen and (prefers-color-scheme:dark){
:root{--bg:#15171b;--ink:#e7e8ea;--soft:#a2a9b4;--rule:#30343b;--raise:#1e2127;--bad:#ff9a70}}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%}
body{margin:0;background:var(--bg);color:var(--ink);font:15px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
main{max-width:1200px;margin:0 auto;padding:48px 24px 64px}
header{margin-bottom:8px}
h1{font-size:30px;line-height:1.2;font-weight:650;letter-spacing:-.015em;margin:0 0 6px;overflow-wrap:anywhere}
h2{font-size:19px;font-weight:650;letter-spacing:-.005em;margin:0 0 14px}
h3{font-size:15px;font-weight:600;margin:28px 0 10px}
section{margin-top:44px}
p{margin:0 0 12px}
.facts,.note{color:var(--soft);font-size:13.5px}
.lede{max-width:70ch;font-size:17px;line-height:1.5;margin-top:14px}
.note{margin-top:8px;max-width:90ch}
.scroll{overflow-x:auto;max-width:100%}
.scroll:focus-visible,summary:focus-visible,.legend label:focus-within{outline:2px solid var(--c0);outline-offset:2px}
table{border-collapse:collapse;font-size:14px;font-variant-numeric:tabular-nums;min-width:100%}
th,td{padding:7px 0 7px 22px;text-align:right;vertical-align:top;border-bottom:1px solid var(--rule)}
thead th,thead td{color:var(--soft);font-weight:500;font-size:12.5px;line-height:1.3;vertical-align:bottom;
border-bottom:1px solid var(--soft)}
tr>:first-child{text-align:left;padding-left:0;position:sticky;left:0;background:var(--bg)}
tbody th{font-weight:600}
.figures td,.said td{white-space:nowrap}
.said tr>:last-child{text-align:left}
.said tbody td:last-child{white-space:normal;min-width:13em;color:var(--soft)}
.settings{table-layout:auto}
.settings th,.settings td{text-align:left;overflow-wrap:anywhere}
.settings tbody th{font-weight:400;color:var(--soft);white-space:nowrap;padding-right:12px}
.settings td{font:12.5px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;min-width:9em}
.name{white-space:nowrap}
.name .key{margin-right:7px}
.key{vertical-align:-2px;flex:none}
.iv{display:block;margin:1px 0}
.bad{color:var(--bad);font-weight:500}
.legend{position:sticky;top:0;z-index:2;display:flex;flex-wrap:wrap;gap:2px 18px;padding:9px 0;margin:0 0 6px;
background:var(--bg);border-bottom:1px solid var(--rule);font-size:14px}
.legend label{display:inline-flex;align-items:center;gap:6px;cursor:pointer;border-radius:3px;max-width:100%}
.legend span{overflow:hidden;text-overflow:ellipsis}
.legend input{position:absolute;opacity:0;width:1px;height:1px}
.legend input:not(:checked)~*{opacity:.35}
.legend input:not(:checked)~span{text-decoration:line-through}
.row{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,345px),1fr));gap:10px 24px;align-items:start}
.row+.row{margin-top:18px}
.row.two{grid-template-columns:repeat(auto-fit,minmax(min(100%,420px),1fr));gap:20px 32px}
.row.wide{grid-template-columns:2fr 1fr}
figure{margin:0;min-width:0}
figcaption{font-size:14px;font-weight:600;margin-bottom:6px}
figure svg{display:block;width:100%;height:auto;max-width:560px}
.row.wide svg{max-width:none}
.row.own{grid-template-columns:repeat(auto-fill,minmax(min(100%,240px),max-content))}
.row.own svg{width:auto;max-width:100%}
svg.plot{cursor:crosshair;touch-action:pan-y}
details{border-top:1px solid var(--rule);padding:10px 0}
details:last-of-type{border-bottom:1px solid var(--rule)}
summary{cursor:pointer;font-size:14px;font-weight:500}
details>.scroll{margin-top:10px}
dl{display:grid;grid-template-columns:max-content minmax(0,72ch);gap:8px 24px;margin:0;font-size:14px}
dt{font-weight:600}
dd{margin:0;color:var(--soft)}
pre{margin:0 0 12px;padding:12px 14px;background:var(--raise);border:1px solid var(--rule);border-radius:5px;
overflow-x:auto;font:13px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
.tip{position:fixed;z-index:3;pointer-events:none;background:var(--raise);border:1px solid var(--rule);
border-radius:5px;padding:7px 10px;font-size:12.5px;line-height:1.5;font-variant-numeric:tabular-nums;
box-shadow:0 3px 14px rgb(0 0 0/.14)}
.tip[hidden]{display:none}
.tip div{display:flex;gap:8px;align-items:center}
.tip i{width:9px;height:9px;border-radius:2px}
.tip b{margin-left:auto;padding-left:14px;font-weight:600}
@media(max-width:900px){.row.wide{grid-template-columns:1fr}.row.wide .scroll svg{min-width:620px}}
@media(max-width:640px){main{padding:28px 16px 48px}h1{font-size:25px}.lede{font-size:16px}
dl{grid-template-columns:1fr;gap:2px}dd{margin-bottom:10px}th,td{padding-left:16px}}
@media print{main{padding:0;max-width:none}.legend{position:static}
figure,tr{break-inside:avoid}
.row{grid-template-columns:repeat(3,1fr)}.row.two{grid-template-columns:1fr 1fr}.row.wide{grid-template-columns:2fr 1fr}
table{font-size:9.5pt}th,td{padding-left:10px}.scroll{overflow:visible}}
"""

SCRIPT = """
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
    const value = py => {
      const t = (py - bottom) / (top - bottom);
      return log ? y0 * (y1 / y0) ** t : y0 + t * (y1 - y0);
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
      const at = found.reduce((a, b) => Math.abs(b[1][0] - px) < Math.abs(a[1][0] - px) ? b : a)[1][0];
      rule.setAttribute('d', `M${at},${top}V${bottom}`);
      tip.replaceChildren();
      const head = tip.appendChild(document.createElement('div'));
      head.textContent = svg.dataset.xlabel + ' ' + forms[ax[4]](x0 + (at - left) / (right - left) * (x1 - x0));
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
"""
