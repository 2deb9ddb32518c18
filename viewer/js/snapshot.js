// SPDX-License-Identifier: Apache-2.0
// PyTorch's snapshots: the pickle as far as it is data, and the recording in it. src/formats/pickle.cpp and
// torch_snapshot.cpp do the same.

const mostLevels = 32;
const mostMarks = 64;
const mostValues = 1 << 25;

class PickleReal {
  constructor(value) {
    this.value = value;
  }
}

// Decoded when it is asked for.
class PickleText {
  constructor(bytes) {
    this.bytes = bytes;
    this.text = null;
  }

  toString() {
    this.text ??= Reader.decoder.decode(this.bytes);
    return this.text;
  }
}

// A list, tuple or dict (keys and values by turns). One that is part of another is closed: it is not changed any more, so
// nothing can come to be inside itself.
class PickleContainer {
  constructor(type) {
    this.type = type;
    this.values = [];
    this.height = 1;
    this.closed = false;
  }

  // Of a dict: what it has under the key, the last of several.
  find(key) {
    const { values } = this;
    for (let i = values.length; i >= 2; i -= 2) if (values[i - 2] instanceof PickleText && String(values[i - 2]) === key) return values[i - 1];
    return undefined;
  }
}

const refused = new Map(Object.entries({ c: 'GLOBAL', '\x93': 'STACK_GLOBAL', R: 'REDUCE', b: 'BUILD', i: 'INST', o: 'OBJ', '\x81': 'NEWOBJ', '\x92': 'NEWOBJ_EX',
  '\x82': 'EXT', '\x83': 'EXT', '\x84': 'EXT', P: 'PERSID', Q: 'PERSID' }));

const isPickle = (bytes) => bytes.length >= 2 && bytes[0] === 0x80 && bytes[1] >= 2 && bytes[1] <= 5;

// A machine with a stack, without recursion and without classes.
class Unpickler {
  constructor(bytes) {
    this.bytes = bytes;
    this.view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
    this.at = 0;
    this.stack = [];
    this.marks = [];
    this.memo = [];
    this.values = 0;  // that were ever put on the stack
    this.instructions = this.table();
  }

  run() {
    for (;;) {
      const offset = this.at;
      try {
        if (!this.step()) return this.stack[0];
      } catch (problem) {
        if (problem instanceof Damage) throw new FileProblem(`offset ${offset}: ${problem.reason}`);
        throw problem;
      }
    }
  }

  // False behind the last.
  step() {
    const op = String.fromCharCode(this.little(1));
    if (op === '.') {
      if (this.marks.length || this.stack.length !== 1) throw new Damage('the pickle is incomplete');
      return false;
    }
    const instruction = this.instructions[op];
    if (instruction) instruction();
    else if (refused.has(op)) throw new Damage(`the pickle creates objects of classes (${refused.get(op)}), which is refused`);
    else throw new Damage('an instruction that snapshots do not use');
    return true;
  }

  table() {
    const at = (count, go) => () => go(this.little(count));
    const tuples = { '\x85': 1, '\x86': 2, '\x87': 3 };
    return {
      '\x80': at(1, (protocol) => { if (protocol < 2 || protocol > 5) throw new Damage("unsupported pickle protocol; expected 2 to 5"); }),
      '\x95': () => this.take(8),  // a frame, for readers that read ahead
      '(': () => {
        if (this.marks.length >= mostMarks) throw new Damage('the pickle is nested too deep');
        this.marks.push(this.stack.length);
      },
      0: () => this.pop(1),
      N: () => this.push(null),
      '\x88': () => this.push(true),
      '\x89': () => this.push(false),
      K: at(1, (value) => this.push(value)),
      M: at(2, (value) => this.push(value)),
      J: at(4, (value) => this.push(value | 0)),
      '\x8a': at(1, (size) => this.long(size)),
      '\x8b': at(4, (size) => this.long(size)),
      G: () => {
        this.take(8);
        this.push(new PickleReal(this.view.getFloat64(this.at - 8)));
      },
      '\x8c': at(1, (size) => this.text(size)),
      X: at(4, (size) => this.text(size)),
      '\x8d': at(8, (size) => this.text(size)),
      ']': () => this.make('list', 0),
      '}': () => this.make('dict', 0),
      ')': () => this.make('tuple', 0),
      ...Object.fromEntries(Object.entries(tuples).map(([op, count]) => [op, () => this.make('tuple', count)])),
      t: () => this.makeMarked('tuple'),
      l: () => this.makeMarked('list'),
      d: () => this.makeMarked('dict'),
      a: () => this.extend('list', 1),
      s: () => this.extend('dict', 2),
      e: () => this.extendMarked('list'),
      u: () => this.extendMarked('dict'),
      '\x94': () => this.memoize(this.memo.length),
      q: at(1, (number) => this.memoize(number)),
      r: at(4, (number) => this.memoize(number)),
      h: at(1, (number) => this.recall(number)),
      j: at(4, (number) => this.recall(number)),
    };
  }

  take(count) {
    if (count > this.bytes.length - this.at) throw new Damage('the pickle is incomplete');
    this.at += count;
    return this.bytes.subarray(this.at - count, this.at);
  }

  // By hand: nearly every instruction comes here.
  little(count) {
    if (count > this.bytes.length - this.at) throw new Damage('the pickle is incomplete');
    let value = 0;
    for (let i = this.at + count - 1; i >= this.at; --i) value = value * 256 + this.bytes[i];
    this.at += count;
    return value;
  }

  // Nothing from below the last mark may be taken.
  available() {
    return this.stack.length - (this.marks.at(-1) ?? 0);
  }

  pop(count) {
    if (this.available() < count) throw new Damage('the pickle reads more values than it pushed');
    return this.stack.splice(this.stack.length - count);
  }

  push(value) {
    if (++this.values > mostValues) throw new FileProblem('the pickle has more values than a page takes: weir report shows all of it');
    this.stack.push(value);
  }

  // Two's complement of any length, the lowest byte first; what needs more than 64 bits is no address and no size.
  long(size) {
    const digits = this.take(size);
    const value = digits.slice(0, 9).reduceRight((sum, byte) => sum * 256n + BigInt(byte), 0n);
    const below = size > 0 && digits[size - 1] > 127;
    const filling = below ? 255 : 0;
    for (let i = 8; i < size; ++i) if (digits[i] !== filling) throw new Damage('a number is out of range');
    const low = BigInt.asUintN(64, value);
    if (below) {
      const bits = BigInt(8 * Math.min(size, 8));
      if (size > 8 && low < 2n ** 63n) throw new Damage('a number is out of range');
      this.push(this.plain(low - 2n ** bits));
    } else {
      this.push(this.plain(low));
    }
  }

  plain(value) {
    const number = Number(value);
    return Number.isSafeInteger(number) ? number : value;
  }

  text(size) {
    if (size > this.bytes.length - this.at) throw new Damage('the pickle is incomplete');
    this.push(new PickleText(this.take(size)));
  }

  make(type, count) {
    const made = new PickleContainer(type);
    this.moveIn(made, this.pop(count));
    made.closed = type === 'tuple';
    this.push(made);
  }

  makeMarked(type) {
    const count = this.marked(type);
    this.make(type, count);
    this.marks.pop();
  }

  extend(type, count) {
    if (this.available() < count + 1) throw new Damage('the pickle reads more values than it pushed');
    const target = this.stack.at(-1 - count);
    if (!(target instanceof PickleContainer) || target.type !== type) throw new Damage('an item is added to a value that is not a list or dict');
    if (target.closed) throw new Damage('a nested container is changed');
    this.moveIn(target, this.pop(count));
  }

  extendMarked(type) {
    const count = this.marked(type);
    this.marks.pop();
    this.extend(type, count);
  }

  marked(type) {
    if (!this.marks.length) throw new Damage('the pickle reads more values than it pushed');
    const count = this.available();
    if (type === 'dict' && count % 2) throw new Damage('a dict has a key without a value');
    return count;
  }

  moveIn(target, values) {
    for (const value of values) {
      if (!(value instanceof PickleContainer)) continue;
      if (value === target) throw new Damage('a container contains itself');
      value.closed = true;
      target.height = Math.max(target.height, value.height + 1);
      if (target.height > mostLevels) throw new Damage('the pickle is nested too deep');
    }
    for (const value of values) target.values.push(value);
  }

  memoize(number) {
    if (this.available() === 0) throw new Damage('the pickle reads more values than it pushed');
    if (number > this.memo.length) throw new Damage('the memo has a gap');
    this.memo[number] = this.stack.at(-1);
  }

  recall(number) {
    if (number >= this.memo.length) throw new Damage('an unknown memo entry is used');
    this.push(this.memo[number]);
  }
}

// --- The recording --------------------------------------------------------------------------------------

const elementsOf = (value) => (value instanceof PickleContainer && value.type !== 'dict' ? value.values : []);
const isDict = (value) => value instanceof PickleContainer && value.type === 'dict';
const member = (value, key) => (isDict(value) ? value.find(key) : undefined);
const textOf = (value, key) => {
  const found = member(value, key);
  return found instanceof PickleText ? String(found) : '';
};
// As 64 bits without a sign: handles of streams may have been written as signed numbers.
const bigOf = (value) => (Number.isInteger(value) || typeof value === 'bigint' ? BigInt.asUintN(64, BigInt(value)) : 0n);
const naturalOf = (value, key) => {
  const found = member(value, key);
  return Number.isInteger(found) && found >= 0 ? found : Number(bigOf(found));
};
const noSnapshot = (reason) => new FileProblem(`not a PyTorch snapshot: ${reason}`);

const beginsSegment = (action) => action === 'segment_alloc' || action === 'segment_map';
const endsSegment = (action) => action === 'segment_free' || action === 'segment_unmap';

// What was live, and the most that it was.
class HighestSum {
  now = 0;
  most = 0;

  add(size) {
    this.now += size;
    this.most = Math.max(this.most, this.now);
  }

  subtract(size) {
    this.now -= Math.min(this.now, size);
  }
}

// Whether a history says of no block when its free was requested, though it says of one that it allocated when its free was
// completed: who records may leave such entries out (skip_actions).
function lacksRequestedFrees(entries) {
  const allocated = new Map();  // sizes by address
  let completesAny = false;
  for (const { action, address, size } of entries) {
    if (action === 'free_requested') return false;
    if (action === 'alloc') allocated.set(address, size);
    if (action === 'free_completed' && allocated.get(address) === size) completesAny = true;
  }
  return completesAny;
}

// Ranges of addresses that do not overlap, each with a label; by address.
class SegmentRanges {
  constructor() {
    this.ranges = [];
  }

  // The place of the first range that ends behind the address.
  place(address) {
    let low = 0;
    let high = this.ranges.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.ranges[middle].to > address) high = middle;
      else low = middle + 1;
    }
    return low;
  }

  // Adds those parts that are not there.
  add(address, size, label) {
    const end = address + size;
    let from = address;
    const added = [];
    const first = this.place(address);
    let last = first;
    for (; last < this.ranges.length && this.ranges[last].from < end; ++last) {
      const range = this.ranges[last];
      if (from < range.from) added.push({ from, to: range.from, label });
      added.push(range);
      from = Math.max(from, range.to);
    }
    if (from < end) added.push({ from, to: end, label });
    this.ranges.splice(first, last - first, ...added);
  }

  // Removes those parts that are there.
  remove(address, size) {
    const end = address + size;
    const left = [];
    const first = this.place(address);
    let last = first;
    for (; last < this.ranges.length && this.ranges[last].from < end; ++last) {
      const { from, to, label } = this.ranges[last];
      if (from < address) left.push({ from, to: address, label });
      if (to > end) left.push({ from: end, to, label });
    }
    this.ranges.splice(first, last - first, ...left);
  }

  find(address) {
    const range = this.ranges[this.place(address)];
    return range && range.from <= address ? range : undefined;
  }
}

// A container may be part of many others, so a small pickle can name an endless walk. Everything real takes a byte at
// least: no walk has more steps than the file has bytes.
class SnapshotReader {
  constructor(root, size) {
    this.root = root;
    this.steps = size;
    this.out = new Recording();
    this.numbers = { streams: new Map(), pools: new Map(), tags: new Map(), stacks: new Map(), frames: new Map() };
    this.stackOfList = new Map();
    this.live = new Map();  // {size, stream} by address
    this.pending = new Map();  // frees that are not completed, by address
    this.hasReusable = false;
    this.earlier = new SegmentRanges();
    this.reservedByPool = new Map();
    this.lastTime = 0;
    this.start = 0;
  }

  step() {
    if (this.steps-- <= 0) throw noSnapshot('its parts refer to each other too often');
  }

  async read(pause) {
    const segments = isDict(this.root) ? this.root.find('segments') : this.root;
    const traces = member(this.root, 'device_traces');
    if (!(segments instanceof PickleContainer) || segments.type !== 'list') throw noSnapshot('expected a list of segments');
    this.device = this.chooseDevice(segments, traces);
    const entries = this.entriesOf(traces);
    await pause();
    const leftovers = this.leftovers(entries, segments);
    const annotations = this.annotations();
    await pause();
    this.build(entries, leftovers, annotations);
    this.out.device = `cuda:${this.device}`;
    return this.out.finish();
  }

  // {bytes, events} by device: the most that it had reserved, or live where that is not said, and how long its history is.
  devices(segments, traces) {
    const all = new Map();
    const extentOf = (device) => all.get(device) ?? all.set(device, { bytes: 0, events: 0 }).get(device);
    for (const segment of segments.values) {
      this.step();
      if (!isDict(segment)) throw noSnapshot('expected a dict for each segment');
      let size = naturalOf(segment, 'total_size');
      if (!size) {
        for (const block of elementsOf(segment.find('blocks'))) {
          this.step();
          size += naturalOf(block, 'size');
        }
      }
      extentOf(naturalOf(segment, 'device')).bytes += size;
    }
    elementsOf(traces).forEach((history, device) => {
      const entries = elementsOf(history);
      if (!entries.length) return;
      let reserved = 0;  // the change since the history began
      let mostReserved = 0;
      const requested = new HighestSum();  // live until their frees are requested, and until they are completed
      const completed = new HighestSum();
      let tellsRequests = false;
      for (const entry of entries) {
        this.step();
        const action = textOf(entry, 'action');
        const size = naturalOf(entry, 'size');
        if (beginsSegment(action)) reserved += size;
        if (endsSegment(action)) reserved -= size;
        if (action === 'alloc') [requested, completed].forEach((sum) => sum.add(size));
        if (action === 'free_requested') requested.subtract(size);
        if (action === 'free_completed') completed.subtract(size);
        tellsRequests ||= action === 'free_requested';
        mostReserved = Math.max(mostReserved, reserved);
      }
      const extent = extentOf(device);
      extent.events = entries.length;
      extent.bytes = Math.max(extent.bytes - reserved + mostReserved, (tellsRequests ? requested : completed).most);
    });
    return [...all].sort(([a], [b]) => a - b);
  }

  // That which held the most; of equal ones that with the longest history, then the first.
  chooseDevice(segments, traces) {
    const { steps } = this;  // this walk is another one
    const all = this.devices(segments, traces);
    this.steps = steps;
    if (!all.length) return 0;
    return all.reduce((most, each) => (each[1].bytes > most[1].bytes || (each[1].bytes === most[1].bytes && each[1].events > most[1].events) ? each : most))[0];
  }

  entriesOf(traces) {
    const entries = elementsOf(elementsOf(traces)[this.device]).map((source, i) => {
      this.step();
      if (!isDict(source) || source.find('action') === undefined) throw noSnapshot(`entry ${i} has no action`);
      return { action: textOf(source, 'action'), address: naturalOf(source, 'addr'), size: naturalOf(source, 'size'), time: naturalOf(source, 'time_us'), source, pool: source.find('pool_id') };
    });
    if (lacksRequestedFrees(entries)) for (const entry of entries) if (entry.action === 'free_completed') entry.action = 'free_requested';
    return entries;
  }

  // What was there before the history: blocks that it frees without having allocated them, and blocks that are live at the
  // end and that it never touched. By address.
  leftovers(entries, segments) {
    const touched = new Set();
    const found = new Map();
    const put = (address, size, stream, source, pool) => {
      if (!found.has(address)) found.set(address, { address, size, stream, source, pool });
    };
    for (const { action, address, size, source, pool } of entries) {
      if (action === 'alloc') touched.add(address);
      if (action !== 'free_requested' || touched.has(address)) continue;
      touched.add(address);
      put(address, size, source.find('stream'), source, pool);
    }
    for (const segment of segments.values) {
      this.step();
      if (!isDict(segment)) throw noSnapshot('expected a dict for each segment');
      if (naturalOf(segment, 'device') !== this.device) continue;
      let address = naturalOf(segment, 'address');
      const label = { stream: segment.find('stream'), pool: segment.find('segment_pool_id') };
      this.earlier.add(address, naturalOf(segment, 'total_size'), label);
      for (const block of elementsOf(segment.find('blocks'))) {
        this.step();
        if (member(block, 'address') !== undefined) address = naturalOf(block, 'address');
        const size = naturalOf(block, 'size');
        if (textOf(block, 'state') === 'active_allocated' && !touched.has(address)) {
          put(address, member(block, 'requested_size') === undefined ? size : naturalOf(block, 'requested_size'), label.stream, block, label.pool);
        }
        address = wrapped(address + size);  // old snapshots name only the first block's place
      }
    }
    this.undo(entries);
    for (const each of found.values()) each.pool ??= this.earlier.find(each.address)?.label.pool;
    return [...found.values()].sort((a, b) => a.address - b.address);
  }

  // What was reserved before the history: the segments at its end, with its steps undone.
  undo(entries) {
    for (const { action, address, size, source, pool } of [...entries].reverse()) {
      if (beginsSegment(action)) this.earlier.remove(address, size);
      if (endsSegment(action)) this.earlier.add(address, size, { stream: source.find('stream'), pool });
    }
  }

  annotations() {
    const found = [];
    for (const each of elementsOf(member(this.root, 'external_annotations'))) {
      if (this.steps-- <= 0) break;
      if (naturalOf(each, 'device') !== this.device) continue;
      const time = naturalOf(each, 'time_us');
      const name = textOf(each, 'name');
      const last = found[found.length - 1];
      if (textOf(each, 'stage') !== 'END') found.push({ time, text: `begin of ${name}` });
      else if (last && last.time === time && last.text === `begin of ${name}`) last.text = name;  // a moment, as markers are exported
      else found.push({ time, text: `end of ${name}` });
    }
    return found.sort((a, b) => a.time - b.time);
  }

  build(entries, leftovers, annotations) {
    if (entries.length) this.start = entries[0].time;
    for (const { from, to, label } of this.earlier.ranges) {
      const event = { address: from, size: to - from, stream: this.streamOf(label.stream), pool: this.poolOf(label.pool), kind: kinds.reserve };
      this.add(event);
      this.countReserved(event);
    }
    for (const { address, size, stream, source, pool } of leftovers) {
      this.add({ address, size, stream: this.streamOf(stream), pool: this.poolOf(pool), other: this.stackOf(source), kind: kinds.allocate });
    }
    if (leftovers.length) this.marker('what was there before the recording began', 0);
    const own = elementsOf(member(this.root, 'weir_events')).map((source) => {
      this.step();
      return { before: naturalOf(source, 'before'), source };
    }).sort((a, b) => a.before - b.before);
    let nextOwn = 0;
    const addOwn = (position) => {
      for (; nextOwn < own.length && own[nextOwn].before <= position; ++nextOwn) this.ownEvent(own[nextOwn].source);
    };
    let next = 0;
    const markUntil = (time) => {
      for (; next < annotations.length && annotations[next].time <= time; ++next) this.marker(annotations[next].text, this.since(annotations[next].time));
    };
    entries.forEach((entry, i) => {
      addOwn(i);
      markUntil(entry.time);
      this.entry(entry);
    });
    addOwn(Infinity);
    markUntil(Infinity);
    // Blocks whose frees the history does not complete are in use to its end.
    if (this.hasReusable) for (const [, event] of [...this.pending].sort(([a], [b]) => a - b)) this.add({ ...event, kind: kinds.reusable });
  }

  since(microseconds) {
    return Math.min(2 ** 64 - 1, Math.max(0, microseconds - this.start) * 1000);
  }

  // Times that go back are lifted to the one before.
  add(event) {
    this.lastTime = Math.max(this.lastTime, event.time ?? 0);
    this.out.add({ ...event, time: this.lastTime });
    if (event.kind === kinds.allocate) this.live.set(event.address, { size: event.size, stream: event.stream });
    if (event.kind === kinds.deallocate) this.live.delete(event.address);
  }

  marker(text, time) {
    this.add({ time, other: this.out.texts.length, kind: kinds.marker });
    this.out.texts.push(text);
  }

  entry({ action, address, size, time, source, pool }) {
    const event = { time: this.since(time), address, size, stream: this.streamOf(source.find('stream')), pool: this.poolOf(pool), tag: this.tagOf(source.find('user_metadata')) };
    if (action === 'alloc') {
      const other = this.stackOf(source);
      const before = this.live.get(address);  // the history of graph pools that are restored has blocks again that it never freed
      if (before) this.add({ ...event, ...before, kind: kinds.deallocate });
      this.add({ ...event, other, kind: kinds.allocate });
      this.pending.delete(address);
    } else if (action === 'free_requested') {
      if (!this.live.has(address)) return;
      this.add({ ...event, other: this.stackOf(source), kind: kinds.deallocate });
      this.pending.set(address, event);
    } else if (action === 'free_completed') {
      if (!this.pending.delete(address) || source.find('weir_invented') !== undefined) return;
      this.hasReusable = true;
      this.add({ ...event, kind: kinds.reusable });
    } else if (beginsSegment(action)) {
      this.add({ ...event, kind: kinds.reserve });
      this.countReserved({ ...event, kind: kinds.reserve });
    } else if (endsSegment(action)) {
      this.add({ ...event, kind: kinds.release });
      this.countReserved({ ...event, kind: kinds.release });
    } else if (action === 'oom') {
      this.add({ ...event, address: 0, kind: kinds.outOfMemory });
    } else if (action === 'snapshot' || action === 'annotate') {
      this.marker(textOf(source, 'user_metadata') || action, event.time);
    }
  }

  // What weir's export adds for events that PyTorch has no action for.
  ownEvent(source) {
    const event = { time: this.since(naturalOf(source, 'time_us')), pool: this.poolOf(member(source, 'pool_id')) };
    const action = textOf(source, 'action');
    const address = naturalOf(source, 'addr');
    if (action === 'pool_released' && event.pool) this.add({ ...event, kind: kinds.poolReleased });
    else if (action === 'record_stream' && this.live.has(address)) this.add({ ...event, address, stream: this.streamOf(source.find('stream')), kind: kinds.recordStream });
  }

  // A private pool without segments has been released: PyTorch keeps those of pools in use.
  countReserved({ kind, pool, size, time }) {
    if (!pool || member(this.root, 'weir_events') !== undefined) return;
    const before = this.reservedByPool.get(pool) ?? 0;
    const now = kind === kinds.reserve ? before + size : Math.max(0, before - size);
    this.reservedByPool.set(pool, now);
    if (before && !now) this.add({ time, pool, kind: kinds.poolReleased });
  }

  // The number of a key, which is put into the table when it is new.
  number(numbers, key, table, value) {
    let found = numbers.get(key);
    if (found === undefined) {
      found = table.length;
      numbers.set(key, found);
      table.push(value);
    }
    return found;
  }

  streamOf(value) {
    const id = bigOf(value);
    return this.number(this.numbers.streams, id, this.out.streams, id);
  }

  poolOf(id) {
    const ids = elementsOf(id);
    if (ids.length !== 2) return 0;
    const key = ids.map((id) => (Number.isInteger(id) || typeof id === 'bigint' ? String(id) : '0')).join(',');
    if (key === '0,0' || this.out.pools.length > 65535) return 0;
    return this.number(this.numbers.pools, key, this.out.pools, `pool ${key}`);
  }

  tagOf(value) {
    if (!(value instanceof PickleText) || !value.bytes.length || value.bytes.length > 255 || this.out.tags.length > 65535) return 0;
    return this.number(this.numbers.tags, String(value), this.out.tags, String(value));
  }

  // A stack is written once however often it is referred to: by the container, then by its frames.
  stackOf(source) {
    const list = member(source, 'frames');
    if (!elementsOf(list).length) return 0;
    let known = this.stackOfList.get(list);
    if (known === undefined) {
      const frames = list.values.map((frame) => {
        this.step();
        return this.frameOf(frame);
      });
      known = this.number(this.numbers.stacks, frames.join(), this.out.stacks, frames) + 1;
      this.stackOfList.set(list, known);
    }
    return known;
  }

  frameOf(source) {
    const file = textOf(source, 'filename');
    const line = textOf(source, 'name') + (file ? ` at ${file}:${naturalOf(source, 'line')}` : '');
    return this.number(this.numbers.frames, line, this.out.frames, line);
  }
}

async function readSnapshot(bytes, pause) {
  const root = new Unpickler(bytes).run();
  await pause();
  return new SnapshotReader(root, bytes.length).read(pause);
}
