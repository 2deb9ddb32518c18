// SPDX-License-Identifier: Apache-2.0
// What the page makes of its figures: reading them, finding moments and blocks, numbers as words.
import assert from 'node:assert/strict';
import { open, test } from './harness.mjs';
import { openPacked } from './inside.mjs';
import { packedPage } from './packed.mjs';
import { events, small, timeOf } from './small.mjs';

const MiB = 2 ** 20;
const base = 0x7f4000000000;

// --- Reading ---------------------------------------------------------------------------------------

test('numbers and texts are read as they were packed', () => openPacked(small(), {}, async (page) => {
  const read = await page.evaluate(() => {
    const reader = (...bytes) => new Reader(Uint8Array.from(bytes));
    const cut = () => {
      try {
        return reader(128).number();
      } catch (problem) {
        return `${problem.name}: ${problem.message}`;
      }
    };
    const several = reader(5, 255, 1, 3, 2, 104, 105, 1, 0, 2, 7, 9);
    return {
      numbers: [reader(0), reader(127), reader(128, 1), reader(255, 127), reader(128, 128, 1), reader(255, 255, 255, 255, 255, 255, 255, 15)].map((r) => r.number()),
      differences: [[0, 10], [1, 10], [2, 10], [3, 10], [255, 10, 10], [254, 10, 10]].map(([...bytes]) => reader(...bytes.slice(0, -1)).difference(bytes.at(-1))),
      several: [several.number(), several.number(), several.difference(3), several.text(), several.flag(), several.flag(), several.list(() => several.number()), several.at],
      columns: [[...reader(1, 2, 3).numbers(3)], [...reader(4, 1, 2).differences(3)]],
      utf8: reader(3, 226, 130, 172).text(),
      cut: cut(),
      base64: [...bytesOf('AAEC/w==')],
    };
  });
  assert.deepEqual(read, {
    numbers: [0, 127, 128, 16383, 16384, 2 ** 53 - 1],
    differences: [10, 9, 11, 8, 10 - 704, 10 + 703],
    several: [5, 255, 1, 'hi', true, false, [7, 9], 12],
    columns: [[1, 2, 3], [2, 1, 2]],
    utf8: '€',
    cut: 'RangeError: the page is cut off',
    base64: [0, 1, 2, 255],
  });
}));

test('bytes are read where the browser knows no shortcut', () => openPacked(small(), {}, async (page) => {
  const bytes = await page.evaluate(() => {
    const { fromBase64 } = Uint8Array;
    delete Uint8Array.fromBase64;
    const slow = [...bytesOf('AAEC/w==')];
    Uint8Array.fromBase64 = () => [7];
    const quick = [...bytesOf('AAEC/w==')];
    if (fromBase64) Uint8Array.fromBase64 = fromBase64;
    else delete Uint8Array.fromBase64;
    return { slow, quick };
  });
  assert.deepEqual(bytes, { slow: [0, 1, 2, 255], quick: [7] });
}));

test('every figure is read into its place', async () => {
  const figures = small({ damage: { offset: 99, reason: 'cut' }, dropped: 4, placedBy: 'balanced', smallBelow: 2048, leftOutBelow: 512, keyMoments: [3, 90] });
  await openPacked(figures, {}, async (page) => {
    const index = await page.evaluate(() => ({ ...report.index, lengths: report.index.lengths.length, keyMoments: [...report.index.keyMoments] }));
    const { bins, blocks, spans, firstWidth, blockCount, ...same } = figures;
    assert.deepEqual(index, {
      ...same, weir: '1.2.3', realAddresses: true, blocks: 4321, bins: 64, earlyChunks: 3,
      card: { size: 0, left: 0, trials: [] }, suspensionCount: 0, suspensions: [], lengths: 3 * (1 + 2 + 8) + 8 + 2 + 1, blockLevels: [{ width: 16, count: 8 }, { width: 64, count: 2 }, { width: 256, count: 1 }],
    });
  });
});

test('what goes wrong stands on the page', () => open(packedPage(small({ version: 1 })), { fails: /different versions/ }, async (page) => {
  assert.equal(await page.locator('#notices').innerHTML(), '<p class="notice bad">This page could not be shown: the page and its figures are of different versions</p>');
  assert.equal(await page.locator('html[data-ready]').count(), 0);
}));

// --- Pieces that are loaded when they are needed -----------------------------------------------------

test('a cache forgets a quarter, those not asked for the longest', () => openPacked(small(), {}, async (page) => {
  const seen = await page.evaluate(async () => {
    const loads = [];
    let arrived = 0;
    const cache = new Cache(8, async (key) => {
      loads.push(key);
      return { key };
    }, () => { ++arrived; });
    const first = cache.peek(1);
    const same = cache.get(1) === cache.get(1);
    const item = await cache.get(1);
    for (let key = 2; key <= 8; ++key) await cache.get(key);
    const full = cache.items.size;
    cache.peek(1);  // 2 is the oldest now
    await cache.get(3);
    await cache.get(9);
    const quiet = new Cache(1, async (key) => ({ key }));
    await quiet.get(5);
    await quiet.get(6);
    return { first, same, item, full, loads, arrived, left: [...cache.items.keys()], peeked: cache.peek(1).key, pending: cache.pending.size, quiet: [...quiet.items.keys()] };
  });
  assert.deepEqual(seen, { first: undefined, same: true, item: { key: 1, used: 12 }, full: 8, loads: [1, 2, 3, 4, 5, 6, 7, 8, 9], arrived: 9, left: [1, 3, 5, 6, 7, 8, 9], peeked: 1, pending: 0, quiet: [6] });
}));

test('a drawing follows what arrives', () => openPacked(small(), {}, async (page) => {
  const redrawn = await page.evaluate(async () => {
    const { series, timeline } = report;
    let count = 0;
    timeline.stage.redraw = () => { ++count; };
    series.cache.items.clear();
    await series.cache.get(series.key(0, 3, 0));
    return count;
  });
  assert.equal(redrawn, 1);
}));

test('pieces are where the index says', () => openPacked(small(), {}, async (page) => {
  const found = await page.evaluate(async () => {
    const { series, series: { store } } = report;
    const frame = await series.cache.get(series.key(0, 5, 0));
    const stacks = await series.cache.get(series.key(0, 5, 2));
    return {
      levels: series.levels, chunks: series.chunks, top: series.top, loads: series.loads, kept: [...series.kept.keys()].sort((a, b) => a - b),
      keys: [series.key(2, 0, 0), series.key(1, 1, 2), series.key(0, 7, 1)],
      offsets: [store.offsets[0], store.offsets[3], store.offsets[4]], lengths: [...store.index.lengths.slice(0, 4)],
      frame: { count: frame.count, time: [...frame.time], moment: [...frame.moment], low: [...frame.low], reserved: [...frame.reserved] },
      stacks: { groups: stacks.groups, values: [...stacks.values], total: [...stacks.total] },
    };
  });
  const { bins } = small();
  const tile = bins.slice(40, 48);
  assert.deepEqual(found, {
    levels: [{ bins: 64, first: 9, binEvents: 2 }, { bins: 16, first: 3, binEvents: 8 }, { bins: 4, first: 0, binEvents: 32 }],
    chunks: 33, top: 2, loads: 1, kept: [0, 1], keys: [0, 8, 31],
    offsets: [0, 0, found.lengths[3]], lengths: found.lengths,
    frame: { count: 8, time: tile.map((b) => b.time), moment: tile.map((b) => b.moment), low: tile.map((b) => b.low), reserved: tile.map((b) => b.reserved) },
    stacks: { groups: 2, values: tile.flatMap((b) => b.stacks[1]), total: tile.map((b) => b.stacks[1][0] + b.stacks[1][1]) },
  });
}));

// --- Time and events ---------------------------------------------------------------------------------

test('times and events are found from each other', () => openPacked(small(), {}, async (page) => {
  const found = await page.evaluate(() => ({
    times: Array.from({ length: 128 }, (_, event) => report.series.timeAt(event)),
    after: [report.series.timeAt(128), report.series.timeAt(500), report.series.timeAt(16.5)],
    events: [-1, 0, 500, 1000, 63000, 64000, 67000, 70000, 252000, 252999, 253000, 1e9].map((time) => report.series.eventAt(time)),
    coarse: [20000, 100000].map((time) => report.series.eventAt(time, 1e9)),
    middle: [20000, 100000].map((time) => report.series.eventAt(time, 30000)),
  }));
  const end = timeOf(events - 1);
  // Between two bins, of two events each, time passes evenly; the last bin ends with the recording.
  const exact = (event) => (event < 126 ? (event % 2 ? (timeOf(event - 1) + timeOf(event + 1)) / 2 : timeOf(event)) : timeOf(126) + ((end - timeOf(126)) * (event - 126)) / 2);
  assert.deepEqual(found.times, Array.from({ length: events }, (_, event) => exact(event)));
  assert.deepEqual(found.after, [end, end, 16500]);
  assert.deepEqual(found.events, [0, 0, 0.5, 1, 63, 64, 65, 66, 126 + (2 * (252000 - timeOf(126))) / (end - timeOf(126)), 126 + (2 * (252999 - timeOf(126))) / (end - timeOf(126)), 128, 128]);
  assert.deepEqual(found.coarse, [20, 64 + (32 * (100000 - 64000)) / (timeOf(96) - 64000)]);
  assert.deepEqual(found.middle, [20, 76]);
}));

test('without the finer levels times are as good as the coarser ones', () => openPacked(small(), {}, async (page) => {
  const found = await page.evaluate(() => {
    const { series } = report;
    series.cache.peek = () => undefined;  // nothing arrives
    return {
      event: series.eventAt(30500), events: [series.eventAt(100), series.eventAt(127000)], time: [series.timeAt(16), series.timeAt(80)],
      highest: series.highest(0, 2, 0), none: series.highest(0, 2, 1), noTime: (() => {
        series.kept.clear();
        return [series.timeAt(16), series.eventAt(30500), series.highest(0, 2, 0)];
      })(),
    };
  });
  assert.deepEqual([found.event, found.events, found.time], [30.5, [0.1, 64 + (32 * (127000 - 64000)) / (timeOf(96) - 64000)], [16000, 64000 + (timeOf(96) - 64000) / 2]]);
  assert.deepEqual([found.highest.level, found.none], [2, null]);
  assert.deepEqual(found.noTime, [0, 0.5, null]);
}));

test('single events have a place of their own', () => {
  const { bins } = small();
  const each = bins.slice(0, 4).map((bin, i) => ({ ...bin, moment: i, time: [0, 10, 10, 70][i] }));
  return openPacked(small({ shift: 0, bins: each, levels: 1, events: 4, duration: 100, ooms: [], oomCount: 0, peak: { event: 2, live: 1, inUse: 1, rounded: 1 } }), {}, async (page) => {
    const found = await page.evaluate(() => [5, 10, 20, 69, 70, 99].map((time) => report.series.eventAt(time)));
    assert.deepEqual(found, [0.5, 2.5, 2.5, 2.5, 3.5, 3.5]);
  });
});

test('the highest moment of any stretch is found', () => openPacked(small(), {}, async (page) => {
  const { bins } = small();
  const total = (bin) => bin.stacks[0].reduce((sum, value) => sum + value, 0);
  const stretches = [[0, 2], [0, 3], [5, 6], [6, 6], [7, 20], [90, 128], [0, 128], [127, 200], [200, 300], [32, 64]];
  const found = await page.evaluate((all) => all.map(([from, to]) => {
    const { stacks, ...best } = report.series.highest(from, to, 0);
    return { ...best, values: [...stacks.values.slice(best.at * stacks.groups, (best.at + 1) * stacks.groups)] };
  }), stretches);
  const levelBins = [0, 1, 2].map((level) => {
    const width = 4 ** level;
    return Array.from({ length: 64 / width }, (_, i) => {
      const part = bins.slice(i * width, (i + 1) * width);
      const best = part.reduce((a, b) => (total(b) > total(a) ? b : a));
      return { total: total(best), moment: best.moment, values: best.stacks[0], low: Math.min(...part.map((b) => b.low)), reserved: Math.max(...part.map((b) => b.reserved)) };
    });
  });
  assert.deepEqual(found, stretches.map(([from, to]) => {
    const level = Math.min(2, Math.floor(Math.log2(Math.max(1, (to - from) / 2)) / 2));
    const all = levelBins[level];
    const width = 2 * 4 ** level;
    const first = Math.min(all.length - 1, Math.floor(from / width));
    const last = Math.min(all.length - 1, Math.max(first, Math.ceil(to / width) - 1));
    let at = first;
    for (let i = first; i <= last; ++i) if (all[i].total > all[at].total) at = i;
    const part = all.slice(first, last + 1);
    return { at: at % 8, total: all[at].total, low: Math.min(...part.map((b) => b.low)), reserved: Math.max(...part.map((b) => b.reserved)), moment: all[at].moment, level, values: all[at].values };
  }));
  const least = await page.evaluate(() => [0, 1, 2].map((level) => report.series.highest(4, 6, 0, level).level));
  assert.deepEqual(least, [0, 1, 2]);
}));

// --- Blocks ------------------------------------------------------------------------------------------

const shown = ({ address, size, rounded, start, end, tag, stream, site, pool, groups }) => ({ address, size, rounded, start, end, tag, stream, site, pool, groups });
const liveAt = (event, list) => list.filter(({ start, end }) => start <= event && event < end).sort((a, b) => a.address - b.address);

test('every moment has its blocks', () => openPacked(small(), {}, async (page) => {
  const { blocks, spans } = small();
  const found = await page.evaluate(async (count) => {
    const out = [];
    for (let event = 0; event < count; ++event) out.push(await report.blockIndex.at(event));
    return out;
  }, events);
  found.forEach((state, event) => {
    assert.deepEqual([state.event, state.small], [event, event]);
    assert.deepEqual(state.blocks, liveAt(event, blocks).map(shown), `blocks at ${event}`);
    assert.deepEqual(state.spans.map(({ address, size }) => ({ address, size })), liveAt(event, spans).map(({ address, size }) => ({ address, size })), `spans at ${event}`);
  });
}));

test('small blocks are those of the key moment before', () => openPacked(small({ smallBelow: 2048, keyMoments: [5, 64, 100] }), {}, async (page) => {
  const { blocks } = small();
  const found = await page.evaluate(async () => Promise.all([0, 5, 63, 64, 99, 127].map((event) => report.blockIndex.at(event))));
  const small_ = [5, 5, 5, 64, 64, 100];
  assert.deepEqual(found.map((state) => state.small), small_);
  found.forEach((state, i) => {
    const wanted = [...liveAt(state.event, blocks.filter((b) => b.size >= 2048)), ...liveAt(small_[i], blocks.filter((b) => b.size < 2048))];
    assert.deepEqual(state.blocks, wanted.sort((a, b) => a.address - b.address).map(shown));
  });
}));

test('addresses may be in the upper half of 64 bits', () => {
  const high = 0xffffff0000000000n;
  const blocks = [{ start: 0, end: 128, address: high, size: 512, rounded: 512, tag: 1, stream: 0, site: 3, groups: [0, 0] }];
  return openPacked(small({ blocks, spans: [], regions: [{ address: high, size: 2 * MiB }] }), {}, async (page) => {
    assert.equal(await page.evaluate(async () => (await report.blockIndex.at(5)).blocks[0].address), Number(high));
  });
});

// --- What fragments ------------------------------------------------------------------------------------

// Page by page, or reservation by reservation: slowly, and without any cleverness.
function expectedPieces(blocks, units) {
  return units.map(({ address, size }) => {
    const touching = blocks.map((b) => ({ b, bytes: Math.min(b.address + b.rounded, address + size) - Math.max(b.address, address) })).filter(({ bytes }) => bytes > 0);
    const used = touching.reduce((sum, { bytes }) => sum + bytes, 0);
    const pin = touching.length ? touching.reduce((a, c) => (c.b.rounded < a.b.rounded ? c : a)).b : null;
    return { address, size, used, count: touching.length, pin: pin && pin.name, free: Math.max(0, size - used) };
  });
}

test('what is pinned, and by whom', () => openPacked(small(), {}, async (page) => {
  const unit = 100;
  const states = [
    { blocks: [[0, 100], [100, 30], [150, 30], [190, 20], [350, 230]], spans: [[0, 300], [300, 300], [700, 200]] },
    { blocks: [[99, 2], [200, 1], [399, 1]], spans: [[0, 200], [200, 100], [350, 50]] },
    { blocks: [], spans: [[0, 100]] },
    { blocks: [[10, 20], [310, 20]], spans: [] },
    { blocks: [[0, 600]], spans: [[0, 200], [200, 200], [400, 200], [600, 200]] },
  ].map(({ blocks, spans }) => ({
    blocks: blocks.map(([address, rounded], i) => ({ name: `b${i}`, address, rounded, size: rounded - (rounded > 25 ? 5 : 0), groups: [i % 2, 0] })),
    spans: spans.map(([address, size]) => ({ address, size })),
  }));
  const found = await page.evaluate(([all, size]) => all.map((state) => [size, 0].map((unitBytes) => {
    const result = analyse(state, unitBytes);
    return { ...result, pieces: result.pieces.map((piece) => ({ ...piece, pin: piece.pin.name })), pinners: pinnersBy(result.pieces, 0).map(({ group, free, pieces, blocks }) => ({ group, free, pieces, blocks: blocks.size })) };
  })), [states, unit]);
  states.forEach(({ blocks, spans }, i) => {
    [unit, 0].forEach((bytes, j) => {
      const end = Math.max(0, ...blocks.map((b) => b.address + b.rounded));
      const units = bytes ? Array.from({ length: Math.ceil(end / unit) }, (_, n) => ({ address: n * unit, size: unit })) : spans;
      const all = expectedPieces(blocks, units);
      const pieces = all.filter((piece) => piece.pin && piece.free > 0).sort((a, b) => b.free - a.free);
      const sum = (list, name) => list.reduce((total, each) => total + each[name], 0);
      const [asked, rounded, reserved, pinned] = [sum(blocks, 'size'), sum(blocks, 'rounded'), sum(spans, 'size'), sum(pieces, 'free')];
      const touched = bytes ? all.filter((piece) => piece.pin).length * unit : sum(all.filter((piece) => piece.pin), 'size');
      const groups = [...new Set(pieces.map(({ pin }) => blocks.find((b) => b.name === pin).groups[0]))].map((group) => {
        const mine = pieces.filter(({ pin }) => blocks.find((b) => b.name === pin).groups[0] === group);
        return { group, free: sum(mine, 'free'), pieces: mine.length, blocks: new Set(mine.map(({ pin }) => pin)).size };
      }).sort((a, b) => b.free - a.free);
      const { holes, ...result } = found[i][j];
      assert.deepEqual(result, { asked, rounding: rounded - asked, reserved, pinned: reserved ? Math.min(pinned, Math.max(0, reserved - rounded)) : pinned, whole: Math.max(0, reserved - touched), pieces, pinners: groups }, `state ${i}, ${bytes || 'reservations'}`);
    });
  });
  assert.deepEqual(found.map(([{ holes }]) => holes), [{ count: 5, longest: 200 }, { count: 4, longest: 99 }, { count: 1, longest: 100 }, { count: 0, longest: 0 }, { count: 1, longest: 200 }]);
}));

// --- Words -------------------------------------------------------------------------------------------

test('numbers become words', () => openPacked(small(), {}, async (page) => {
  const said = await page.evaluate(() => ({
    sizes: [0, 1, 1023, 1024, 1536, 10 * 1024, 10.26 * 1024, 99.95 * 1024, 100 * 1024, 102.4 * 1024, 1024 * 1024 - 1, 2 ** 20, 1.25 * 2 ** 30, 2 ** 40, 2 ** 50, 2 ** 60, 2 ** 70, -2048].map(sizeText),
    counts: [0, 999, 1000, 1234567].map(countText),
    addresses: [0, 255, 0x7f4000200000].map(addressText),
    percents: [[1, 3], [0, 5], [5, 0], [5, 5]].map(([part, whole]) => percentText(part, whole)),
    times: [0, 1, 999, 1000, 1500, 999999, 1e6, 1e9, 61.5e9, -2500].map((time) => timeText(time)),
    stepped: [[1e9, 1e9], [1e9, 1e8], [1.5e9, 1e6], [5e4, 5e4], [1e5, 5e4], [151000, 1000], [12, 5], [2e9, 1], [0, 1000], [1e6, 0]].map(([time, step]) => timeText(time, step)),
  }));
  assert.deepEqual(said, {
    sizes: ['0 B', '1 B', '1023 B', '1 KiB', '1.5 KiB', '10 KiB', '10.3 KiB', '100 KiB', '100 KiB', '102 KiB', '1024 KiB', '1 MiB', '1.25 GiB', '1 TiB', '1 PiB', '1 EiB', '1024 EiB', '-2 KiB'],
    counts: ['0', '999', '1,000', '1,234,567'],
    addresses: ['0x0', '0xff', '0x7f4000200000'],
    percents: ['33.3 %', '0.0 %', '-', '100.0 %'],
    times: ['0 ns', '1 ns', '999 ns', '1.00 µs', '1.50 µs', '1000.00 µs', '1.00 ms', '1.00 s', '61.50 s', '-2.50 µs'],
    stepped: ['1.0 s', '1.00 s', '1.5000 s', '50 µs', '100 µs', '151.0 µs', '12 ns', '2.000000000 s', '0 ns', '1.0000000 ms'],
  });
}));

test('colours are mixed as they should be', () => openPacked(small(), {}, async (page) => {
  const mixed = await page.evaluate(() => ({
    channels: channels('#123456'),
    pixels: [pixelOf('#123456'), pixelOf('#ff0000', '#0000ff', 0.25), pixelOf('#000000', '#ffffff', 0.5)].map((pixel) => pixel.toString(16)),
    mixed: [mixPixels(0xff563412, 0xff000000, 0.5), mixPixels(0xffffffff, 0xff000000, 0.25), mixPixels(0xff102030, 0xff405060, 1)].map((pixel) => pixel.toString(16)),
    steps: [[100, 10, 10], [101, 10, 10], [70, 2, 10], [0.3, 3, 10], [96, 6, 2], [100, 6, 2], [64, 0.5, 2], [1000, 1, 10], [11, 1, 10], [21, 1, 10], [51, 1, 10]].map(([range, count, by]) => roundStep(range, count, by)),
    css: [theme.css('ground'), theme.css('ink')],
  }));
  assert.deepEqual(mixed, {
    channels: [0x12, 0x34, 0x56],
    pixels: ['ff563412', 'ffbf0040', 'ff808080'],
    mixed: ['ff2b1a09', 'ff404040', 'ff102030'],
    steps: [10, 20, 50, 0.1, 16, 32, 64, 1000, 20, 50, 100],
    css: ['#ffffff', '#1b1f26'],
  });
}));
