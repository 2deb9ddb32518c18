#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs PyTorch's own tests of streams and threads, several processes at a time, on a card that another process fills.

    full_card.py PYTORCH/test/test_cuda.py --queue weir:50,native:50 --seconds 500 --json runs.json

Each run is one process that plays the tests below one after the other; the last is the one that once gave a wrong sum
under weir. A run's kind says what it runs under, and is made of these words:

    weir or native        whose allocator
    no-pdl                programmatic dependent launch is taken off every launch (no_programmatic_launch.c beside this
                          file is compiled and preloaded, and counts what it took off); keep-pdl counts only
    eager                 CUDA_MODULE_LOADING=EAGER

The file is PyTorch's, of the version that is installed; `expecttest` must be importable. --iterations shortens the
sparse products (500 there), for failures that come at once or not at all. No run is ever killed: time is up when no
other would end in time.
"""

import argparse
import collections
import ctypes
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import types
import unittest
from pathlib import Path

TESTS = """test_copy_non_blocking test_streams test_record_stream test_record_stream_on_shifted_view
test_caching_allocator_record_stream_oom test_streaming_backwards_sync test_streaming_backwards_multiple_streams
test_streaming_backwards_callback test_cublas_multiple_threads_same_device
test_cusparse_multiple_threads_same_device""".split()
HERE = Path(__file__).resolve().parent
STEP = 256 << 20  # bytes that the card is filled by at a time


def fill_card(left):
    """Holds all memory of the first device but `left` bytes, and follows what the others take and free."""
    cuda = ctypes.CDLL("libcuda.so.1")
    context, device = ctypes.c_void_p(), ctypes.c_int()
    if cuda.cuInit(0) or cuda.cuDeviceGet(ctypes.byref(device), 0) or \
            cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) or cuda.cuCtxSetCurrent(context):
        raise SystemExit("full_card.py: no device to fill")
    blocks, free, total = [], ctypes.c_size_t(), ctypes.c_size_t()
    while True:
        cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
        if free.value > left + STEP:
            block = ctypes.c_uint64()
            if cuda.cuMemAlloc_v2(ctypes.byref(block), ctypes.c_size_t(STEP)) == 0:
                blocks.append(block)
                continue
        elif free.value < left - STEP and blocks:
            cuda.cuMemFree_v2(blocks.pop())
            continue
        time.sleep(0.02)


def load(file, iterations):
    """The module of PyTorch's tests, with shorter sparse products if wanted."""
    text = file.read_text()
    if iterations:
        begin = text.index("def " + TESTS[-1])
        text = text[:begin] + text[begin:].replace("test_iters = 500", f"test_iters = {iterations}", 1)
    module = types.ModuleType(file.stem)
    module.__file__ = str(file)
    sys.modules[file.stem] = module
    sys.path.insert(0, str(file.parent))
    sys.argv = [str(file)]
    exec(compile(text, str(file), "exec"), module.__dict__)  # noqa: S102 - PyTorch's own file, given by the caller
    return module


def run_tests(file, allocator, iterations, out):
    entry = {"tests": {}, "thread_exceptions": []}
    # The tests do not look at exceptions of their threads.
    threading.excepthook = lambda thrown: entry["thread_exceptions"].append("".join(
        traceback.format_exception(thrown.exc_type, thrown.exc_value, thrown.exc_traceback))[-1500:])
    if allocator == "weir":
        import weir.torch
        weir.torch.enable()
    module = load(file, iterations)
    for name in TESTS:
        began, outcome = time.monotonic(), unittest.TestResult()
        module.TestCuda(name).run(outcome)
        wrong = outcome.failures + outcome.errors
        entry["tests"][name] = {"state": "failed" if wrong else "skipped" if outcome.skipped else "passed",
                                "seconds": round(time.monotonic() - began, 1),
                                "why": wrong[0][1][-1500:] if wrong else ""}
        out.write_text(json.dumps(entry))
    entry["over"] = True
    out.write_text(json.dumps(entry))


def environment_of(kind, folder):
    variables = dict(os.environ)
    if "pdl" in kind:
        library = folder / "no_programmatic_launch.so"
        subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", str(library), str(HERE / "no_programmatic_launch.c"),
                        "-ldl"], check=True)
        variables.update(LD_PRELOAD=str(library), PDL_COUNTS=str(folder / "pdl"),
                         PDL_KEEP="1" if "keep" in kind else "")
    if "eager" in kind:
        variables["CUDA_MODULE_LOADING"] = "EAGER"
    return variables


def run(kind, options, began):
    """One process; what became of it."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        start = time.monotonic()
        with (folder / "said").open("w") as said:
            status = subprocess.run(
                [sys.executable, __file__, str(options.file), "--iterations", str(options.iterations), "--one",
                 "weir" if kind.startswith("weir") else "native", str(folder / "out")], stdout=said,
                stderr=subprocess.STDOUT, env=environment_of(kind, folder), check=False).returncode
        out, pdl = folder / "out", folder / "pdl"
        entry = json.loads(out.read_text()) if out.exists() else {"tests": {}, "thread_exceptions": []}
        entry.update(kind=kind, status=status, at=round(start - began, 1),
                     seconds=round(time.monotonic() - start, 1),
                     pdl=json.loads(pdl.read_text()) if pdl.exists() else None)
        if not entry.get("over"):
            entry["said"] = (folder / "said").read_text()[-3000:]
        return entry


def verdict(entry):
    last = entry["tests"].get(TESTS[-1], {}).get("state", "none")
    return f"{last}, threads failed" if entry["thread_exceptions"] else last


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path, help="PyTorch's test/test_cuda.py")
    parser.add_argument("--queue", default="weir:4", help="kinds and how many runs of each: weir:50,native-no-pdl:4")
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=500)
    parser.add_argument("--expected", type=float, default=85, help="seconds that one run takes")
    parser.add_argument("--free", type=float, default=3, help="GiB of the card that are left free")
    parser.add_argument("--iterations", type=int, default=0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--fill", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.fill:
        fill_card(int(options.free * (1 << 30)))
    if options.one:
        return run_tests(options.file, options.one[0], options.iterations, Path(options.one[1]))

    queue = collections.deque(kind for part in options.queue.split(",") for kind, count in [part.split(":")]
                              for _ in range(int(count)))
    began, entries, lock = time.monotonic(), [], threading.Lock()
    filler = subprocess.Popen([sys.executable, __file__, str(options.file), "--fill", "--free", str(options.free)])

    def work():
        while True:
            with lock:
                if not queue or time.monotonic() - began + options.expected > options.seconds:
                    return
                kind = queue.popleft()
            entry = run(kind, options, began)
            with lock:
                entries.append(entry)
                if options.json:
                    options.json.write_text(json.dumps(entries, indent=1))
                print(f"{kind}: {verdict(entry)}, status {entry['status']}, {entry['seconds']} s, not passed: "
                      f"{[name for name, test in entry['tests'].items() if test['state'] != 'passed']} "
                      f"{entry['pdl'] or ''}", flush=True)

    threads = [threading.Thread(target=work) for _ in range(options.processes)]
    try:
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    finally:
        filler.kill()
    print(f"{time.monotonic() - began:.0f} s", dict(collections.Counter((each["kind"], verdict(each))
                                                                        for each in entries)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
