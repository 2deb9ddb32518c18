// SPDX-License-Identifier: Apache-2.0
// Reports of made-up recordings, and what a reader does with them.
import assert from 'node:assert/strict';
import { open, options, pageOf, settle, shot, test as add, text, until } from './harness.mjs';

const test = (name, body, more) => add(name, body, { recorded: true, ...more });

const inView = async (page) => Number((await text(page, '#resolution')).split(' of ')[0].replaceAll(',', ''));
// How many different colours a canvas shows: a chart that was not drawn has one.
const colours = (page, selector) => page.evaluate((which) => {
  const canvas = document.querySelector(which);
  const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
  const seen = new Set();
  for (let i = 0; i < data.length; i += 4 * 97) seen.add((data[i] << 16) | (data[i + 1] << 8) | data[i + 2]);
  return seen.size;
}, selector);

const training = () => pageOf('training');

test('loads, and draws every view', () => open(training(), {}, async (page) => {
  assert.equal(await text(page, '#title'), 'train.py --layers 24');
  await settle(page);
  for (const canvas of ['#timeline canvas', '#whole canvas', '#arena canvas']) assert.ok(await colours(page, canvas) > 4, canvas);
  assert.match(await text(page, '#legend'), /activations/);
  assert.ok(await page.locator('#policies tbody tr').count() >= 2);
  assert.match(await text(page, '#sites'), /KvCache\.grow at serve\.py:64/);
  assert.match(await text(page, '#ooms'), /60 GiB could not be had/);
  assert.match(await text(page, '#pages'), /caches/);
  await shot(page, 'light-1280');
}));

test('zooms by wheel and pans by dragging', () => open(training(), {}, async (page) => {
  const all = await inView(page);
  const box = await page.locator('#timeline').boundingBox();
  await page.mouse.move(box.x + box.width / 2, box.y + 100);
  for (let i = 0; i < 6; ++i) await page.mouse.wheel(0, -400);
  await settle(page);
  const closer = await inView(page);
  assert.ok(closer < all / 5, `${closer} of ${all} in view`);
  const before = await page.locator('#timeline canvas').first().screenshot();
  await page.mouse.down();
  await page.mouse.move(box.x + box.width / 2 - 200, box.y + 100, { steps: 5 });
  await page.mouse.up();
  await settle(page);
  await until(page, () => !/A step is (\d,|\d{3})/.test(document.querySelector('#resolution').innerText));
  assert.ok(!before.equals(await page.locator('#timeline canvas').first().screenshot()), 'nothing moved');
  assert.ok(Math.abs(await inView(page) - closer) < closer * 0.2, 'a drag is no zoom');
  await shot(page, 'zoomed-1280');
}));

test('zooms down to single events', () => open(training(), {}, async (page) => {
  await page.locator('#axes button', { hasText: 'Events' }).click();
  for (let i = 0; i < 25; ++i) await page.keyboard.press('+');
  await page.waitForTimeout(300);
  assert.ok(await inView(page) <= 16);
  await until(page, () => /A step is (2|4|8|16|32|64) events|Every event/.test(document.querySelector('#resolution').innerText));
}));

test('hover shows the stack of the moment and the block of the arena', () => open(training(), {}, async (page) => {
  const chart = await page.locator('#timeline').boundingBox();
  await page.mouse.move(chart.x + 400, chart.y + 200);
  await page.waitForSelector('#tip:visible');
  assert.match(await text(page, '#tip'), /live[\s\S]*weights/);
  await page.locator('#arena').scrollIntoViewIfNeeded();
  const arena = await page.locator('#arena').boundingBox();
  await page.mouse.move(arena.x + 40, arena.y + 5);
  await settle(page);
  const tip = await text(page, '#tip');
  assert.match(tip, /24 MiB block|48 MiB block/);
  assert.match(tip, /weights|optimizer/);
  assert.match(tip, /allocated[\s\S]*freed\s+never/);
}));

test('a click chooses the moment, and the arena follows', () => open(training(), {}, async (page) => {
  const before = await text(page, '#moment');
  const chart = await page.locator('#timeline').boundingBox();
  await page.mouse.click(chart.x + 2, chart.y + 200);
  await until(page, (old) => document.querySelector('#moment').innerText !== old, before);
  const free = await text(page, '#shares');
  await page.locator('#to-peak').click();
  await until(page, () => document.querySelector('#moment').innerText.includes('the peak'));
  assert.notEqual(await text(page, '#shares'), free);
  await page.locator('#pages tbody tr').first().click();
  await settle(page);
  await page.locator('#units button', { hasText: 'Reservations' }).click();
  assert.match(await text(page, '#pinners'), /Reservations/);
}));

test('everything can be done by keys', () => open(training(), {}, async (page) => {
  const all = await inView(page);
  await page.keyboard.press('+');
  await page.keyboard.press('ArrowRight');
  await settle(page);
  assert.ok(await inView(page) < all * 0.6);
  await page.keyboard.press('0');
  await settle(page);
  assert.equal(await inView(page), all);
  const legend = await text(page, '#legend');
  await page.keyboard.press('g');
  await until(page, (old) => document.querySelector('#legend').innerText !== old, legend);
  assert.match(await text(page, '#pinners'), /By size/);
  await page.keyboard.press('x');
  assert.equal(await page.locator('#axes [aria-pressed=true]').innerText(), 'Events');
  await page.keyboard.press('p');
  await until(page, () => document.querySelector('#moment').innerText.includes('the peak'));
  const peak = await text(page, '#moment');
  await page.keyboard.press('.');
  await until(page, (old) => document.querySelector('#moment').innerText !== old, peak);
  await page.keyboard.press(']');
  await page.keyboard.press('t');
  assert.equal(await page.locator('html').getAttribute('data-theme'), 'dark');
  await page.keyboard.press('?');
  assert.ok(await page.locator('#keys').isVisible());
  await page.keyboard.press('Escape');
  await page.locator('#timeline').focus();
  await page.keyboard.press('Enter');
  await until(page, () => !document.querySelector('#moment').innerText.includes('the peak'));
}));

test('sites sort and filter', () => open(training(), {}, async (page) => {
  await page.locator('#sites th button', { hasText: 'Blocks' }).click();
  assert.match(await page.locator('#sites tbody tr').first().innerText(), /softmax/);
  await page.locator('#site-filter').fill('kvcache');
  assert.equal(await page.locator('#sites tbody tr').count(), 1);
  await page.locator('#sites summary').click();
  assert.match(await text(page, '#sites .frames'), /main at train\.py:12/);
}));

for (const scheme of ['light', 'dark']) {
  for (const width of [1280, 390]) {
    test(`fits ${width} pixels, ${scheme}`, () => open(training(), { width, scheme, height: 844, scale: width < 600 ? 2 : 1 }, async (page) => {
      assert.equal(await page.locator('html').getAttribute('data-theme'), scheme);
      assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), 'it scrolls sideways');
      await shot(page, `${scheme}-${width}`);
    }));
  }
}

test('hostile texts stay texts', () => open(pageOf('hostile', '10'), {}, async (page) => {
  assert.match(await page.title(), /^<\/script><img/);
  assert.match(await text(page, '#title'), /^<\/script><img src=x onerror=/);
  assert.equal(await page.locator('img').count(), 0);
  assert.equal(await page.locator('main b b').count(), 0);
}));

test('odd recordings are shown as what they are', async () => {
  await open(pageOf('empty', '0'), {}, async (page) => assert.match(await text(page, '#notices'), /empty/));
  await open(pageOf('one', '1'), {}, async (page) => assert.match(await text(page, '#facts'), /1 MiB/));
  await open(pageOf('untagged', '20000'), {}, async (page) => {
    assert.equal(await page.locator('#groupings [aria-pressed=true]').innerText(), 'Size');
    assert.match(await text(page, '#sites'), /Size/);
  });
  await open(pageOf('damaged', '20000'), {}, async (page) => {
    assert.match(await text(page, '#notices'), /damaged at byte 123,456: a frame's checksum is wrong/);
    assert.match(await text(page, '#notices'), /42 events were dropped/);
  });
  await open(pageOf('unplaced', '20000'), {}, async (page) => {
    assert.match(await text(page, '#notices'), /where balanced put the blocks/);
    assert.ok(await colours(page, '#arena canvas') > 4);
    await shot(page, 'unplaced-1280');
  });
});

test('is quick', () => open(training(), {}, async (page) => {
  const paint = await page.evaluate(() => performance.getEntriesByName('weir:timeline')[0].startTime);
  await page.locator('#axes button', { hasText: 'Time' }).click();
  for (let i = 0; i < 3; ++i) await page.keyboard.press('+');
  const box = await page.locator('#timeline').boundingBox();
  // Frames while a reader drags to and fro, counted by the page itself; the best of three, because
  // other work on the machine is not the page's doing.
  const measure = () => page.evaluate(async ({ x, y }) => {
    const chart = document.querySelector('#timeline');
    const send = (type, at) => chart.dispatchEvent(new PointerEvent(type, { pointerId: 1, clientX: at, clientY: y, bubbles: true, button: 0 }));
    chart.setPointerCapture = () => {};
    send('pointerdown', x);
    const begin = performance.now();
    let frames = 0;
    while (performance.now() - begin < 2000) {
      send('pointermove', x + 300 * Math.sin(frames / 12));
      await new Promise((done) => requestAnimationFrame(done));
      ++frames;
    }
    send('pointerup', x);
    return frames / ((performance.now() - begin) / 1000);
  }, { x: box.x + box.width / 2, y: box.y + 100 });
  let fps = 0;
  for (let i = 0; i < 3 && fps < 50; ++i) fps = Math.max(fps, await measure());
  const size = Buffer.byteLength(training());
  console.log(`      ${options.events} events: ${(size / 1e6).toFixed(1)} MB, first picture after ${paint.toFixed(0)} ms, ${fps.toFixed(0)} frames a second`);
  assert.ok(size <= 30e6, `${size} bytes`);
  assert.ok(paint <= 2000, `first picture after ${paint} ms`);
  assert.ok(fps >= 30, `${fps} frames a second`);
}), { measures: true });
