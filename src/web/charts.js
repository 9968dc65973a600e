'use strict';
// Small SVG charts without a library: lines, steps, dots, bars and stacked areas over one x axis, with a
// crosshair. A chart draws itself into a box at the box's width, again whenever that changes.
const SVG = 'http://www.w3.org/2000/svg';
let clips = 0;

function svg(tag, attrs, parent) {
  const node = document.createElementNS(SVG, tag);
  for (const k in attrs) node.setAttribute(k, attrs[k]);
  if (parent) parent.appendChild(node);
  return node;
}
function html(tag, attrs, ...children) {
  const node = document.createElement(tag);
  for (const k in attrs) node.setAttribute(k, attrs[k]);
  for (const child of children) node.append(child);
  return node;
}

const format = {
  short(v) {
    if (v === null || v === undefined || !isFinite(v)) return '–';
    const a = Math.abs(v);
    if (a >= 1e9) return trim(v / 1e9, 3) + 'G';
    if (a >= 1e6) return trim(v / 1e6, 3) + 'M';
    if (a >= 1e4) return trim(v / 1e3, 3) + 'k';
    return trim(v, 3);
  },
  seconds(v) {
    if (v === null || v === undefined || !isFinite(v)) return '–';
    if (v === 0) return '0 s';
    if (v < 0.9995e-3) return trim(v * 1e6, 3) + ' µs';
    if (v < 0.9995) return trim(v * 1e3, 3) + ' ms';
    if (v < 180) return trim(v, 3) + ' s';
    if (v < 7200) return trim(v / 60, 3) + ' min';
    if (v < 172800) return trim(v / 3600, 3) + ' h';
    return format.short(v / 86400) + ' d';
  },
  micros: (v) => format.seconds(v === null ? NaN : v / 1e6),
  bytes(v) {
    if (v === null || v === undefined || !isFinite(v)) return '–';
    for (const [unit, size] of [['TiB', 2 ** 40], ['GiB', 2 ** 30], ['MiB', 2 ** 20], ['KiB', 1024]]) {
      if (Math.abs(v) >= size) return trim(v / size, 3) + ' ' + unit;
    }
    return trim(v, 3) + ' B';
  },
  percent: (v) => (v === null || v === undefined || !isFinite(v) ? '–' : trim(v * 100, 3) + '%'),
};
// To `digits` significant digits, whole numbers in full, no trailing zeros.
function trim(v, digits) {
  if (Math.abs(v) >= 10 ** (digits - 1)) return String(Math.round(v));
  return String(Number(v.toPrecision(digits)));
}

function linearTicks(low, high, count, whole) {
  const raw = Math.max((high - low) / Math.max(1, count), whole ? 1 : 0);
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= raw * 0.999 && !(whole && s % 1));
  const ticks = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; ++i) ticks.push(i * step);
  return ticks;
}
function byteTicks(low, high, count) {
  let step = 2 ** Math.ceil(Math.log2((high - low) / Math.max(1, count)));
  const ticks = [];
  for (let v = Math.ceil(low / step) * step; v <= high * 1.0001; v += step) ticks.push(v);
  return ticks;
}
// Round figures in seconds, minutes or hours.
function timeTicks(low, high, count) {
  const raw = (high - low) / Math.max(1, count);
  const nice = [1, 2, 5, 10, 15, 20, 30, 60, 120, 300, 600, 900, 1200, 1800, 3600, 7200, 14400, 28800];
  const step = nice.find((v) => v >= raw);
  return raw < 1 || !step ? linearTicks(low, high, count) : Array.from({ length: Math.floor(high / step) + 1 }, (_, i) => i * step);
}
function logTicks(low, high, height) {
  const ticks = [];
  for (let e = Math.floor(Math.log10(low)); e <= Math.ceil(Math.log10(high)); ++e) {
    for (const m of high / low < 300 && height > 120 ? [1, 3] : [1]) {
      const v = m * 10 ** e;
      if (v >= low * 0.999 && v <= high * 1.001) ticks.push(v);
    }
  }
  return ticks;
}

function scaleOf(axis, from, to) {
  const [low, high] = axis.domain;
  if (axis.log) {
    const a = Math.log(low), b = Math.log(high);
    return (v) => from + ((Math.log(Math.max(v, low)) - a) / (b - a)) * (to - from);
  }
  return (v) => from + ((v - low) / (high - low || 1)) * (to - from);
}

function extent(series, key, log) {
  let low = Infinity, high = -Infinity;
  for (const s of series) {
    for (const v of s[key]) {
      if (v === null || v === undefined || (log && v <= 0)) continue;
      if (v < low) low = v;
      if (v > high) high = v;
    }
  }
  return [low, high];
}

const tip = html('div', { class: 'tip' });
function showTip(event, title, rows) {
  tip.replaceChildren(html('b', {}, title));
  for (const [color, name, value] of rows) {
    const dot = html('span', { class: 'dot', style: `background:${color}` });
    tip.append(html('div', {}, dot, html('span', {}, name), html('span', {}, value)));
  }
  tip.style.display = 'block';
  const box = tip.getBoundingClientRect();
  const left = event.clientX + 16 + box.width > innerWidth ? event.clientX - box.width - 16 : event.clientX + 16;
  tip.style.left = Math.max(4, left) + 'px';
  tip.style.top = Math.max(4, Math.min(event.clientY + 14, innerHeight - box.height - 4)) + 'px';
}
function hideTip() { tip.style.display = 'none'; }

// options: {height, x: {domain, label, format, log, ticks, bands, keepLast}, y: {...}, series: [{name, color, x, y,
// kind: line|step|dots|area|bars, width}], stacked, window: [a, b]}. In a stacked chart every series has
// the same x.
function drawChart(box, options) {
  box.replaceChildren();
  const series = options.series.filter((s) => s.y.some((v) => v !== null && v !== undefined));
  if (!series.length) {
    box.append(html('div', { class: 'none' }, options.empty || 'nothing to show'));
    return;
  }
  const width = Math.max(220, box.clientWidth), height = options.height || 200;
  const x = { format: format.short, ...options.x }, y = { format: format.short, ...options.y };
  if (options.stacked) {
    const base = series[0].x.map(() => 0);
    for (const s of series) {
      s.low = base.slice();
      s.y.forEach((v, i) => { base[i] += v || 0; });
      s.high = base.slice();
    }
  }
  x.domain = x.domain || extent(series, 'x', x.log);
  if (!y.domain) {
    let [low, high] = extent(series, options.stacked ? 'high' : 'y', y.log);
    if (y.log) {
      if (!isFinite(low)) low = high = 1;
      low = Math.min(low * 0.85, high / 3);
      high *= 1.2;
    } else {
      low = Math.min(0, low);
      high = high > low ? high * 1.04 : low + 1;
    }
    y.domain = [low, high];
  }
  const yTicks = y.log ? logTicks(...y.domain, height)
                       : (y.bytes ? byteTicks : linearTicks)(...y.domain, Math.max(2, height / 48), y.whole);
  const labels = yTicks.map(y.format);
  const left = 14 + Math.max(...labels.map((l) => l.length)) * 6.3;
  const right = width - 10, top = 10, bottom = height - (x.label ? 36 : 22);
  const px = scaleOf(x, left, right), py = scaleOf(y, bottom, top);
  const root = svg('svg', { viewBox: `0 0 ${width} ${height}`, height, role: 'img' }, box);
  if (options.window) {
    const [a, b] = options.window.map(px);
    svg('rect', { class: 'window', x: a, y: top, width: Math.max(0, b - a), height: bottom - top }, root);
  }
  yTicks.forEach((v, i) => {
    svg('line', { class: 'grid-line', x1: left, x2: right, y1: py(v), y2: py(v) }, root);
    svg('text', { x: left - 7, y: py(v) + 4, 'text-anchor': 'end' }, root).textContent = labels[i];
  });
  const fit = Math.max(2, (right - left) / 85);
  const xTicks = x.ticks || (x.log ? logTicks(...x.domain, 0) : (x.time ? timeTicks : linearTicks)(...x.domain, fit, x.whole));
  const shown = Math.ceil(xTicks.length / Math.max(2, Math.floor((right - left) / 52)));
  xTicks.forEach((v, i) => {
    if ((x.keepLast ? xTicks.length - 1 - i : i) % shown) return;
    const anchor = px(v) > right - 16 ? 'end' : px(v) < left + 4 && !x.bands ? 'start' : 'middle';
    svg('text', { x: px(v), y: bottom + 16, 'text-anchor': anchor }, root).textContent = x.format(v);
  });
  svg('line', { class: 'axis', x1: left, x2: right, y1: bottom, y2: bottom }, root);
  if (x.label) {
    svg('text', { x: (left + right) / 2, y: height - 3, 'text-anchor': 'middle' }, root).textContent = x.label;
  }
  const id = `clip${++clips}`;  // an axis that does not begin at 0 cuts areas off
  svg('rect', { x: left, y: 0, width: right - left + 4, height: bottom }, svg('clipPath', { id }, root));
  const plot = svg('g', y.domain[0] > 0 && !y.log ? { 'clip-path': `url(#${id})` } : {}, root);
  for (const s of series) drawSeries(plot, s, px, py, bottom, options);
  crosshair(root, series, x, y, px, { left, right, top, bottom }, options);
}

function drawSeries(root, s, px, py, bottom, options) {
  if (s.kind === 'dots') {
    const group = svg('g', { fill: s.color, opacity: 0.55 }, root);
    s.x.forEach((v, i) => { if (s.y[i] !== null) svg('circle', { cx: px(v).toFixed(1), cy: py(s.y[i]).toFixed(1), r: 2 }, group); });
    return;
  }
  if (s.kind === 'bars') {
    s.x.forEach((v, i) => {
      const low = options.stacked ? s.low[i] : Math.min(0, s.y[i]), high = options.stacked ? s.high[i] : s.y[i];
      if (!(high > low)) return;
      const a = px(v) + (s.offset || 0) - s.width / 2;
      svg('rect', { x: a.toFixed(1), y: py(high).toFixed(1), width: Math.max(1, s.width).toFixed(1),
                    height: Math.max(0.5, Math.min(py(low), bottom) - py(high)).toFixed(1), fill: s.color, rx: Math.min(2, s.width / 4) }, root);
    });
    return;
  }
  const high = options.stacked ? s.high : s.y;
  let path = '', open = false;
  const upper = [];
  s.x.forEach((v, i) => {
    if (s.y[i] === null || s.y[i] === undefined) { open = false; return; }
    const at = `${px(v).toFixed(1)} ${py(high[i]).toFixed(1)}`;
    if (s.kind === 'step' && open) path += `H${px(v).toFixed(1)}`;
    path += (open ? 'L' : 'M') + at;
    upper.push(i);
    open = true;
  });
  if (options.stacked || s.kind === 'area') {
    let back = '';
    for (const i of upper.slice().reverse()) back += `L${px(s.x[i]).toFixed(1)} ${(options.stacked ? py(s.low[i]) : bottom).toFixed(1)}`;
    svg('path', { d: path.replace(/(?!^)M/g, 'L') + back + 'Z', fill: s.color, opacity: s.opacity || 1 }, root);
    return;
  }
  svg('path', { d: path, fill: 'none', stroke: s.color, 'stroke-width': s.width || (s.x.length > 60 ? 1.5 : 2), 'stroke-linejoin': 'round',
                'stroke-linecap': 'round' }, root);
  if (s.x.length <= 30) {
    s.x.forEach((v, i) => { if (s.y[i] !== null) svg('circle', { cx: px(v), cy: py(s.y[i]), r: 2.6, fill: s.color }, root); });
  }
}

function crosshair(root, series, x, y, px, frame, options) {
  const lines = series.filter((s) => s.kind !== 'dots' && !s.silent);
  if (!lines.length) return;
  const cross = svg('line', { class: 'cross', y1: frame.top, y2: frame.bottom, visibility: 'hidden' }, root);
  const area = svg('rect', { x: frame.left, y: frame.top, width: frame.right - frame.left,
                             height: frame.bottom - frame.top, fill: 'transparent' }, root);
  area.addEventListener('pointermove', (event) => {
    const bounds = root.getBoundingClientRect();
    const at = ((event.clientX - bounds.left) * root.viewBox.baseVal.width) / bounds.width;
    let nearest = null;
    for (const s of lines) {
      for (const v of s.x) if (nearest === null || Math.abs(px(v) - at) < Math.abs(px(nearest) - at)) nearest = v;
    }
    cross.setAttribute('x1', px(nearest));
    cross.setAttribute('x2', px(nearest));
    cross.setAttribute('visibility', 'visible');
    const rows = [];
    for (const s of lines) {
      let best = -1;
      s.x.forEach((v, i) => { if (best < 0 || Math.abs(v - nearest) < Math.abs(s.x[best] - nearest)) best = i; });
      const far = Math.abs(px(s.x[best]) - px(nearest)) > 12;
      if (best >= 0 && !far && s.y[best] !== null && (s.y[best] || !options.stacked)) {
        rows.push([s.color, s.name, (s.format || y.format)(s.y[best])]);
      }
    }
    if (options.stacked) rows.reverse();
    showTip(event, (x.tip || x.format)(nearest), rows);
  });
  area.addEventListener('pointerleave', () => { hideTip(); cross.setAttribute('visibility', 'hidden'); });
}

// options: {x: {domain, label, format, time, times}, rows: [[value or null, ...], ...], most, row, unit}.
// A row of cells for each of `rows`, the first on top; values from 0 to `most`.
function drawHeatMap(box, options) {
  box.replaceChildren();
  const { x, rows, most } = options;
  const width = Math.max(220, box.clientWidth), cell = Math.min(16, Math.max(4, 220 / rows.length));
  const left = 14 + String(rows.length).length * 6.3, right = width - 10, top = 8, bottom = top + cell * rows.length;
  const px = scaleOf(x, left, right), half = x.times[0];  // the first centre is half a stretch
  const root = svg('svg', { viewBox: `0 0 ${width} ${bottom + 36}`, height: bottom + 36, role: 'img' }, box);
  rows.forEach((row, r) => row.forEach((v, i) => {
    if (v === null) return;
    const a = px(x.times[i] - half), b = px(x.times[i] + half);
    svg('rect', { x: a.toFixed(1), y: (top + r * cell).toFixed(1), width: Math.max(0.5, b - a).toFixed(1), height: cell.toFixed(1),
                  fill: `rgba(var(--heat),${(0.06 + 0.9 * v / most).toFixed(3)})` }, root);
  }));
  const every = Math.ceil(14 / cell);
  rows.forEach((_, r) => {
    if (r % every === 0) svg('text', { x: left - 6, y: top + r * cell + cell / 2 + 4, 'text-anchor': 'end' }, root).textContent = r + 1;
  });
  for (const v of timeTicks(...x.domain, Math.max(2, (right - left) / 85))) {
    svg('text', { x: px(v), y: bottom + 16, 'text-anchor': px(v) > right - 16 ? 'end' : px(v) < left + 4 ? 'start' : 'middle' }, root).textContent = x.format(v);
  }
  svg('text', { x: (left + right) / 2, y: bottom + 33, 'text-anchor': 'middle' }, root).textContent = x.label;
  root.addEventListener('pointermove', (event) => {
    const bounds = root.getBoundingClientRect(), scale = width / bounds.width;
    const r = Math.floor(((event.clientY - bounds.top) * scale - top) / cell);
    const at = (event.clientX - bounds.left) * scale;
    const i = x.times.findIndex((t) => at >= px(t - half) && at < px(t + half));
    if (!rows[r] || i < 0 || rows[r][i] === null) return hideTip();
    showTip(event, `${options.row} ${r + 1}`, [['var(--p2)', (x.tip || x.format)(x.times[i]), `${format.short(rows[r][i])} ${options.unit}`]]);
  });
  root.addEventListener('pointerleave', hideTip);
}
