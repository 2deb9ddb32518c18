#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compiles every example in the public headers and the documents.

    snippets.py --root . --cxx g++ --cc gcc --scratch build/snippets

An example is a run of indented lines in the comment at the head of a header (`//   `) or in a comment of
documentation (`///   `), if there is a `;` in it, or a block of ```cpp or ```c in README.md and docs. It becomes the
body of a function; prelude.hpp declares what examples use but do not show. A block with a main() is a program of its
own. A second word after the language exempts a block:

    ```cpp example      a copy of one of the programs in examples/, which tests/tools/test_documents.py compares
    ```cpp no-compile   a fragment that cannot compile, such as a declaration with parts left out

With --library, every example of C++ that uses streams also runs, on a simulated machine: a race or another hazard
fails it. running.hpp defines for this what prelude.hpp declares; launch() is a kernel that writes all memory it is given.

All examples are one source as long as nothing is wrong; then those that the compiler complains about are compiled
alone, so that an example is blamed for its own mistakes only.
"""

import argparse
import concurrent.futures
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
WARNINGS = ["-Wall", "-Wextra", "-Werror", "-Wno-unused-variable", "-Wno-unused-but-set-variable"]
EXEMPT = ("example", "no-compile")
# Headers that need those of another project, and how an include names one of them.
NEEDS = {"include/weir/resource/cuda_mr.hpp": "cuda/memory_resource"}

# What is not run, and a word in it: two processes take part, or CCCL.
NOT_RUN = (("docs/sharing.md", "link"), ("docs/pools.md", "import_descriptor"),
           ("include/weir/resource/cuda_mr.hpp", "cuda_resource"))


@dataclass(frozen=True)
class Example:
    path: str  # relative to the root
    line: int  # of its first line
    language: str  # c or cpp
    code: str

    @property
    def last_line(self):
        return self.line + self.code.count("\n")

    @property
    def is_program(self):
        return re.search(r"^int main\(", self.code, re.M) is not None

    def __str__(self):
        return f"{self.path}:{self.line}"

    def runs(self):
        """Whether it is run: it uses streams, and needs no second process."""
        return self.language == "cpp" and "stream" in self.code and not any(
            self.path == path and word in self.code for path, word in NOT_RUN)


class Malformed(Exception):
    """A document that cannot be read; the text names file and line."""


# --- Finding --------------------------------------------------------------------------------------


def header_examples(path, text):
    """Runs of indented comment lines; an empty comment line does not end a run."""
    run, runs = [], []
    at_head = True
    for number, line in enumerate(text.split("\n"), 1):
        at_head = at_head and line.startswith("//")
        comment = re.match(r"//(?!/)(.*)" if at_head else r"\s*///(.*)", line)
        content = comment[1] if comment else None
        if content is not None and content.startswith("   "):
            run.append((number, content[3:]))
        elif content is not None and not content.strip() and run:
            run.append((number, ""))
        else:
            runs.append(run)
            run = []
    runs.append(run)
    examples = []
    for run in runs:
        code = "\n".join(content for _, content in run).rstrip()
        if ";" in code:
            examples.append(Example(path, run[0][0], "cpp", code))
    return examples


def document_examples(path, text):
    """The fenced blocks in C and C++."""
    examples, block, fence, begin = [], None, None, 0
    for number, line in enumerate(text.split("\n"), 1):
        mark = re.match(r"\s*```\s*(.*?)\s*$", line)
        if mark and fence is None:
            fence, block, begin = mark[1].split(), [], number + 1
        elif mark:
            if fence[:1] in (["c"], ["cpp"]):
                if len(fence) > 2 or not set(fence[1:]) <= set(EXEMPT):
                    raise Malformed(f"{path}:{begin - 1}: unknown words after ```{fence[0]}: {' '.join(fence[1:])}")
                if len(fence) == 1:
                    examples.append(Example(path, begin, fence[0], "\n".join(block)))
            fence = None
        elif fence is not None:
            block.append(line)
    if fence is not None:
        raise Malformed(f"{path}:{begin - 1}: the block does not end")
    return examples


def find_examples(root):
    examples = []
    for file in sorted((root / "include").rglob("*.hpp")):
        path = file.relative_to(root).as_posix()
        examples += header_examples(path, file.read_text())
    for file in [root / "README.md", *sorted((root / "docs").rglob("*.md"))]:
        if file.exists():
            examples += document_examples(file.relative_to(root).as_posix(), file.read_text())
    return examples


# --- Compiling ------------------------------------------------------------------------------------


def running(examples):
    """A program that runs the example whose number it is given."""
    text = wrap(examples).replace('#include "prelude.hpp"', '#include "running.hpp"')
    text = text.replace("weir::runtime::open()", "snippets::open()")
    cases = "\n".join(f"  if (number == {index}) snippets::example_{index}();" for index in range(len(examples)))
    return (f"{text}\nint main(int, char** arguments) {{\n  const int number = std::atoi(arguments[1]);\n{cases}\n"
            "  return snippets::finish();\n}\n")


def wrap(examples):
    """One source of all these examples; the compiler sees each where it stands."""
    includes, parts = [], []
    prelude = '#include "prelude.h"' if examples[0].language == "c" else '#include "prelude.hpp"'
    for index, example in enumerate(examples):
        if example.path.startswith("include/"):
            includes.append(f'#include "{example.path.removeprefix("include/")}"')
        body = []
        for line in example.code.split("\n"):
            if line.startswith("#include"):
                includes.append(line)
                line = ""
            body.append(line)
        code = f'#line {example.line} "{example.path}"\n' + "\n".join(body)
        if example.is_program:
            parts.append(code)
        elif example.language == "c":
            parts.append(f"void example_{index}(void);\nvoid example_{index}(void) {{\n{code}\n}}")
        else:
            parts.append(f"namespace snippets {{\nvoid example_{index}() {{\n{code}\n}}\n}}")
    return "\n".join([prelude, *dict.fromkeys(includes), *parts]) + "\n"


class Compiler:
    def __init__(self, options):
        self.root = options.root
        self.scratch = options.scratch
        self.commands = {"cpp": [options.cxx, "-std=c++20"], "c": [options.cc, "-std=c11"]}
        self.flags = [*WARNINGS, "-fsyntax-only", f"-I{self.root / 'include'}", f"-I{options.prelude}"]
        for folder in options.system_include:
            self.flags += ["-isystem", folder]
        self.scratch.mkdir(parents=True, exist_ok=True)

    def compile(self, examples, name):
        """What the compiler has to say against them; empty if nothing."""
        language = examples[0].language
        source = self.scratch / f"{name}.{language}"
        source.write_text(wrap(examples))
        command = [*self.commands[language], *self.flags, str(source)]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", cwd=self.root, check=False)
        return "" if done.returncode == 0 else done.stderr

    def build(self, examples, library):
        """The program that runs them. Without optimisation: compiling it is most of the cost."""
        source, program = self.scratch / "running.cpp", self.scratch / "running"
        source.write_text(running(examples))
        flags = [flag for flag in self.flags if flag not in ("-fsyntax-only", "-Werror")]
        command = [*self.commands["cpp"], *flags, "-O0", "-w", str(source), str(library), "-ldl", "-pthread", "-o",
                   str(program)]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", cwd=self.root, check=False)
        if done.returncode != 0:
            raise Malformed(f"the examples do not run, because their program does not build:\n{done.stderr}")
        return program

    def can_include(self, header):
        source = self.scratch / "probe.cpp"
        source.write_text(f"#if !__has_include(<{header}>)\n#error absent\n#endif\n")
        command = [*self.commands["cpp"], *self.flags, str(source)]
        return subprocess.run(command, capture_output=True, cwd=self.root, check=False).returncode == 0


def blamed(examples, output):
    """The examples in which the compiler sees an error."""
    places = [(path, int(line)) for path, line in re.findall(r"^(\S+?):(\d+):(?:\d+:)? (?:fatal )?error", output, re.M)]
    return [each for each in examples
            if any(each.path == path and each.line <= line <= each.last_line for path, line in places)]


def compile_alone(compiler, examples):
    """(example, what is wrong with it) for those that do not compile by themselves."""
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        names = [f"alone_{index}" for index in range(len(examples))]
        outputs = list(pool.map(lambda each: compiler.compile([each[0]], each[1]), zip(examples, names)))
    return [(example, output) for example, output in zip(examples, outputs) if output]


def compile_together(compiler, examples, name):
    """(example, what is wrong with it), in as few runs of the compiler as will do."""
    if not examples:
        return []
    output = compiler.compile(examples, name)
    if not output:
        return []
    failed = compile_alone(compiler, blamed(examples, output)) or compile_alone(compiler, examples)
    return failed or [(examples[0], f"the examples do not compile together:\n{output}")]


def run(compiler, examples, library):
    """(example, what went wrong) for those that end with an error or leave a hazard."""
    program = compiler.build(examples, library)
    folder = compiler.scratch / "folder"
    folder.mkdir(exist_ok=True)
    failed = []
    for index, example in enumerate(examples):
        done = subprocess.run([str(program), str(index)], capture_output=True, text=True, errors="replace", cwd=folder,
                              check=False, timeout=60, env={**os.environ, "WEIR_PRINT_ERRORS": "on"})
        if done.returncode != 0 or "weir: " in done.stderr:
            failed.append((example, f"it ended with {done.returncode}\n{done.stderr}"))
    return failed


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--cxx", required=True)
    parser.add_argument("--cc", required=True)
    parser.add_argument("--scratch", type=Path, required=True)
    parser.add_argument("--prelude", type=Path, default=HERE, help="the folder of prelude.hpp and prelude.h")
    parser.add_argument("--library", type=Path, help="libweir, to run the examples that use streams")
    parser.add_argument("--system-include", action="append", default=[])
    options = parser.parse_args()
    options.root = options.root.resolve()
    options.scratch = options.scratch.resolve()

    try:
        examples = find_examples(options.root)
    except Malformed as problem:
        print(problem)
        return 1
    if not examples:
        print(f"{options.root} has no examples")
        return 1
    compiler = Compiler(options)
    for path, header in NEEDS.items():
        if any(each.path == path for each in examples) and not compiler.can_include(header):
            print(f"{path}: not compiled, <{header}> is not here")
            examples = [each for each in examples if each.path != path]
    programs = [each for each in examples if each.is_program]
    bodies = [each for each in examples if not each.is_program]
    failed = compile_together(compiler, [each for each in bodies if each.language == "cpp"], "all")
    failed += compile_together(compiler, [each for each in bodies if each.language == "c"], "all")
    failed += compile_alone(compiler, programs)
    for example, output in failed:
        print(f"{example}: the example does not compile:\n{output}")
    ran = [each for each in bodies if each.runs()]
    if options.library and not failed:
        try:
            wrong = run(compiler, ran, options.library.resolve())
        except Malformed as problem:
            print(problem)
            return 1
        for example, output in wrong:
            print(f"{example}: the example is wrong when it runs: {output}")
        failed += wrong
        print(f"{len(ran)} examples ran, {len(wrong)} of them wrong")
    print(f"{len(examples)} examples, {len(failed)} wrong")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
