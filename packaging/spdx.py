#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that every source file begins with its license, and adds the line where it is missing.

    spdx.py ROOT          lists the files without the line; fails if there are any
    spdx.py ROOT --fix    adds the line

Sources are the files under version control whose name ends as in COMMENTS, and scripts that begin with "#!".
The line is the first of the file; behind "#!", where a file begins with that.
"""
import pathlib
import subprocess
import sys

TAG = "SPDX-License-Identifier: Apache-2.0"

# How a comment of one line is written.
C, HASH, BLOCK = "// {}", "# {}", "/* {} */"
COMMENTS = {
    ".cpp": C, ".hpp": C, ".cu": C, ".def": C, ".js": C, ".mjs": C, ".c": BLOCK, ".h": BLOCK, ".map": BLOCK, ".css": BLOCK,
    ".py": HASH, ".sh": HASH, ".cmake": HASH, "CMakeLists.txt": HASH, ".toml": HASH,
}

# What tests read as it is, and what other programs dictate.
LEFT_OUT = ("tests/data/", "tests/fuzz/corpus/", "traces/")


def comment_of(name, text):
    """The line for a file of this name and text, or None if the file is not a source."""
    if name.startswith(LEFT_OUT):
        return None
    for end, form in COMMENTS.items():
        if name.endswith(end):
            return form.format(TAG)
    return HASH.format(TAG) if text.startswith("#!") else None


def with_license(text, line):
    """The text with the line at its place."""
    if text.startswith("#!"):
        first, _, rest = text.partition("\n")
        return f"{first}\n{line}\n{rest}"
    return f"{line}\n{text}"


def has_license(text):
    return any(TAG in line for line in text.split("\n", 2)[:2])


def tracked(root):
    """The files under version control, or all files where there is none."""
    listed = subprocess.run(["git", "-C", root, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                            capture_output=True, check=False)
    if listed.returncode == 0:
        return [name for name in listed.stdout.decode().split("\0") if name]
    return [str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()]


def main():
    root = pathlib.Path(sys.argv[1]).resolve()
    fix = sys.argv[2:] == ["--fix"]
    missing = []
    for name in sorted(tracked(root)):
        path = root / name
        if path.is_symlink() or not path.is_file():
            continue
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        line = comment_of(name, text)
        if line is None or has_license(text):
            continue
        missing.append(name)
        if fix:
            path.write_text(with_license(text, line))
    if missing and not fix:
        print(*(f"{name}: the license is missing; packaging/spdx.py . --fix adds it" for name in missing), sep="\n")
        return 1
    print(f"{'added to' if fix else 'missing in'} {len(missing)} files")
    return 0


if __name__ == "__main__":
    sys.exit(main())
