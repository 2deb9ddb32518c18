#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""docs/languages.md shows each public function of C++ beside its forms in C and Python.

    languages.py ROOT           fails if a public function of C++ has no row, or a row no function
    languages.py ROOT --write   adds rows with "?" for new functions, and removes those that are gone

Every "?" is a question that somebody has to answer before the test passes: the name in that language, or "–" and, in the
last column, why there is none. Names in a row must exist in weir.h and in python/weir.
"""

import ast
import re
import sys
from pathlib import Path

HEADERS = ("allocator", "growable", "device", "pool", "buffer", "resource", "observe", "share", "trace")
# For code that implements an interface of weir, or that only C++ has a use for.
LEFT_OUT = {"event_sink", "memory_source", "host_view", "device_span", "stream_allocator", "basic_cuda_resource",
            "cuda_mr_calls"}
HEAD = """# One interface in three languages

Each public function of C++ and its forms in C and Python. "–" says that a language has none; the last column says why
where that is not plain. `tests/docs/languages.py` checks this page: a function that is added to C++ needs a row here.

| C++ | C | Python | |
|---|---|---|---|
"""


def without_comments(text):
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    return re.sub(r"//[^\n]*", "", text)


def functions_of(text):
    """The public member functions of the classes in a header, and its free functions, without operators."""
    text = re.sub(r"^\s*#(?:.*\\\n)*.*$", "", without_comments(text), flags=re.M)
    names, stack, statement = [], [], ""
    for piece in re.split(r"([{};])", text):
        if piece == "{":
            head = re.sub(r"\btemplate\s*<(?:[^<>]|<[^<>]*>)*>\s*(?:requires\s*\([^{]*?\)\s)?", "", " ".join(statement.split()))
            kind = re.search(r"\b(class|struct|enum(?: class)?|namespace)\s+(?:WEIR_\w+(?:\([^)]*\))?\s+)?([\w:]*)", head)
            if "(" in head and not re.match(r"(template.*>\s*)?(class|struct|namespace)\b", head):
                names += named(head, stack)
                stack.append(("body", "", False))
            elif kind and kind[1] in ("class", "struct", "namespace"):
                stack.append((kind[1], kind[2], kind[1] != "class"))
            else:
                stack.append(("body", "", False))
            statement = ""
        elif piece == "}":
            if stack:
                stack.pop()
            statement = ""
        elif piece == ";":
            names += named(" ".join(statement.split()), stack)
            statement = ""
        else:
            for access, part in re.findall(r"(?:\b(public|private|protected)\s*:(?!:))|((?:(?!\b(?:public|private|protected)\s*:(?!:)).)+)",
                                           piece, re.S):
                if access and stack:
                    stack[-1] = (stack[-1][0], stack[-1][1], access == "public")
                    statement = ""
                else:
                    statement += part
    return names


def named(statement, stack):
    if any(kind == "body" for kind, _, _ in stack) or any(not public for _, _, public in stack):
        return []
    if any(name in ("detail", "heap", "pools", "buffers", "std") for kind, name, _ in stack if kind == "namespace"):
        return []
    if re.search(r"\b(friend|using|typedef|static_assert|operator|enum|requires)\b|=\s*delete|~", statement.split("(")[0] + statement[-12:]):
        return []
    if "cuda_mr_calls<" in statement or " get_property(" in statement:
        return []  # what cuda::mr asks for, in C++ alone
    if "=" in statement.split("(")[0]:
        return []  # a member with an initial value
    match = re.search(r"(\w+)\s*\(", re.sub(r"\[\[.*?\]\]|WEIR_THREAD_SAFETY\([^)]*\)|WEIR_API|explicit", "", statement))
    if not match or match[1] in ("noexcept", "decltype", "sizeof", "alignas", "if", "catch", "requires", "static_assert", "name",
                                  "to_string", "meaning"):
        return []
    owner = [name for kind, name, _ in stack if kind in ("class", "struct")]
    if owner and (match[1] == owner[-1] or owner[0] in LEFT_OUT or owner[0].endswith("_scope")):
        return []
    return ["::".join([*owner, match[1]])]


def public_functions(root):
    names = set()
    for folder in HEADERS:
        for header in sorted((root / "include/weir" / folder).glob("*.hpp")):
            names.update(functions_of(header.read_text()))
    return names


def rows_of(page):
    rows = {}
    for line in page.splitlines():
        cells = [cell.strip().strip("`") for cell in line.strip().strip("|").split("|")] if line.startswith("| `") else []
        if len(cells) >= 4:
            rows[cells[0]] = tuple(cells[1:4])
    return rows


def c_names(root):
    return set(re.findall(r"\b(weir_\w+)\(", without_comments((root / "include/weir.h").read_text())))


def python_names(root):
    names = set()
    for path in sorted((root / "python/weir").glob("_*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                names.add(node.name)
                for member in node.body:
                    if isinstance(member, ast.FunctionDef):
                        names.add(f"{node.name}.{member.name}")
                    elif isinstance(member, (ast.AnnAssign, ast.Assign)):
                        targets = [member.target] if isinstance(member, ast.AnnAssign) else member.targets
                        names.update(f"{node.name}.{target.id}" for target in targets if isinstance(target, ast.Name))
            elif isinstance(node, ast.FunctionDef):
                names.add(node.name)
    return names


def write(root, page, rows, wanted):
    lines = [HEAD]
    for name in sorted(wanted):
        c, python, why = rows.get(name, ("?", "?", ""))
        quoted = ["–" if cell in ("–", "?") and cell == "–" else f"`{cell}`" if cell not in ("?", "–") else cell
                  for cell in (c, python)]
        lines.append(f"| `{name}` | {quoted[0]} | {quoted[1]} | {why} |\n")
    page.write_text("".join(lines))


def main():
    root = Path(sys.argv[1]).resolve()
    page = root / "docs/languages.md"
    rows = rows_of(page.read_text()) if page.exists() else {}
    wanted = public_functions(root)
    if sys.argv[2:] == ["--write"]:
        write(root, page, rows, wanted)
        return 0
    wrong = [f"{name}: no row; run tests/docs/languages.py . --write and answer its questions" for name in sorted(wanted - rows.keys())]
    wrong += [f"{name}: there is no such function" for name in sorted(rows.keys() - wanted)]
    c, python = c_names(root), python_names(root)
    for name, (in_c, in_python, _) in sorted(rows.items()):
        for cell, known, where in ((in_c, c, "weir.h"), (in_python, python, "python/weir")):
            if cell == "?":
                wrong.append(f"{name}: decide whether {where} has it")
            elif cell != "–" and cell not in known:
                wrong.append(f"{name}: {where} has no {cell}")
    print("\n".join(wrong) or f"{len(rows)} functions")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
