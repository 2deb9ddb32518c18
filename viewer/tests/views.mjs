// SPDX-License-Identifier: Apache-2.0
// The views: what is seen of the timeline and the arena, and how gestures, keys and buttons move them.
import assert from 'node:assert/strict';
import { settle, test, text, until } from './harness.mjs';
import { openPacked, tiny } from './inside.mjs';
import { small } from './small.mjs';

const MiB = 2 ** 20;
const base = 0x7f4000000000;
const { bins } = small();

// --- The timeline --------------------------------------------------------------------------------------

test('the view of the timeline stays inside the recording', () => openPacked(small(), {}, async (page) => {
  const seen = await page.evaluate(() => {
    const { timeline } = report;
    const view = () => [timeline.from, timeline.to].map((place) => Math.round(place * 1e6) / 1e6);
    const from = (...start) => (move) => {
      timeline.set(...start);
      move();
      return view();
    };
    const at = from(10000, 20000);
    return {
      first: view(), domain: timeline.domain(),
      set: [[10000, 20000], [-5000, 5000], [250000, 260000], [100, 200], [50000, 50100], [0, 1e9]].map((range) => from(...range)(() => {})),
      pan: [0.5, -0.5, -10, 100, 0].map((share) => at(() => timeline.pan(share))),
      zoom: [[0.5], [0.5, 0], [2, 1], [1000], [0.001, 0.25]].map((given) => at(() => timeline.zoom(...given))),
      centre: [100000, 0, 1e9].map((place) => at(() => timeline.centre(place))),
      all: at(() => timeline.all()),
    };
  });
  assert.deepEqual(seen, {
    first: [0, 253000], domain: 253000,
    set: [[10000, 20000], [0, 10000], [243000, 253000], [0, 1000], [49550, 50550], [0, 253000]],
    pan: [[15000, 25000], [5000, 15000], [0, 10000], [243000, 253000], [10000, 20000]],
    zoom: [[12500, 17500], [10000, 15000], [0, 20000], [0, 253000], [12002.5, 13002.5]],
    centre: [[95000, 105000], [0, 10000], [243000, 253000]],
    all: [0, 253000],
  });
}));

test('the axis changes and the view stays where it was', () => openPacked(small(), {}, async (page) => {
  const seen = await page.evaluate(async () => {
    const { timeline } = report;
    const out = [];
    let whole = 0;
    const { redraw } = timeline.whole;
    timeline.whole.redraw = () => { ++whole; };
    const note = () => out.push([timeline.axis, timeline.from, timeline.to, timeline.domain()]);
    timeline.set(32000, 127000);
    timeline.setAxis('events');
    note();
    const places = [timeline.eventAt(17.5), timeline.placeOf(17)];
    timeline.set(0, 4);
    note();
    timeline.setAxis('time');
    note();
    timeline.whole.redraw = redraw;
    return { out, places, times: [timeline.eventAt(67000), timeline.placeOf(65)], whole };
  });
  assert.deepEqual(seen.out, [['events', 32, 85, 128], ['events', 0, 16, 128], ['time', 0, 16000, 253000]]);
  assert.deepEqual([seen.places, seen.times], [[17.5, 17], [65, 67000]]);
  assert.equal(seen.whole, 6);  // two for each change of the axis, one for each of the view
}));

test('a recording of one moment is shown by events', () => openPacked(small({ duration: 0, events: 4, shift: 0, levels: 1, bins: bins.slice(0, 4), ooms: [], oomCount: 0, policies: [], markers: [], peak: { event: 1, live: MiB, inUse: MiB, rounded: MiB } }), {}, async (page) => {
  assert.deepEqual(await page.evaluate(() => [report.timeline.axis, report.timeline.from, report.timeline.to]), ['events', 0, 4]);
  assert.equal(await page.locator('#axes [aria-pressed=true]').innerText(), 'Events');
  assert.equal(await text(page, '#resolution'), '4 of 4 events in view. Every event is drawn.');
}));

test('the first grouping that divides anything is shown', async () => {
  const one = { name: 'pool', labels: ['all'] };
  const [tags, streams] = small().groupings;
  const all = bins.map((bin) => ({ ...bin, stacks: [[bin.stacks[0].reduce((sum, size) => sum + size, 0)], ...bin.stacks] }));
  await openPacked(small({ groupings: [one, tags, streams], bins: all, blocks: [] }), {}, async (page) => {
    assert.equal(await page.evaluate(() => report.timeline.grouping), 1);
    assert.equal(await page.locator('#groupings [aria-pressed=true]').innerText(), 'Tag');
  });
  await openPacked(small({ groupings: [one], bins: all, blocks: [] }), {}, async (page) => assert.equal(await page.evaluate(() => report.timeline.grouping), 0));
});

test('a place on the chart has a moment', () => openPacked(small(), { style: tiny }, async (page) => {
  const moments = await page.evaluate(async () => {
    report.timeline.setAxis('events');
    await see.settled();
    const at = (x) => report.timeline.momentAt(x);
    const out = [at(-5), at(0), at(10.9), at(63.5), at(99)];
    report.timeline.columns = [];
    return [...out, at(3)];
  });
  assert.deepEqual(moments, [bins[0].moment, bins[0].moment, bins[10].moment, bins[63].moment, bins[63].moment, 123]);
}));

test('another grouping is loaded, drawn and named', () => openPacked(small(), { style: tiny }, async (page) => {
  const before = await page.evaluate(() => [report.series.loads, [...report.series.kept.keys()]]);
  assert.deepEqual(before, [1, [0, 1]]);
  await page.locator('#groupings button').last().click();
  await page.evaluate(() => see.settled());
  assert.deepEqual(await page.evaluate(() => [report.series.loads, [...report.series.kept.keys()]]), [2, [0, 1, 2]]);
  assert.deepEqual((await text(page, '#legend')).split('\n').filter(Boolean).slice(0, 2), ['stream 0', 'stream 7']);
  assert.equal(await page.locator('#legend').getAttribute('aria-label'), 'Colours by stream');
  assert.equal((await text(page, '#pinners')).split('\t')[0], 'By stream');
}));

test('words are said once', () => openPacked(small(), {}, async (page) => {
  const changes = await page.evaluate(async () => {
    let count = 0;
    new MutationObserver((all) => { count += all.length; }).observe(byId('resolution'), { childList: true });
    report.timeline.redraw();
    await see.frames();
    const same = count;
    report.timeline.zoom(0.5);
    await see.frames();
    return [same, count, byId('resolution').textContent];
  });
  assert.deepEqual(changes, [0, 1, '43 of 128 events in view. A step is 2 events and shows its highest moment; thin colours were only there part of the time.']);
}));

test('the strip is painted again when it must be', () => openPacked(small(), { style: tiny }, async (page) => {
  const painted = await page.evaluate(async () => {
    const { timeline } = report;
    let count = 0;
    const { paint } = Timeline.prototype;
    timeline.paint = function (stage, ...rest) {
      if (stage === timeline.whole) ++count;
      paint.call(this, stage, ...rest);
    };
    const after = async (change) => {
      const before = count;
      change();
      await see.settled();
      return count - before;
    };
    return [await after(() => timeline.zoom(0.5)), await after(() => timeline.setAxis('events')), await after(() => report.setGrouping(1)),
      await after(() => report.flip()), await after(() => { byId('whole').style.width = '50px'; })];
  });
  assert.deepEqual(painted.map((count) => (count ? 'yes' : 'no')), ['no', 'yes', 'yes', 'yes', 'yes']);
}));

// --- The arena -------------------------------------------------------------------------------------------

test('addresses and places on the map are found from each other', () => openPacked(small(), { style: tiny }, async (page) => {
  const seen = await page.evaluate((start) => {
    const { arena } = report;
    const M = 2 ** 20;
    return {
      total: arena.total / M, rows: arena.rows(), perRow: arena.perRow() / M, fitted: arena.fitted,
      positions: [0, 1, 5.5, 6, 30, 64, 65, 68, 99].map((at) => arena.position(start + at * M) / M), below: arena.position(5),
      addresses: [0, 5.5, 6, 7, 9.5].map((at) => (arena.addressAt(at * M) - start) / M), before: arena.addressAt(-5) - start,
      points: [[0, 0], [32, 0], [0, 16], [63, 63], [-5, 31], [200, 0]].map(([x, y]) => arena.positionAt({ x, y }) / M),
    };
  }, base);
  assert.deepEqual(seen, {
    total: 10, rows: 4, perRow: 2.5, fitted: true,
    positions: [0, 1, 5.5, 6, 6, 6, 7, 10, 10], below: 0,
    addresses: [0, 5.5, 64, 65, 67.5], before: -5,
    points: [0, 1.25, 2.5, 7.5 + 2.5 * (63 / 64), 2.5, 2.5 * 0.9999],
  });
}));

test('the arena zooms and scrolls inside what there is', () => openPacked(small(), { style: tiny }, async (page) => {
  const seen = await page.evaluate((start) => {
    const { arena } = report;
    const M = 2 ** 20;
    const view = () => [arena.from / M, arena.perRow() / M, arena.fitted];
    const after = (move) => {
      move();
      return view();
    };
    const at = { x: 0, y: 20 };
    return [
      after(() => arena.zoom(0.5, at)),        // what was under the second row's begin stays there
      after(() => arena.zoom(0.5)),            // and what was in the middle
      after(() => arena.scroll(1)), after(() => arena.scroll(-1)), after(() => arena.scroll(-1000)), after(() => arena.scroll(1000)),
      after(() => arena.zoom(2, at)), after(() => arena.zoom(1e-9, at)), after(() => arena.zoom(1e12, at)), after(() => arena.scroll(3)),
      after(() => arena.reveal(start + 64 * M, M)), after(() => arena.reveal(start, 100)), after(() => arena.reveal(start + 65 * M, 8 * M)),
    ];
  }, base);
  const page4 = 4096 / MiB;
  assert.deepEqual(seen, [
    [1.25, 1.25, false], [1.25 + 2 * 1.25 + 0.5 * 1.25 - 2.5 * 0.625, 0.625, false],
    [2.8125 + 0.625, 0.625, false], [2.8125, 0.625, false], [0, 0.625, false], [7.5, 0.625, false],
    [10 - 4 * 1.25, 1.25, false], [5 + 1.25 - page4, page4, false], [0, 2.5, true], [0, 2.5, true],
    [0, 2.5, true], [0, 2.5, true], [0, 2.5, true],
  ]);
}));

test('a range is brought into view and marked', () => openPacked(small(), { style: '#timeline { width: 66px; height: 108px; } #arena { width: 66px; height: 162px; }' }, async (page) => {
  const seen = await page.evaluate((start) => {
    const { arena } = report;
    const M = 2 ** 20;
    arena.index.pageBytes = 2 ** 16;
    return [[2, M / 4], [65, M / 16], [0, 10], [5, 8 * M]].map(([at, size]) => {
      arena.reveal(start + at * M, size);
      return [arena.from / M, arena.perRow() / M, arena.fitted, (arena.chosen.address - start) / M, arena.chosen.size];
    });
  }, base);
  assert.deepEqual(seen, [
    [2 - 5 * 0.5, 0.5, false, 2, MiB / 4].map((value, i) => (i === 0 ? 0 : value)), [7 - 5 * 0.125, 0.125, false, 65, MiB / 16],
    [0, 0.125, false, 0, 10], [0, 1, true, 5, 8 * MiB],
  ]);
}));

test('the block at a place is found', () => openPacked(small(), { style: tiny }, async (page) => {
  const seen = await page.evaluate(async (start) => {
    const { arena } = report;
    const M = 2 ** 20;
    await report.look(65);
    const at = (offset) => {
      const block = arena.findAt(offset);
      return block && (block.address - start) / M;
    };
    const out = [0, M, 2 * M - 1, 2 * M, 2 * M + 1023, 2 * M + 1024, 2.5 * M, 2.75 * M, 3.5 * M, 4.5 * M + 511, 4.5 * M + 512, 7 * M, 8 * M].map(at);
    // A small block of an earlier moment under a large one, and too many to look behind.
    const block = (address, rounded) => ({ address, rounded, groups: [0, 0] });
    arena.show({ blocks: [block(start, M), block(start + 10, 5)], spans: [] }, []);
    const under = [at(12), at(20)];
    arena.show({ blocks: [block(start, M), ...Array.from({ length: 64 }, (_, i) => block(start + 10 + i, 1))], spans: [] }, []);
    const many = [at(2000)];
    arena.show({ blocks: [block(start, M), ...Array.from({ length: 63 }, (_, i) => block(start + 10 + i, 1))], spans: [] }, []);
    many.push(at(2000));
    arena.state = null;
    const nothing = [at(0)];
    arena.choose(block(start, 5));
    const chosen = [arena.chosen];
    arena.choose(null);
    return { out, under, many, nothing, chosen: [...chosen, arena.chosen] };
  }, base);
  assert.deepEqual(seen, {
    out: [0, 0, 0, 2, 2, null, 2.5, null, 3.5, 3.5, null, 65, null], under: [10 / MiB, 0], many: [null, 0], nothing: [null],
    chosen: [{ address: base, size: 5 }, null],
  });
}));

test('a click chooses a block, and a row of the table what it names', () => openPacked(small(), { style: tiny }, async (page) => {
  await page.locator('#arena').scrollIntoViewIfNeeded();
  const box = await page.locator('#arena').boundingBox();
  await page.mouse.click(box.x + 1 + 10, box.y + 1 + 4);
  assert.deepEqual(await page.evaluate(() => report.arena.chosen), { address: base, size: 2 * MiB });
  await page.mouse.click(box.x + 1 + 40, box.y + 1 + 40);
  assert.equal(await page.evaluate(() => report.arena.chosen), null);
  const row = page.locator('#pages tbody tr').first();
  await row.click();
  assert.deepEqual(await page.evaluate(() => report.arena.chosen), { address: base + 2 * MiB, size: 2 * MiB });
  await page.evaluate(() => report.arena.choose(null));
  await row.focus();
  await page.keyboard.press('a');
  assert.equal(await page.evaluate(() => report.arena.chosen), null);
  await page.keyboard.press('Enter');
  assert.deepEqual(await page.evaluate(() => report.arena.chosen), { address: base + 2 * MiB, size: 2 * MiB });
}));

// --- Stages and gestures -----------------------------------------------------------------------------------

test('canvases follow their boxes', () => openPacked(small(), { scale: 3, style: tiny }, async (page) => {
  const seen = await page.evaluate(async () => {
    const { stage } = report.timeline;
    const size = () => [stage.sizes, stage.width, stage.height, stage.scale, stage.below.width, stage.above.height, stage.image.width, stage.pixels.length];
    const out = [size()];
    let draws = 0;
    const { draw } = stage;
    stage.draw = (of) => {
      if (of !== stage) throw new Error('drawn of something else');
      ++draws;
      draw(of);
    };
    stage.redraw();
    stage.redraw();  // once is enough
    out.push(draws, stage.queued);
    await see.frames();
    out.push(draws, stage.queued);
    performance.clearMarks('weir:timeline');
    byId('timeline').style.width = '42px';
    await see.frames();
    out.push(draws, size(), performance.getEntriesByName('weir:timeline').length);
    byId('timeline').style.display = 'none';
    await see.frames();
    out.push(size());
    stage.redraw();
    await see.frames();
    return out;
  });
  assert.deepEqual(seen, [[1, 64, 124, 2, 128, 248, 128, 128 * 248], 0, true, 1, false, 2, [2, 40, 124, 2, 80, 248, 80, 80 * 248], 1, [3, 1, 1, 2, 2, 2, 2, 4]]);
}));

test('gestures are told apart', () => openPacked(small(), {}, async (page) => {
  const seen = await page.evaluate(() => {
    const made = (handlers) => {
      const box = make('div', { style: { position: 'fixed', left: '100px', top: '50px', width: '200px', height: '100px', border: '3px solid' } });
      document.body.append(box);
      box.setPointerCapture = (id) => log.push(`capture ${id}`);
      gestures(box, handlers);
      return box;
    };
    const log = [];
    const short = (value) => Math.round(value * 1000) / 1000;
    const place = ({ x, y }) => `${short(x)},${short(y)}`;
    const box = made({
      drag: (dx, dy, at) => log.push(`drag ${dx} ${dy} at ${place(at)}`), zoom: (factor, at) => log.push(`zoom ${short(factor)} at ${place(at)}`),
      click: (at) => log.push(`click ${place(at)}`), hover: (at, event) => log.push(`hover ${place(at)} ${event.type}`), leave: () => log.push('leave'),
    });
    const pointer = (to) => (type, x, y, more = {}) => to.dispatchEvent(new PointerEvent(`pointer${type}`, { pointerId: 1, clientX: x, clientY: y, button: 0, ...more }));
    const send = pointer(box);
    const wheel = (to) => (x, y, more = {}) => !to.dispatchEvent(new WheelEvent('wheel', { deltaX: x, deltaY: y, clientX: 203, clientY: 103, cancelable: true, ...more }));
    const turn = wheel(box);
    const take = (...what) => {
      for (const each of what) each();
      return log.splice(0);
    };
    const second = { pointerId: 2 };
    const out = {
      hover: take(() => send('move', 110, 60)),
      click: take(() => send('down', 110, 60), () => send('move', 112, 62), () => send('up', 112, 62)),
      drag: take(() => send('down', 110, 60), () => send('move', 112, 63), () => send('move', 115, 63), () => send('up', 115, 63)),
      dragThenClick: take(() => send('down', 110, 60), () => send('up', 110, 60)),
      otherButton: take(() => send('down', 110, 60, { button: 2 }), () => send('up', 110, 60, { button: 2 })),
      cancelled: take(() => send('down', 110, 60), () => send('cancel', 110, 60), () => send('move', 130, 60)),
      pinch: take(() => send('down', 103, 53), () => send('down', 133, 93, second), () => send('move', 163, 133, second), () => send('up', 103, 53), () => send('move', 164, 133, second), () => send('up', 163, 133, second)),
      wheel: take(() => log.push(turn(0, 100)), () => turn(0, -100), () => turn(0, 5000), () => turn(0, -5000), () => turn(0, 10, { deltaMode: 1 }), () => turn(0, 1, { deltaMode: 2 })),
      across: take(() => turn(30, 10), () => turn(-30, 0), () => turn(10, 10), () => turn(0, 20, { shiftKey: true }), () => turn(2, 0, { deltaMode: 1 }), () => turn(50, 0, { shiftKey: true })),
      leave: take(() => tip.show(5, 5, 'here'), () => send('leave', 0, 0), () => log.push(byId('tip').hidden)),
      hides: take(() => tip.show(5, 5, 'here'), () => send('down', 110, 60), () => log.push(byId('tip').hidden)),
    };
    const deaf = made({});
    const whisper = pointer(deaf);
    const turnDeaf = wheel(deaf);
    out.deaf = take(() => whisper('move', 110, 60), () => whisper('down', 110, 60), () => whisper('down', 140, 60, second), () => whisper('move', 150, 60, second), () => whisper('up', 150, 60, second),
      () => whisper('move', 190, 60), () => whisper('up', 190, 60), () => whisper('leave', 0, 0), () => turnDeaf(9, 0), () => turnDeaf(0, 9), () => whisper('down', 110, 60), () => whisper('up', 110, 60));
    return out;
  });
  const e = (power) => Math.round(Math.exp(power) * 1000) / 1000;
  assert.deepEqual(seen, {
    hover: ['hover 7,7 pointermove'],
    click: ['capture 1', 'click 9,9'],
    drag: ['capture 1', 'drag 2 3 at 9,10', 'drag 3 0 at 12,10'],
    dragThenClick: ['capture 1', 'click 7,7'],
    otherButton: [],
    cancelled: ['capture 1', 'hover 27,7 pointermove'],
    pinch: ['capture 1', 'capture 2', 'zoom 0.5 at 30,40', 'drag 1 0 at 61,80'],
    wheel: [`zoom ${e(0.2)} at 100,50`, true, `zoom ${e(-0.2)} at 100,50`, `zoom ${e(1)} at 100,50`, `zoom ${e(-1)} at 100,50`, `zoom ${e(0.32)} at 100,50`, `zoom ${e(0.8)} at 100,50`],
    across: ['drag -30 0 at 100,50', 'drag 30 0 at 100,50', `zoom ${e(0.02)} at 100,50`, 'drag -20 0 at 100,50', 'drag -32 0 at 100,50', 'zoom 1 at 100,50'],
    leave: ['leave', true],
    hides: ['capture 1', true],
    deaf: ['capture 1', 'capture 2', 'capture 1'],
  });
}));

test('the charts are moved by gestures', () => openPacked(small(), { style: tiny }, async (page) => {
  const seen = await page.evaluate(async () => {
    const { timeline, arena } = report;
    const pointer = (id, type, x, y) => {
      const box = byId(id);
      box.setPointerCapture = () => {};
      const { left, top } = box.getBoundingClientRect();
      box.dispatchEvent(new PointerEvent(`pointer${type}`, { pointerId: 1, button: 0, clientX: left + 1 + x, clientY: top + 1 + y }));
    };
    const wheel = (id, deltaY, x, y) => {
      const { left, top } = byId(id).getBoundingClientRect();
      byId(id).dispatchEvent(new WheelEvent('wheel', { deltaY, clientX: left + 1 + x, clientY: top + 1 + y }));
    };
    const drag = (id, [x, y], [toX, toY]) => {
      pointer(id, 'down', x, y);
      pointer(id, 'move', toX, toY);
      pointer(id, 'up', toX, toY);
    };
    const out = {};
    const view = () => [timeline.from, timeline.to].map(Math.round);
    timeline.setAxis('events');
    timeline.set(32, 96);
    drag('timeline', [40, 50], [24, 60]);
    out.drag = view();
    wheel('timeline', Math.log(0.5) / 0.002, 16, 5);
    out.zoom = view();
    timeline.all();
    await see.settled();
    const asked = [];
    const { look } = report;
    report.look = (event) => asked.push(event);
    pointer('timeline', 'down', 20, 5);
    pointer('timeline', 'up', 20, 5);
    report.look = look;
    out.look = asked;
    timeline.set(0, 32);
    pointer('whole', 'down', 8, 5);
    pointer('whole', 'up', 8, 5);
    out.jump = view();
    drag('whole', [8, 5], [24, 5]);
    out.follow = view();
    arena.zoom(0.25, { x: 0, y: 0 });
    drag('arena', [40, 40], [8, 8]);
    out.scroll = arena.from / arena.perRow();
    wheel('arena', Math.log(0.5) / 0.002, 0, 24);
    out.closer = [arena.from / 2 ** 20, arena.perRow() / 2 ** 20].map((value) => Math.round(value * 1e4) / 1e4);
    pointer('timeline', 'move', 20, 5);
    out.hover = [timeline.hover, byId('tip').hidden];
    pointer('timeline', 'leave', 20, 5);
    out.left = [timeline.hover, byId('tip').hidden];
    return out;
  });
  assert.deepEqual(seen, {
    drag: [48, 112], zoom: [56, 88], look: [bins[20].moment], jump: [16, 48], follow: [80, 112], scroll: 2.5,
    closer: [2.5 * 0.625 + 0.625 - 0.3125, 0.3125], hover: [{ x: 20, y: 5 }, false], left: [null, true],
  });
}));

test('the tip stays inside the window', () => openPacked(small(), {}, async (page) => {
  const seen = await page.evaluate(() => {
    const box = byId('tip');
    const at = (x, y, content) => {
      tip.show(x, y, content);
      return [box.style.left, box.style.top, box.offsetWidth, box.offsetHeight, box.hidden, box.textContent];
    };
    const out = { free: at(100, 200, 'some words'), right: at(innerWidth - 20, 200, 'some words'), below: at(100, innerHeight - 5, 'some words') };
    box.style.minWidth = `${innerWidth - 60}px`;
    out.wide = at(innerWidth / 2, 200, 'some words');
    box.style.minHeight = `${innerHeight}px`;
    out.high = at(100, 100, 'some words');
    box.style.minWidth = box.style.minHeight = '';
    const [, , width] = out.free;
    out.edge = [at(innerWidth - 16 - width - 1, 9, 'some words')[0], at(innerWidth - 16 - width, 9, 'some words')[0]];
    tip.hide();
    return { ...out, hidden: box.hidden, inner: [innerWidth, innerHeight], rows: tip.rows([['name', 'value'], ['other', 'words']]).outerHTML };
  });
  const [width, height] = seen.free.slice(2, 4);
  const [wide, high] = seen.inner;
  assert.deepEqual(seen.free, ['116px', '212px', width, height, false, 'some words']);
  assert.deepEqual(seen.right.slice(0, 2), [`${wide - 20 - 16 - width}px`, '212px']);
  assert.deepEqual(seen.below.slice(0, 2), ['116px', `${high - height - 4}px`]);
  assert.equal(seen.wide[0], '4px');
  assert.equal(seen.high[1], '4px');
  assert.deepEqual(seen.edge, [`${Math.min(wide - width - 1, wide - width - 4)}px`, `${wide - 16 - width - 16 - width}px`]);
  assert.equal(seen.hidden, true);
  assert.equal(seen.rows, '<table><tr><td>name</td><td>value</td></tr><tr><td>other</td><td>words</td></tr></table>');
}));

// --- Moments -------------------------------------------------------------------------------------------

const momentOf = async (page) => (await text(page, '#moment')).replace(/^after event /, '');

test('moments are gone through one by one', () => openPacked(small(), {}, async (page) => {
  const go = async (what) => {
    const before = await momentOf(page);
    await page.evaluate(what);
    await page.evaluate(() => see.settled());
    const now = await momentOf(page);
    return now === before ? 'stays' : now;
  };
  const forth = () => report.step(1);
  const back = () => report.step(-1);
  assert.equal(await momentOf(page), '93, at 151.0 µs (out of memory)');
  const said = (bin) => `${bins[bin].moment}, at ${(bins[bin].moment < 64 ? bins[bin].moment : 64 + 3 * (bins[bin].moment - 64)).toFixed(1)} µs`;
  assert.deepEqual([await go(forth), await go(back), await go(back)], [said(47), said(46) + (bins[46].moment === 93 ? ' (out of memory)' : ''), said(45)]);
  await go(() => report.look(1));
  assert.deepEqual([await go(back), await go(back)], [`${bins[0].moment}, at 1.0 µs`, 'stays'].map((each, i) => (i === 0 && bins[0].moment === 1 ? 'stays' : each)));
  await go(() => report.look(127));
  assert.equal(await go(forth), 'stays');
  assert.equal(await go(() => report.look(0)), '0, at 0 ns');
}));

test('moments worth a look follow each other', () => openPacked(small({ keyMoments: [40, 97] }), {}, async (page) => {
  const seen = await page.evaluate(async () => {
    const walk = async (by, count) => {
      const out = [];
      for (let i = 0; i < count; ++i) {
        report.next(by);
        await see.settled();
        out.push(report.moment);
      }
      return out;
    };
    const forth = await walk(1, 5);
    const back = await walk(-1, 9);
    report.timeline.setAxis('events');
    report.timeline.set(0, 20);
    const views = [];
    for (let i = 0; i < 3; ++i) {
      report.next(1);
      await see.settled();
      views.push([report.moment, report.timeline.from, report.timeline.to]);
    }
    for (let i = 0; i < 2; ++i) {
      report.next(-1);
      await see.settled();
      views.push([report.moment, report.timeline.from, report.timeline.to]);
    }
    return { forth, back, views };
  });
  assert.deepEqual(seen.forth, [96, 97, 101, 123, 123]);
  assert.deepEqual(seen.back, [101, 97, 96, 93, 40, 16, 0, 0, 0]);
  assert.deepEqual(seen.views, [[16, 0, 20], [40, 30, 50], [93, 83, 103], [40, 30, 50], [16, 6, 26]]);
}));

test('who is quicker is looked at', () => openPacked(small(), {}, async (page) => {
  const seen = await page.evaluate(async () => {
    const { blockIndex } = report;
    const { at } = BlockIndex.prototype;
    let release;
    blockIndex.at = (event) => (event === 5 ? new Promise((done) => { release = () => done(at.call(blockIndex, event)); }) : at.call(blockIndex, event));
    const slow = report.look(5);
    await report.look(60);
    release();
    await slow;
    return [report.moment, report.state.event, byId('moment').textContent];
  });
  assert.deepEqual(seen, [60, 60, 'after event 60, at 60.0 µs']);
}));

test('what is out of memory can be looked at', () => openPacked(small(), { height: 500 }, async (page) => {
  await page.locator('#ooms button').last().click();
  await until(page, () => document.querySelector('#moment').textContent.startsWith('after event 101'));
  await until(page, () => Math.abs(document.querySelector('#arena-title').getBoundingClientRect().top) < 40);
  await page.evaluate(() => scrollTo(0, 0));
  await page.locator('#to-peak').click();
  await until(page, () => document.querySelector('#moment').textContent === 'after event 123, at 241.0 µs (the peak)');
}));

test('without any failure the peak is looked at first', () => openPacked(small({ ooms: [], oomCount: 0 }), {}, async (page) => {
  assert.equal(await momentOf(page), '123, at 241.0 µs (the peak)');
  assert.equal(await page.locator('#oom-section').isVisible(), false);
}));

// --- Keys and buttons --------------------------------------------------------------------------------------

// Instead of what they do, notes what was asked for.
const noteCalls = (page) => page.evaluate(() => {
  globalThis.asked = [];
  const note = (object, name, ...names) => {
    for (const each of names) object[each] = (...given) => { asked.push([`${name}.${each}`, ...given].join(' ')); };
  };
  note(report, 'page', 'look', 'step', 'next', 'flip', 'fit', 'setGrouping', 'setAxis');
  note(report.timeline, 'timeline', 'pan', 'zoom', 'all');
  note(report.arena, 'arena', 'scroll', 'zoom');
  byId('keys').showModal = () => { asked.push('help'); };
});
const asked = (page) => page.evaluate(() => globalThis.asked.splice(0));
const press = async (page, ...keys) => {
  for (const key of keys) await page.keyboard.press(key);
  return asked(page);
};

test('every key does what the list says', () => openPacked(small(), {}, async (page) => {
  await noteCalls(page);
  const everywhere = ['+', '=', '-', '_', '0', 'Home', 'g', 'x', 'y', 'p', ',', '.', '[', ']', 't', '?'];
  assert.deepEqual(await press(page, 'ArrowLeft', 'ArrowRight', 'ArrowUp', 'ArrowDown', 'Enter', ...everywhere, 'q'), [
    'timeline.pan -0.15', 'timeline.pan 0.15', 'timeline.zoom 0.5', 'timeline.zoom 0.5', 'timeline.zoom 2', 'timeline.zoom 2', 'timeline.all', 'timeline.all',
    'page.setGrouping 1', 'page.setAxis events', 'page.fit', 'page.look 123', 'page.step -1', 'page.step 1', 'page.next -1', 'page.next 1', 'page.flip', 'help']);
  await page.evaluate(() => {
    report.timeline.grouping = 1;
    report.timeline.axis = 'events';
  });
  assert.deepEqual(await press(page, 'g', 'x'), ['page.setGrouping 0', 'page.setAxis time']);
  await page.locator('#timeline').focus();
  const middle = await page.evaluate(() => report.timeline.momentAt(report.timeline.stage.width / 2));
  assert.deepEqual(await press(page, 'Enter', 'ArrowUp'), [`page.look ${middle}`]);
  await page.locator('#arena').focus();
  assert.deepEqual(await press(page, 'ArrowLeft', 'ArrowRight', 'ArrowUp', 'ArrowDown', '+', '-', '0', 'Enter', 'p'),
    ['arena.scroll -0.5', 'arena.scroll 0.5', 'arena.scroll -1', 'arena.scroll 1', 'arena.zoom 0.5', 'arena.zoom 2', 'arena.zoom 1000000000000', 'page.look 123']);
  assert.deepEqual(await page.evaluate(() => ['p', 'q'].map((key) => document.dispatchEvent(new KeyboardEvent('keydown', { key, cancelable: true })))), [false, true]);
  await asked(page);
}));

test('keys that are somebody else\'s are left alone', () => openPacked(small(), {}, async (page) => {
  await noteCalls(page);
  assert.deepEqual(await press(page, 'Control+p', 'Meta+p', 'Alt+p'), []);
  await page.locator('#site-filter').focus();
  assert.deepEqual(await press(page, 'p', '0'), []);
  await page.locator('#site-filter').fill('');
  await page.locator('#zoom-in').focus();
  assert.deepEqual(await press(page, 'p', 'Enter', ' '), ['page.look 123', 'timeline.zoom 0.5', 'timeline.zoom 0.5']);  // the button's own
  await page.locator('#sites summary').first().focus();
  assert.deepEqual(await press(page, 'Enter', 'p'), ['page.look 123']);
  await page.evaluate(() => HTMLDialogElement.prototype.showModal.call(byId('keys')));
  assert.deepEqual(await press(page, 'p', 'x'), []);
}));

test('every button does what it says', () => openPacked(small(), {}, async (page) => {
  await noteCalls(page);
  for (const id of ['zoom-in', 'zoom-out', 'zoom-all', 'to-peak', 'back', 'forth', 'help', 'theme']) await page.locator(`#${id}`).click();
  assert.deepEqual(await asked(page), ['timeline.zoom 0.5', 'timeline.zoom 2', 'timeline.all', 'page.look 123', 'page.step -1', 'page.step 1', 'help', 'page.flip']);
}));

test('choices are chosen', () => openPacked(small(), {}, async (page) => {
  const pressed = (id) => page.locator(`#${id} [aria-pressed=true]`).allInnerTexts();
  await page.locator('#axes button').last().click();
  assert.deepEqual([await pressed('axes'), await page.evaluate(() => report.timeline.axis)], [['Events'], 'events']);
  await page.keyboard.press('x');
  assert.deepEqual([await pressed('axes'), await page.evaluate(() => report.timeline.axis)], [['Time'], 'time']);
  await page.locator('#units button').last().click();
  assert.deepEqual([await pressed('units'), await page.evaluate(() => report.unit)], [['Reservations'], 0]);
  assert.equal((await text(page, '#pinners')).split('\n')[0].trim().split('\t')[2].trim(), 'Reservations');
  await page.locator('#units button').first().click();
  assert.deepEqual([await pressed('units'), await page.evaluate(() => report.unit)], [['2 MiB pages'], 2 * MiB]);
  for (const on of ['true', 'false']) {
    await page.locator('#fit').click();
    assert.equal(await page.locator('#fit').getAttribute('aria-pressed'), on);
    assert.equal(String(await page.evaluate(() => report.timeline.fit)), on);
  }
}));

test('an empty page listens to little', () => openPacked({}, {}, async (page) => {
  await noteCalls(page);
  assert.deepEqual(await press(page, '+', 'ArrowLeft', 'p', 'g', 't', '?'), ['page.flip', 'help']);
  const drawn = await page.evaluate(() => {
    delete report.step;
    delete report.next;
    report.step(1);
    report.next(1);
    return [report.moment, see.strokes(report.arena.stage).at(-1), report.arena.findAt(0), report.timeline.point({ x: 5, y: 5 }, {}), byId('tip').hidden];
  });
  assert.deepEqual(drawn, [null, 'font = 12px system-ui, sans-serif; fillStyle = #59616e; fillText The recording is empty. 12 24 1214', null, undefined, true]);
}));

test('the theme is the system\'s until it is chosen', () => openPacked(small(), { scheme: 'dark' }, async (page) => {
  const theme_ = () => page.evaluate(() => [theme.name, document.documentElement.dataset.theme, theme.colors[0], theme.css('ground'), theme.bad]);
  assert.deepEqual(await theme_(), ['dark', 'dark', '#6f93f2', '#14171c', '#ff9d94']);
  await page.emulateMedia({ colorScheme: 'light' });
  await settle(page);
  assert.deepEqual(await theme_(), ['light', 'light', '#4269d0', '#ffffff', '#b3261e']);
  assert.match(await page.locator('#legend .swatch').first().getAttribute('style'), /rgb\(66, 105, 208\)/);
  assert.match(await page.locator('#shares .swatch').first().getAttribute('style'), /rgb\(66, 105, 208\)/);
  await page.locator('#policies input').first().uncheck();
  await page.locator('#theme').click();
  await settle(page);
  assert.deepEqual((await theme_())[0], 'dark');
  assert.match(await page.locator('#legend .swatch').first().getAttribute('style'), /rgb\(111, 147, 242\)/);
  assert.match(await page.locator('#pinners .swatch').first().getAttribute('style'), /rgb\(111, 147, 242\)/);
  assert.equal(await page.locator('#policies input').first().isChecked(), false);  // the table is a new one
  await page.keyboard.press('t');
  assert.deepEqual((await theme_())[0], 'light');
}));

// --- Tables --------------------------------------------------------------------------------------------

test('how little memory a policy does with is a column where that was asked for', async () => {
  const table = (page) => page.locator('#policies').evaluate((all) => [...all.querySelectorAll('tr')].map((row) => [...row.cells].map((cell) => cell.innerText.trim())));
  await openPacked(small(), {}, async (page) => {
    assert.deepEqual((await table(page))[0].includes('Fits from'), false);
  });
  const policies = small().policies.map((row, i) => ({ ...row, fit: [70 * MiB, 62 * MiB, 0, 61.5 * MiB][i] }));
  await openPacked(small({ policies }), {}, async (page) => {
    const [head, ...rows] = await table(page);
    const at = head.indexOf('Fits from');
    assert.equal(head[at - 1], 'Ratio');
    assert.deepEqual(rows.map((row) => row[at]), ['', '70 MiB (1.148)', '62 MiB (1.016)', '-', '61.5 MiB (1.008)']);
  });
});

test('policies are drawn when they are chosen', () => openPacked(small(), {}, async (page) => {
  const lines = () => page.evaluate(() => [...report.timeline.lines]);
  const boxes = page.locator('#policies input');
  assert.deepEqual([await lines(), await boxes.count()], [['torch_default', 'balanced'], 3]);
  await boxes.nth(0).uncheck();
  await boxes.nth(2).check();
  assert.deepEqual(await lines(), ['balanced', 'classic']);
  assert.deepEqual((await text(page, '#legend')).split('\n').filter((line) => /replayed/.test(line)), ['reserved by balanced (replayed)', 'reserved by classic (replayed)']);
  const redrawn = await page.evaluate(() => {
    let count = 0;
    report.timeline.redraw = () => { ++count; };
    document.querySelector('#policies input').click();
    return count;
  });
  assert.equal(redrawn, 1);
}));

test('sites are sorted and filtered', () => openPacked(small(), {}, async (page) => {
  const rows = async () => (await page.locator('#sites tbody tr td:first-child').allInnerTexts()).map((label) => label.split(' at ')[0].split('\n')[0]);
  const head = async (name) => {
    await page.locator('#sites th button', { hasText: name }).click();
    return [await rows(), (await page.locator('#sites th').allInnerTexts()).filter((label) => /[▲▼]/.test(label))];
  };
  const [linear, softmax, cache] = ['Linear.__init__', 'softmax', 'KvCache.grow'];
  assert.deepEqual(await rows(), [softmax, linear, cache]);
  assert.deepEqual(await head('Site'), [[cache, linear, softmax], ['Site ▲']]);
  assert.deepEqual(await head('Site'), [[softmax, linear, cache], ['Site ▼']]);
  assert.deepEqual(await head('Most live'), [[softmax, linear, cache], ['Most live ▼']]);
  assert.deepEqual(await head('Most live'), [[cache, linear, softmax], ['Most live ▲']]);
  assert.deepEqual(await head('At the peak'), [[softmax, linear, cache], ['At the peak ▼']]);
  assert.deepEqual(await head('Never freed'), [[cache, linear, softmax], ['Never freed ▼']]);
  assert.deepEqual(await head('Blocks'), [[softmax, linear, cache], ['Blocks ▼']]);
  assert.deepEqual(await head('In all'), [[softmax, linear, cache], ['In all ▼']]);
  assert.deepEqual(await head('Mean life'), [[linear, softmax, cache], ['Mean life ▼']]);
  assert.deepEqual(await head('Mean life'), [[cache, softmax, linear], ['Mean life ▲']]);
  for (const [filter, left] of [['MODEL', [softmax, linear]], ['main', [linear]], ['kv', [cache]], ['nothing', ['No site matches.']], ['', [cache, softmax, linear]]]) {
    await page.locator('#site-filter').fill(filter);
    assert.deepEqual((await rows()).sort(), [...left].sort(), filter);
  }
}));
