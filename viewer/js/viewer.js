// SPDX-License-Identifier: Apache-2.0
// What is open: one run at a time, in a page of its own, on elements of its own.

class Viewer {
  // `differences` between the two runs, where there are two.
  constructor(runs, differences = null) {
    this.runs = runs;
    this.differences = differences;
    this.page = null;
    this.blank = byId('main').cloneNode(true);
  }

  // Which run the address names; the first if none.
  named() {
    const number = Number(new URLSearchParams(location.hash.slice(1)).get('run')) - 1;
    return this.runs[number] ? number : 0;
  }

  async show(number) {
    if (this.page) {
      this.page.close();
      byId('main').replaceWith(this.blank.cloneNode(true));
      delete document.documentElement.dataset.ready;
    }
    this.shown = number;
    this.page = new Page(this, this.runs[number], this.runs[1 - number]);
    await this.page.open();
  }

  // Reads a file and shows it in place of what is there; what is wrong with it is said, and everything stays as it was.
  async open(file) {
    const isLast = () => this.opening === file;
    this.opening = file;
    const say = (kind, text) => byId('file-notice').replaceChildren(...(text ? [make('p', { class: `notice ${kind}`, role: 'status' }, text)] : []));
    say('warn', `Reading ${file.name} …`);
    try {
      const run = await readRun(file, this.runs[0].index.weir, pauser());
      if (!isLast()) return;
      this.runs = [run];
      this.differences = null;
      history.replaceState(null, '', '#');
      await this.show(0);
      say('', '');
    } catch (problem) {
      if (isLast()) say('bad', `${file.name} could not be shown: ${problem.message}`);
    }
  }

  // Goes on to another run. What the address says is of this one.
  choose(number) {
    if (number === this.shown) return;
    history.replaceState(null, '', `#run=${number + 1}`);
    this.show(number).catch(complain);
  }
}

function complain(problem) {
  byId('notices').append(make('p', { class: 'notice bad' }, `This page could not be shown: ${problem.message}`));
  throw problem;
}

const dark = matchMedia('(prefers-color-scheme: dark)');
theme.set(dark.matches ? 'dark' : 'light');

async function begin() {
  const runOf = async (prefix) => {
    const index = readIndex(await inflate(byId(`${prefix}index`).textContent));
    return new Run(index, new Store(index, prefix));
  };
  const compares = byId('differences').textContent !== '';
  const runs = await Promise.all((compares ? ['', 'other-'] : ['']).map(runOf));
  const viewer = new Viewer(runs, compares ? readDifferences(await inflate(byId('differences').textContent)) : null);
  dark.addEventListener('change', () => {
    theme.set(dark.matches ? 'dark' : 'light');
    viewer.page.repaint();
  });
  acceptFiles(viewer);
  await viewer.show(viewer.named());
}
begin().catch(complain);
