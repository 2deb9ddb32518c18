// SPDX-License-Identifier: Apache-2.0
// A card that was asked about: who fits on it, what is in the way, and its line in the chart.
import assert from 'node:assert/strict';
import { test, text, until } from './harness.mjs';
import { openPacked } from './inside.mjs';
import { small, timeOf } from './small.mjs';

const MiB = 2 ** 20;
const short = (name, event, more) => ({
  name, fits: false, event, time: timeOf(event), requested: 9 * MiB, live: 35 * MiB, waiting: 0,
  tags: [{ label: 'weights', bytes: 24 * MiB, blocks: 1200 }, { label: 'activations', bytes: 11 * MiB, blocks: 1 }],
  sites: [{ label: 'main', bytes: 35 * MiB, blocks: 2 }], sizes: [{ label: '24 MiB', bytes: 24 * MiB, blocks: 1 }], ...more,
});
const card = { size: 1024 * MiB, left: 50 * MiB, trials: [
  { name: 'balanced', fits: true }, short('torch-default', 65), short('compact', 101, { live: 40 * MiB, waiting: 2 * MiB }), short('throughput', 65),
] };
const table = (page) => page.locator('#card-trials').evaluate((box) => [...box.querySelectorAll('tr')].map((row) => [...row.cells].map((cell) => cell.innerText.trim())));

test('a card has its answers, policy by policy', () => openPacked(small({ card }), {}, async (page) => {
  assert.equal(await text(page, '#card-title'), 'On a card of 1 GiB');
  assert.match(await text(page, '#card-note'), /^Its context leaves 50 MiB for the program\./);
  assert.deepEqual(await table(page), [
    ['Policy', 'Fits', 'Could not be had', 'At', 'Live then', 'Freed, not yet reusable'],
    ['balanced', 'yes', '', '', '', ''],
    ['torch-default', 'no', '9 MiB', '67.0 µs, event 65', '35 MiB', '0 B'],
    ['compact', 'no', '9 MiB', '175.0 µs, event 101', '40 MiB', '2 MiB'],
    ['throughput', 'no', '9 MiB', '67.0 µs, event 65', '35 MiB', '0 B'],
  ]);
}));

test('what is in the way is listed, once a moment', () => openPacked(small({ card }), { height: 500 }, async (page) => {
  const cards = () => page.locator('#card-shortages .card').evaluateAll((all) => all.map((box) => see.words(box)));
  const held = 'By tag | weights: 24 MiB in 1,200 blocks | activations: 11 MiB in 1 block | By site | main: 35 MiB in 2 blocks | By size | 24 MiB: 24 MiB in 1 block';
  assert.deepEqual(await cards(), [
    `In the way of torch-default, throughput: 35 MiB live | Look at this moment | ${held}`,
    `In the way of compact: 40 MiB live | Look at this moment | ${held}`,
  ]);
  await page.locator('#card-shortages button').first().click();
  await until(page, () => document.querySelector('#moment').textContent.startsWith('after event 65'));
  await until(page, () => Math.abs(document.querySelector('#arena-title').getBoundingClientRect().top) < 40);
}));

test('a card that is too small for the first request is said to be that', () => openPacked(
  small({ card: { ...card, trials: card.trials.map((trial) => ({ ...trial, live: 0, tags: [], sites: [], sizes: [] })) } }), {}, async (page) => {
    assert.equal(await page.locator('#card-shortages .card:first-child').evaluate((box) => see.words(box)),
      'Too small for torch-default, throughput: nothing is live, and 9 MiB do not fit into 50 MiB | Look at this moment');
    assert.equal(await page.locator('#card-shortages h3').count(), 0);
  },
));

test('without stacks a site is a size', () => openPacked(small({ card, hasStacks: false }), {}, async (page) => {
  assert.deepEqual(await page.locator('#card-shortages .card:first-child h3').allInnerTexts(), ['By tag', 'By size']);
}));

test('nobody asked about a card', () => openPacked(small(), {}, async (page) => {
  assert.equal(await page.locator('#card-section').isVisible(), false);
  assert.deepEqual(await page.evaluate(() => report.timeline.limits().map(({ words }) => words)), ['what the device has']);
}));

test('a card has a line in the chart', async () => {
  const lines = (page) => page.evaluate(() => {
    const { timeline } = report;
    return see.strokes(timeline.stage).filter((line) => line.includes('setLineDash [6,4]')).map((line) => {
      const [, from, y, to, end] = /moveTo (\S+) (\S+); lineTo (\S+) (\S+);/.exec(line);
      return [from, Number(to) === timeline.stage.width, y === end, Math.round((timeline.height - Number(y)) / timeline.scaleY / 2 ** 20)];
    });
  });
  const words = (page) => page.evaluate(() => see.strokes(report.timeline.stage).map((line) => /fillText (a card .*|what .*) \S+ \S+$/.exec(line)?.[1]).filter(Boolean));
  await openPacked(small({ card }), {}, async (page) => {
    assert.deepEqual(await lines(page), [['0', true, true, 96], ['0', true, true, 50]]);
    assert.deepEqual(await words(page), ['what the device has', 'a card of 1 GiB has for the program']);
  });
  // One that is far too large is not in the picture, and one that is a little too large makes it higher.
  const top = (page) => page.evaluate(() => Math.round(report.timeline.height / report.timeline.scaleY / 1.06 / 2 ** 20));
  await openPacked(small({ card: { ...card, left: 200 * MiB }, capacity: 0, policies: [] }), {}, async (page) => {
    assert.deepEqual([await lines(page), await top(page)], [[], 80]);
  });
  await openPacked(small({ card: { ...card, left: 100 * MiB }, capacity: 0, policies: [] }), {}, async (page) => {
    assert.deepEqual([(await lines(page)).map((line) => line[3]), await top(page)], [[100], 100]);
  });
});
