// SPDX-License-Identifier: Apache-2.0
// What tests see of a page that they made themselves: its elements, its pixels and its strokes, as text
// that can be compared line by line with what is kept in golden/.
import assert from 'node:assert/strict';
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { open, options } from './harness.mjs';
import { packedPage } from './packed.mjs';

// Runs in the page, before its own script.
function helpers() {
  const short = (value) => (typeof value === 'number' ? String(Math.round(value * 1e4) / 1e4 + 0) : typeof value === 'object' ? JSON.stringify(value) : String(value));

  // An element and what is in it, a line each: tag, attributes, own text.
  const tree = (element, depth = 0) => {
    const indent = '  '.repeat(depth);
    if (element.nodeType === Node.TEXT_NODE) return element.data.trim() ? [`${indent}"${element.data}"`] : [];
    if (element.nodeType !== Node.ELEMENT_NODE || element.tagName === 'CANVAS') return [];
    const attributes = [...element.attributes].map(({ name, value }) => ` ${name}=${value}`).join('');
    const state = element.checked ? ' checked' : '';
    return [`${indent}${element.tagName.toLowerCase()}${attributes}${state}`, ...[...element.childNodes].flatMap((child) => tree(child, depth + 1))];
  };

  // Only the texts in an element, on one line.
  const words = (element) => {
    const walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
    const out = [];
    while (walker.nextNode()) if (walker.currentNode.data.trim()) out.push(walker.currentNode.data.trim());
    return out.join(' | ');
  };

  // The pixels of a stage, column by column from the top, by the names of their colours.
  const pixels = (stage) => {
    const names = new Map([[theme.hatch[0], 'dense'], [theme.hatch[1], 'light'], [theme.ground, 'ground'], [theme.free, 'free'], [theme.hole, 'hole'], [theme.ink, 'ink']]);
    theme.thin.forEach((color, i) => names.set(color, `thin${i}`));
    theme.words.forEach((color, i) => names.set(color, `full${i}`));
    const { width, height } = stage.below;
    const copy = new OffscreenCanvas(width, height).getContext('2d', { willReadFrequently: true });
    copy.drawImage(stage.below, 0, 0);
    const words = new Uint32Array(copy.getImageData(0, 0, width, height).data.buffer);
    const columns = Array.from({ length: width }, (_, x) => {
      const runs = [];
      for (let y = 0; y < height; ++y) {
        const name = names.get(words[y * width + x]) || words[y * width + x].toString(16);
        if (runs.length && runs.at(-1).name === name) ++runs.at(-1).count;
        else runs.push({ name, count: 1 });
      }
      return runs.map((run) => `${run.count} ${run.name}`).join(', ');
    });
    // Equal neighbours on one line.
    const out = [];
    columns.forEach((column, x) => {
      if (x && columns[x - 1] === column) out[out.length - 1].to = x;
      else out.push({ from: x, to: x, column });
    });
    return [`${width} x ${height}`, ...out.map(({ from, to, column }) => `${from === to ? from : `${from}-${to}`}: ${column}`)];
  };

  // What is drawn over the pixels in a frame: a line for each stroke, with what was set for it. A letter is
  // as wide as the next, so that fonts do not matter.
  const strokes = (stage) => {
    const log = [];
    let set = [];
    const note = (words, ends) => {
      set.push(words);
      if (!ends) return;
      log.push(set.join('; '));
      set = [];
    };
    const pen = new Proxy({}, {
      get: (_, name) => (name === 'measureText' ? (text) => ({ width: 6 * text.length })
        : (...given) => note([name, ...given.map(short)].join(' '), /^(stroke|fill|clear)/.test(name))),
      set: (_, name, value) => {
        note(`${name} = ${short(value)}`);
        return true;
      },
    });
    const { over } = stage;
    stage.over = pen;
    stage.frame();
    stage.over = over;
    return [...log, ...(set.length ? [set.join('; ')] : [])];
  };

  const frames = () => new Promise((done) => { requestAnimationFrame(() => requestAnimationFrame(done)); });
  // Until every piece of the page is there and drawn.
  const settled = async () => {
    for (const { series, blockIndex } of report.viewer.runs) {
      for (let chunk = 0; chunk < series.chunks; ++chunk) await series.cache.get(chunk);
      for (const { first, count } of blockIndex.levels) for (let i = 0; i < count; ++i) await blockIndex.cache.get(first + i);
    }
    await frames();
    await frames();
  };

  globalThis.see = { tree, words, pixels, strokes, settled, frames };
}

// Sizes that make pixels easy to count: a bin is a pixel wide, a mebibyte about a pixel high.
export const tiny = '#timeline { width: 66px; height: 126px; } #whole { width: 34px; height: 22px; } #arena { width: 66px; height: 66px; }';

// Opens the page that shows `figures`; `look` gets it when everything is there.
// `loose`: without its policy, so that tests can send it functions.
export function openPacked(figures, { style = '', other = null, loose = false, ...more } = {}, look) {
  const html = packedPage(figures, style, other);
  return open(loose ? html.replace(/<meta http-equiv=.*\n/, '') : html, { ...more, before: (page) => page.addInitScript(helpers) }, async (page) => {
    await page.evaluate(() => see.settled());
    await look(page);
  });
}

const goldenFile = (name) => new URL(`golden/${name}.txt`, import.meta.url);
export const goldenLines = (name) => readFileSync(goldenFile(name), 'utf8').split('\n');

// `parts`, {title: lines}, are what golden/<name>.txt says. With --write yes, they become it: look at the
// difference before it is kept.
export function expectGolden(name, parts) {
  const file = goldenFile(name);
  const lines = Object.entries(parts).flatMap(([title, part]) => [`=== ${title}`, ...part, '']);
  if (options.write) {
    mkdirSync(new URL('.', file), { recursive: true });
    writeFileSync(file, lines.join('\n'));
  }
  assert.deepEqual(lines, goldenLines(name), `golden/${name}.txt`);
}
