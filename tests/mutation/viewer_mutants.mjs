#!/usr/bin/env node
// Plants small faults in the report's page, one at a time, and says whether its tests notice.
//
//   viewer_mutants.mjs list
//   viewer_mutants.mjs run [--maker REPORT_PAGE_MAKER] [--count N] [--seed S] [--only ID...] [--chromium PATH]
//
// `list` prints every fault as one JSON list. `run` first sees which parts of the scripts each test of
// viewer/tests reaches, then chooses among the faults there, runs for each the tests that reach it, and
// prints a JSON line for each. Those of equivalent-viewer.json, which change nothing that could be seen,
// are not chosen. Without a maker, the tests that need recordings are left out. One browser serves them
// all; a page that hangs costs it.
import { createHash } from 'node:crypto';
import { existsSync, readFileSync, readdirSync } from 'node:fs';
import { hooks, options, start, stop, tests } from '../../viewer/tests/harness.mjs';
import '../../viewer/tests/all.mjs';
import { mutantsOf, plant } from './viewer_operators.mjs';

const root = new URL('../../', import.meta.url);
const scripts = new Map(readdirSync(new URL('viewer/js', root)).sort()
  .map((name) => [`viewer/js/${name}`, readFileSync(new URL(`viewer/js/${name}`, root), 'utf8')]));
const mutants = [...scripts].flatMap(([file, source]) => mutantsOf(file, source));
const shown = ({ id, file, line, operator, before, after }) => ({ id, file, line, operator, before, after });

function equivalents() {
  const path = new URL('equivalent-viewer.json', import.meta.url);
  return existsSync(path) ? JSON.parse(readFileSync(path, 'utf8')) : {};
}

// `count` of them, of each file its share. By a hash of their names, so that others do not matter: the
// same seed chooses much the same faults after an edit elsewhere.
function choose(among, count, seed) {
  const byFile = new Map();
  for (const mutant of among) {
    const rank = createHash('sha256').update(`${seed}:${mutant.id}`).digest('hex');
    byFile.set(mutant.file, [...(byFile.get(mutant.file) || []), { rank, mutant }]);
  }
  const most = Math.min(count, among.length);
  const shares = [...byFile].map(([file, found]) => ({ file, exact: (most * found.length) / among.length }));
  for (const share of shares) share.taken = Math.floor(share.exact);
  const leftOver = [...shares].sort((a, b) => (b.exact - b.taken) - (a.exact - a.taken) || (a.file < b.file ? -1 : 1));
  for (const share of leftOver.slice(0, most - shares.reduce((sum, { taken }) => sum + taken, 0))) ++share.taken;
  return shares.sort((a, b) => (a.file < b.file ? -1 : 1)).flatMap(({ file, taken }) =>
    byFile.get(file).sort((a, b) => (a.rank < b.rank ? -1 : 1)).slice(0, taken).map(({ mutant }) => mutant));
}

// --- Which tests reach what ------------------------------------------------------------------------

// Which characters of each script ran, from Chromium's own counts: an inner range goes before an outer.
function reached(entries) {
  const out = new Map([...scripts].map(([file, source]) => [file, new Uint8Array(source.length)]));
  for (const { source, functions } of entries) {
    if (!source) continue;
    const ran = new Uint8Array(source.length);
    for (const { ranges } of functions) for (const { startOffset, endOffset, count } of ranges) ran.fill(count > 0, startOffset, endOffset);
    for (const [file, text] of scripts) {
      const at = source.indexOf(text);
      if (at < 0) continue;
      const marks = out.get(file);
      for (let i = 0; i < text.length; ++i) marks[i] |= ran[at + i];
    }
  }
  return out;
}

async function reachOf(test) {
  let marks = null;
  hooks.opened = (page) => page.coverage.startJSCoverage({ resetOnNavigation: false });
  hooks.closing = async (page) => {
    const more = reached(await page.coverage.stopJSCoverage());
    if (marks) for (const [file, ran] of more) ran.forEach((each, i) => { marks.get(file)[i] |= each; });
    else marks = more;
  };
  const begin = Date.now();
  try {
    await test.body();
  } catch (problem) {
    throw new Error(`without any fault: ${test.name}`, { cause: problem });
  }
  hooks.opened = hooks.closing = null;
  if (!marks) throw new Error(`opens no page: ${test.name}`);
  return { test, marks, time: Date.now() - begin };
}

// --- Trying ----------------------------------------------------------------------------------------

const tooLate = new Error('too late');
const within = (limit, work) => {
  let timer;
  const late = new Promise((_, reject) => { timer = setTimeout(() => reject(tooLate), limit); });
  return Promise.race([work, late]).finally(() => clearTimeout(timer));
};

const kills = new Map();  // by file and test

async function tryOut(mutant, reach) {
  const source = scripts.get(mutant.file);
  const planted = plant(mutant, source);
  hooks.rewrite = (html) => {
    if (!html.includes(source)) throw Object.assign(new Error(`the page is not made of this ${mutant.file}: build report_page_maker again`), { fatal: true });
    return html.replace(source, () => planted);
  };
  // Tests that found much in this file go first.
  const found = kills.get(mutant.file) ?? kills.set(mutant.file, new Map()).get(mutant.file);
  const findsOf = ({ test }) => found.get(test) ?? 0;
  const mine = reach.filter(({ marks }) => marks.get(mutant.file)[mutant.begin]).sort((a, b) => findsOf(b) - findsOf(a) || a.time - b.time);
  for (const { test, time } of mine) {
    let { problem, late, doubtful } = await attempt(test, time);
    if (problem && doubtful) {
      // A busy machine makes tests wait in vain, too: without the fault it must not, and with it again.
      for (let tries = 0; tries === 0 || !(await passesWithout(test, time)); ++tries) {
        if (tries > 5) throw new Error(`fails without any fault, too: ${test.name}`);
        await restart();
      }
      ({ problem, late } = await attempt(test, time));
      if (problem) await restart();
    }
    if (!problem) continue;
    found.set(test, findsOf({ test }) + 1);
    return { ...shown(mutant), state: late ? 'timeout' : 'killed', by: test.name };
  }
  return { ...shown(mutant), state: 'survived', by: null };
}

async function attempt(test, time) {
  hooks.patience = 4000 + 4 * time;
  const begin = Date.now();
  const body = test.body();
  body.catch(() => {});
  try {
    await within(3 * hooks.patience, body);
    return { problem: null };
  } catch (problem) {
    if (problem.fatal) throw problem;
    const waited = Date.now() - begin > hooks.patience / 2;
    return { problem, late: problem === tooLate, doubtful: waited || problem.code === 'ENOENT' || /closed|crashed/.test(problem.message) };
  }
}

async function passesWithout(test, time) {
  const faulty = hooks.rewrite;
  hooks.rewrite = (html) => html;
  const { problem } = await attempt(test, time);
  hooks.rewrite = faulty;
  return !problem;
}

// A page that never comes to rest may take others with it: the whole browser goes.
async function restart() {
  await within(10000, stop()).catch(() => {});
  await start();
}

async function run(words) {
  const given = { count: '60', seed: '1', only: [] };
  for (let i = 0; i < words.length; ++i) {
    const name = words[i].replace(/^--/, '');
    if (name === 'only') while (i + 1 < words.length && !words[i + 1].startsWith('--')) given.only.push(words[++i]);
    else given[name] = words[++i];
  }
  Object.assign(options, given.maker && { maker: given.maker }, given.chromium && { chromium: given.chromium });
  const excused = equivalents();
  const known = new Set(mutants.map(({ id }) => id));
  for (const id of Object.keys(excused)) if (!known.has(id)) console.error(`equivalent-viewer.json: there is no such fault any more: ${id}`);
  await start();
  const reach = [];
  for (const test of tests) if (!test.measures && (options.maker || !test.recorded)) reach.push(await reachOf(test));
  const chosen = given.only.length ? mutants.filter(({ id }) => given.only.includes(id))
    : choose(mutants.filter(({ id, file, begin }) => !(id in excused) && reach.some(({ marks }) => marks.get(file)[begin])), Number(given.count), given.seed);
  for (const mutant of chosen) await print(await tryOut(mutant, reach));
  await stop();
}

// Returns when it is written: a pipe takes no more after the exit.
function print(value, indent) {
  return new Promise((done) => { process.stdout.write(`${JSON.stringify(value, null, indent)}\n`, done); });
}

if (process.argv[2] === 'list') await print(mutants.map(shown), 1);
else if (process.argv[2] === 'run') await run(process.argv.slice(3));
else {
  console.error('viewer_mutants.mjs list | run --maker REPORT_PAGE_MAKER [--count N] [--seed S] [--only ID...]');
  process.exit(2);
}
process.exit(0);
