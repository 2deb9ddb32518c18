// SPDX-License-Identifier: Apache-2.0
// What the chart claims: lines that are true at every zoom, words that hide nothing, one meaning of a word.
import assert from 'node:assert/strict';
import { test, text } from './harness.mjs';
import { openPacked } from './inside.mjs';
import { small, timeOf } from './small.mjs';

const MiB = 2 ** 20;

// The corners of the dashed lines of a frame, in bytes, by colour. The line of what the device has, 96 MiB, is the measure.
const linesOf = (page) => page.evaluate(() => {
  const { timeline } = report;
  const paths = see.strokes(timeline.stage).map((line) => ({
    color: /strokeStyle = (#\w+)/.exec(line)?.[1], dash: /setLineDash (\[5,3\]|\[6,4\])/.exec(line)?.[1],
    corners: [...line.matchAll(/(?:move|line)To (\S+) ([^\s;]+)/g)].map(([, x, y]) => [Number(x), Number(y)]),
  }));
  const device = paths.find(({ dash }) => dash === '[6,4]').corners[0][1];
  const bytes = (y) => timeline.index.capacity - (y - device) / timeline.scaleY;
  return paths.filter(({ dash }) => dash === '[5,3]').map(({ color, corners }) => ({ color, corners: corners.map(([x, y]) => [x, bytes(y) / 2 ** 20]) }));
});

// What a line says at x; it is level or upright everywhere.
function heightAt(corners, x) {
  for (let i = 1; i < corners.length; ++i) {
    const [[left, before], [right, after]] = [corners[i - 1], corners[i]];
    assert.ok(left === right || Math.abs(before - after) < 1e-3, `a slope from ${corners[i - 1]} to ${corners[i]}`);
    if (left <= x && x < right) return Math.round(before);
  }
  return 0;
}

test('a replayed policy is drawn in steps that no zoom changes', () => openPacked(small(), {}, async (page) => {
  const drawn = small().policies.slice(0, 2);
  const heldAt = ({ samples }, time) => (samples.findLast((sample) => sample.time <= time)?.reserved ?? 0) / MiB;
  const width = await page.evaluate(() => report.timeline.stage.width);
  for (const axis of ['time', 'events']) {
    for (const [first, last] of [[0, 128], [4, 24], [20, 44], [40, 60], [66, 82], [84, 100], [108, 128]]) {
      await page.evaluate(async ([along, from, to]) => {
        report.timeline.setAxis(along);
        report.timeline.set(from, to);
        await see.settled();
      }, [axis, ...(axis === 'time' ? [timeOf(first), Math.min(253000, timeOf(last))] : [first, last])]);
      const lines = await linesOf(page);
      for (const [i, policy] of drawn.entries()) {
        for (const share of [0.01, 0.2, 0.4, 0.6, 0.8, 0.99]) {
          const begin = axis === 'time' ? timeOf(first) : first;
          const end = axis === 'time' ? Math.min(253000, timeOf(last)) : last;
          const place = begin + (end - begin) * share;
          const time = axis === 'time' ? place : timeOf(Math.floor(place));
          assert.equal(heightAt(lines[i].corners, width * share), heldAt(policy, time), `${policy.name} at ${axis} ${place} of ${begin} to ${end}`);
        }
      }
    }
  }
}));

test('the labels of the axis stand below the data', () => openPacked(small(), {}, async (page) => {
  for (const axis of ['time', 'events']) {
    const data = await page.evaluate(async (along) => {
      report.timeline.setAxis(along);
      await see.settled();
      const { stage } = report.timeline;
      const labels = see.strokes(stage).map((line) => /textAlign = center.*strokeText .* (\S+) (\S+)$/.exec(line)).filter(Boolean);
      const top = Math.min(...labels.map(([, , y]) => Number(y))) - 11;
      const isData = (pixel) => pixel !== theme.ground;
      return { labels: labels.length, behind: stage.pixels.subarray(top * stage.width).some(isData), above: stage.pixels.subarray((top - 4) * stage.width, (top - 3) * stage.width).some(isData) };
    }, axis);
    assert.deepEqual([data.labels >= 4, data.behind, data.above], [true, false, true], axis);
  }
}));

test('the sizes stand beside the chart, at their lines', () => openPacked(small(), {}, async (page) => {
  const sizes = () => page.evaluate(async () => {
    await see.settled();
    const chart = byId('timeline').getBoundingClientRect();
    const { height, scaleY } = report.timeline;
    return [...byId('sizes').children].map((span) => {
      const box = span.getBoundingClientRect();
      return [span.textContent, box.right <= chart.left, Math.round((height - parseFloat(span.style.top)) / scaleY / 2 ** 20)];
    });
  });
  assert.deepEqual(await sizes(), [['32 MiB', true, 32], ['64 MiB', true, 64], ['96 MiB', true, 96]]);
  const changes = await page.evaluate(async () => {
    let count = 0;
    new MutationObserver((all) => { count += all.length; }).observe(byId('sizes'), { childList: true });
    report.timeline.zoom(0.5);
    await see.frames();
    const same = count;
    report.timeline.set(0, 4000);
    report.fit();
    report.timeline.lines.clear();
    await see.frames();
    return [same, count > 0];
  });
  assert.deepEqual(changes, [0, true]);
  assert.equal((await sizes()).some(([, , size]) => size > 70), false);
}));

test('the words of a marker are never cut off', async () => {
  const texts = ['the first of all the steps', 'the last of all the steps'];
  const at = [1, 126];
  const markers = at.map((event, i) => ({ event, time: timeOf(event), text: texts[i] }));
  await openPacked(small({ markers, markerCount: 2 }), {}, async (page) => {
    for (const axis of ['time', 'events']) {
      const words = await page.evaluate((along) => {
        report.timeline.setAxis(along);
        const found = see.strokes(report.timeline.stage).map((line) => /fillText (the .* steps) (\S+) (\S+)$/.exec(line)).filter(Boolean);
        return { width: report.timeline.stage.width, found: found.map(([, said, x]) => [said, Number(x)]) };
      }, axis);
      assert.deepEqual(words.found.map(([said]) => said), texts, axis);
      for (const [said, x] of words.found) assert.ok(x >= 0 && x + 6 * said.length <= words.width, `${said} at ${x} of ${words.width}`);
    }
  });
});

test('every ratio is to what was in use, which is explained', () => openPacked(small({
  peak: { event: 123, live: 61 * MiB, inUse: 64 * MiB, rounded: 62 * MiB },
  policies: small().policies.map((row) => ({ ...row, requested: 64 * MiB })), recorded: [],
}), {}, async (page) => {
  const facts = (await text(page, '#facts')).split('\n').filter(Boolean);
  assert.deepEqual(facts.slice(0, 9), ['Most live', '61 MiB', 'event 123', 'Most in use', '64 MiB', 'live, or freed and not yet reusable', 'Most reserved', '80 MiB', '1.250 × most in use']);
  const [head, , balanced] = await page.locator('#policies').evaluate((all) => [...all.querySelectorAll('tr')].map((row) => [...row.cells].map((cell) => cell.innerText.trim())));
  const cell = (name) => balanced[head.indexOf(name)];
  assert.deepEqual([cell('Policy'), cell('Most in use'), cell('Most reserved'), cell('Ratio')], ['balanced', '64 MiB', '64 MiB', '1.000']);
  assert.match(await text(page, '#terms'), /^Live is what the program requested and has not freed\. In use adds what was freed/);
  assert.match(await text(page, '#policy-terms'), /ratio is the most that was reserved over the most that was in use/);
}));

test('what was never freed is listed, the largest first', async () => {
  const table = (page) => page.locator('#leaks').evaluate((all) => [...all.querySelectorAll('tr')].map((row) => [...row.cells].map((cell) => cell.innerText.trim().split('\n')[0])));
  await openPacked(small(), {}, async (page) => {
    assert.deepEqual(await table(page), [
      ['Site', 'Tag', 'Never freed', 'Blocks', 'First allocated', 'Last allocated'],
      ['KvCache.grow at serve.py:64', 'activations', '8 MiB', '7', '20.00 µs', '232.00 µs'],
      ['Linear.__init__ at model.py:41', 'weights', '4 MiB', '1', '2.00 µs', '2.00 µs'],
    ]);
    assert.equal(await text(page, '#leaks .more'), 'The 2 with most, of 5.');
    await page.locator('#leaks summary').click();
    assert.deepEqual(await page.locator('#leaks li').allInnerTexts(), ['allocate', 'Linear.__init__ at model.py:41', 'main']);
  });
  await openPacked(small({ leakCount: 0, leaks: [] }), {}, async (page) => assert.equal(await page.locator('#leak-section').isVisible(), false));
});
