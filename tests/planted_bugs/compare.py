#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Memory bugs planted in a PyTorch program, and which tool finds each: the second table of docs/debugging.md.

    compare.py [--only BUG,BUG] [--out FILE.md]

Needs a GPU, PyTorch, nvcc, weir's library (WEIR_LIBRARY) and compute-sanitizer. Each bug has a process of its own
under each tool; a bug is found if the tool or the program says so, and the words are printed, too.
"""

import argparse
import concurrent.futures
import ctypes
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
LATE = 400_000_000  # cycles: a fifth of a second

# --- The bugs, in a process of their own --------------------------------------------------------------


def plant(bug, poke_library):
    import torch

    if os.environ.get("WEIR_PLANTED_ALLOCATOR") == "weir":
        import weir.torch
        weir.torch.enable()
    library = ctypes.CDLL(poke_library)

    def poke(address, stream=None, cycles=0):
        stream = stream or torch.cuda.current_stream()
        library.poke(ctypes.c_void_p(address), 0x2a2a2a2a, ctypes.c_longlong(cycles), ctypes.c_void_p(stream.cuda_stream))

    def block():
        return torch.zeros(250, device="cuda")  # 1000 bytes

    before, x, behind = block(), block(), block()
    torch.cuda.synchronize()
    address = x.data_ptr()
    if bug == "overflow by 4 bytes":
        poke(address + 1000)
    elif bug == "overflow, further":
        poke(address + 1024)
    elif bug == "underflow by 4 bytes":
        poke(address - 4)
    elif bug == "use after free":
        del x
        poke(address)
    elif bug == "use without record_stream":
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):  # an operation of torch's own, late because the stream is busy
            poke(before.data_ptr(), side, LATE)
            x.add_(1)
        del x
        y = block()
        torch.cuda.current_stream().synchronize()
        side.synchronize()
        print(f"y is {y[0].item()}, and should be 0.0")
    elif bug == "double free":
        raw = torch.cuda.caching_allocator_alloc(1000)
        torch.cuda.caching_allocator_delete(raw)
        torch.cuda.caching_allocator_delete(raw)
    elif bug == "leak":
        torch.cuda.caching_allocator_alloc(1000)
    else:
        raise SystemExit(f"no such bug: {bug}")
    torch.cuda.synchronize()
    x = None
    del before, behind
    torch.cuda.empty_cache()
    print("the program saw nothing")


BUGS = ("overflow by 4 bytes", "overflow, further", "underflow by 4 bytes", "use after free",
        "use without record_stream", "double free", "leak")

# --- The tools ----------------------------------------------------------------------------------------

CHECKED = ["compute-sanitizer"]
TOOLS = {
    "PyTorch native": ([], {}),
    "compute-sanitizer": (CHECKED, {}),
    "compute-sanitizer, no caching": (CHECKED, {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}),
    "weir `red_zones`": ([], {"WEIR_PLANTED_ALLOCATOR": "weir", "WEIR_HEAP_DEBUG": "red_zones"}),
    "weir `guard_pages`": ([], {"WEIR_PLANTED_ALLOCATOR": "weir", "WEIR_HEAP_DEBUG": "guard_pages"}),
    # A block ends for the tool when it is freed; kernels that were queued before have run by then.
    "weir `classic`, compute-sanitizer": ([*CHECKED, "--force-blocking-launches"],
                                          {"WEIR_PLANTED_ALLOCATOR": "weir", "WEIR_HEAP_POLICY": "classic"}),
}
SAID = re.compile(r"memory_damaged.*|double_free.*|still_live.*|UndeclaredUseWarning: .*|Invalid __global__ .*|"
                  r"Program hit .*|\w*Error: .*", re.MULTILINE)
SAID_OF_LEAKS = re.compile(r"still_live.*|Leaked .*", re.MULTILINE)


def run(bug, tool, library):
    """(the first words that tell of the bug or nothing, all that was said). A tool that does not start is an error."""
    before, environment = TOOLS[tool]
    words = list(before)
    if words:
        words[0] = shutil.which(words[0]) or f"/usr/local/cuda/bin/{words[0]}"
        words += ["--leak-check", "full"] if bug == "leak" else []
    try:
        ran = subprocess.run([*words, sys.executable, str(HERE / "compare.py"), "--plant", bug, library],
                             env=os.environ | environment | {"WEIR_PRINT_ERRORS": "on"}, text=True, timeout=300,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    except subprocess.TimeoutExpired as late:
        return "took too long", str(late.stdout)
    text = re.sub(r"^=+ ?", "", ran.stdout, flags=re.MULTILINE)
    found = (SAID_OF_LEAKS if bug == "leak" else SAID).search(text)
    if found is None and ran.returncode != 0:
        raise RuntimeError(f"{bug}, {tool}: exit status {ran.returncode}\n{text}")
    return ("" if found is None else found[0].strip()), text


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plant", nargs=2)
    parser.add_argument("--only", default=",".join(BUGS).replace(", ", "; "))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.plant:
        plant(*options.plant)
        return
    bugs = [bug for bug in BUGS if bug.replace(", ", "; ") in options.only]
    with tempfile.TemporaryDirectory() as folder:
        library = f"{folder}/libpoke.so"
        nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
        subprocess.run([nvcc, "-arch=native", "-lineinfo", "-shared", "-Xcompiler", "-fPIC", "-o", library,
                        str(HERE / "poke.cu")], check=True)
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            cells = {(bug, tool): pool.submit(run, bug, tool, library) for tool in TOOLS for bug in bugs}
            cells = {key: each.result() for key, each in cells.items()}
    lines = ["| bug | " + " | ".join(TOOLS) + " |", "|---" * (len(TOOLS) + 1) + "|"]
    for bug in bugs:
        lines.append(f"| {bug} | " + " | ".join("found" if cells[bug, tool][0] else "–" for tool in TOOLS) + " |")
    lines += ["", "What is said:", ""]
    lines += [f"- {bug}, {tool}: {words[:400]}" for (bug, tool), (words, _) in cells.items() if words]
    print("\n".join(lines))
    if options.out:
        lines += ["", "All of it:", ""]
        for (bug, tool), (_, text) in cells.items():
            lines += [f"## {bug}, {tool}", "```", text, "```"]
        options.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
