// SPDX-License-Identifier: Apache-2.0
// What tests in a real browser share: they open pages, look, and fail on anything the page says.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { chromium } from 'playwright-core';

export const options = { events: '300000', chromium: '/usr/bin/chromium-headless-shell' };

const patience = 30000;  // of every wait, in milliseconds

// Registered in this order. `recorded`: it needs pageOf(); `measures`: it says how quick the page is, and
// nothing else.
export const tests = [];
export function test(name, body, { recorded = false, measures = false } = {}) {
  tests.push({ name, body, recorded, measures });
}

let browser = null;
let folder = null;
let opened = 0;
const made = new Map();  // pages by what was asked for

export async function start() {
  folder = mkdtempSync(join(tmpdir(), 'weir-report-'));
  // On a busy machine the browser must not take its own slowness for a hang. One process for all pages: to start
  // one takes longer than most tests.
  const args = ['--no-sandbox', '--disable-gpu-watchdog', '--disable-hang-monitor', '--renderer-process-limit=1'];
  browser = await chromium.launch({ executablePath: options.chromium, args });
}

export async function stop() {
  const [closing, emptied] = [browser, folder];  // another may have started before this one is gone
  await closing.close();
  rmSync(emptied, { recursive: true });
}

// The text of a made-up recording's report; report_page_maker of the build writes it.
export function pageOf(kind, events = options.events) {
  const key = `${kind} ${events}`;
  if (!made.has(key)) {
    assert.ok(options.maker, 'no --maker PROGRAM was given');
    const file = join(folder, 'made.html');
    execFileSync(options.maker, [kind, events, file], { stdio: 'inherit' });
    made.set(key, readFileSync(file, 'utf8'));
  }
  return made.get(key);
}

// Opens a page, runs `look`, and fails on anything the console or the network said. `fails`: the page is
// looked at when it has ended with such an error.
export async function open(html, { width = 1280, height = 900, scheme = 'light', scale = 1, before, fails } = {}, look) {
  const file = join(folder, `open${++opened}.html`);  // several are open at a time
  writeFileSync(file, html);
  const page = await browser.newPage({ viewport: { width, height }, colorScheme: scheme, deviceScaleFactor: scale });
  page.setDefaultTimeout(patience);
  const said = [];
  let complain;
  const complaint = new Promise((_, reject) => { complain = reject; });
  complaint.catch(() => {});
  page.on('console', (message) => said.push(`${message.type()}: ${message.text()}`));
  page.on('pageerror', (problem) => {
    said.push(String(problem));
    complain(problem);
  });
  page.on('dialog', (dialog) => {
    said.push(`dialog: ${dialog.message()}`);
    dialog.dismiss();
  });
  page.on('request', (request) => {
    if (!/^(file|data):/.test(request.url())) said.push(`asked the network for ${request.url()}`);
  });
  try {
    if (before) await before(page);
    await page.goto(`file://${file}`);
    const ready = Promise.race([page.waitForSelector('html[data-ready]', { state: 'attached' }), complaint]);
    if (fails) {
      await assert.rejects(ready, fails);
      said.length = 0;
    } else {
      await ready;
    }
    await look(page);
    assert.deepEqual(said, [], 'the page said something');
  } finally {
    await page.close();
    rmSync(file);
  }
}

// --- Looking ---------------------------------------------------------------------------------------

export const text = (page, selector) => page.locator(selector).innerText();

// Playwright's own waiting needs eval, which the page's policy forbids.
export async function until(page, condition, argument) {
  for (const end = Date.now() + patience / 2; Date.now() < end;) {
    if (await page.evaluate(condition, argument)) return;
    await page.waitForTimeout(30);
  }
  throw new Error(`never came true: ${condition}`);
}

export const settle = (page) => page.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))));

export async function shot(page, name) {
  if (!options.shots) return;
  mkdirSync(options.shots, { recursive: true });
  await page.screenshot({ path: join(options.shots, `${name}.png`), fullPage: true });
}
