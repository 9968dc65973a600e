'use strict';
// Sections on decisions, service levels and settings; then everything in its order.
const actions = { drop: 0, demote: 1, 'give-up-experts': 2, 'give-up-and-drop': 3, 'preempt-recompute': 4, 'preempt-swap': 5, wait: 6 };
const actionColor = (name) => `var(--a${actions[name] ?? 6})`;

function decisions() {
  if (!inside) return;
  section('Decisions', 'Each time too few KV blocks were free: what was done, and the prices (future work) that decided. Waiting is counted in the table only: it is decided anew each step.');
  const node = grid();
  for (const run of runs) {
    const v = run.series;
    const tile = card(node, run.policy, '', (box) => {
      tile.style.display = run.shown ? '' : 'none';
      if (!run.shown) return;
      const width = Math.max(1, ((box.clientWidth - 60) / v.decision_time_s.length) * (run.duration_s / longest) - 1);
      drawChart(box, { height: 170, stacked: true, empty: 'no decision was needed', x: { ...timeAxis([0, longest]), label: '' }, y: { format: n, whole: true },
        series: v.prices.filter((a) => a.chosen && a.action !== 'wait').map((a) => ({ name: a.action, color: actionColor(a.action), x: v.decision_time_s, y: a.over_time, kind: 'bars', width })) });
      if (!v.prices.length) return;
      const rows = v.prices.map((a) => html('tr', {},
        html('td', {}, html('i', { class: 'dot', style: `background:${actionColor(a.action)};margin-right:7px` }), a.action),
        html('td', {}, n(a.chosen)), html('td', {}, format.micros(a.chosen_p50_us)), html('td', {}, format.micros(a.runner_up_p50_us)),
        html('td', {}, format.micros(a.refused_p50_us))));
      box.append(html('div', { class: 'scroll' }, html('table', {}, html('thead', {}, html('tr', {}, html('th', {}, 'action'),
        html('th', { title: 'times chosen' }, 'chosen'), html('th', { title: 'median price when chosen' }, 'price'),
        html('th', { title: 'median price of the next best then' }, 'next best'),
        html('th', { title: 'median price when another action won' }, 'when refused'))), html('tbody', {}, ...rows))));
    });
  }
}

// --- service levels ---------------------------------------------------------------------------------
const rate = (v) => (v >= 10 ? v.toFixed(0) : v >= 1 ? v.toFixed(1) : v > 0 ? v.toFixed(2).replace(/^0/, '') : '0');
function heat(title, sub, parent, cell, run) {
  const { ttft_s, tpot_ms } = runs[0].slo;
  const table = html('table', { class: 'heat' });
  const tile = card(parent, title, sub);
  tile.lastChild.append(table);
  charts.push([table, () => {
    if (run) tile.style.display = run.shown ? '' : 'none';
    const head = html('tr', {}, html('th', {}, ''), ...tpot_ms.map((v) => html('th', {}, `${v}`)));
    table.replaceChildren(html('thead', {}, head), html('tbody', {}, ...ttft_s.map((t, i) =>
      html('tr', {}, html('th', {}, `${t} s`), ...tpot_ms.map((_, j) => cell(i, j))))));
  }]);
}
function levels() {
  section('Service levels', 'Q(T, P): requests per second of the window answered with a first token within T and a mean time per output token within P. Rows: T in seconds, columns: P in milliseconds.');
  const node = grid();
  const most = Math.max(1e-12, ...runs.flatMap((run) => run.slo.requests_per_s.flat()));
  for (const run of runs) {
    heat(run.policy, 'requests per second', node, (i, j) => {
      const q = run.slo.requests_per_s[i][j];
      const shade = q / most;
      return html('td', { style: `background:rgba(var(--heat),${(0.04 + 0.66 * shade).toFixed(3)})`, title: `${q.toFixed(4)} req/s` }, rate(q));
    }, run);
  }
  heat(inside ? 'Which policy leads' : 'Which server leads', 'and its lead over the first run; blank where nobody answers in time, grey where the best are within 1%', node, (i, j) => {
    const shown = visible();
    const ranked = shown.slice().sort((a, c) => c.slo.requests_per_s[i][j] - a.slo.requests_per_s[i][j]);
    const top = ranked.length ? ranked[0].slo.requests_per_s[i][j] : 0;
    if (!top) return html('td', {}, '');
    const tie = ranked.length > 1 && ranked[1].slo.requests_per_s[i][j] > top * 0.99;
    const base = runs[0].slo.requests_per_s[i][j];
    const text = ranked[0] === runs[0] || tie ? '' : base ? `${trim(top / base, 2)}×` : '∞';
    return html('td', { title: `${ranked[0].policy} ${top.toFixed(3)} req/s`, style: tie ? 'background:var(--grid)' : `background:${ranked[0].color};color:var(--card);font-weight:600` }, text);
  });
  const { ttft_s, tpot_ms } = runs[0].slo;
  let row = 2;
  const slice = card(node, 'Slice: requests per second by the limit on time per token', '', (box) => {
    slice.querySelectorAll('button').forEach((button, i) => button.setAttribute('aria-pressed', String(i === row)));
    drawChart(box, { height: 220, x: { domain: [tpot_ms[0], tpot_ms[tpot_ms.length - 1]], label: 'TPOT limit, ms', format: n }, y: { format: n },
      series: visible().map((run) => ({ name: run.policy, color: run.color, x: tpot_ms, y: run.slo.requests_per_s[row], kind: 'line' })) });
  });
  const buttons = html('div', { class: 'chips', style: 'margin:2px 0 8px' });
  ttft_s.forEach((t, i) => {
    const button = html('button', { type: 'button' }, `TTFT ≤ ${t} s`);
    button.onclick = () => { row = i; redraw(); };
    buttons.append(button);
  });
  slice.insertBefore(buttons, slice.lastChild);
}

function settings() {
  section('Settings');
  const names = [...new Set(runs.flatMap((run) => Object.keys(run.settings)))];
  const facts = (inside ? [['expert group', (r) => b(r.memory.group_bytes)], ['groups', (r) => n(r.memory.total_groups)], ['may be given up', (r) => n(r.memory.max_groups_out)],
    ['KV block', (r) => b(r.memory.block_bytes)], ['KV a token', (r) => b(r.memory.kv_bytes_per_token)], ['KV pool at the start', (r) => b(r.memory.base_pool_bytes)]] : []).concat([
    ['window', (r) => `${r.window.rule}: ${s(r.window.begin_s)} to ${s(r.window.end_s)}`]]);
  const rows = [...names.map((name) => [name, (r) => r.settings[name] ?? '–']), ...facts];
  main.append(html('div', { class: 'card scroll' }, html('table', {}, html('thead', {}, html('tr', {}, html('th', {}, ''), ...runs.map((run) => html('th', {}, run.policy)))),
    html('tbody', {}, ...rows.map(([name, value]) => html('tr', {}, html('td', {}, name), ...runs.map((run) => html('td', {}, value(run)))))))));
  main.append(html('footer', {}, 'TTFT, throughput, hit rates and preemptions count requests that arrive in the window; time per output token counts the whole run. Warm turns leave out each session’s first.'));
}

head();
glance();
memory();
overTime();
byTurn();
expertsByLayer();
decisions();
levels();
section('All figures', 'Best in green; small print: against the first run.');
allFigures();
settings();
drawWhenResized();
