// SPDX-License-Identifier: Apache-2.0
// What the page makes of recordings by itself, in small: the same cases as tests/report_page/history_test.cpp.
import assert from 'node:assert/strict';
import { test } from './harness.mjs';
import { openPacked } from './inside.mjs';

const MiB = 2 ** 20;

// Runs `look` in the page with the lifetimes of events [{kind, ...}], a microsecond apart, and `names` of the recording.
const withEvents = (page, events, names, look) => page.evaluate(async ([all, tables, source]) => {
  const recording = new Recording();
  Object.assign(recording, { streams: [0n], ...tables });
  all.forEach(({ kind, ...event }, i) => recording.add({ time: 1000 * i, ...event, kind: kinds[kind] }));
  const lifetimes = await new Lifetimes(recording).read(async () => {});
  return new Function('lifetimes', 'tools', `return (${source})(lifetimes, tools)`)(lifetimes, { tallyBy, makeGroupings, findLeaks, explainOoms, finestSeries, usedAddresses, livesAt, holesAt });
}, [events, names, String(look)]);
const allocate = (address, size, more = {}) => ({ kind: 'allocate', address: address * MiB, size, ...more });
const free = (address) => ({ kind: 'deallocate', address: address * MiB });
const physical = (kind, address, size, from = 0) => ({ kind, address: address * MiB, size: size * MiB, extra: from * MiB });

// The page's policy forbids code from texts, so tests that need it are let.
const open = (look) => openPacked({}, { loose: true }, look);

test('a block lives from its allocation to its free', () => open(async (page) => {
  const found = await withEvents(page, [allocate(1, 100, { extra: 512, stream: 3, tag: 2, pool: 1 }), allocate(2, 50, { extra: 20 }), free(1), free(9), allocate(2, 70), free(2)], {}, (l) => ({
    blocks: l.blocks.map((b) => [b.address / 2 ** 20, b.size, b.rounded, b.start, b.end, b.stream, b.tag, b.pool, b.site].join(' ')), live: [...l.live], freed: l.freed, peak: l.peak, reserved: l.reserved, sites: l.sites }));
  assert.deepEqual(found, { blocks: ['1 100 512 0 2 3 2 1 0', '2 50 50 1 4 0 0 0 1', '2 70 70 4 5 0 0 0 2'], live: [100, 150, 50, 50, 70, 0], freed: [0, 1, 2], peak: 1, reserved: null,
    sites: [{ stack: 0, size: 100 }, { stack: 0, size: 50 }, { stack: 0, size: 70 }] });
}));

test('physical memory moves, and goes in pieces', () => open(async (page) => {
  const spansOf = (events, names = {}) => withEvents(page, events, names, (l) => ({ spans: l.spans.map((s) => [s.address / 2 ** 20, s.size / 2 ** 20, s.start, s.end].join(' ')), reserved: l.reserved && [...l.reserved].map((size) => size / 2 ** 20) }));
  assert.deepEqual(await spansOf([allocate(1, 5), physical('reserve', 10, 6), physical('reserve', 20, 4), physical('release', 10, 6)]), { spans: ['10 6 1 3', '20 4 2 4'], reserved: [0, 6, 10, 4] });
  assert.deepEqual(await spansOf([physical('reserve', 10, 6), physical('move', 40, 2, 12), physical('release', 10, 2), allocate(1, 5)]), { spans: ['10 2 0 2', '12 2 0 1', '14 2 0 4', '40 2 1 4'], reserved: [6, 6, 4, 4] });
  assert.deepEqual((await spansOf([physical('reserve', 10, 4), physical('reserve', 14, 4), physical('reserve', 12, 4)])).spans, ['10 2 0 3', '12 2 0 2', '14 2 1 2', '16 2 1 3', '12 4 2 3']);
  assert.deepEqual(await spansOf([physical('reserve', 10, 4), physical('release', 14, 8), physical('release', 2, 8), physical('reserve', 30, 0)]), { spans: ['10 4 0 4'], reserved: [4, 0, 0, 0] });
  assert.deepEqual(await spansOf([physical('reserve', 10, 4), physical('move', 20, 4, 10), physical('release', 20, 4)], { realAddresses: false }), { spans: [], reserved: null });
}));

test('memory is in use until it can be used again', () => open(async (page) => {
  const most = (events) => withEvents(page, events, {}, (l) => l.mostInUse());
  assert.equal(await most([]), 0);
  assert.equal(await most([allocate(1, 100), free(1), allocate(2, 80)]), 100);
  const reusable = (address) => ({ kind: 'reusable', address: address * MiB });
  assert.equal(await most([allocate(1, 100), free(1), allocate(2, 80), reusable(1), allocate(1, 90), free(1), reusable(1)]), 180);
  assert.equal(await most([allocate(1, 100), allocate(1, 30), allocate(2, 0), { kind: 'reusable', address: 9 }]), 100);
}));

test('sizes that read the same are one site, and a stack is one', () => open(async (page) => {
  assert.deepEqual(await withEvents(page, [allocate(1, 20 * MiB), allocate(100, 20 * MiB + 100), allocate(200, 21 * MiB), allocate(300, 20 * MiB - 100)], {}, (l, tools) => [l.sites, l.blocks.map((b) => b.site), tools.tallyBy(l, 2, (b) => b.site)[0].most]),
    [[{ stack: 0, size: 20 * MiB }, { stack: 0, size: 21 * MiB }], [0, 0, 1, 0], 60 * MiB]);
  assert.deepEqual(await withEvents(page, [allocate(1, 5, { other: 2 }), allocate(2, 6, { other: 2 }), allocate(3, 7), allocate(4, 8, { other: 3 })], { stacks: [[0], [1]], frames: ['a', 'b'] }, (l) => [l.sites, l.blocks.map((b) => b.site)]),
    [[{ stack: 2, size: 0 }, { stack: 0, size: 0 }], [0, 0, 1, 1]]);
}));

test('groups are named and ordered by what they held at most', () => open(async (page) => {
  const events = [allocate(1, 100, { tag: 2 }), free(1), allocate(2, 300, { tag: 1, stream: 1 }), allocate(3, 2 ** 30, { tag: 1, pool: 1 }), allocate(4, 20000, { pool: 2 })];
  const found = await withEvents(page, events, { tags: ['', 'a', 'b'], pools: ['', 'p'], streams: [7n, 8n] }, (l, { makeGroupings, tallyBy }) => makeGroupings(l, tallyBy(l, l.sites.length, (b) => b.site)).map(({ name, labels, ofBlock }) => [name, labels.join(', '), [...ofBlock].join('')].join(': ')));
  assert.deepEqual(found, ['tag: a, untagged, b: 2001', 'size: 1 GiB and more, 16 KiB to 256 KiB, below 1 KiB: 2201', 'stream: stream 7, stream 8: 0100', 'site: 1 GiB, 19.53 KiB, 300 B, 100 B: 3201', "pool: p, pool 2, the allocator's own: 2201"]);
  const many = (count) => withEvents(page, Array.from({ length: count }, (_, i) => allocate(i + 1, 100 + i, { tag: i })), { tags: Array.from({ length: count }, (_, i) => `t${i}`) }, (l, { makeGroupings, tallyBy }) => {
    const [{ labels, ofBlock }] = makeGroupings(l, tallyBy(l, l.sites.length, (b) => b.site));
    return [labels.length, labels[0], labels.at(-1), [...ofBlock].slice(0, 3)];
  });
  assert.deepEqual(await many(12), [12, 't11', 't0', [11, 10, 9]]);
  assert.deepEqual(await many(14), [12, 't13', '3 others', [11, 11, 11]]);
}));

test('what was never freed, by site and tag', () => open(async (page) => {
  const events = [allocate(1, 100, { tag: 1 }), allocate(2, 100), allocate(3, 50), allocate(4, 100, { tag: 1 }), free(2), allocate(5, 50)];
  assert.deepEqual(await withEvents(page, events, { tags: ['', 'a'] }, (l, { findLeaks }) => findLeaks(l)), [
    { site: 0, label: '100 B', tag: 1, blocks: 2, bytes: 200, first: 0, last: 3000 }, { site: 1, label: '50 B', tag: 0, blocks: 2, bytes: 100, first: 2000, last: 5000 }]);
}));

test('what ran out is explained by its moment', () => open(async (page) => {
  const oom = (size, more = {}) => ({ kind: 'outOfMemory', size, ...more });
  const events = [physical('reserve', 16, 8), allocate(16, MiB, { tag: 1, extra: 2 * MiB }), allocate(20, MiB, { tag: 2 }), { kind: 'limit', size: 9 * MiB }, oom(3 * MiB, { stream: 1 }), { kind: 'limit', size: 3 * MiB, tag: 1 }, oom(2 * MiB, { tag: 1 }), free(16)];
  const found = await withEvents(page, events, { tags: ['', 'a', 'b'], streams: [0n, 1n] }, (l, { explainOoms }) => explainOoms(l));
  assert.deepEqual(found[0], { event: 4, time: 4000, stream: 1, requested: 3 * MiB, live: 2 * MiB, rounded: 3 * MiB, reserved: 8 * MiB, limit: 9 * MiB, free: 5 * MiB, longest: 3 * MiB, pieces: 2,
    verdict: '5 MiB are reserved and free, 3 MiB of it in one piece, but it is kept for other streams, or for work that has not completed. Raise the limit of 9 MiB by 2 MiB.',
    tags: [{ label: 'a', size: MiB }, { label: 'b', size: MiB }] });
  assert.equal(found[1].verdict, 'The limit of tag "a", 3 MiB, is in the way: 2 MiB are live with it. Raise it by 1 MiB, or free 1 MiB of the tag.');
  assert.equal(found.length, 2);
  const many = await withEvents(page, [...Array.from({ length: 7 }, (_, i) => allocate(i + 1, 10 + i, { tag: i })), ...Array.from({ length: 20 }, () => oom(1))], { tags: ['', 'a', 'b', 'c', 'd', 'e', 'f'] }, (l, { explainOoms }) => explainOoms(l).map(({ tags, reserved }) => [tags.length, tags[0].label, reserved].join()));
  assert.deepEqual(many, Array(16).fill('5,f,0'));
}));

test('free memory is counted before, between and behind blocks', () => open(async (page) => {
  const holes = (...events) => withEvents(page, events, {}, (l, { holesAt }) => {
    const { bytes, pieces, longest } = holesAt(l, l.events - 1);
    return [bytes / 2 ** 20, pieces, longest / 2 ** 20].join();
  });
  const block = (address, size) => allocate(address, size * MiB);
  assert.equal(await holes({ ...physical('reserve', 10, 10), pool: 1 }, physical('reserve', 30, 4)), '4,1,4');
  assert.equal(await holes(physical('reserve', 10, 10), block(12, 1), block(15, 2)), '7,3,3');
  assert.equal(await holes(physical('reserve', 10, 4), physical('reserve', 14, 4), block(10, 1)), '7,1,7');
  assert.equal(await holes(physical('reserve', 10, 4), physical('reserve', 20, 4), block(12, 10)), '4,2,2');
  assert.equal(await holes(physical('reserve', 10, 4), block(10, 2), block(12, 2)), '0,0,0');
  assert.equal(await holes(physical('reserve', 10, 4), block(10, 2), free(10)), '4,1,4');
}));

test('blocks without memory are a group of their own', () => open(async (page) => {
  const inPool = (address, size) => allocate(address, size, { tag: 1, pool: 1 });
  const change = (kind, size, kept) => ({ kind, pool: 1, size, extra: kept });
  const events = [inPool(16, 100), inPool(17, 50), allocate(18, 20), change('suspended', 4, 150), free(17), change('resumed', 2, 100), inPool(19, 7), change('suspended', 2, 0), change('suspended', 3, 0), change('resumed', 0, 0), change('resumed', 0, 0), change('suspended', 3, 9)];
  const found = await withEvents(page, events, { tags: ['', 'a'], pools: ['', 'p'] }, (l, { makeGroupings, tallyBy, finestSeries }) => {
    const groupings = makeGroupings(l, tallyBy(l, l.sites.length, (b) => b.site));
    return { suspensions: l.suspensions.map((s) => [s.pool, s.start, s.end, s.size, s.kept, s.blocks].join(' ')), labels: groupings.map(({ labels }) => labels.at(-1)).join(), stacks: [...finestSeries(l, groupings).stacks[0]] };
  });
  assert.deepEqual(found.suspensions, ['1 3 5 4 150 0,1', '1 7 8 2 0 0,3', '1 8 9 3 0 0,3', '1 11 12 3 9 0,3']);
  assert.equal(found.labels, Array(5).fill('suspended').join());
  assert.deepEqual(found.stacks, [100, 0, 0, 150, 0, 0, 150, 20, 0, 0, 20, 150, 0, 20, 100, 100, 20, 0, 107, 20, 0, 0, 20, 107, 0, 20, 107, 107, 20, 0, 107, 20, 0, 0, 20, 107]);
}));

test('where there are too many blocks the small ones are those of key moments', () => openPacked({}, {}, async (page) => {
  const select = (bins, blocks, exact, most) => page.evaluate(([count, all, moments, limit]) => {
    madeLimits.blocks = limit;
    const found = selectBlocks({ blocks: all.map(([size, start, end]) => ({ size, start, end })), recording: { realAddresses: true } }, { moment: Array.from({ length: count }, (_, i) => i) }, moments);
    return { kept: [...found.kept.keys()].filter((i) => found.kept[i]), key: found.keyMoments, small: found.smallBelow, out: found.leftOutBelow };
  }, [bins, blocks, exact, most]);
  const short = (count) => Array.from({ length: count }, (_, i) => [100, i, i + 1]);
  const numbers = (from, to) => Array.from({ length: to - from }, (_, i) => from + i);
  const spread = (all, count) => [...Array.from({ length: count }, (_, i) => Math.floor((i * all) / count)), all - 1];
  assert.deepEqual(await select(50, [...short(50), [100, 10, 10]], [49], 50), { kept: numbers(0, 50), key: [], small: 0, out: 0 });
  assert.deepEqual(await select(1000, short(1000), [999], 130), { kept: spread(1000, 64), key: spread(1000, 64), small: 1024, out: 0 });
  assert.deepEqual((await select(1000, short(1000), [999], 129)).key, spread(1000, 32));
  assert.deepEqual((await select(1000, short(1000), [999], 4)).key, spread(1000, 1));
  assert.deepEqual((await select(2000, short(2000), [1999], 1900)).key, spread(2000, 512));
  const sized = (...counts) => counts.flatMap(([size, count, end]) => Array.from({ length: count }, () => [size, 0, end]));
  assert.deepEqual(await select(100, sized([1024, 30, 100], [2048, 30, 100], [4096, 30, 100]), [7, 99], 80), { kept: numbers(30, 90), key: [7, 99], small: 4096, out: 2048 });
  assert.deepEqual(await select(10, sized([511, 30, 10], [512, 20, 10]), [9], 40), { kept: numbers(30, 50), key: [9], small: 1024, out: 512 });
}));

test('addresses that were used are whole pages without the wide gaps', () => openPacked({}, {}, async (page) => {
  const used = (blocks, spans, most) => page.evaluate(([b, s, limit]) => usedAddresses({ blocks: b.map(([address, rounded]) => ({ address, rounded })), spans: s.map(([address, size]) => ({ address, size })), recording: { realAddresses: true } }, limit)
    .map(({ address, size }) => [address / 2 ** 20, size / 2 ** 20].join()), [blocks, spans, most]);
  assert.deepEqual(await used([[5 * MiB, 10], [100 * MiB, 2 * MiB + 1]], [[8 * MiB, 4 * MiB]], 10), ['4,2', '8,4', '100,4']);
  assert.deepEqual(await used([[0, 2 * MiB], [20 * MiB, 2 * MiB], [40 * MiB, 2 * MiB], [1000 * MiB, 0]], [], 2), ['0,42', '1000,2']);
}));
