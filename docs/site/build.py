#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds the documentation as a static site: ./dev docs.

    build.py ROOT OUTPUT [--without-reference]

The pages are README.md, docs/*.md and what they link to; their order is that of the tables in docs/README.md. A link to a
source file leads to a page with that file. The references of the C++ and C interfaces come from doxygen, that of the
Python package from python_reference.py. mkdocs builds the pages and their search. Nothing is loaded from the web.
"""

import argparse
import collections
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import doxygen_headers  # noqa: E402
import python_reference  # noqa: E402

# Documents beside docs/, and where they are in the site.
OUTSIDE = {"README.md": "index.md", "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md",
           "SECURITY.md": "security.md", "packaging/README.md": "packaging.md"}
LANGUAGES = {".cpp": "cpp", ".hpp": "cpp", ".h": "c", ".c": "c", ".def": "cpp", ".py": "python", ".cu": "cpp", ".json": "json"}
LINK = re.compile(r"(!?\[[^\]]*\]\()([^)\s]+)(\))")


class Site:
    """The pages that are to be built: from files of the tree to files in a folder that mkdocs reads."""

    def __init__(self, root, pages):
        self.root, self.pages = root, pages
        self.targets = {}  # of each document, by its path in the tree
        self.sources = {}  # source files and folders that pages link to

    def add_documents(self):
        for name, target in OUTSIDE.items():
            self.targets[name] = target
        for path in sorted((self.root / "docs").rglob("*.md")):
            name = path.relative_to(self.root).as_posix()
            self.targets[name] = {"docs/README.md": "map.md"}.get(name, name[len("docs/"):].replace("README.md", "index.md"))

    def source(self, name):
        """The page that shows a file or a folder of the tree."""
        if name.startswith("include"):
            return "reference/cxx/index.html"
        self.sources[name] = f"files/{name or 'tree'}.md"
        return self.sources[name]

    def resolve(self, page, link):
        """The link, as it has to be in the site, of a document of the tree."""
        address, anchor = (link.split("#", 1) + [""])[:2]
        if re.match(r"[a-z]+:", address) or not address:
            return link
        path = os.path.normpath(os.path.join(os.path.dirname(page), address))
        here = self.targets.get(page) or self.sources[page]
        if path in self.targets:
            target = self.targets[path]
        elif f"{path}/README.md" in self.targets:
            target = self.targets[f"{path}/README.md"]
        elif path.startswith("docs/") and not path.endswith(".md"):
            target = path[len("docs/"):]  # a picture
        elif (self.root / path).exists():
            target = self.source(path)
        else:
            raise SystemExit(f"{page}: {link} leads nowhere")
        found = os.path.relpath(target, os.path.dirname(here) or ".")
        return f"{found}#{anchor}" if anchor else found

    def write(self, name, text):
        target = self.pages / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def render(self, name):
        """A document with its links rewritten; what stands in code stays."""
        text = (self.root / name).read_text()
        parts = re.split(r"(^```.*?^```|`[^`\n]*`)", text, flags=re.M | re.S)
        code = [LINK.sub(lambda m: m[1] + self.resolve(name, m[2]) + m[3], part) if index % 2 == 0 else part
                for index, part in enumerate(parts)]
        # A link whose text is code was split above.
        text = re.sub(r"(\[`[^`\n]*`\]\()([^)\s]+)(\))", lambda m: m[1] + self.resolve_once(name, m[2]) + m[3], "".join(code))
        return self.as_python_markdown(text)

    def resolve_once(self, page, link):
        """For links that may have been rewritten already: those lead from the page in the site."""
        try:
            return self.resolve(page, link)
        except SystemExit:
            return link

    @staticmethod
    def as_python_markdown(text):
        """Lists directly below a paragraph need an empty line in mkdocs, and none elsewhere; and the anchors of headings are
        those that the links of the documents mean."""
        lines, out, in_code, anchors = text.split("\n"), [], False, {}
        for line in lines:
            if line.startswith("```"):
                in_code = not in_code
                line = re.sub(r"^(```\w+) .*", r"\1", line)  # words for tests/snippets
            heading = re.match(r"#{1,6} (.+)", line)
            if heading and not in_code:
                plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading[1]).replace("`", "")
                anchor = re.sub(r"[^\w\- ]", "", plain.strip().lower()).replace(" ", "-")
                anchors[anchor] = anchors.get(anchor, -1) + 1
                line += f" {{#{anchor}{f'-{anchors[anchor]}' if anchors[anchor] else ''}}}"
            starts = re.match(r"(?:[-*]|\d+\.) ", line)
            if not in_code and starts and out and out[-1].strip() and not re.match(r"\s*(?:[-*]|\d+\.) |\s", out[-1]):
                out.append("")
            out.append(line)
        return "\n".join(out)

    def write_all(self):
        self.add_documents()
        for name, target in self.targets.items():
            self.write(target, self.render(name))
        for path in (self.root / "docs").rglob("*"):
            if path.suffix in (".png", ".svg"):
                target = self.pages / path.relative_to(self.root / "docs")
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, target)
        written = set()
        while written != set(self.sources):
            for name in sorted(set(self.sources) - written):
                self.write_source(name)
                written.add(name)

    def write_source(self, name):
        path = self.root / name
        if path.is_dir():
            rows = []
            for each in sorted(path.iterdir()):
                if each.is_file() and each.suffix in LANGUAGES and name.startswith("examples"):
                    self.source(f"{name}/{each.name}")
                    rows.append(f"- [{each.name}]({os.path.basename(name)}/{each.name}.md)")
                else:
                    rows.append(f"- `{each.name}`")
            self.write(self.sources[name], f"# {name}\n\n" + "\n".join(rows) + "\n")
            return
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            text = "(not a text file)"
        if len(text) > 200_000:
            text = text[:200_000] + "\n... (cut)"
        self.write(self.sources[name], f"# {name}\n\n````{LANGUAGES.get(path.suffix, 'text')}\n{text}\n````\n")


def navigation(site, with_reference):
    """The order of the pages: the tables of docs/README.md."""
    sections, current = [], None
    named = {"map.md", "index.md"}
    for line in (site.root / "docs/README.md").read_text().splitlines():
        if line.startswith("## "):
            current = []
            sections.append({line[3:]: current})
        found = re.match(r"\| \[([^\]]+)\]\(([^)#]+)\)", line)
        if found and current is not None:
            target = site.targets.get(os.path.normpath(os.path.join("docs", found[2])))
            target = target or site.targets.get(os.path.normpath(os.path.join("docs", found[2], "README.md")))
            if target and target not in named:
                named.add(target)
                current.append(target)
    sections = [each for each in sections if next(iter(each.values()))]
    decisions = [target for name, target in site.targets.items() if name.startswith("docs/decisions/") and target not in named]
    measurements = [target for name, target in site.targets.items() if name.startswith("docs/measurements/") and target not in named]
    rest = sorted(set(site.targets.values()) - named - set(decisions) - set(measurements))
    for title, pages in (("Decisions", decisions), ("Measurements", measurements), ("More", rest)):
        if pages:
            sections.append({title: sorted(pages)})
    reference = ["reference/python.md"]
    if with_reference:
        reference.append({"C++ and C": "reference/cxx/index.html"})
    return [{"weir": "index.md"}, {"All pages": "map.md"}, {"API": reference}, *sections]


def run(command, **more):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, **more)
    if done.returncode != 0:
        sys.exit(f"{command[0]} failed:\n{done.stdout[-6000:]}{done.stderr[-6000:]}")
    return done.stdout + done.stderr


def build_reference(root, output):
    """Doxygen's pages. What it warns about ends the build: wrong comments, and more items without a comment in a header than
    undocumented.json has for it. That file may only shrink; a header that is not in it documents everything."""
    folder = output / "doxygen"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    headers = output / "headers/include"
    shutil.rmtree(headers, ignore_errors=True)
    doxygen_headers.copy_all(root / "include", headers)
    settings = (root / "docs/site/Doxyfile").read_text()
    settings += "".join(f"\n{name} = {value}\n" for name, value in {
        "OUTPUT_DIRECTORY": folder, "PROJECT_NUMBER": version(root), "INPUT": headers, "STRIP_FROM_PATH": headers,
        "STRIP_FROM_INC_PATH": headers, "INCLUDE_PATH": headers}.items())
    done = subprocess.run(["doxygen", "-"], input=settings, cwd=root, capture_output=True, text=True, check=False)
    said = [line for line in done.stderr.splitlines() if line.strip()]
    missing = collections.Counter()
    wrong = []
    for line in said:
        found = re.match(r".*?/include/(\S+?):\d+: warning: .* is not documented", line)
        if found:
            missing[found[1]] += 1
        elif "Internal inconsistency" not in line:  # doxygen 1.9.4 about specialisations of std::hash
            wrong.append(line)
    (output / "undocumented.json").write_text(json.dumps(dict(sorted(missing.items())), indent=1) + "\n")
    allowed = json.loads((root / "docs/site/undocumented.json").read_text())
    for header, count in sorted(missing.items()):
        if count > allowed.get(header, 0):
            wrong += [line for line in said if f"/include/{header}:" in line]
            wrong.append(f"{header}: {count} items without a comment, {allowed.get(header, 0)} are allowed")
    if done.returncode != 0 or wrong:
        sys.exit("doxygen:\n" + "\n".join(wrong[:200]))
    fewer = [header for header, count in allowed.items() if missing[header] < count]
    if fewer:
        print(f"{', '.join(fewer)}: fewer items without a comment than recorded; copy build/docs/undocumented.json to docs/site")
    return folder / "html"


def version(root):
    text = (root / "include/weir/base/version.hpp").read_text()
    return ".".join(re.search(rf"#define WEIR_VERSION_{part} (\d+)", text).group(1) for part in ("MAJOR", "MINOR", "PATCH"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--without-reference", action="store_true", help="leave out what doxygen makes")
    chosen = parser.parse_args()
    root, output = chosen.root.resolve(), chosen.output.resolve()
    pages = output / "pages"
    shutil.rmtree(pages, ignore_errors=True)
    site = Site(root, pages)
    site.write_all()
    site.write("reference/python.md", python_reference.page(root / "python/weir"))
    site.write("reference/cxx/index.html", "<!doctype html><title>The reference was left out</title>\n")
    shutil.copy(root / "docs/site/extra.css", pages / "extra.css")
    settings = {
        "site_name": f"weir {version(root)}", "docs_dir": str(pages), "site_dir": str(output / "site"), "use_directory_urls": False,
        "theme": {"name": "mkdocs", "highlightjs": False, "nav_style": "dark"}, "extra_css": ["extra.css"],
        "plugins": [{"search": {"lang": "en"}}], "strict": True, "nav": navigation(site, not chosen.without_reference),
        "markdown_extensions": ["tables", "fenced_code", "attr_list", "sane_lists", {"toc": {"permalink": False}}],
        "validation": {},
    }
    del settings["validation"]
    (output / "mkdocs.yml").write_text(json.dumps(settings, indent=1))  # JSON is YAML
    run(["mkdocs", "build", "--quiet", "--clean", "--config-file", output / "mkdocs.yml"])
    if not chosen.without_reference:
        shutil.copytree(build_reference(root, output), output / "site/reference/cxx", dirs_exist_ok=True)
    count = sum(1 for path in (output / "site").rglob("*.html"))
    print(f"{output / 'site/index.html'}: {count} pages")


if __name__ == "__main__":
    main()
