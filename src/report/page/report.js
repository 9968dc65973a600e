'use strict';
// The report: what each section shows, and from which figures. Charts are drawn by charts.js.
const report = JSON.parse(document.getElementById('data').textContent);
const runs = report.runs;
const known = { static: 0, paper: 1, priced: 2, 'priced-nohost': 3 };
const taken = new Set();
runs.forEach((run) => {
  let slot = known[run.policy];
  if (slot === undefined || taken.has(slot)) slot = [4, 5, 3, 2, 1, 0].find((s) => !taken.has(s)) ?? 4;
  taken.add(slot);
  run.color = `var(--p${slot})`;
  run.shown = true;
});
// Runs of engines in this process; else of servers, seen by a client: what only an engine knows is left out.
const inside = runs.every((run) => run.memory);
const told = (value) => runs.some((run) => value(run) !== null && value(run) !== undefined);
const longest = Math.max(...runs.map((run) => run.duration_s));
function visible() { return runs.filter((run) => run.shown); }

// --- header, legend ---------------------------------------------------------------------------------
function head() {
  const chips = html('div', { class: 'chips' });
  for (const [name, value] of Object.entries(report.settings)) chips.append(html('span', { class: 'chip' }, name + ' ', html('b', {}, value)));
  main.append(html('header', {}, html('div', {}, html('h1', {}, report.title), chips), themeButton()));
  const legend = html('div', { class: 'legend' });
  for (const run of runs) {
    const button = html('button', { type: 'button', title: 'show or hide this run' }, html('i', { class: 'dot', style: `background:${run.color}` }), run.policy);
    button.onclick = () => { run.shown = !run.shown; button.classList.toggle('off', !run.shown); redraw(); };
    legend.append(button);
  }
  main.append(legend);
}

// --- figures side by side ---------------------------------------------------------------------------
const tiles = [
  ['TTFT, 90th percentile', 'lower is better', (r) => r.ttft_s.p90, format.seconds, -1],
  ['Prefix hit rate, warm turns', 'higher is better', (r) => r.prefix_hit_rate_warm, format.percent, 1],
  ['Requests per second', 'higher is better', (r) => r.requests_per_s, format.short, 1],
  ['Time per output token', 'mean, lower is better', (r) => r.tpot_s.mean, format.seconds, -1],
  ['Time in the queue', 'mean, lower is better', (r) => r.queue_s.mean, format.seconds, -1],
];
function glance() {
  section('At a glance');
  const node = grid('tiles');
  for (const [title, sub, value, text] of tiles.filter((tile) => told(tile[2]))) {
    const tile = card(node, title, '');
    tile.classList.add('tile');
    tile.querySelector('.sub').textContent = sub;
    charts.push([tile.lastChild, (box) => {
      const most = Math.max(...visible().map((run) => value(run) || 0));
      box.replaceChildren(...visible().map((run) => html('div', { class: 'bar' },
        html('span', { class: 'name' }, run.policy), html('span', { class: 'value' }, text(value(run))),
        html('span', { class: 'track' }, html('i', { style: `background:${run.color};width:${most ? (100 * (value(run) || 0)) / most : 0}%` })))));
    }]);
  }
  const notes = [...report.notes];
  for (const run of runs) {
    if (run.cut) notes.push(`${run.policy}: ${run.cut}`);
    if (run.window.note) notes.push(`${run.policy}: ${run.window.note}`);
  }
  if (notes.length) main.append(html('ul', { class: 'notes' }, ...notes.map((note) => html('li', {}, note))));
}
const s = format.seconds, n = format.short, p = format.percent, b = format.bytes;
const figures = [
  ['Turns answered', (r) => r.turns - r.failed_turns, n, 0], ['Turns in the window', (r) => r.window_turns, n, 0],
  ['Duration', (r) => r.duration_s, s, 0], ['Window', (r) => r.window.end_s - r.window.begin_s, s, 0],
  ['TTFT mean', (r) => r.ttft_s.mean, s, -1], ['TTFT p50', (r) => r.ttft_s.p50, s, -1],
  ['TTFT p90', (r) => r.ttft_s.p90, s, -1], ['TTFT p99', (r) => r.ttft_s.p99, s, -1],
  ['TTFT p90, warm turns', (r) => r.ttft_warm_s.p90, s, -1],
  ['TPOT mean', (r) => r.tpot_s.mean, s, -1], ['TPOT p50', (r) => r.tpot_s.p50, s, -1],
  ['TPOT p90', (r) => r.tpot_s.p90, s, -1], ['TPOT p99', (r) => r.tpot_s.p99, s, -1],
  ['Queue mean', (r) => r.queue_s.mean, s, -1], ['Queue p99', (r) => r.queue_s.p99, s, -1],
  ['End to end mean', (r) => r.e2e_s.mean, s, -1],
  ['Requests per second', (r) => r.requests_per_s, n, 1], ['Output tokens per second', (r) => r.output_tokens_per_s, n, 1],
  ['Prefix hit rate', (r) => r.prefix_hit_rate, p, 1], ['Prefix hit rate, warm turns', (r) => r.prefix_hit_rate_warm, p, 1],
  ['of it from host memory', (r) => r.host_hit_rate, p, 0],
  ['Preemptions per 1,000 turns', (r) => r.preemptions_per_1000_turns, n, -1],
  ['Running, mean', (r) => r.running_mean, n, 0], ['Waiting, mean', (r) => r.waiting_mean, n, -1],
  ['KV pool in use, mean', (r) => r.pool_use.mean, p, 0], ['KV pool in use, max', (r) => r.pool_use.max, p, 0],
  ['Expert groups given up, mean', (r) => r.groups_out?.mean, n, 0], ['Expert groups given up, max', (r) => r.groups_out?.max, n, 0],
  ['Boundary moves', (r) => r.boundary_moves, n, 0], ['Experts staged', (r) => r.staged_bytes, b, 0],
  ['of it chosen by a token', (r) => r.activated_bytes, b, 0], ['Stalled on staging', (r) => r.staging_stall_s, s, -1],
  ['KV copied to host', (r) => r.demoted_bytes, b, 0], ['KV brought back', (r) => r.promoted_bytes, b, 0],
  ['Distinct experts a layer and step', (r) => r.experts_per_layer_mean, n, 0],
  ['Steps', (r) => r.steps, n, 0], ['Failed turns', (r) => r.failed_turns, n, -1],
];
function allFigures() {
  const table = html('table', {});
  const holder = html('div', { class: 'card scroll', style: 'margin-top:14px' }, table);
  main.append(holder);
  charts.push([table, () => {
    const shown = visible();
    const head = html('tr', {}, html('th', {}, ''), ...shown.map((run) => html('th', {}, run.policy)));
    const rows = figures.filter((figure) => told(figure[1])).map(([name, value, text, sign]) => {
      const values = shown.map(value);
      const real = values.filter((v) => v !== null && isFinite(v));
      const best = sign && real.length > 1 ? (sign > 0 ? Math.max(...real) : Math.min(...real)) : null;
      const equal = real.every((v) => v === real[0]);
      return html('tr', {}, html('td', {}, name), ...values.map((v) => {
        const cell = html('td', { class: v === best && !equal ? 'best' : '' }, text(v));
        if (sign && !equal && v !== values[0] && values[0] && isFinite(v / values[0]) && v !== null) {
          const rel = v / values[0];
          cell.append(html('span', { class: 'rel' }, rel >= 1.995 || rel < 0.0995 ? `${trim(rel, 2)}×` : `${rel >= 1 ? '+' : '−'}${Math.abs(Math.round(100 * (rel - 1)))}%`));
        }
        return cell;
      }));
    });
    table.replaceChildren(html('thead', {}, head), html('tbody', {}, ...rows));
  }]);
}

// --- over time --------------------------------------------------------------------------------------
const timeAxis = (domain) => ({ domain, time: true, label: 'time since the start', format: s, tip: (v) => 'at ' + s(v) });
const owners = [['weights outside experts', 0], ['experts', 1], ['staging banks', 2], ['KV in use', 3], ['KV cached', 4], ['KV free', 5]];
const parts = ['experts', 'banks', 'kv_used', 'kv_cached', 'kv_free'];
function memory() {
  if (!inside) return;
  section('Memory by owner', 'Device memory over time: the boundary between experts and KV blocks moves, everything else stays where it is.');
  const least = (run) => Math.min(...run.series.experts.filter((v) => v !== null)) + run.memory.dense_bytes;
  const top = Math.max(...runs.map((run) => run.memory.dense_bytes +
    Math.max(...run.series.time_s.map((_, i) => parts.reduce((sum, k) => sum + (run.series[k][i] || 0), 0)))));
  // Below `floor` nothing moves in any run: there the axis may begin.
  const lowest = Math.min(...runs.map(least));
  const floor = Math.max(0, lowest - 0.25 * (top - lowest));
  let whole = floor < 0.3 * top;
  const button = html('button', { type: 'button' });
  const label = () => { button.textContent = whole ? 'Show only the part that moves' : 'Show all of the memory'; };
  button.onclick = () => { whole = !whole; label(); redraw(); };
  label();
  const list = html('div', { class: 'keys' }, button);
  for (const [name, k] of owners) list.append(html('span', {}, html('i', { class: 'dot', style: `background:var(--m${k})` }), name));
  main.append(list);
  const node = grid();
  for (const run of runs) {
    const tile = card(node, run.policy, '', (box) => {
      tile.style.display = run.shown ? '' : 'none';
      tile.querySelector('.sub').textContent = whole ? '' : `the axis begins at ${b(floor)}: experts and other weights below it stay`;
      if (!run.shown) return;
      const v = run.series, line = (name, k, y) => ({ name, color: `var(--m${k})`, x: v.time_s, y, kind: 'area' });
      const fixed = v.time_s.map((_, i) => (v.experts[i] === null ? null : run.memory.dense_bytes));
      drawChart(box, { height: 210, stacked: true, x: timeAxis([0, longest]), y: { format: b, bytes: true, domain: [whole ? 0 : floor, top * (whole ? 1.02 : 1)] },
        series: [line(owners[0][0], 0, fixed), ...parts.map((part, k) => line(owners[k + 1][0], k + 1, v[part]))] });
    });
  }
}
function overTime() {
  section('Over time', runs.some((run) => run.window.rule !== 'all') ? 'The shaded stretch is the window that the figures above count (of the first run shown).' : '');
  const node = grid();
  const line = (title, sub, key, y, kind = 'line') => runs.some((run) => run.series[key].some((v) => v !== null)) && card(node, title, sub, (box) => {
    const first = visible()[0];
    drawChart(box, { height: 210, x: timeAxis([0, longest]), y, window: first && first.window.rule !== 'all' ? [first.window.begin_s, first.window.end_s] : null,
      series: visible().map((run) => ({ name: run.policy, color: run.color, x: run.series.time_s, y: run.series[key], kind })) });
  });
  card(node, 'Time to first token', 'every turn by its arrival, and the 90th percentile around it (log scale)', (box) => drawChart(box, {
    height: 210, x: timeAxis([0, longest]), y: { format: s, log: true }, series: visible().flatMap((run) => [
      { name: run.policy, color: run.color, x: run.series.turn_arrival_s, y: run.series.turn_ttft_s, kind: 'dots' },
      { name: run.policy + ' p90', color: run.color, x: run.series.time_s, y: run.series.ttft_p90, kind: 'line' }]) }));
  line('Waiting requests', 'sent, not yet running', 'waiting', { format: n, whole: true });
  line('Running requests', 'in the batch', 'running', { format: n, whole: true });
  line('Preemptions', 'since the start', 'preemptions', { format: n, whole: true }, 'step');
  line('Prefix hit rate', 'prompt tokens found in the cache, around each moment', 'hit_rate', { format: p, domain: [0, 1] });
  line('Boundary', 'expert groups given up to the KV pool', 'groups_out', { format: n, whole: true }, 'step');
  line('Experts staged', 'bytes copied from host memory a second', 'staged_rate', { format: (v) => b(v) + (v ? '/s' : ''), bytes: true });
  line('Host tier', 'KV held in host memory', 'host_kv', { format: b, bytes: true });
}

// --- by turn ----------------------------------------------------------------------------------------
function byTurn() {
  section('By turn', 'Conversations grow: the later the turn, the longer the prompt that must be found in the cache.');
  const node = grid();
  card(node, 'TTFT p90 by turn', 'turns in ten bins (log scale)', (box) => {
    const bins = runs[0].series.bins;
    const label = (i) => (bins[i] ? (bins[i].first === bins[i].last ? `${bins[i].first}` : `${bins[i].first}–${bins[i].last}`) : '');
    drawChart(box, { height: 230, y: { format: s, log: true },
      x: { domain: [-0.5, Math.max(...runs.map((r) => r.series.bins.length)) - 0.5], ticks: bins.map((_, i) => i), bands: true, label: 'turn', format: label, tip: (v) => 'turns ' + label(v) },
      series: visible().map((run) => ({ name: run.policy, color: run.color, x: run.series.bins.map((_, i) => i), y: run.series.bins.map((bin) => bin.ttft_p90_s), kind: 'line' })) });
  });
  const tile = card(node, 'Median TTFT by turn', 'and how many sessions are still alive', (box) => {
    const turns = Math.max(...runs.map((run) => run.series.by_turn.length));
    drawChart(box, { height: 160, x: { domain: [1, Math.max(2, turns)], label: '', format: n, whole: true, tip: (v) => 'turn ' + v }, y: { format: s, log: true },
      series: visible().map((run) => ({ name: run.policy, color: run.color, x: run.series.by_turn.map((t) => t[0]), y: run.series.by_turn.map((t) => t[2]), kind: 'line', width: 2 })) });
    const under = html('div', {});
    box.append(under);
    drawChart(under, { height: 88, x: { domain: [1, Math.max(2, turns)], label: 'turn', format: n, whole: true, tip: (v) => 'turn ' + v }, y: { format: n, whole: true },
      series: visible().map((run) => ({ name: run.policy + ' sessions', color: run.color, x: run.series.by_turn.map((t) => t[0]), y: run.series.by_turn.map((t) => t[1]), kind: 'step' })) });
  });
  card(node, 'Time to first token, all turns', 'share of turns answered within (log scale)', (box) => drawChart(box, {
    height: 230, x: { log: true, label: 'TTFT', format: s, domain: (() => {
      const all = runs.flatMap((run) => run.series.ttft_quantiles_s).filter((v) => v > 0);
      return [Math.min(...all) * 0.9, Math.max(...all) * 1.1];
    })() }, y: { format: p, domain: [0, 1] }, series: visible().map((run) => ({ name: run.policy, color: run.color,
      x: run.series.ttft_quantiles_s, y: run.series.ttft_quantiles_s.map((_, i) => i / 50), kind: 'line' })) }));
  if (inside) card(node, 'Distinct experts a layer and step', 'by the step’s tokens, mean over MoE layers', (box) => drawChart(box, {
    height: 230, empty: 'this executor does not count experts', x: { log: true, label: 'tokens in the step', format: n, tip: (v) => `steps of up to ${n(v)} tokens`,
      domain: [1, Math.max(2, ...runs.flatMap((run) => run.series.experts_by_tokens.map((e) => e[0])))] },
    y: { format: n, domain: [0, Math.max(1, ...runs.map((run) => run.memory.experts_per_layer))] },
    series: visible().map((run) => ({ name: run.policy, color: run.color, x: run.series.experts_by_tokens.map((e) => e[0]), y: run.series.experts_by_tokens.map((e) => e[2]), kind: 'line' })) }));
}
// A row a MoE layer: which layers spread their tokens over many experts, and when.
function expertsByLayer() {
  const counted = runs.filter((run) => run.series.experts_by_layer.length);
  if (!counted.length) return;
  const most = Math.max(...counted.map((run) => run.memory.experts_per_layer));
  section('Experts by layer', `Distinct experts chosen in a step, mean over the steps of each moment, of ${n(most)} in a layer. The stronger the colour, the more; blank where no step ended.`);
  const node = grid();
  for (const run of counted) {
    const tile = card(node, run.policy, 'a row for each MoE layer', (box) => {
      tile.style.display = run.shown ? '' : 'none';
      if (run.shown) drawHeatMap(box, { x: { ...timeAxis([0, longest]), times: run.series.experts_time_s }, rows: run.series.experts_by_layer, most, row: 'MoE layer', unit: 'experts' });
    });
  }
}
