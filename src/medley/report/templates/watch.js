"use strict";
const at = id => document.getElementById(id);
const say = (id, text) => { const e = at(id); if (e.textContent !== text) e.textContent = text; };
const short = v => {
  if (!Number.isFinite(v)) return "";
  const a = Math.abs(v);
  return a !== 0 && (a < 1e-3 || a >= 1e6) ? v.toExponential(2) : String(+v.toPrecision(4));
};
const SHARES = ["accuracy", "evaluated"];
const figure = (key, v) => key === "bytes_up" ? bytes(v) : SHARES.includes(key) ? (100 * v).toFixed(1) + " %" : short(v);
const bytes = v => {
  for (const [size, unit] of [[1e9, "GB"], [1e6, "MB"], [1e3, "kB"]]) if (v >= size) return (v / size).toPrecision(3) + " " + unit;
  return v + " B";
};
const ago = (now, then) => {
  if (then === null || then === undefined) return "";
  const s = Math.max(0, now - then);
  return s < 100 ? Math.round(s) + " s ago" : s < 6000 ? Math.round(s / 60) + " min ago" : Math.round(s / 3600) + " h ago";
};
const make = (name, attributes, text) => {
  const e = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [k, v] of Object.entries(attributes)) e.setAttribute(k, v);
  if (text !== undefined) e.textContent = text;
  return e;
};
const ticks = (low, high, most) => {
  const rough = (high - low) / most, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map(k => k * power).find(k => k >= rough), out = [];
  for (let v = Math.ceil(low / step) * step; v <= high + step * 1e-9; v += step) out.push(Math.abs(v) < step * 1e-9 ? 0 : v);
  return out;
};
const NAMES = {loss: "Loss", test_loss: "Test loss", accuracy: "Accuracy", gap: "Gap to the optimum",
  evaluated: "Share of the rows evaluated", bytes_up: "Bytes up", lost: "Answers lost between two rows"};

function chart(rows, key) {
  const points = rows.filter(r => Number.isFinite(r[key])).map(r => [r.round, r[key]]);
  if (points.length < 1) return null;
  const logarithmic = key === "gap" && points.every(p => p[1] > 0);
  const seen = logarithmic ? points.map(p => [p[0], Math.log10(p[1])]) : points;
  let [x0, x1] = [seen[0][0], Math.max(seen[seen.length - 1][0], seen[0][0] + 1)];
  let y0 = Math.min(...seen.map(p => p[1])), y1 = Math.max(...seen.map(p => p[1]));
  if (key === "accuracy" && y1 - y0 > 0.3) [y0, y1] = [Math.min(y0, 0), 1];
  if (y1 - y0 < 1e-12 * Math.max(1, Math.abs(y1))) { const pad = Math.max(Math.abs(y1) * 0.1, 1e-6); y0 -= pad; y1 += pad; }
  const W = 360, H = 190, L = 52, R = 10, T = 8, B = 22;
  const X = v => L + (v - x0) / (x1 - x0) * (W - L - R), Y = v => T + (y1 - v) / (y1 - y0) * (H - T - B);
  const name = NAMES[key] || key, last = points[points.length - 1];
  const svg = make("svg", {viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": `${name}, ${figure(key, last[1])} in round ${last[0]}`});
  for (const v of ticks(y0, y1, 4)) {
    svg.append(make("path", {class: "grid", d: `M${L},${Y(v).toFixed(1)}H${W - R}`}));
    const text = logarithmic ? (Number.isInteger(+v.toFixed(6)) ? "1e" + Math.round(v) : "") : figure(key, v);
    svg.append(make("text", {x: L - 6, y: Y(v) + 4, "text-anchor": "end"}, text));
  }
  for (const v of ticks(x0, x1, 5)) if (Number.isInteger(v)) svg.append(make("text", {x: X(v), y: H - 5, "text-anchor": "middle"}, v));
  svg.append(make("path", {class: "line", d: "M" + seen.map(p => X(p[0]).toFixed(1) + "," + Y(p[1]).toFixed(1)).join("L")}));
  const [ex, ey] = seen[seen.length - 1];
  svg.append(make("circle", {class: "end", cx: X(ex), cy: Y(ey), r: 3.5}));
  const drawn = document.createElement("figure"), caption = document.createElement("figcaption"), value = document.createElement("span");
  caption.textContent = name + " ";
  value.textContent = figure(key, last[1]) + " in round " + last[0];
  caption.append(value);
  drawn.append(caption, svg);
  return drawn;
}

function fact(value, name) {
  const box = document.createElement("div"), b = document.createElement("b"), s = document.createElement("span");
  b.textContent = value; s.textContent = name;
  box.append(b, s);
  return box;
}

function show(v) {
  document.title = `${v.round}${v.rounds ? "/" + v.rounds : ""} ${v.method}: ${v.state}`;
  say("name", `${v.method}, seed ${v.seed}`);
  say("state", v.state);
  at("state").className = "state " + v.state;
  say("folder", v.folder);
  say("message", v.message);
  at("done").style.width = v.rounds ? 100 * v.round / v.rounds + "%" : "0";
  const clients = {};
  for (const c of v.clients) clients[c.standing] = (clients[c.standing] || 0) + 1;
  at("facts").replaceChildren(
    fact(v.rounds ? `${v.round} of ${v.rounds}` : v.round, "rounds"),
    fact(Math.round(v.rate * 10) / 10, "exchanges a minute"),
    fact(`${(clients.alive || 0) + (clients.answered || 0)} of ${v.clients.length}`, "clients answered"),
    fact(v.lost, "answers lost"), fact(v.late, "answers late"), fact(v.refused, "answers refused"),
    fact(bytes(v.bytes_down), "down"), fact(bytes(v.bytes_up), "up"));
  const kept = ["loss", "test_loss", "accuracy", "gap", "evaluated", "lost", "bytes_up"];
  at("charts").replaceChildren(...kept.map(k => chart(v.history, k)).filter(f => f));
  say("standings", Object.entries(clients).map(([k, n]) => `${n} ${k}`).join(", "));
  const order = {awaited: 0, refused: 1, lost: 2, late: 3, alive: 4, answered: 5};
  const rank = c => order[c.standing] === undefined ? 6 : order[c.standing];
  const first = [...v.clients].sort((a, b) => rank(a) - rank(b) || a.client - b.client).slice(0, 200);
  at("clients").replaceChildren(...first.map(c => {
    const tr = document.createElement("tr");
    const cells = [c.name || c.client, c.standing, ago(v.at, c.answered), c.round === null ? "" : c.round,
      c.round === null ? "" : bytes(c.down), c.round === null ? "" : bytes(c.up), c.why];
    for (const text of cells) { const td = document.createElement("td"); td.textContent = text; tr.append(td); }
    tr.children[1].className = c.standing.replaceAll(" ", "-");
    return tr;
  }));
  const log = at("log"), low = log.scrollTop + log.clientHeight >= log.scrollHeight - 8;
  say("log", v.log.join("\n"));
  if (low) log.scrollTop = log.scrollHeight;
}

async function turn() {
  try {
    const answer = await fetch("view.json", {cache: "no-store"}), v = await answer.json();
    if (v.error) throw new Error(v.error);
    show(v);
  } catch (e) {
    say("state", "no view");
    at("state").className = "state stopped";
    say("message", "medley watch does not answer: " + e.message);
  }
  setTimeout(turn, document.hidden ? 10000 : 2000);
}
turn();
