"use strict";
// The board's page: draws what the JSON in #data holds. Every text goes in as text, never as HTML.
const $ = id => document.getElementById(id);
const el = (name, props, ...children) => {
  const node = Object.assign(document.createElement(name), props || {});
  node.append(...children.filter(child => child !== null && child !== undefined));
  return node;
};
const COLORS = ["#2563c9", "#d9480f", "#2b8a3e", "#9c36b5", "#0c8599", "#c92a2a", "#846200", "#5f3dc4", "#a61e4d", "#495057"];
let data = JSON.parse($("data").textContent);
const hidden = new Set();
let range = null;
const color = index => COLORS[index % COLORS.length];
const dark = matchMedia("(prefers-color-scheme: dark)").matches;
const INK = dark ? "#98a1b0" : "#68707f", LINE = dark ? "#333b49" : "#e3e7ee";

const number = v => {
  if (v === null || v === undefined) return "NaN";
  const size = Math.abs(v);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return v.toExponential(3);
  return String(+v.toPrecision(5));
};
const tick = v => {
  const size = Math.abs(v);
  return size !== 0 && (size < 1e-3 || size >= 1e5) ? (+v.toPrecision(4)).toExponential() : String(+v.toPrecision(4));
};
const clock = s => new Date(s * 1000).toLocaleString();
const span = s => {
  const size = Math.abs(s);
  return size < 120 ? number(s) + " s" : size < 7200 ? number(s / 60) + " min" : number(s / 3600) + " h";
};
const bytes = v => {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  for (; Math.abs(v) >= 1024 && unit < 4; ++unit) v /= 1024;
  return +v.toPrecision(4) + " " + units[unit];
};
// The unit of a curve by the end of its name, as this project names values: how a value is shown, and its round steps.
const decimal = { show: number, tick, steps: [1, 2, 5], base: 10 };
const UNITS = [
  [/(^|[_/. ])bytes$/i, { show: v => v === null ? "NaN" : bytes(v), tick: bytes, steps: [1, 2, 4, 8, 16, 32, 64, 128, 256, 512], base: 1024 }],
  [/(^|_)(s|sec|seconds)$/i, { show: v => v === null ? "NaN" : span(v), tick: span, steps: [1, 2, 5], base: 10, sixty: true }],
];
const unitOf = name => (UNITS.find(([pattern]) => pattern.test(name)) || [null, decimal])[1];

// Round numbers between two, `most` at most: multiples of 1, 2 or 5 times a power of ten, of a power of two for bytes, of
// parts of a minute, an hour and a day for seconds.
const SPANS = [60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400];
function roundSteps(from, to, most, unit) {
  const least = (to - from) / most;
  let step = unit.sixty && least > 30 ? SPANS.find(s => s >= least) || Math.ceil(least / 86400) * 86400 : 0;
  if (!step) {
    let power = Math.pow(unit.base, Math.floor(Math.log(least) / Math.log(unit.base) + 1e-9));
    const fit = unit.steps.find(s => s * power >= least * (1 - 1e-9));
    step = fit ? fit * power : unit.base * power;
  }
  const ticks = [];
  for (let k = Math.ceil(from / step - 1e-9); k * step <= to + step * 1e-9; ++k) ticks.push(+(k * step).toPrecision(12));
  return ticks;
}
// Steps of a logarithmic axis, whose ends are exponents: powers of ten, and 2 and 5 times them where there are few.
function logSteps(from, to) {
  if (to - from < 0.7) return roundSteps(Math.pow(10, from), Math.pow(10, to), 5, decimal).filter(v => v > 0).map(v => Math.log10(v));
  const apart = Math.max(1, Math.ceil((to - from) / 6)), ticks = [];
  for (let k = Math.ceil(from - 1e-9); k <= to + 1e-9; k += apart) ticks.push(k);
  if (ticks.length > 2) return ticks;
  const all = [];
  for (let k = Math.floor(from); k <= to; ++k) for (const m of [1, 2, 5]) all.push(k + Math.log10(m));
  return all.filter(v => v >= from - 1e-9 && v <= to + 1e-9);
}
const FEW_POINTS = 40;

function xOf(curve, run) {
  const mode = $("x").value;
  if (mode === "r") return curve[1].map(t => t - run.start);
  return curve[+mode];
}
// s = w s + (1 - w) x, divided by 1 - w^n.
function smooth(values, w) {
  if (!(w > 0)) return values;
  let s = 0, n = 0;
  return values.map(v => {
    if (v === null) return null;
    s = w * s + (1 - w) * v;
    n += 1;
    return s / (1 - Math.pow(w, n));
  });
}

class Chart {
  constructor(title, lines, xLabel) {
    this.unit = unitOf(title);
    this.lines = lines;
    this.xLabel = xLabel;
    this.canvas = el("canvas");
    this.tip = el("div", { className: "tip" });
    this.card = el("div", { className: "card" }, el("h3", { textContent: title }), this.canvas, this.tip);
    this.canvas.onmousemove = event => this.point(event);
    this.canvas.onmouseleave = () => { this.drag = null; this.hover = null; this.draw(); this.rest(); };
    this.canvas.onmousedown = event => { this.drag = this.value(event.offsetX); };
    this.canvas.onmouseup = event => {
      const to = this.value(event.offsetX);
      if (this.drag !== null && this.drag !== undefined && Math.abs(to - this.drag) > (this.x1 - this.x0) * 0.02) {
        range = [Math.min(to, this.drag), Math.max(to, this.drag)];
        redraw();
      }
      this.drag = null;
    };
  }
  value(px) { return this.x0 + (px - 52) / (this.width - 60) * (this.x1 - this.x0); }
  rest() {
    const ends = this.lines.slice(0, 4).map(line => {
      const last = line.y.length - 1;
      return last < 0 ? "" : (this.lines.length > 1 ? line.name + " " : "") + this.unit.show(line.y[last]);
    });
    this.tip.textContent = ends.join("   ") + (this.lines.length > 4 ? "   …" : "");
  }
  point(event) {
    const x = this.value(event.offsetX);
    this.hover = event.offsetX;
    this.draw();
    const words = this.lines.map(line => {
      let best = 0;
      for (let i = 1; i < line.x.length; ++i) if (Math.abs(line.x[i] - x) < Math.abs(line.x[best] - x)) best = i;
      return line.x.length ? `${line.name}: ${this.unit.show(line.y[best])} at ${this.show(line.x[best])}` : "";
    });
    this.tip.textContent = words.slice(0, 6).join("\n");
  }
  show(x) { return this.xLabel === "wall" ? clock(x) : this.xLabel === "time" ? span(x) : String(Math.round(x)); }
  draw() {
    const ratio = devicePixelRatio || 1, width = this.canvas.clientWidth || 340, height = 190;
    this.width = width;
    this.canvas.width = width * ratio;
    this.canvas.height = height * ratio;
    const g = this.canvas.getContext("2d");
    g.scale(ratio, ratio);
    const log = $("log").checked;
    const take = v => v === null ? null : log ? (v > 0 ? Math.log10(v) : null) : v;
    let x0 = Infinity, x1 = -Infinity, y0 = Infinity, y1 = -Infinity;
    for (const line of this.lines) for (let i = 0; i < line.x.length; ++i) {
      const x = line.x[i], y = take(line.y[i]);
      if (range && this.zooms && (x < range[0] || x > range[1])) continue;
      if (x < x0) x0 = x;
      if (x > x1) x1 = x;
      if (y !== null && y < y0) y0 = y;
      if (y !== null && y > y1) y1 = y;
    }
    if (range && this.zooms) [x0, x1] = range;
    if (!(x1 > x0)) { x0 -= 0.5; x1 = x0 + 1; }
    if (!(y1 >= y0)) { y0 = 0; y1 = 1; }
    if (y1 === y0) { y0 -= Math.abs(y0) * 0.05 || 0.5; y1 += Math.abs(y1) * 0.05 || 0.5; }
    this.x0 = x0;
    this.x1 = x1;
    const px = x => 52 + (x - x0) / (x1 - x0) * (width - 60), py = y => height - 20 - (y - y0) / (y1 - y0) * (height - 28);
    g.font = "11px system-ui, sans-serif";
    g.fillStyle = INK;
    g.strokeStyle = LINE;
    g.lineWidth = 1;
    for (const y of log ? logSteps(y0, y1) : roundSteps(y0, y1, 5, this.unit)) {
      const at = Math.round(py(y)) + 0.5;
      g.beginPath();
      g.moveTo(52, at);
      g.lineTo(width - 8, at);
      g.stroke();
      g.textAlign = "right";
      g.fillText(this.unit.tick(log ? +Math.pow(10, y).toPrecision(12) : y), 48, at + 4);
    }
    this.drawX(g, x0, x1, px, height);
    g.save();
    g.beginPath();
    g.rect(52, 4, width - 60, height - 22);
    g.clip();
    for (const line of this.lines) {
      g.strokeStyle = line.color;
      g.lineWidth = 1.5;
      g.globalAlpha = line.faint ? 0.25 : 1;
      g.beginPath();
      let pen = false;
      const points = [];
      for (let i = 0; i < line.x.length; ++i) {
        const y = take(line.y[i]);
        if (y === null) { pen = false; continue; }
        const at = [px(line.x[i]), py(y)];
        if (pen) g.lineTo(...at); else g.moveTo(...at);
        pen = true;
        points.push(at);
      }
      g.stroke();
      if (points.length <= FEW_POINTS) {
        g.fillStyle = line.color;
        for (const [x, y] of points) g.fillRect(x - 2, y - 2, 4, 4);
      }
    }
    g.restore();
    if (this.hover) {
      g.strokeStyle = INK;
      g.beginPath();
      g.moveTo(this.hover, 4);
      g.lineTo(this.hover, height - 18);
      g.stroke();
    }
  }
}

// Labels below the chart: round steps and times, and the ends of a day's clock.
Chart.prototype.drawX = function (g, x0, x1, px, height) {
  if (this.xLabel === "wall") {
    g.textAlign = "left";
    g.fillText(this.show(x0), 52, height - 6);
    g.textAlign = "right";
    g.fillText(this.show(x1), this.width - 8, height - 6);
    return;
  }
  const unit = this.xLabel === "time" ? unitOf("s") : decimal;
  let end = -Infinity;
  for (const x of roundSteps(x0, x1, Math.max(2, Math.floor((this.width - 60) / 70)), unit)) {
    if (this.xLabel === "step" && x !== Math.round(x)) continue;
    const words = this.show(x), half = g.measureText(words).width / 2;
    const at = Math.min(Math.max(px(x), 52 + half), this.width - 4 - half);
    if (at - half < end + 8) continue;
    end = at + half;
    g.textAlign = "center";
    g.fillText(words, at, height - 6);
  }
};

let charts = [];
const visible = () => data.runs.map((run, index) => ({ run, index })).filter(({ run }) => !hidden.has(run.name));

function chart(title, lines, xLabel, zooms) {
  const one = new Chart(title, lines, xLabel);
  one.zooms = zooms;
  charts.push(one);
  one.rest();
  return one.card;
}

function curveSection() {
  const w = +$("smooth").value, filter = $("filter").value.toLowerCase();
  const keys = [...new Set(visible().flatMap(({ run }) => Object.keys(run.curves)))].sort();
  const shown = keys.filter(key => key.toLowerCase().includes(filter));
  const label = { 0: "step", r: "time", 1: "wall" }[$("x").value];
  const grid = el("div", { className: "grid", id: "curves" });
  for (const key of shown) {
    const lines = [];
    for (const { run, index } of visible()) {
      const curve = run.curves[key];
      if (!curve) continue;
      const x = xOf(curve, run);
      if (w > 0) lines.push({ name: run.name + " (as logged)", x, y: curve[2], color: color(index), faint: true });
      lines.push({ name: run.name, x, y: smooth(curve[2], w), color: color(index) });
    }
    if (lines.length) grid.append(chart(key, lines, label, true));
  }
  return [el("h2", { textContent: `Curves (${shown.length}${shown.length < keys.length ? " of " + keys.length : ""})` }),
          shown.length ? grid : el("p", { className: "empty", textContent: "No curve of that name." })];
}

const mean = values => { const known = values.filter(v => v !== null); return known.length ? known.reduce((a, b) => a + b, 0) / known.length : null; };

function rankSection() {
  const parts = [];
  for (const { run } of visible()) {
    const ranks = Object.keys(run.ranks);
    if (!ranks.length) continue;
    const keys = [...new Set(ranks.flatMap(rank => Object.keys(run.ranks[rank])))].sort();
    const grid = el("div", { className: "grid" });
    for (const key of keys) {
      const lines = ranks.filter(rank => run.ranks[rank][key]).map(rank => ({ name: "rank " + rank, x: run.ranks[rank][key][0], y: run.ranks[rank][key][2], color: color(+rank) }));
      grid.append(chart(key, lines, "time", false));
    }
    // All ranks wait for each other, so the one that waits least for data and steps is not seen in step_ms alone.
    const table = el("table", {}, el("tr", {}, el("th", { textContent: "rank" }), ...keys.map(key => el("th", { textContent: key }))));
    const slow = {};
    for (const key of ["data_wait_ms", "step_ms"]) {
      const means = ranks.map(rank => run.ranks[rank][key] ? mean(run.ranks[rank][key][2]) : null);
      const most = Math.max(...means.map(v => v === null ? -Infinity : v));
      if (ranks.length > 1 && most > 0) slow[key] = ranks[means.indexOf(most)];
    }
    for (const rank of ranks) {
      table.append(el("tr", {}, el("td", { textContent: rank }), ...keys.map(key => el("td", {
        textContent: run.ranks[rank][key] ? unitOf(key).show(mean(run.ranks[rank][key][2])) : "",
        className: slow[key] === rank ? "slow" : ""
      }))));
    }
    parts.push(el("h2", { textContent: `Ranks of ${run.name}` }), grid, el("p", { className: "tip", textContent: "Means; the slowest rank is marked." }), table);
  }
  return parts;
}

function imageSection() {
  const parts = [];
  for (const { run } of visible()) {
    const keys = [...new Set(run.images.map(image => image.key))];
    if (!keys.length) continue;
    parts.push(el("h2", { textContent: `Images of ${run.name}` }));
    for (const key of keys) {
      const images = run.images.filter(image => image.key === key);
      const steps = [...new Set(images.map(image => image.step))].sort((a, b) => a - b);
      const box = el("div", { className: "images" }), at = el("output");
      const slider = el("input", { type: "range", min: 0, max: steps.length - 1, value: steps.length - 1 });
      const show = () => {
        const step = steps[+slider.value];
        at.textContent = ` step ${step}`;
        box.replaceChildren(...images.filter(image => image.step === step).map(image => el("img", { src: image.src, alt: key })));
      };
      slider.oninput = show;
      show();
      parts.push(el("div", { className: "card" }, el("h3", { textContent: key }), slider, at, box));
    }
  }
  return parts;
}

function settingSection() {
  const runs = visible().filter(({ run }) => Object.keys(run.config).length);
  if (!runs.length) return [];
  const keys = [...new Set(runs.flatMap(({ run }) => Object.keys(run.config)))];
  const words = v => v === undefined ? "" : typeof v === "string" ? v : JSON.stringify(v);
  const table = el("table", { id: "settings" }, el("tr", {}, el("th", { textContent: "setting" }), ...runs.map(({ run }) => el("th", { textContent: run.name }))));
  const rows = keys.map(key => ({ key, values: runs.map(({ run }) => words(run.config[key])) }));
  const differs = row => new Set(row.values).size > 1;
  rows.sort((a, b) => differs(b) - differs(a));
  for (const row of rows) {
    table.append(el("tr", { className: differs(row) ? "differs" : "" }, el("td", { textContent: row.key }), ...row.values.map(v => el("td", { textContent: v }))));
  }
  return [el("h2", { textContent: "Settings" }), table];
}

function noteSection() {
  const parts = [];
  for (const { run } of visible()) {
    if (run.texts.length) {
      parts.push(el("h2", { textContent: `Texts of ${run.name}` }), el("table", {}, ...run.texts.map(one =>
        el("tr", {}, el("td", { textContent: one.key }), el("td", { textContent: one.step }), el("td", {}, el("pre", { textContent: one.text }))))));
    }
    if (run.notes.length) {
      parts.push(el("h2", { textContent: `Time line of ${run.name}` }), el("table", { className: "notes" }, ...run.notes.map(one =>
        el("tr", {}, el("td", { className: "time", textContent: clock(one.t) }), el("td", { className: "time", textContent: span(Math.max(0, one.t - run.start)) }),
          el("td", { className: one.level, textContent: one.text })))));
    }
  }
  return parts;
}

function listRuns() {
  $("runs").replaceChildren(...data.runs.map((run, index) => {
    const box = el("input", { type: "checkbox", checked: !hidden.has(run.name) });
    box.onchange = () => { if (box.checked) hidden.delete(run.name); else hidden.add(run.name); redraw(); };
    const dot = el("span", { className: "dot" });
    dot.style.background = color(index);
    return el("label", {}, box, dot, el("span", {}, run.name, el("br"), el("small", { textContent: `${run.start ? clock(run.start) : ""} ${run.end}` })));
  }));
}

function redraw() {
  charts = [];
  $("smoothed").textContent = $("smooth").value;
  $("main").replaceChildren(...curveSection(), ...rankSection(), ...imageSection(), ...settingSection(), ...noteSection());
  for (const one of charts) one.draw();
}

for (const id of ["x", "log", "smooth", "filter"]) $(id).addEventListener("input", () => { if (id === "x") range = null; redraw(); });
$("reset").onclick = () => { range = null; redraw(); };
addEventListener("resize", () => charts.forEach(one => one.draw()));
listRuns();
redraw();
document.documentElement.dataset.drawnMs = Math.round(performance.now());  // since the page was asked for; a benchmark reads it

async function poll() {
  try {
    const answer = await fetch("/data?after=" + data.version);
    if (answer.status === 200) {
      data = await answer.json();
      listRuns();
      redraw();
    }
    $("state").textContent = "live";
  } catch (error) {
    $("state").textContent = "the server does not answer";
  }
  setTimeout(poll, 2000);
}
if (data.live) setTimeout(poll, 2000);
