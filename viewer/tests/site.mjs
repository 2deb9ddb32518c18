// SPDX-License-Identifier: Apache-2.0
// The documentation site in a real browser: node site.mjs SITE [CHROMIUM]. All links lead somewhere, the search finds
// pages, and nothing is loaded from elsewhere.
import assert from 'node:assert/strict';
import { createServer } from 'node:http';
import { existsSync, readFileSync, readdirSync, statSync } from 'node:fs';
import { dirname, extname, join, normalize, relative } from 'node:path';
import { chromium } from 'playwright-core';

const [site, browserPath = '/usr/bin/chromium-headless-shell'] = process.argv.slice(2);
assert.ok(site && existsSync(join(site, 'index.html')), 'usage: node site.mjs SITE [CHROMIUM]; ./dev docs builds the site');

const filesBelow = (folder) => readdirSync(folder, { withFileTypes: true }).flatMap((entry) =>
  entry.isDirectory() ? filesBelow(join(folder, entry.name)) : [join(folder, entry.name)]);

// --- Links --------------------------------------------------------------------------------------------

const texts = new Map();
const text = (file) => texts.get(file) ?? texts.set(file, readFileSync(file, 'utf8')).get(file);

function idsOf(file) {
  return new Set([...text(file).matchAll(/\s(?:id|name)="([^"]+)"/g)].map((found) => found[1]));
}

function brokenLinks() {
  const broken = [];
  const ids = new Map();
  const pages = filesBelow(site).filter((file) => extname(file) === '.html');
  for (const page of pages) {
    const generated = relative(site, page).startsWith(join('reference', 'cxx'));
    for (const [, address] of text(page).replace(/<!--.*?-->/gs, '').matchAll(/\s(?:href|src)="([^"]*)"/g)) {
      if (/^(https?:|mailto:|javascript:|data:)/.test(address) || address === '') continue;
      const [path, anchor] = address.split('#');
      let target = path ? normalize(join(dirname(page), decodeURIComponent(path.split('?')[0]))) : page;
      if (existsSync(target) && statSync(target).isDirectory()) target = join(target, 'index.html');
      if (!existsSync(target)) {
        if (page.endsWith('404.html')) continue;  // its links begin at the root of a server
        broken.push(`${relative(site, page)}: ${address} is not there`);
      } else if (anchor && !generated && extname(target) === '.html') {
        if (!ids.has(target)) ids.set(target, idsOf(target));
        if (!ids.get(target).has(decodeURIComponent(anchor))) broken.push(`${relative(site, page)}: ${address} has no such anchor`);
      }
    }
  }
  return { pages, broken };
}

// --- Pages in the browser -----------------------------------------------------------------------------

const types = { '.html': 'text/html', '.css': 'text/css', '.js': 'text/javascript', '.json': 'application/json', '.png': 'image/png',
  '.svg': 'image/svg+xml', '.woff': 'font/woff', '.woff2': 'font/woff2', '.ttf': 'font/ttf', '.ico': 'image/x-icon' };

function serve() {
  const server = createServer((request, response) => {
    const file = join(site, normalize(decodeURIComponent(new URL(request.url, 'http://x').pathname)));
    if (!existsSync(file) || !statSync(file).isFile()) {
      response.writeHead(404).end();
      return;
    }
    response.writeHead(200, { 'content-type': types[extname(file)] ?? 'application/octet-stream' }).end(readFileSync(file));
  });
  return new Promise((done) => server.listen(0, '127.0.0.1', () => done(server)));
}

async function inBrowser(look) {
  const server = await serve();
  const origin = `http://127.0.0.1:${server.address().port}`;
  const browser = await chromium.launch({ executablePath: browserPath, args: ['--no-sandbox', '--disable-gpu-watchdog'] });
  const said = [];
  const page = await browser.newPage();
  page.setDefaultTimeout(60000);
  page.on('request', (request) => {
    if (!request.url().startsWith(origin) && !request.url().startsWith('data:')) said.push(`requested ${request.url()}`);
  });
  page.on('response', (response) => {
    if (response.status() >= 400) said.push(`${response.url()} answered ${response.status()}`);
  });
  page.on('pageerror', (problem) => said.push(String(problem)));
  page.on('console', (message) => { if (message.type() === 'error') said.push(message.text()); });
  try {
    await look(page, origin);
    assert.deepEqual(said.filter((line) => !/favicon/.test(line)), []);
  } finally {
    await browser.close();
    server.close();
  }
}

const { pages, broken } = brokenLinks();
assert.deepEqual(broken, []);
assert.ok(pages.length > 60, `${pages.length} pages`);

await inBrowser(async (page, origin) => {
  await page.goto(`${origin}/index.html`);
  assert.match(await page.title(), /weir/);
  for (const name of ['map.html', 'pytorch.html', 'reference/python.html', 'decisions/index.html', 'reference/cxx/index.html']) {
    await page.goto(`${origin}/${name}`);
    assert.ok((await page.locator('body').innerText()).length > 50, `${name} is empty`);
  }
  // A picture is there.
  await page.goto(`${origin}/index.html`);
  assert.ok(await page.evaluate(() => [...document.images].every((image) => image.naturalWidth > 0)), 'a picture is missing');
  // The search finds the page that a word is about.
  await page.goto(`${origin}/index.html`);
  await page.keyboard.press('s');
  const input = page.locator('#mkdocs-search-query');
  await input.waitFor({ state: 'visible' });
  const results = page.locator('#mkdocs-search-results a');
  let found = [];
  // What is typed before the index is loaded is not looked for.
  for (let attempt = 0; attempt < 30 && found.length === 0; ++attempt) {
    await input.fill('');
    await input.pressSequentially('suspend');
    await page.waitForTimeout(1000);
    found = await results.evaluateAll((all) => all.map((each) => each.getAttribute('href')));
  }
  assert.ok(found.some((address) => address.includes('suspend.html')), `found ${found}`);
});
console.log(`${pages.length} pages: all links lead somewhere, the search works, nothing is loaded from elsewhere`);
