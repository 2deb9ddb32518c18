#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compiles the PyTorch extension against the headers of several versions of torch, without linking it.

    WEIR_TORCH_HEADERS=/venvs/torch2.9/lib/python3.12/site-packages/torch/include:/unpacked/torch2.14/include \
        tests/torch_headers/test_headers.py [version...]

Each folder is the include folder of an installed torch or of an unpacked wheel; CUDA_HOME names the CUDA
toolkit if it is not in /usr/local. g++ compiles (CXX names another one). Per version it is checked

- that every source compiles;
- which methods override one of torch's without saying so, because not every version declares them: an
  overload that torch no longer calls would go unnoticed otherwise;
- which methods are torch's defaults: one that a new version adds shows up here.

Prints a table. What compiles can still behave differently: tests/torch runs in an installed torch.
"""

import os
import re
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

SKIPPED = 77  # ctest's SKIP_RETURN_CODE
ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "plugins" / "torch"
LAST = 10**6

# Minor versions of torch 2 (from, to) in which the method overrides one of torch's.
OVERRIDING = {
    "allocateWithAddress(size_t, void*)": (13, LAST),
    "annotateMemory(const void*, const string&)": (14, LAST),
    "attachOomRejectionObserver(OutOfMemoryObserver)": (12, LAST),
    "createOrIncrefPool(DeviceIndex, MempoolId_t, CUDAAllocator*)": (8, 10),
    "createOrIncrefPool(DeviceIndex, MempoolId_t, shared_ptr<CUDAAllocator>)": (11, LAST),
    "emptyCache()": (6, 7),
    "emptyCache(MempoolId_t)": (8, LAST),
    "ensureExistsAndIncrefPool(DeviceIndex, MempoolId_t)": (6, 7),
    "getContextForPointer(const void*)": (12, LAST),
    "getExpandableSegmentSizes(DeviceIndex)": (10, LAST),
    "getUserMetadata()": (10, LAST),
    "markCaptureBegin(DeviceIndex)": (13, LAST),
    "markCaptureEnd(DeviceIndex)": (13, LAST),
    "popCompileContext()": (8, LAST),
    "pushCompileContext(string&)": (8, LAST),
    "recordHistory(bool, CreateContextFn, size_t, RecordContext)": (6, 7),
    "recordHistory(bool, CreateContextFn, size_t, RecordContext, bool)": (8, 10),
    "recordHistory(bool, CreateContextFn, size_t, RecordContext, bool, "
    "const vector<basic_string<char> >&)": (11, LAST),
    "setNoSplit(DeviceIndex, MempoolId_t)": (10, LAST),
    "setUseOnOOM(DeviceIndex, MempoolId_t)": (8, 9),
    "setUseOnOOM(DeviceIndex, MempoolId_t, bool)": (10, LAST),
    "setUserMetadata(const string&)": (10, LAST),
    "snapshot()": (6, 7),
    "snapshot(MempoolId_t)": (8, 10),
    "snapshot(MempoolId_t, bool)": (11, LAST),
    "supportsUserMetadata()": (14, LAST),
}

# The same of methods that are left to torch's defaults.
INHERITED = {
    "Allocator::is_simple_data_ptr": (6, LAST),
    "CUDAAllocator::recordStream": (9, LAST),   # for any device's stream: calls ours
    "CUDAAllocator::getMemoryInfo": (10, LAST),  # asks the driver
}


def expected(table, minor):
    return {name for name, (first, last) in table.items() if first <= minor <= last}


def version_of(headers):
    """(2, 11) of torch's own version header; (0, 0) if there is none."""
    for path in ("torch/headeronly/version.h", "torch/csrc/api/include/torch/version.h", "torch/version.h"):
        if (headers / path).exists():
            text = (headers / path).read_text()
            found = [re.search(rf"#define TORCH_VERSION_{part} (\d+)", text) for part in ("MAJOR", "MINOR")]
            if all(found):
                return tuple(int(each.group(1)) for each in found)
    return 0, 0


def cuda_headers():
    homes = [os.environ.get("CUDA_HOME"), "/usr/local/cuda",
             *sorted(map(str, Path("/usr/local").glob("cuda-*")))]
    for home in filter(None, homes):
        if Path(home, "include", "cuda_runtime_api.h").exists():
            return Path(home, "include")
    return None


def compile_file(source, headers, cuda, folder, *flags):
    """(the errors, everything that the compiler has to say)."""
    command = [os.environ.get("CXX", "g++"), "-std=c++20", "-DTORCH_EXTENSION_NAME=_weir_torch",
               "-I", str(SOURCES), "-I", str(ROOT / "include"), "-isystem", str(headers),
               "-isystem", str(headers / "torch/csrc/api/include"),
               "-isystem", sysconfig.get_paths()["include"], "-isystem", str(cuda), *flags, str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder,
                          env=os.environ | {"LC_ALL": "C"})
    errors = [line for line in done.stderr.splitlines() if "error:" in line]
    if done.returncode != 0 and not errors:
        errors = [f"the compiler returned {done.returncode}: {done.stderr[-500:]}"]
    return errors, done.stderr


def compile_class(headers, cuda, folder):
    """Compiles the class's header, which the sources then need not parse again. (errors, the methods that
    could be marked override, those that are torch's)."""
    source = Path(folder, "class.hpp")
    source.write_text('#include "allocator.hpp"\n')
    errors, said = compile_file(source, headers, cuda, folder, "-x", "c++-header", "-Wsuggest-override",
                                "-fdump-lang-class", "-o", "class.hpp.gch")
    overriding = {re.sub(r"\b(?:\w+::)+", "", name) for name in re.findall(
        r"weir_allocator::(\w+\(.*?\))' can be marked override", said)}
    inherited = set()
    for dump in Path(folder).glob("*.class"):
        table = re.search(r"^Vtable for weir_torch::weir_allocator\n(.*?)\n\n", dump.read_text(), re.M | re.S)
        if table:
            inherited = set(re.findall(r"\)(?:\w+::)*?(\w*Allocator::\w+)$", table.group(1), re.M))
    return errors, overriding, inherited


def difference(what, found, wanted):
    return [f"{what}, and should not: {name}" for name in sorted(found - wanted)] + \
        [f"{what} not, and should: {name}" for name in sorted(wanted - found)]


def check(headers, cuda):
    """(number of sources, errors, overriding methods, torch's own methods, what is wrong with them)."""
    minor = version_of(headers)[1]
    sources = sorted(SOURCES.glob("*.cpp"))
    with tempfile.TemporaryDirectory() as folder:
        errors, overriding, inherited = compile_class(headers, cuda, folder)
        for source in sources:
            errors += compile_file(source, headers, cuda, folder, "-fsyntax-only", "-include", "class.hpp")[0]
    wrong = difference("overrides", overriding, expected(OVERRIDING, minor))
    wrong += difference("is torch's", inherited, expected(INHERITED, minor))
    return len(sources), errors, overriding, inherited, wrong


def main():
    folders = [Path(each) for each in os.environ.get("WEIR_TORCH_HEADERS", "").split(":") if each]
    if not folders:
        print("skipped: WEIR_TORCH_HEADERS names no folders with torch's headers")
        return SKIPPED
    cuda = cuda_headers()
    if cuda is None:
        print("skipped: cuda_runtime_api.h is not found; CUDA_HOME names the CUDA toolkit")
        return SKIPPED
    failed = False
    print("torch   sources  errors  overriding  torch's own  verdict", flush=True)
    for headers in sorted(folders, key=version_of):
        version = ".".join(map(str, version_of(headers)))
        if len(sys.argv) > 1 and version not in sys.argv[1:]:
            continue
        if not (headers / "c10/cuda/CUDACachingAllocator.h").exists() or version == "0.0":
            print(f"{headers} has no c10/cuda/CUDACachingAllocator.h, or no version of torch's")
            failed = True
            continue
        sources, errors, overriding, inherited, wrong = check(headers, cuda)
        print(f"{version:7} {sources:7}  {len(errors):6}  {len(overriding):10}  {len(inherited):11}  "
              f"{'wrong' if errors or wrong else 'ok'}", flush=True)
        for line in errors[:20] + wrong:
            print(f"    {line}")
        failed |= bool(errors or wrong)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
