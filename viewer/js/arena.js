// SPDX-License-Identifier: Apache-2.0
// The arena at one moment: addresses in rows, blocks on them, and below each row what is pinned.

const rowHeight = 16;
const blockHeight = 11;
const strip = { from: 12, height: 3 };

class Arena {
  constructor(page) {
    this.page = page;
    this.index = page.index;
    this.state = null;
    this.pieces = [];
    this.chosen = null;
    // Addresses without the gaps between regions: the map's own positions.
    this.total = 0;
    this.regions = this.index.regions.map((region) => {
      const placed = { ...region, from: this.total };
      this.total += region.size;
      return placed;
    });
    this.stage = new Stage(byId('arena'), () => this.draw(), page.closing.signal);
    this.fitted = true;
    this.from = 0;
    gestures(byId('arena'), {
      drag: (dx, dy) => this.scroll(-dy / rowHeight - dx / this.stage.width),
      zoom: (factor, at) => this.zoom(factor, at),
      hover: (at, event) => this.point(at, event),
      click: (at) => this.choose(this.findAt(this.positionAt(at))),
    });
  }

  // --- Positions --------------------------------------------------------------------------------

  regionOf(address) {
    let low = 0;
    let high = this.regions.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.regions[middle].address <= address) low = middle;
      else high = middle - 1;
    }
    return this.regions[low];
  }

  position(address) {
    const region = this.regionOf(address);
    return region ? region.from + Math.max(0, Math.min(region.size, address - region.address)) : 0;
  }

  addressAt(position) {
    const region = this.regions.findLast((r) => r.from <= position) || this.regions[0];
    return region.address + (position - region.from);
  }

  rows() {
    return Math.max(1, Math.floor(this.stage.height / rowHeight));
  }

  perRow() {
    const whole = Math.max(1, this.total / this.rows());
    if (this.fitted || this.rowBytes >= whole) {
      this.fitted = true;
      this.rowBytes = whole;
    }
    return this.rowBytes;
  }

  scroll(rows) {
    this.from = Math.max(0, Math.min(this.total - this.perRow() * this.rows(), this.from + rows * this.perRow()));
    this.stage.redraw();
  }

  zoom(factor, at = { x: this.stage.width / 2, y: this.stage.height / 2 }) {
    const before = this.positionAt(at);
    this.rowBytes = Math.max(512 * 8, Math.min(this.total / this.rows(), this.perRow() * factor));
    this.fitted = this.rowBytes >= this.total / this.rows();
    this.from = before - this.perRow() * (Math.floor(at.y / rowHeight) + at.x / this.stage.width);
    this.scroll(0);
  }

  positionAt({ x, y }) {
    return this.from + this.perRow() * (Math.floor(y / rowHeight) + Math.max(0, Math.min(0.9999, x / this.stage.width)));
  }

  // Brings an address range into view and marks it.
  reveal(address, size) {
    this.chosen = { address, size };
    this.fitted = false;
    this.rowBytes = Math.max(512 * 8, Math.min(this.total / this.rows(), Math.max(size * 2, this.index.pageBytes * 2)));
    this.from = this.position(address) - this.rowBytes * Math.floor(this.rows() / 2);
    this.scroll(0);
  }

  choose(block) {
    this.chosen = block ? { address: block.address, size: block.rounded } : null;
    this.stage.redraw();
  }

  show(state, pieces) {
    this.state = state;
    this.pieces = pieces;
    this.starts = Float64Array.from(state.blocks, (block) => block.address);
    this.stage.redraw();
  }

  findAt(position) {
    if (!this.state || !this.regions.length) return null;
    const address = this.addressAt(position);
    let low = 0;
    let high = this.starts.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.starts[middle] <= address) low = middle + 1;
      else high = middle;
    }
    // Small blocks may be of an earlier moment and lie under a larger one: the last that covers it.
    for (let i = low - 1; i >= Math.max(0, low - 64); --i) {
      const block = this.state.blocks[i];
      if (address < block.address + block.rounded) return block;
    }
    return null;
  }

  // --- Drawing ----------------------------------------------------------------------------------

  draw() {
    const { stage } = this;
    stage.pixels.fill(theme.ground);
    if (this.state && this.total) {
      const cells = this.cells();
      this.fill(cells);
      this.drawStrip();
    }
    stage.show();
    const pen = stage.over;
    pen.font = '12px system-ui, sans-serif';
    pen.fillStyle = theme.css('quiet');
    if (!this.total) pen.fillText(this.page.noArena(), 12, 24, stage.width - 24);
    else if (this.chosen) this.outline(pen, this.chosen);
  }

  // For each pixel of the rows: how much of it is reserved, live, and the group that has most.
  cells() {
    const width = this.stage.below.width;
    const count = width * this.rows();
    const unit = this.perRow() / width;
    const reserved = new Float32Array(count);
    const live = new Float32Array(count);
    const most = new Float32Array(count);
    const group = new Uint8Array(count);
    const each = (address, size, put) => {
      const begin = (this.position(address) - this.from) / unit;
      const end = begin + size / unit;
      if (end <= 0 || begin >= count) return;
      for (let i = Math.max(0, Math.floor(begin)); i < Math.min(count, end); ++i) put(i, Math.min(end, i + 1) - Math.max(begin, i));
    };
    for (const span of this.state.spans) each(span.address, span.size, (i, share) => { reserved[i] += share; });
    const by = this.page.timeline.grouping;
    for (const block of this.state.blocks) {
      const g = block.groups[by];
      each(block.address, block.rounded, (i, share) => {
        live[i] += share;
        if (share > most[i]) {
          most[i] = share;
          group[i] = g;
        }
      });
    }
    return { width, count, unit, reserved, live, group };
  }

  fill({ width, count, unit, reserved, live, group }) {
    const { pixels } = this.stage;
    const { scale } = this.stage;
    const knows = this.state.spans.length > 0;
    const end = (this.total - this.from) / unit;
    for (let i = 0; i < Math.min(count, end); ++i) {
      const under = knows ? mixPixels(theme.free, theme.hole, Math.min(1, reserved[i])) : theme.hole;
      let color = under;
      if (live[i] > 0) color = mixPixels(theme.words[group[i] % theme.words.length], under, Math.min(1, Math.max(0.25, live[i])));
      const top = Math.round(Math.floor(i / width) * rowHeight * scale);
      const x = i % width;
      for (let y = 0; y < Math.round(blockHeight * scale); ++y) pixels[(top + y) * width + x] = color;
    }
  }

  drawStrip() {
    const { pixels, scale } = this.stage;
    const width = this.stage.below.width;
    const count = width * this.rows();
    const unit = this.perRow() / width;
    const bad = pixelOf(theme.css('bad'));
    const ground = theme.ground;
    for (const piece of this.pieces) {
      const begin = (this.position(piece.address) - this.from) / unit;
      const end = begin + piece.size / unit;
      if (end <= 0 || begin >= count) continue;
      const color = mixPixels(bad, ground, 0.15 + 0.85 * (piece.free / piece.size));
      for (let i = Math.max(0, Math.floor(begin)); i < Math.min(count, end); ++i) {
        const top = Math.round(Math.floor(i / width) * rowHeight * scale + strip.from * scale);
        for (let y = 0; y < Math.round(strip.height * scale) - 1; ++y) pixels[(top + y) * width + (i % width)] = color;
      }
    }
  }

  outline(pen, { address, size }) {
    const width = this.stage.width;
    const begin = (this.position(address) - this.from) / this.perRow();
    const end = begin + size / this.perRow();
    pen.strokeStyle = theme.css('ink');
    pen.lineWidth = 2;
    for (let row = Math.max(0, Math.floor(begin)); row < Math.min(this.rows(), end); ++row) {
      const left = Math.max(0, begin - row) * width;
      const right = Math.min(1, end - row) * width;
      pen.strokeRect(Math.min(left, width - 4), row * rowHeight, Math.max(4, right - left), blockHeight + 1);
    }
  }

  // --- Words ------------------------------------------------------------------------------------

  point(at, event) {
    if (!this.state || !this.total) return;
    const position = this.positionAt(at);
    if (position >= this.total) {
      tip.hide();
      return;
    }
    const block = this.findAt(position);
    const address = this.addressAt(position);
    const piece = this.pieces.find((p) => p.address <= address && address < p.address + p.size);
    const rows = block ? this.page.aboutBlock(block) : [];
    if (piece) {
      rows.push([this.page.unitName(), `${sizeText(piece.used)} of ${sizeText(piece.size)} used by ${countText(piece.count)} ${piece.count === 1 ? 'block' : 'blocks'}`]);
      rows.push(['pinned by', `${sizeText(piece.pin.size)}, ${this.page.tagOf(piece.pin)}`]);
    }
    const reserved = this.state.spans.some((s) => s.address <= address && address < s.address + s.size);
    const title = block ? `${sizeText(block.size)} block` : reserved ? 'Free' : this.state.spans.length ? 'Not mapped' : 'No block';
    tip.show(event.clientX, event.clientY, make('strong', {}, title), tip.rows([['address', addressText(block ? block.address : Math.floor(address))], ...rows]));
  }
}
