'use strict';
// What our pages are put together from: sections, cards, the choice of light or dark. A card with a chart
// registers how it is drawn; redraw() draws them all.
const charts = [];  // [box, draw]
function redraw() { for (const [box, draw] of charts) draw(box); }

const main = document.querySelector('main');
function section(title, lead) {
  main.append(html('h2', {}, title));
  if (lead) main.append(html('p', { class: 'lead' }, lead));
}
function grid(kind = 'grid') {
  const node = html('div', { class: kind });
  main.append(node);
  return node;
}
function card(parent, title, sub, draw) {
  const box = html('div', {});
  const node = html('div', { class: 'card' }, html('h3', {}, title), html('p', { class: 'sub' }, sub || ''), box);
  parent.append(node);
  if (draw) charts.push([box, draw]);
  return node;
}

function themeButton() {
  const system = matchMedia('(prefers-color-scheme: dark)');
  const theme = document.documentElement.dataset;
  const button = html('button', { type: 'button' });
  const choose = (dark) => {
    theme.theme = dark ? 'dark' : 'light';
    button.textContent = dark ? 'Light' : 'Dark';
  };
  button.onclick = () => choose(theme.theme !== 'dark');
  system.onchange = () => choose(system.matches);
  choose(system.matches);
  return button;
}

// At the first paint and whenever the width changes.
function drawWhenResized() {
  document.body.append(tip);
  redraw();
  let lastWidth = innerWidth;
  addEventListener('resize', () => { if (innerWidth !== lastWidth) { lastWidth = innerWidth; redraw(); } });
}
