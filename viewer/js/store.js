// SPDX-License-Identifier: Apache-2.0
// The store: pieces of the page, inflated on demand; the least recently used are dropped.

class Store {
  // `prefix`: of the elements that hold the pieces.
  constructor(index, prefix = '') {
    this.index = index;
    this.prefix = prefix;
    this.offsets = [];
    let at = 0;
    index.lengths.forEach((length, i) => {
      if (i === index.earlyChunks) at = 0;  // the two texts count for themselves
      this.offsets.push(at);
      at += length;
    });
    this.early = byId(`${prefix}early`).textContent;
    this.rest = null;
    this.parsed = new Promise((resolve) => {
      if (document.readyState !== 'loading') resolve();
      else document.addEventListener('DOMContentLoaded', () => resolve());
    });
  }

  async chunk(number) {
    const early = number < this.index.earlyChunks;
    if (!early && this.rest === null) {
      await this.parsed;
      this.rest = byId(`${this.prefix}store`).textContent;
    }
    const from = this.offsets[number];
    return inflate((early ? this.early : this.rest).substring(from, from + this.index.lengths[number]));
  }
}

// Decoded pieces by number: those not asked for the longest go first.
class Cache {
  constructor(most, load, arrived) {
    this.most = most;
    this.load = load;
    this.arrived = arrived;
    this.clock = 0;
    this.items = new Map();
    this.pending = new Map();
  }

  // What is there, or undefined; it will have arrived later.
  peek(key) {
    const item = this.items.get(key);
    if (item !== undefined) item.used = ++this.clock;
    else this.get(key);
    return item;
  }

  // A quarter at a time, so that it is rarely needed.
  forget() {
    const oldest = [...this.items].sort(([, a], [, b]) => a.used - b.used);
    for (const [key] of oldest.slice(0, Math.ceil(this.most / 4))) this.items.delete(key);
  }

  get(key) {
    if (this.items.has(key)) return Promise.resolve(this.peek(key));
    let coming = this.pending.get(key);
    if (!coming) {
      coming = this.load(key).then((item) => {
        this.pending.delete(key);
        item.used = ++this.clock;
        this.items.set(key, item);
        if (this.items.size > this.most) this.forget();
        if (this.arrived) this.arrived();
        return item;
      });
      this.pending.set(key, coming);
    }
    return coming;
  }
}

// Memory over time at every level; level 0 is the finest.
class Series {
  constructor(index, store, arrived) {
    this.index = index;
    this.store = store;
    const kinds = 1 + index.groupings.length;
    this.levels = [];
    let chunk = 0;
    for (let level = index.levels - 1; level >= 0; --level) {
      const bins = Math.ceil(index.bins / 2 ** (level * index.levelShift));
      this.levels[level] = { bins, first: chunk, binEvents: 2 ** (index.shift + level * index.levelShift) };
      chunk += Math.ceil(bins / index.tileBins) * kinds;
    }
    this.chunks = chunk;
    this.top = Math.max(0, index.levels - 1);
    this.loads = 0;
    this.kept = new Map();  // the coarsest level: always there to fall back to
    this.cache = new Cache(1500, (key) => this.read(key), arrived);
  }

  // kind 0 is the frame, 1 + g the stacks of grouping g.
  key(level, tile, kind) {
    return (this.levels[level].first + tile * (1 + this.index.groupings.length) + kind);
  }

  async read(chunk) {
    const kinds = 1 + this.index.groupings.length;
    const level = this.levels.findIndex((l) => chunk >= l.first);
    const tile = Math.floor((chunk - this.levels[level].first) / kinds);
    const kind = (chunk - this.levels[level].first) % kinds;
    const count = Math.min(this.index.tileBins, this.levels[level].bins - tile * this.index.tileBins);
    return this.piece(chunk, level, tile, kind, count);
  }

  async piece(chunk, level, tile, kind, count) {
    const reader = await this.store.chunk(chunk);
    return kind === 0 ? this.readFrame(reader, level, tile, count) : this.readStacks(reader, kind - 1, count);
  }

  readFrame(reader, level, tile, count) {
    const { binEvents } = this.levels[level];
    const time = reader.differences(count);
    const moment = reader.numbers(count);
    for (let i = 0; i < count; ++i) moment[i] += (tile * this.index.tileBins + i) * binEvents;
    const low = reader.differences(count);
    return { count, time, moment, low, reserved: this.index.knowsReserved ? reader.differences(count) : null };
  }

  readStacks(reader, grouping, count) {
    const groups = this.index.groupings[grouping].labels.length;
    const values = new Float64Array(count * groups);
    const total = new Float64Array(count);
    for (let g = 0; g < groups; ++g) {
      let before = 0;
      for (let i = 0; i < count; ++i) {
        before = reader.difference(before);
        values[i * groups + g] = before;
        total[i] += before;
      }
    }
    return { groups, values, total };
  }

  async loadTop(kinds) {
    if (!this.index.bins) return;
    const tiles = Math.ceil(this.levels[this.top].bins / this.index.tileBins);
    const keys = [];
    for (let tile = 0; tile < tiles; ++tile) for (const kind of kinds) keys.push(this.key(this.top, tile, kind));
    await Promise.all(keys.map(async (key) => this.kept.set(key, await this.read(key))));
    ++this.loads;
  }

  tile(level, tile, kind) {
    const key = this.key(level, tile, kind);
    return this.kept.get(key) || this.cache.peek(key);
  }

  // The event, with a fraction, at a time. No finer level is asked than what `precision`, in
  // nanoseconds, needs: otherwise a look at the whole would load every piece there is.
  eventAt(time, precision = 0) {
    const { tileBins, events, duration } = this.index;
    if (time >= duration) return events;
    if (time <= 0) return 0;
    let from = 0;
    let to = this.levels[this.top].bins;
    let found = [0, 0, 0, 0];
    for (let level = this.top; level >= 0; --level) {
      const { bins, binEvents } = this.levels[level];
      to = Math.min(to, bins);
      let low = from;
      let high = to - 1;
      let missing = false;
      const timeOf = (bin) => {
        if (bin >= bins) return duration;
        const frame = this.tile(level, Math.floor(bin / tileBins), 0);
        if (!frame) missing = true;
        return frame ? frame.time[bin % tileBins] : 0;
      };
      while (low < high && !missing) {
        const middle = (low + high + 1) >> 1;
        if (timeOf(middle) <= time) low = middle;
        else high = middle - 1;
      }
      const begin = timeOf(low);
      const end = timeOf(low + 1);
      if (missing) break;
      found = [low * binEvents, Math.min(events, (low + 1) * binEvents), begin, end];
      if (end - begin <= precision) break;
      from = low << this.index.levelShift;
      to = (low + 1) << this.index.levelShift;
    }
    const [first, last, begin, end] = found;
    if (last - first <= 1) return first + 0.5;
    // Before the first event there is nothing: the time may lie before the first bin.
    return first + (last - first) * (end > begin ? Math.max(0, Math.min(1, (time - begin) / (end - begin))) : 0);
  }

  // The time of an event, as exactly as the bins know it.
  timeAt(event) {
    const { tileBins, duration, events } = this.index;
    if (event >= events) return duration;
    for (let level = 0; level <= this.top; ++level) {
      const { bins, binEvents } = this.levels[level];
      const bin = Math.min(bins - 1, Math.floor(event / binEvents));
      const frame = this.tile(level, Math.floor(bin / tileBins), 0);
      if (!frame) continue;
      const begin = frame.time[bin % tileBins];
      const next = bin + 1 < bins ? this.tile(level, Math.floor((bin + 1) / tileBins), 0) : null;
      const end = bin + 1 >= bins ? duration : next ? next.time[(bin + 1) % tileBins] : begin;
      return begin + (end - begin) * (event / binEvents - bin);
    }
    return 0;
  }

  // Whether timeAt(event) is exact already.
  knowsTime(event) {
    if (event >= this.index.events) return true;
    const { bins, binEvents } = this.levels[0];
    const bin = Math.min(bins - 1, Math.floor(event / binEvents));
    return [bin, Math.min(bins - 1, bin + 1)].every((at) => this.tile(0, Math.floor(at / this.index.tileBins), 0));
  }

  // Until timeAt(event) is exact: it asks for the event's bin and for the next.
  async loadTime(event) {
    const { bins, binEvents } = this.levels[0];
    const bin = Math.min(bins - 1, Math.floor(event / binEvents));
    for (const at of [bin, Math.min(bins - 1, bin + 1)]) await this.cache.get(this.key(0, Math.floor(at / this.index.tileBins), 0));
  }

  // The highest bin among events [from, to): what is known of it at the best level that is here.
  // `least` is the finest level to ask for.
  highest(from, to, grouping, least = 0) {
    const { tileBins, shift, levelShift } = this.index;
    const width = Math.max(1, (to - from) / 2 ** shift);
    let level = Math.max(least, Math.min(this.top, Math.floor(Math.log2(width) / levelShift)));
    for (; level <= this.top; ++level) {
      const { bins, binEvents } = this.levels[level];
      const first = Math.min(bins - 1, Math.floor(from / binEvents));
      const last = Math.min(bins - 1, Math.max(first, Math.ceil(to / binEvents) - 1));
      let best = null;
      let missing = false;
      for (let bin = first; bin <= last && !missing; ++bin) {
        const tile = Math.floor(bin / tileBins);
        const frame = this.tile(level, tile, 0);
        const stacks = this.tile(level, tile, 1 + grouping);
        if (!frame || !stacks) {
          missing = true;
          break;
        }
        const at = bin % tileBins;
        const low = frame.low[at];
        const reserved = frame.reserved ? frame.reserved[at] : 0;
        if (!best) best = { stacks, at, total: stacks.total[at], low, reserved, moment: frame.moment[at], level };
        else {
          best.low = Math.min(best.low, low);
          best.reserved = Math.max(best.reserved, reserved);
          if (stacks.total[at] > best.total) {
            best.total = stacks.total[at];
            best.stacks = stacks;
            best.at = at;
            best.moment = frame.moment[at];
          }
        }
      }
      if (!missing) return best;
    }
    return null;
  }
}

// Blocks and physical memory of a moment.
class BlockIndex {
  constructor(index, store, firstChunk) {
    this.index = index;
    this.levels = [];
    let chunk = firstChunk;
    for (const { width, count } of index.blockLevels) {
      this.levels.push({ width, count, first: chunk });
      chunk += count;
    }
    this.cache = new Cache(80, async (key) => this.read(await store.chunk(key)));
  }

  read(r) {
    const count = r.number();
    const blocks = { count, start: r.differences(count), length: r.numbers(count), address: r.differences(count),
      size: r.numbers(count), rounding: r.numbers(count), tag: r.numbers(count), stream: r.numbers(count), site: r.numbers(count), pool: r.numbers(count) };
    // The upper half of 64 bits comes out negative.
    for (let i = 0; i < count; ++i) if (blocks.address[i] < 0) blocks.address[i] += 2 ** 64;
    blocks.groups = this.index.groupings.map(() => Uint8Array.from(r.numbers(count)));
    let start = 0;
    let address = 0;
    const spans = r.list(() => ({ start: (start = r.difference(start)), length: r.number(),
      address: (address = r.difference(address)), size: r.number() }));
    return { blocks, spans };
  }

  // {blocks, spans} live right after `event`, by address. Small blocks as of `small`.
  async at(event) {
    const { smallBelow, keyMoments } = this.index;
    let small = event;
    if (keyMoments.length) {
      small = keyMoments[0];
      for (const moment of keyMoments) if (moment <= event) small = moment;
    }
    const keys = new Set();
    for (const { width, count, first } of this.levels) {
      for (const when of [event, small]) {
        const bucket = Math.floor(when / width);
        if (bucket < count) keys.add(first + bucket);
        if (bucket > 0) keys.add(first + bucket - 1);
      }
    }
    const buckets = await Promise.all([...keys].map((key) => this.cache.get(key)));
    const blocks = [];
    const spans = [];
    for (const bucket of buckets) {
      const b = bucket.blocks;
      for (let i = 0; i < b.count; ++i) {
        const when = b.size[i] < smallBelow ? small : event;
        if (b.start[i] > when || when >= b.start[i] + b.length[i]) continue;
        blocks.push({ address: b.address[i], size: b.size[i], rounded: b.size[i] + b.rounding[i], start: b.start[i],
          end: b.start[i] + b.length[i], tag: b.tag[i], stream: b.stream[i], site: b.site[i], pool: b.pool[i], groups: b.groups.map((g) => g[i]) });
      }
      for (const s of bucket.spans) if (s.start <= event && event < s.start + s.length) spans.push(s);
    }
    const byAddress = (a, b) => a.address - b.address;
    return { event, small, blocks: blocks.sort(byAddress), spans: spans.sort(byAddress) };
  }
}

// A recording in the page: its figures, and the pieces of them. `arrived` is told of pieces.
class Run {
  constructor(index, store) {
    this.index = index;
    this.arrived = null;
    this.series = new Series(index, store, () => this.arrived?.());
    this.blockIndex = new BlockIndex(index, store, this.series.chunks);
  }
}
