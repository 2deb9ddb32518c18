#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the C ABI of this tree with the recorded one of its soname.

    abi.py ROOT                 fails if a program that was built against the recorded ABI could break
    abi.py ROOT --update        records the ABI of this tree
    abi.py ROOT --library FILE  also checks that the library exports the functions of the headers and has the soname

The ABI is what include/weir.h and include/weir_plugins.h declare: functions, structures and numbers. It is read from a
library of empty functions that is compiled from the headers with debug information, so that it takes a second and
needs no build of weir. libabigail (abidw, abidiff) describes and compares functions and structures.

Compatible: a new function, a new number, and new members at the end of a structure that begins with its size. Everything
else needs another soname, which is the minor version before 1.0 (docs/compatibility.md). A tree with a soname that has no
record yet needs --update.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

HEADERS = ("weir.h", "weir_plugins.h")
EXPORT = '__attribute__((visibility("default")))'


def soname(root):
    text = (root / "include/weir/base/version.hpp").read_text()
    major, minor = (re.search(rf"#define WEIR_VERSION_{part} (\d+)", text).group(1) for part in ("MAJOR", "MINOR"))
    return f"libweir.so.0.{minor}" if major == "0" else f"libweir.so.{major}"


def run(*command, **more):
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, **more)


def compiled(folder, source, name, *words):
    file = folder / f"{name}.c"
    file.write_text(source)
    done = run(os.environ.get("CC", "cc"), "-std=c11", *words, file, "-o", folder / name)
    if done.returncode != 0:
        sys.exit(f"the headers do not compile as C:\n{done.stderr}")
    return folder / name


def preprocessed(root):
    """The declarations of the headers, without comments and macros."""
    text = "".join(f'#include "{header}"\n' for header in HEADERS)
    done = run(os.environ.get("CC", "cc"), "-std=c11", "-E", "-P", "-I", root / "include", "-x", "c", "-", input=text)
    if done.returncode != 0:
        sys.exit(f"the headers do not compile as C:\n{done.stderr}")
    return done.stdout


def stub(root, folder, declarations):
    """A library whose functions do nothing and have weir's names and types."""
    pieces = declarations.split(EXPORT)
    source = pieces[0]
    for piece in pieces[1:]:
        declaration, _, rest = piece.partition(";")
        source += f"{EXPORT}{declaration} {{ __builtin_unreachable(); }}{rest}"
    return compiled(folder, source, soname(root), "-g", "-O0", "-shared", "-fPIC", f"-Wl,-soname,{soname(root)}")


def functions(declarations):
    return set(re.findall(re.escape(EXPORT) + r"[^;(]*?\b(weir_\w+)\s*\(", declarations))


def members(declarations):
    """(structure, member, type) of the structures that begin with their size."""
    for name, body in re.findall(r"struct (\w+) \{\s*(uint32_t struct_size;.*?)\}", declarations, re.S):
        for declaration in filter(None, map(str.strip, body.split(";"))):
            found = re.fullmatch(r"(.+?)\s*\b(\w+)(\[\w+\])?", " ".join(declaration.split()))
            if found is None or "," in declaration or "(" in declaration:
                sys.exit(f"{name}: {declaration!r} is not one member; give each a declaration of its own")
            yield name, found.group(2), found.group(1) + (found.group(3) or "")


def constants(root, folder, declarations):
    """The numbers of the headers by name: of enumerations, of macros without parameters, and the places of the members of
    structures that begin with their size (which abidiff is told to overlook)."""
    names = {name for body in re.findall(r"enum(?:\s+\w+)?\s*\{(.*?)\}", declarations, re.S)
             for name in re.findall(r"\bweir_\w+(?=\s*(?:=|,|$))", body)}
    for header in HEADERS:
        text = re.sub(r"/\*.*?\*/", "", (root / "include" / header).read_text(), flags=re.S)
        names |= set(re.findall(r"^#define (WEIR_\w+) +[(\d]", text, re.M))
    names = {name for name in names if not name.startswith("WEIR_VERSION")}
    prints = "".join(f'  printf("{name} = %lld\\n", (long long)({name}));\n' for name in sorted(names))
    prints += "".join(f'  printf("{struct}.{member} = {kind} at %zu\\n", offsetof(struct {struct}, {member}));\n'
                      for struct, member, kind in members(declarations))
    includes = "".join(f'#include "{header}"\n' for header in HEADERS)
    program = compiled(folder, f"#include <stddef.h>\n#include <stdio.h>\n{includes}int main(void) {{\n{prints}  return 0;\n}}\n", "numbers",
                       "-I", root / "include")
    return run(program).stdout


def growing(declarations):
    """What abidiff need not report: structures that begin with their size may grow at the end."""
    return "".join(f"[suppress_type]\ntype_kind = struct\nname = {name}\nhas_data_member_inserted_at = end\n\n"
                   for name in sorted({struct for struct, _, _ in members(declarations)}))


def changed_numbers(recorded, present):
    before, now = (dict(line.split(" = ", 1) for line in text.splitlines()) for text in (recorded, present))
    return [f"{name} was {value}, is {now.get(name, 'gone')}" for name, value in before.items() if now.get(name) != value]


def library_problems(library, root, declared):
    dynamic = run("readelf", "--dynamic", "--wide", library).stdout
    named = re.search(r"\(SONAME\).*\[(.+)\]", dynamic)
    problems = [] if named and named.group(1) == soname(root) else [
        f"{library} has the soname {named.group(1) if named else '(none)'}, expected {soname(root)}"]
    listed = run("nm", "--dynamic", "--defined-only", library).stdout
    exported = {name.partition("@")[0] for name in re.findall(r" T (weir_\S+)$", listed, re.M)}
    problems += [f"{library} does not export {name}" for name in sorted(declared - exported)]
    problems += [f"{library} exports {name}, which no header declares" for name in sorted(exported - declared)]
    return problems


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=Path)
    parser.add_argument("--update", action="store_true")
    parser.add_argument("--library", type=Path)
    parser.add_argument("--record", type=Path, help="the folder with what was recorded (packaging/abi)")
    chosen = parser.parse_args()
    root = chosen.root.resolve()
    folder = chosen.record or root / "packaging/abi"
    types, numbers = folder / f"{soname(root)}.abi", folder / f"{soname(root)}.numbers"
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        declarations = preprocessed(root)
        library = stub(root, scratch, declarations)
        present = constants(root, scratch, declarations)
        problems = library_problems(chosen.library, root, functions(declarations)) if chosen.library else []
        if chosen.update:
            done = run("abidw", "--no-show-locs", "--no-corpus-path", "--no-comp-dir-path", "--short-locs", "--out-file",
                       types, library)
            if done.returncode != 0:
                sys.exit(f"abidw failed: {done.stderr}")
            numbers.write_text(present)
            print(f"recorded {len(functions(declarations))} functions and {len(present.splitlines())} numbers of {soname(root)}")
            return 0
        if not types.exists():
            sys.exit(f"{types.name} is not recorded; ./dev abi --update records it")
        (scratch / "growing").write_text(growing(declarations))
        done = run("abidiff", "--no-architecture", "--no-added-syms", "--suppressions", scratch / "growing", types, library)
        if done.returncode & 3:
            sys.exit(f"abidiff failed: {done.stderr}{done.stdout}")
        if done.returncode:
            problems.append(done.stdout.strip())
        problems += changed_numbers(numbers.read_text(), present)
    if problems:
        print(*problems, sep="\n")
        print(f"\nThe C ABI of {soname(root)} changed in a way that can break programs. Keep the old form beside the new one, or "
              "raise the minor version in include/weir/base/version.hpp. Before the first release of that version, "
              "./dev abi --update records the change.")
        return 1
    print(f"{soname(root)}: {len(functions(declarations))} functions, compatible with the record")
    return 0


if __name__ == "__main__":
    sys.exit(main())
