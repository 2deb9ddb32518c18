// SPDX-License-Identifier: Apache-2.0
// Two runs side by side: which of them is looked into, and what differs between them.

// {label, values: [before, after], text} of all that both know, those of the replays of the same policies last.
function comparedFigures(runs, { figures }) {
  const [a, b] = runs.map(({ index }) => index);
  const ratioOf = (row, inUse) => (inUse ? row.reserved / inUse : 0);
  const ratioText = (value) => (value ? value.toFixed(3) : '-');
  const rows = figures.map(({ title, isSize, before, after }) => ({ label: title, values: [before, after], text: isSize ? sizeText : countText }));
  rows.push({ label: 'in use at most', values: [a.peak.inUse, b.peak.inUse], text: sizeText });
  rows.push({ label: 'reserved over in use', values: [a, b].map(({ reservedPeak, peak }) => ratioOf({ reserved: reservedPeak }, peak.inUse)), text: ratioText });
  for (const before of a.policies) {
    const after = b.policies.find(({ name }) => name === before.name);
    if (!after) continue;
    const add = (what, value, text) => rows.push({ label: `${before.name}, replayed: ${what}`, values: [value(before), value(after)], text });
    add('reserved at most', (row) => row.reserved, sizeText);
    add('reserved over in use', (row) => ratioOf(row, row.requested), ratioText);
    add('driver calls', (row) => row.calls, countText);
  }
  return rows;
}

function changeText([before, after], text) {
  if (before === after) return '';
  const sign = after > before ? '+' : '−';
  return `${sign}${text(Math.abs(after - before))}${before > 0 ? `, ${sign}${percentText(Math.abs(after - before), before)}` : ''}`;
}

function showComparison(page) {
  const { runs, differences, shown } = page.viewer;
  if (!differences) return;
  byId('comparison').hidden = false;
  const names = runs.map(({ index }) => index.file);
  choice(byId('runs'), names.map((name, i) => ({ value: i, label: name, title: `Everything below is of ${name}` })), shown, (number) => page.viewer.choose(number));
  byId('compared').replaceChildren(tableOf([
    { label: 'Figure', text: true, wide: true, cell: (row) => row.label },
    ...names.map((name, i) => ({ label: name, cell: (row) => row.text(row.values[i]) })),
    { label: 'Change', cell: (row) => changeText(row.values, row.text) },
  ], comparedFigures(runs, differences)));
  byId('changed').replaceChildren(...differences.groupings.map(({ name, count, groups }) => make('div', {},
    make('h3', {}, `By ${name}`),
    make('div', { class: 'scroll' }, tableOf([
      { label: name[0].toUpperCase() + name.slice(1), text: true, wide: true, cell: (row) => row.name },
      ...names.map((file, i) => ({ label: file, cell: (row) => sizeText([row.before, row.after][i]) })),
      { label: 'Growth', cell: (row) => changeText([row.before, row.after], sizeText) },
      { label: 'Blocks', cell: (row) => `${countText(row.blocksBefore)} → ${countText(row.blocksAfter)}` },
    ], groups, { empty: 'Nothing changed.' })),
    ...(count > groups.length ? [make('p', { class: 'quiet more' }, `and ${countText(count - groups.length)} more that grew less`)] : []))));
}
