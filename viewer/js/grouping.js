// SPDX-License-Identifier: Apache-2.0
// Groups of blocks by tag, size, stream, site and pool, and what ran out and was never freed, of a recording that the page
// reads itself. src/report/groups.cpp, leaks.cpp and oom_report.cpp do the same.

// A size as src/base/bytes.cpp writes it: labels are the same whoever makes them.
function bytesText(size) {
  let unit = 0;
  while (unit + 1 < units.length && size >= 1024 ** (unit + 1)) ++unit;
  const one = 1024 ** unit;
  let whole = Math.floor(size / one);
  let hundredths = Math.round(((size % one) / one) * 100);
  if (hundredths === 100) {
    hundredths = 0;
    ++whole;
  }
  if (whole === 1024 && unit + 1 < units.length) {
    whole = 1;
    ++unit;
  }
  const rest = hundredths ? `.${String(hundredths).padStart(2, '0').replace(/0$/, '')}` : '';
  return `${whole}${rest} ${units[unit]}`;
}

// --- Names ---------------------------------------------------------------------------------------------

// Frames of allocators and frameworks say how memory was allocated, not what for.
const libraryMarks = ['/torch/', 'site-packages', 'dist-packages', 'c10::', 'at::', 'weir::', '<frozen '];

function siteLabel({ stacks, frames }, { stack, size }) {
  if (!stack) return stacks.length ? 'no stack' : bytesText(size);
  const known = stacks[stack - 1].map((frame) => frames[frame]);
  return known.find((frame) => !libraryMarks.some((mark) => frame.includes(mark))) ?? known[0] ?? 'an empty stack';
}

const tagLabel = ({ tags }, tag) => (tag >= tags.length ? `tag ${tag}` : tags[tag] || 'untagged');

function streamLabel({ streams }, stream) {
  if (stream >= streams.length) return `stream #${stream}`;
  return `stream ${streams[stream] < 65536n ? streams[stream] : `0x${streams[stream].toString(16)}`}`;
}

// --- Totals and groups -----------------------------------------------------------------------------------

const mostGroups = 12;

// The totals of each key.
function tallyBy(lifetimes, count, keyOf) {
  const { blocks, recording, peak, events } = lifetimes;
  const out = Array.from({ length: count }, () => ({ blocks: 0, bytes: 0, most: 0, atPeak: 0, atEnd: 0, freed: 0, lifetime: 0, live: 0 }));
  lifetimes.walk((number) => {
    const block = blocks[number];
    const total = out[keyOf(block)];
    ++total.blocks;
    total.bytes += block.size;
    total.live += block.size;
    total.most = Math.max(total.most, total.live);
    if (livesAt(block, peak)) total.atPeak += block.size;
    if (block.end === events) total.atEnd += block.size;
  }, (number) => {
    const block = blocks[number];
    const total = out[keyOf(block)];
    total.live -= block.size;
    ++total.freed;
    total.lifetime += recording.time[block.end] - recording.time[block.start];
  });
  return out;
}

// Keeps the keys that held most and makes one group of the others.
function keepMost(name, { blocks }, tallies, keyOf, label) {
  const order = [...tallies.keys()].filter((key) => tallies[key].blocks).sort((a, b) => tallies[b].most - tallies[a].most);
  const named = order.length <= mostGroups ? order.length : mostGroups - 1;
  const groupOf = new Uint8Array(tallies.length).fill(named);
  order.slice(0, named).forEach((key, group) => { groupOf[key] = group; });
  const labels = order.slice(0, named).map(label);
  if (named < order.length) labels.push(`${order.length - named} others`);
  return { name, labels, ofBlock: Uint8Array.from(blocks, (block) => groupOf[keyOf(block)]) };
}

const sizeLimits = [2 ** 10, 2 ** 14, 2 ** 18, 2 ** 21, 2 ** 24, 2 ** 27, 2 ** 30];

// The classes keep their order, the large ones first.
function groupBySize({ blocks }) {
  const classOf = ({ size }) => sizeLimits.filter((limit) => limit <= size).length;
  const used = new Set(blocks.map(classOf));
  const classes = [...used].sort((a, b) => b - a);
  const last = sizeLimits.length;
  const label = (i) => (i === 0 ? `below ${bytesText(sizeLimits[0])}` : i === last ? `${bytesText(sizeLimits[last - 1])} and more`
    : `${bytesText(sizeLimits[i - 1])} to ${bytesText(sizeLimits[i])}`);
  return { name: 'size', labels: classes.map(label), ofBlock: Uint8Array.from(blocks, (block) => classes.indexOf(classOf(block))) };
}

function makeGroupings(lifetimes, siteTallies) {
  const { recording, blocks, sites } = lifetimes;
  const keysOf = (field) => blocks.reduce((most, block) => Math.max(most, block[field] + 1), 1);
  const by = (field, label, tallies = tallyBy(lifetimes, keysOf(field), (block) => block[field])) => keepMost(field, lifetimes, tallies, (block) => block[field], label);
  const groupings = [
    by('tag', (tag) => tagLabel(recording, tag)),
    groupBySize(lifetimes),
    by('stream', (stream) => streamLabel(recording, stream)),
    by('site', (site) => siteLabel(recording, sites[site]), siteTallies),
  ];
  if (keysOf('pool') > 1) {
    groupings.push(by('pool', (pool) => (pool >= recording.pools.length ? `pool ${pool}` : recording.pools[pool] || "the allocator's own")));
  }
  // Where memory was ever suspended, the last group is that of blocks without memory.
  if (lifetimes.suspensions.length) for (const { labels } of groupings) labels.push('suspended');
  return groupings;
}

// --- What was never freed ----------------------------------------------------------------------------------

function findLeaks({ recording, blocks, sites, events }) {
  const found = new Map();
  for (const { site, tag, end, start, size } of blocks) {
    if (end !== events) continue;
    const key = site * 65536 + tag;
    if (!found.has(key)) found.set(key, { site, label: siteLabel(recording, sites[site]), tag, blocks: 0, bytes: 0, first: recording.time[start], last: 0 });
    const leak = found.get(key);
    ++leak.blocks;
    leak.bytes += size;
    leak.last = recording.time[start];
  }
  return [...found.values()].sort((a, b) => b.bytes - a.bytes);
}

// --- What ran out ---------------------------------------------------------------------------------------------

const mostOoms = 16;

// Free memory of a pool among the live blocks of a moment: {bytes, pieces, longest}.
function holesAt({ blocks, spans }, event, pool = 0) {
  const rangesOf = (all, size) => all.filter((each) => livesAt(each, event)).map((each) => [each.address, each.address + each[size]]).sort((a, b) => a[0] - b[0] || a[1] - b[1]);
  const used = rangesOf(blocks, 'rounded');
  const out = { bytes: 0, pieces: 0, longest: 0 };
  let [openEnd, open, next] = [-1, 0, 0];
  const hole = (from, to) => {
    if (from >= to) return;
    open = from === openEnd ? open + to - from : to - from;  // reservations that touch
    if (from !== openEnd) ++out.pieces;
    out.bytes += to - from;
    out.longest = Math.max(out.longest, open);
    openEnd = to;
  };
  for (const [from, to] of rangesOf(spans.filter((span) => span.pool === pool), 'size')) {
    let at = from;
    while (next < used.length && used[next][1] <= from) ++next;
    for (let i = next; i < used.length && used[i][0] < to; ++i) {
      hole(at, Math.min(used[i][0], to));
      at = Math.max(at, used[i][1]);
    }
    hole(at, to);
  }
  return out;
}

// Why a request failed, in one or two sentences: src/observe/shortage.cpp, of recordings, which do not say what is free of
// the device.
function verdictOf(about) {
  const { requested, tag, tagLive, tagLimit, live, reserved, free, longest, limit, deviceTotal } = about;
  const text = bytesText;
  const less = (from, size) => from - Math.min(from, size);
  const held = Math.max(less(reserved, free), live);
  const room = less(deviceTotal, Math.max(reserved, live));
  const freeMore = (missing) => (live >= missing ? `Free at least ${text(missing)} more.` : 'Request less.');
  const byLimit = () => {
    const out = `The allocator's limit of ${text(limit)} is in the way: ${text(live)} are live${reserved ? `, ${text(reserved)} reserved.` : '.'}`;
    const missing = less(held + requested, limit);
    if (!missing) return `${out} Raise it, or free memory.`;
    if (!deviceTotal || free + room >= requested) return `${out} Raise it by ${text(missing)}${live >= missing ? `, or free ${text(missing)}` : ''}.`;
    return `${out} Raising it alone does not help, with ${text(room)} free of the device's ${text(deviceTotal)}. ${freeMore(Math.max(missing, requested - free - room))}`;
  };
  const byFragments = () => {
    const isShort = longest < requested;
    const pieces = isShort ? `but in pieces of at most ${text(longest)}; the request needs ${text(requested)} in one piece.`
      : `${text(longest)} of it in one piece, but it is kept for other streams, or for work that has not completed.`;
    const raise = reserved + requested > limit ? ` Raise the limit of ${text(limit)} by ${text(reserved + requested - limit)}.` : '';
    return `${text(free)} are reserved and free, ${pieces}${raise}${isShort ? ' The pages below show which blocks separate the pieces.' : ''}`;
  };
  if (!requested) return 'The request fits.';
  if (tagLive + requested > tagLimit) {
    const missing = tagLive + requested - tagLimit;
    return `The limit of tag "${tag}", ${text(tagLimit)}, is in the way: ${text(tagLive)} are live with it. Raise it by ${text(missing)}${
      tagLive >= missing ? `, or free ${text(missing)} of the tag` : ''}.`;
  }
  if (deviceTotal && requested > deviceTotal) return `The request is larger than the device, which has ${text(deviceTotal)}. Request less.`;
  if (held + requested > limit) return byLimit();
  if (deviceTotal && held + requested > deviceTotal) {
    const others = less(deviceTotal, Math.max(reserved, live) + room);
    return `The device is full: of its ${text(deviceTotal)} this allocator has ${text(live)} live${others ? `, others hold ${text(others)}` : ''}. ${freeMore(less(requested, free + room))}`;
  }
  if (reserved && (free >= requested || reserved + requested > limit)) return byFragments();
  if (less(limit, reserved) < room) return byLimit();
  if (reserved && deviceTotal) {
    return `Other users of the device hold at least ${text(less(deviceTotal, reserved + requested))} of the device's ${text(deviceTotal)}: ${text(live)} are live here, ${text(reserved)} reserved.`;
  }
  return `${text(live)} are live. The device's free memory is unknown, so weir cannot say whether it was full or fragmented.`;
}

function explainOoms(lifetimes) {
  const { recording, blocks, events, live, reserved } = lifetimes;
  const limits = new Map();  // of each tag, and under 0 of all memory
  const out = [];
  for (let event = 0; event < events && out.length < mostOoms; ++event) {
    if (recording.kind[event] === kinds.limit) limits.set(recording.tag[event], recording.size[event] < mostNumber ? recording.size[event] : Infinity);
    if (recording.kind[event] !== kinds.outOfMemory) continue;
    const tag = recording.tag[event];
    const tags = new Map();
    let [rounded, tagLive] = [0, 0];
    for (const block of blocks) {
      if (!livesAt(block, event)) continue;
      rounded += block.rounded;
      tags.set(block.tag, (tags.get(block.tag) ?? 0) + block.size);
      if (block.tag === tag) tagLive += block.rounded;
    }
    const limit = limits.get(0) ?? Infinity;
    const free = reserved ? holesAt(lifetimes, event, recording.pool[event]) : { bytes: 0, pieces: 0, longest: 0 };
    const isTagged = tag !== 0 && tag < recording.tags.length;
    const known = { requested: recording.size[event], live: live[event], rounded, reserved: reserved ? reserved[event] : 0, limit: limit === Infinity ? 0 : limit, free: free.bytes, longest: free.longest };
    out.push({
      event, time: recording.time[event], stream: recording.stream[event], ...known, pieces: free.pieces,
      verdict: verdictOf({ ...known, live: rounded, limit, deviceTotal: recording.capacity, tag: isTagged ? recording.tags[tag] : '', tagLive: isTagged ? tagLive : 0, tagLimit: isTagged ? limits.get(tag) ?? Infinity : Infinity }),
      tags: [...tags].sort((a, b) => a[0] - b[0]).sort((a, b) => b[1] - a[1]).slice(0, 5).map(([number, size]) => ({ label: tagLabel(recording, number), size })),
    });
  }
  return out;
}
