#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plants faults in weir and counts which of them its tests notice.

    mutate.py [COMPONENT...] [--count N] [--seed S] [--only TEXT] [--jobs J]

A component is a folder of src/ with its public headers, or `tools`. For each, N faults are drawn by the seed among those on
lines that some test reaches. The faults of all components are compiled into one build, inactive (switch.hpp), and activated
one at a time. A first run of the tests says which test reaches which fault, and only those run against it: the component's
own first, then the contract suites.

Survivors are printed with file and line. A fault that changes nothing anyone could see is no survivor: equivalent.json
holds those that were judged so, each with its reason.
"""

import argparse
import collections
import concurrent.futures
import hashlib
import json
import multiprocessing
import os
import pickle
import random
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(ROOT / "cmake"))
import check_layers  # noqa: E402

PLANTED = 3  # times as many faults are compiled in as will be tried: some lines are reached by no test
PATIENCE = 40  # seconds of tests that a fault must survive
QUICK = 4  # seconds: so short a program runs whole, too
ROUNDS = 12  # of compiling, each without the faults that did not compile
# Test folders of a component, where they are not just its name; then suites that hold for several components.
OWN = {"heap": ["heap", "heap_bounds", "classic", "observe", "allocator_contract", "order"],
       "placement": ["placement", "classic", "heap_bounds", "allocator_contract"],
       "driver": ["driver", "contract"], "sim": ["sim", "contract", "hazards"],
       "device": ["device", "contract"], "observe": ["observe", "base", "heap", "trace"],
       "resources": ["resources", "resource_contract"],
       "report": ["report_page", "tools"], "tools": ["tools", "report_page"],
       "capi": ["capi", "python", "plugins"]}
CONTRACTS = ["allocator_contract", "resource_contract", "contract", "order"]
# No suite of a component: they look at the sources, at the installed package or at instruction counts.
LEFT_OUT = re.compile(r"gpu|package|fuzz|snippets|layers|golden|mutation|^python_package$")
# Faults there would be faults of tests.
NOT_SOURCES = re.compile(r"/weir\.h$|\.def$")


def say(text):
    print(text, flush=True)


def components_of_sources():
    """Files by component, in the order of the components."""
    problems = []
    components = {}
    for name, component in check_layers.read_components(ROOT, problems).items():
        files = [ROOT / "include" / each for each in component.headers]
        files += sorted((ROOT / "src" / name).glob("*.[ch]pp"))
        components[name] = [each for each in files if not NOT_SOURCES.search(str(each)) and each.suffix in (".cpp", ".hpp")]
    components["tools"] = sorted((ROOT / "tools").glob("**/*.[ch]pp"))
    return components


# --- Finding ---------------------------------------------------------------------------------------------


def find_in_unit(work):
    """The faults of some files that one translation unit includes."""
    source, arguments, files = work
    from clang import cindex
    from cpp_mutants import Finder
    unit = cindex.Index.create().parse(source, args=arguments)
    included = {str(Path(each.include.name).resolve()): each.include.name for each in unit.get_includes()}
    found = {}
    for file in files:
        name = source if file == source else included.get(file)
        if name is None:
            continue
        finder = Finder(Path(file), str(Path(file).relative_to(ROOT)), unit)
        finder.path = name  # headers are reached through the links of their component
        found[file] = finder.find()
    return found


class Database:
    """How each source is compiled, from a configured tree that is never built."""

    def __init__(self, folder):
        subprocess.run(["cmake", "--preset", "tidy"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        self.commands = {}
        for entry in json.loads((folder / "compile_commands.json").read_text()):
            words = shlex.split(entry["command"])[1:]
            kept = [each for each in words if each.startswith(("-I", "-D", "-std", "-isystem"))]
            for index, word in enumerate(words):
                if word == "-isystem":
                    kept += [word, words[index + 1]]
            self.commands[entry["file"]] = [each for each in kept if each != "-isystem"] + ["-fparse-all-comments"]


def find_all(component, files, database, jobs, folder):
    """Every fault of a component, kept until one of its files changes."""
    state = hashlib.sha256()
    for file in [*files, HERE / "cpp_mutants.py"]:
        state.update(file.read_bytes())
    kept = folder / "found" / f"{component}-{state.hexdigest()[:16]}.pickle"
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_bytes(pickle.dumps(find_in_component(component, files, database, jobs)))
    return pickle.loads(kept.read_bytes())


def find_in_component(component, files, database, jobs):
    """A header is read in the first source that includes it, most likely one of its component."""
    sources = [str(each) for each in files if str(each) in database.commands]
    headers = [str(each) for each in files if each.suffix == ".hpp"]
    if not sources:
        sources = [each for each in database.commands if f"/tests/{component}/" in each]
    work = [(source, database.commands[source], [source] + headers) for source in sources]
    found = {}
    with multiprocessing.Pool(jobs) as pool:
        for part in pool.imap(find_in_unit, work):
            for file, mutants in part.items():
                if file in map(str, files) and file not in found and mutants:
                    found[file] = mutants
    return [each for file in sorted(found) for each in found[file]]


def draw(mutants, count, seed, taken):
    """`count` of them, every operator in turn, so that none drowns the others."""
    from cpp_mutants import fits
    rng = random.Random(seed)
    piles = collections.defaultdict(list)
    for mutant in sorted(mutants, key=lambda each: each.id):
        piles[mutant.operator].append(mutant)
    for operator in sorted(piles):
        rng.shuffle(piles[operator])
    chosen, edits = [], collections.defaultdict(list)
    while len(chosen) < count and any(piles.values()):
        for operator in sorted(piles):
            while piles[operator]:
                mutant = piles[operator].pop()
                if mutant.number not in taken and fits(mutant, edits[mutant.file]):
                    taken.add(mutant.number)
                    edits[mutant.file] += mutant.edits
                    chosen.append(mutant)
                    break
    return chosen[:count]


# --- Building --------------------------------------------------------------------------------------------


class Tree:
    """A copy of the sources with the faults in it, and its build. It stays between runs."""

    def __init__(self, folder, jobs):
        self.source, self.build, self.jobs = folder / "tree", folder / "build", jobs
        self.source.mkdir(parents=True, exist_ok=True)
        self.said = ""  # what the last build printed

    def write(self, planted):
        """Copies what changed; `planted` are the texts of files with faults."""
        listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, check=True,
                                capture_output=True, text=True).stdout.splitlines()
        wanted = {each for each in listed if (ROOT / each).is_file()}
        for old in self.source.rglob("*"):
            if old.is_file() and str(old.relative_to(self.source)) not in wanted:
                old.unlink()
        for name in wanted:
            text = planted.get(name) or (ROOT / name).read_bytes()
            file = self.source / name
            if not file.exists() or file.read_bytes() != text:
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(text)
                file.chmod((ROOT / name).stat().st_mode)

    def configure(self):
        if (self.build / "build.ninja").exists():
            return
        subprocess.run(
            ["cmake", "-S", self.source, "-B", self.build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Mutate",
             "-DWEIR_WERROR=OFF", "-DWEIR_DEVELOPER=ON", "-DWEIR_MUTANTS=ON", "-DWEIR_UNITY=OFF",
             f"-DCMAKE_CXX_FLAGS=-O1 -w -include {self.source}/tests/mutation/switch.hpp",
             "-DCMAKE_C_FLAGS=-O1 -w"], check=True, stdout=subprocess.DEVNULL)

    def make(self, targets):
        """Builds, and returns the lines of planted files that stood in the way, by file."""
        made = subprocess.run(["ninja", "-C", self.build, "-k", "0", "-j", str(self.jobs), *targets],
                              capture_output=True, text=True, errors="replace", check=False)
        self.said = made.stdout
        if made.returncode == 0:
            return {}
        bad = collections.defaultdict(set)
        for file, line in re.findall(r"([^\s:]+\.[ch]pp):(\d+):\d+:\s+(?:fatal )?(?:error|  required from|required from|"
                                     r"in .constexpr. expansion)", made.stdout):
            path = Path(os.path.normpath(self.build / file)).resolve()
            if path.is_relative_to(self.source.resolve()):
                bad[str(path.relative_to(self.source.resolve()))].add(int(line))
        if not bad:
            sys.exit("mutate.py: the planted tree does not build:\n" + made.stdout[-4000:])
        return bad


def without_nearest(mutants, newlines, lines):
    """The compiler complained in the midst of a long expression, or where a macro begins: the fault is around it or
    follows."""
    bad = set()
    for line in lines:
        near = {(0 if min(each.lines(newlines)) <= line else min(each.lines(newlines)) - line): each
                for each in mutants if max(each.lines(newlines)) >= line}
        if near:
            bad.add(near[min(near)].id)
    return [each for each in mutants if each.id not in bad]


def plant_and_build(tree, planted, stages):
    """Compiles; faults that do not compile are taken out. Stage by stage, so that one in a header stops the few files
    of its own component and not all that include it."""
    from cpp_mutants import plant
    stages = list(stages)
    for _ in range(ROUNDS * len(stages)):
        texts = {file: plant((ROOT / file).read_bytes(), mutants) for file, mutants in planted.items()}
        tree.write(texts)
        tree.configure()
        bad = tree.make(stages[0])
        if not bad:
            stages.pop(0)
            if not stages:
                return
            continue
        dropped = 0
        for file, lines in bad.items():
            if file not in planted:
                continue
            text = (ROOT / file).read_bytes()
            newlines = [at for at, byte in enumerate(text) if byte == 10]
            kept = [each for each in planted[file] if not each.lines(newlines) & lines]
            if len(kept) == len(planted[file]):
                kept = without_nearest(planted[file], newlines, lines)
            dropped += len(planted[file]) - len(kept)
            planted[file] = kept
        say(f"  {dropped} faults did not compile and are left out")
        if not dropped:
            sys.exit("mutate.py: the planted tree does not build:\n" + tree.said[-6000:])
    sys.exit("mutate.py: the planted tree does not build")


# --- Running ---------------------------------------------------------------------------------------------


class Program:
    """A test as ctest knows it, and what of it comes by which fault."""

    def __init__(self, entry, root):
        properties = {each["name"]: each["value"] for each in entry.get("properties", [])}
        self.name = entry["name"]
        self.command = entry.get("command", [])
        self.folder = properties.get("WORKING_DIRECTORY", str(root))
        self.environment = dict(each.split("=", 1) for each in properties.get("ENVIRONMENT", []))
        self.labels = properties.get("LABELS", [])
        self.component = ""
        for part in [*self.command, self.folder]:
            for pattern in (r"/(?:tree|build)/tests/(\w+)", r"/tree/(python|viewer|examples)/", r"/build/(examples)/"):
                match = re.search(pattern, part)
                if match and not self.component:
                    self.component = match[1]
        self.tests = {}  # name -> (seconds, numbers), where it is a GoogleTest program
        self.seconds, self.numbers = 0.0, set()
        self.passes = False  # as a whole, without any fault
        self.problem = ""

    def run(self, more, limit, *arguments):
        """The exit status, None when it took too long, and what it printed."""
        process = subprocess.Popen([*self.command, *arguments], cwd=self.folder, stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, process_group=0,
                                   env={**os.environ, **self.environment, **more}, text=True, errors="replace")
        try:
            said, _ = process.communicate(timeout=limit)
            return process.returncode, said
        except subprocess.TimeoutExpired:
            return None, ""
        finally:
            try:  # children that a test left behind
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()
            process.stdout.close()

    def reach(self, folder):
        """Runs it once, unharmed, and learns what it comes by."""
        reached, tests = folder / f"{self.name}.reached", folder / f"{self.name}.tests"
        reached.write_bytes(bytes(1 << 20))
        tests.unlink(missing_ok=True)
        began = time.monotonic()
        status, _ = self.run({"WEIR_MUTANTS_REACHED": str(reached), "WEIR_MUTANTS_TESTS": str(tests)}, 600)
        self.seconds = time.monotonic() - began
        self.numbers = {number for number, byte in enumerate(reached.read_bytes()) if byte}
        reached.unlink()
        if tests.exists():
            for line in tests.read_text().splitlines():
                name, milliseconds, state, *numbers = line.split("\t")
                if state == "passed":
                    self.tests[name] = (int(milliseconds) / 1000, set(map(int, numbers)))
        self.passes = status == 0
        if not self.passes and not self.tests:
            self.problem = f"{self.name} fails without any fault"
            self.numbers = set()
        return self


def blame(mutant, program, cost, *arguments):
    """What of the program fails under the fault, or None."""
    status, said = program.run({"WEIR_MUTANT": str(mutant["number"])}, 15 + 6 * cost, *arguments)
    if status == 0:
        return None
    if status is None:
        return f"{program.name} (too long)"
    failed = re.search(r"\[  FAILED  \] (\S+)", said) if program.tests else None
    return f"{program.name} {failed[1]}" if failed else program.name


def notice(mutant, programs):
    """The test that notices the fault, or None; programs in the order in which they are asked."""
    left = PATIENCE
    whole = ["--gtest_brief=1", "--gtest_fail_fast"]
    for program in programs:
        chosen = []
        if program.tests:
            names = sorted(((seconds, name) for name, (seconds, numbers) in program.tests.items()
                            if mutant["number"] in numbers))
            cost = 0.0
            for seconds, name in names:
                if cost + seconds > left and chosen:
                    break
                chosen.append(name)
                cost += seconds
            if not chosen:
                continue
            arguments = list(whole)
            pattern = ":".join(chosen)
            if len(pattern) < 100_000:
                arguments.append(f"--gtest_filter={pattern}")
        elif mutant["number"] in program.numbers and (program.seconds <= left or left == PATIENCE):
            arguments, cost = [], program.seconds
        else:
            continue
        by = blame(mutant, program, cost, *arguments)
        # What is made once in the life of a process seems to be reached by the test that came first.
        if by is None and program.passes and len(chosen) < len(program.tests) and program.seconds <= QUICK:
            by = blame(mutant, program, program.seconds, *whole)
        if by is not None:
            return by
        left -= cost
        if left <= 0:
            break
    return None


class Runner:
    def __init__(self, tree, folder, jobs):
        shown = subprocess.run(["ctest", "--test-dir", tree.build, "--show-only=json-v1"], check=True,
                               capture_output=True, text=True).stdout
        every = [Program(each, tree.build) for each in json.loads(shown)["tests"]]
        self.programs = [each for each in every if each.command and Path(each.command[0]).exists()
                         and not LEFT_OUT.search(each.name) and not {"gpu", "package", "fuzz"} & set(each.labels)]
        self.folder, self.jobs = folder, jobs

    def own(self, component):
        folders = OWN.get(component, [component])
        return sorted((each for each in self.programs if each.component in folders),
                      key=lambda each: (folders.index(each.component), each.seconds))

    def asked(self, component):
        own = self.own(component)
        return own + [each for each in self.programs if each.component in CONTRACTS and each not in own]

    def reach(self, components):
        wanted = {each.name: each for component in components for each in self.asked(component)}
        self.folder.mkdir(parents=True, exist_ok=True)
        with concurrent.futures.ThreadPoolExecutor(self.jobs) as pool:
            for program in pool.map(lambda each: each.reach(self.folder), wanted.values()):
                if program.problem:
                    say(f"  {program.problem}")

    def try_all(self, mutants, then):
        """Of all components at once, so that no core waits for a component's slowest. Calls `then` after each."""
        programs = {component: self.asked(component) for component in {each["component"] for each in mutants}}
        with concurrent.futures.ThreadPoolExecutor(self.jobs) as pool:
            futures = {pool.submit(notice, each, programs[each["component"]]): each for each in mutants}
            for future in concurrent.futures.as_completed(futures):
                mutant = futures[future]
                mutant["by"] = future.result()
                tell(mutant)
                then()


# --- The whole -------------------------------------------------------------------------------------------


def test_targets(components):
    """The targets of ninja that hold the programs of the components' tests, and the libraries that these load."""
    folders = {each for component in components for each in OWN.get(component, [component])} | set(CONTRACTS)
    targets = []
    for folder in sorted(folders):
        file = ROOT / "tests" / folder / "CMakeLists.txt"
        if file.exists():
            named = re.findall(r"(?:weir_test|add_executable|add_library)\((\w+)", file.read_text())
            targets += [name for name in named if not LEFT_OUT.search(name)]
    if {"tools", "report", "replay", "formats", "capi", "trace"} & set(components):
        targets.append("weir_products")
    return sorted(set(targets))


def run_components(components, options, results):
    files = components_of_sources()
    folder = options.folder
    database = Database(ROOT / "build" / "tidy")
    taken, planted, chosen = {0}, collections.defaultdict(list), {}
    for component in components:
        every = find_all(component, files[component], database, options.jobs, folder)
        drawn = draw(every, PLANTED * options.count, f"{options.seed}:{component}", taken)
        say(f"{component}: {len(every)} possible faults, {len(drawn)} drawn")
        chosen[component] = drawn
        for mutant in drawn:
            planted[mutant.file].append(mutant)
    tree = Tree(folder, options.jobs)
    say("build")
    stages = [[f"weir_{each}"] for each in files if each != "tools"]
    plant_and_build(tree, planted, [*stages, test_targets(components)])
    runner = Runner(tree, folder / "reach", options.jobs)
    say("which test comes by which fault")
    runner.reach(components)
    for component in components:
        numbers = set().union(*(each.numbers.union(*(test[1] for test in each.tests.values()))
                                for each in runner.asked(component)))
        left = {each.number for mutants in planted.values() for each in mutants}
        compiled = [each for each in chosen[component] if each.number in left]
        reached = [each for each in compiled if each.number in numbers]
        known = [each for each in reached if each.id in options.equivalent]
        tried = [each for each in reached if each.id not in options.equivalent][:options.count]
        if options.only:
            tried = [each for each in tried if options.only in f"{each.file}:{each.line} {each.id}"]
        entries = [{"component": component, "id": each.id, "file": each.file, "line": each.line, "function": each.function,
                    "operator": each.operator, "before": each.before, "after": each.after, "number": each.number,
                    "by": "(not tried)"} for each in tried]
        results[component] = {"compiled": len(compiled), "reached": len(reached), "equivalent": len(known),
                         "mutants": entries}
    say("try them")
    runner.try_all([each for component in components for each in results[component]["mutants"]], lambda: save(options, results))


def tell(mutant):
    if mutant["by"] is None:
        say(f"  survives: {mutant['file']}:{mutant['line']} {mutant['operator']}: {mutant['before']}  =>  "
            f"{mutant['after'] or 'nothing'}")


def show(component, result):
    tried = result["mutants"]
    killed = sum(each["by"] is not None for each in tried)
    share = f"{100 * killed / len(tried):.0f} %" if tried else "-"
    say(f"{component:10} {killed:4} of {len(tried):4} noticed ({share}), {result['equivalent']} equivalent"
        + f"; no test reaches {result['compiled'] - result['reached']} of {result['compiled']}")


def save(options, results):
    options.folder.mkdir(parents=True, exist_ok=True)
    name = f"results-{options.seed}-{'-'.join(results) if len(results) < 4 else 'all'}.json"
    (options.folder / name).write_text(json.dumps(results, indent=1))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("components", nargs="*")
    parser.add_argument("--count", type=int, default=60, help="faults a component")
    parser.add_argument("--seed", default="1")
    parser.add_argument("--only", default="", help="only faults whose place or id holds this text")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--least", type=float, default=0, help="fail where fewer percent of a component are noticed")
    options = parser.parse_args()
    options.folder = (options.folder or ROOT / "build" / "mutate").resolve()
    options.equivalent = json.loads((HERE / "equivalent.json").read_text())
    every = list(components_of_sources())
    unknown = set(options.components) - set(every)
    if unknown:
        parser.error(f"no component {', '.join(sorted(unknown))}; there are {', '.join(every)}")
    components = options.components or every
    results = {}
    run_components(components, options, results)
    say("")
    for component, result in results.items():
        show(component, result)
    tried = [each for result in results.values() for each in result["mutants"]]
    if tried:
        killed = sum(each["by"] is not None for each in tried)
        say(f"{'all':10} {killed:4} of {len(tried):4} noticed ({100 * killed / len(tried):.1f} %)")
    poor = [component for component, result in results.items() if result["mutants"] and
            100 * sum(each["by"] is not None for each in result["mutants"]) < options.least * len(result["mutants"])]
    return 1 if poor else 0


if __name__ == "__main__":
    sys.exit(main())
