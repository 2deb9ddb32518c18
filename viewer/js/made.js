// SPDX-License-Identifier: Apache-2.0
// A run that the page makes of a recording by itself: memory over time and the blocks of every moment, in the pieces that
// src/report/series.cpp, block_index.cpp and page.cpp make of it.

const madeLimits = { bins: 1 << 18, blocks: 1_000_000, sites: 300, frames: 64, suspensions: 2000, markers: 2000 };
const madeLevelShift = 2;
const madeTileBins = 512;
const madeFirstBins = 2048;

// --- Memory over time: {shift, time, moment, low, reserved, stacks: a column of bins x groups for each grouping} --------

function finestSeries(lifetimes, groupings) {
  const { recording, events, live, reserved } = lifetimes;
  let shift = 0;
  while (Math.floor(events / 2 ** shift) >= madeLimits.bins) ++shift;
  const width = 2 ** shift;
  const out = { shift, time: [], moment: [], low: [], reserved: [], stacks: [] };
  for (let first = 0; first < events; first += width) {
    const last = Math.min(events, first + width);
    let [highest, low, most] = [first, live[first], 0];
    for (let i = first; i < last; ++i) {
      if (live[i] > live[highest]) highest = i;
      low = Math.min(low, live[i]);
      if (reserved) most = Math.max(most, reserved[i]);
    }
    out.time.push(recording.time[first]);
    out.moment.push(highest);
    out.low.push(low);
    out.reserved.push(most);
  }
  for (const { labels, ofBlock } of groupings) {
    const now = new Float64Array(labels.length);
    const stacks = new Float64Array(out.moment.length * labels.length);
    const away = new Set();  // blocks without memory
    const groupOf = (block) => (away.has(block) ? labels.length - 1 : ofBlock[block]);
    const add = (block, sign) => { now[groupOf(block)] += sign * lifetimes.blocks[block].size; };
    const change = ({ blocks }, event, mark) => {
      for (const block of blocks) {
        if (!livesAt(lifetimes.blocks[block], event)) continue;
        add(block, -1);
        mark(block);
        add(block, 1);
      }
    };
    const starts = [...lifetimes.suspensions];
    const ends = [...starts].sort((a, b) => a.end - b.end);
    let bin = 0;
    lifetimes.walk((block) => add(block, 1), (block) => add(block, -1), (event) => {
      while (ends[0]?.end === event) change(ends.shift(), event, (block) => away.delete(block));
      while (starts[0]?.start === event) change(starts.shift(), event, (block) => away.add(block));
      if (event === out.moment[bin]) stacks.set(now, labels.length * bin++);
    });
    out.stacks.push(stacks);
  }
  return out;
}

function coarserSeries(fine, groupings, live) {
  const parts = 2 ** madeLevelShift;
  const bins = Math.ceil(fine.time.length / parts);
  const out = { shift: fine.shift + madeLevelShift, time: [], moment: [], low: [], reserved: [], stacks: groupings.map(({ labels }) => new Float64Array(bins * labels.length)) };
  for (let bin = 0; bin < bins; ++bin) {
    const first = bin * parts;
    let highest = first;
    for (let i = first; i < Math.min(first + parts, fine.time.length); ++i) if (live[fine.moment[i]] > live[fine.moment[highest]]) highest = i;
    out.time.push(fine.time[first]);
    out.moment.push(fine.moment[highest]);
    out.low.push(Math.min(...fine.low.slice(first, first + parts)));
    out.reserved.push(Math.max(...fine.reserved.slice(first, first + parts)));
    groupings.forEach(({ labels }, g) => out.stacks[g].set(fine.stacks[g].subarray(highest * labels.length, (highest + 1) * labels.length), bin * labels.length));
  }
  return out;
}

class MadeSeries extends Series {
  constructor(index, levels, arrived) {
    super(index, null, arrived);
    this.made = levels;  // the finest first
  }

  async piece(chunk, level, tile, kind, count) {
    const made = this.made[level];
    const first = tile * this.index.tileBins;
    const part = (column) => Float64Array.from(column.slice(first, first + count));
    if (kind === 0) return { count, time: part(made.time), moment: part(made.moment), low: part(made.low), reserved: this.index.knowsReserved ? part(made.reserved) : null };
    const groups = this.index.groupings[kind - 1].labels.length;
    const values = made.stacks[kind - 1].slice(first * groups, (first + count) * groups);
    const total = new Float64Array(count);
    for (let i = 0; i < count; ++i) for (let g = 0; g < groups; ++g) total[i] += values[i * groups + g];
    return { groups, values, total };
  }
}

// --- Blocks ------------------------------------------------------------------------------------------------------

// Whether one of the ascending moments falls into a lifetime.
function livesAtAny({ start, end }, moments) {
  let [low, high] = [0, moments.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (moments[middle] >= start) high = middle;
    else low = middle + 1;
  }
  return low < moments.length && moments[low] < end;
}

const ascending = (numbers) => [...new Set(numbers)].sort((a, b) => a - b);

// Which blocks are kept: all, or where there are too many the large ones, and the small ones as of key moments.
function selectBlocks({ blocks, recording }, finest, exact) {
  const moments = ascending([...finest.moment, ...exact]);
  const out = { kept: new Uint8Array(blocks.length), moments, keyMoments: [], smallBelow: 0, leftOutBelow: 0 };
  const among = (times, from, below) => {
    if (!recording.realAddresses) return [];
    const found = [];
    blocks.forEach((block, i) => { if (block.size >= from && block.size < below && livesAtAny(block, times)) found.push(i); });
    return found;
  };
  const keep = (found) => { for (const i of found) out.kept[i] = 1; };
  const all = among(moments, 0, Infinity);
  if (all.length <= madeLimits.blocks) {
    keep(all);
    return out;
  }
  const half = Math.floor(madeLimits.blocks / 2);
  out.smallBelow = 1024;
  while (among(moments, out.smallBelow, Infinity).length > half) out.smallBelow *= 2;
  keep(among(moments, out.smallBelow, Infinity));
  const bins = finest.moment.length;
  let more = 1024;
  do {
    more = Math.floor(more / 2);
    out.keyMoments = ascending([...exact, ...Array.from({ length: more }, (_, i) => finest.moment[Math.floor((i * bins) / more)])]);
  } while (more && among(out.keyMoments, 0, out.smallBelow).length > half);
  while (among(out.keyMoments, out.leftOutBelow, out.smallBelow).length > half) out.leftOutBelow = Math.max(512, out.leftOutBelow * 2);
  keep(among(out.keyMoments, out.leftOutBelow, out.smallBelow));
  return out;
}

// Buckets by how long things live and when they begin: the numbers of blocks and spans in each, and the levels' widths.
function bucketsOf({ blocks, spans, events }, { kept, moments }) {
  const levels = [];
  const buckets = [];
  for (let width = 1 << 13, shorter = 0; events; width *= 4) {
    const count = Math.floor((events - 1) / width) + 1;
    const made = Array.from({ length: count }, () => ({ blocks: [], spans: [] }));
    const fits = ({ start, end }) => end - start > shorter && end - start <= width;
    blocks.forEach((block, i) => { if (kept[i] && fits(block)) made[Math.floor(block.start / width)].blocks.push(i); });
    spans.forEach((span, i) => { if (fits(span) && livesAtAny(span, moments)) made[Math.floor(span.start / width)].spans.push(i); });
    levels.push({ width, count });
    buckets.push(...made);
    if (width >= events) break;
    shorter = width;
  }
  return { levels, buckets };
}

class MadeBlockIndex extends BlockIndex {
  constructor(index, lifetimes, groupings, buckets) {
    super(index, null, 0);
    this.cache = new Cache(80, async (key) => this.bucket(lifetimes, groupings, buckets[key]));
  }

  bucket(lifetimes, groupings, { blocks: numbers, spans }) {
    const column = (value) => Float64Array.from(numbers, (i) => value(lifetimes.blocks[i]));
    const blocks = {
      count: numbers.length, start: column((b) => b.start), length: column((b) => b.end - b.start), address: column((b) => b.address), size: column((b) => b.size),
      rounding: column((b) => b.rounded - b.size), tag: column((b) => b.tag), stream: column((b) => b.stream), site: column((b) => b.site), pool: column((b) => b.pool),
      groups: groupings.map(({ ofBlock }) => Uint8Array.from(numbers, (i) => ofBlock[i])),
    };
    return { blocks, spans: spans.map((i) => lifetimes.spans[i]).map(({ start, end, address, size }) => ({ start, length: end - start, address, size })) };
  }
}

// All addresses that ever held a block or physical memory, in whole pages, without the wide gaps between them.
function usedAddresses({ blocks, spans, recording }, most = 1024) {
  const ranges = [...(recording.realAddresses ? blocks.map(({ address, rounded }) => [address, rounded]) : []), ...spans.map(({ address, size }) => [address, size])];
  ranges.sort((a, b) => a[0] - b[0] || a[1] - b[1]);
  let all = ranges.map(([address, size]) => {
    const first = Math.floor(address / pageSize) * pageSize;
    return { address: first, size: Math.floor((address + Math.max(0, size - 1)) / pageSize) * pageSize - first + pageSize };
  });
  for (let gap = pageSize; ; gap *= 4) {
    const merged = [];
    for (const next of all) {
      const last = merged.at(-1);
      const end = last ? last.address + last.size : 0;
      if (last && (next.address <= end || next.address - end < gap)) last.size = Math.max(end, next.address + next.size) - last.address;
      else merged.push({ ...next });
    }
    if (merged.length <= most) return merged;
    all = merged;
  }
}

// --- The whole -----------------------------------------------------------------------------------------------------

function sitesOf({ recording, sites }, tallies) {
  const order = [...tallies.keys()].sort((a, b) => tallies[b].most - tallies[a].most);
  return order.slice(0, madeLimits.sites).map((number) => {
    const { live, freed, ...totals } = tallies[number];
    totals.lifetime = freed ? Math.floor(totals.lifetime / freed) : 0;  // the mean, of those that were freed
    const { stack } = sites[number];
    return { number, label: siteLabel(recording, sites[number]), ...totals, frames: stack ? recording.stacks[stack - 1].slice(0, madeLimits.frames).map((frame) => recording.frames[frame]) : [] };
  });
}

function markersOf({ count, kind, other, time, texts }) {
  const found = [];
  for (let event = 0; event < count; ++event) if (kind[event] === kinds.marker && other[event] < texts.length) found.push({ event, time: time[event], text: texts[other[event]] });
  return found;
}

// A snapshot, for one, says what was asked for, not what blocks took.
function knowsRounding({ kind, extra }, events) {
  for (let i = 0; i < events; ++i) if (kind[i] === kinds.allocate && extra[i]) return true;
  return false;
}

// What the page makes of a recording; `about` has the file's name and weir's version. Costs seconds for millions of events;
// `pause` is waited for now and then.
async function makeRun(recording, about, pause) {
  const lifetimes = await new Lifetimes(recording).read(pause);
  const { events, blocks, live, peak, reserved } = lifetimes;
  const tallies = tallyBy(lifetimes, lifetimes.sites.length, (block) => block.site);
  await pause();
  const groupings = makeGroupings(lifetimes, tallies);
  await pause();
  const ooms = explainOoms(lifetimes);
  const levels = [finestSeries(lifetimes, groupings)];
  while (levels.at(-1).time.length > madeFirstBins) levels.push(coarserSeries(levels.at(-1), groupings, live));
  await pause();
  const [finest] = levels;
  const exact = events ? [finest.moment[Math.floor(peak / 2 ** finest.shift)], ...ooms.map((oom) => oom.event)] : [];
  const selected = selectBlocks(lifetimes, finest, exact);
  await pause();
  const { levels: blockLevels, buckets } = bucketsOf(lifetimes, selected);
  const markers = markersOf(recording);
  const leaks = findLeaks(lifetimes);
  const suspensions = lifetimes.suspensions.map(({ pool, start, end, size, kept }) => ({ pool, start, end, from: recording.time[start], to: recording.time[Math.min(end, events - 1)], size, kept }));
  const allOoms = recording.kind.subarray(0, events).reduce((count, kind) => count + (kind === kinds.outOfMemory ? 1 : 0), 0);
  const index = {
    ...about, program: recording.program, device: recording.device, capacity: recording.capacity, dropped: recording.dropped,
    realAddresses: recording.realAddresses, placedBy: '', damage: recording.damage, events, duration: events ? recording.time[events - 1] : 0, blocks: blocks.length,
    peak: { event: peak, live: events ? live[peak] : 0, inUse: lifetimes.mostInUse(), rounded: knowsRounding(recording, events) ? blocks.reduce((sum, block) => sum + (livesAt(block, peak) ? block.rounded : 0), 0) : 0 },
    knowsReserved: reserved !== null, reservedPeak: reserved ? reserved.reduce((most, size) => Math.max(most, size), 0) : 0, pageBytes: pageSize,
    groupings: groupings.map(({ name, labels }) => ({ name, labels })),
    shift: finest.shift, bins: finest.time.length, levels: levels.length, levelShift: madeLevelShift, tileBins: madeTileBins, blockLevels,
    smallBelow: selected.smallBelow, leftOutBelow: selected.leftOutBelow, keyMoments: Float64Array.from(selected.keyMoments), regions: usedAddresses(lifetimes),
    tags: recording.tags.map((_, tag) => tagLabel(recording, tag)), streams: recording.streams.map((_, stream) => streamLabel(recording, stream)),
    siteCount: lifetimes.sites.length, hasStacks: recording.stacks.length > 0, sites: sitesOf(lifetimes, tallies), leakCount: leaks.length, leaks: leaks.slice(0, madeLimits.sites),
    recorded: recording.peaks, policies: [], oomCount: allOoms, ooms, markerCount: markers.length, markers: markers.slice(0, madeLimits.markers), card: { size: 0, left: 0, trials: [] },
    suspensionCount: suspensions.length, suspensions: suspensions.slice(0, madeLimits.suspensions),
  };
  return new MadeRun(index, levels, lifetimes, groupings, buckets);
}

class MadeRun {
  constructor(index, levels, lifetimes, groupings, buckets) {
    this.index = index;
    this.arrived = null;
    this.series = new MadeSeries(index, levels, () => this.arrived?.());
    this.blockIndex = new MadeBlockIndex(index, lifetimes, groupings, buckets);
  }
}
