// SPDX-License-Identifier: Apache-2.0
// Two runs on one page: their curves, what differs, and the way from one into the other.
import assert from 'node:assert/strict';
import { test, text, until } from './harness.mjs';
import { openPacked } from './inside.mjs';
import { small, timeOf } from './small.mjs';

const MiB = 2 ** 20;

// Half as long, and with a MiB more of each tag: the last 64 events are not there.
const bins = small().bins.slice(0, 32).map((bin) => ({ ...bin, low: bin.low + 3 * MiB, reserved: bin.reserved + 9 * MiB,
  stacks: [bin.stacks[0].map((size) => size + MiB), [bin.stacks[1][0] + 2 * MiB, bin.stacks[1][1] + MiB]] }));
const after = (changes = {}) => small({
  file: 'after.weirtrace', program: 'slower.py', events: 64, duration: timeOf(63), bins, blockCount: 99, reservedPeak: 89 * MiB,
  peak: { event: 59, live: 58 * MiB, inUse: 60 * MiB, rounded: 59 * MiB }, spans: [], blocks: [], ooms: [], oomCount: 0, markers: [], markerCount: 0,
  policies: [{ ...small().policies[1], requested: 60 * MiB, reserved: 90 * MiB, calls: 80, samples: [] }], ...changes,
});
const differences = {
  figures: [
    { title: 'bytes at the peak', isSize: true, before: 61 * MiB, after: 58 * MiB },
    { title: 'allocations', isSize: false, before: 4321, after: 4321 },
    { title: 'out of memory', isSize: false, before: 0, after: 2 },
  ],
  groupings: [
    { name: 'tag', count: 120, groups: [
      { name: 'activations', before: 8 * MiB, after: 10 * MiB, blocksBefore: 1200, blocksAfter: 9 },
      { name: 'caches', before: 0, after: MiB, blocksBefore: 0, blocksAfter: 1 },
      { name: 'weights', before: 24 * MiB, after: 18 * MiB, blocksBefore: 2, blocksAfter: 2 }] },
    { name: 'size', count: 0, groups: [] },
  ],
};
const compared = (changes) => ({ figures: after(changes), differences });
const table = (page, selector) => page.locator(selector).evaluate((box) => [...box.querySelectorAll('tr')].map((row) => [...row.cells].map((cell) => cell.innerText.trim())));
const wide = '#timeline { width: 130px; height: 126px; }';  // an event is a pixel, where all are seen

test('what differs between two runs is said', () => openPacked(small(), { other: compared() }, async (page) => {
  assert.equal(await page.locator('#comparison').isVisible(), true);
  assert.deepEqual(await table(page, '#compared'), [
    ['Figure', 'run.weirtrace', 'after.weirtrace', 'Change'],
    ['bytes at the peak', '61 MiB', '58 MiB', '−3 MiB, −4.9 %'],
    ['allocations', '4,321', '4,321', ''],
    ['out of memory', '0', '2', '+2'],
    ['in use at most', '61 MiB', '60 MiB', '−1 MiB, −1.6 %'],
    ['reserved over in use', '1.311', '1.483', '+0.172, +13.1 %'],
    ['balanced, replayed: reserved at most', '64 MiB', '90 MiB', '+26 MiB, +40.6 %'],
    ['balanced, replayed: reserved over in use', '1.049', '1.500', '+0.451, +43.0 %'],
    ['balanced, replayed: driver calls', '77', '80', '+3, +3.9 %'],
  ]);
  assert.deepEqual(await page.locator('#changed h3').allInnerTexts(), ['By tag', 'By size']);
  assert.deepEqual(await table(page, '#changed > div:first-child'), [
    ['Tag', 'run.weirtrace', 'after.weirtrace', 'Growth', 'Blocks'],
    ['activations', '8 MiB', '10 MiB', '+2 MiB, +25.0 %', '1,200 → 9'],
    ['caches', '0 B', '1 MiB', '+1 MiB', '0 → 1'],
    ['weights', '24 MiB', '18 MiB', '−6 MiB, −25.0 %', '2 → 2'],
  ]);
  assert.deepEqual(await page.locator('#changed .more').allInnerTexts(), ['and 117 more that grew less']);
  assert.deepEqual((await table(page, '#changed > div:last-child'))[1], ['Nothing changed.']);
}));

test('one run alone has nothing to compare', () => openPacked(small(), {}, async (page) => {
  assert.equal(await page.locator('#comparison').isVisible(), false);
  assert.deepEqual(await page.evaluate(() => [report.other, report.viewer.differences, report.timeline.otherColumns.length]), [null, null, 0]);
}));

test('nothing in use has no ratio', () => openPacked(small({ policies: [] }), { other: compared({ peak: { event: 0, live: 0, inUse: 0, rounded: 0 } }) }, async (page) => {
  const rows = await table(page, '#compared');
  assert.deepEqual(rows.slice(-2), [['in use at most', '61 MiB', '0 B', '−61 MiB, −100.0 %'], ['reserved over in use', '1.311', '-', '−1.311, −100.0 %']]);
}));

// The corners of the other run's lines, in MiB: solid ones of what is live, dashed ones of what is reserved.
const otherLines = (page) => page.evaluate(() => {
  const { timeline } = report;
  const paths = see.strokes(timeline.stage).filter((line) => line.includes('strokeStyle = #1f5fd0; lineWidth = 2; setLineDash'));
  return paths.map((line) => ({
    dash: /setLineDash (\S+);/.exec(line)[1],
    corners: [...line.matchAll(/(?:move|line)To (\S+) ([^\s;]+)/g)].map(([, x, y]) => [Number(x), Math.round((timeline.height - Number(y)) / timeline.scaleY / 2 ** 20)]),
  }));
});
const steps = (heights) => heights.flatMap((height, x) => [[x, height], [x + 1, height]]);
const heightOf = (bin) => bin.stacks[0].reduce((sum, size) => sum + size, 0) / MiB;

test('both curves are on one chart, from one beginning', () => openPacked(small(), { other: compared(), style: wide }, async (page) => {
  await page.evaluate(async () => {
    report.setAxis('events');
    await see.settled();
  });
  assert.deepEqual(await page.evaluate(() => [report.timeline.from, report.timeline.to, report.timeline.stage.width]), [0, 128, 128]);
  const [live, reserved, ...more] = await otherLines(page);
  assert.deepEqual(more, []);
  const twice = (values) => values.flatMap((value) => [value, value]);
  assert.deepEqual([live.dash, reserved.dash], ['[]', '[2,2]']);
  assert.deepEqual(live.corners, steps(twice(bins.map(heightOf))));
  assert.deepEqual(reserved.corners, steps(twice(bins.map((bin) => bin.reserved / MiB))));
  assert.deepEqual((await text(page, '#legend')).split('\n').filter(Boolean).slice(-2), ['live in after.weirtrace', 'reserved in after.weirtrace']);
  await page.evaluate(async () => {
    report.timeline.set(48, 80);
    await see.settled();
  });
  assert.deepEqual((await otherLines(page))[0].corners, steps(bins.slice(24).flatMap((bin) => Array(8).fill(heightOf(bin)))));
}));

test('the chart is as high as either run, and where it is fitted as what is seen of both', () => openPacked(small({ policies: [], capacity: 0 }), { other: compared(), style: wide }, async (page) => {
  const top = () => page.evaluate(async () => {
    await see.settled();
    report.timeline.stage.frame();
    return Math.round((100 * report.timeline.height) / report.timeline.scaleY / 1.06 / 2 ** 20) / 100;
  });
  assert.equal(await top(), 89);
  await page.evaluate(() => {
    report.setAxis('events');
    report.timeline.set(0, 32);
    report.fit();
  });
  assert.equal(await top(), 73);
  await page.evaluate(() => report.timeline.set(100, 128));
  assert.equal(await top(), 80);
}));

test('what is not known of the other run is not drawn', () => openPacked(small(), { other: compared({ knowsReserved: false, reservedPeak: 0 }) }, async (page) => {
  assert.deepEqual((await otherLines(page)).map(({ dash }) => dash), ['[]']);
  assert.equal((await text(page, '#legend')).includes('reserved in after.weirtrace'), false);
}));

test('the tip names both runs, and the other where only it goes on', () => openPacked(after(), { other: { figures: small(), differences }, style: wide }, async (page) => {
  const tips = await page.evaluate(async () => {
    report.setAxis('events');
    await see.settled();
    return [20, 100, -5, 500].map((x) => {
      report.timeline.point({ x, y: 5 }, { clientX: 100, clientY: 100 });
      return [byId('tip').hidden, see.words(byId('tip')).split(' | ').filter((words) => / live/.test(words))];
    });
  });
  const [ours, theirs] = [heightOf(bins[10]), heightOf(small().bins[10])];
  assert.deepEqual(tips, [
    [false, [`${ours} MiB live`, `${theirs} MiB live in run.weirtrace`]],
    [false, [`${heightOf(small().bins[50])} MiB live in run.weirtrace`]],
    [false, [`${heightOf(bins[0])} MiB live`, `${heightOf(small().bins[0])} MiB live in run.weirtrace`]],
    [false, [`${heightOf(small().bins[63])} MiB live in run.weirtrace`]],
  ]);
  // Its own columns end where it ends, on both axes.
  const ends = await page.evaluate(async () => {
    const count = () => report.timeline.columns.filter(Boolean).length;
    const byEvents = count();
    report.setAxis('time');
    await see.settled();
    return [byEvents, count(), report.timeline.from, report.timeline.to];
  });
  assert.deepEqual(ends, [64, 32, 0, 253000]);
}));

test('either run can be looked into', () => openPacked(small(), { other: compared() }, async (page) => {
  const seen = async () => [await text(page, '#title'), await text(page, '#runs [aria-pressed=true]'), await page.evaluate(() => [report.index.file, report.other.index.file, report.moment].join())];
  assert.deepEqual(await seen(), ['train.py', 'run.weirtrace', 'run.weirtrace,after.weirtrace,93']);
  await until(page, () => location.hash.startsWith('#run=1&axis=time&from=0&to=253000'));
  await page.evaluate(() => { globalThis.before = report; });
  await page.locator('#runs button').last().click();
  await until(page, () => document.documentElement.dataset.ready && report.index.file === 'after.weirtrace' && report.moment !== null);
  assert.deepEqual(await seen(), ['slower.py', 'after.weirtrace', 'after.weirtrace,run.weirtrace,59']);
  assert.equal(await page.locator('#oom-section').isVisible(), false);
  await until(page, () => location.hash.startsWith('#run=2&axis=time&from=0&to=253000'));
  // Keys are the new page's alone, and the old one draws and says nothing more.
  const old = await page.evaluate(async () => {
    let frames = 0;
    before.timeline.stage.draw = () => { ++frames; };
    before.timeline.redraw();
    before.timeline.zoom = () => { ++frames; };
    await before.look(5);
    await see.frames();
    return [before.closing.signal.aborted, frames, byId('moment').textContent];
  });
  assert.deepEqual(old, [true, 0, 'after event 59, at 59.0 µs (the peak)']);
  await page.keyboard.press('+');
  assert.equal(await page.evaluate(() => report.timeline.to - report.timeline.from), 126500);
  assert.equal(await page.evaluate(() => before.closing.signal.aborted && before.timeline.to), 253000);
  // The one that is shown is not shown again.
  await page.evaluate(() => { globalThis.before = report; });
  await page.locator('#runs button').last().click();
  assert.equal(await page.evaluate(() => report === before), true);
  await page.reload();
  await page.waitForSelector('html[data-ready]', { state: 'attached' });
  assert.equal(await text(page, '#title'), 'slower.py');
  await page.evaluate(() => { location.hash = 'run=1&at=7'; });
  await until(page, () => report.index.file === 'run.weirtrace' && report.moment !== null && document.documentElement.dataset.ready);
  assert.equal(await text(page, '#title'), 'train.py');
  for (const odd of ['run=3', 'run=0', 'run=x']) assert.equal(await page.evaluate((hash) => { location.hash = hash; return report.viewer.named(); }, odd), 0, odd);
}));
