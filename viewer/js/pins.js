// SPDX-License-Identifier: Apache-2.0
// Fragmentation: pieces of physical memory that live blocks keep from being released.

// The pieces in use, in part: pages of `unit` bytes, or whole reservations if unit is 0. Each with
// the smallest block that keeps it. Only the ends of a block can share a page, so the blocks are
// enough to find them, however much memory there is.
function pinnedPieces(state, unit) {
  return unit ? pinnedPages(state, unit) : pinnedSpans(state);
}

function note(piece, block, bytes) {
  piece.used += bytes;
  ++piece.count;
  if (!piece.pin || block.rounded < piece.pin.rounded) piece.pin = block;
}

function pinnedPages(state, unit) {
  const pages = new Map();
  let full = 0;  // pages that one block fills
  for (const block of state.blocks) {
    const end = block.address + block.rounded;
    const first = Math.floor(block.address / unit);
    const last = Math.floor((end - 1) / unit);
    full += Math.max(0, last - first - 1);
    for (const page of first === last ? [first] : [first, last]) {
      let piece = pages.get(page);
      if (!piece) pages.set(page, (piece = { address: page * unit, size: unit, used: 0, count: 0, pin: null }));
      note(piece, block, Math.min(end, (page + 1) * unit) - Math.max(block.address, page * unit));
    }
  }
  return { pieces: [...pages.values()], untouched: state.spans.reduce((sum, s) => sum + s.size, 0) - (pages.size + full) * unit };
}

function pinnedSpans(state) {
  const pieces = state.spans.map(({ address, size }) => ({ address, size, used: 0, count: 0, pin: null }));
  let next = 0;
  for (const block of state.blocks) {
    const end = block.address + block.rounded;
    while (next < pieces.length && pieces[next].address + pieces[next].size <= block.address) ++next;
    for (let i = next; i < pieces.length && pieces[i].address < end; ++i) {
      const from = Math.max(block.address, pieces[i].address);
      note(pieces[i], block, Math.min(end, pieces[i].address + pieces[i].size) - from);
    }
  }
  const touched = pieces.filter((piece) => piece.pin);
  return { pieces: touched, untouched: pieces.reduce((sum, p) => sum + (p.pin ? 0 : p.size), 0) };
}

// Where reserved memory is: asked for, rounding, free but pinned, free and whole.
function analyse(state, unit) {
  const { pieces, untouched } = pinnedPieces(state, unit);
  for (const piece of pieces) piece.free = Math.max(0, piece.size - piece.used);
  const asked = state.blocks.reduce((sum, block) => sum + block.size, 0);
  const rounded = state.blocks.reduce((sum, block) => sum + block.rounded, 0);
  const reserved = state.spans.reduce((sum, span) => sum + span.size, 0);
  const pinned = pieces.reduce((sum, piece) => sum + piece.free, 0);
  return {
    asked, rounding: rounded - asked, reserved,
    pinned: reserved ? Math.min(pinned, Math.max(0, reserved - rounded)) : pinned,
    whole: Math.max(0, untouched),
    pieces: pieces.filter((piece) => piece.free > 0).sort((a, b) => b.free - a.free),
    holes: findHoles(state),
  };
}

// Free stretches inside reserved memory; those of reservations that touch are one.
function findHoles(state) {
  const out = { count: 0, longest: 0 };
  let openEnd = -1;
  let open = 0;
  const hole = (from, to) => {
    if (from >= to) return;
    open = from === openEnd ? open + to - from : to - from;
    if (from !== openEnd) ++out.count;
    openEnd = to;
    out.longest = Math.max(out.longest, open);
  };
  let next = 0;
  for (const span of state.spans) {
    let at = span.address;
    const end = span.address + span.size;
    while (next < state.blocks.length && state.blocks[next].address + state.blocks[next].rounded <= at) ++next;
    for (let i = next; i < state.blocks.length && state.blocks[i].address < end; ++i) {
      hole(at, Math.min(state.blocks[i].address, end));
      at = Math.max(at, state.blocks[i].address + state.blocks[i].rounded);
    }
    hole(at, end);
  }
  return out;
}

// Free memory by whose blocks pin it.
function pinnersBy(pieces, grouping) {
  const groups = new Map();
  for (const { pin, free } of pieces) {
    const g = pin.groups[grouping];
    const sum = groups.get(g) || { group: g, free: 0, pieces: 0, blocks: new Set() };
    sum.free += free;
    ++sum.pieces;
    sum.blocks.add(pin);
    groups.set(g, sum);
  }
  return [...groups.values()].sort((a, b) => b.free - a.free);
}
