// SPDX-License-Identifier: Apache-2.0
// The figures of a small recording in which everything occurs, with numbers that can be worked out by hand.

const KiB = 1024;
const MiB = 1024 * KiB;
const base = 0x7f4000000000;

export const events = 128;

// The second half takes three times as long: places on the two axes differ.
export const timeOf = (event) => (event < 64 ? 1000 * event : 64000 + 3000 * (event - 64));

// Bytes after each event, by tag and by stream.
const byTag = (event) => [event < 4 ? 0 : 24 * MiB, ((event * 7) % 32) * MiB, event < 100 ? 0 : 8 * MiB];
const liveAt = (event) => byTag(event).reduce((sum, size) => sum + size, 0);
const byStream = (event) => [liveAt(event) - byTag(event)[1], byTag(event)[1]];
const reservedAt = (event) => (event < 50 ? 64 : 80) * MiB;

const bins = Array.from({ length: 64 }, (_, bin) => {
  const [first, second] = [2 * bin, 2 * bin + 1];
  const moment = liveAt(second) > liveAt(first) ? second : first;
  return { time: timeOf(first), moment, low: Math.min(liveAt(first), liveAt(second)), reserved: Math.max(reservedAt(first), reservedAt(second)),
    stacks: [byTag(moment), byStream(moment)] };
});

// Two stretches of addresses: 6 MiB with two reservations that touch, and 4 MiB further on.
const spans = [
  { start: 0, end: events, address: base, size: 2 * MiB },
  { start: 0, end: events, address: base + 2 * MiB, size: 4 * MiB },
  { start: 50, end: events, address: base + 64 * MiB, size: 4 * MiB },
];

const block = (start, end, offset, size, more) => ({ start, end, address: base + offset, size, rounded: Math.ceil(size / 512) * 512, ...more });
const weights = { tag: 1, stream: 0, site: 3, pool: 1, groups: [0, 0] };
const activations = { tag: 2, stream: 1, site: 5, pool: 2, groups: [1, 1] };
const blocks = [
  block(2, events, 0, 2 * MiB, weights),                 // a whole page
  block(4, events, 2 * MiB, 1000, weights),              // pins one
  block(6, 120, 2 * MiB + 512 * KiB, 256 * KiB, activations),
  block(10, 90, 3 * MiB + 512 * KiB, MiB + 100, activations),  // over the edge of a page
  block(20, 24, 5 * MiB, 512 * KiB, activations),
  block(40, 60, 5 * MiB + 512 * KiB, 256 * KiB, { ...activations, tag: 9, stream: 9, site: 77 }),  // of unknown names
  block(60, 70, 64 * MiB + MiB, MiB, { ...weights, groups: [2, 0] }),
  block(100, events, 64 * MiB + 2 * MiB, 2 * MiB - 512, { ...weights, tag: 3, groups: [2, 0] }),
];

// Those of `changes` in place of the usual ones.
export const small = (changes = {}) => ({
  file: 'run.weirtrace', program: 'train.py', device: 'a made-up GPU', capacity: 96 * MiB,
  events, duration: timeOf(events - 1), blockCount: 4321, peak: { event: 123, live: 61 * MiB, inUse: 61 * MiB, rounded: 62 * MiB },
  knowsReserved: true, reservedPeak: 80 * MiB, pageBytes: 2 * MiB,
  groupings: [{ name: 'tag', labels: ['weights', 'activations', 'other'] }, { name: 'stream', labels: ['stream 0', 'stream 7'] }],
  shift: 1, bins, levels: 3, levelShift: 2, tileBins: 8, firstWidth: 16, blocks, spans,
  regions: [{ address: base, size: 6 * MiB }, { address: base + 64 * MiB, size: 4 * MiB }],
  tags: ['no tag', 'weights', 'activations', 'other'], streams: ['stream 0', 'stream 7'],
  siteCount: 1002, hasStacks: true,
  sites: [
    { number: 3, label: 'Linear.__init__ at model.py:41', blocks: 24, bytes: 24 * MiB, most: 24 * MiB, atPeak: 20 * MiB, atEnd: 4 * MiB, lifetime: 2_000_000, frames: ['allocate', 'Linear.__init__ at model.py:41', 'main'] },
    { number: 5, label: 'softmax at model.py:131', blocks: 3000, bytes: 900 * MiB, most: 31 * MiB, atPeak: 30 * MiB, atEnd: 0, lifetime: 2, frames: ['allocate', 'softmax at model.py:131'] },
    { number: 8, label: 'KvCache.grow at serve.py:64', blocks: 7, bytes: 8 * MiB, most: 8 * MiB, atPeak: 8 * MiB, atEnd: 8 * MiB, lifetime: 0, frames: [] },
  ],
  leakCount: 5,
  leaks: [
    { site: 8, label: 'KvCache.grow at serve.py:64', tag: 2, blocks: 7, bytes: 8 * MiB, first: timeOf(20), last: timeOf(120) },
    { site: 3, label: 'Linear.__init__ at model.py:41', tag: 1, blocks: 1, bytes: 4 * MiB, first: 2000, last: 2000 },
  ],
  recorded: [{ name: 'cudaMallocAsync', requested: 61 * MiB, reserved: 100 * MiB }],
  policies: [
    { name: 'torch_default', requested: 61 * MiB, reserved: 90 * MiB, calls: 1234, driverTime: 5_600_000, waits: 3, ooms: 1, fit: 0, samples: [{ time: 0, reserved: 20 * MiB }, { time: 64000, reserved: 70 * MiB }, { time: 253000, reserved: 90 * MiB }] },
    { name: 'balanced', requested: 61 * MiB, reserved: 64 * MiB, calls: 77, driverTime: 900, waits: 0, ooms: 0, fit: 0, samples: [{ time: 32000, reserved: 64 * MiB }, { time: 127000, reserved: 40 * MiB }] },
    { name: 'classic', requested: 0, reserved: 128 * MiB, calls: 2, driverTime: 0, waits: 0, ooms: 0, fit: 0, samples: [{ time: 0, reserved: 128 * MiB }] },
    { name: 'compact', requested: 61 * MiB, reserved: 62 * MiB, calls: 9, driverTime: 1, waits: 1, ooms: 2, fit: 0, samples: [] },
  ],
  oomCount: 3,
  ooms: [
    { event: 93, time: timeOf(93), requested: 60 * 1024 * MiB, stream: 1, live: 35 * MiB, rounded: 36 * MiB, reserved: 80 * MiB, limit: 0, free: 44 * MiB, pieces: 1234, longest: 4 * MiB, verdict: 'Nothing would have helped.', tags: [{ label: 'weights', size: 24 * MiB }, { label: 'activations', size: 11 * MiB }] },
    { event: 101, time: timeOf(101), requested: 100, stream: 5, live: 10, rounded: 512, reserved: 0, limit: 0, free: 0, pieces: 0, longest: 0, verdict: 'Too little.', tags: [] },
  ],
  markerCount: 4,
  markers: [
    { event: 0, time: 0, text: 'begin' },
    { event: 16, time: timeOf(16), text: 'a marker with a text that is too long to be shown' },
    { event: 96, time: timeOf(96), text: 'step 2' },
    { event: 97, time: timeOf(97), text: 'step 3' },
  ],
  ...changes,
});
