// SPDX-License-Identifier: Apache-2.0
// The view in the page's address, after '#': a link shows what its sender saw. What it says and the page
// does not know is ignored.

class Address {
  constructor(page) {
    this.page = page;
    this.waiting = false;
    this.followed = location.hash;
    addEventListener('hashchange', () => this.follow(), { signal: page.closing.signal });
  }

  text() {
    const { timeline, moment, unit, index } = this.page;
    const { axis, from, to, grouping, fit, lines } = timeline;
    const { differences, shown } = this.page.viewer;
    return String(new URLSearchParams({
      ...(differences && { run: shown + 1 }), axis, from: Math.round(from), to: Math.round(to), by: index.groupings[grouping].name, fit: Number(fit),
      lines: [...lines].join(' '), at: moment, unit,
    }));
  }

  // Soon: browsers refuse addresses that change all the time.
  keep() {
    if (this.waiting || !this.page.index.events) return;
    this.waiting = true;
    setTimeout(() => {
      this.waiting = false;
      // One that somebody has just set is followed before it is replaced.
      if (this.page.moment === null || this.page.closing.signal.aborted || location.hash !== this.followed) return;
      history.replaceState(null, '', `#${this.text()}`);
      this.followed = location.hash;
    }, 250);
  }

  // Shows what the address says; returns the moment to look at, if it says one.
  apply() {
    const { page } = this;
    const { timeline, index } = page;
    const said = new URLSearchParams(location.hash.slice(1));
    const number = (name) => (/^\d{1,16}$/.test(said.get(name)) ? Number(said.get(name)) : null);
    if (['time', 'events'].includes(said.get('axis'))) page.setAxis(said.get('axis'));
    if (number('from') !== null && number('to') > number('from')) timeline.set(number('from'), number('to'));
    const grouping = index.groupings.findIndex(({ name }) => name === said.get('by'));
    if (grouping >= 0) page.setGrouping(grouping);
    if (number('fit') !== null && timeline.fit !== (number('fit') === 1)) page.fit();
    if ([0, index.pageBytes].includes(number('unit'))) page.setUnit(number('unit'));
    if (said.has('lines')) {
      const names = said.get('lines').split(' ');
      timeline.lines = new Set(index.policies.map(({ name }) => name).filter((name) => names.includes(name)));
      timeline.legend();
      showPolicies(page);
    }
    return number('at') < index.events ? number('at') : null;
  }

  follow() {
    this.followed = location.hash;
    const { viewer } = this.page;
    if (viewer.named() !== viewer.shown) {
      viewer.choose(viewer.named());
      return;
    }
    if (!this.page.index.events) return;
    const moment = this.apply();
    if (moment !== null) this.page.look(moment);
  }
}
