#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the links, anchors and paths that the documents name.

    check_links.py ROOT

A link to a file must lead to a file of the tree, and its anchor to a heading of that file. A path in `code` that
begins with a folder of the tree must exist; `*` in it is a pattern, and `{a,b}` a list. Links to the web are not followed.
Every document below docs/ must be reachable from docs/README.md, and every decision must be in its index with a status.
"""

import re
import sys
from pathlib import Path

FOLDERS = ("src", "include", "tests", "docs", "tools", "plugins", "python", "examples", "benchmarks", "cmake", "viewer", "traces")
# Paths of a build, of an installation or of another project that begin like ours.
OTHERS = ("include/weir/driver/table.inc", "torch/include")
LINK = re.compile(r"(?<!!)\[(?:[^\]\[]|\[[^\]]*\])*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"`([^`\n]+)`")
# Sources and headers are also named as includes name them: `heap/free.cpp`, `weir/pool/bin_pool.hpp`.
INCLUDE = re.compile(r"(?:[a-z]\w*/)+[\w*{},]+\.(?:cpp|hpp|def|\*)")
PATH = re.compile(r"(?:%s)/[\w./*{},+-]*[\w*}]" % "|".join(FOLDERS))
STATUS = re.compile(r"^\*\*Status\.?\*\*:? (Accepted|Superseded by \[\d{4}\])", re.M)


def text_of(path):
    """The document with fenced blocks replaced by empty lines, so that line numbers stay."""
    lines, inside = [], False
    for line in path.read_text().split("\n"):
        fence = re.match(r"\s*```", line)
        lines.append("" if fence or inside else line)
        inside = inside != bool(fence)
    return "\n".join(lines)


def anchors(text):
    """The anchors that GitHub makes of the headings."""
    found = {}
    for heading in re.findall(r"^#{1,6} +(.+?) *$", text, re.M):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        name = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        count = found.get(name, -1) + 1
        found[name] = count
        if count:
            found[f"{name}-{count}"] = 0
    return set(found)


def spellings(pattern):
    """The paths that `a/{b,c}.d` stands for."""
    braces = re.search(r"\{([^{}]*)\}", pattern)
    if not braces:
        return [pattern]
    return [each for part in braces[1].split(",")
            for each in spellings(pattern[:braces.start()] + part + pattern[braces.end():])]


def exists(root, pattern):
    if pattern.startswith(OTHERS):
        return True
    if pattern.startswith("weir/") or (root / "src" / pattern.split("/")[0]).is_dir():
        pattern = ("include/" if pattern.startswith("weir/") else "src/") + pattern
    return any(root.glob(pattern)) if "*" in pattern else (root / pattern).exists()


class Checker:
    def __init__(self, root):
        self.root = root.resolve()
        self.problems = []
        self.documents = [*sorted(self.root.glob("*.md")), *sorted((self.root / "docs").rglob("*.md")),
                          *sorted((self.root / "traces").glob("*.md"))]
        self.texts = {path: text_of(path) for path in self.documents}
        self.anchors = {path: anchors(text) for path, text in self.texts.items()}
        self.links = {path: set() for path in self.documents}

    def complain(self, path, text, position, what):
        line = text.count("\n", 0, position) + 1
        self.problems.append(f"{path.relative_to(self.root)}:{line}: {what}")

    def check_links(self, path):
        text = self.texts[path]
        for match in LINK.finditer(text):
            link = match[1] or match[2]
            if re.match(r"[a-z]+:", link):
                continue
            file, _, anchor = link.partition("#")
            target = (path.parent / file).resolve() if file else path
            if not target.exists():
                self.complain(path, text, match.start(), f"no such file: {link}")
            elif anchor and target in self.anchors and anchor not in self.anchors[target]:
                self.complain(path, text, match.start(), f"no such heading: {link}")
            elif target in self.links:
                self.links[path].add(target)

    def check_paths(self, path):
        text = self.texts[path]
        for code in CODE.finditer(text):
            for match in [*PATH.finditer(code[1]), *filter(self.is_source, INCLUDE.finditer(code[1]))]:
                before = code[1][:match.start()][-1:]
                if before and before not in " =\"'(":
                    continue
                for each in spellings(match[0]):
                    if not exists(self.root, each):
                        self.complain(path, text, code.start(), f"no such path: {each}")

    def is_source(self, match):
        first = match[0].split("/")[0]
        return first == "weir" or (first not in FOLDERS and (self.root / "src" / first).is_dir())

    def check_map(self):
        start = self.root / "docs/README.md"
        if start not in self.links:
            return
        reached, waiting = {start}, [start]
        while waiting:
            for target in self.links[waiting.pop()] - reached:
                reached.add(target)
                waiting.append(target)
        for path in self.documents:
            if (self.root / "docs") in path.parents and path not in reached:
                self.complain(path, "", 0, "cannot be reached from docs/README.md")

    def check_decisions(self):
        index = self.root / "docs/decisions/README.md"
        for path in sorted((self.root / "docs/decisions").glob("[0-9]*.md")):
            if not STATUS.search(self.texts[path]):
                self.complain(path, "", 0, "has no status")
            if path not in self.links.get(index, set()):
                self.complain(path, "", 0, "is not in docs/decisions/README.md")

    def run(self):
        for path in self.documents:
            self.check_links(path)
            if path.name != "CHANGELOG.md":  # names what was there at the time
                self.check_paths(path)
        self.check_map()
        self.check_decisions()
        return self.problems


def main():
    checker = Checker(Path(sys.argv[1]))
    problems = checker.run()
    print("\n".join(problems + [f"{len(checker.documents)} documents, {len(problems)} wrong"]))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
