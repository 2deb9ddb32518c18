#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Counts the instructions of a cached pair with callgrind and compares them with the golden file.

A run of N pairs and one of 2 N differ by N pairs: whatever else the program does drops out. A change
of more than 5 % in either direction fails: a gain belongs into the golden file, too.
"""

import argparse
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SKIPPED = 77  # ctest's SKIP_RETURN_CODE
PAIRS = 10_000
SIZES = (4096, 64 << 20)
TOLERANCE = 0.05


def golden_counts(path):
    """{size: instructions} of this architecture."""
    counts = {}
    for line in path.read_text().splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        architecture, size, instructions = line.split()
        if architecture == platform.machine():
            counts[int(size)] = float(instructions)
    return counts


def instructions(program, size, pairs):
    with tempfile.TemporaryDirectory() as scratch:
        done = subprocess.run(
            ["valgrind", "--tool=callgrind", f"--callgrind-out-file={scratch}/out",
             program, str(size), str(pairs)],
            capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"{program} {size} {pairs} returned {done.returncode}:\n{done.stderr}")
        total = re.search(r"^totals: (\d+)", Path(scratch, "out").read_text(), re.M)
        if total is None:
            sys.exit("callgrind wrote no totals")
        return int(total.group(1))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", required=True)
    parser.add_argument("--golden", required=True, type=Path)
    arguments = parser.parse_args()
    if shutil.which("valgrind") is None:
        print("skipped: valgrind, which counts the instructions, is not installed")
        return SKIPPED

    golden = golden_counts(arguments.golden)
    wrong = []
    for size in SIZES:
        few = instructions(arguments.program, size, PAIRS)
        many = instructions(arguments.program, size, 2 * PAIRS)
        measured = (many - few) / PAIRS
        line = f"{platform.machine()} {size} {measured:.1f}"
        expected = golden.get(size)
        if expected is None:
            print(f"{line}   (no golden number for this architecture: add this line to "
                  f"{arguments.golden.name})")
        elif abs(measured - expected) > TOLERANCE * expected:
            wrong.append(f"{line}   (the golden number is {expected:g})")
        else:
            print(f"{line}   (as the golden number, {expected:g}, within {TOLERANCE:.0%})")
    if wrong:
        print("\n".join(wrong))
        print("If that is meant, put the new numbers into", arguments.golden)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
