// SPDX-License-Identifier: Apache-2.0
// Zstandard (RFC 8878), without dictionaries: recordings are compressed with it, and no browser has it everywhere.

class ZstdError extends Error {}

const zstdDamage = () => new ZstdError('the compression is damaged');
const zstdRequire = (holds) => {
  if (!holds) throw zstdDamage();
};
const highestBit = (value) => 31 - Math.clz32(value);

// Bits from the front, the lowest of a byte first.
class ForwardBits {
  constructor(bytes) {
    this.bytes = bytes;
    this.at = 0;  // in bits
  }

  take(count) {
    let value = 0;
    for (let i = 0; i < count; ++i, ++this.at) {
      zstdRequire(this.at >> 3 < this.bytes.length);
      value |= ((this.bytes[this.at >> 3] >> (this.at & 7)) & 1) << i;
    }
    return value;
  }
}

// Bits from the back, below the highest one of the last byte. Before the first there are zeros.
class BackwardBits {
  constructor(bytes) {
    zstdRequire(bytes.length > 0 && bytes[bytes.length - 1] !== 0);
    this.bytes = bytes;
    this.left = (bytes.length - 1) * 8 + highestBit(bytes[bytes.length - 1]);  // negative: more were taken than there are
  }

  // At most 16.
  peek(count) {
    const from = this.left - count;
    if (from < 0) return this.left <= 0 ? 0 : (this.word(0) & ((1 << this.left) - 1)) << -from;
    return (this.word(from >> 3) >>> (from & 7)) & ((1 << count) - 1);
  }

  word(byte) {
    const { bytes } = this;
    return bytes[byte] | (bytes[byte + 1] << 8) | (bytes[byte + 2] << 16);
  }

  take(count) {
    if (count > 16) return this.take(count - 16) * 65536 + this.take(16);
    const value = this.peek(count);
    this.left -= count;
    return value;
  }
}

// --- Tables of finite state entropy ------------------------------------------------------------------

// How often each symbol occurs; returns {counts, log, bytes: how many it took}.
function readCounts(bytes, mostLog, symbols) {
  const bits = new ForwardBits(bytes);
  const log = bits.take(4) + 5;
  zstdRequire(log <= mostLog);
  const counts = [];
  let left = 1 << log;
  while (left > 0) {
    zstdRequire(counts.length < symbols);
    const width = highestBit(left + 1) + 1;
    let value = bits.take(width - 1);
    const few = (1 << width) - 1 - (left + 1);
    if (value >= few) {  // it is one bit longer
      value |= bits.take(1) << (width - 1);
      if (value >= 1 << (width - 1)) value -= few;
    }
    const count = value - 1;
    left -= Math.abs(count);
    counts.push(count);
    if (count !== 0) continue;
    for (let more = 3; more === 3;) {
      more = bits.take(2);
      for (let i = 0; i < more; ++i) counts.push(0);
    }
  }
  zstdRequire(left === 0 && counts.length <= symbols);
  return { counts, log, bytes: (bits.at + 7) >> 3 };
}

// For each state its symbol, and how many bits to add to which state for the next.
function stateTable(counts, log) {
  const size = 1 << log;
  const symbol = new Uint8Array(size);
  const bits = new Uint8Array(size);
  const base = new Uint16Array(size);
  const next = counts.map((count) => Math.abs(count));
  let high = size;
  counts.forEach((count, s) => { if (count === -1) symbol[--high] = s; });
  const step = (size >> 1) + (size >> 3) + 3;
  let at = 0;
  counts.forEach((count, s) => {
    for (let i = 0; i < count; ++i) {
      symbol[at] = s;
      do at = (at + step) & (size - 1); while (at >= high);
    }
  });
  for (let state = 0; state < size; ++state) {
    const number = next[symbol[state]]++;
    bits[state] = log - highestBit(number);
    base[state] = (number << bits[state]) - size;
  }
  return { log, symbol, bits, base };
}

const always = (symbol) => ({ log: 0, symbol: Uint8Array.of(symbol), bits: Uint8Array.of(0), base: Uint16Array.of(0) });

// --- Literals: Huffman codes ---------------------------------------------------------------------------

// Weights that are compressed themselves, by two states that take turns.
function compressedWeights(bytes) {
  const { counts, log, bytes: used } = readCounts(bytes, 6, 256);
  const table = stateTable(counts, log);
  const stream = new BackwardBits(bytes.subarray(used));
  const states = [stream.take(log), stream.take(log)];
  const weights = [];
  for (let turn = 0; ; turn ^= 1) {
    zstdRequire(weights.length < 254);
    weights.push(table.symbol[states[turn]]);
    states[turn] = table.base[states[turn]] + stream.take(table.bits[states[turn]]);
    if (stream.left >= 0) continue;
    weights.push(table.symbol[states[turn ^ 1]]);
    return weights;
  }
}

// {log, symbol, bits} by the next `log` bits, and `bytes`: how many the description took.
function readHuffman(bytes) {
  zstdRequire(bytes.length > 0);
  const [head] = bytes;
  const length = head < 128 ? head : (head - 126) >> 1;
  zstdRequire(1 + length <= bytes.length);
  const described = bytes.subarray(1, 1 + length);
  const weights = head < 128 ? compressedWeights(described)
    : Array.from({ length: head - 127 }, (_, i) => (i % 2 ? described[i >> 1] & 15 : described[i >> 1] >> 4));
  const sum = weights.reduce((all, weight) => all + (weight ? 1 << (weight - 1) : 0), 0);
  zstdRequire(sum > 0);
  const log = highestBit(sum) + 1;
  const rest = (1 << log) - sum;
  zstdRequire(log <= 11 && (rest & (rest - 1)) === 0);
  weights.push(highestBit(rest) + 1);
  const symbol = new Uint8Array(1 << log);
  const bits = new Uint8Array(1 << log);
  let at = 0;
  for (let weight = 1; weight <= log; ++weight) {
    weights.forEach((each, s) => {
      if (each !== weight) return;
      symbol.fill(s, at, at + (1 << (weight - 1)));
      bits.fill(log + 1 - weight, at, at + (1 << (weight - 1)));
      at += 1 << (weight - 1);
    });
  }
  zstdRequire(at === 1 << log);
  return { log, symbol, bits, bytes: 1 + length };
}

function decodeHuffman({ log, symbol, bits }, bytes, out) {
  const stream = new BackwardBits(bytes);
  for (let i = 0; i < out.length; ++i) {
    const code = stream.peek(log);
    out[i] = symbol[code];
    stream.left -= bits[code];
  }
  zstdRequire(stream.left === 0);
}

// --- Sequences ------------------------------------------------------------------------------------------

const spread = (first, widths) => {
  const base = [];
  widths.reduce((at, width) => {
    base.push(at);
    return at + 2 ** width;
  }, first);
  return { base, bits: widths };
};
const zeros = (count) => Array(count).fill(0);
const literalLengths = spread(0, [...zeros(16), 1, 1, 1, 1, 2, 2, 3, 3, 4, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]);
const matchLengths = spread(3, [...zeros(32), 1, 1, 1, 1, 2, 2, 3, 3, 4, 4, 5, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]);
const sequenceKinds = {
  literals: { log: 9, symbols: 36, usual: [6, [4, 3, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 3, 2, 1, 1, 1, 1, 1, -1, -1, -1, -1]] },
  offsets: { log: 8, symbols: 32, usual: [5, [1, 1, 1, 1, 1, 1, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1]] },
  matches: { log: 9, symbols: 53, usual: [6, [1, 4, 3, 2, 2, 2, 2, 2, 2, ...Array(37).fill(1), -1, -1, -1, -1, -1, -1, -1]] },
};

// --- Frames -----------------------------------------------------------------------------------------------

const mostBlock = 1 << 17;

class ZstdFrame {
  constructor(bytes, most) {
    this.bytes = bytes;
    this.most = most;
    this.out = new Uint8Array(Math.min(most, 1 << 16));
    this.size = 0;
    this.at = 0;
    this.huffman = null;
    this.tables = {};
    this.recent = [1, 4, 8];  // offsets
  }

  take(count) {
    zstdRequire(this.at + count <= this.bytes.length);
    this.at += count;
    return this.bytes.subarray(this.at - count, this.at);
  }

  number(count) {
    return this.take(count).reduceRight((value, byte) => value * 256 + byte, 0);
  }

  // Room for `more` bytes.
  grow(more) {
    if (this.size + more > this.most) throw new ZstdError('it is larger than a page takes');
    if (this.size + more <= this.out.length) return;
    const larger = new Uint8Array(Math.min(this.most, Math.max(2 * this.out.length, this.size + more)));
    larger.set(this.out.subarray(0, this.size));
    this.out = larger;
  }

  read() {
    zstdRequire(this.number(4) === 0xfd2fb528);
    const flags = this.number(1);
    const single = (flags >> 5) & 1;
    zstdRequire((flags & 8) === 0);
    if (!single) this.number(1);  // the window: everything is kept
    zstdRequire(this.number([0, 1, 2, 4][flags & 3]) === 0);
    const sizeBytes = [single, 2, 4, 8][flags >> 6];
    const size = this.number(sizeBytes) + (sizeBytes === 2 ? 256 : 0);
    if (sizeBytes) {
      if (size > this.most) throw new ZstdError('it is larger than a page takes');
    }
    for (let last = 0; !last;) {
      const head = this.number(3);
      last = head & 1;
      this.block((head >> 1) & 3, head >> 3);
    }
    if (flags & 4) this.take(4);  // a checksum
    zstdRequire(!sizeBytes || this.size === size);
    return this.out.subarray(0, this.size);
  }

  block(kind, size) {
    zstdRequire(kind < 3 && size <= mostBlock);
    if (kind === 2) {
      this.compressed(this.take(size));
      return;
    }
    this.grow(size);
    if (kind === 0) this.out.set(this.take(size), this.size);
    else this.out.fill(this.number(1), this.size, this.size + size);
    this.size += size;
  }

  compressed(bytes) {
    const { literals, used } = this.literals(bytes);
    this.sequences(bytes.subarray(used), literals);
  }

  // {literals, used: how many bytes the section took}.
  literals(bytes) {
    zstdRequire(bytes.length > 0);
    const kind = bytes[0] & 3;
    const format = (bytes[0] >> 2) & 3;
    const head = (count) => {
      zstdRequire(count <= bytes.length);
      return bytes.subarray(0, count).reduceRight((value, byte) => value * 256 + byte, 0);
    };
    if (kind < 2) {
      const headBytes = [1, 2, 1, 3][format];
      const size = Math.floor(head(headBytes) / (headBytes === 1 ? 8 : 16));
      const used = headBytes + (kind === 0 ? size : 1);
      zstdRequire(used <= bytes.length && size <= mostBlock);
      return { literals: kind === 0 ? bytes.subarray(headBytes, used) : new Uint8Array(size).fill(bytes[headBytes]), used };
    }
    const headBytes = [3, 3, 4, 5][format];
    const width = [10, 10, 14, 18][format];
    const sizes = Math.floor(head(headBytes) / 16);
    const size = sizes % 2 ** width;
    const used = headBytes + Math.floor(sizes / 2 ** width);
    zstdRequire(used <= bytes.length && size <= mostBlock);
    let packed = bytes.subarray(headBytes, used);
    if (kind === 2) {
      this.huffman = readHuffman(packed);
      packed = packed.subarray(this.huffman.bytes);
    }
    zstdRequire(this.huffman !== null);
    const literals = new Uint8Array(size);
    if (format === 0) decodeHuffman(this.huffman, packed, literals);
    else this.fourStreams(packed, literals);
    return { literals, used };
  }

  fourStreams(packed, literals) {
    zstdRequire(packed.length >= 6);
    const part = (literals.length + 3) >> 2;
    let at = 6;
    for (let i = 0; i < 4; ++i) {
      const end = i < 3 ? at + packed[2 * i] + packed[2 * i + 1] * 256 : packed.length;
      zstdRequire(end <= packed.length);
      decodeHuffman(this.huffman, packed.subarray(at, end), literals.subarray(i * part, i < 3 ? (i + 1) * part : literals.length));
      at = end;
    }
  }

  sequences(bytes, literals) {
    let at = 0;
    const next = () => {
      zstdRequire(at < bytes.length);
      return bytes[at++];
    };
    let count = next();
    if (count === 255) count = next() + next() * 256 + 0x7f00;
    else if (count >= 128) count = (count - 128) * 256 + next();
    if (count === 0) {
      zstdRequire(at === bytes.length);
      this.copy(literals);
      return;
    }
    const modes = next();
    zstdRequire((modes & 3) === 0);
    ['literals', 'offsets', 'matches'].forEach((name, i) => {
      const kind = sequenceKinds[name];
      const mode = (modes >> (6 - 2 * i)) & 3;
      if (mode === 0) this.tables[name] = stateTable(kind.usual[1], kind.usual[0]);
      if (mode === 1) {
        this.tables[name] = always(next());
        zstdRequire(this.tables[name].symbol[0] < kind.symbols);
      }
      if (mode === 2) {
        const { counts, log, bytes: used } = readCounts(bytes.subarray(at), kind.log, kind.symbols);
        this.tables[name] = stateTable(counts, log);
        at += used;
      }
      zstdRequire(this.tables[name] !== undefined);
    });
    this.play(new BackwardBits(bytes.subarray(at)), count, literals);
  }

  play(stream, count, literals) {
    const { literals: l, offsets: o, matches: m } = this.tables;
    let [ls, os, ms] = [stream.take(l.log), stream.take(o.log), stream.take(m.log)];
    let used = 0;
    for (let i = 0; i < count; ++i) {
      const [lengthCode, offsetCode, matchCode] = [l.symbol[ls], o.symbol[os], m.symbol[ms]];
      const offset = 2 ** offsetCode + stream.take(offsetCode);
      const match = matchLengths.base[matchCode] + stream.take(matchLengths.bits[matchCode]);
      const length = literalLengths.base[lengthCode] + stream.take(literalLengths.bits[lengthCode]);
      zstdRequire(used + length <= literals.length);
      this.copy(literals.subarray(used, used + length));
      used += length;
      this.repeat(this.offsetOf(offset, length), match);
      if (i + 1 === count) break;
      ls = l.base[ls] + stream.take(l.bits[ls]);
      ms = m.base[ms] + stream.take(m.bits[ms]);
      os = o.base[os] + stream.take(o.bits[os]);
    }
    zstdRequire(stream.left === 0);
    this.copy(literals.subarray(used));
  }

  // Small ones name one of the three before.
  offsetOf(coded, length) {
    const { recent } = this;
    const which = coded > 3 ? 3 : coded - 1 + (length === 0 ? 1 : 0);
    const offset = coded > 3 ? coded - 3 : which === 3 ? recent[0] - 1 : recent[which];
    if (which > 1) recent[2] = recent[1];
    if (which > 0) recent[1] = recent[0];
    recent[0] = offset;
    return offset;
  }

  copy(bytes) {
    this.grow(bytes.length);
    this.out.set(bytes, this.size);
    this.size += bytes.length;
  }

  repeat(offset, length) {
    zstdRequire(offset > 0 && offset <= this.size);
    this.grow(length);
    const { out } = this;
    if (offset >= length) out.copyWithin(this.size, this.size - offset, this.size - offset + length);
    else for (let i = this.size; i < this.size + length; ++i) out[i] = out[i - offset];
    this.size += length;
  }
}

const isZstd = (bytes) => bytes[0] === 0x28 && bytes[1] === 0xb5 && bytes[2] === 0x2f && bytes[3] === 0xfd;

// One frame, or several one behind the other; at most `most` bytes.
function unzstd(bytes, most) {
  const parts = [];
  let size = 0;
  for (let at = 0; at < bytes.length;) {
    const frame = new ZstdFrame(bytes.subarray(at), most - size);
    parts.push(frame.read());
    size += frame.size;
    at += frame.at;
  }
  if (parts.length === 1) return parts[0];
  const out = new Uint8Array(size);
  parts.reduce((at, part) => {
    out.set(part, at);
    return at + part.length;
  }, 0);
  return out;
}
