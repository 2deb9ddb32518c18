// SPDX-License-Identifier: Apache-2.0
// Opens reports in a real browser and does with them what a reader does.
//
//   node report.mjs --maker PROGRAM [--chromium PATH] [--events N] [--shots FOLDER] [--only TEXT]
//                   [--write yes] [--together N]
//
// PROGRAM is report_page_maker of the build. With more events than the usual, what was measured is
// printed: file size, first paint, frames a second while panning. --only: tests with that in their name.
// --write: what the page looks like now becomes what it should look like (golden/). --together: how many
// tests run at a time. Those that measure run alone, at the end.
import assert from 'node:assert/strict';
import { options, start, stop, tests } from './harness.mjs';
import './all.mjs';

for (let i = 2; i + 1 < process.argv.length; i += 2) options[process.argv[i].slice(2)] = process.argv[i + 1];
assert.ok(options.maker, 'report.mjs --maker PROGRAM');

let failures = 0;
async function run({ name, body }) {
  const begin = Date.now();
  try {
    await body();
    console.log(`ok    ${name} (${Date.now() - begin} ms)`);
  } catch (problem) {
    ++failures;
    console.log(`FAIL  ${name}\n${problem.stack}`);
  }
}

await start();
const chosen = tests.filter(({ name }) => !options.only || name.includes(options.only));
const queue = chosen.filter(({ measures }) => !measures);
const takeTurns = async () => { while (queue.length) await run(queue.shift()); };
await Promise.all(Array.from({ length: Number(options.together ?? 2) }, takeTurns));
for (const each of chosen.filter(({ measures }) => measures)) await run(each);
await stop();
console.log(failures ? `${failures} failed` : 'all passed');
process.exit(failures ? 1 : 0);
