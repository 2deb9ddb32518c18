# SPDX-License-Identifier: Apache-2.0
"""Compiles small files with a component's include path: headers of lower components must be found, headers of
higher components must not. With --alone: each of the component's own public headers compiles by itself."""

import argparse
import subprocess
import sys
from pathlib import Path


# A bridge needs the other side, which not every machine has.
NOT_ALONE = ("weir/resource/cuda_mr.hpp",)


def public_headers(views, component):
    """The component's public headers, as an include names them."""
    folder = views / component / "public"
    return [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*.*"))]


def headers(views, components):
    """Every header of these components, public and private."""
    names = []
    for component in components:
        names += public_headers(views, component)
        names += [f"{component}/{path.name}" for path in sorted((views / component / "private" / component).glob("*.hpp"))]
    return names


def compile_text(options, text):
    """(whether it compiles, what the compiler said)."""
    file = options.scratch / "try.cpp"
    file.write_text(text)
    command = [options.compiler, "-std=c++20", "-fsyntax-only", str(file)]
    command += [f"-I{path}" for path in options.include.split(";") if path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode == 0, done.stderr


def compile_includes(options, *names):
    return compile_text(options, "".join(f'#include "{name}"\n' for name in names))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--compiler", required=True)
    parser.add_argument("--scratch", required=True, type=Path)
    parser.add_argument("--views", required=True, type=Path)
    parser.add_argument("--include", required=True)
    parser.add_argument("--visible", required=True)
    parser.add_argument("--hidden", required=True)
    parser.add_argument("--alone", action="store_true")
    options = parser.parse_args()
    options.scratch.mkdir(parents=True, exist_ok=True)
    visible = [name for name in options.visible.split(";") if name]
    hidden = [name for name in options.hidden.split(";") if name]

    wrong = compile_alone(options, visible[0]) if options.alone else look_around(options, visible, hidden)
    for line in wrong:
        print(line)
    return 1 if wrong else 0


def compile_alone(options, component):
    """What is wrong with the component's public headers, which users include one at a time."""
    wrong = []
    for name in public_headers(options.views, component):
        if name in NOT_ALONE or name.endswith(".def"):
            continue
        compiles, said = compile_includes(options, name)
        if not compiles:
            wrong.append(f"{name} must compile by itself, but:\n{said}")
    return wrong


def look_around(options, visible, hidden):
    """What is wrong with what the component can see."""
    wrong = []
    seen = [name for name in headers(options.views, visible) if not name.endswith(".def")]
    if not seen:
        wrong.append(f"no header to see in {visible}")
    # One file for all of them: the compiler names those it can see.
    out_of_sight = headers(options.views, hidden)
    probe = "".join(f'#if __has_include("{name}")\n#error visible: {name}\n#endif\n'
                    for name in out_of_sight)
    compiles, said = compile_text(options, probe)
    if not compiles:
        wrong.append(f"headers of {', '.join(hidden)} must be out of sight, but:\n{said}")
    # And the probe can tell: it must notice a header that is in sight.
    compiles, said = compile_text(options, f'#if __has_include("{seen[0]}")\n#error visible\n#endif\n')
    if compiles or "visible" not in said:
        wrong.append(f"{seen[0]} is in sight, but the probe does not notice it")
    return wrong


if __name__ == "__main__":
    sys.exit(main())
