// SPDX-License-Identifier: Apache-2.0
// A recording that the page reads itself, and the reader of .weirtrace files: docs/trace-format.md, src/trace.
//
// Numbers are doubles: those of 2^53 and more, which no size is and no address should be, are not exact.

// What a file has too much of, or what is wrong with it, for the reader of the page.
class FileProblem extends Error {}

const kinds = {
  allocate: 1, deallocate: 2, reusable: 3, recordStream: 4, wait: 5, reserve: 6, move: 7, release: 8, outOfMemory: 9, poolReleased: 13, limit: 14, marker: 15, suspended: 16, resumed: 17,
};
const lastKind = kinds.resumed;
const isOfBlock = (kind) => kind >= kinds.deallocate && kind <= kinds.recordStream;

// What a page takes: it must stay quick, and the browser alive.
const fileLimits = { events: 5_000_000, bytes: 1 << 29 };

const eventFields = {
  time: Float64Array, address: Float64Array, size: Float64Array, extra: Float64Array, stream: Uint32Array, other: Uint32Array, thread: Uint16Array, tag: Uint16Array, pool: Uint16Array, kind: Uint8Array,
};

class Recording {
  constructor() {
    this.count = 0;  // of events; each field is a column
    for (const [name, Column] of Object.entries(eventFields)) this[name] = new Column(1024);
    Object.assign(this, {
      tags: [''], pools: [''], streams: [], threads: [], texts: [], stacks: [], frames: [], program: '', device: '', capacity: 0,
      realAddresses: true, dropped: 0, peaks: [], damage: null,
    });
  }

  // Room for `more` events, which are all 0; returns the number of the first.
  extend(more) {
    const first = this.count;
    if (first + more > fileLimits.events) throw new FileProblem(`it has more than ${countText(fileLimits.events)} events, which is what a page takes: weir report shows all of them`);
    this.count += more;
    if (this.count > this.kind.length) {
      for (const [name, Column] of Object.entries(eventFields)) {
        const larger = new Column(Math.max(2 * this.kind.length, this.count));
        larger.set(this[name].subarray(0, first));
        this[name] = larger;
      }
    }
    for (const name of Object.keys(eventFields)) this[name].fill(0, first, this.count);
    return first;
  }

  add(event) {
    const at = this.extend(1);
    for (const [name, value] of Object.entries(event)) this[name][at] = value;
  }

  // Tables are never empty.
  finish() {
    if (!this.streams.length) this.streams.push(0n);
    if (!this.threads.length) this.threads.push(0n);
    return this;
  }
}

// --- .weirtrace -------------------------------------------------------------------------------------------

// What is wrong with a frame: everything before it is good.
class Damage {
  constructor(reason) {
    this.reason = reason;
  }
}

const wrapped = (value) => (value < 0 ? value + 2 ** 64 : value >= 2 ** 64 ? value - 2 ** 64 : value);
const unzigzag = (coded) => (coded % 2 === 0 ? coded / 2 : -(coded + 1) / 2);

// Values off the front of bytes; `cut` is what is wrong where there are too few.
class ByteReader {
  constructor(bytes, cut) {
    this.bytes = bytes;
    this.at = 0;
    this.cut = cut;
  }

  get left() {
    return this.bytes.length - this.at;
  }

  varint() {
    let value = 0;
    let unit = 1;
    for (let i = 0; i < 10; ++i, unit *= 128) {
      if (this.at >= this.bytes.length) break;
      const byte = this.bytes[this.at++];
      if (i === 9 && byte > 1) break;
      value += (byte & 127) * unit;
      if (byte < 128) return value;
    }
    throw new Damage(this.cut);
  }

  // All 64 bits of it.
  big() {
    const from = this.at;
    this.varint();
    return this.bytes.subarray(from, this.at).reduceRight((value, byte) => value * 128n + BigInt(byte & 127), 0n);
  }

  take(count) {
    if (count > this.left) throw new Damage(this.cut);
    this.at += count;
    return this.bytes.subarray(this.at - count, this.at);
  }

  sized() {
    return this.take(this.varint());
  }

  text() {
    return Reader.decoder.decode(this.sized());
  }
}

const crcTable = Uint32Array.from({ length: 256 }, (_, i) => {
  let value = i;
  for (let bit = 0; bit < 8; ++bit) value = (value >>> 1) ^ (value & 1 ? 0xedb88320 : 0);
  return value;
});

function crc32(bytes, before = 0) {
  let value = ~before;
  for (const byte of bytes) value = (value >>> 8) ^ crcTable[(value ^ byte) & 255];
  return ~value >>> 0;
}

function readNames(content, count, out) {
  const bytes = new ByteReader(content, 'a frame of names is shorter than its header says');
  const small = (table) => {
    if (table.length >= 65536) throw new Damage(bytes.cut);
    return table;
  };
  const stack = () => {
    bytes.cut = 'a stack is cut';
    const depth = bytes.varint();
    if (depth > bytes.left) throw new Damage(bytes.cut);
    bytes.cut = 'a stack names an unknown frame';
    const frames = Array.from({ length: depth }, () => {
      const frame = bytes.varint();
      if (frame >= out.frames.length) throw new Damage(bytes.cut);
      return frame;
    });
    bytes.cut = 'a frame of names is shorter than its header says';
    return frames;
  };
  const entries = {
    1: () => small(out.tags).push(bytes.text()),
    2: () => small(out.pools).push(bytes.text()),
    3: () => out.streams.push(bytes.big()),
    4: () => small(out.threads).push(bytes.big()),
    5: () => out.texts.push(bytes.text()),
    6: () => out.frames.push(bytes.text()),
    7: () => out.stacks.push(stack()),
    8: () => { out.program = bytes.text(); },
    9: () => { out.device = bytes.text(); },
    10: () => { out.capacity = bytes.varint(); },
    11: () => { out.realAddresses = bytes.varint() === 0; },
    12: () => { out.dropped = bytes.varint(); },
    13: () => out.peaks.push({ name: bytes.text(), requested: bytes.varint(), reserved: bytes.varint() }),
  };
  for (let i = 0; i < count; ++i) {
    const read = entries[bytes.take(1)[0]];
    if (!read) throw new Damage('unknown name');
    read();
  }
  if (bytes.left) throw new Damage('a frame of names is longer than its header says');
}

// Events of all frames, with what they are predicted from.
class EventReader {
  constructor(out) {
    this.out = out;
    this.addresses = [];  // of all blocks, by number
    this.blocks = new Map();  // the latest at each address
    this.lastTime = 0;
  }

  read(content, count) {
    const { out } = this;
    const first = out.extend(count);
    try {
      this.columns(content, count, first);
    } catch (problem) {
      out.count = first;
      throw problem;
    }
  }

  columns(content, count, first) {
    const { out } = this;
    const bytes = new ByteReader(content, 'a frame of events is shorter than its header says');
    const unit = bytes.varint();
    const kindsOf = bytes.take(count);
    if (![1, 1000, 1000000].includes(unit)) throw new Damage('unknown unit of time');
    const byKind = Array.from({ length: lastKind + 1 }, () => []);
    kindsOf.forEach((kind, i) => {
      if (kind < 1 || kind > lastKind) throw new Damage('unknown kind of event');
      byKind[kind].push(first + i);
    });
    out.kind.set(kindsOf, first);
    const column = (indices, target, most) => {
      const values = new ByteReader(bytes.sized(), bytes.cut);
      if (!values.left) return;
      for (const i of indices) {
        const value = values.varint();
        if (value > most) throw new Damage('a number is out of range');
        target[i] = value;
      }
      if (values.left) throw new Damage('a column is longer than its events');
    };
    column(Array.from({ length: count }, (_, i) => first + i), out.time, Infinity);
    const fields = [['address', Infinity], ['size', Infinity], ['extra', Infinity], ['stream', 2 ** 32 - 1], ['other', 2 ** 32 - 1], ['thread', 65535], ['tag', 65535], ['pool', 65535]];
    for (const indices of byKind) if (indices.length) for (const [name, most] of fields) column(indices, out[name], most);
    if (bytes.left) throw new Damage('a frame of events is longer than its header says');
    this.resolve(first, unit);
  }

  resolve(first, unit) {
    const { out, blocks, addresses } = this;
    const before = new Float64Array(lastKind + 1);  // the address of the last event of each kind
    let freed = 0;
    let from = 0;
    for (let i = first; i < out.count; ++i) {
      const kind = out.kind[i];
      from += out.time[i] * unit;
      if (from >= 2 ** 64) throw new Damage('a time is out of range');
      out.time[i] = from;
      if (from < this.lastTime) throw new Damage('the time decreases');
      this.lastTime = from;
      if (isOfBlock(kind)) {
        const number = (kind === kinds.reusable ? freed : addresses.length) - unzigzag(out.address[i]);
        if (!(number >= 0 && number < addresses.length)) throw new Damage('an event names a block that was not allocated');
        const address = addresses[number];
        const block = blocks.get(address);
        if (block.number !== number) throw new Damage('an event names a block whose address another block has');
        const stream = block.stream + unzigzag(out.stream[i]);
        if (stream < 0 || stream > 2 ** 32 - 1) throw new Damage('a stream is not in the table');
        out.address[i] = address;
        out.size[i] = wrapped(block.size + unzigzag(out.size[i]));
        out.stream[i] = stream;
        if (kind === kinds.deallocate) freed = number;
      } else {
        before[kind] = wrapped(before[kind] + unzigzag(out.address[i]));
        out.address[i] = before[kind];
      }
      this.check(i, kind);
      this.apply(i, kind);
    }
  }

  check(i, kind) {
    const { out } = this;
    const inTable = (number, table, what) => {
      if (number !== 0 && number >= table.length) throw new Damage(`a ${what} is not in the table`);
    };
    inTable(out.stream[i], out.streams, 'stream');
    inTable(out.thread[i], out.threads, 'thread');
    inTable(out.tag[i], out.tags, 'tag');
    inTable(out.pool[i], out.pools, 'pool');
    if (kind === kinds.wait) inTable(out.other[i], out.streams, 'stream');
    if (kind === kinds.marker && out.other[i] >= out.texts.length) throw new Damage('a text is not in the table');
    if (kind <= kinds.deallocate && out.other[i] > out.stacks.length) throw new Damage('a stack is not in the table');
  }

  apply(i, kind) {
    const { out, blocks, addresses } = this;
    const address = out.address[i];
    const block = blocks.get(address);
    if (kind === kinds.allocate) {
      if (block && block.live) throw new Damage('a block is allocated over a live block');
      blocks.set(address, { number: addresses.length, size: out.size[i], stream: out.stream[i], live: true, pending: false });
      addresses.push(address);
      return;
    }
    if (!isOfBlock(kind)) return;
    if (kind === kinds.reusable) {
      if (!block.pending) throw new Damage('a block becomes reusable before its free');
      block.pending = false;
      return;
    }
    if (!block.live) throw new Damage('a block is used after its free');
    if (kind === kinds.deallocate) {
      block.live = false;
      block.pending = true;
    }
  }
}

const traceMagic = [0x89, 0x57, 0x45, 0x49, 0x52, 0x0d, 0x0a, 0x1a];
const isTrace = (bytes) => traceMagic.every((byte, i) => bytes[i] === byte);
const [fileHeader, frameHeader, mostRecords, mostFrame] = [16, 20, 1 << 20, 1 << 26];

// A frame: {kind, records, content, size: of all of it}. Lengths are compared with what is there before they are trusted.
function readFrame(bytes, at) {
  if (bytes.length - at < frameHeader) throw new Damage("the file ends within a frame's header");
  const view = new DataView(bytes.buffer, bytes.byteOffset + at, frameHeader);
  const [kind, codec] = [bytes[at], bytes[at + 1]];
  const [records, stored, size, checksum] = [4, 8, 12, 16].map((offset) => view.getUint32(offset, true));
  if (kind < 1 || kind > 3 || codec > 1 || bytes[at + 2] || bytes[at + 3]) throw new Damage('not the start of a frame');
  if (records > mostRecords || stored > mostFrame || size > mostFrame) throw new Damage("a frame's size is invalid");
  if (stored > bytes.length - at - frameHeader) throw new Damage('the file ends within a frame');
  let content = bytes.subarray(at + frameHeader, at + frameHeader + stored);
  if (crc32(content, crc32(bytes.subarray(at, at + 16))) !== checksum) throw new Damage("a frame's checksum is wrong");
  if (codec === 1) {
    try {
      content = unzstd(content, size);
    } catch (problem) {
      if (!(problem instanceof ZstdError)) throw problem;
      content = null;
    }
    if (!content || content.length !== size) throw new Damage("a frame's compression is damaged");
  } else if (stored !== size) {
    throw new Damage("a frame's sizes are inconsistent");
  }
  return { kind, records, content, size: frameHeader + stored };
}

// `pause` is waited for between frames.
async function readTrace(bytes, pause) {
  const out = new Recording();
  if (bytes.length < fileHeader) {
    out.damage = { offset: bytes.length, reason: 'the file ends within its header' };
    return out.finish();
  }
  const view = new DataView(bytes.buffer, bytes.byteOffset, fileHeader);
  const version = view.getUint32(8, true);
  if (version < 1 || version > 2) throw new FileProblem(`the trace has version ${version}, not 1 to 2`);
  if (view.getUint32(12, true) !== crc32(bytes.subarray(0, 12))) throw new FileProblem("the trace's header is damaged");
  const events = new EventReader(out);
  let at = fileHeader;
  let inflated = 0;
  try {
    for (let ended = false; !ended;) {
      await pause();
      if (at === bytes.length) throw new Damage('the file has no end: the recording was interrupted, or the file was cut');
      const frame = readFrame(bytes, at);
      inflated += frame.content.length;
      if (inflated > fileLimits.bytes) throw new FileProblem('it is larger than a page takes: weir report shows all of it');
      if (frame.kind === 1) readNames(frame.content, frame.records, out);
      if (frame.kind === 2) events.read(frame.content, frame.records);
      if (frame.kind === 3) {
        const total = new ByteReader(frame.content, 'the number of events differs from the one at the end').varint();
        if (total !== out.count) throw new Damage('the number of events differs from the one at the end');
        ended = true;
      }
      at += frame.size;
    }
    if (at !== bytes.length) throw new Damage('data follows the end of the trace');
  } catch (problem) {
    if (!(problem instanceof Damage)) throw problem;
    out.damage = { offset: at, reason: problem.reason };
  }
  return out.finish();
}
