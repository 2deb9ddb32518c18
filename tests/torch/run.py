#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the tests of this folder under weir or under torch's own allocator, a process a file or a class of tests.

    run.py --allocator weir --json out.json [file...]

A test that takes its process down does not hide the others: the file is started again without it. The
JSON file lists what passed, and what failed or was skipped and why, in the form that
benchmarks/gpu_report.py reads. Under native the tests prove that they are right themselves.
"""

import argparse
import concurrent.futures
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
MOST_STARTS = 6
SLOW = ("test_compile", "test_endings", "test_weir")
# They fill the card, which others look at: they run when all others are done.
ALONE = ("test_suspend",)
# Every test of theirs starts a process and waits for it: their classes run side by side, before all else.
BY_CLASS = ("test_sharing",)


def read_record(file):
    """(tests planned, {test: (state, why)}, the test that was under way or nothing, whether all ran)."""
    planned, ended, under_way, over = [], {}, None, False
    for line in file.read_text().splitlines() if file.exists() else []:
        try:
            entry = json.loads(line)
        except json.JSONDecodeError:
            continue  # cut off by the end of the process
        if entry["state"] == "planned":
            planned = entry["tests"]
        elif entry["state"] == "over":
            over = True
        elif entry["state"] == "begun":
            under_way = entry["test"]
        else:
            ended[entry["test"]] = entry["state"], entry.get("why", "")
            under_way = None
    return planned, ended, under_way, over


def how_it_ended(status):
    if status is None:
        return "took too long"
    return f"killed by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"


def parts_of(file):
    """What runs in a process of its own: (file, the pattern of its tests or nothing)."""
    if file.stem not in BY_CLASS:
        return [(file, "")]
    return [(file, f".{name}.") for name in re.findall(r"^class (\w+)\(", file.read_text(), re.MULTILINE)]


def run_once(file, pattern, allocator, left_out, deadline, record):
    """Starts the file; (exit status or nothing if it was too slow, the end of what it printed)."""
    environment = os.environ | {"WEIR_TORCH_ALLOCATOR": allocator, "WEIR_TORCH_RECORD": str(record),
                                "WEIR_TORCH_LEAVE_OUT": ",".join(left_out),
                                "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}  # deterministic only with it
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        environment.pop(name, None)
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen([sys.executable, str(file), *filter(None, [pattern])], stdout=said, stderr=subprocess.STDOUT,
                                   env=environment, cwd=ROOT, start_new_session=True)
        try:
            status = process.wait(max(1.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # a session of its own: its children too
            process.wait()
            status = None
        said.seek(0)
        return status, said.read().decode(errors="replace")[-3000:]


def run_part(file, pattern, allocator, seconds, end):
    """The tests of one file or of one of its classes, in as many processes as it takes, for so long and not beyond `end`."""
    begun = time.monotonic()
    deadline = min(begun + seconds, end)
    results, planned, trouble = {}, [], []
    for _ in range(MOST_STARTS):
        with tempfile.TemporaryDirectory() as folder:
            record = Path(folder) / "record"
            status, said = run_once(file, pattern, allocator, sorted(results), deadline, record)
            tests, ended, under_way, over = read_record(record)
        planned = planned or tests
        results |= ended
        if over:
            # Tests are over, the process is not: what it does at its end counts.
            failed = any(state == "failed" for state, _ in results.values())
            if status != 0 and not (status == 1 and failed):
                trouble.append(f"after its tests: {how_it_ended(status)}: {said[-1500:]}")
            break
        if under_way is not None:
            results[under_way] = "failed", f"{how_it_ended(status)}: {said[-1500:]}"
        elif not ended:
            trouble.append(f"did not come to its tests: {how_it_ended(status)}: {said}")
            break
        if time.monotonic() > deadline:
            break
    for test in planned:
        results.setdefault(test, ("failed", "not reached"))
    if trouble:
        results[file.stem] = "failed", "; ".join(trouble)
    of = {state: {test: why for test, (its, why) in results.items() if its == state}
          for state in ("passed", "failed", "skipped")}
    name = " ".join(filter(None, [file.stem.removeprefix("test_"), pattern.strip(".")]))
    return {"name": name, "seconds": round(time.monotonic() - begun, 2),
            "passed": len(of["passed"]), "failed": len(of["failed"]), "skipped": len(of["skipped"]),
            "passes": sorted(of["passed"]),
            "failures": [{"test": test, "message": why} for test, why in sorted(of["failed"].items())],
            "skips": [{"test": test, "reason": why} for test, why in sorted(of["skipped"].items())]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--allocator", choices=("weir", "native"), required=True)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=4, help="processes at a time")
    parser.add_argument("--seconds", type=float, default=120, help="limit for each of them")
    parser.add_argument("--budget", type=float, default=600, help="limit for everything, in seconds")
    parser.add_argument("files", nargs="*", type=Path)
    options = parser.parse_args()
    # The slowest first, so that nothing waits for them at the end.
    files = [file.resolve() for file in options.files] or sorted(
        HERE.glob("test_*.py"), key=lambda file: (file.stem not in BY_CLASS, file.stem not in SLOW, file.stem))
    parts = [part for file in files for part in parts_of(file)]
    begun = time.monotonic()

    def run(part):
        return run_part(*part, options.allocator, options.seconds, begun + options.budget)

    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        programs = list(pool.map(run, [part for part in parts if part[0].stem not in ALONE]))
    programs += [run(part) for part in parts if part[0].stem in ALONE]
    programs.sort(key=lambda program: program["name"])
    totals = {key: sum(program[key] for program in programs) for key in ("passed", "failed", "skipped")}
    report = {"allocator": options.allocator, "seconds": round(time.monotonic() - begun, 1),
              "totals": totals, "programs": programs}
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(report, indent=1) + "\n")
    for program in programs:
        for failure in program["failures"]:
            print(f"FAILED under {options.allocator}: {program['name']} {failure['test']}: "
                  f"{failure['message'].splitlines()[-1] if failure['message'] else ''}")
    print(f"torch tests under {options.allocator}: {totals['passed']} passed, {totals['failed']} failed, "
          f"{totals['skipped']} skipped in {report['seconds']} s")
    return 1 if totals["failed"] or not totals["passed"] else 0


if __name__ == "__main__":
    sys.exit(main())
