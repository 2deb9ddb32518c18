# SPDX-License-Identifier: Apache-2.0
"""Every C example in the documents compiles without a warning: check_examples.py COMPILER INCLUDE DOCUMENT..."""

import re
import subprocess
import sys
from pathlib import Path


def main():
    compiler, include, documents = sys.argv[1], sys.argv[2], sys.argv[3:]
    count, failed = 0, 0
    for document in documents:
        for example in re.findall(r"^```c\n(.*?)^```$", Path(document).read_text(), re.M | re.S):
            count += 1
            ran = subprocess.run([compiler, "-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-I", include,
                                  "-x", "c", "-fsyntax-only", "-"], input=example, text=True,
                                 capture_output=True, check=False)
            if ran.returncode:
                failed += 1
                print(f"{document}:\n{example}{ran.stderr}")
    print(f"{count} examples, {failed} of them do not compile")
    return 1 if failed or not count else 0


if __name__ == "__main__":
    sys.exit(main())
