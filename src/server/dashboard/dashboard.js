'use strict';
// The dashboard: asks for what is new once a second and draws it. Style, charts and widgets are src/web's.
const actionColors = { drop: 0, demote: 1, 'give-up-experts': 2, 'give-up-and-drop': 3, 'preempt-recompute': 4, 'preempt-swap': 5, wait: 6 };
const actionColor = (name) => `var(--a${actionColors[name] ?? 6})`;
const most = { seconds: 900, decisions: 200, requests: 300 };
let info = {};             // the latest answer
let position = null;       // what has been seen
let columns = {};          // name → values, a second each
let decisionList = [], requestList = [];
let minutes = 5;
let key = sessionStorage.getItem('vamp-key') || '';

const n = format.short, b = format.bytes, s = format.seconds, p = format.percent;
const known = (v) => v !== null && v !== undefined;
const last = (name) => { const v = columns[name]; return v && v.length ? v[v.length - 1] : null; };
function lastKnown(name) {
  const v = columns[name] || [];
  for (let i = v.length - 1; i >= Math.max(0, v.length - 60); --i) if (known(v[i])) return v[i];
  return null;
}
// Of the last ten seconds, a second.
function rateOf(name) {
  const v = (columns[name] || []).slice(-10);
  return v.length ? v.reduce((a, c) => a + c, 0) / v.length : null;
}

// --- what is new ------------------------------------------------------------------------------------
function takeIn(data) {
  info = data;
  if (data.seconds.length) {
    const from = data.seconds[0][0];
    // The server has begun anew, or this page slept longer than the server remembers.
    if (columns.second && columns.second.length && from !== columns.second[columns.second.length - 1] + 1) columns = {};
    data.columns.forEach((name, i) => {
      const v = (columns[name] = columns[name] || []);
      for (const row of data.seconds) v.push(row[i]);
      if (v.length > most.seconds) v.splice(0, v.length - most.seconds);
    });
  }
  const ids = new Set(data.decisions.map((d) => d.id));
  decisionList = [...decisionList.filter((d) => !ids.has(d.id)), ...data.decisions].sort((a, c) => a.id - c.id).slice(-most.decisions);
  requestList = [...requestList, ...data.requests].slice(-most.requests);
  if (data.position) position = data.position;
}

async function ask() {
  const query = position ? `?second=${position.second}&change=${position.change}` : '';
  const response = await fetch('dashboard/data' + query, { headers: key ? { Authorization: 'Bearer ' + key } : {} });
  if (response.status === 401) { askForKey(key !== ''); return false; }
  if (!response.ok) throw new Error(`the server answers ${response.status}`);
  const data = await response.json();
  // Its clock went back: another process on the same port.
  if (position && data.position && data.position.second < position.second - 5) {
    columns = {}; decisionList = []; requestList = []; position = null;
    return ask();
  }
  takeIn(data);
  return true;
}

let failed = '';
async function turn() {
  let again = true;
  try {
    again = await ask();
    failed = '';
  } catch (error) {
    failed = error instanceof TypeError ? 'the server does not answer' : error.message;
  }
  showState();
  if (!document.hidden) redraw();
  if (again) setTimeout(turn, 1000);
}

// --- head -------------------------------------------------------------------------------------------
const stateLine = html('p', { class: 'lead', role: 'status' });
const chips = html('div', { class: 'chips' });
const title = html('h1', {}, 'VAMP');
const keyBox = html('form', { class: 'card key', hidden: '' });
function askForKey(wrong) {
  keyBox.hidden = false;
  const input = html('input', { type: 'password', placeholder: 'API key', autocomplete: 'off', 'aria-label': 'API key' });
  keyBox.replaceChildren(html('p', { class: 'sub' }, wrong ? 'The server does not take this key. ' : 'This server asks for an API key. ',
    'It is kept in this tab alone.'), input, ' ', html('button', {}, 'Show'));
  keyBox.onsubmit = (event) => {
    event.preventDefault();
    key = input.value.trim();
    sessionStorage.setItem('vamp-key', key);
    keyBox.hidden = true;
    turn();
  };
  input.focus();
}
function showState() {
  title.textContent = info.model || 'VAMP';
  const trouble = failed || info.reason;
  stateLine.textContent = trouble ? `${info.state && !failed ? info.state + ': ' : ''}${trouble}` : '';
  stateLine.classList.toggle('warn', Boolean(trouble));
  const memory = info.memory;
  const facts = [['version', info.version], ['policy', info.policy], ['state', failed ? 'no answer' : info.state]];
  if (memory) {
    facts.push(['expert groups', n(memory.groups)], ['at most given up', n(memory.max_groups_out)], ['host tier', memory.host_kv ? b(memory.host_kv) : 'none']);
  }
  chips.replaceChildren(...facts.filter(([, v]) => v !== undefined && v !== '').map(([name, v]) => html('span', { class: 'chip' }, name + ' ', html('b', {}, v))));
}
function head() {
  const ranges = html('div', { class: 'ranges' }, ...[1, 5, 15].map((m) => {
    const button = html('button', { type: 'button', 'aria-pressed': String(m === minutes) }, `${m} min`);
    button.onclick = () => {
      minutes = m;
      for (const other of ranges.children) other.setAttribute('aria-pressed', String(other === button));
      redraw();
    };
    return button;
  }));
  main.append(html('header', {}, html('div', {}, title, chips), html('div', { class: 'ranges' }, ranges, themeButton())), stateLine, keyBox);
}

// --- figures ----------------------------------------------------------------------------------------
const tiles = [
  ['TTFT, 90th percentile', 'of the requests that ended last', () => s(lastKnown('ttft_p90'))],
  ['Time per output token', 'median, likewise', () => s(lastKnown('tpot_p50'))],
  ['Prefix hit rate', 'of prompt tokens, recent requests', () => p(lastKnown('hit_rate'))],
  ['Running · waiting', 'requests', () => (known(last('running')) ? `${n(last('running'))} · ${n(last('waiting'))}` : '–')],
  ['Tokens a second', 'prefill · output, last 10 s', () => (known(rateOf('decode_tokens')) ? `${n(rateOf('prefill_tokens'))} · ${n(rateOf('decode_tokens'))}` : '–')],
];
function glance() {
  const node = grid('tiles');
  for (const [name, sub, value] of tiles) {
    const tile = card(node, name, sub);
    tile.classList.add('tile');
    charts.push([tile.lastChild, (box) => box.replaceChildren(html('div', { class: 'figure' }, value()))]);
  }
}

// The last minutes: [x in seconds before now, rows].
function frame() {
  const end = last('second') ?? 0;
  const from = Math.max(0, (columns.second || []).findIndex((t) => t > end - 60 * minutes));
  return { end, x: (columns.second || []).slice(from).map((t) => t - end), cut: (name) => (columns[name] || []).slice(from) };
}
const ago = (v) => (v === 0 ? 'now' : v > -60 ? `${v} s` : `${trim(v / 60, 3)} min`);
function timeAxis() {
  const step = minutes === 1 ? 15 : minutes === 5 ? 60 : 180;
  return { domain: [-60 * minutes, 0], ticks: Array.from({ length: (60 * minutes) / step + 1 }, (_, i) => i * step - 60 * minutes), keepLast: true, format: ago,
    tip: (v) => (v === 0 ? 'now' : `${s(-v)} ago`) };
}
const idle = 'no data yet';

function memory() {
  section('Memory by owner', 'One pool of pages: what experts give up, the KV cache holds. The boundary moves while requests run.');
  const node = html('div', { class: 'card' });
  const keys = html('div', { class: 'keys' }), box = html('div', {});
  node.append(keys, box);
  main.append(node);
  const owners = [['other weights', 'weights', 0], ['experts', 'experts', 1], ['staging banks', 'staging', 2], ['KV in use', 'kv_in_use', 3], ['KV cached', 'kv_cached', 4], ['KV free', 'kv_free', 5]];
  for (const [name, , color] of owners) keys.append(html('span', {}, html('i', { class: 'dot', style: `background:var(--m${color})` }), name));
  charts.push([box, () => {
    const { x, cut } = frame();
    const series = owners.map(([name, column, color]) => ({ name, color: `var(--m${color})`, kind: 'area', x,
      y: column === 'weights' ? x.map(() => info.memory.weights) : cut(column) }));
    const fixed = x.length ? (info.memory.weights + Math.min(...cut('experts'))) : 0;
    const total = x.length ? series.reduce((a, v) => a + v.y[v.y.length - 1], 0) : 1;
    // What never changes would squeeze what does: the axis begins below the least that experts held.
    const low = fixed > 0.6 * total ? fixed - 0.15 * (total - fixed) : 0;
    drawChart(box, { height: 260, stacked: true, empty: idle, x: timeAxis(), y: { domain: [Math.max(0, low), total * 1.01], format: b, bytes: true }, series });
  }]);
}

function overTime() {
  section('Over time');
  const node = grid();
  const chart = (name, sub, y, ...lines) => card(node, name, sub, (box) => {
    const { x, cut } = frame();
    drawChart(box, { height: 170, empty: idle, x: timeAxis(), y,
      series: lines.map(([label, column, color, kind]) => ({ name: label, color: `var(--p${color})`, kind: kind || 'line', x, y: cut(column) })) });
  });
  const sparse = (name, sub, y, ...lines) => card(node, name, sub, (box) => {
    const { x, cut } = frame();
    const series = lines.map(([label, column, color]) => {
      const v = cut(column), at = x.map((_, i) => i).filter((i) => known(v[i]));
      return { name: label, color: `var(--p${color})`, kind: 'line', x: at.map((i) => x[i]), y: at.map((i) => v[i]) };
    });
    drawChart(box, { height: 170, empty: 'no request has ended', x: timeAxis(), y, series });
  });
  sparse('Time to first token', 'of requests that ended in each second', { format: s }, ['median', 'ttft_p50', 2], ['p90', 'ttft_p90', 1]);
  sparse('Time per output token', 'likewise', { format: s }, ['median', 'tpot_p50', 2], ['p90', 'tpot_p90', 1]);
  chart('Requests', 'running and waiting', { format: n, whole: true }, ['running', 'running', 2, 'step'], ['waiting', 'waiting', 1, 'step']);
  chart('Prefix hit rate', 'prompt tokens found in the cache, recent requests', { format: p, domain: [0, 1] }, ['hit rate', 'hit_rate', 4]);
  chart('Tokens a second', 'computed', { format: n }, ['prefill', 'prefill_tokens', 1], ['output', 'decode_tokens', 2]);
  chart('Boundary', 'expert groups given up to the KV pool', { format: n, whole: true }, ['groups', 'groups_out', 3, 'step']);
  chart('Host link', 'bytes a second', { format: (v) => (v ? b(v) + '/s' : '0'), bytes: true }, ['experts staged', 'staged_bytes', 3], ['KV to host', 'demoted_bytes', 1], ['KV from host', 'promoted_bytes', 2]);
  chart('Host tier', 'KV held in host memory', { format: b, bytes: true }, ['KV', 'host_kv', 4, 'step']);
}

// --- requests ---------------------------------------------------------------------------------------
const onlyOperator = 'Shown to the holder of the first API key.';
function timeline() {
  section('Requests', 'The last that ended, newest below: waiting, prefill, output. Dots mark preemptions.');
  const node = html('div', { class: 'card' });
  const keys = html('div', { class: 'keys' }), box = html('div', { class: 'timeline' });
  for (const [name, color] of [['waiting', 'var(--p0)'], ['prefill', 'var(--p1)'], ['output', 'var(--p2)'], ['preempted', 'var(--a4)']]) {
    keys.append(html('span', {}, html('i', { class: 'dot', style: `background:${color}` }), name));
  }
  node.append(keys, box);
  main.append(node);
  charts.push([box, () => drawTimeline(box)]);
}
function drawTimeline(box) {
  box.replaceChildren();
  const end = (last('second') ?? 0) + 1;
  const shown = requestList.filter((r) => (r.finished ?? 0) > end - 60 * minutes).slice(-40);
  if (!shown.length) {
    box.append(html('div', { class: 'none' }, info.single === false ? onlyOperator : 'no request has ended'));
    return;
  }
  const width = Math.max(220, box.clientWidth), row = 13, left = 4, right = width - 4, bottom = 6 + row * shown.length;
  const low = Math.min(...shown.map((r) => r.arrival)), high = Math.max(...shown.map((r) => r.finished));
  const px = (t) => left + ((t - low) / (high - low || 1)) * (right - left);
  const root = svg('svg', { viewBox: `0 0 ${width} ${bottom + 20}`, height: bottom + 20, role: 'img' }, box);
  shown.forEach((r, i) => {
    const y = 4 + i * row, first = r.first_token ?? r.finished, started = r.scheduled ?? first;
    const bar = (from, to, fill) => { if (to > from) svg('rect', { x: px(from).toFixed(1), y, width: Math.max(1, px(to) - px(from)).toFixed(1), height: row - 4, fill, rx: 2 }, root); };
    bar(r.arrival, started, 'var(--p0)');
    bar(started, first, 'var(--p1)');
    bar(first, r.finished, r.reason === 'error' ? 'var(--a4)' : 'var(--p2)');
    for (let k = 0; k < r.preemptions; ++k) svg('circle', { cx: px(r.finished) - 4 - 7 * k, cy: y + (row - 4) / 2, r: 2.5, fill: 'var(--a4)' }, root);
    const area = svg('rect', { x: left, y: y - 2, width: right - left, height: row, fill: 'transparent' }, root);
    area.addEventListener('pointermove', (event) => showTip(event, `request ${r.id}, session ${r.session}`, [
      ['var(--p0)', 'waited', s(started - r.arrival)], ['var(--p1)', 'prefill', r.first_token === null ? '–' : s(first - started)], ['var(--p2)', 'output', r.first_token === null ? '–' : s(r.finished - first)],
      ['var(--m4)', 'prompt tokens', n(r.prompt)], ['var(--m4)', 'cached · from host', `${n(r.cached)} · ${n(r.host_cached)}`], ['var(--m4)', 'output tokens', n(r.output)], ['var(--m0)', 'ended by', r.reason]]));
    area.addEventListener('pointerleave', hideTip);
  });
  for (const [at, anchor] of [[low, 'start'], [high, 'end']]) svg('text', { x: px(at), y: bottom + 15, 'text-anchor': anchor }, root).textContent = `${s(Math.max(0, end - at))} ago`;
}

// --- decisions --------------------------------------------------------------------------------------
function decisions() {
  section('Decisions', 'Each time too few KV blocks were free: what was done, and what every way out would have cost in future work.');
  const node = html('div', { class: 'card' });
  const box = html('div', { class: 'scroll' });
  node.append(box);
  main.append(node);
  charts.push([box, () => {
    if (!decisionList.length) {
      box.replaceChildren(html('div', { class: 'none' }, info.single === false ? onlyOperator : 'no decision was needed'));
      return;
    }
    const end = (last('second') ?? 0) + 1;
    const rows = decisionList.slice(-30).reverse().map((d) => {
      const costs = html('td', { class: 'costs' });
      for (const c of d.costs) costs.append(html('span', { class: c.action === d.action ? 'chosen' : '' }, `${c.action} ${c.price === null ? 'not possible' : format.micros(c.price)}`));
      return html('tr', { title: d.note }, html('td', {}, `${s(Math.max(0, end - d.time))} ago`), html('td', {}, html('i', { class: 'dot', style: `background:${actionColor(d.action)};margin-right:7px` }), d.action + (d.repeats > 1 ? ` × ${n(d.repeats)}` : '')),
        html('td', {}, `${n(d.won)} of ${n(d.needed)}`), html('td', {}, d.asked_again ? `${n(d.asked_again)} tokens` : '–'), costs);
    });
    box.replaceChildren(html('table', {}, html('thead', {}, html('tr', {}, ...['when', 'action', 'blocks won', 'asked for again'].map((v) => html('th', {}, v)), html('th', { class: 'costs' }, 'prices'))), html('tbody', {}, ...rows)));
  }]);
}

head();
glance();
memory();
overTime();
timeline();
decisions();
drawWhenResized();
turn();
