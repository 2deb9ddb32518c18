#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The examples show the recommended way: public headers only, and the first one fits on a screen.

    check_examples.py ROOT
"""

import re
import sys
from pathlib import Path

MOST_LINES_OF_THE_FIRST = 40
# A graph is captured with the driver's own calls: weir has none for that.
WITH_GRAPHS = {"04_graphs_and_pools.cpp", "11_suspend.cpp"}


def problems(root):
    examples = sorted((root / "examples").glob("[01][0-9]_*.c*"))
    found = [] if len(examples) >= 13 else [f"only {len(examples)} examples"]
    for path in examples:
        text = path.read_text()
        lines = text.splitlines()
        if path.name.startswith("01_") and len(lines) > MOST_LINES_OF_THE_FIRST:
            found.append(f"{path.name}: {len(lines)} lines; at most {MOST_LINES_OF_THE_FIRST} fit on a screen")
        for header in re.findall(r'#include "(.*?)"', text):
            if not (root / "include" / header).exists():
                found.append(f"{path.name}: {header} is no public header")
        if re.search(r"weir::(v0|detail|heap|pools|buffers|order|placement|capi)::", text):
            found.append(f"{path.name}: uses a name of weir's inside")
        if "weir/driver/" in text and path.name not in WITH_GRAPHS:
            found.append(f"{path.name}: uses the driver's table; weir/buffer/copy.hpp has copies and fills")
    return found


def main():
    found = problems(Path(sys.argv[1]))
    print("\n".join(found) or "every example is as it should be")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
