// SPDX-License-Identifier: Apache-2.0
// The page as a whole: what it says at the top, which moment is looked at, and the keys.

class Page {
  // `run` is what it shows, `other` the run that it is compared with, if there is one.
  constructor(viewer, run, other = null) {
    const { index } = run;
    this.viewer = viewer;
    this.run = run;
    this.other = other;
    this.index = index;
    this.series = run.series;
    this.blockIndex = run.blockIndex;
    this.closing = new AbortController();
    for (const each of other ? [run, other] : [run]) each.arrived = () => this.timeline && this.timeline.stage.redraw();
    this.sites = new Map(index.sites.map((site) => [site.number, site]));
    this.moment = null;
    this.unit = index.pageBytes;
    this.address = new Address(this);
  }

  async open() {
    this.head();
    this.timeline = new Timeline(this);
    await Promise.all([this.series.loadTop([0, 1 + this.timeline.grouping]), this.other?.series.loadTop([0, 1])]);
    if (this.closing.signal.aborted) return;  // its elements are another's now
    this.timeline.legend();
    this.timeline.redraw();
    this.arena = new Arena(this);
    this.controls();
    this.keys();
    for (const policy of this.index.policies.filter((p) => p.samples.length && p.name !== this.index.placedBy).slice(0, 2)) {
      this.timeline.lines.add(policy.name);
    }
    this.timeline.legend();
    showComparison(this);
    showOoms(this);
    showCard(this);
    showPolicies(this);
    showLeaks(this);
    showSites(this);
    this.flame = new Flame(this);
    const [first] = this.index.ooms;
    if (this.index.events) await this.look(this.address.apply() ?? (first ? first.event : this.index.peak.event));
    else this.arena.stage.redraw();
    if (!this.closing.signal.aborted) document.documentElement.dataset.ready = 'yes';
  }

  // Another page takes its place.
  close() {
    this.closing.abort();
    tip.hide();
  }

  // --- What is said -----------------------------------------------------------------------------

  head() {
    const { index } = this;
    const name = index.program || index.file || 'a recording';
    document.title = `${name} - weir report`;
    byId('title').textContent = name;
    const words = [index.program ? index.file : '', index.device, index.capacity ? sizeText(index.capacity) : ''];
    byId('subtitle').textContent = words.filter(Boolean).join(' · ');
    byId('footer').textContent = this.run instanceof MadeRun ? `Read from ${index.file} by a page of weir ${index.weir}.` : `Made by weir ${index.weir}. Everything shown is in this file.`;
    const notices = [];
    const say = (kind, text) => notices.push(make('p', { class: `notice ${kind}`, role: 'note' }, text));
    if (index.damage) say('bad', `The recording is damaged at byte ${countText(index.damage.offset)}: ${index.damage.reason}. What came before it is shown.`);
    if (index.dropped) say('warn', `${countText(index.dropped)} events were dropped while recording: sums may be wrong where they are missing.`);
    if (!index.events) say('warn', 'The recording is empty.');
    if (index.placedBy) say('warn', `The recording has no addresses. The arena shows where ${index.placedBy} put the blocks in a replay.`);
    byId('notices').replaceChildren(...notices);
    const facts = [
      ['Most live', sizeText(index.peak.live), `event ${countText(index.peak.event)}`],
      ['Most in use', sizeText(index.peak.inUse), index.peak.inUse > index.peak.live ? 'live, or freed and not yet reusable' : 'as much as was live'],
      [index.placedBy ? `Most reserved by ${index.placedBy}` : 'Most reserved', index.knowsReserved ? sizeText(index.reservedPeak) : 'not recorded',
        index.knowsReserved && index.peak.inUse ? `${(index.reservedPeak / index.peak.inUse).toFixed(3)} × most in use` : ''],
      index.peak.rounded >= index.peak.live
        ? ['Rounding at the peak', sizeText(index.peak.rounded - index.peak.live), percentText(index.peak.rounded - index.peak.live, index.peak.live)]
        : ['Rounding at the peak', '-', 'not recorded'],
      ['Recorded', timeText(index.duration), `${countText(index.events)} events`],
      ['Blocks', countText(index.blocks), `from ${countText(index.siteCount)} ${index.hasStacks ? 'sites' : 'sizes'}`],
      ['Out of memory', index.oomCount ? countText(index.oomCount) : 'never', ''],
    ];
    byId('facts').replaceChildren(...facts.map(([term, value, more]) => make('div', {}, make('dt', {}, term), make('dd', {}, value, make('small', {}, more)))));
  }

  noArena() {
    if (!this.index.events) return 'The recording is empty.';
    return this.index.realAddresses ? 'No block was allocated.' : 'The recording has no addresses, and no policy was asked to place its blocks.';
  }

  tagOf(block) {
    return this.index.tags[block.tag] || `tag ${block.tag}`;
  }

  unitName() {
    return this.unit ? 'page' : 'reservation';
  }

  aboutBlock(block) {
    const { index, series } = this;
    const born = series.timeAt(block.start);
    const site = this.sites.get(block.site);
    const rows = [['tag', this.tagOf(block)], ['stream', index.streams[block.stream] || String(block.stream)]];
    if (index.hasStacks && site) rows.push(['site', site.label]);
    if (block.rounded > block.size) rows.push(['takes', sizeText(block.rounded)]);
    rows.push(['allocated', `${timeText(born, 1000)}, event ${countText(block.start)}`]);
    for (const { from, to, end, kept } of this.suspensionsOf(block)) {
      const until = end < Math.min(block.end, index.events) ? `to ${timeText(to, 1000)}` : block.end < index.events ? 'until it was freed' : 'to the end';
      rows.push(['suspended', `from ${timeText(from, 1000)} ${until}, contents ${kept ? 'kept on the host' : 'discarded'}`]);
    }
    rows.push(['freed', block.end >= index.events ? 'never' : `${timeText(series.timeAt(block.end), 1000)}, after ${timeText(series.timeAt(block.end) - born)}`]);
    return rows;
  }

  // The times without physical memory in a block's life.
  suspensionsOf({ pool, start, end }) {
    return this.index.suspensions.filter((each) => each.pool === pool && each.start >= start && each.start < end);
  }

  // --- The moment -------------------------------------------------------------------------------

  async look(event, scroll = false) {
    this.moment = event;
    this.timeline.stage.redraw();
    const [state] = await Promise.all([this.blockIndex.at(event), this.series.loadTime(event)]);
    if (this.moment !== event || this.closing.signal.aborted) return;  // somebody went on meanwhile
    this.state = state;
    const when = `after event ${countText(event)}, at ${timeText(this.series.timeAt(event), 1000)}`;
    const special = event === this.index.peak.event ? ' (the peak)' : this.index.ooms.some((s) => s.event === event) ? ' (out of memory)' : '';
    byId('moment').textContent = when + special;
    this.analyse();
    if (scroll) byId('arena-title').scrollIntoView({ behavior: 'smooth', block: 'start' });
  }

  analyse() {
    if (!this.state) return;
    const found = analyse(this.state, this.unit);
    this.arena.show(this.state, [...found.pieces].sort((a, b) => a.address - b.address));
    this.showShares(found);
    this.showPins(found);
  }

  showShares(found) {
    const known = found.reserved > 0;
    const parts = [
      ['asked for', found.asked, theme.colors[0]],
      ['rounding', found.rounding, theme.colors[1]],
      [`free, but pinned in part-used ${this.unitName()}s`, found.pinned, theme.css('bad')],
      ...(known ? [[`free, in whole ${this.unitName()}s`, found.whole, theme.css('free')]] : []),
    ];
    const all = Math.max(1, parts.reduce((sum, [, size]) => sum + size, 0));
    byId('shares').replaceChildren(
      make('div', { class: 'shares', role: 'img', 'aria-label': parts.map(([label, size]) => `${label}: ${sizeText(size)}`).join(', ') },
        ...parts.map(([, size, color]) => make('i', { style: { width: `${(100 * size) / all}%`, background: color } }))),
      make('div', { class: 'legend' }, ...parts.map(([label, size, color]) => make('span', {}, swatch(color), make('b', {}, label), make('small', {}, `${sizeText(size)}, ${percentText(size, all)}`)))));
    const notes = [];
    if (known) notes.push(`${sizeText(found.reserved)} reserved. Free memory lies in ${countText(found.holes.count)} pieces, the longest ${sizeText(found.holes.longest)}.`);
    else if (this.arena.total) notes.push('What was reserved is not known; pages with live blocks are shown.');
    if (this.index.smallBelow && this.state.small !== this.state.event) notes.push(`Blocks below ${sizeText(this.index.smallBelow)} are shown as of event ${countText(this.state.small)}.`);
    if (this.index.leftOutBelow) notes.push(`Blocks below ${sizeText(this.index.leftOutBelow)} are left out.`);
    byId('arena-note').textContent = notes.join(' ');
  }

  showPins(found) {
    const { labels, name } = this.index.groupings[this.timeline.grouping];
    const words = this.unitName();
    byId('pinners').replaceChildren(tableOf([
      { label: `By ${name}`, text: true, wide: true, cell: (row) => [swatch(theme.colors[row.group % theme.colors.length]), ` ${labels[row.group]}`] },
      { label: 'Pins', cell: (row) => sizeText(row.free) },
      { label: `${words[0].toUpperCase()}${words.slice(1)}s`, cell: (row) => countText(row.pieces) },
      { label: 'Blocks', cell: (row) => countText(row.blocks.size) },
    ], pinnersBy(found.pieces, this.timeline.grouping), { empty: 'Nothing pins free memory at this moment.' }));
    const site = (pin) => (this.index.hasStacks && this.sites.get(pin.site) ? `, ${this.sites.get(pin.site).label}` : '');
    byId('pages').replaceChildren(tableOf([
      { label: 'Free', cell: (piece) => sizeText(piece.free) },
      { label: 'Pinned by', text: true, wide: true, cell: ({ pin }) => `${sizeText(pin.size)}, ${this.tagOf(pin)}, ${this.index.streams[pin.stream] || pin.stream}${site(pin)}` },
      { label: 'Used', cell: (piece) => percentText(piece.used, piece.size) },
      { label: 'Blocks', cell: (piece) => countText(piece.count) },
      { label: 'Address', text: true, cell: (piece) => addressText(piece.address) },
    ], found.pieces.slice(0, 100), {
      empty: 'Every piece is full or empty.',
      row: (line, piece) => {
        const go = () => this.arena.reveal(piece.address, piece.size);
        line.tabIndex = 0;
        line.addEventListener('click', go);
        line.addEventListener('keydown', (event) => { if (event.key === 'Enter') go(); });
      },
    }));
  }

  // One bin of the finest level on or back.
  step(by) {
    if (!this.index.events) return;
    const width = 2 ** this.index.shift;
    const bin = Math.floor(this.moment / width) + by;
    if (bin < 0 || bin >= this.index.bins) return;
    const tile = Math.floor(bin / this.index.tileBins);
    const key = this.series.key(0, tile, 0);
    const kept = this.series.kept.get(key);
    Promise.resolve(kept || this.series.cache.get(key)).then((frame) => this.look(frame.moment[bin % this.index.tileBins]));
  }

  // The next moment worth a look: out of memory, the peak, a marker, a key moment.
  next(by) {
    const { ooms, markers, keyMoments, peak, events } = this.index;
    const all = [...new Set([peak.event, ...ooms.map((s) => s.event), ...markers.map((m) => m.event), ...keyMoments])].sort((a, b) => a - b);
    const found = by > 0 ? all.find((event) => event > this.moment) : all.findLast((event) => event < this.moment);
    if (found === undefined || !events) return;
    const place = this.timeline.placeOf(found);
    if (place < this.timeline.from || place > this.timeline.to) this.timeline.centre(place);
    this.look(found);
  }

  // --- Controls ---------------------------------------------------------------------------------

  controls() {
    const { index, timeline } = this;
    this.setGrouping = choice(byId('groupings'), index.groupings.map((by, i) => ({ value: i, label: by.name[0].toUpperCase() + by.name.slice(1), title: `Stack by ${by.name} (g)` })),
      timeline.grouping, (grouping) => {
        timeline.setGrouping(grouping);
        this.analyse();
      });
    this.setAxis = choice(byId('axes'), [{ value: 'time', label: 'Time', title: 'Host time (x)' }, { value: 'events', label: 'Events', title: 'Every event as wide as the next (x)' }],
      timeline.axis, (axis) => timeline.setAxis(axis));
    this.setUnit = choice(byId('units'), [{ value: index.pageBytes, label: `${sizeText(index.pageBytes)} pages`, title: 'What can be given back: pages' }, { value: 0, label: 'Reservations', title: 'What can be given back: whole reservations' }],
      this.unit, (unit) => {
        this.unit = unit;
        this.analyse();
        this.address.keep();
      });
    this.fit = () => {
      timeline.fit = !timeline.fit;
      byId('fit').setAttribute('aria-pressed', String(timeline.fit));
      timeline.redraw();
    };
    byId('fit').onclick = this.fit;
    byId('zoom-in').onclick = () => timeline.zoom(0.5);
    byId('zoom-out').onclick = () => timeline.zoom(2);
    byId('zoom-all').onclick = () => timeline.all();
    byId('to-peak').onclick = () => this.look(index.peak.event);
    byId('back').onclick = () => this.step(-1);
    byId('forth').onclick = () => this.step(1);
    byId('help').onclick = () => byId('keys').showModal();
    byId('theme').onclick = () => this.flip();
  }

  flip() {
    theme.set(theme.name === 'dark' ? 'light' : 'dark');
    this.repaint();
  }

  repaint() {
    if (!this.arena) return;
    this.timeline.legend();
    this.timeline.redraw();
    this.analyse();
    showPolicies(this);
    this.arena.stage.redraw();
  }

  keys() {
    const { timeline, arena, index } = this;
    const onArena = () => document.activeElement === byId('arena');
    const table = [
      [['ArrowLeft'], '← →', 'pan', () => (onArena() ? arena.scroll(-0.5) : timeline.pan(-0.15))],
      [['ArrowRight'], '', '', () => (onArena() ? arena.scroll(0.5) : timeline.pan(0.15))],
      [['ArrowUp'], '↑ ↓', 'scroll the arena, when it has the focus', () => arena.scroll(-1), onArena],
      [['ArrowDown'], '', '', () => arena.scroll(1), onArena],
      [['+', '='], '+ −', 'zoom the chart, or the arena when it has the focus', () => (onArena() ? arena.zoom(0.5) : timeline.zoom(0.5))],
      [['-', '_'], '', '', () => (onArena() ? arena.zoom(2) : timeline.zoom(2))],
      [['0', 'Home'], '0', 'show everything', () => (onArena() ? arena.zoom(1e12) : timeline.all())],
      [['g'], 'g', 'stack by the next grouping', () => this.setGrouping((timeline.grouping + 1) % index.groupings.length)],
      [['x'], 'x', 'time or events along the axis', () => this.setAxis(timeline.axis === 'time' ? 'events' : 'time')],
      [['y'], 'y', 'fit the height to what is seen', () => this.fit()],
      [['Enter'], 'Enter', 'look at the moment in the middle', () => this.look(timeline.momentAt(timeline.stage.width / 2)), () => document.activeElement === byId('timeline')],
      [['p'], 'p', 'look at the peak', () => this.look(index.peak.event)],
      [[','], ', .', 'one moment back or on', () => this.step(-1)],
      [['.'], '', '', () => this.step(1)],
      [['['], '[ ]', 'the marked moment before or after: peak, out of memory, marker', () => this.next(-1)],
      [[']'], '', '', () => this.next(1)],
      [['t'], 't', 'dark or light', () => this.flip()],
      [['?'], '?', 'this list', () => byId('keys').showModal()],
    ];
    byId('key-list').replaceChildren(...table.filter(([, shown]) => shown).flatMap(([, shown, what]) => [make('dt', {}, shown), make('dd', {}, what)]));
    document.addEventListener('keydown', (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || byId('keys').open) return;
      if (/^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
      if (event.target.closest && event.target.closest('button, summary, tr[tabindex]') && /^(Enter| )$/.test(event.key)) return;
      const found = table.find(([keys, , , , when]) => keys.includes(event.key) && (!when || when()));
      if (!found || (!index.events && !/^[t?]$/.test(event.key))) return;
      event.preventDefault();
      found[3]();
    }, { signal: this.closing.signal });
  }
}

