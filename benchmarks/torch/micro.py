#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Microbenchmarks inside torch's process: weir, torch's own allocator, cudaMallocAsync, in one run.

    micro.py --build FOLDER                   compile micro.cpp there and say where the library is
    micro.py --library FILE --json FILE       run everything

The three ways are measured in one process. A second process, where weir.torch is enabled, measures what
a PyTorch program then gets: the same calls of torch's allocator interface, answered by weir.
"""

import argparse
import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
WAYS = ("weir", "torch", "cudaMallocAsync")
THROUGH = "weir through torch"
COLUMNS = ("weir", THROUGH, "torch", "cudaMallocAsync")
# What a pair may cost in weir, and how many times faster than torch it is to be.
GOALS = {"pair small": (20, 25), "pair large": (60, 8), "random live set 1000": (60, 15),
         "random live set 100000": (100, 40), "threads 16": (None, 700),
         "freed by another thread": (60, None)}


def weir_library():
    """The shared library of the build on this machine."""
    chosen = [os.environ["WEIR_LIBRARY"]] if os.environ.get("WEIR_LIBRARY") else []
    for file in [Path(name) for name in chosen] + [ROOT / "build" / preset / "src/libweir.so"
                                                   for preset in ("gpu", "release")]:
        if file.exists():
            return file
    sys.exit("no libweir.so: ./dev gpu builds it in build/gpu")


def build(folder):
    """micro.cpp against the torch and the weir that are here; again only when something is newer."""
    from torch.utils import cpp_extension

    weir = weir_library()
    source, library = HERE / "micro.cpp", Path(folder) / "libweir_torch_micro.so"
    if library.exists() and library.stat().st_mtime > max(source.stat().st_mtime, weir.stat().st_mtime):
        return library
    library.parent.mkdir(parents=True, exist_ok=True)
    torch_libraries = Path(cpp_extension._TORCH_PATH) / "lib"
    command = [os.environ.get("CXX", "c++"), "-std=c++20", "-O3", "-DNDEBUG", "-fPIC", "-shared",
               "-fvisibility=hidden", str(source), "-o", str(library), f"-I{ROOT / 'include'}"]
    for path in cpp_extension.include_paths(device_type="cuda"):
        command += ["-isystem", path]
    for path in (weir.parent, torch_libraries):
        command += [f"-L{path}", f"-Wl,-rpath,{path}"]
    command += ["-lweir", "-lc10_cuda", "-lc10", "-pthread"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"micro.cpp does not compile:\n{done.stderr[-4000:]}")
    return library


def call(library, function, argument):
    """What the function says, as a list of JSON objects."""
    import torch  # noqa: F401  # its libraries must be there first

    entry = getattr(ctypes.CDLL(str(library)), function)
    entry.restype, entry.argtypes = ctypes.c_char_p, [ctypes.c_char_p]
    answers = [json.loads(line) for line in entry(str(argument).encode()).decode().splitlines()]
    if answers and "error" in answers[0]:
        raise RuntimeError(answers[0]["error"])
    return answers


def play(library, path):
    """How long the record takes in this process's allocator: {"ns", "operations"}."""
    return call(library, "weir_micro_play", path)[0]


def measure(library, ways, weir_enabled):
    """One process: a line of JSON a figure on standard output, each way's when it is done."""
    import torch

    if weir_enabled:
        import weir.torch

        weir.torch.enable(policy="balanced")
    torch.cuda.init()
    torch.zeros(1, device="cuda").sum().item()
    for way in ways:
        try:
            for figure in call(library, "weir_micro_run", way):
                if weir_enabled:
                    figure["way"] = THROUGH
                print(json.dumps(figure), flush=True)
        except RuntimeError as error:
            print(json.dumps({"way": THROUGH if weir_enabled else way, "error": str(error)}), flush=True)
    return 0


def run_process(library, ways, weir_enabled, seconds):
    """(figures, failures) of one process."""
    paths = [str(ROOT / "python"), os.environ.get("PYTHONPATH", "")]
    command = [sys.executable, str(HERE / "micro.py"), "--library", str(library), "--measure",
               ",".join(ways)] + (["--enable-weir"] if weir_enabled else [])
    name = THROUGH if weir_enabled else ", ".join(ways)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, cwd=ROOT,
                              env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))})
        output, failures = done.stdout, []
        if done.returncode:
            failures.append(f"{name}: ended with {done.returncode}: {done.stderr.strip()[-1000:]}")
    except subprocess.TimeoutExpired as late:
        output = (late.stdout or b"").decode(errors="replace")
        failures = [f"{name}: not done after {seconds:.0f} s"]
    figures = []
    for line in output.splitlines():
        if not line.startswith("{"):
            continue
        figure = json.loads(line)
        if "error" in figure:
            failures.append(f"{figure['way']}: {figure['error']}")
        else:
            figures.append(figure)
    return figures, failures


# --- The table ---------------------------------------------------------------------------------------


def size_name(size):
    for unit, width in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size >= 1 << width:
            return f"{size >> width} {unit}"
    return f"{size} B"


def row_name(name, parameter):
    if name == "pair":
        return f"pair, {size_name(parameter)}"
    if name == "threads":
        return f"pair, 64 KiB, {parameter} threads with own streams (a thread)"
    if name == "freed by another thread":
        return f"allocated here, freed by another thread, {size_name(parameter)}"
    return f"random sizes, {parameter:,} live"


def goal(name, parameter):
    """(most nanoseconds, least times faster than torch), either may be missing."""
    if name == "pair":
        return GOALS["pair small" if parameter <= 1 << 20 else "pair large"]
    return GOALS.get(name) or GOALS.get(f"{name} {parameter}") or (None, None)


def table(figures):
    """Markdown: nanoseconds a pair, a column a way."""
    rows = {}
    for figure in figures:
        rows.setdefault((figure["what"], figure["parameter"]), {})[figure["way"]] = figure["ns"]
    lines = ["| ns a pair | " + " | ".join(COLUMNS) + " | weir against torch | goal |",
             "|---|" + "--:|" * (len(COLUMNS) + 1) + "---|"]
    for (name, parameter), ways in rows.items():
        cells = [f"{ways[way]:,.1f}" if way in ways else "–" for way in COLUMNS]
        both = "weir" in ways and "torch" in ways
        against = f"{ways['torch'] / ways['weir']:.1f}x" if both else "–"
        most, least = goal(name, parameter)
        goals = [f"≤ {most} ns" if most else "", f"≥ {least}x" if least else ""]
        lines.append(f"| {row_name(name, parameter)} | {' | '.join(cells)} | {against} | "
                     f"{', '.join(filter(None, goals))} |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=Path, help="compile into this folder and print the library")
    parser.add_argument("--library", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--seconds", type=float, default=60, help="limit for each process")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    parser.add_argument("--enable-weir", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.build:
        print(build(options.build))
        return 0
    if not options.library:
        parser.error("--library or --build is needed")
    if options.measure:
        return measure(options.library, options.measure.split(","), options.enable_weir)
    if not options.json:
        parser.error("--json is needed")
    figures, failures = run_process(options.library, WAYS, False, options.seconds)
    more_figures, more_failures = run_process(options.library, ("torch",), True, options.seconds)
    report = {"figures": figures + more_figures, "failures": failures + more_failures}
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(report, indent=1) + "\n")
    print(table(report["figures"]))
    for failure in report["failures"]:
        print(f"FAILED {failure}")
    return 1 if report["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
