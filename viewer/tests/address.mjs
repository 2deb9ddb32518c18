// SPDX-License-Identifier: Apache-2.0
// The view in the page's address: what is seen there, and what is made of it.
import assert from 'node:assert/strict';
import { test, text, until } from './harness.mjs';
import { openPacked } from './inside.mjs';
import { small } from './small.mjs';

const MiB = 2 ** 20;
const view = (page) => page.evaluate(() => {
  const { timeline, moment, unit } = report;
  return [timeline.axis, timeline.from, timeline.to, timeline.grouping, timeline.fit, [...timeline.lines], moment, unit];
});
const usual = ['time', 0, 253000, 0, false, ['torch_default', 'balanced'], 93, 2 * MiB];

test('the address says what is seen, and shows it again', () => openPacked(small(), {}, async (page) => {
  assert.deepEqual(await view(page), usual);
  await until(page, () => location.hash === '#axis=time&from=0&to=253000&by=tag&fit=0&lines=torch_default+balanced&at=93&unit=2097152');
  await page.keyboard.press('x');
  await page.evaluate(() => report.timeline.set(32, 64));
  await page.locator('#groupings button').last().click();
  await page.keyboard.press('y');
  await page.locator('#policies input').first().uncheck();
  await page.locator('#policies input').last().check();
  await page.locator('#to-peak').click();
  await page.locator('#units button').last().click();
  const changed = ['events', 32, 64, 1, true, ['balanced', 'classic'], 123, 0];
  assert.deepEqual(await view(page), changed);
  await until(page, () => location.hash === '#axis=events&from=32&to=64&by=stream&fit=1&lines=balanced+classic&at=123&unit=0');
  await page.reload();
  await page.waitForSelector('html[data-ready]', { state: 'attached' });
  assert.deepEqual(await view(page), changed);
  assert.deepEqual(await page.locator('#policies input').evaluateAll((boxes) => boxes.map((box) => box.checked)), [false, true, true]);
  assert.deepEqual(await page.locator('[aria-pressed=true]').allInnerTexts(), ['Stream', 'Events', 'Fit', 'Reservations', 'At the peak']);
  assert.match(await text(page, '#moment'), /^after event 123,/);
}));

test('the page follows its address', () => openPacked(small(), {}, async (page) => {
  await page.evaluate(() => { location.hash = 'at=65&by=stream&lines='; });
  await until(page, () => report.moment === 65);
  assert.deepEqual(await view(page), ['time', 0, 253000, 1, false, [], 65, 2 * MiB]);
}));

test('what an address cannot mean is ignored', () => openPacked(small(), {}, async (page) => {
  const odd = ['at=128', 'at=-1', 'at=1e1', 'at=', 'from=5&to=5', 'from=9&to=x', 'axis=toString', 'by=__proto__', 'unit=7', 'fit=no', '%', '&&=', 'at=99999999999999999999'];
  for (const hash of odd) {
    await page.evaluate((wanted) => {
      location.hash = wanted;
      report.address.follow();
    }, hash);
    assert.deepEqual(await view(page), usual, hash);
  }
  await page.evaluate(() => { location.hash = 'from=0&to=9999999999999999&lines=nobody'; });
  await until(page, () => report.timeline.lines.size === 0);
  assert.deepEqual((await view(page)).slice(0, 3), ['time', 0, 253000]);
}));

test('the address of an empty page stays empty', () => openPacked({}, {}, async (page) => {
  await page.evaluate(() => { location.hash = 'at=0&axis=events&by=tag'; });
  await page.waitForTimeout(400);
  assert.equal(await page.evaluate(() => [location.hash, report.moment].join()), '#at=0&axis=events&by=tag,');
}));
