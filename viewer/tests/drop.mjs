// SPDX-License-Identifier: Apache-2.0
// Files that are dropped on the page: what it makes of them is what weir report makes of them, to the last number.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { gzipSync } from 'node:zlib';
import { open, options, test, text, until } from './harness.mjs';
import { openPacked } from './inside.mjs';
import { readInPage } from './packed.mjs';
import { small } from './small.mjs';
import { stored } from './zstd_samples.mjs';

const root = new URL('../../', import.meta.url);
const shipped = (name) => readFileSync(new URL(name, root));

// Runs `go` with a folder that is gone afterwards.
async function withFolder(go) {
  const folder = mkdtempSync(join(tmpdir(), 'weir-drop-'));
  try {
    await go(folder);
  } finally {
    rmSync(folder, { recursive: true });
  }
}

// Drops bytes on the page as a file of that name, and waits until it is shown or refused.
async function drop(page, name, bytes) {
  await page.evaluate(([file, base64]) => {
    delete document.documentElement.dataset.ready;
    const data = new DataTransfer();
    data.items.add(new File([Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0))], file));
    document.dispatchEvent(new DragEvent('drop', { dataTransfer: data, cancelable: true }));
  }, [name, Buffer.from(bytes).toString('base64')]);
  await until(page, () => document.documentElement.dataset.ready || document.querySelector('#file-notice .bad'));
}
const refusal = (page) => text(page, '#file-notice');

// Everything a run has: its index, and every piece of it. Runs in the page.
const wholeRun = async () => {
  const { index, series, blockIndex } = report.run;
  const json = (value) => JSON.stringify(value, (_, each) => (ArrayBuffer.isView(each) ? [...each] : each));
  // Pieces are compared by what they come to: to send them all would take a minute.
  const digest = (value) => crc32(new TextEncoder().encode(json(value)));
  const pieces = [];
  for (let chunk = 0; chunk < series.chunks; ++chunk) {
    const { used, ...piece } = await series.read(chunk);
    pieces.push(digest(piece));
  }
  const buckets = [];
  for (const { first, count } of blockIndex.levels) {
    for (let i = 0; i < count; ++i) {
      const { used, ...bucket } = await blockIndex.cache.get(first + i);
      buckets.push(digest(bucket));
    }
  }
  const { lengths, earlyChunks, weir, ...same } = index;
  return { index: JSON.parse(json(same)), pieces, buckets };
};

// The file as weir report shows it, and as the page does it was dropped on.
async function compare(file, name) {
  let [made, dropped] = [null, null];
  const html = `${file}.html`;
  execFileSync(options.maker, ['read', file, html], { stdio: 'inherit' });
  const run = readInPage(readFileSync(html, 'utf8'));
  await open(run, {}, async (page) => { made = await page.evaluate(wholeRun); });
  await openPacked(small(), {}, async (page) => {
    await drop(page, name, readFileSync(file));
    dropped = await page.evaluate(wholeRun);
  });
  for (const [key, value] of Object.entries(made.index)) assert.deepEqual(dropped.index[key], value, `${name}: ${key}`);
  assert.deepEqual(Object.keys(dropped.index).sort(), Object.keys(made.index).sort());
  assert.deepEqual(dropped.pieces, made.pieces, `${name}: pieces`);
  assert.deepEqual(dropped.buckets, made.buckets, `${name}: buckets`);
  return made;
}

const recordedTest = (name, body) => test(name, body, { recorded: true });

recordedTest('a dropped .weirtrace is what weir report makes of it', () => withFolder(async (folder) => {
  for (const [kind, events] of [['training', '12000'], ['empty', '0'], ['one', '1'], ['unplaced', '3000']]) {
    const file = join(folder, `${kind}.weirtrace`);
    execFileSync(options.maker, [kind, events, file], { stdio: 'inherit' });
    const { index } = await compare(file, `${kind}.weirtrace`);
    if (kind === 'training') assert.deepEqual([index.events > 11000, index.levels, index.oomCount, index.knowsReserved, index.hasStacks], [true, 3, 1, true, true]);
  }
}));

recordedTest('a dropped snapshot of PyTorch is what weir report makes of it', () => withFolder(async (folder) => {
  const file = join(folder, 'training.pickle');
  execFileSync(options.maker, ['training', '4000', file], { stdio: 'inherit' });
  const { index } = await compare(file, 'training.pickle');
  assert.deepEqual([index.program, index.device, index.events > 3500, index.hasStacks], ['training', 'cuda:0', true, true]);
}));

recordedTest('recordings of real programs are, too', () => withFolder(async (folder) => {
  for (const name of ['traces/gpt2_two_steps.weirtrace', 'traces/stash_comb.weirtrace']) {
    const file = join(folder, name.split('/')[1]);
    execFileSync('cp', [new URL(name, root).pathname, file]);
    await compare(file, name.split('/')[1]);
  }
}));

// --- What is shown ------------------------------------------------------------------------------------------

const serve = 'traces/gpt2_two_steps.weirtrace';

test('a dropped file takes the place of what was there', () => openPacked(small(), {}, async (page) => {
  await until(page, () => location.hash.startsWith('#axis=time'));
  await drop(page, 'two.weirtrace', shipped(serve));
  assert.equal(await text(page, '#title'), 'gpt2_two_steps');
  assert.match(await text(page, '#subtitle'), /^two\.weirtrace/);
  assert.equal(await text(page, '#footer'), 'Read from two.weirtrace by a page of weir 1.2.3.');
  assert.equal(await text(page, '#file-notice'), '');
  assert.equal(await page.locator('#oom-section').isVisible(), false);
  assert.deepEqual(await page.evaluate(() => [report.viewer.runs.length, report.viewer.differences, report.index.policies.length, report.moment === report.index.peak.event]), [1, null, 0, true]);
  const blocks = await page.evaluate(() => report.state.blocks.length);
  assert.equal(blocks > 0, await page.evaluate(() => report.index.realAddresses));
  // Compressed once more, and one behind the other.
  for (const [name, bytes] of [['a.gz', gzipSync(shipped(serve))], ['a.zst', stored(shipped(serve))]]) {
    await drop(page, name, bytes);
    assert.deepEqual([await text(page, '#file-notice'), await page.evaluate(() => report.index.file)], ['', name]);
  }
}));

test('a file can be chosen', () => openPacked(small(), {}, async (page) => {
  const choosing = page.waitForEvent('filechooser');
  await page.locator('#open').click();
  await (await choosing).setFiles({ name: 'mine.pickle', mimeType: '', buffer: shipped('tests/data/formats/snapshot.pickle') });
  await until(page, () => report.index.file === 'mine.pickle' && document.documentElement.dataset.ready);
  assert.equal(await text(page, '#title'), 'mine');
  assert.equal(await page.locator('#file').inputValue(), '');
}));

test('two runs make place for one', () => openPacked(small(), { other: { figures: small(), differences: { figures: [], groupings: [] } } }, async (page) => {
  await drop(page, 'two.weirtrace', shipped(serve));
  assert.deepEqual([await page.locator('#comparison').isVisible(), await page.evaluate(() => report.other)], [false, null]);
}));

test('the page says where a file can be dropped, and leaves other things alone', () => openPacked(small(), {}, async (page) => {
  const seen = await page.evaluate(() => {
    const files = new DataTransfer();
    files.items.add(new File(['x'], 'x'));
    const words = new DataTransfer();
    words.setData('text/plain', 'x');
    const send = (type, dataTransfer, more = {}) => !document.dispatchEvent(new DragEvent(type, { dataTransfer, cancelable: true, ...more }));
    const marked = () => document.documentElement.classList.contains('dropping');
    return [send('dragover', words), marked(), send('dragover', files), marked(), send('dragleave', files, { relatedTarget: document.body }), marked(), send('dragleave', files), marked(),
      send('dragover', files), send('drop', words), marked()];
  });
  assert.deepEqual(seen, [false, false, true, true, false, true, false, false, true, false, false]);
  assert.equal(await text(page, '#title'), 'train.py');
}));

// --- What is wrong with a file ------------------------------------------------------------------------------

test('what is no recording is refused, and everything stays', () => openPacked(small(), {}, async (page) => {
  const neither = "it is neither a .weirtrace nor a PyTorch snapshot: weir report reads CSV traces and RMM's logs, too";
  const trace = shipped(serve);
  const version = Buffer.from(trace);
  version[8] = 3;
  const header = Buffer.from(trace);
  header[12] ^= 1;
  const cases = [
    ['empty', [], neither],
    ['words.csv', Buffer.from('op,id,bytes'), neither],
    ['later.weirtrace', version, 'the trace has version 3, not 1 to 2'],
    ['header.weirtrace', header, "the trace's header is damaged"],
    ['cut.gz', gzipSync(trace).subarray(0, 4000), 'its compression is damaged, or it is cut'],
    ['cut.zst', stored(trace).subarray(0, 4000), 'the compression is damaged'],
    ['class.pickle', Buffer.from('\x80\x02cos\nsystem\n.', 'latin1'), 'offset 2: the pickle creates objects of classes (GLOBAL), which is refused'],
    ['number.pickle', Buffer.from('\x80\x02K\x05.', 'latin1'), 'not a PyTorch snapshot: expected a list of segments'],
  ];
  for (const [name, bytes, reason] of cases) {
    await drop(page, name, bytes);
    assert.equal(await refusal(page), `${name} could not be shown: ${reason}`);
    assert.equal(await text(page, '#title'), 'train.py');
  }
}));

test('what is damaged is shown up to the damage', () => openPacked(small(), {}, async (page) => {
  const trace = shipped(serve);
  const damageOf = async (bytes) => {
    await drop(page, 'damaged.weirtrace', bytes);
    assert.equal(await text(page, '#file-notice'), '');
    return page.evaluate(() => [report.index.events, report.index.damage && `${report.index.damage.offset}: ${report.index.damage.reason}`]);
  };
  const flipped = Buffer.from(trace);
  flipped[1000] ^= 4;
  assert.deepEqual(await damageOf(trace.subarray(0, 10)), [0, '10: the file ends within its header']);
  assert.deepEqual(await damageOf(trace.subarray(0, 16)), [0, '16: the file has no end: the recording was interrupted, or the file was cut']);
  assert.deepEqual(await damageOf(trace.subarray(0, 30)), [0, "16: the file ends within a frame's header"]);
  assert.deepEqual(await damageOf(Buffer.concat([trace, Buffer.from('x')])).then(([, damage]) => damage), `${trace.length}: data follows the end of the trace`);
  assert.match((await damageOf(flipped))[1], /^\d+: a frame's checksum is wrong$/);
  assert.equal((await damageOf(trace))[1], null);
}));
