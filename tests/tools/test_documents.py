#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Documents quote programs and their output; what they quote must be what there is."""

import re
import sys
from pathlib import Path

root = Path(sys.argv[1])
problems = []


def blocks(document, language):
    blocks = re.findall(rf"^```{language}\n(.*?)^```$", document.read_text(), re.S | re.M)
    if not blocks:
        problems.append(f"{document}: no block of {language}")
    return blocks


# Code in the simulator's document that is marked as the example's is copied from it.
simulator = root / "docs/simulator.md"
example = (root / "examples/stream_race.cpp").read_text()
for block in blocks(simulator, "cpp example"):
    if block not in example:
        problems.append(f"{simulator}: not in examples/stream_race.cpp:\n{block}")

# So is that in the document on debugging.
debugging = root / "docs/debugging.md"
example = (root / "examples/12_debugging.cpp").read_text()
for block in blocks(debugging, "cpp example"):
    if block not in example:
        problems.append(f"{debugging}: not in examples/12_debugging.cpp:\n{block}")

# The doctor's document shows what the doctor says.
doctor = root / "docs/doctor.md"
golden = (root / "tests/tools/doctor_no_driver.txt").read_text()
if golden not in blocks(doctor, "text"):
    problems.append(f"{doctor}: does not show tests/tools/doctor_no_driver.txt")

# The steps of the search for room in the allocator's document are those of the code, in their order.
allocator = root / "docs/allocator.md"
search = (root / "src/heap/room_search.cpp").read_text()
body = re.search(r"^result<block_index> room_search::find_room\(\) \{\n(.*?)^\}", search, re.S | re.M)[1]
called = [name for name in re.findall(r"\b([a-z_]+)\(", body)
          if name not in ("if", "for", "prepare", "found_on", "climb", "to_bytes", "fit")]
called.insert(called.index("notice_capture"), "fit")  # which also follows other steps
table = re.search(r"^\| \| step \|.*?\n\n", allocator.read_text(), re.S | re.M)[0]
documented = [name for row in table.strip().splitlines()[2:] for name in re.findall(r"`([a-z_]+)`", row.split(" | ")[-1])]
if documented != called:
    problems.append(f"{allocator}: the steps are not those of room_search::find_room():\n{documented}\n{called}")

print("\n".join(problems))
sys.exit(1 if problems else 0)
