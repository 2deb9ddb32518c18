# SPDX-License-Identifier: Apache-2.0
"""Lists the public functions that no test has called, after the tests have run.

    python3 uncalled.py SOURCE_FOLDER BUILD_FOLDER [--out FILE]

What is public: every function that include/ declares, members and templates too, and the functions of
python/weir whose names do not begin with an underscore. What was called is in the counters that gcc's
--coverage leaves in the build folder, and in what python_calls.py has written there. A template was
called if one of its instantiations was. What is deleted, defaulted, pure or evaluated by the compiler
alone has no counter, and is left out.

Answers 1 if there is any. Needs python3-clang-14 and gcov.
"""

import argparse
import ast
import collections
import concurrent.futures
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path


# --- What is declared -----------------------------------------------------------------------------

@dataclass
class Function:
    name: str
    file: str  # from the source folder on
    line: int
    mangled: set = field(default_factory=set)
    lines: set = field(default_factory=set)  # (file, line) of definitions in headers


def declared_functions(source):
    """The public functions of all headers, by clang's name for each."""
    from clang import cindex

    kinds = cindex.CursorKind
    functions = (kinds.FUNCTION_DECL, kinds.CXX_METHOD, kinds.CONSTRUCTOR, kinds.DESTRUCTOR,
                 kinds.CONVERSION_FUNCTION, kinds.FUNCTION_TEMPLATE)
    outer = (kinds.NAMESPACE, kinds.CLASS_DECL, kinds.STRUCT_DECL, kinds.CLASS_TEMPLATE,
             kinds.CLASS_TEMPLATE_PARTIAL_SPECIALIZATION, kinds.LINKAGE_SPEC,
             kinds.UNEXPOSED_DECL, kinds.FRIEND_DECL)
    include = source / "include"
    headers = sorted([*include.glob("*.h"), *include.glob("weir/**/*.hpp")])
    # A header for other people's library is left out where that is not installed, as its test is.
    text = "".join(f'#include "{each.relative_to(include)}"\n' for each in headers
                   if each.name != "cuda_mr.hpp")
    unit = cindex.Index.create().parse(
        "all.cpp", args=["-xc++", "-std=c++20", f"-I{include}"], unsaved_files=[("all.cpp", text)],
        options=cindex.TranslationUnit.PARSE_INCOMPLETE)
    errors = [each for each in unit.diagnostics if each.severity >= cindex.Diagnostic.Error]
    if errors:
        sys.exit(f"the headers cannot be read: {errors[0]}")

    found = {}

    def has_counter(cursor):
        if cursor.kind != kinds.FUNCTION_TEMPLATE and cursor.is_pure_virtual_method():
            return False
        words = [token.spelling for token in cursor.get_tokens()]
        if "consteval" in words:
            return False
        body = words.index("{") if "{" in words else len(words)
        return not any(words[i] == "=" and words[i + 1] in ("default", "delete")
                       for i in range(max(0, body - 3), len(words) - 1))

    def visit(cursor, scope, is_detail):
        for child in cursor.get_children():
            if child.location.file is None:
                continue
            file = os.path.realpath(child.location.file.name)
            if not file.startswith(f"{include}/"):
                continue
            if child.kind in functions:
                add(child, file, scope, is_detail)
            elif child.kind in outer and child.access_specifier != cindex.AccessSpecifier.PRIVATE:
                own = child.spelling if child.kind != kinds.UNEXPOSED_DECL else ""
                visit(child, scope + [own] if own and own != "v0" else scope,
                      is_detail or own == "detail")

    def add(cursor, file, scope, is_detail):
        if is_detail or cursor.access_specifier == cindex.AccessSpecifier.PRIVATE:
            return
        known = found.get(cursor.canonical.get_usr())
        if known is None:
            if not has_counter(cursor):
                return
            name = "::".join([*scope, cursor.displayname])
            known = Function(name, os.path.relpath(file, source), cursor.location.line)
            found[cursor.canonical.get_usr()] = known
        if cursor.mangled_name:
            known.mangled |= all_names(cursor.mangled_name)
        if cursor.is_definition():
            known.lines.add((os.path.relpath(file, source), cursor.location.line))

    visit(unit.cursor, [], False)
    return list(found.values())


def all_names(mangled):
    """Constructors and destructors have several names; which one is emitted, nobody says."""
    names = {mangled}
    for kind in ("C", "D"):
        for number in "012":
            names |= {re.sub(rf"(?<=[a-z0-9_]){kind}[012](?=E)", kind + number, each)
                      for each in list(names)}
    return names


# --- What was called ------------------------------------------------------------------------------

def read_counters(arguments):
    """The functions and lines of one object: (called names, called lines, counts by file and line)."""
    counters, source = arguments
    done = subprocess.run(["gcov", "--json-format", "--stdout", counters.name], cwd=counters.parent,
                          capture_output=True)
    names, lines = set(), set()
    counts = collections.defaultdict(dict)
    for text in done.stdout.splitlines():
        if not text.startswith(b"{"):
            continue
        report = json.loads(text)
        for entry in report["files"]:
            path = os.path.realpath(os.path.join(report["current_working_directory"], entry["file"]))
            if not path.startswith(f"{source}/"):
                continue
            path = os.path.relpath(path, source)
            for each in entry["functions"]:
                if each["execution_count"] > 0:
                    names.add(each["name"])
                    lines.add((path, each["start_line"]))
            for each in entry["lines"]:
                known = counts[path]
                known[each["line_number"]] = known.get(each["line_number"], 0) or each["count"] > 0
    return names, lines, counts


def called_functions(source, build):
    names, lines = set(), set()
    counts = collections.defaultdict(dict)
    files = sorted(build.rglob("*.gcda"))
    if not files:
        sys.exit(f"{build}: no test has run there, or it was not built with --coverage")
    with concurrent.futures.ProcessPoolExecutor() as pool:
        for some_names, some_lines, some_counts in pool.map(
                read_counters, [(each, source) for each in files], chunksize=4):
            names |= some_names
            lines |= some_lines
            for path, by_line in some_counts.items():
                for line, is_run in by_line.items():
                    counts[path][line] = counts[path].get(line, False) or is_run
    return names, lines, counts


# --- Python -----------------------------------------------------------------------------------------

def python_functions(source):
    for file in sorted((source / "python/weir").rglob("*.py")):
        path = os.path.relpath(file, source)

        def visit(node, scope):
            for child in node.body:
                if not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                    continue
                if child.name.startswith("_"):
                    continue
                if isinstance(child, ast.ClassDef):
                    yield from visit(child, [*scope, child.name])
                else:
                    first = min(each.lineno for each in [child, *child.decorator_list])
                    yield Function(".".join([*scope, child.name]), path, child.lineno,
                                   lines={(path, first)})

        yield from visit(ast.parse(file.read_text()), [file.stem])


def python_calls(build):
    calls = set()
    for file in build.glob("python_calls/*.json"):
        calls |= {(path, line) for path, line in json.loads(file.read_text())}
    return calls


# --- Telling ----------------------------------------------------------------------------------------

def by_component(counts):
    """Lines and lines that ran, of each component of src/."""
    components = collections.defaultdict(lambda: [0, 0])
    for path, by_line in counts.items():
        parts = Path(path).parts
        if parts[0] != "src" or len(parts) < 3:
            continue
        components[parts[1]][0] += len(by_line)
        components[parts[1]][1] += sum(by_line.values())
    return components


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=lambda text: Path(text).resolve())
    parser.add_argument("build", type=lambda text: Path(text).resolve())
    parser.add_argument("--out", type=Path, help="BUILD_FOLDER/uncalled.txt if not given")
    arguments = parser.parse_args()

    functions = declared_functions(arguments.source)
    names, lines, counts = called_functions(arguments.source, arguments.build)
    uncalled = [each for each in functions if not each.mangled & names and not each.lines & lines]

    from_python = list(python_functions(arguments.source))
    calls = python_calls(arguments.build)
    uncalled += [each for each in from_python if not each.lines & calls]

    uncalled.sort(key=lambda each: (each.file, each.line))
    listing = "".join(f"{each.file}:{each.line} {each.name}\n" for each in uncalled)
    out = arguments.out or arguments.build / "uncalled.txt"
    out.write_text(listing)
    print(listing, end="")
    print(f"{len(uncalled)} of {len(functions) + len(from_python)} public functions were not called")
    print("lines that ran:")
    for component, (all_lines, run) in sorted(by_component(counts).items()):
        print(f"  {component:<12} {run:6} of {all_lines:6}  {100 * run / all_lines:5.1f} %")
    return 1 if uncalled else 0


if __name__ == "__main__":
    sys.exit(main())
