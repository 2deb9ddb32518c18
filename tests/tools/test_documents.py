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

print("\n".join(problems))
sys.exit(1 if problems else 0)
