# SPDX-License-Identifier: Apache-2.0
"""The public headers as a user includes them: weir/weir.hpp alone compiles with every compiler that is here and brings
all of them, and weir/device/runtime.hpp does not bring the simulator."""

import argparse
import subprocess
import sys
from pathlib import Path

# A bridge needs the headers of the other side, which not every machine has.
NOT_INCLUDED = {"weir/weir.hpp", "weir/resource/cuda_mr.hpp"}
# header: what it must not bring along, because it is large and few need it
NOT_BROUGHT = {"weir/device/runtime.hpp": "weir/sim/machine.hpp"}


class Headers:
    def __init__(self, include, scratch):
        self.include = include
        self.scratch = scratch
        scratch.mkdir(parents=True, exist_ok=True)

    def run(self, compiler, name, *flags):
        source = self.scratch / "alone.cpp"
        source.write_text(f'#include "{name}"\n')
        command = [compiler, "-std=c++20", "-Wall", "-Wextra", "-Wpedantic", "-Werror", *flags, f"-I{self.include}",
                   str(source)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def brought(self, compiler, name):
        """The headers of weir that this one includes, directly or through others, as an include names them."""
        done = self.run(compiler, name, "-MM")
        paths = [Path(word) for word in done.stdout.split() if word.endswith(".hpp")]
        return {path.relative_to(self.include).as_posix() for path in paths if path.is_relative_to(self.include)}

    def all(self):
        return {path.relative_to(self.include).as_posix() for path in self.include.rglob("*.hpp")}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--include", required=True, type=Path)
    parser.add_argument("--scratch", required=True, type=Path)
    parser.add_argument("compilers", nargs="+")
    options = parser.parse_args()
    headers = Headers(options.include, options.scratch)
    wrong = []
    for compiler in {Path(name).resolve(): name for name in options.compilers}.values():  # each once
        done = headers.run(compiler, "weir/weir.hpp", "-fsyntax-only")
        if done.returncode != 0:
            wrong.append(f"{compiler}: weir/weir.hpp must compile by itself, but:\n{done.stderr}")
    compiler = options.compilers[0]
    missing = headers.all() - NOT_INCLUDED - headers.brought(compiler, "weir/weir.hpp")
    wrong += [f"weir/weir.hpp does not include {name}" for name in sorted(missing)]
    for name, unwanted in NOT_BROUGHT.items():
        brought = headers.brought(compiler, name)
        if name not in brought:
            wrong.append(f"{name} cannot be read")
        if unwanted in brought:
            wrong.append(f"{name} includes {unwanted}, directly or through another header")
    for line in wrong:
        print(line)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
