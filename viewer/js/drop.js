// SPDX-License-Identifier: Apache-2.0
// Files that are dropped on the page, or opened: read here, and sent nowhere.

const titleEndings = ['.gz', '.zst', '.weirtrace', '.trace', '.csv', '.log', '.pickle', '.pkl', '.snapshot'];
const titleOf = (name) => titleEndings.reduce((title, ending) => (title.endsWith(ending) ? title.slice(0, -ending.length) : title), name);

const tooLarge = () => new FileProblem(`it is larger than ${sizeText(fileLimits.bytes)}, which is what a page takes: weir report shows all of it`);

async function gunzip(bytes) {
  const reader = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('gzip')).getReader();
  const parts = [];
  let size = 0;
  for (;;) {
    const { done, value } = await reader.read().catch(() => { throw new FileProblem('its compression is damaged, or it is cut'); });
    if (done) break;
    size += value.length;
    if (size > fileLimits.bytes) {
      reader.cancel();
      throw tooLarge();
    }
    parts.push(value);
  }
  return new Uint8Array(await new Blob(parts).arrayBuffer());
}

async function inflateFile(bytes) {
  if (bytes[0] === 0x1f && bytes[1] === 0x8b) return gunzip(bytes);
  if (!isZstd(bytes)) return bytes;
  try {
    return unzstd(bytes, fileLimits.bytes);
  } catch (problem) {
    throw problem instanceof ZstdError ? new FileProblem(problem.message) : problem;
  }
}

// The run in a file. What cannot be read is a FileProblem.
async function readRun(file, weir, pause) {
  if (file.size > fileLimits.bytes) throw tooLarge();
  const bytes = await inflateFile(new Uint8Array(await file.arrayBuffer()));
  await pause();
  if (!isTrace(bytes) && !isPickle(bytes)) throw new FileProblem("it is neither a .weirtrace nor a PyTorch snapshot: weir report reads CSV traces and RMM's logs, too");
  const recording = await (isTrace(bytes) ? readTrace(bytes, pause) : readSnapshot(bytes, pause));
  recording.program ||= titleOf(file.name);
  return makeRun(recording, { file: file.name, weir }, pause);
}

// Lets the browser draw and listen, twenty times a second at most.
function pauser() {
  let last = performance.now();
  return async () => {
    if (performance.now() - last < 50) return;
    await new Promise((done) => { setTimeout(done); });
    last = performance.now();
  };
}

function acceptFiles(viewer) {
  const hasFiles = (event) => event.dataTransfer?.types.includes('Files');
  const mark = (isOver) => document.documentElement.classList.toggle('dropping', isOver);
  document.addEventListener('dragover', (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    event.dataTransfer.dropEffect = 'copy';
    mark(true);
  });
  document.addEventListener('dragleave', (event) => { if (!event.relatedTarget) mark(false); });
  document.addEventListener('drop', (event) => {
    mark(false);
    if (!hasFiles(event)) return;
    event.preventDefault();
    viewer.open(event.dataTransfer.files[0]);
  });
  byId('open').onclick = () => byId('file').click();
  byId('file').onchange = () => {
    const [file] = byId('file').files;
    if (file) viewer.open(file);
    byId('file').value = '';
  };
}
