#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the replays that docs/tutorial.md shows and compares their output, except for the speed of the replay.

    check_tutorial.py WEIR ROOT
"""

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SNAPSHOT = "tests/data/snapshots/gpt2_two_steps.default.snapshot.pickle.gz"


def replays(document):
    """(arguments of weir, output) of each block that begins with a replay."""
    for block in re.findall(r"^```\n(.*?)^```$", document, re.S | re.M):
        command, _, output = block.partition("\n")
        if command.startswith("$ weir replay ") and output:
            yield command.split()[2:], output


def comparable(output):
    """The lines without the last column if that is the speed, which differs from run to run."""
    head, *rows = output.rstrip().split("\n")
    if head.endswith("M events/s"):
        head, rows = head.removesuffix("M events/s"), [row.rpartition(" ")[0] for row in rows]
    return [line.rstrip() for line in (head, *rows)]


def main():
    weir, root = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
    problems, count = [], 0
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(root / SNAPSHOT, Path(folder) / "steps.pickle.gz")
        (Path(folder) / "traces").symlink_to(root / "traces")
        for arguments, expected in replays((root / "docs/tutorial.md").read_text()):
            count += 1
            done = subprocess.run([weir, *arguments], cwd=folder, capture_output=True, text=True, check=False)
            if comparable(done.stdout) != comparable(expected):
                problems.append(f"docs/tutorial.md: weir {' '.join(arguments)} now prints\n{done.stdout}{done.stderr}")
    print("\n".join([*problems, f"{count} replays, {len(problems)} differ"]))
    return 1 if problems or not count else 0


if __name__ == "__main__":
    sys.exit(main())
