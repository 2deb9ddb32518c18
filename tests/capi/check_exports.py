"""libweir.so shows every function of the C headers, and no other under weir_."""

import re
import subprocess
import sys
from pathlib import Path


def declared(header):
    text = re.sub(r"/\*.*?\*/", "", Path(header).read_text(), flags=re.S)
    return set(re.findall(r"WEIR_C_API\b[^;(]*?\b(weir_\w+)\s*\(", text))


def main():
    library, headers = sys.argv[1], sys.argv[2:]
    expected = set().union(*map(declared, headers))
    listing = subprocess.run(["nm", "--dynamic", "--defined-only", library], capture_output=True,
                             text=True, check=True).stdout
    shown = {name.partition("@")[0] for name in re.findall(r"\b(weir_\S+)$", listing, re.M)}
    problems = [f"{name} is declared and not exported" for name in sorted(expected - shown)]
    problems += [f"{name} is exported and not declared" for name in sorted(shown - expected)]
    for line in problems:
        print(line)
    print(f"{len(expected)} functions declared, {len(shown)} exported")
    return 1 if problems or not expected else 0


if __name__ == "__main__":
    sys.exit(main())
