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
    wanted = set().union(*map(declared, headers))
    listing = subprocess.run(["nm", "--dynamic", "--defined-only", library], capture_output=True,
                             text=True, check=True).stdout
    shown = {name.partition("@")[0] for name in re.findall(r"\b(weir_\S+)$", listing, re.M)}
    wrong = [f"{name} is declared and not exported" for name in sorted(wanted - shown)]
    wrong += [f"{name} is exported and not declared" for name in sorted(shown - wanted)]
    for line in wrong:
        print(line)
    print(f"{len(wanted)} functions declared, {len(shown)} exported")
    return 1 if wrong or not wanted else 0


if __name__ == "__main__":
    sys.exit(main())
