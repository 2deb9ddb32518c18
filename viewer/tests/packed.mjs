// SPDX-License-Identifier: Apache-2.0
// Pages from figures that are given, as src/report packs them: tests that know every number need no
// recording. What is packed, and in which order, is said in src/report/page.cpp.
import { readFileSync } from 'node:fs';
import { deflateRawSync } from 'node:zlib';

const root = new URL('../../', import.meta.url);
const read = (name) => readFileSync(new URL(name, root), 'utf8');

class Packer {
  bytes = [];

  number(value) {
    let rest = BigInt(value);
    for (; rest >= 128n; rest >>= 7n) this.bytes.push(Number(128n | (rest & 127n)));
    this.bytes.push(Number(rest));
    return this;
  }

  difference(value, before) {
    const change = BigInt.asIntN(64, BigInt(value) - BigInt(before));
    return this.number(change < 0n ? -2n * change - 1n : 2n * change);
  }

  differences(values) {
    values.forEach((value, i) => this.difference(value, i ? values[i - 1] : 0));
    return this;
  }

  numbers(values) {
    for (const value of values) this.number(value);
    return this;
  }

  flag(value) {
    return this.number(value ? 1 : 0);
  }

  text(value) {
    const bytes = new TextEncoder().encode(value);
    this.number(bytes.length).bytes.push(...bytes);
    return this;
  }

  list(values, pack) {
    this.number(values.length);
    for (const value of values) pack(value);
    return this;
  }

  get packed() {
    return deflateRawSync(Uint8Array.from(this.bytes)).toString('base64');
  }
}

// --- Series: bins of the finest level, {time, moment, low, reserved, stacks: [grouping][group]} --------

const total = (bin) => bin.stacks[0].reduce((sum, value) => sum + value, 0);

function coarser(fine, parts) {
  const out = [];
  for (let first = 0; first < fine.length; first += parts) {
    const bins = fine.slice(first, first + parts);
    const highest = bins.reduce((best, bin) => (total(bin) > total(best) ? bin : best));
    out.push({ ...highest, time: bins[0].time, low: Math.min(...bins.map((bin) => bin.low)), reserved: Math.max(...bins.map((bin) => bin.reserved)) });
  }
  return out;
}

function packSeries(about, chunks) {
  const levels = [about.bins];
  while (levels.length < about.levels) levels.push(coarser(levels.at(-1), 2 ** about.levelShift));
  for (let level = about.levels - 1; level >= 0; --level) {
    const width = 2 ** (about.shift + level * about.levelShift);
    for (let first = 0; first < levels[level].length; first += about.tileBins) {
      const bins = levels[level].slice(first, first + about.tileBins);
      const frame = new Packer().differences(bins.map((bin) => bin.time));
      frame.numbers(bins.map((bin, i) => bin.moment - (first + i) * width)).differences(bins.map((bin) => bin.low));
      if (about.knowsReserved) frame.differences(bins.map((bin) => bin.reserved));
      chunks.push(frame.packed);
      about.groupings.forEach(({ labels }, g) => {
        const stacks = new Packer();
        labels.forEach((_, group) => stacks.differences(bins.map((bin) => bin.stacks[g][group])));
        chunks.push(stacks.packed);
      });
    }
    if (level === about.levels - 1) about.earlyChunks = chunks.length;
  }
}

// --- Blocks {start, end, address, size, rounded, tag, stream, site, pool, groups} and spans of physical memory -

function packBlocks(about, chunks) {
  const levels = [];
  for (let width = about.firstWidth, shorter = 0; about.events; width *= 4) {
    const count = Math.ceil(about.events / width);
    const { from } = { from: shorter };
    const inBucket = (bucket) => ({ start, end }) => end - start > from && end - start <= width && Math.floor(start / width) === bucket;
    for (let bucket = 0; bucket < count; ++bucket) {
      const blocks = about.blocks.filter(inBucket(bucket));
      const out = new Packer().number(blocks.length).differences(blocks.map((b) => b.start)).numbers(blocks.map((b) => b.end - b.start));
      out.differences(blocks.map((b) => b.address)).numbers(blocks.map((b) => b.size)).numbers(blocks.map((b) => BigInt(b.rounded) - BigInt(b.size)));
      for (const name of ['tag', 'stream', 'site']) out.numbers(blocks.map((b) => b[name]));
      out.numbers(blocks.map((b) => b.pool ?? 0));
      about.groupings.forEach((_, g) => out.numbers(blocks.map((b) => b.groups[g])));
      let before = { start: 0, address: 0 };
      out.list(about.spans.filter(inBucket(bucket)), (span) => {
        out.difference(span.start, before.start).number(span.end - span.start).difference(span.address, before.address).number(span.size);
        before = span;
      });
      chunks.push(out.packed);
    }
    levels.push({ width, count });
    if (width >= about.events) break;
    shorter = width;
  }
  return levels;
}

function packIndex(about, blockLevels, chunks) {
  const out = new Packer().number(about.version);
  for (const name of ['weir', 'file', 'program', 'device']) out.text(about[name]);
  out.number(about.capacity).number(about.dropped).flag(about.realAddresses).text(about.placedBy).flag(about.damage);
  if (about.damage) out.number(about.damage.offset).text(about.damage.reason);
  out.number(about.events).number(about.duration).number(about.blockCount);
  out.number(about.peak.event).number(about.peak.live).number(about.peak.inUse).number(about.peak.rounded);
  out.flag(about.knowsReserved).number(about.reservedPeak).number(about.pageBytes);
  out.list(about.groupings, ({ name, labels }) => out.text(name).list(labels, (label) => out.text(label)));

  out.number(about.shift).number(about.bins.length).number(about.levels).number(about.levelShift).number(about.tileBins);
  out.list(blockLevels, ({ width, count }) => out.number(width).number(count));
  out.number(chunks.length).number(about.earlyChunks).numbers(chunks.map((chunk) => chunk.length));
  out.number(about.smallBelow).number(about.leftOutBelow).number(about.keyMoments.length).differences(about.keyMoments);
  out.list(about.regions, ({ address, size }) => out.number(address).number(size));

  out.list(about.tags, (tag) => out.text(tag)).list(about.streams, (stream) => out.text(stream));
  out.number(about.siteCount).flag(about.hasStacks).list(about.sites, (site) => {
    out.number(site.number).text(site.label);
    for (const name of ['blocks', 'bytes', 'most', 'atPeak', 'atEnd', 'lifetime']) out.number(site[name]);
    for (const frame of site.frames) out.flag(true).text(frame);
    out.flag(false);
  });
  out.number(about.leakCount).list(about.leaks, (leak) => {
    out.number(leak.site).text(leak.label);
    for (const name of ['tag', 'blocks', 'bytes', 'first', 'last']) out.number(leak[name]);
  });
  out.list(about.recorded, (row) => out.text(row.name).number(row.requested).number(row.reserved));
  out.list(about.policies, (row) => {
    out.text(row.name);
    for (const name of ['requested', 'reserved', 'calls', 'driverTime', 'waits', 'ooms', 'fit']) out.number(row[name]);
    out.number(row.samples.length);
    row.samples.forEach((sample, i) => out.difference(sample.time, i ? row.samples[i - 1].time : 0).number(sample.reserved));
  });
  out.number(about.oomCount).list(about.ooms, (oom) => {
    for (const name of ['event', 'time', 'requested', 'stream', 'live', 'rounded', 'reserved', 'limit', 'free', 'pieces', 'longest']) out.number(oom[name]);
    out.text(oom.verdict).list(oom.tags, ({ label, size }) => out.text(label).number(size));
  });
  out.number(about.markerCount).list(about.markers, ({ event, time, text }) => out.number(event).number(time).text(text));
  const holders = (all) => out.list(all, ({ label, bytes, blocks }) => out.text(label).number(bytes).number(blocks));
  out.number(about.card.size).number(about.card.left).list(about.card.trials, (trial) => {
    out.text(trial.name).flag(trial.fits);
    if (trial.fits) return;
    for (const name of ['event', 'time', 'requested', 'live', 'waiting']) out.number(trial[name]);
    for (const name of ['tags', 'sites', 'sizes']) holders(trial[name]);
  });
  out.number(about.suspensionCount).list(about.suspensions, (each) => {
    for (const name of ['pool', 'start', 'end', 'from', 'to', 'size', 'kept']) out.number(each[name]);
  });
  return out.packed;
}

// --- The page --------------------------------------------------------------------------------------

export const scripts = /WEIR_VIEWER_SCRIPTS ([^)]*)/.exec(read('cmake/weir_viewer.cmake'))[1].split(/\s+/);

// The page begins when its figures are inflated, which is later than this.
const expose = `{
  const { open } = Page.prototype;
  Page.prototype.open = function () {
    globalThis.report = this;
    return open.call(this);
  };
}
`;

// A run of `figures`, as the page carries it; those not given are those of an empty recording.
function packedRun(figures) {
  const about = {
    version: 2, weir: '1.2.3', file: '', program: '', device: '', capacity: 0, dropped: 0, realAddresses: true, placedBy: '', damage: null,
    events: 0, duration: 0, blockCount: 0, peak: { event: 0, live: 0, inUse: 0, rounded: 0 }, knowsReserved: false, reservedPeak: 0, pageBytes: 2 << 20,
    groupings: [], shift: 0, bins: [], levels: 1, levelShift: 2, tileBins: 8, firstWidth: 16, blocks: [], spans: [],
    smallBelow: 0, leftOutBelow: 0, keyMoments: [], regions: [], tags: [], streams: [], siteCount: 0, hasStacks: false, sites: [], leakCount: 0, leaks: [],
    recorded: [], policies: [], oomCount: 0, ooms: [], markerCount: 0, markers: [], card: { size: 0, left: 0, trials: [] }, suspensionCount: 0, suspensions: [], ...figures,
  };
  const chunks = [];
  about.earlyChunks = 0;
  packSeries(about, chunks);
  const blockLevels = packBlocks(about, chunks);
  return { index: packIndex(about, blockLevels, chunks), early: chunks.slice(0, about.earlyChunks).join(''), store: chunks.slice(about.earlyChunks).join('') };
}

// What differs, as src/report/differences.cpp packs it.
function packDifferences({ figures, groupings }) {
  const out = new Packer();
  out.list(figures, ({ title, isSize, before, after }) => out.text(title).flag(isSize).number(before).number(after));
  out.list(groupings, ({ name, count, groups }) => out.text(name).number(count).list(groups, (group) => {
    out.text(group.name);
    for (const figure of ['before', 'after', 'blocksBefore', 'blocksAfter']) out.number(group[figure]);
  }));
  return out.packed;
}

// The text of a page that shows `figures`. Its classes and functions can be reached from outside, and the page itself
// as `report`. `style`: more of it; `other`: {figures, differences} of the run that it is compared with.
export function packedPage(figures, style = '', other = null) {
  const run = packedRun(figures);
  const second = other ? packedRun(other.figures) : { index: '', early: '', store: '' };
  const script = scripts.map((name) => read(`viewer/js/${name}`)).join('');
  const places = {
    style: read('viewer/style.css') + style, script: `'use strict';\n${script}${expose}`, ...run,
    differences: other ? packDifferences(other.differences) : '', other_index: second.index, other_early: second.early, other_store: second.store,
  };
  return read('viewer/page.html').replace(/@(\w+)@/g, (mark, name) => places[name]);
}

// The text of a page that weir report wrote, with the script of this folder: what is inside can be reached.
export function readInPage(html) {
  const script = scripts.map((name) => read(`viewer/js/${name}`)).join('');
  const begin = html.indexOf('<script>\n') + '<script>\n'.length;
  const end = html.indexOf('</script>', begin);
  return `${html.slice(0, begin)}'use strict';\n${script}${expose}${html.slice(end)}`;
}
