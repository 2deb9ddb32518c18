// SPDX-License-Identifier: Apache-2.0
// Tables: policies side by side, how they do on a card, sites, what was never freed, and what ran out.

function showPolicies(page) {
  const { index, timeline } = page;
  const rows = [
    ...index.recorded.map((row) => ({ ...row, recorded: true })),
    ...index.policies,
  ];
  const most = Math.max(1, ...rows.map((row) => row.reserved));
  const meter = (row) => {
    const bar = make('i', { style: { width: `${(100 * row.reserved) / most}%` } });
    const used = make('i', { class: 'used', style: { width: `${(100 * Math.min(row.requested, row.reserved)) / most}%` } });
    return make('span', { class: 'meter', role: 'img', 'aria-label': `${sizeText(row.requested)} in use, ${sizeText(row.reserved)} reserved` }, bar, used);
  };
  const line = (row) => {
    if (row.recorded || !row.samples.length) return '';
    const box = make('input', { type: 'checkbox', 'aria-label': `Draw what ${row.name} reserved over time`,
      onchange: () => {
        if (box.checked) timeline.lines.add(row.name);
        else timeline.lines.delete(row.name);
        timeline.legend();
        timeline.redraw();
      } });
    box.checked = timeline.lines.has(row.name);
    return box;
  };
  const fitText = (row) => (row.fit ? `${sizeText(row.fit)} (${(row.fit / row.requested).toFixed(3)})` : '-');
  const fit = { label: 'Fits from', cell: (row) => (row.recorded ? '' : fitText(row)) };
  const figure = (value) => (row) => (row.recorded ? '' : value(row));
  byId('policies').replaceChildren(tableOf([
    { label: 'Policy', text: true, wide: true, cell: (row) => (row.recorded ? `${row.name}, as recorded` : row.name) },
    { label: 'Chart', cell: line },
    { label: 'Most in use', cell: (row) => sizeText(row.requested) },
    { label: 'Most reserved', cell: (row) => sizeText(row.reserved) },
    { label: 'Ratio', cell: (row) => (row.requested ? (row.reserved / row.requested).toFixed(3) : '-') },
    ...(index.policies.some((row) => row.fit) ? [fit] : []),
    { label: '', text: true, cell: meter },
    { label: 'Driver calls', cell: figure((row) => countText(row.calls)) },
    { label: 'Driver time', cell: figure((row) => timeText(row.driverTime)) },
    { label: 'Waits', cell: figure((row) => countText(row.waits)) },
    { label: 'Out of memory', cell: figure((row) => countText(row.ooms)) },
  ], rows, { empty: 'No policy was replayed into this report. weir report --policy all does so.' }));
}

// A site, with its stack behind it where there is one.
function siteCell(label, frames) {
  if (!frames.length) return label;
  return make('details', {}, make('summary', {}, label), make('ol', { class: 'frames' }, ...frames.map((frame) => make('li', {}, frame))));
}

function showLeaks(page) {
  const { index, sites } = page;
  if (!index.leakCount) return;
  byId('leak-section').hidden = false;
  byId('leaks').replaceChildren(tableOf([
    { label: index.hasStacks ? 'Site' : 'Size', text: true, wide: true, cell: (row) => siteCell(row.label, sites.get(row.site)?.frames ?? []) },
    { label: 'Tag', text: true, cell: (row) => page.tagOf(row) },
    { label: 'Never freed', cell: (row) => sizeText(row.bytes) },
    { label: 'Blocks', cell: (row) => countText(row.blocks) },
    { label: 'First allocated', cell: (row) => timeText(row.first) },
    { label: 'Last allocated', cell: (row) => timeText(row.last) },
  ], index.leaks));
  if (index.leakCount > index.leaks.length) byId('leaks').append(make('p', { class: 'quiet more' }, `The ${index.leaks.length} with most, of ${countText(index.leakCount)}.`));
}

function showSites(page) {
  const { index } = page;
  const order = { by: 'most', up: false };
  const columns = [
    { label: index.hasStacks ? 'Site' : 'Size', key: 'label', text: true, wide: true },
    { label: 'Most live', key: 'most', text_: sizeText },
    { label: 'At the peak', key: 'atPeak', text_: sizeText },
    { label: 'Never freed', key: 'atEnd', text_: sizeText },
    { label: 'Blocks', key: 'blocks', text_: countText },
    { label: 'In all', key: 'bytes', text_: sizeText },
    { label: 'Mean life', key: 'life', text_: (value) => (value < 0 ? '-' : timeText(value)) },
  ];
  const rows = index.sites.map((site) => ({ ...site, life: site.lifetime || -1 }));
  const draw = () => {
    const filter = byId('site-filter').value.toLowerCase();
    const seen = rows.filter((row) => !filter || [row.label, ...row.frames].some((text) => text.toLowerCase().includes(filter)));
    const sign = order.up ? 1 : -1;
    seen.sort((a, b) => sign * (a[order.by] < b[order.by] ? -1 : a[order.by] > b[order.by] ? 1 : 0));
    const heads = columns.map((column) => ({
      ...column,
      head: make('button', { 'aria-label': `Sort by ${column.label}`, onclick: () => {
        order.up = order.by === column.key ? !order.up : column.key === 'label';
        order.by = column.key;
        draw();
      } }, column.label + (order.by === column.key ? (order.up ? ' ▲' : ' ▼') : '')),
      cell: (row) => {
        if (column.text_) return column.text_(row[column.key]);
        return siteCell(row.label, row.frames);
      },
    }));
    byId('sites').replaceChildren(tableOf(heads, seen.slice(0, 300), { empty: rows.length ? 'No site matches.' : 'Nothing was allocated.' }));
    if (index.siteCount > rows.length) byId('sites').append(make('p', { class: 'quiet more' }, `The ${rows.length} that held most, of ${countText(index.siteCount)}.`));
  };
  byId('site-filter').addEventListener('input', draw);
  draw();
}

// How policies do on the card that was asked about, and what is in the way where they do not.
function showCard(page) {
  const { index } = page;
  const { size, left, trials } = index.card;
  if (!size) return;
  byId('card-section').hidden = false;
  byId('card-title').textContent = `On a card of ${sizeText(size)}`;
  byId('card-note').textContent = `Its context leaves ${sizeText(left)} for the program. Each policy was replayed on it up to the first request that could not be met.`;
  byId('card-trials').replaceChildren(tableOf([
    { label: 'Policy', text: true, wide: true, cell: (row) => row.name },
    { label: 'Fits', text: true, cell: (row) => (row.fits ? 'yes' : 'no') },
    { label: 'Could not be had', cell: (row) => (row.fits ? '' : sizeText(row.requested)) },
    { label: 'At', cell: (row) => (row.fits ? '' : `${timeText(row.time, 1000)}, event ${countText(row.event)}`) },
    { label: 'Live then', cell: (row) => (row.fits ? '' : sizeText(row.live)) },
    { label: 'Freed, not yet reusable', cell: (row) => (row.fits ? '' : sizeText(row.waiting)) },
  ], trials));
  const moments = new Map();  // what was live is the same for policies that end at the same request
  for (const trial of trials.filter(({ fits }) => !fits)) moments.set(trial.event, [...(moments.get(trial.event) || []), trial]);
  const list = (title, holders) => make('div', {}, make('h3', {}, title), make('ul', {}, ...holders.map(({ label, bytes, blocks }) =>
    make('li', {}, `${label}: ${sizeText(bytes)} in ${countText(blocks)} ${blocks === 1 ? 'block' : 'blocks'}`))));
  const names = (failed) => failed.map(({ name }) => name).join(', ');
  byId('card-shortages').replaceChildren(...[...moments.values()].map((failed) => make('div', { class: 'card' },
    make('div', { class: 'bar' },
      make('strong', {}, failed[0].live > 0
        ? `In the way of ${names(failed)}: ${sizeText(failed[0].live)} live`
        : `Too small for ${names(failed)}: nothing is live, and ${sizeText(failed[0].requested)} do not fit into ${sizeText(left)}`),
      make('button', { onclick: () => page.look(failed[0].event, true) }, 'Look at this moment')),
    ...(failed[0].live > 0 ? [make('div', { class: 'columns' }, list('By tag', failed[0].tags),
      ...(index.hasStacks ? [list('By site', failed[0].sites)] : []), list('By size', failed[0].sizes))] : []))));
}

function showOoms(page) {
  const { index } = page;
  if (!index.oomCount) return;
  byId('oom-section').hidden = false;
  const cards = index.ooms.map((oom) => make('div', { class: 'card' },
    make('div', { class: 'bar' },
      make('strong', {}, `${sizeText(oom.requested)} could not be had`),
      make('button', { onclick: () => page.look(oom.event, true) }, 'Look at this moment')),
    make('p', {}, oom.verdict),
    make('p', { class: 'quiet' }, `At ${timeText(oom.time, 1000)}, event ${countText(oom.event)}, on ${index.streams[oom.stream] || 'an unknown stream'}; ${sizeText(oom.live)} live`
      + (oom.reserved ? `, ${sizeText(oom.reserved)} reserved, ${sizeText(oom.free)} of it free in ${countText(oom.pieces)} pieces` : '')),
    make('ul', {}, ...oom.tags.map((tag) => make('li', {}, `${tag.label}: ${sizeText(tag.size)} live`)))));
  if (index.oomCount > cards.length) cards.push(make('p', { class: 'quiet' }, `and ${countText(index.oomCount - cards.length)} more`));
  byId('ooms').replaceChildren(...cards);
}
