// SPDX-License-Identifier: Apache-2.0
// Memory that was suspended: its band in the chart, in the legend and the tip, and in the story of a block.
import assert from 'node:assert/strict';
import { test } from './harness.mjs';
import { openPacked, tiny } from './inside.mjs';
import { small, timeOf } from './small.mjs';

const MiB = 2 ** 20;
const pause = (start, end, kept) => ({ pool: 3, start, end, from: timeOf(start), to: timeOf(Math.min(127, end)), size: 8 * MiB, kept });
// The activations are away in the bins of events 32 to 47.
const isAway = (event) => event >= 32 && event < 48;
const bins = small().bins.map((bin) => ({ ...bin, stacks: bin.stacks.map((stack) => {
  const away = isAway(bin.moment) ? stack[1] : 0;
  return [stack[0], stack[1] - away, ...stack.slice(2), away];
}) }));
const groupings = small().groupings.map(({ name, labels }) => ({ name, labels: [...labels, 'suspended'] }));
const blocks = small().blocks.map((block, i) => ({ ...block, pool: i === 2 ? 3 : 0 }));  // lives from 6 to 120
const suspended = (changes = {}) => small({ bins, groupings, blocks, suspensionCount: 1, suspensions: [pause(32, 48, 5)], ...changes });

test('suspended memory is a band of its own', () => openPacked(suspended(), { style: tiny }, async (page) => {
  const columns = await page.evaluate(async () => {
    report.setAxis('events');
    await see.settled();
    return see.pixels(report.timeline.stage).slice(1);
  });
  const at = (x) => columns.find((line) => line.split(':')[0].split('-').map(Number).some((edge, i, [from, to = from]) => from <= x && x <= to)).split(': ')[1];
  // A bin is a pixel: in 40 / 2 the activations are hatched, four pixels of one colour and four of the other.
  const heightsOf = (line) => line.split(', ').map((run) => run.split(' ')).filter(([, name]) => /^(dense|light)$/.test(name)).map(([count]) => Number(count));
  for (const x of [16, 20, 23]) {
    const bin = bins[x];
    const height = await page.evaluate(([before, away]) => Math.round((before + away) * report.timeline.scaleY) - Math.round(before * report.timeline.scaleY), [bin.stacks[0][0] + bin.stacks[0][2], bin.stacks[0][3]]);
    assert.equal(heightsOf(at(x)).reduce((sum, count) => sum + count, 0), height, at(x));
    assert.ok(heightsOf(at(x)).every((count) => count <= 4), at(x));
  }
  for (const x of [15, 24]) assert.deepEqual(heightsOf(at(x)), [], at(x));
}));

test('it is named in the legend and the tip', () => openPacked(suspended(), { style: tiny }, async (page) => {
  const legend = await page.evaluate(() => see.tree(byId('legend').children[3]));
  assert.deepEqual(legend.slice(0, 4), ['span title=live, without physical memory', '  i class=swatch hatched style=border-color: rgb(89, 97, 110);', '  b', '    "suspended"']);
  assert.match((await page.evaluate(() => see.tree(byId('legend').children[2])))[1], /^ {2}i class=swatch {1,2}style=background: /);
  const words = await page.evaluate(async () => {
    report.setAxis('events');
    await see.settled();
    report.timeline.point({ x: 20, y: 5 }, { clientX: 100, clientY: 200 });
    return [see.words(byId('tip')), byId('tip').querySelectorAll('.hatched').length];
  });
  const away = bins[20].stacks[0][3] / MiB;
  assert.ok(words[0].includes(`suspended | ${away} MiB`), words[0]);
  assert.equal(words[1], 1);
}));

test('a recording in which nothing was suspended has no such band', () => openPacked(small(), {}, async (page) => {
  assert.deepEqual(await page.evaluate(() => [report.timeline.isSuspended(2, 3), byId('legend').querySelectorAll('.hatched').length]), [false, 0]);
}));

test("a block's story says when it was suspended", async () => {
  const story = async (suspensions) => {
    let rows = [];
    await openPacked(suspended({ suspensions }), {}, async (page) => {
      rows = await page.evaluate(async () => {
        await report.look(40);
        return [2, 3].map((at) => report.aboutBlock(report.state.blocks[at]).filter(([name]) => name === 'suspended').map(([, words]) => words));
      });
    });
    return rows;
  };
  assert.deepEqual(await story([pause(5, 6, 1), pause(6, 8, 1), pause(32, 48, 0), pause(119, 125, 2), pause(120, 126, 2), { ...pause(10, 12, 1), pool: 4 }]), [
    ['from 6.0 µs to 8.0 µs, contents kept on the host', 'from 32.0 µs to 48.0 µs, contents discarded', 'from 229.0 µs until it was freed, contents kept on the host'], []]);
  assert.deepEqual((await story([pause(50, 128, 3)]))[0], ['from 50.0 µs until it was freed, contents kept on the host']);
});
