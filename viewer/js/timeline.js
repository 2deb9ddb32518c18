// SPDX-License-Identifier: Apache-2.0
// Memory over time: the stacked chart, the strip with the whole recording, and the legend.

const axisHeight = 18;  // below the chart, for the words of its axis

class Timeline {
  constructor(page) {
    const { index } = page;
    this.page = page;
    this.index = index;
    this.axis = index.duration > 0 ? 'time' : 'events';
    this.grouping = Math.max(0, index.groupings.findIndex((by) => by.labels.length > 1));
    this.fit = false;
    this.lines = new Set();  // names of policies that are drawn as lines
    this.hover = null;
    this.columns = [];
    this.otherColumns = [];  // of the run that this one is compared with
    this.stage = new Stage(byId('timeline'), () => this.draw(), page.closing.signal);
    this.whole = new Stage(byId('whole'), () => this.drawWhole(), page.closing.signal);
    this.all();
    gestures(byId('timeline'), {
      drag: (dx) => this.pan(-dx / this.stage.width),
      zoom: (factor, at) => this.zoom(factor, at.x / this.stage.width),
      click: (at) => page.look(this.momentAt(at.x)),
      hover: (at, event) => this.point(at, event),
      leave: () => this.point(null),
    });
    const jump = (at) => this.centre(this.domain() * (at.x / this.whole.width));
    gestures(byId('whole'), { drag: (dx, dy, at) => jump(at), click: jump });
  }

  // --- The view: [from, to) on the axis ---------------------------------------------------------

  // Both runs begin at 0.
  domain() {
    return Math.max(this.endOf(this.page.run), this.page.other ? this.endOf(this.page.other) : 0);
  }

  endOf({ index }) {
    return Math.max(1, this.axis === 'time' ? index.duration : index.events);
  }

  all() {
    this.set(0, this.domain());
  }

  set(from, to) {
    const domain = this.domain();
    const least = this.axis === 'time' ? Math.min(domain, 1000) : Math.min(domain, 16);
    const width = Math.min(domain, Math.max(least, to - from));
    const middle = (from + to) / 2;
    this.from = Math.max(0, Math.min(domain - width, middle - width / 2));
    this.to = this.from + width;
    this.redraw();
  }

  pan(share) {
    const by = (this.to - this.from) * share;
    const room = by < 0 ? -this.from : this.domain() - this.to;
    const step = by < 0 ? Math.max(by, room) : Math.min(by, room);
    this.from += step;
    this.to += step;
    this.redraw();
  }

  zoom(factor, share = 0.5) {
    const at = this.from + (this.to - this.from) * share;
    const width = Math.min(this.domain(), (this.to - this.from) * factor);
    this.set(at - width * share, at + width * (1 - share));
  }

  centre(at) {
    const half = (this.to - this.from) / 2;
    this.set(at - half, at + half);
  }

  setAxis(axis) {
    const isAll = this.to - this.from === this.domain();
    const from = this.eventAt(this.from);
    const to = this.eventAt(this.to);
    this.axis = axis;
    if (isAll) this.all();
    else this.set(this.placeOf(from), this.placeOf(to));
    this.whole.redraw();
  }

  setGrouping(grouping) {
    this.grouping = grouping;
    this.page.series.loadTop([1 + grouping]).then(() => this.redraw());
    this.legend();
  }

  eventAt(place, precision = (this.to - this.from) / 1000, { series } = this.page.run) {
    return this.axis === 'time' ? series.eventAt(place, precision) : place;
  }

  placeOf(event) {
    return this.axis === 'time' ? this.page.series.timeAt(event) : event;
  }

  momentAt(x) {
    const column = this.columns[Math.max(0, Math.min(this.columns.length - 1, Math.floor(x * this.stage.scale)))];
    return column ? column.moment : this.index.peak.event;
  }

  redraw() {
    this.stage.redraw();
    this.whole.redraw();
  }

  // --- Drawing ----------------------------------------------------------------------------------

  // The highest moment of each column; null where the run is over.
  measure(width, from, to, { least = 0, run = this.page.run, grouping = this.grouping } = {}) {
    const columns = new Array(width);
    const precision = (to - from) / width / 2;
    const end = run.index.bins ? this.endOf(run) : 0;
    let place = from;
    let before = this.eventAt(from, precision, run);
    for (let x = 0; x < width; ++x) {
      const next = from + ((to - from) * (x + 1)) / width;
      const after = this.eventAt(next, precision, run);
      columns[x] = place < end ? run.series.highest(before, Math.max(after, before), grouping, least) : null;
      before = after;
      place = next;
    }
    return columns;
  }

  // The lowest `foot` pixels stay empty.
  paint(stage, columns, top, foot = 0) {
    const { pixels, image } = stage;
    const { width } = image;
    const height = image.height - foot;
    pixels.fill(theme.ground);
    const scale = height / top;
    columns.forEach((column, x) => {
      if (!column) return;
      const { stacks, at } = column;
      const low = height - Math.round(column.low * scale);
      let sum = 0;
      let y = height;
      for (let g = 0; g < stacks.groups; ++g) {
        sum += stacks.values[at * stacks.groups + g];
        const until = Math.max(0, height - Math.round(sum * scale));
        const color = theme.words[g % theme.words.length];
        const thin = theme.thin[g % theme.thin.length];
        const isHatched = this.isSuspended(g, stacks.groups);
        for (let p = (y - 1) * width + x; y > until; --y, p -= width) pixels[p] = isHatched ? theme.hatch[((x + y) >> 2) & 1] : y > low ? color : thin;
      }
      if (column.reserved > 0) {
        const line = Math.max(0, Math.min(height - 1, height - Math.round(column.reserved * scale)));
        pixels[line * width + x] = theme.ink;
        if (line > 0) pixels[(line - 1) * width + x] = theme.ink;
      }
    });
    stage.show();
  }

  // The last group is of blocks without memory, where there ever were any.
  isSuspended(group, groups) {
    return this.index.suspensionCount > 0 && group === groups - 1;
  }

  swatchOf(group, groups) {
    return this.isSuspended(group, groups) ? swatch(theme.css('quiet'), 'hatched') : swatch(theme.colors[group % theme.colors.length]);
  }

  top(columns) {
    let most = 1;
    const see = (value) => { if (value > most) most = value; };
    const { run, other } = this.page;
    if (this.fit) {
      for (const column of [...columns, ...this.otherColumns]) if (column) see(Math.max(column.total, column.reserved));
    } else {
      for (const { index } of other ? [run, other] : [run]) see(Math.max(index.peak.live, index.reservedPeak));
    }
    for (const policy of this.policyLines()) for (const sample of policy.samples) if (!this.fit) see(sample.reserved);
    for (const { bytes } of this.limits()) if (bytes < most * 1.3) see(bytes);
    return most * 1.06;
  }

  // Sizes that memory is measured by: what the device has, and the card that was asked about has.
  limits() {
    const { capacity, card } = this.index;
    return [
      { bytes: capacity, words: 'what the device has' },
      { bytes: card.left, words: `a card of ${sizeText(card.size)} has for the program` },
    ].filter(({ bytes }) => bytes);
  }

  policyLines() {
    return this.index.policies.filter((policy) => this.lines.has(policy.name) && policy.samples.length);
  }

  draw() {
    const { stage } = this;
    const { other } = this.page;
    this.columns = this.measure(stage.below.width, this.from, this.to);
    this.otherColumns = other ? this.measure(stage.width, this.from, this.to, { run: other, grouping: 0 }) : [];
    const top = this.top(this.columns);
    this.paint(stage, this.columns, top, Math.round(axisHeight * stage.scale));
    this.height = stage.height - axisHeight;
    this.scaleY = this.height / top;
    const toX = (place) => ((place - this.from) / (this.to - this.from)) * stage.width;
    const toY = (bytes) => this.height - bytes * this.scaleY;
    const pen = stage.over;
    pen.font = '11px system-ui, sans-serif';
    this.drawAxes(pen, top, toX, toY);
    this.drawLines(pen, toX, toY);
    this.drawOther(pen, toY);
    this.drawMarks(pen, toX);
    this.say();
    this.page.address.keep();
  }

  drawAxes(pen, top, toX, toY) {
    const { width, height } = this.stage;
    pen.strokeStyle = theme.css('line');
    pen.globalAlpha = 0.7;
    pen.beginPath();
    const up = roundStep(top, this.height / 56, 2);
    for (let value = 0; value < top; value += up) {
      pen.moveTo(0, Math.round(toY(value)) + 0.5);
      pen.lineTo(width, Math.round(toY(value)) + 0.5);
    }
    pen.stroke();
    pen.globalAlpha = 1;
    const sizes = [];
    for (let value = up; value < top; value += up) sizes.push([sizeText(value), Math.round(toY(value))]);
    this.nameSizes(sizes);
    const across = roundStep(this.to - this.from, width / 110, 10);
    for (let value = Math.ceil(this.from / across) * across; value < this.to; value += across) {
      const x = toX(value);
      if (x < 40 || x > width - 50) continue;
      this.word(pen, this.axis === 'time' ? timeText(value, across) : countText(Math.round(value)), x, height - 5, 'center');
    }
  }

  // Beside the chart, where no data is.
  nameSizes(sizes) {
    if (String(sizes) === this.sizes) return;  // a change costs a layout
    this.sizes = String(sizes);
    byId('sizes').replaceChildren(...sizes.map(([text, y]) => make('span', { style: { top: `${y}px` } }, text)));
  }

  // Text that can be read over any colour.
  word(pen, text, x, y, align = 'left') {
    pen.textAlign = align;
    pen.lineWidth = 3;
    pen.lineJoin = 'round';
    pen.strokeStyle = theme.css('ground');
    pen.strokeText(text, x, y);
    pen.fillStyle = theme.css('ink');
    pen.fillText(text, x, y);
    pen.lineWidth = 1;
  }

  // What a policy reserved, from the last sample before the view to the first behind it. Each holds until the next.
  stepsOf({ samples }) {
    const { series } = this.page;
    const byTime = this.axis === 'time';
    const [begin, end] = byTime ? [this.from, this.to] : [series.timeAt(this.from), series.timeAt(this.to)];
    const first = Math.max(0, samples.findLastIndex(({ time }) => time <= begin));
    const behind = samples.findIndex(({ time }) => time > end);
    const seen = samples.slice(first, behind < 0 ? samples.length : behind + 1);
    const eventAt = (time) => Math.min(this.index.events - 1, Math.floor(series.eventAt(time, (end - begin) / 2000)));
    return seen.map(({ time, reserved }) => ({ place: byTime ? time : eventAt(time), reserved }));
  }

  // The other run over this one: the most of every column, live and, dashed, reserved.
  drawOther(pen, toY) {
    const { other } = this.page;
    if (!other) return;
    const line = (name, dash) => {
      pen.strokeStyle = theme.css('accent');
      pen.lineWidth = 2;
      pen.setLineDash(dash);
      pen.beginPath();
      this.otherColumns.forEach((column, x) => {
        if (!column) return;
        if (x === 0) pen.moveTo(0, toY(column[name]));
        else pen.lineTo(x, toY(column[name]));
        pen.lineTo(x + 1, toY(column[name]));
      });
      pen.stroke();
    };
    line('total', []);
    if (other.index.knowsReserved) line('reserved', [2, 2]);
    pen.setLineDash([]);
    pen.lineWidth = 1;
  }

  drawLines(pen, toX, toY) {
    const { width } = this.stage;
    for (const { bytes, words } of this.limits()) {
      if (toY(bytes) < 0) continue;
      pen.strokeStyle = theme.bad;
      pen.setLineDash([6, 4]);
      pen.beginPath();
      pen.moveTo(0, toY(bytes));
      pen.lineTo(width, toY(bytes));
      pen.stroke();
      pen.setLineDash([]);
      this.word(pen, words, width - 6, toY(bytes) + 14, 'right');
    }
    for (const policy of this.policyLines()) {
      pen.strokeStyle = policyColor(this.index, policy.name);
      pen.lineWidth = 1.5;
      pen.setLineDash([5, 3]);
      pen.beginPath();
      let before = null;
      for (const { place, reserved } of this.stepsOf(policy)) {
        const x = Math.max(-8, Math.min(width + 8, toX(place)));  // dashes far outside take time
        const y = toY(reserved);
        if (before === null) {
          pen.moveTo(x, y);
        } else {
          pen.lineTo(x, before);
          pen.lineTo(x, y);
        }
        before = y;
      }
      pen.lineTo(width + 8, before);
      pen.stroke();
      pen.setLineDash([]);
      pen.lineWidth = 1;
    }
  }

  drawMarks(pen, toX) {
    const { width } = this.stage;
    const line = (x, color, dash = []) => {
      pen.strokeStyle = color;
      pen.setLineDash(dash);
      pen.beginPath();
      pen.moveTo(x, 0);
      pen.lineTo(x, this.height);
      pen.stroke();
      pen.setLineDash([]);
    };
    let clear = -Infinity;
    for (const marker of this.index.markers) {
      const x = toX(this.axis === 'time' ? marker.time : marker.event);
      if (x < 0 || x > width) continue;
      const text = marker.text.length > 28 ? `${marker.text.slice(0, 27)}…` : marker.text;
      const wide = pen.measureText(text).width;
      const left = x + 3 + wide <= width ? x + 3 : Math.max(3, x - 3 - wide);
      if (left < clear) continue;  // as many as there is room for their words
      line(x, theme.css('quiet'), [2, 3]);
      this.word(pen, text, left, 12);
      clear = left + wide + 12;
    }
    for (const oom of this.index.ooms) {
      const x = toX(this.axis === 'time' ? oom.time : oom.event);
      if (x < 0 || x > width) continue;
      line(x, theme.bad);
      pen.fillStyle = theme.bad;
      pen.beginPath();
      pen.moveTo(x - 6, 0);
      pen.lineTo(x + 6, 0);
      pen.lineTo(x, 9);
      pen.fill();
    }
    if (this.page.moment !== null) {
      const x = toX(this.placeOf(this.page.moment));
      pen.lineWidth = 2;
      pen.globalAlpha = 0.5;  // the peak that it often marks stays visible below it
      if (x >= -1 && x <= width + 1) line(x, theme.css('accent'));
      pen.globalAlpha = 1;
      pen.lineWidth = 1;
    }
    if (this.hover) line(Math.round(this.hover.x) + 0.5, theme.css('quiet'), [3, 3]);
  }

  drawWhole() {
    const { whole } = this;
    const wanted = [this.axis, this.grouping, theme.name, whole.sizes, this.page.series.loads].join();
    if (this.wholeIs !== wanted) {
      const top = Math.max(1, this.index.peak.live) * 1.05;
      // Only the coarsest level: it is there from the start and shows every peak.
      const columns = this.measure(whole.below.width, 0, this.domain(), { least: this.page.series.top });
      for (const column of columns) if (column) column.reserved = 0;
      this.paint(whole, columns, top);
      this.wholeIs = wanted;
    }
    const pen = whole.over;
    const toX = (place) => (place / this.domain()) * whole.width;
    pen.fillStyle = theme.css('ground');
    pen.globalAlpha = 0.65;
    pen.fillRect(0, 0, toX(this.from), whole.height);
    pen.fillRect(toX(this.to), 0, whole.width - toX(this.to), whole.height);
    pen.globalAlpha = 1;
    pen.strokeStyle = theme.css('accent');
    pen.lineWidth = 2;
    const left = Math.min(whole.width - 4, toX(this.from));
    pen.strokeRect(left + 1, 1, Math.max(3, toX(this.to) - left - 2), whole.height - 2);
  }

  // --- Words ------------------------------------------------------------------------------------

  say() {
    const { index } = this;
    const wide = Math.min(index.events, this.eventAt(this.to) - this.eventAt(this.from));
    const level = this.columns.reduce((most, column) => (column ? Math.max(most, column.level) : most), 0);
    const events = 2 ** (index.shift + level * index.levelShift);
    const detail = !index.events ? 'Nothing was recorded.'
      : events === 1 ? 'Every event is drawn.'
        : `A step is ${countText(events)} events and shows its highest moment; thin colours were only there part of the time.`;
    const words = `${countText(Math.round(wide))} of ${countText(index.events)} events in view. ${detail}`;
    if (words === this.said) return;  // a change costs a layout
    this.said = words;
    byId('resolution').textContent = words;
  }

  legend() {
    const { labels, name } = this.index.groupings[this.grouping] || { labels: [], name: '' };
    const items = labels.map((label, g) => make('span', { title: this.isSuspended(g, labels.length) ? 'live, without physical memory' : label }, this.swatchOf(g, labels.length), make('b', {}, label), make('small', { 'data-group': g })));
    if (this.index.knowsReserved) {
      const whose = this.index.placedBy ? `reserved by ${this.index.placedBy}` : 'reserved';
      items.push(make('span', {}, swatch(theme.css('ink'), 'line'), make('b', {}, whose), make('small', { 'data-group': 'reserved' })));
    }
    for (const policy of this.policyLines()) {
      items.push(make('span', {}, swatch(policyColor(this.index, policy.name), 'line dashed'), make('b', {}, `reserved by ${policy.name} (replayed)`)));
    }
    if (this.page.other) {
      const { file } = this.page.other.index;
      items.push(make('span', {}, swatch(theme.css('accent'), 'line'), make('b', {}, `live in ${file}`)));
      if (this.page.other.index.knowsReserved) items.push(make('span', {}, swatch(theme.css('accent'), 'line dashed'), make('b', {}, `reserved in ${file}`)));
    }
    byId('legend').replaceChildren(...items);
    byId('legend').setAttribute('aria-label', `Colours by ${name}`);
  }

  point(at, event) {
    this.hover = at;
    this.stage.redraw();
    const column = at && this.columns[Math.max(0, Math.min(this.columns.length - 1, Math.floor(at.x * this.stage.scale)))];
    const other = at && this.otherColumns[Math.max(0, Math.min(this.otherColumns.length - 1, Math.floor(at.x)))];
    if (!column && !other) {
      tip.hide();
      return;
    }
    const otherLine = other ? [make('div', {}, `${sizeText(other.total)} live in ${this.page.other.index.file}`)] : [];
    if (!column) {
      tip.show(event.clientX, event.clientY, ...otherLine);
      return;
    }
    const { stacks } = column;
    const { labels } = this.index.groupings[this.grouping];
    const parts = labels.map((label, g) => ({ label, g, size: stacks.values[column.at * stacks.groups + g] }))
      .filter((part) => part.size > 0).sort((a, b) => b.size - a.size);
    const rows = parts.slice(0, 8).map((part) => make('tr', {},
      make('td', {}, this.swatchOf(part.g, labels.length), ` ${part.label}`), make('td', {}, sizeText(part.size))));
    if (parts.length > 8) {
      const rest = parts.slice(8).reduce((sum, part) => sum + part.size, 0);
      rows.push(make('tr', {}, make('td', {}, `${parts.length - 8} more`), make('td', {}, sizeText(rest))));
    }
    const here = this.from + ((this.to - this.from) * at.x) / this.stage.width;
    const near = this.index.markers.filter((m) => Math.abs((this.axis === 'time' ? m.time : m.event) - here) * this.stage.width < 5 * (this.to - this.from));
    tip.show(event.clientX, event.clientY,
      make('strong', {}, `${sizeText(column.total)} live`),
      this.whenOf(column.moment),
      ...(column.reserved ? [make('div', {}, `${sizeText(column.reserved)} reserved`)] : []),
      ...otherLine,
      ...near.slice(0, 3).map((m) => make('div', {}, `“${m.text}”`)),
      make('table', {}, ...rows), make('div', { class: 'quiet' }, 'Click to look at this moment'));
  }

  // A moment's time: about, until the piece that knows it exactly is here.
  whenOf(moment) {
    const { series } = this.page;
    const line = make('div', {});
    const say = () => {
      const time = series.timeAt(moment);
      line.textContent = `${series.knowsTime(moment) ? timeText(time, 1000) : `about ${timeText(time)}`}, event ${countText(moment)}`;
    };
    say();
    if (!series.knowsTime(moment)) series.loadTime(moment).then(say);
    return line;
  }
}

function policyColor(index, name) {
  const at = index.policies.findIndex((policy) => policy.name === name);
  return theme.colors[(at * 2 + 2) % theme.colors.length];
}
