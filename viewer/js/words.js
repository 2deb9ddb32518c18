// SPDX-License-Identifier: Apache-2.0
// Numbers as words, and elements made without markup: what a recording says is only ever text.

const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB', 'EiB'];

function sizeText(bytes) {
  let unit = 0;
  let value = Math.abs(bytes);
  while (value >= 1024 && unit + 1 < units.length) {
    value /= 1024;
    ++unit;
  }
  const digits = unit === 0 || value >= 100 ? 0 : value >= 10 ? 1 : 2;
  const text = value.toFixed(digits);
  return `${bytes < 0 ? '-' : ''}${text.includes('.') ? text.replace(/\.?0+$/, '') : text} ${units[unit]}`;
}

const plain = new Intl.NumberFormat('en');
const countText = (number) => plain.format(number);
const addressText = (address) => `0x${address.toString(16)}`;
const percentText = (part, whole) => (whole > 0 ? `${((100 * part) / whole).toFixed(1)} %` : '-');

// A span of nanoseconds; `step` is the finest difference that must be seen.
function timeText(nanoseconds, step = null) {
  const scales = [[1e9, 's'], [1e6, 'ms'], [1e3, 'µs'], [1, 'ns']];
  const [scale, unit] = scales.find(([size]) => Math.abs(nanoseconds) >= size) || scales[3];
  const digits = step === null ? 2 : Math.max(0, Math.min(9, Math.ceil(Math.log10(scale / Math.max(step, 1)) + 0.999)));
  return `${(nanoseconds / scale).toFixed(scale === 1 ? 0 : digits)} ${unit}`;
}

const byId = (id) => document.getElementById(id);

function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === 'class') element.className = value;
    else if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
    else if (name === 'style') Object.assign(element.style, value);
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

// A row of buttons of which one is pressed.
function choice(parent, names, chosen, choose) {
  const buttons = names.map(({ value, label, title }) =>
    make('button', { title, 'aria-pressed': String(value === chosen), onclick: () => set(value) }, label));
  const set = (value) => {
    names.forEach((name, i) => buttons[i].setAttribute('aria-pressed', String(name.value === value)));
    choose(value);
  };
  parent.replaceChildren(...buttons);
  return set;
}

// A table. Columns: {label, text?, wide?, cell(row)}.
function tableOf(columns, rows, { empty, row: decorate } = {}) {
  const classes = (column) => [column.text ? 'text' : '', column.wide ? 'wide' : ''].join(' ').trim();
  const head = make('tr', {}, ...columns.map((column) => make('th', { class: classes(column), scope: 'col' }, column.head || column.label)));
  const body = rows.map((row, i) => {
    const line = make('tr', {}, ...columns.map((column) => {
      const content = column.cell(row, i);
      return make('td', { class: classes(column) }, ...(Array.isArray(content) ? content : [content]));
    }));
    if (decorate) decorate(line, row, i);
    return line;
  });
  if (!rows.length && empty) body.push(make('tr', {}, make('td', { class: 'empty', colspan: columns.length }, empty)));
  return make('table', {}, make('thead', {}, head), make('tbody', {}, ...body));
}

const swatch = (color, kind = '') =>
  make('i', { class: `swatch ${kind}`, style: kind ? { borderColor: color } : { background: color } });

// The box beside the pointer.
const tip = {
  show(x, y, ...content) {
    const box = byId('tip');
    box.replaceChildren(...content);
    box.hidden = false;
    const { offsetWidth: w, offsetHeight: h } = box;
    const left = x + 16 + w < innerWidth ? x + 16 : Math.max(4, x - 16 - w);
    box.style.left = `${Math.max(4, Math.min(left, innerWidth - w - 4))}px`;
    box.style.top = `${Math.max(4, Math.min(y + 12, innerHeight - h - 4))}px`;
  },
  rows(pairs) {
    return make('table', {}, ...pairs.map(([name, value]) => make('tr', {}, make('td', {}, name), make('td', {}, value))));
  },
  hide() {
    byId('tip').hidden = true;
  },
};
