// SPDX-License-Identifier: Apache-2.0
// The flame graph: memory by the stacks that asked for it, the outermost call at the top.

const flameRow = 20;
const leastShare = 1 / 2000;  // of the width: narrower ones cannot be seen

class Flame {
  constructor(page) {
    this.sites = page.index.sites;
    this.measure = 'atPeak';
    this.path = [];  // names from the outermost call to the one that fills the width
    if (!page.index.hasStacks) return;
    byId('flame-section').hidden = false;
    choice(byId('flame-measures'), [
      { value: 'atPeak', label: 'At the peak', title: 'What was live when most was' },
      { value: 'atEnd', label: 'Never freed', title: 'What was live when the recording ended' },
      { value: 'bytes', label: 'In all', title: 'Everything that was ever asked for' },
    ], this.measure, (measure) => {
      this.measure = measure;
      this.draw();
    });
    const left = page.index.siteCount - this.sites.length;
    byId('flame-note').textContent = `A click on a call shows it alone.${left > 0 ? ` ${countText(left)} sites that held less are left out.` : ''}`;
    this.draw();
  }

  // Calls by their callers: {name, size, callees}.
  tree() {
    const root = { name: 'everything', size: 0, callees: new Map() };
    for (const site of this.sites) {
      let node = root;
      root.size += site[this.measure];
      for (const name of site.frames.length ? [...site.frames].reverse() : [site.label]) {
        if (!node.callees.has(name)) node.callees.set(name, { name, size: 0, callees: new Map() });
        node = node.callees.get(name);
        node.size += site[this.measure];
      }
    }
    return root;
  }

  draw() {
    const root = this.tree();
    const boxes = [];
    const put = (node, path, left, width) => boxes.push({ node, path, left, width });
    const spread = (node, path, left, width) => {
      put(node, path, left, width);
      let from = left;
      for (const callee of [...node.callees.values()].sort((a, b) => b.size - a.size)) {
        const share = (width * callee.size) / node.size;
        if (!(share >= leastShare)) break;  // nor do the smaller ones behind it
        spread(callee, [...path, callee.name], from, share);
        from += share;
      }
    };
    let node = root;
    const path = [];
    for (const name of this.path) {  // those around the chosen one, as wide as it
      const callee = node.callees.get(name);
      if (!callee || !callee.size) break;
      put(node, [...path], 0, 1);
      path.push(name);
      node = callee;
    }
    spread(node, path, 0, 1);
    byId('flame').style.height = `${flameRow * (1 + Math.max(...boxes.map((box) => box.path.length)))}px`;
    byId('flame').replaceChildren(...boxes.map((box) => this.button(box, root.size)));
  }

  button({ node, path, left, width }, all) {
    const hue = 20 + [...node.name].reduce((sum, letter) => (sum * 31 + letter.codePointAt(0)) % 36, 0);
    return make('button', {
      title: `${node.name}: ${sizeText(node.size)}, ${percentText(node.size, all)}`,
      style: { left: `${100 * left}%`, width: `${100 * width}%`, top: `${flameRow * path.length}px`, background: `hsl(${hue} 85% 68%)` },
      onclick: () => {
        this.path = path;
        this.draw();
      },
    }, node.name);
  }
}
