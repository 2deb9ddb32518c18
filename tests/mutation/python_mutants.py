#!/usr/bin/env python3
"""Plants small faults in the Python package, one at a time, and says whether its tests notice.

    python_mutants.py list
    python_mutants.py run --library LIBWEIR.SO [--count N] [--seed S] [--only ID...] [--jobs J]

`list` prints every fault as one JSON list. `run` first sees which lines each test reaches, then chooses
among the faults on such lines, runs for each the tests that reach it, and prints a JSON line for each.
Those of equivalent-python.json, which change nothing that could be seen, are not chosen.
"""

import argparse
import concurrent.futures
import hashlib
import json
import os
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

from python_operators import mutants_of

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
# What the package and its tests need of the tree; see SOURCES of the package's backend.
COPIED = ("CMakeLists.txt", "LICENSE", "README.md", "pyproject.toml", "cmake", "include", "plugins",
          "python", "src")
IMPORT = "import"  # as in reach.py


def all_mutants():
    out = []
    for folder in ("python/weir", "python/backend"):
        for path in sorted((ROOT / folder).glob("*.py")):
            out += mutants_of(str(path.relative_to(ROOT)), path.read_bytes())
    return out


def public(mutant):
    return {name: getattr(mutant, name) for name in ("id", "file", "line", "operator", "before", "after")}


def equivalents():
    path = HERE / "equivalent-python.json"
    return json.loads(path.read_text()) if path.exists() else {}


def choose(mutants, count, seed):
    """`count` of them, of each file its share. By a hash of their names, so that others do not matter:
    the same seed chooses much the same faults after an edit elsewhere."""
    by_file = defaultdict(list)
    for mutant in mutants:
        rank = hashlib.sha256(f"{seed}:{mutant.id}".encode()).hexdigest()
        by_file[mutant.file].append((rank, mutant))
    count = min(count, len(mutants))
    shares = {file: count * len(found) / len(mutants) for file, found in by_file.items()}
    taken = {file: int(share) for file, share in shares.items()}
    left_over = sorted(shares, key=lambda file: (taken[file] - shares[file], file))
    for file in left_over[:count - sum(taken.values())]:
        taken[file] += 1
    return [mutant for file in sorted(by_file)
            for _, mutant in sorted(by_file[file], key=lambda each: each[0])[:taken[file]]]


class Copy:
    """A tree of its own in which faults are planted: tests find the package beside them."""

    def __init__(self, folder, library):
        self.root = Path(folder)
        self.root.mkdir()
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, self.root / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy2(source, self.root / name)
        self.environment = {**os.environ, "WEIR_LIBRARY": str(library), "WEIR_RUNTIME": "sim",
                            "PYTHONDONTWRITEBYTECODE": "1"}
        self.environment.pop("PYTHONPATH", None)

    def test(self, script, tests, limit, **environment):
        """Runs some tests of a script, up to the first that fails; returns that one's name, or None."""
        with tempfile.TemporaryFile() as output:
            process = subprocess.Popen([sys.executable, str(self.root / "python/tests" / script), "-f", *tests],
                                       cwd=self.root, stdout=output, stderr=output, start_new_session=True,
                                       env={**self.environment, **environment})
            ended, end = False, time.monotonic() + limit
            while not ended and time.monotonic() < end:
                time.sleep(0.02)
                ended = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None
            os.killpg(process.pid, 9)  # it, and what it left running; nobody else has its number yet
            code = process.wait()
            output.seek(0)
            said = output.read().decode("utf-8", "replace")
        if not ended:
            raise TimeoutError(script)
        if code == 0:
            return None
        failed = re.search(r"^(?:FAIL|ERROR): (\w+) \((?:__main__\.)?(\w+)", said, re.M)
        return f"{script}:{failed[2]}.{failed[1]}" if failed else f"{script} ended with {code}"


class Reach:
    """Which tests reach which lines, and how long each takes."""

    def __init__(self, copy, folder):
        self.tests = defaultdict(set)   # (file, line): (script, test)
        self.seconds = {}               # (script, test): float
        shutil.copy(HERE / "reach.py", copy.root / "python/sitecustomize.py")
        for script in sorted((copy.root / "python/tests").glob("test_*.py")):
            notes = Path(folder) / script.name
            notes.mkdir()
            failed = copy.test(script.name, [], 600, REACH_FOLDER=str(notes),
                               PYTHONPATH=str(copy.root / "python"))
            if failed:
                raise SystemExit(f"without any fault: {failed}")
            for note in sorted(notes.iterdir()):
                for line in note.read_text().splitlines():
                    test, file, number = line.split("\t")
                    if file:
                        self.tests[f"python/{file}", int(number)].add((script.name, test))
                    else:
                        self.seconds[script.name, test] = float(number)
        (copy.root / "python/sitecustomize.py").unlink()

    def of(self, mutant):
        """The tests by script, the quickest script first."""
        by_script = defaultdict(set)
        for script, test in set().union(*(self.tests.get((mutant.file, line), set())
                                          for line in mutant.lines)):
            by_script[script].add(test)
        for script, tests in by_script.items():
            if IMPORT in tests:
                by_script[script] = {test for of, test in self.seconds if of == script}
        # The quickest first, tests as well as scripts.
        out = [(script, sorted(tests, key=lambda test: (self.seconds[script, test], test)),
                sum(self.seconds[script, test] for test in tests)) for script, tests in by_script.items()]
        return sorted(out, key=lambda each: each[2])


def try_out(mutant, copy, reach):
    path = copy.root / mutant.file
    source = path.read_bytes()
    path.write_bytes(mutant.plant(source))
    state, by = "survived", None
    try:
        for script, tests, seconds in reach.of(mutant):
            by = copy.test(script, tests, 15 + 5 * seconds)
            if by:
                state = "killed"
                break
    except TimeoutError as problem:
        state, by = "timeout", str(problem)
    finally:
        path.write_bytes(source)
    return {**public(mutant), "state": state, "by": by}


def run(arguments):
    mutants = all_mutants()
    excused = equivalents()
    for name in sorted(set(excused) - {mutant.id for mutant in mutants}):
        print(f"equivalent-python.json: there is no such fault any more: {name}", file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder:
        copies = queue.Queue()
        for number in range(arguments.jobs):
            copies.put(Copy(Path(folder) / f"copy{number}", arguments.library.resolve()))
        first = copies.get()
        reach = Reach(first, Path(folder))
        copies.put(first)
        if arguments.only:
            chosen = [mutant for mutant in mutants if mutant.id in arguments.only]
        else:
            chosen = choose([mutant for mutant in mutants if mutant.id not in excused and reach.of(mutant)],
                            arguments.count, arguments.seed)

        def one(mutant):
            copy = copies.get()
            try:
                return try_out(mutant, copy, reach)
            finally:
                copies.put(copy)

        with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
            for result in pool.map(one, chosen):
                print(json.dumps(result), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("list")
    runs = verbs.add_parser("run")
    runs.add_argument("--library", type=Path, required=True)
    runs.add_argument("--count", type=int, default=60)
    runs.add_argument("--seed", default="1")
    runs.add_argument("--only", nargs="+", metavar="ID")
    runs.add_argument("--jobs", type=int, default=1)
    arguments = parser.parse_args()
    if arguments.verb == "list":
        json.dump([public(mutant) for mutant in all_mutants()], sys.stdout, indent=1)
        print()
    else:
        run(arguments)


if __name__ == "__main__":
    main()
