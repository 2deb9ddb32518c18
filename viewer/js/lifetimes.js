// SPDX-License-Identifier: Apache-2.0
// What the events of a recording come to: the lifetimes of blocks and of physical memory. src/report/history.cpp does the
// same.

const pageSize = 2 << 20;
const mostNumber = 2 ** 64 - 1;
const sizeWithin = (address, size) => Math.min(size, mostNumber - address);

// Values by ascending key. In buckets, so that many are no trouble.
class SortedMap {
  constructor() {
    this.buckets = [[]];  // of [key, value]; none but the only one is empty
  }

  // The place of the first key that is not below `key`: [bucket, index].
  place(key) {
    let low = 0;
    let high = this.buckets.length - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.buckets[middle].at(-1)[0] >= key) high = middle;
      else low = middle + 1;
    }
    const bucket = this.buckets[low];
    let [first, last] = [0, bucket.length];
    while (first < last) {
      const middle = (first + last) >> 1;
      if (bucket[middle][0] >= key) last = middle;
      else first = middle + 1;
    }
    return [low, first];
  }

  set(key, value) {
    const [b, i] = this.place(key);
    const bucket = this.buckets[b];
    if (bucket[i]?.[0] === key) {
      bucket[i][1] = value;
      return;
    }
    bucket.splice(i, 0, [key, value]);
    if (bucket.length > 512) this.buckets.splice(b + 1, 0, bucket.splice(256));
  }

  // Takes out the entries of [from, to), and the one before them.
  takeRange(from, to) {
    let [b, i] = this.place(from);
    if (i > 0) --i;
    else if (b > 0) i = this.buckets[--b].length - 1;
    const taken = [];
    while (b < this.buckets.length && i < this.buckets[b].length) {
      const bucket = this.buckets[b];
      let end = i;
      while (end < bucket.length && bucket[end][0] < to) ++end;
      const isRest = end === bucket.length;
      taken.push(...bucket.splice(i, end - i));
      if (!bucket.length && this.buckets.length > 1) this.buckets.splice(b, 1);
      else ++b;
      if (!isRest) break;
      i = 0;
    }
    return taken;
  }

  entries() {
    return this.buckets.flat();
  }
}

// Physical memory as it is mapped, moved and unmapped; pieces of a reservation may go on their own.
class Mappings {
  constructor() {
    this.mapped = new SortedMap();  // {size, since, pool} by address
    this.spans = [];
  }

  map(address, wanted, event, pool) {
    const size = sizeWithin(address, wanted);
    this.unmap(address, size, event);  // the release of what was mapped there before was not recorded
    if (size) this.mapped.set(address, { size, since: event, pool });
  }

  unmap(address, size, event) {
    const end = address + sizeWithin(address, size);
    for (const [from, piece] of this.mapped.takeRange(address, end)) {
      const to = from + piece.size;
      if (to <= address || from >= end) {
        this.mapped.set(from, piece);
        continue;
      }
      const cut = Math.max(from, address);
      const cutEnd = Math.min(to, end);
      this.spans.push({ address: cut, size: cutEnd - cut, start: piece.since, end: event, pool: piece.pool });
      if (from < cut) this.mapped.set(from, { ...piece, size: cut - from });
      if (cutEnd < to) this.mapped.set(cutEnd, { ...piece, size: to - cutEnd });
    }
  }

  finish(events) {
    for (const [address, { size, since, pool }] of this.mapped.entries()) this.spans.push({ address, size, start: since, end: events, pool });
    return this.spans.sort((a, b) => a.start - b.start || a.address - b.address);
  }
}

// Everything that later steps need of the events:
//   blocks {address, size, rounded, start, end, site, stream, tag, pool}, by start; live after event `start`, before `end`
//   spans {address, size, start, end, pool} of physical memory, by start
//   sites {stack, size}: a stack's number plus one, or without stacks a size
//   freed: blocks in the order of their frees; live, reserved: bytes after each event (reserved: null if not known)
//   peak: the event after which most was live
class Lifetimes {
  constructor(recording) {
    const { count } = recording;
    this.recording = recording;
    this.events = count;
    this.blocks = [];
    this.sites = [];
    this.suspensions = [];  // {pool, start, end, size, kept, blocks: those that were live}: without physical memory
    this.suspended = new Map();  // that of each pool
    this.freed = [];
    this.live = new Float64Array(count);
    this.reserved = null;
    this.peak = 0;
    this.liveNow = 0;
    this.reservedNow = 0;
    this.at = new Map();  // live blocks by address
    this.siteNumbers = new Map();
    this.siteNames = new Map();
    this.mappings = new Mappings();
  }

  async read(pause) {
    for (let i = 0; i < this.events; ++i) {
      if (i % 100_000 === 0) await pause();
      this.apply(i);
      this.live[i] = this.liveNow;
      if (this.liveNow > this.live[this.peak]) this.peak = i;
      if (this.reserved) this.reserved[i] = this.reservedNow;
    }
    this.spans = this.mappings.finish(this.events);
    return this;
  }

  apply(i) {
    const { recording } = this;
    const [kind, address, size] = [recording.kind[i], recording.address[i], recording.size[i]];
    if (kind === kinds.allocate) this.allocate(i, address, sizeWithin(address, size));
    else if (kind === kinds.deallocate) this.end(address, i);
    else if (kind === kinds.suspended || kind === kinds.resumed) this.suspend(i, kind);
    else if (!recording.realAddresses) return;
    else if (kind === kinds.reserve) {
      this.changeReserved(size);
      this.mappings.map(address, size, i, recording.pool[i]);
    } else if (kind === kinds.move) {
      this.mappings.unmap(recording.extra[i], size, i);
      this.mappings.map(address, size, i, recording.pool[i]);
    } else if (kind === kinds.release) {
      this.changeReserved(-Math.min(this.reservedNow, size));
      this.mappings.unmap(address, size, i);
    }
  }

  suspend(i, kind) {
    const { recording } = this;
    const pool = recording.pool[i];
    if (this.suspended.has(pool)) this.suspended.get(pool).end = i;
    this.suspended.delete(pool);
    if (kind === kinds.resumed) return;
    const blocks = [...this.at.values()].filter((block) => this.blocks[block].pool === pool).sort((a, b) => a - b);
    const begun = { pool, start: i, end: this.events, size: recording.size[i], kept: recording.extra[i], blocks };
    this.suspended.set(pool, begun);
    this.suspensions.push(begun);
  }

  changeReserved(by) {
    this.reserved ??= new Float64Array(this.events);
    this.reservedNow += by;
  }

  allocate(i, address, size) {
    const { recording } = this;
    this.end(address, i);
    this.at.set(address, this.blocks.length);
    this.blocks.push({
      address, size, rounded: sizeWithin(address, Math.max(size, recording.extra[i])), start: i, end: this.events, site: this.siteOf(i),
      stream: recording.stream[i], tag: recording.tag[i], pool: recording.pool[i],
    });
    this.liveNow += size;
  }

  end(address, i) {
    const number = this.at.get(address);
    if (number === undefined) return;
    const block = this.blocks[number];
    block.end = i;
    this.liveNow -= block.size;
    this.freed.push(number);
    this.at.delete(address);
  }

  siteOf(i) {
    const { recording } = this;
    const byStack = recording.stacks.length > 0;
    const stack = byStack && recording.other[i] <= recording.stacks.length ? recording.other[i] : 0;
    const key = byStack ? stack : recording.size[i];
    let number = this.siteNumbers.get(key);
    if (number === undefined) {
      // Sizes that read the same are one.
      const name = byStack ? key : bytesText(key);
      number = this.siteNames.get(name) ?? this.sites.length;
      this.siteNumbers.set(key, number);
      this.siteNames.set(name, number);
      if (number === this.sites.length) this.sites.push({ stack, size: byStack ? 0 : key });
    }
    return number;
  }

  // Calls begin(block) and end(block) in the order of the events, and after(event) behind each.
  walk(begin, end, after = () => {}) {
    let [block, freed] = [0, 0];
    for (let event = 0; event < this.events; ++event) {
      while (freed < this.freed.length && this.blocks[this.freed[freed]].end === event) end(this.freed[freed++]);
      while (block < this.blocks.length && this.blocks[block].start === event) begin(block++);
      after(event);
    }
  }

  // The frees that are followed by a moment from which the memory is reusable, as events.
  twoStepFrees() {
    const { recording } = this;
    const found = new Set();
    const later = new Set();  // addresses that become reusable
    for (let i = this.events - 1; i >= 0; --i) {
      const address = recording.address[i];
      if (recording.kind[i] === kinds.reusable) later.add(address);
      else if (recording.kind[i] === kinds.allocate) later.delete(address);
      else if (recording.kind[i] === kinds.deallocate && later.delete(address)) found.add(i);
    }
    return found;
  }

  // The most that was in use: from the request until the memory could be used again.
  mostInUse() {
    const { recording } = this;
    if (!recording.kind.subarray(0, this.events).includes(kinds.reusable)) return this.events ? this.live[this.peak] : 0;
    const waits = this.twoStepFrees();
    const sizes = new Map();
    let [inUse, most] = [0, 0];
    for (let i = 0; i < this.events; ++i) {
      const isRequest = recording.kind[i] === kinds.allocate;
      const isEnd = recording.kind[i] === kinds.reusable || (recording.kind[i] === kinds.deallocate && !waits.has(i));
      if (!isRequest && !isEnd) continue;
      const address = recording.address[i];
      inUse -= sizes.get(address) ?? 0;
      sizes.delete(address);
      if (isRequest && recording.size[i]) {
        sizes.set(address, recording.size[i]);
        inUse += recording.size[i];
      }
      most = Math.max(most, inUse);
    }
    return most;
  }
}

const livesAt = ({ start, end }, event) => start <= event && event < end;
