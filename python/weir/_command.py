# SPDX-License-Identifier: Apache-2.0
"""The command `weir` of the package: the program that it contains, in this process's place."""

import os
import sys

from ._native import PACKAGE


def main() -> int:
    program = PACKAGE / "bin" / "weir"
    try:
        os.execv(program, ["weir", *sys.argv[1:]])
    except OSError as problem:
        print(f"weir: this package was built without the command ({program}: {problem.strerror}). Build it with fmt, CLI11, "
              "nlohmann_json, zlib and zstd installed and WEIR_WHEEL_COMMAND=on, or install weir-tools where weir is a package of the "
              "distribution.", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
