// SPDX-License-Identifier: Apache-2.0
// The flame graph: which calls hold how much, and what a click shows.
import assert from 'node:assert/strict';
import { test, text } from './harness.mjs';
import { openPacked } from './inside.mjs';
import { small } from './small.mjs';

const MiB = 2 ** 20;

// Rows from the top: [name, left, width], in per cent.
const rows = (page) => page.locator('#flame').evaluate((all) => {
  const out = [];
  for (const { textContent, style } of all.children) {
    (out[parseFloat(style.top) / 20] ??= []).push([textContent, ...[style.left, style.width].map((place) => Math.round(10 * parseFloat(place)) / 10)]);
  }
  return out;
});
const call = (page, name) => page.locator('#flame button', { hasText: name }).first();

test('calls are as wide as what they hold', () => openPacked(small(), {}, async (page) => {
  const [softmax, linear, cache] = ['softmax at model.py:131', 'Linear.__init__ at model.py:41', 'KvCache.grow at serve.py:64'];
  assert.deepEqual(await rows(page), [
    [['everything', 0, 100]],
    [[softmax, 0, 51.7], ['main', 51.7, 34.5], [cache, 86.2, 13.8]],
    [['allocate', 0, 51.7], [linear, 51.7, 34.5]],
    [['allocate', 51.7, 34.5]],
  ]);
  assert.equal(await page.locator('#flame').evaluate((box) => box.clientHeight), 80);
  assert.equal(await call(page, 'main').getAttribute('title'), 'main: 20 MiB, 34.5 %');
  assert.equal(await text(page, '#flame-note'), 'A click on a call shows it alone. 999 sites that held less are left out.');
  await call(page, 'main').click();
  assert.deepEqual(await rows(page), [[['everything', 0, 100]], [['main', 0, 100]], [[linear, 0, 100]], [['allocate', 0, 100]]]);
  await page.locator('#flame-measures button').nth(1).click();
  assert.deepEqual((await rows(page)).map((row) => row.length), [1, 1, 1, 1]);
  assert.equal(await call(page, 'main').getAttribute('title'), 'main: 4 MiB, 33.3 %');
  await call(page, 'everything').click();
  assert.deepEqual(await rows(page), [[['everything', 0, 100]], [[cache, 0, 66.7], ['main', 66.7, 33.3]], [[linear, 66.7, 33.3]], [['allocate', 66.7, 33.3]]]);
  await page.locator('#flame-measures button').nth(2).click();
  assert.deepEqual((await rows(page))[1], [[softmax, 0, 96.6], ['main', 96.6, 2.6], [cache, 99.1, 0.9]]);
}));

test('callers that share a call are one, and what is too narrow is left out', () => {
  const site = (number, atPeak, frames) => ({ ...small().sites[0], number, atPeak, frames });
  const sites = [site(1, 3 * MiB, ['a', 'b', 'main']), site(2, MiB, ['c', 'b', 'main']), site(3, 100, ['d', 'b', 'main'])];
  return openPacked(small({ sites, siteCount: 3 }), {}, async (page) => {
    assert.deepEqual(await rows(page), [[['everything', 0, 100]], [['main', 0, 100]], [['b', 0, 100]], [['a', 0, 75], ['c', 75, 25]]]);
    assert.equal(await text(page, '#flame-note'), 'A click on a call shows it alone.');
  });
});

test('without stacks there is no flame graph, and of nothing an empty one', async () => {
  await openPacked(small({ hasStacks: false }), {}, async (page) => assert.equal(await page.locator('#flame-section').isVisible(), false));
  await openPacked(small({ sites: [], siteCount: 0 }), {}, async (page) => assert.deepEqual(await rows(page), [[['everything', 0, 100]]]));
});
