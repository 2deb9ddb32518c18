// SPDX-License-Identifier: Apache-2.0
// Reading what src/report/pack.cpp packed.

class Reader {
  constructor(bytes) {
    this.bytes = bytes;
    this.at = 0;
  }

  number() {
    const { bytes } = this;
    let byte = bytes[this.at++];
    if (byte < 128) return byte;
    let value = byte & 127;
    let unit = 128;
    do {
      if (this.at >= bytes.length) throw new RangeError('the page is cut off');
      byte = bytes[this.at++];
      value += (byte & 127) * unit;
      unit *= 128;
    } while (byte > 127);
    return value;
  }

  difference(before) {
    const packed = this.number();
    return before + (packed % 2 === 0 ? packed / 2 : -(packed + 1) / 2);
  }

  flag() {
    return this.number() === 1;
  }

  text() {
    const length = this.number();
    const from = this.at;
    this.at += length;
    return Reader.decoder.decode(this.bytes.subarray(from, this.at));
  }

  numbers(count) {
    const out = new Float64Array(count);
    for (let i = 0; i < count; ++i) out[i] = this.number();
    return out;
  }

  differences(count) {
    const out = new Float64Array(count);
    let before = 0;
    for (let i = 0; i < count; ++i) out[i] = before = this.difference(before);
    return out;
  }

  list(read) {
    return Array.from({ length: this.number() }, read);
  }
}
Reader.decoder = new TextDecoder();

function bytesOf(base64) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(base64);
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; ++i) bytes[i] = text.charCodeAt(i);
  return bytes;
}

async function inflate(base64) {
  const stream = new Blob([bytesOf(base64)]).stream();
  const plain = stream.pipeThrough(new DecompressionStream('deflate-raw'));
  return new Reader(new Uint8Array(await new Response(plain).arrayBuffer()));
}

// What differs between two runs, in the order in which src/report/differences.cpp packs it.
function readDifferences(r) {
  const figures = r.list(() => ({ title: r.text(), isSize: r.flag(), before: r.number(), after: r.number() }));
  const groupings = r.list(() => ({
    name: r.text(), count: r.number(),
    groups: r.list(() => ({ name: r.text(), before: r.number(), after: r.number(), blocksBefore: r.number(), blocksAfter: r.number() })),
  }));
  return { figures, groupings };
}

// The index, in the order in which src/report/page.cpp packs it.
function readIndex(r) {
  const index = {};
  if (r.number() !== 2) throw new Error('the page and its figures are of different versions');
  index.weir = r.text();
  index.file = r.text();
  index.program = r.text();
  index.device = r.text();
  index.capacity = r.number();
  index.dropped = r.number();
  index.realAddresses = r.flag();
  index.placedBy = r.text();
  index.damage = r.flag() ? { offset: r.number(), reason: r.text() } : null;
  index.events = r.number();
  index.duration = r.number();
  index.blocks = r.number();
  index.peak = { event: r.number(), live: r.number(), inUse: r.number(), rounded: r.number() };
  index.knowsReserved = r.flag();
  index.reservedPeak = r.number();
  index.pageBytes = r.number();
  index.groupings = r.list(() => ({ name: r.text(), labels: r.list(() => r.text()) }));

  index.shift = r.number();
  index.bins = r.number();
  index.levels = r.number();
  index.levelShift = r.number();
  index.tileBins = r.number();
  index.blockLevels = r.list(() => ({ width: r.number(), count: r.number() }));
  const chunks = r.number();
  index.earlyChunks = r.number();
  index.lengths = r.numbers(chunks);
  index.smallBelow = r.number();
  index.leftOutBelow = r.number();
  index.keyMoments = r.differences(r.number());
  index.regions = r.list(() => ({ address: r.number(), size: r.number() }));

  index.tags = r.list(() => r.text());
  index.streams = r.list(() => r.text());
  index.siteCount = r.number();
  index.hasStacks = r.flag();
  index.sites = r.list(() => {
    const site = { number: r.number(), label: r.text() };
    site.blocks = r.number();
    site.bytes = r.number();
    site.most = r.number();
    site.atPeak = r.number();
    site.atEnd = r.number();
    site.lifetime = r.number();
    site.frames = [];
    while (r.flag()) site.frames.push(r.text());
    return site;
  });
  index.leakCount = r.number();
  index.leaks = r.list(() => ({
    site: r.number(), label: r.text(), tag: r.number(), blocks: r.number(), bytes: r.number(), first: r.number(), last: r.number(),
  }));
  index.recorded = r.list(() => ({ name: r.text(), requested: r.number(), reserved: r.number() }));
  index.policies = r.list(() => {
    const policy = { name: r.text(), requested: r.number(), reserved: r.number() };
    policy.calls = r.number();
    policy.driverTime = r.number();
    policy.waits = r.number();
    policy.ooms = r.number();
    policy.fit = r.number();
    let time = 0;
    policy.samples = r.list(() => ({ time: (time = r.difference(time)), reserved: r.number() }));
    return policy;
  });
  index.oomCount = r.number();
  index.ooms = r.list(() => ({
    event: r.number(), time: r.number(), requested: r.number(), stream: r.number(), live: r.number(),
    rounded: r.number(), reserved: r.number(), limit: r.number(), free: r.number(),
    pieces: r.number(), longest: r.number(), verdict: r.text(),
    tags: r.list(() => ({ label: r.text(), size: r.number() })),
  }));
  index.markerCount = r.number();
  index.markers = r.list(() => ({ event: r.number(), time: r.number(), text: r.text() }));
  const holders = () => r.list(() => ({ label: r.text(), bytes: r.number(), blocks: r.number() }));
  index.card = { size: r.number(), left: r.number() };
  index.card.trials = r.list(() => {
    const trial = { name: r.text(), fits: r.flag() };
    if (trial.fits) return trial;
    return { ...trial, event: r.number(), time: r.number(), requested: r.number(), live: r.number(), waiting: r.number(), tags: holders(), sites: holders(), sizes: holders() };
  });
  index.suspensionCount = r.number();
  index.suspensions = r.list(() => ({ pool: r.number(), start: r.number(), end: r.number(), from: r.number(), to: r.number(), size: r.number(), kept: r.number() }));
  return index;
}
