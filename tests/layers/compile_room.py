"""Compiles one-line files with a room's include path: headers of lower rooms must be found, headers
of higher rooms must not, and for no other reason than that the file is not there."""

import argparse
import subprocess
import sys
from pathlib import Path


def public_headers(views, room):
    """The room's public headers, as an include names them."""
    folder = views / room / "public"
    return [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*.*"))]


def headers(views, rooms):
    """Every header of these rooms, public and private."""
    names = []
    for room in rooms:
        names += public_headers(views, room)
        names += [f"{room}/{path.name}" for path in sorted((views / room / "private" / room).glob("*.hpp"))]
    return names


def compile_includes(options, *names):
    """(whether a file that includes these compiles, what the compiler said)."""
    file = options.scratch / "try.cpp"
    file.write_text("".join(f'#include "{name}"\n' for name in names))
    command = [options.compiler, "-std=c++20", "-fsyntax-only", str(file)]
    command += [f"-I{path}" for path in options.include.split(";") if path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode == 0, done.stderr


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--compiler", required=True)
    parser.add_argument("--scratch", required=True, type=Path)
    parser.add_argument("--views", required=True, type=Path)
    parser.add_argument("--include", required=True)
    parser.add_argument("--visible", required=True)
    parser.add_argument("--hidden", required=True)
    options = parser.parse_args()
    options.scratch.mkdir(parents=True, exist_ok=True)
    visible = [name for name in options.visible.split(";") if name]
    hidden = [name for name in options.hidden.split(";") if name]

    wrong = []
    # A table is no use alone; the headers that include it stand for it.
    seen = [name for name in headers(options.views, visible) if not name.endswith(".def")]
    if not seen:
        wrong.append(f"no header to see in {visible}")
    compiles, said = compile_includes(options, *seen)
    if not compiles:
        wrong.append(f"the headers of {', '.join(visible)} must compile, but:\n{said}")
    for name in public_headers(options.views, visible[0]):  # the room's own: users include them alone
        compiles, said = compile_includes(options, name)
        if not compiles and not name.endswith(".def"):
            wrong.append(f"{name} must compile by itself, but:\n{said}")
    for name in headers(options.views, hidden):
        compiles, said = compile_includes(options, name)
        if compiles:
            wrong.append(f"{name} must be out of sight, but it compiles")
        elif not ("No such file" in said or "file not found" in said) or name not in said:
            wrong.append(f"{name} must be missing, but the compiler says:\n{said}")
    for line in wrong:
        print(line)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
