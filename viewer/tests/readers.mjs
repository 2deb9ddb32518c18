// SPDX-License-Identifier: Apache-2.0
// The readers of files that are dropped: what they make of every kind of damage, and that they always come to an end.
import assert from 'node:assert/strict';
import { crc32 } from './crc.mjs';
import { test } from './harness.mjs';
import { openPacked } from './inside.mjs';
import { frames, plain, stored } from './zstd_samples.mjs';

const base64 = (bytes) => Buffer.from(bytes).toString('base64');

// --- Zstandard ------------------------------------------------------------------------------------------------

// {size, crc} of what is in a frame, or what is wrong with it.
const unpack = (page, packed, most = 1e6) => page.evaluate(([text, limit]) => {
  try {
    const bytes = unzstd(bytesOf(text), limit);
    return { size: bytes.length, crc: crc32(bytes) };
  } catch (problem) {
    if (!(problem instanceof ZstdError)) throw problem;
    return problem.message;
  }
}, [packed, most]);
const contentOf = (bytes) => ({ size: bytes.length, crc: crc32(bytes) });

test('what zstd packed is unpacked', () => openPacked({}, {}, async (page) => {
  for (const [name, frame] of Object.entries(frames)) assert.deepEqual(await unpack(page, frame), contentOf(plain[name]), name);
  assert.deepEqual(await unpack(page, base64(stored(plain.sameBytes))), contentOf(plain.sameBytes));
  const both = Buffer.concat([Buffer.from(frames.words, 'base64'), Buffer.from(frames.skewed, 'base64')]);
  assert.deepEqual(await unpack(page, base64(both)), contentOf(Buffer.concat([plain.words, plain.skewed])));
  assert.deepEqual(await unpack(page, frames.words, 5712), contentOf(plain.words));
  for (const name of ['words', 'sameBytes']) assert.equal(await unpack(page, frames[name], plain[name].length - 1), 'it is larger than a page takes', name);
}));

test('damaged frames are refused, wherever they are damaged', () => openPacked({}, {}, async (page) => {
  const damage = 'the compression is damaged';
  const seen = await page.evaluate(([texts, reason]) => {
    const outcome = (bytes) => {
      try {
        return unzstd(bytes, 1e6).length;
      } catch (problem) {
        if (!(problem instanceof ZstdError)) throw problem;
        return problem.message === reason || problem.message;
      }
    };
    const out = { cut: new Set(), changed: new Set() };
    for (const text of texts) {
      const bytes = bytesOf(text);
      for (let length = 1; length < bytes.length; ++length) out.cut.add(outcome(bytes.slice(0, length)));
      for (let i = 0; i < bytes.length; ++i) {
        for (const bit of [1, 128]) {
          const other = bytes.slice();
          other[i] ^= bit;
          out.changed.add(typeof outcome(other));
        }
      }
    }
    return { cut: [...out.cut], changed: [...out.changed].sort() };
  }, [[frames.words, frames.skewed, frames.skewedBest, frames.pair], damage]);
  assert.deepEqual(seen.cut, [true]);  // whatever is missing
  assert.ok(seen.changed.every((kind) => ['boolean', 'number', 'string'].includes(kind)), String(seen.changed));
  const head = (...bytes) => base64([0x28, 0xb5, 0x2f, 0xfd, ...bytes]);
  const cases = {
    'no magic': base64([1, 2, 3, 4, 5]),
    'a reserved bit': head(0x28, 0, 1, 0, 0),
    'a dictionary': head(0x21, 7, 0, 1, 0, 0),
    'a block of no kind': head(0x20, 0, 7, 0, 0),
    'a block that is too large': head(0x20, 0, 0x01 | ((131073 & 31) << 3), (131073 >> 5) & 255, 131073 >> 13),
    'another size than it says': head(0x20, 5, 0x01 | (1 << 3), 0, 0, 65),
    'no literals': head(0x20, 0, 0x05, 0, 0),
    'literals of a tree that was not there': head(0x20, 5, 0x05 | (4 << 3), 0, 0, 0x53, 0x40, 0, 1),
    'sequences of tables that were not there': head(0x20, 5, 0x05 | (4 << 3), 0, 0, 0x00, 1, 0xfc, 1),
    'a reserved mode': head(0x20, 5, 0x05 | (4 << 3), 0, 0, 0x00, 1, 0x01, 1),
  };
  for (const [name, frame] of Object.entries(cases)) assert.equal(await unpack(page, frame), damage, name);
  assert.deepEqual(await unpack(page, head(0x20, 3, 0x03 | (3 << 3), 0, 0, 65)), contentOf(Buffer.from('AAA')));
  assert.deepEqual(await unpack(page, head(0x20, 2, 0x05 | (4 << 3), 0, 0, 0x10, 66, 67, 0)), contentOf(Buffer.from('BC')));
  assert.deepEqual(await unpack(page, head(0x20, 2, 0x05 | (3 << 3), 0, 0, 0x11, 66, 0)), contentOf(Buffer.from('BB')));
}));

// --- Pickles ---------------------------------------------------------------------------------------------------

test('pickles are read as data, or refused', () => openPacked({}, {}, async (page) => {
  const read = (text) => page.evaluate((letters) => {
    const show = (value) => {
      if (value instanceof PickleText) return String(value);
      if (value instanceof PickleReal) return `real ${value.value}`;
      if (value instanceof PickleContainer) return { [value.type]: value.values.map(show) };
      return typeof value === 'bigint' ? `${value}n` : value;
    };
    try {
      return show(new Unpickler(Uint8Array.from(letters, (letter) => letter.charCodeAt(0))).run());
    } catch (problem) {
      if (!(problem instanceof FileProblem)) throw problem;
      return problem.message;
    }
  }, text);
  const deep = (levels) => `\x80\x02${']'.repeat(levels)}${'a'.repeat(levels - 1)}.`;
  const cases = [
    ['\x80\x04N.', null], ['\x80\x02\x88.', true], ['\x80\x02\x89.', false], ['\x80\x02K\xff.', 255], ['\x80\x02M\x01\x02.', 513], ['\x80\x02J\xfe\xff\xff\xff.', -2], ['\x80\x02J\x01\x00\x00\x80.', -2147483647],
    ['\x80\x02\x8a\x00.', 0], ['\x80\x02\x8a\x01\xff.', -1], ['\x80\x02\x8a\x02\xff\x00.', 255], ['\x80\x02\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f.', '9223372036854775807n'],
    ['\x80\x02\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\x00.', '18446744073709551615n'], ['\x80\x02\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x80\xff.', '-9223372036854775808n'],
    ['\x80\x02\x8b\x01\x00\x00\x00\x05.', 5],
    ['\x80\x02\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x00\x01.', 'offset 2: a number is out of range'], ['\x80\x02\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x00\xff.', 'offset 2: a number is out of range'],
    ['\x80\x02G?\xf8\x00\x00\x00\x00\x00\x00.', 'real 1.5'], ['\x80\x02\x8c\x02hi.', 'hi'], ['\x80\x02X\x02\x00\x00\x00hi.', 'hi'], ['\x80\x02\x8d\x02\x00\x00\x00\x00\x00\x00\x00hi.', 'hi'],
    ['\x80\x02\x95\x01\x00\x00\x00\x00\x00\x00\x00N.', null],
    ['\x80\x02].', { list: [] }], ['\x80\x02}.', { dict: [] }], ['\x80\x02).', { tuple: [] }], ['\x80\x02K\x01\x85.', { tuple: [1] }], ['\x80\x02K\x01K\x02\x86.', { tuple: [1, 2] }], ['\x80\x02K\x01K\x02K\x03\x87.', { tuple: [1, 2, 3] }],
    ['\x80\x02(K\x01K\x02t.', { tuple: [1, 2] }], ['\x80\x02(K\x01l.', { list: [1] }], ['\x80\x02(\x8c\x01aK\x02d.', { dict: ['a', 2] }],
    ['\x80\x02]K\x01a.', { list: [1] }], ['\x80\x02](K\x01K\x02e.', { list: [1, 2] }], ['\x80\x02}\x8c\x01aK\x01s.', { dict: ['a', 1] }], ['\x80\x02}(\x8c\x01aK\x01u.', { dict: ['a', 1] }],
    ['\x80\x02K\x05\x94h\x00\x86.', { tuple: [5, 5] }], ['\x80\x02K\x05q\x00h\x00\x86.', { tuple: [5, 5] }], ['\x80\x02K\x05r\x00\x00\x00\x00j\x00\x00\x00\x00\x86.', { tuple: [5, 5] }],
    ['\x80\x02K\x05q\x00K\x06q\x00h\x00\x87.', { tuple: [5, 6, 6] }], ['\x80\x02K\x01K\x020.', 1],
    [deep(32), 'offset'], [deep(33), 'offset 66: the pickle is nested too deep'],
    ['\x80\x06.', "offset 0: unsupported pickle protocol; expected 2 to 5"], ['\x80\x01.', "offset 0: unsupported pickle protocol; expected 2 to 5"], ['\x80\x02.', 'offset 2: the pickle is incomplete'], ['\x80\x02NN.', 'offset 4: the pickle is incomplete'],
    ['\x80\x02(N.', 'offset 4: the pickle is incomplete'], [`\x80\x02${'('.repeat(65)}`, 'offset 66: the pickle is nested too deep'],
    ['\x80\x02', 'offset 2: the pickle is incomplete'], ['\x80\x02K', 'offset 2: the pickle is incomplete'], ['\x80\x02J\x01\x02', 'offset 2: the pickle is incomplete'], ['\x80\x02\x8a\x05\x01', 'offset 2: the pickle is incomplete'],
    ['\x80\x02G\x00', 'offset 2: the pickle is incomplete'], ['\x80\x02\x8c\x05hi', 'offset 2: the pickle is incomplete'], ['\x80\x02\x95\x00', 'offset 2: the pickle is incomplete'],
    ['\x80\x020', 'offset 2: the pickle reads more values than it pushed'], ['\x80\x02N(0', 'offset 4: the pickle reads more values than it pushed'], ['\x80\x02K\x01\x86', 'offset 4: the pickle reads more values than it pushed'],
    ['\x80\x02t', 'offset 2: the pickle reads more values than it pushed'], ['\x80\x02]e', 'offset 3: the pickle reads more values than it pushed'], ['\x80\x02Na', 'offset 3: the pickle reads more values than it pushed'], ['\x80\x02\x94', 'offset 2: the pickle reads more values than it pushed'],
    ['\x80\x02](a', 'offset 4: the pickle reads more values than it pushed'],
    ['\x80\x02NNa', 'offset 4: an item is added to a value that is not a list or dict'], ['\x80\x02}Na', 'offset 4: an item is added to a value that is not a list or dict'], ['\x80\x02)Na', 'offset 4: an item is added to a value that is not a list or dict'],
    ['\x80\x02(Nd', 'offset 4: a dict has a key without a value'], ['\x80\x02}(Nu', 'offset 5: a dict has a key without a value'],
    ['\x80\x02]q\x00]h\x00ah\x00Na', 'offset 12: a nested container is changed'], ['\x80\x02]q\x00h\x00a', 'offset 7: a container contains itself'],
    ['\x80\x02Nq\x02', 'offset 3: the memo has a gap'], ['\x80\x02h\x00', 'offset 2: an unknown memo entry is used'], ['\x80\x02\xfe', 'offset 2: an instruction that snapshots do not use'],
    ...Object.entries({ c: 'GLOBAL', '\x93': 'STACK_GLOBAL', R: 'REDUCE', b: 'BUILD', i: 'INST', o: 'OBJ', '\x81': 'NEWOBJ', '\x92': 'NEWOBJ_EX', '\x82': 'EXT', '\x83': 'EXT', '\x84': 'EXT', P: 'PERSID', Q: 'PERSID' })
      .map(([op, name]) => [`\x80\x02${op}`, `offset 2: the pickle creates objects of classes (${name}), which is refused`]),
  ];
  for (const [text, expected] of cases) {
    const found = await read(text);
    if (expected === 'offset') assert.equal(typeof found, 'object', JSON.stringify(text));
    else assert.deepEqual(found, expected, JSON.stringify(text));
  }
}));

// --- .weirtrace --------------------------------------------------------------------------------------------------

const varint = (value) => {
  const out = [];
  let rest = BigInt(value);
  for (; rest >= 128n; rest >>= 7n) out.push(Number(rest & 127n) | 128);
  return [...out, Number(rest)];
};
const word = (value) => {
  const bytes = Buffer.alloc(4);
  bytes.writeUInt32LE(value);
  return bytes;
};
const frame = (kind, records, content, { codec = 0, size = content.length, wrong = 0, pad = 0 } = {}) => {
  const head = Buffer.concat([Buffer.from([kind, codec, pad, 0]), word(records), word(content.length), word(size)]);
  return Buffer.concat([head, word((crc32(Buffer.concat([head, Buffer.from(content)])) ^ wrong) >>> 0), Buffer.from(content)]);
};
const header = (version = 2) => {
  const head = Buffer.concat([Buffer.from([0x89, 0x57, 0x45, 0x49, 0x52, 0x0d, 0x0a, 0x1a]), word(version)]);
  return Buffer.concat([head, word(crc32(head))]);
};
const text = (words) => [...varint(words.length), ...Buffer.from(words)];
const column = (values) => {
  const packed = values.some(Boolean) ? values.flatMap(varint) : [];
  return [...varint(packed.length), ...packed];
};
// Events of one frame: [{kind, time, values: [address, size, extra, stream, other, thread, tag, pool]}], coded already.
const eventFrame = (events, unit = 1) => {
  const kinds = [...new Set(events.map(({ kind }) => kind))].sort((a, b) => a - b);
  return frame(2, events.length, [...varint(unit), ...events.map(({ kind }) => kind), ...column(events.map(({ time = 0 }) => time)),
    ...kinds.flatMap((kind) => Array.from({ length: 8 }, (_, field) => column(events.filter((event) => event.kind === kind).map(({ values = [] }) => values[field] ?? 0))).flat())]);
};
const end = (count) => frame(3, 1, varint(count));
const file = (...parts) => Buffer.concat([header(), ...parts]);

// A recording in short, or what is wrong with the file.
const readTraceIn = (page, bytes) => page.evaluate(async (packed) => {
  try {
    const r = await readTrace(bytesOf(packed), async () => {});
    const events = Array.from({ length: r.count }, (_, i) => ['kind', 'time', 'address', 'size', 'extra', 'stream', 'other', 'thread', 'tag', 'pool'].map((name) => r[name][i]).join(' '));
    const { tags, pools, streams, threads, texts, stacks, frames: all, program, device, capacity, realAddresses, dropped, peaks } = r;
    return { events, damage: r.damage && `${r.damage.offset}: ${r.damage.reason}`, names: JSON.stringify([tags, pools, streams.map(String), threads.map(String), texts, stacks, all, program, device, capacity, realAddresses, dropped, peaks]) };
  } catch (problem) {
    if (!(problem instanceof FileProblem)) throw problem;
    return problem.message;
  }
}, base64(bytes));

test('names of a trace are read', () => openPacked({}, {}, async (page) => {
  const entries = [[1, ...text('weights')], [2, ...text('pool')], [3, ...varint(2n ** 64n - 1n)], [4, 9], [5, ...text('step')], [6, ...text('f')], [6, ...text('g')], [7, 2, 1, 0], [8, ...text('run.py')], [9, ...text('GPU')],
    [10, ...varint(80 * 2 ** 30)], [11, 1], [12, 77], [13, ...text('torch'), 5, 6]];
  const found = await readTraceIn(page, file(frame(1, entries.length, entries.flat()), end(0)));
  assert.deepEqual(found, { events: [], damage: null, names: JSON.stringify([['', 'weights'], ['', 'pool'], ['18446744073709551615'], ['9'], ['step'], [[1, 0]], ['f', 'g'], 'run.py', 'GPU', 80 * 2 ** 30, false, 77, [{ name: 'torch', requested: 5, reserved: 6 }]]) });
  assert.equal((await readTraceIn(page, file(end(0)))).names, JSON.stringify([[''], [''], ['0'], ['0'], [], [], [], '', '', 0, true, 0, []]));
}));

test('events of a trace are read', () => openPacked({}, {}, async (page) => {
  const names = frame(1, 4, [3, 5, 3, 6, 1, ...text('t'), 5, ...text('m')]);
  const first = eventFrame([
    { kind: 1, time: 5, values: [2 * 4096, 100, 512, 1, 0, 0, 1] }, { kind: 1, time: 1, values: [2 * 4096, 50] }, { kind: 2, values: [2 * 2, 1, 0, 1] }, { kind: 3, time: 2 }, { kind: 15 }, { kind: 6, values: [8192, 1 << 21] },
  ], 1000);
  const second = eventFrame([{ kind: 4, time: 9000, values: [2, 0, 0, 2] }, { kind: 2, values: [2] }]);
  const found = await readTraceIn(page, file(names, first, second, end(8)));
  assert.deepEqual([found.damage, found.events], [null, [
    '1 5000 4096 100 512 1 0 0 1 0', '1 6000 8192 50 0 0 0 0 0 0', '2 6000 4096 99 0 0 0 0 0 0', '3 8000 4096 100 0 1 0 0 0 0', '15 8000 0 0 0 0 0 0 0 0', '6 8000 4096 2097152 0 0 0 0 0 0',
    '4 9000 8192 50 0 1 0 0 0 0', '2 9000 8192 50 0 0 0 0 0 0']]);
  const addresses = await readTraceIn(page, file(eventFrame([{ kind: 6, values: [1, 1] }, { kind: 6, values: [2, 2] }]), end(2)));
  assert.deepEqual(addresses.events.map((line) => line.split(' ')[2]), ['18446744073709552000', '0']);
}));

test('every damage of a trace is named', () => openPacked({}, {}, async (page) => {
  const alloc = (more = []) => ({ kind: 1, values: [8, 1, 0, ...more] });
  const free = { kind: 2, values: [2] };
  const events = (...all) => eventFrame(all);
  const raw = (count, bytes) => frame(2, count, bytes);
  const shorter = 'a frame of events is shorter than its header says';
  const cases = [
    [[frame(4, 0, [])], 'not the start of a frame'], [[frame(0, 0, [])], 'not the start of a frame'], [[frame(1, 0, [], { codec: 2 })], 'not the start of a frame'], [[frame(1, 0, [], { pad: 1 })], 'not the start of a frame'],
    [[frame(1, (1 << 20) + 1, [])], "a frame's size is invalid"], [[frame(1, 0, [], { size: (1 << 26) + 1 })], "a frame's size is invalid"],
    [[frame(1, 0, [], { wrong: 1 })], "a frame's checksum is wrong"],
    [[frame(1, 0, [], { size: 1 })], "a frame's sizes are inconsistent"], [[frame(1, 0, [1, 2], { codec: 1 })], "a frame's compression is damaged"],
    [[frame(1, 1, [...stored(Buffer.from('ab'))], { codec: 1, size: 3 })], "a frame's compression is damaged"],
    [[frame(1, 1, [])], 'a frame of names is shorter than its header says'], [[frame(1, 1, [1, 5, 65])], 'a frame of names is shorter than its header says'], [[frame(1, 1, [3, 128])], 'a frame of names is shorter than its header says'],
    [[frame(1, 1, [14])], 'unknown name'], [[frame(1, 1, [0])], 'unknown name'], [[frame(1, 0, [1])], 'a frame of names is longer than its header says'],
    [[frame(1, 1, [7, 5])], 'a stack is cut'], [[frame(1, 1, [7])], 'a stack is cut'], [[frame(1, 1, [7, 1, 0])], 'a stack names an unknown frame'],
    [[frame(1, 2, [7, 0, 1])], 'a frame of names is shorter than its header says'],
    [[raw(1, [])], shorter], [[raw(2, [1, 1])], shorter], [[raw(0, [2])], 'unknown unit of time'], [[raw(1, [1, 0])], 'unknown kind of event'], [[raw(1, [1, 18])], 'unknown kind of event'],
    [[raw(1, [1, 15])], shorter], [[raw(2, [1, 15, 15, 1, 5])], shorter], [[raw(1, [1, 15, 2, 0, 0])], 'a column is longer than its events'], [[raw(1, [1, 15, 0, 0])], shorter],
    [[raw(1, [1, 15, 0, 2, 0, 0])], 'a column is longer than its events'], [[raw(0, [1, 0, 0])], 'a frame of events is longer than its header says'],
    [[raw(1, [1, 15, 11, 255, 255, 255, 255, 255, 255, 255, 255, 255, 2, 0])], shorter],
    [[events({ kind: 5, values: [0, 0, 0, 2 ** 32] })], 'a number is out of range'], [[events({ kind: 5, values: [0, 0, 0, 0, 0, 65536] })], 'a number is out of range'],
    [[events({ kind: 14, values: [0, 0, 0, 0, 0, 0, 65536] })], 'a number is out of range'], [[events({ kind: 12, values: [0, 0, 0, 0, 0, 0, 0, 65536] })], 'a number is out of range'],
    [[eventFrame([{ kind: 14, time: 2n ** 64n - 1n }], 1000)], 'a time is out of range'], [[events({ kind: 14, time: 5 }), events({ kind: 14, time: 4 })], 'the time decreases', 1],
    [[events(free)], 'an event names a block that was not allocated'], [[events(alloc(), { kind: 2, values: [1] })], 'an event names a block that was not allocated'],
    [[events(alloc(), free, { kind: 1, values: [0, 1] }, { kind: 4, values: [4] })], 'an event names a block whose address another block has'],
    [[events(alloc(), { kind: 2, values: [2, 0, 0, 1] })], 'a stream is not in the table'], [[events(alloc([1]))], 'a stream is not in the table'], [[events(alloc([0, 0, 1]))], 'a thread is not in the table'],
    [[events(alloc([0, 0, 0, 1]))], 'a tag is not in the table'], [[events(alloc([0, 0, 0, 0, 1]))], 'a pool is not in the table'], [[events({ kind: 5, values: [0, 0, 0, 0, 1] })], 'a stream is not in the table'],
    [[events({ kind: 15 })], 'a text is not in the table'], [[events(alloc([0, 1]))], 'a stack is not in the table'], [[events(alloc(), { kind: 2, values: [2, 0, 0, 0, 1] })], 'a stack is not in the table'],
    [[events(alloc(), { kind: 1, values: [0, 1] })], 'a block is allocated over a live block'], [[events(alloc(), { kind: 3 })], 'a block becomes reusable before its free'],
    [[events(alloc(), free, { kind: 3 }, { kind: 3 })], 'a block becomes reusable before its free'], [[events(alloc(), free, free)], 'a block is used after its free'],
    [[events(alloc(), free, { kind: 4, values: [2] })], 'a block is used after its free'], [[end(1)], 'the number of events differs from the one at the end'], [[frame(3, 1, [])], 'the number of events differs from the one at the end'],
  ];
  for (const [parts, reason, good = 0] of cases) {
    const before = 16 + parts.slice(0, good).reduce((sum, part) => sum + part.length, 0);
    const found = await readTraceIn(page, file(...parts, end(0)));
    assert.deepEqual([found.damage, found.events.length], [`${before}: ${reason}`, good], reason);
  }
  assert.equal((await readTraceIn(page, file(frame(1, 0, [1, 2, 3]).subarray(0, 22)))).damage, '16: the file ends within a frame');
  assert.equal(await readTraceIn(page, Buffer.concat([header(3), end(0)])), 'the trace has version 3, not 1 to 2');
  assert.equal(await readTraceIn(page, Buffer.concat([header(0), end(0)])), 'the trace has version 0, not 1 to 2');
  assert.deepEqual((await readTraceIn(page, Buffer.concat([header(1), end(0)]))).damage, null);
}));

// --- Words and sorted maps -----------------------------------------------------------------------------------------

test('labels are those of weir report', () => openPacked({}, {}, async (page) => {
  const MiB = 2 ** 20;
  const labels = await page.evaluate((mib) => ({
    sizes: [0, 512, 1023, 1024, 20 * mib, 1536 * mib, 1280 * mib, 143771 * mib, mib - 1, 1024 + 6, 1024 + 5, 2 ** 64, 1.05 * 2 ** 30].map(bytesText),
    streams: [0, 1, 2, 3].map((stream) => streamLabel({ streams: [7n, 65536n, 2n ** 64n - 1n] }, stream)),
    tags: [0, 1, 5].map((tag) => tagLabel({ tags: ['', 'a'] }, tag)),
    sites: [1, 2, 3, 0].map((stack) => siteLabel({ stacks: [[0, 1], [0], []], frames: ['x in /torch/y', 'mine'] }, { stack, size: 9 })), size: siteLabel({ stacks: [], frames: [] }, { stack: 0, size: 2048 }),
    titles: ['a.trace.gz', 'x.weirtrace', 'b.pickle.zst', 'plain', 'c.snapshot'].map(titleOf),
  }), MiB);
  assert.deepEqual(labels, {
    sizes: ['0 B', '512 B', '1023 B', '1 KiB', '20 MiB', '1.5 GiB', '1.25 GiB', '140.4 GiB', '1 MiB', '1.01 KiB', '1 KiB', '16 EiB', '1.05 GiB'],
    streams: ['stream 7', 'stream 0x10000', 'stream 0xffffffffffffffff', 'stream #3'], tags: ['untagged', 'a', 'tag 5'],
    sites: ['mine', 'x in /torch/y', 'an empty stack', 'no stack'], size: '2 KiB', titles: ['a', 'x', 'b', 'plain', 'c'],
  });
}));

test('verdicts are those of weir report', () => openPacked({}, {}, async (page) => {
  const MiB = 2 ** 20;
  const about = { requested: 10 * MiB, tag: '', tagLive: 0, tagLimit: 'none', live: 20 * MiB, reserved: 40 * MiB, free: 5 * MiB, longest: 3 * MiB, limit: 'none', deviceTotal: 0 };
  const cases = [
    [{ requested: 0 }, 'The request fits.'],
    [{ tag: 'a', tagLive: 12 * MiB, tagLimit: 20 * MiB }, 'The limit of tag "a", 20 MiB, is in the way: 12 MiB are live with it. Raise it by 2 MiB, or free 2 MiB of the tag.'],
    [{ tag: 'a', tagLive: MiB, tagLimit: 2 * MiB }, 'The limit of tag "a", 2 MiB, is in the way: 1 MiB are live with it. Raise it by 9 MiB.'],
    [{ deviceTotal: 9 * MiB }, 'The request is larger than the device, which has 9 MiB. Request less.'],
    [{ limit: 42 * MiB }, "The allocator's limit of 42 MiB is in the way: 20 MiB are live, 40 MiB reserved. Raise it by 3 MiB, or free 3 MiB."],
    [{ limit: 15 * MiB, live: MiB, reserved: 0, free: 0, requested: 16 * MiB }, "The allocator's limit of 15 MiB is in the way: 1 MiB are live. Raise it by 2 MiB."],
    [{ limit: 42 * MiB, deviceTotal: 44 * MiB }, "The allocator's limit of 42 MiB is in the way: 20 MiB are live, 40 MiB reserved. Raising it alone does not help, with 4 MiB free of the device's 44 MiB. Free at least 3 MiB more."],
    [{ deviceTotal: 44 * MiB }, 'The device is full: of its 44 MiB this allocator has 20 MiB live. Free at least 1 MiB more.'],
    [{ deviceTotal: 26 * MiB, live: MiB, requested: 20 * MiB, reserved: 24 * MiB, free: 0 }, 'The device is full: of its 26 MiB this allocator has 1 MiB live. Request less.'],
    [{ free: 12 * MiB }, '12 MiB are reserved and free, but in pieces of at most 3 MiB; the request needs 10 MiB in one piece. The pages below show which blocks separate the pieces.'],
    [{ free: 9 * MiB, limit: 45 * MiB }, '9 MiB are reserved and free, but in pieces of at most 3 MiB; the request needs 10 MiB in one piece. Raise the limit of 45 MiB by 5 MiB. The pages below show which blocks separate the pieces.'],
    [{ free: 12 * MiB, longest: 10 * MiB }, '12 MiB are reserved and free, 10 MiB of it in one piece, but it is kept for other streams, or for work that has not completed.'],
    [{ limit: 60 * MiB, deviceTotal: 70 * MiB }, "The allocator's limit of 60 MiB is in the way: 20 MiB are live, 40 MiB reserved. Raise it, or free memory."],
    [{ deviceTotal: 70 * MiB }, "Other users of the device hold at least 20 MiB of the device's 70 MiB: 20 MiB are live here, 40 MiB reserved."],
    [{}, "20 MiB are live. The device's free memory is unknown, so weir cannot say whether it was full or fragmented."],
    [{ reserved: 0, free: 0, deviceTotal: 70 * MiB }, "20 MiB are live. The device's free memory is unknown, so weir cannot say whether it was full or fragmented."],
  ];
  for (const [changes, expected] of cases) {
    const said = await page.evaluate((given) => verdictOf(Object.fromEntries(Object.entries(given).map(([name, value]) => [name, value === 'none' ? Infinity : value]))), { ...about, ...changes });
    assert.equal(said, expected, JSON.stringify(changes));
  }
}));

test('a sorted map is one, however much is in it', () => openPacked({}, {}, async (page) => {
  const seen = await page.evaluate(() => {
    const map = new SortedMap();
    const plain_ = new Map();
    let state = 1;
    const next = (most) => {
      state = (Math.imul(state, 1103515245) + 12345) & 0x7fffffff;
      return (state >> 12) % most;
    };
    let differences = 0;
    for (let i = 0; i < 6000; ++i) {
      const key = next(50000);
      if (next(8)) {
        map.set(key, i);
        plain_.set(key, i);
        continue;
      }
      const to = key + next(400);
      const sorted = [...plain_.keys()].sort((a, b) => a - b);
      const before = sorted.filter((each) => each < key).at(-1);
      const expected = sorted.filter((each) => each < to && (each >= key || each === before)).map((each) => [each, plain_.get(each)]);
      if (JSON.stringify(map.takeRange(key, to)) !== JSON.stringify(expected)) ++differences;
      for (const [each] of expected) plain_.delete(each);
    }
    const all = [...plain_].sort((a, b) => a[0] - b[0]);
    return [differences, JSON.stringify(map.entries()) === JSON.stringify(all), all.length > 1000, map.buckets.length > 2, map.buckets.every((bucket) => bucket.length && bucket.length <= 512)];
  });
  assert.deepEqual(seen, [0, true, true, true, true]);
}));
