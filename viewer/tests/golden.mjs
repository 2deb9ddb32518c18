// SPDX-License-Identifier: Apache-2.0
// What the page looks like, whole: every element, every pixel, every stroke of a small recording.
import { test } from './harness.mjs';
import { expectGolden, goldenLines, openPacked, tiny } from './inside.mjs';
import { small } from './small.mjs';

const MiB = 2 ** 20;
const element = (page, selector) => page.evaluate((which) => see.tree(document.querySelector(which)), selector);

// Runs `change` in the page, waits until everything is drawn, and returns what `look` sees of it.
const after = async (page, change, look) => {
  await page.evaluate(change);
  await page.evaluate(() => see.settled());
  return page.evaluate(look);
};
const timelineStrokes = () => see.strokes(report.timeline.stage);
const timelinePixels = () => see.pixels(report.timeline.stage);
const wholeStrokes = () => see.strokes(report.timeline.whole);
const wholePixels = () => see.pixels(report.timeline.whole);
const arenaStrokes = () => see.strokes(report.arena.stage);
const arenaPixels = () => see.pixels(report.arena.stage);
const nothing = () => {};

test('every element is as it should be', () => openPacked(small(), {}, async (page) => {
  expectGolden('elements', {
    header: await element(page, 'header'), main: await element(page, 'main'), footer: await element(page, 'footer'), keys: await element(page, '#keys'),
  });
}));

test('every stroke of the timeline is as it should be', () => openPacked(small(), {}, async (page) => {
  expectGolden('timeline-strokes', {
    'time, all of it': await after(page, nothing, timelineStrokes),
    'the strip': await after(page, nothing, wholeStrokes),
    'events, all of it': await after(page, () => report.timeline.setAxis('events'), timelineStrokes),
    'the strip of events': await after(page, nothing, wholeStrokes),
    'events 32 to 64': await after(page, () => report.timeline.set(32, 64), timelineStrokes),
    'the strip with that': await after(page, nothing, wholeStrokes),
    'events 96 to 112, fitted': await after(page, () => {
      report.timeline.set(96, 112);
      report.fit();
    }, timelineStrokes),
    'time 30 to 80 microseconds, fitted, pointed at': await after(page, () => {
      report.timeline.setAxis('time');
      report.timeline.set(30000, 80000);
      report.timeline.hover = { x: 100.7, y: 20 };
    }, timelineStrokes),
    'of every policy, before any moment': await after(page, () => {
      report.timeline.hover = null;
      for (const name of ['classic', 'compact']) report.timeline.lines.add(name);
      report.timeline.all();
      report.fit();
      report.moment = null;
    }, timelineStrokes),
  });
}));

test('every pixel of the timeline is as it should be', () => openPacked(small(), { style: tiny }, async (page) => {
  expectGolden('timeline-pixels', {
    'time, all of it': await after(page, nothing, timelinePixels),
    'the strip': await after(page, nothing, wholePixels),
    'events, all of it': await after(page, () => report.timeline.setAxis('events'), timelinePixels),
    'the strip of events': await after(page, nothing, wholePixels),
    'events 32 to 64, by stream': await after(page, () => {
      report.timeline.set(32, 64);
      report.setGrouping(1);
    }, timelinePixels),
    'the strip by stream': await after(page, nothing, wholePixels),
    'events 96 to 112, fitted': await after(page, () => {
      report.timeline.set(96, 112);
      report.fit();
    }, timelinePixels),
    'the same in the dark': await after(page, () => report.flip(), timelinePixels),
  });
}));

test('every pixel is as it should be on fine screens', () => openPacked(small(), { style: tiny, scale: 2 }, async (page) => {
  expectGolden('fine-pixels', {
    timeline: await after(page, () => report.timeline.setAxis('events'), timelinePixels),
    strip: await after(page, nothing, wholePixels),
    arena: await after(page, nothing, arenaPixels),
  });
}));

test('every pixel of the arena is as it should be', () => openPacked(small(), { style: tiny }, async (page) => {
  expectGolden('arena-pixels', {
    'event 93': await after(page, nothing, arenaPixels),
    'event 65': await after(page, () => report.look(65), arenaPixels),
    'event 65, closer': await after(page, () => report.arena.zoom(0.25, { x: 0, y: 40 }), arenaPixels),
    'event 22, further on': await after(page, async () => {
      await report.look(22);
      report.arena.scroll(1.5);
    }, arenaPixels),
    'event 45, at its end, by stream': await after(page, async () => {
      await report.look(45);
      report.setGrouping(1);
      report.arena.scroll(100);
    }, arenaPixels),
    'event 120, all of it, by reservations': await after(page, async () => {
      report.arena.zoom(1e12);
      await report.look(120);
      [...document.querySelectorAll('#units button')].at(-1).click();
    }, arenaPixels),
    'event 0, in the dark': await after(page, async () => {
      report.flip();
      await report.look(0);
    }, arenaPixels),
  });
}));

test('every stroke of the arena is as it should be', () => openPacked(small(), { style: tiny }, async (page) => {
  const chosen = (address, size) => page.evaluate(([from, bytes]) => {
    report.arena.chosen = { address: from, size: bytes };
    return see.strokes(report.arena.stage);
  }, [address, size]);
  const base = 0x7f4000000000;
  expectGolden('arena-strokes', {
    'nothing chosen': await after(page, nothing, arenaStrokes),
    'one row': await chosen(base + MiB, MiB),
    'over three rows': await chosen(base + 2 * MiB, 5 * MiB),
    'next to nothing at the end of a row': await chosen(base + 2.5 * MiB - 512, 512),
    'up to the end': await chosen(base + 66 * MiB, 2 * MiB),
    revealed: await after(page, () => report.arena.reveal(0x7f4000400000, 2 ** 19), arenaStrokes),
  });
}));

// --- The page in words, and what is different in those of other recordings --------------------------------

const sections = ['#title', '#subtitle', '#notices', '#facts', '#groupings', '#legend', '#resolution', '#moment', '#shares', '#arena-note', '#pinners', '#pages', '#policies', '#sites'];
const inWords = async (figures) => {
  let out = [];
  await openPacked(figures, {}, async (page) => {
    out = await page.evaluate((all) => [`title: ${document.title}`, ...all.map((id) => `${id}: ${see.words(document.querySelector(id))}`)], sections);
  });
  return out;
};

test('in words', async () => expectGolden('words', { usual: await inWords(small()) }));

const base = 0x7f4000000000;
const many = Array.from({ length: 120 }, (_, i) => ({ start: 0, end: 128, address: base + 2 * MiB * i, size: 1000 + i, rounded: 1536, tag: 1, stream: 0, site: 8, groups: [i % 3, 0] }));
const manySites = Array.from({ length: 310 }, (_, i) => ({ ...small().sites[0], number: i, label: `site ${i}`, most: 1000 - i, frames: [] }));

const recordings = {
  'nothing at all': {},
  'a recording without a program, damaged': small({ program: '', damage: { offset: 123456, reason: 'a checksum is wrong' }, dropped: 4200 }),
  'a recording without a name': small({ program: '', file: '', device: '', capacity: 0 }),
  'blocks that a replay placed': small({ placedBy: 'balanced', realAddresses: false }),
  'blocks that nobody placed': small({ realAddresses: false, regions: [], blocks: [], spans: [] }),
  'reservations unknown': small({ knowsReserved: false, reservedPeak: 0, spans: [] }),
  'sizes instead of stacks': small({ hasStacks: false, sites: small().sites.map((site) => ({ ...site, label: '24 MiB', frames: [] })), siteCount: 3 }),
  'small blocks of key moments': small({ smallBelow: 2048, leftOutBelow: 512, keyMoments: [5, 64] }),
  'small blocks, all of them': small({ smallBelow: 2048, keyMoments: [93] }),
  'no policies, no sites': small({ recorded: [], policies: [], sites: [], siteCount: 0, peak: { event: 123, live: 0, inUse: 0, rounded: 0 } }),
  'more than fits': small({ blocks: many, spans: [{ start: 0, end: 128, address: base, size: 300 * MiB }], regions: [{ address: base, size: 300 * MiB }], sites: manySites, siteCount: 310 }),
};

for (const [name, figures] of Object.entries(recordings)) {
  test(`in words: ${name}`, async () => {
    const usual = new Set(goldenLines('words'));
    expectGolden(`words-${name.replace(/\W+/g, '-')}`, { [name]: (await inWords(figures)).filter((line) => !usual.has(line)) });
  });
}

// --- What is said beside the pointer ---------------------------------------------------------------------

test('the tips say what is under the pointer', () => openPacked(small(), { style: tiny }, async (page) => {
  const parts = {};
  const point = async (title, view, x, y) => {
    parts[title] = await page.evaluate(([which, left, top]) => {
      tip.hide();
      report[which].point({ x: left, y: top }, { clientX: 100 + left, clientY: 200 });
      return see.tree(document.querySelector('#tip'));
    }, [view, x, y]);
  };
  await point('the chart', 'timeline', 30, 10);
  await point('the chart, at a marker', 'timeline', 4, 10);
  await page.evaluate(() => report.timeline.setAxis('events'));
  await page.evaluate(() => see.settled());
  await point('the chart, by events, between two markers', 'timeline', 48, 10);
  await point('the chart, left of it', 'timeline', -3, 10);
  await page.evaluate(() => report.look(65));
  await point('a block', 'arena', 10, 4);
  await point('a block that takes more than asked for', 'arena', 51.2, 4);
  await point('a block that is freed', 'arena', 2, 20);
  await point('a block that was allocated late', 'arena', 60, 36);
  await point('free memory', 'arena', 60, 4);
  await point('below everything', 'arena', 10, 70);
  await page.evaluate(() => report.look(45));
  await point('a block of unknown names', 'arena', 15, 36);
  await point('not mapped', 'arena', 40, 52);
  await page.evaluate(() => [...document.querySelectorAll('#units button')].at(-1).click());
  await point('a reservation', 'arena', 15, 36);
  expectGolden('tips', parts);
}));

test('the tips say less where less is known', async () => {
  const parts = {};
  const labels = Array.from({ length: 11 }, (_, i) => `group ${i}`);
  const bins = small().bins.map((bin) => ({ ...bin, stacks: [labels.map((_, i) => (i === 4 ? 0 : (i + 1) * MiB)), [24 * MiB, 0]] }));
  const markers = Array.from({ length: 5 }, (_, i) => ({ event: 60, time: 60000, text: `marker ${i}` }));
  await openPacked(small({ groupings: [{ name: 'tag', labels }, small().groupings[1]], bins, markers, knowsReserved: false, reservedPeak: 0, spans: [], hasStacks: false }), { style: tiny }, async (page) => {
    parts['many groups, many markers, no reservations'] = await page.evaluate(() => {
      report.timeline.point({ x: 15, y: 5 }, { clientX: 100, clientY: 200 });
      return see.tree(document.querySelector('#tip'));
    });
    parts['a block without a stack'] = await page.evaluate(() => {
      report.arena.point({ x: 10, y: 4 }, { clientX: 100, clientY: 200 });
      return see.tree(document.querySelector('#tip'));
    });
    parts['no block'] = await page.evaluate(() => {
      report.arena.point({ x: 60, y: 52 }, { clientX: 100, clientY: 200 });
      return see.tree(document.querySelector('#tip'));
    });
  });
  expectGolden('tips-of-less', parts);
});
