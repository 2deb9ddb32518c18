// SPDX-License-Identifier: Apache-2.0
// What charts share: colours by theme, canvases that follow their box, axes, gestures.

const palettes = {
  light: ['#4269d0', '#efb118', '#e4573f', '#4fae98', '#8a5cd6', '#3c9b4b', '#f07ba8', '#7fa8ea', '#9c6b4e', '#2b8a99', '#b7a11a', '#9498a0'],
  dark: ['#6f93f2', '#f3c04a', '#ff7f69', '#6cc5b0', '#b48bf5', '#5cbf6c', '#ff9cc2', '#a8c6f8', '#c08f70', '#52b3c2', '#d6c24a', '#8b909a'],
};

const theme = {
  name: 'light',
  colors: palettes.light,
  variables: new Map(),  // asking the style for one costs more than drawing with it
  css(name) {
    let value = this.variables.get(name);
    if (!value) {
      value = getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
      this.variables.set(name, value);
    }
    return value;
  },
  set(name) {
    this.name = name;
    this.colors = palettes[name];
    this.variables.clear();
    document.documentElement.dataset.theme = name;
    this.words = this.colors.map((color) => pixelOf(color));
    // Above the lowest moment of a column the colour is thinner: memory was there only part of the time.
    const ground = this.css('ground');
    this.thin = this.colors.map((color) => pixelOf(color, ground, 0.62));
    this.free = pixelOf(this.css('free'));
    this.ground = pixelOf(ground);
    this.hole = pixelOf(this.css('hole'));
    this.ink = pixelOf(this.css('ink'));
    this.bad = this.css('bad');
    // Memory that is suspended is hatched in these two.
    this.hatch = [pixelOf(this.css('quiet'), ground, 0.7), pixelOf(this.css('quiet'), ground, 0.2)];
  },
};

function channels(color) {
  const number = parseInt(color.slice(1), 16);
  return [number >> 16, (number >> 8) & 255, number & 255];
}

// A pixel as canvases hold it on a little-endian machine; mixed into `ground` unless share is 1.
function pixelOf(color, ground = color, share = 1) {
  const under = channels(ground);
  const [r, g, b] = channels(color).map((c, i) => Math.round(c * share + under[i] * (1 - share)));
  return ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
}

function mixPixels(a, b, share) {
  let out = 255 << 24;
  for (let shift = 0; shift < 24; shift += 8) {
    out |= Math.round(((a >> shift) & 255) * share + ((b >> shift) & 255) * (1 - share)) << shift;
  }
  return out >>> 0;
}

// Two canvases over each other: pixels below, lines and words above.
class Stage {
  // Until `closing`, a signal, is aborted.
  constructor(box, draw, closing) {
    this.box = box;
    this.closing = closing;
    this.draw = draw;
    [this.below, this.above] = box.querySelectorAll('canvas');
    this.under = this.below.getContext('2d', { alpha: false });
    this.over = this.above.getContext('2d');
    this.queued = false;
    this.sizes = 0;  // how often it changed
    this.resize();
    this.redraw();
    const observer = new ResizeObserver(() => {
      if (this.width === box.clientWidth && this.height === box.clientHeight) return;
      this.resize();
      this.frame();  // at once: the canvases are empty now, and would be seen so
    });
    observer.observe(box);
    closing.addEventListener('abort', () => observer.disconnect());
  }

  resize() {
    ++this.sizes;
    this.width = Math.max(1, this.box.clientWidth);
    this.height = Math.max(1, this.box.clientHeight);
    this.scale = Math.min(2, devicePixelRatio || 1);
    for (const canvas of [this.below, this.above]) {
      canvas.width = Math.round(this.width * this.scale);
      canvas.height = Math.round(this.height * this.scale);
    }
    this.image = this.under.createImageData(this.below.width, this.below.height);
    this.pixels = new Uint32Array(this.image.data.buffer);
  }

  // Draws before the next frame, once however often it is asked for.
  redraw() {
    if (this.queued) return;
    this.queued = true;
    requestAnimationFrame(() => {
      this.queued = false;
      if (!this.closing.aborted) this.frame();
    });
  }

  frame() {
    this.over.setTransform(this.scale, 0, 0, this.scale, 0, 0);
    this.over.clearRect(0, 0, this.width, this.height);
    this.draw(this);
    performance.mark(`weir:${this.box.id}`);
  }

  show() {
    this.under.putImageData(this.image, 0, 0);
  }
}

// Round steps so that about `count` of them cover the range.
function roundStep(range, count, base) {
  const raw = range / Math.max(1, count);
  const power = base ** Math.floor(Math.log(raw) / Math.log(base));
  const steps = base === 2 ? [1, 2] : [1, 2, 5, 10];
  return power * (steps.find((step) => power * step >= raw) || base);
}

// Drags, pinches, wheels and clicks on a box. Positions are in its pixels.
function gestures(box, { drag, zoom, click, hover, leave }) {
  const fingers = new Map();
  let moved = 0;
  let apart = 0;
  const place = (event) => {
    const frame = box.getBoundingClientRect();
    return { x: event.clientX - frame.left - box.clientLeft, y: event.clientY - frame.top - box.clientTop };
  };
  const spread = () => {
    const [a, b] = [...fingers.values()];
    return { distance: Math.hypot(a.x - b.x, a.y - b.y), x: (a.x + b.x) / 2, y: (a.y + b.y) / 2 };
  };
  box.addEventListener('pointerdown', (event) => {
    if (event.button > 0) return;
    box.setPointerCapture(event.pointerId);
    fingers.set(event.pointerId, place(event));
    if (fingers.size === 1) moved = 0;
    if (fingers.size === 2) apart = spread().distance;
    tip.hide();
  });
  box.addEventListener('pointermove', (event) => {
    const at = place(event);
    const before = fingers.get(event.pointerId);
    if (!before) {
      if (hover) hover(at, event);
      return;
    }
    fingers.set(event.pointerId, at);
    if (fingers.size === 2) {
      const now = spread();
      if (apart > 0 && zoom) zoom(apart / now.distance, now);
      apart = now.distance;
      moved = 100;
      return;
    }
    moved += Math.abs(at.x - before.x) + Math.abs(at.y - before.y);
    if (moved > 4 && drag) drag(at.x - before.x, at.y - before.y, at);
  });
  const up = (event) => {
    if (!fingers.delete(event.pointerId)) return;
    if (event.type === 'pointerup' && moved <= 4 && click) click(place(event));
  };
  box.addEventListener('pointerup', up);
  box.addEventListener('pointercancel', up);
  box.addEventListener('pointerleave', () => {
    tip.hide();
    if (leave) leave();
  });
  box.addEventListener('wheel', (event) => {
    event.preventDefault();
    const unit = event.deltaMode === 1 ? 16 : event.deltaMode === 2 ? 400 : 1;
    const across = event.shiftKey ? event.deltaY : event.deltaX;
    if (Math.abs(across) > Math.abs(event.shiftKey ? 0 : event.deltaY)) {
      if (drag) drag(-across * unit, 0, place(event));
    } else if (zoom) {
      zoom(Math.exp(Math.max(-1, Math.min(1, event.deltaY * unit * 0.002))), place(event));
    }
  }, { passive: false });
}
