#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs test programs over and over on every core, each time with seeds of their own, until time is up.

    many_cores.py --seconds 300 build/release/tests/order/order_tests build/release/tests/heap/heap_tests

Two cores hide races: threads that are meant to meet hardly ever run at the same time. Programs take turns, so that
each gets its share of the cores. The first failure is shown, of a long output the beginning and the end, with the
environment that repeats it as far as threads can be repeated.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

GRACE = 15  # seconds that runs have to end when time is up
SHOWN = 4000  # characters of a failed run's output, from its beginning and again from its end
OPERATIONS = 20_000  # of a run of the random programs; a run takes seconds, so that many seeds are met


class Runs:
    """What was run, by program; shared by the threads that start the runs."""

    def __init__(self, programs, first_seed):
        self.lock = threading.Lock()
        self.programs = programs
        self.started = 0
        self.next_seed = first_seed
        self.counts = {Path(each).name: 0 for each in programs}
        self.failure = None

    def take(self):
        """The next program and the first of its seeds."""
        with self.lock:
            program = self.programs[self.started % len(self.programs)]
            self.started += 1
            seed = self.next_seed
            self.next_seed += OPERATIONS  # more than a run has programs
            return program, seed

    def done(self, program, failure):
        with self.lock:
            if failure is None:
                self.counts[Path(program).name] += 1
            elif self.failure is None:
                self.failure = failure


def without_randomisation():
    """ThreadSanitizer of older compilers needs addresses where they were when it was written."""
    if shutil.which("setarch") and subprocess.run(["setarch", "-R", "true"], check=False,
                                                  capture_output=True).returncode == 0:
        return ["setarch", "-R"]
    return []


def ends_of(output):
    """What went wrong first stands at the beginning, the verdict at the end."""
    left_out = len(output) - 2 * SHOWN
    if left_out <= 0:
        return output
    return f"{output[:SHOWN]}\n[... {left_out} characters left out ...]\n{output[-SHOWN:]}"


def work(runs, prefix, until, limit):
    while time.monotonic() < until and runs.failure is None:
        program, seed = runs.take()
        settings = {"WEIR_ORDER_FIRST_SEED": str(seed), "WEIR_ORDER_OPERATIONS": str(OPERATIONS),
                    "WEIR_HAZARD_FIRST_SEED": str(seed), "WEIR_HAZARD_PROGRAMS": "20000",
                    "WEIR_STRESS_SEED": str(seed), "WEIR_STRESS_SECONDS": "10",
                    "WEIR_PROGRAMS_FIRST_SEED": str(seed), "WEIR_PROGRAMS_SECONDS": "10",
                    "TSAN_OPTIONS": "halt_on_error=1:second_deadlock_stack=1"}
        left = until + GRACE - time.monotonic()
        try:
            ended = subprocess.run([*prefix, program, "--gtest_brief=1"], capture_output=True, text=True,
                                   errors="replace", env={**os.environ, **settings}, timeout=min(limit, left),
                                   check=False)
            failure = None if ended.returncode == 0 else ends_of(ended.stdout) + ends_of(ended.stderr)
            code = ended.returncode
        except subprocess.TimeoutExpired:
            if left < limit:
                return  # time is up; what ran until now found nothing, and is not counted
            failure, code = f"not done after {limit} s", "none"
        if failure is not None:
            again = " ".join(f"{name}={value}" for name, value in settings.items())
            failure = f"{again} {program}\nexit code {code}\n{failure}"
        runs.done(program, failure)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("programs", nargs="+")
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--first-seed", type=int, default=1_000_000)
    parser.add_argument("--limit", type=float, default=600, help="seconds that one run may take")
    parser.add_argument("--json", type=Path, help="write the counts here")
    arguments = parser.parse_args()

    runs = Runs(arguments.programs, arguments.first_seed)
    began = time.monotonic()
    workers = [threading.Thread(target=work, args=(runs, without_randomisation(), began + arguments.seconds,
                                                   arguments.limit)) for _ in range(arguments.processes)]
    for each in workers:
        each.start()
    for each in workers:
        each.join()
    took = time.monotonic() - began
    if arguments.json:
        arguments.json.write_text(json.dumps({"seconds": round(took, 1), "processes": arguments.processes,
                                              "runs": runs.counts, "failure": runs.failure}, indent=1))
    for name, count in runs.counts.items():
        print(f"{name}: {count} runs")
    print(f"{arguments.processes} at a time, {took:.0f} s, first seed {arguments.first_seed}")
    if runs.failure is not None:
        print(f"\nFAILED\n{runs.failure}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
