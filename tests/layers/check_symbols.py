# SPDX-License-Identifier: Apache-2.0
"""Checks that no component calls a function that a component above it defines.

A function that is declared in one component and defined in a higher one breaks the order of the components just as an
include does, and no include shows it. So this reads the symbols of each component's object files (nm).
"""
import argparse
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "cmake"))
import check_layers  # noqa: E402


def symbols(files, *which):
    """The mangled names that nm lists for the files."""
    if not files:
        return set()
    listing = subprocess.run(["nm", "--format=posix", *which, *files], check=True, capture_output=True, text=True).stdout
    return {line.split(" ")[0] for line in listing.splitlines() if " " in line}


def upward_calls(components, objects):
    """A line for each symbol that a component uses and only components out of its sight define."""
    defined = {name: symbols(files, "--defined-only", "--extern-only") for name, files in objects.items()}
    problems = []
    for name, files in objects.items():
        used = symbols(files, "--undefined-only") - defined[name]
        for symbol in sorted(used):
            owners = [other for other in defined if symbol in defined[other]]
            if owners and not any(other in components[name].sees for other in owners):
                problems.append(f"component {name} uses {symbol}, which {', '.join(owners)} defines")
    return problems


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("root", type=Path)
    parser.add_argument("build", type=Path, help="the build's folder src/CMakeFiles")
    options = parser.parse_args()
    problems = []
    components = check_layers.read_components(options.root, problems)
    objects = {name: sorted(str(file) for file in (options.build / f"weir_{name}.dir").rglob("*.o")) for name in components}
    missing = [name for name, files in objects.items() if not files]
    if missing:
        problems.append(f"no object files of {', '.join(missing)} below {options.build}")
    problems += upward_calls(components, objects)
    for each in problems:
        print(each)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
