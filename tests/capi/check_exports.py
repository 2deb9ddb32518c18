# SPDX-License-Identifier: Apache-2.0
"""libweir.so shows every function of the C headers, and no other under weir_; weir.h lists every error."""

import re
import subprocess
import sys
from pathlib import Path


def declared(header):
    text = re.sub(r"/\*.*?\*/", "", Path(header).read_text(), flags=re.S)
    return set(re.findall(r"WEIR_C_API\b[^;(]*?\b(weir_\w+)\s*\(", text))


def unlisted_errors(header):
    """Rows of errc.def that the list in the header lacks, or has with another number or meaning."""
    text = Path(header).read_text()
    rows = re.findall(r'WEIR_ERRC\((\w+), (\d+), "(.*)"\)', (Path(header).parent / "weir/base/errc.def").read_text())
    return [name for name, number, meaning in rows
            if not re.search(rf"^ \* +{number} {name} +{re.escape(meaning)}$", text, re.M)] or ([] if rows else ["all"])


def main():
    library, headers = sys.argv[1], sys.argv[2:]
    expected = set().union(*map(declared, headers))
    listing = subprocess.run(["nm", "--dynamic", "--defined-only", library], capture_output=True,
                             text=True, check=True).stdout
    shown = {name.partition("@")[0] for name in re.findall(r"\b(weir_\S+)$", listing, re.M)}
    problems = [f"{name} is declared and not exported" for name in sorted(expected - shown)]
    problems += [f"{name} is exported and not declared" for name in sorted(shown - expected)]
    problems += [f"error {name} is not in the list of weir.h" for name in unlisted_errors(headers[0])]
    for line in problems:
        print(line)
    print(f"{len(expected)} functions declared, {len(shown)} exported")
    return 1 if problems or not expected else 0


if __name__ == "__main__":
    sys.exit(main())
