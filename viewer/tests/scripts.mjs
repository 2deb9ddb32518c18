// SPDX-License-Identifier: Apache-2.0
// The parts of the page's script that need no browser: run by node alone.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import vm from 'node:vm';

const folder = new URL('../js/', import.meta.url);
const script = ['words', 'unpack', 'store', 'recording', 'lifetimes', 'grouping', 'made', 'snapshot', 'tables']
  .map((name) => readFileSync(new URL(`${name}.js`, folder), 'utf8')).join('\n');
const names = ['Series', 'SegmentRanges', 'SnapshotReader', 'PickleContainer', 'PickleText', 'Lifetimes', 'tallyBy', 'sitesOf', 'knowsRounding', 'kinds'];
const { Series, SegmentRanges, SnapshotReader, PickleContainer, PickleText, Lifetimes, tallyBy, sitesOf, knowsRounding, kinds } =
  vm.runInNewContext(`${script}\n;({ ${names.join(', ')} })`, { console, TextDecoder, document: { getElementById: () => null } });

const tests = [];
const test = (title, body) => tests.push([title, body]);

// --- Memory over time -----------------------------------------------------------------------------------------

// A series whose first event is at `first`, with `events` events a microsecond apart, all pieces present.
function lateSeries(first, events) {
  const [tileBins, levelShift] = [64, 3];
  const levels = [];
  for (let bins = events, shift = 0; ; bins = Math.ceil(bins / 8), ++shift) {
    levels.push(bins);
    if (bins <= tileBins) break;
  }
  const index = { tileBins, levelShift, shift: 0, bins: events, levels: levels.length, events, duration: first + (events - 1) * 1000, groupings: [], knowsReserved: false };
  const series = new Series(index, null, () => {});
  series.tile = (level, tile) => {
    assert.ok(tile >= 0 && tile * tileBins < series.levels[level].bins, `tile ${tile} of level ${level}`);
    const count = Math.min(tileBins, series.levels[level].bins - tile * tileBins);
    return { count, time: Array.from({ length: count }, (_, i) => first + (tile * tileBins + i) * series.levels[level].binEvents * 1000) };
  };
  return series;
}

test('a time before the first event is that of the first', () => {
  const series = lateSeries(10e9, 4000);
  for (const time of [-5, 0, 1, 5e9, 10e9 - 1]) {
    const event = series.eventAt(time);
    assert.ok(event >= 0 && event < 1, `${time}: ${event}`);
  }
  assert.ok(Math.abs(series.eventAt(10e9 + 2_000_000) - 2000) <= 1);
  assert.equal(series.eventAt(10e9 + 4_000_000), 4000);
});

// --- Snapshots ------------------------------------------------------------------------------------------------

const pickled = (value) => {
  if (Array.isArray(value)) {
    const list = new PickleContainer('list');
    list.values.push(...value.map(pickled));
    return list;
  }
  if (value && typeof value === 'object') {
    const dict = new PickleContainer('dict');
    for (const [key, each] of Object.entries(value)) dict.values.push(pickled(key), pickled(each));
    return dict;
  }
  return typeof value === 'string' ? new PickleText(new TextEncoder().encode(value)) : value;
};
const read = (snapshot) => new SnapshotReader(pickled(snapshot), 1e6).read(async () => {});
const eventsOf = (recording) => Array.from({ length: recording.count }, (_, i) => [recording.kind[i], recording.address[i], recording.size[i]]);
const entry = (action, addr, size, time_us, more = {}) => ({ action, addr, size, time_us, ...more });
const segment = (device, address, total_size, state) => ({ device, address, total_size, stream: 0, blocks: [{ size: total_size, state }] });

test('what was reserved before the history is there', async () => {
  const recording = await read({
    device_traces: [[entry('segment_alloc', 0x9000, 0x1000, 100), entry('segment_free', 0x5000, 0x2000, 101)]],
    segments: [segment(0, 0x1000, 0x2000, 'active_allocated'), segment(0, 0x9000, 0x1000, 'inactive')],
  });
  assert.deepEqual(eventsOf(recording), [
    [kinds.reserve, 0x1000, 0x2000], [kinds.reserve, 0x5000, 0x2000], [kinds.allocate, 0x1000, 0x2000], [kinds.marker, 0, 0],
    [kinds.reserve, 0x9000, 0x1000], [kinds.release, 0x5000, 0x2000]]);
});

test('of several devices that with most bytes is read', async () => {
  const busy = Array.from({ length: 9 }, (_, i) => entry('alloc', 0x100 + i, 1, i));
  const recording = await read({ device_traces: [[entry('segment_alloc', 0x1000, 8192, 1), entry('segment_free', 0x1000, 8192, 2)], busy], segments: [] });
  assert.equal(recording.device, 'cuda:0');
});

test('ranges are added and removed in parts', () => {
  const ranges = new SegmentRanges();
  ranges.add(10, 10, 'a');
  ranges.add(5, 30, 'b');
  ranges.remove(12, 3);
  ranges.remove(30, 100);
  assert.equal(ranges.ranges.map(({ from, to, label }) => `${from}-${to}${label}`).join(' '), '5-10b 10-12a 15-20a 20-30b');
  assert.equal(ranges.find(16).label, 'a');
  assert.equal(ranges.find(13), undefined);
});

// --- Figures --------------------------------------------------------------------------------------------------

test('the mean life is of the blocks that were freed', async () => {
  const history = [entry('alloc', 1, 100, 0), entry('alloc', 2, 100, 0), entry('alloc', 3, 100, 0), entry('free_requested', 1, 100, 1e6)];
  const recording = await read({ device_traces: [history], segments: [] });
  const lifetimes = await new Lifetimes(recording).read(async () => {});
  const [site] = sitesOf(lifetimes, tallyBy(lifetimes, lifetimes.sites.length, (block) => block.site));
  assert.equal(site.blocks, 3);
  assert.equal(site.lifetime, 1e9);
  assert.equal(knowsRounding(recording, lifetimes.events), false);
});

test('some blocks may say when they were reusable and others not', async () => {
  const history = [entry('alloc', 1, 100, 0), entry('free_requested', 1, 100, 1), entry('free_completed', 1, 100, 1, { weir_invented: 1 }),
    entry('alloc', 2, 100, 2), entry('free_requested', 2, 100, 3), entry('free_completed', 2, 100, 4)];
  const lifetimes = await new Lifetimes(await read({ device_traces: [history], segments: [], weir_events: [] })).read(async () => {});
  assert.equal(lifetimes.mostInUse(), 100);
});

test('where frees are only said to be completed they are then', async () => {
  const history = [entry('alloc', 1, 100, 0), entry('free_completed', 1, 100, 1), entry('alloc', 2, 100, 2), entry('alloc', 1, 100, 3), entry('free_completed', 2, 100, 4)];
  const snapshot = { device_traces: [history], segments: [] };
  const lifetimes = await new Lifetimes(await read(snapshot)).read(async () => {});
  assert.deepEqual([...lifetimes.live], [100, 0, 100, 200, 100]);
  assert.equal(lifetimes.mostInUse(), 200);
  const told = { device_traces: [[...history, entry('free_requested', 1, 100, 5)]], segments: [] };
  assert.deepEqual([...(await new Lifetimes(await read(told)).read(async () => {})).live], [100, 200, 100, 200, 100]);
});

test('the device is chosen by what was live, also where frees are only said to be completed', async () => {
  const often = [1, 2, 3, 4].flatMap((time) => [entry('alloc', 1, 100, time), entry('free_completed', 1, 100, time)]);
  const recording = await read({ device_traces: [often, [entry('alloc', 1, 300, 0)]], segments: [] });
  assert.equal(recording.device, 'cuda:1');
});

for (const [title, body] of tests) {
  try {
    await body();
    console.log(`ok: ${title}`);
  } catch (problem) {
    console.error(`failed: ${title}\n${problem.stack}`);
    process.exitCode = 1;
  }
}
