#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the workloads under every allocator on one GPU, inside a time budget, and writes the figures.

A process an allocator, all started at once and then taking turns: while one is timed, no other uses the
GPU. Each workload is set up under each allocator; then rounds go round the allocators, in one order and the
other in turn, so that what changes on the machine meanwhile meets them all. A process that dies is
started again for the next workload.

A workload has one or two different rounds, which every allocator repeats in the same order. Throughput is
of all their steps, each round at its fastest, and at their medians; beside them stand the least and the greatest
ratio of two rounds that were run one after the other. The slowest ones and the seconds that each phase of a
workload took are in the JSON file too. Peaks are those of torch's own memory_stats(), over set-up, warm-up and rounds.
Host time is what the allocator alone costs: the allocations and frees of one round, recorded under native,
are played back in one thread through each process's allocator (c10::cuda::CUDACachingAllocator::get()), beside
what the program had in use all the time, up to twelve times; the median of the second half counts, when allocators
have stopped growing. Results are equal if a short
deterministic run leaves the same bits as under native; where it does not, native is run once more.

One workload alone, in fresh processes: run.py --workloads gpt2_train --budget 60
"""

import argparse
import contextlib
import json
import os
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
ALLOCATORS = ("native", "expandable", "cudaMallocAsync", "weir")
NAMES = ("gpt2_train", "vit_train", "bert_varlen", "moe_train", "gnn_sample", "llama_ckpt_varlen",
         "multistream_prefetch", "serve_short", "generate", "graph_decode", "graphs_ascending",
         "graphs_descending", "stash_pyramid", "stash_comb")
HOARDER = "cudaMallocAsync"
SEVERAL_STREAMS = ("multistream_prefetch", "serve_short", "stash_pyramid", "stash_comb")
ROUNDS, HOARDERS_ROUNDS = 8, 2  # of two different ones, four each


class WorkerError(Exception):
    """What a worker could not do; it goes on unless `lost`."""

    def __init__(self, text, lost=False):
        super().__init__(text)
        self.lost = lost


class Remote:
    """A worker process; ask() waits for its answer."""

    def __init__(self, allocator, command, log):
        self.allocator = allocator
        self.log = log
        self.rest = b""
        paths = [str(ROOT / "python"), os.environ.get("PYTHONPATH", "")]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=open(log, "ab"), cwd=ROOT,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))},
            start_new_session=True)
        self.about = None

    def line(self, seconds):
        deadline = time.monotonic() + seconds
        pipe = self.process.stdout
        while b"\n" not in self.rest:
            remaining = deadline - time.monotonic()
            if remaining <= 0 or not select.select([pipe], [], [], remaining)[0]:
                self.kill()
                raise WorkerError(f"no answer in {seconds:.0f} s", lost=True)
            piece = os.read(pipe.fileno(), 1 << 16)
            if not piece:
                self.kill()
                raise WorkerError(f"died: {self.exit_text()}", lost=True)
            self.rest += piece
        line, self.rest = self.rest.split(b"\n", 1)
        answer = json.loads(line)
        if not answer.pop("ok"):
            error = answer["error"].strip()
            # After an error of the device no call works in that process.
            lost = "CUDA error" in error or "AcceleratorError" in error or self.about is None
            if lost:
                self.kill()
            raise WorkerError(error, lost)
        return answer

    def exit_text(self):
        code = self.process.returncode
        said = Path(self.log).read_text(errors="replace").strip()[-1500:]
        name = signal.Signals(-code).name if code is not None and code < 0 else f"exit status {code}"
        return f"{name}; last words: {said}"

    def greet(self, seconds):
        if self.about is None:
            self.about = self.line(seconds)
        return self.about

    def ask(self, do, seconds, **more):
        try:
            self.process.stdin.write((json.dumps({"do": do} | more) + "\n").encode())
            self.process.stdin.flush()
        except (BrokenPipeError, ValueError, OSError):
            self.kill()
            raise WorkerError(f"died: {self.exit_text()}", lost=True) from None
        return self.line(seconds)

    def kill(self):
        if self.process.poll() is None:
            try:
                os.killpg(self.process.pid, signal.SIGKILL)  # a session of its own: its children too
            except ProcessLookupError:
                pass
        self.process.wait()

    def stop(self):
        """Ends it; says what was wrong with its end, unless it was lost before."""
        if self.process.poll() is not None:
            return ""
        try:
            self.process.stdin.write(b'{"do": "stop"}\n')
            self.process.stdin.close()
            self.process.wait(15)
        except (OSError, ValueError, subprocess.TimeoutExpired):
            self.kill()
            return "did not end by itself"
        return f"ended with {self.exit_text()}" if self.process.returncode else ""


class Team:
    """The workers by allocator; who is lost is started again when next needed."""

    def __init__(self, options, logs):
        self.options, self.logs = options, logs
        self.members, self.failed = {}, {}
        for allocator in options.allocators:
            self.hire(allocator)

    def hire(self, allocator):
        command = [sys.executable, *self.options.worker, "--allocator", allocator,
                   "--policy", self.options.policy, "--library", self.options.library]
        self.members[allocator] = Remote(allocator, command, self.logs / f"{allocator}.txt")

    def get(self, allocator):
        """Raises WorkerError where it cannot be started: twice in a row is for good."""
        if self.failed.get(allocator, 0) >= 2:
            raise WorkerError("could not be started")
        if self.members[allocator].process.poll() is not None:
            self.hire(allocator)
        try:
            self.members[allocator].greet(self.options.patience)
        except WorkerError:
            self.failed[allocator] = self.failed.get(allocator, 0) + 1
            raise
        self.failed[allocator] = 0
        return self.members[allocator]


class Phases:
    """The seconds that went by in each phase of a workload."""

    def __init__(self):
        self.seconds = {}

    @contextlib.contextmanager
    def timed(self, phase):
        begun = time.monotonic()
        try:
            yield
        finally:
            self.seconds[phase] = self.seconds.get(phase, 0.0) + time.monotonic() - begun


def side_by_side(group, work):
    """What `work` answers for each of them, all at once; those without an answer are left out."""
    with ThreadPoolExecutor(max(1, len(group))) as threads:
        answers = zip(group, threads.map(work, group))
        return {each: answer for each, answer in answers if answer is not None}


def run_rounds(group, results, attempt, name, take_record, phases):
    """Rounds of these allocators by turns; those that got through. What is not timed is done side by side."""
    with phases.timed("start"):
        answers = side_by_side(group, lambda each: attempt(each, "start", name=name))
    running = [each for each in group if each in answers]
    for allocator in running:
        results[allocator]["start"] = answers[allocator]
    with phases.timed("rounds"):
        for done in range(ROUNDS):
            # The order changes every two rounds, so that each of two different rounds meets both.
            for allocator in list(running if done % 4 < 2 else reversed(running)):
                if allocator == HOARDER and done >= HOARDERS_ROUNDS:
                    continue
                answer = attempt(allocator, "round", number=done)
                if answer is None:
                    running.remove(allocator)
                else:
                    results[allocator]["rounds"].append(answer)
    if "native" in running:
        with phases.timed("record"):
            take_record()
    with phases.timed("finish"):
        answers = side_by_side(running, lambda each: attempt(each, "finish"))
    for allocator, answer in answers.items():
        results[allocator]["peaks"] = answer
    return [each for each in running if each in answers]


def measure(name, number, team, options):
    """One workload under each allocator."""
    phases = Phases()
    results = {allocator: {"rounds": [], "errors": []} for allocator in options.allocators}
    here = list(options.allocators)
    here = here[number % len(here):] + here[:number % len(here)]

    def attempt(allocator, do, **more):
        """The answer, or nothing: then the allocator is out of this workload."""
        try:
            return team.get(allocator).ask(do, options.patience, **more)
        except WorkerError as error:
            results[allocator]["errors"].append(f"{do}: {error}")
            return None

    record = {}

    def take_record():
        """A round of native's, for host time."""
        path = str(team.logs / f"{name}.record")
        answer = attempt("native", "record", path=path) if options.library else None
        if answer is not None and answer["allocations"]:
            record.update(answer, path=path)

    # With several streams cudaMallocAsync may fill the card (its pool keeps what other streams freed), so
    # there it works alone, after the others have given their memory back.
    groups = [here]
    if name in SEVERAL_STREAMS:
        groups = [[each for each in here if each != HOARDER], [each for each in here if each == HOARDER]]
    running = []
    for group in filter(None, groups):
        running += run_rounds(group, results, attempt, name, take_record, phases)
    if record:
        with phases.timed("play"):
            for allocator in running:
                answer = attempt(allocator, "play", path=record["path"])
                if answer is not None:
                    results[allocator]["host"] = answer | {"steps": record["steps"]}
        os.unlink(record["path"])
    compared = [each for each in ("native", "weir") if each in running]
    if not options.no_check and compared:
        with phases.timed("check"):
            marks = side_by_side(compared, lambda each: attempt(each, "check", name=name))
            for allocator, answer in marks.items():
                results[allocator]["check"] = answer["fingerprint"]
            if len({answer["fingerprint"] for answer in marks.values()}) > 1:
                again = attempt("native", "check", name=name)
                if again is not None:
                    results["native"]["check_again"] = again["fingerprint"]
    return {"name": name, "phases": phases.seconds, "allocators": results}


def equal(row):
    """Whether weir left the bits that native left: yes, no, or why nobody can say."""
    native, weir = row["allocators"].get("native", {}), row["allocators"].get("weir", {})
    once, again, weirs = native.get("check"), native.get("check_again"), weir.get("check")
    if None in (once, weirs):
        return "not compared"
    if once == weirs:
        return "yes"
    if again is None:
        return "not compared"
    return "NO" if once == again else "native differs from itself"


def speeds_of(rounds):
    """Units a second over all different rounds: each at its fastest, at its median, at its slowest."""
    by_turn = {}
    for each in rounds:
        if each["seconds"] > 0:
            by_turn.setdefault(each.get("turn", 0), []).append(each)
    units = sum(same[0]["units"] for same in by_turn.values())
    return {name: units / sum(of(each["seconds"] for each in same) for same in by_turn.values())
            for name, of in (("best", min), ("median", statistics.median), ("worst", max)) if by_turn}


def by_round(rounds, natives):
    """How much faster than native's a round is, of all that both ran one after the other: least, middle, most."""
    ratios = sorted(theirs["seconds"] / ours["seconds"] for ours, theirs in zip(rounds, natives)
                    if ours["seconds"] > 0)
    return (ratios[0], statistics.median(ratios), ratios[-1]) if ratios else None


def summarise(row, units):
    """The figures of a table row, for each allocator that got through."""
    natives = row["allocators"].get("native", {}).get("rounds", [])
    requested = row["allocators"].get("native", {}).get("peaks", {}).get("requested_bytes.peak")
    row["unit"] = units.get(row["name"], "steps")
    row["equal"] = equal(row)
    for figures in row["allocators"].values():
        speeds = speeds_of(figures["rounds"])
        peaks, host = figures.get("peaks"), figures.get("host")
        if not speeds or peaks is None:
            continue
        own_requested = peaks.get("requested_bytes.peak") or requested
        reserved = peaks.get("reserved_bytes.peak")
        figures["summary"] = {
            **speeds, "by_round": by_round(figures["rounds"], natives),
            "requested": own_requested, "reserved": reserved,
            "ratio": reserved / own_requested if own_requested and reserved else None,
            "host_us": host["ns"] / 1000 / host["steps"] if host else None,
            "operation_ns": host["ns"] / host["operations"] if host and host["operations"] else None}
    return row


# --- The tables --------------------------------------------------------------------------------------


def number(value, form, missing="–"):
    return missing if value is None else format(value, form)


def table(rows, allocators):
    """Markdown: a line a workload and allocator."""
    lines = ["| workload | allocator | speed | against native: best; median; rounds | peak requested, MiB | "
             "peak reserved, MiB | reserved ÷ requested | allocator host time, µs a step | "
             "results as native |",
             "|---|---|--:|--:|--:|--:|--:|--:|---|"]
    for row in rows:
        native = row["allocators"].get("native", {}).get("summary")
        for allocator in allocators:
            figures = row["allocators"].get(allocator)
            if figures is None:
                continue
            summary = figures.get("summary")
            if summary is None:
                why = figures["errors"][0].splitlines()[-1][:150] if figures["errors"] else "not run"
                lines.append(f"| {row['name']} | {allocator} | failed: {why.replace('|', ' ')} "
                             "| | | | | | |")
                continue
            against = "–"
            if native:
                least, _, most = summary["by_round"]
                against = (f"{summary['best'] / native['best']:.3f}; "
                           f"{summary['median'] / native['median']:.3f}; {least:.2f} to {most:.2f}")
            mib = [number(None if summary[key] is None else summary[key] / 2**20, ",.0f")
                   for key in ("requested", "reserved")]
            lines.append(
                f"| {row['name']} | {allocator} | {summary['best']:,.1f} {row['unit']}/s | {against} | "
                f"{mib[0]} | {mib[1]} | {number(summary['ratio'], '.3f')} | "
                f"{number(summary['host_us'], ',.0f')} | "
                f"{row['equal'] if allocator == 'weir' else ''} |")
    return "\n".join(lines)


def headline(rows):
    """Markdown: weir beside the others, a line a workload."""
    lines = ["| workload | speed, native = 1: median; best | reserved ÷ requested: weir | expandable | native | "
             "cudaMallocAsync | results as native |", "|---|--:|--:|--:|--:|--:|---|"]
    for row in rows:
        summary = {name: figures.get("summary") for name, figures in row["allocators"].items()}
        native, weir = summary.get("native"), summary.get("weir")
        if not weir:
            lines.append(f"| {row['name']} | failed | | | | | |")
            continue
        speed = "–"
        if native:
            speed = (f"{weir['median'] / native['median']:.2f}; "
                     f"{weir['best'] / native['best']:.2f}")
        ratios = [number((summary.get(name) or {}).get("ratio"), ".3f")
                  for name in ("weir", "expandable", "native", "cudaMallocAsync")]
        lines.append(f"| {row['name']} | {speed} | {' | '.join(ratios)} | {row['equal']} |")
    return "\n".join(lines)


def failures(rows):
    """What went wrong under weir or native, as (test, message); the tables name the others' troubles."""
    failed = []
    for row in rows:
        for allocator in ("weir", "native"):
            figures = row["allocators"].get(allocator, {"errors": []})
            failed += [(f"{row['name']} under {allocator}", error) for error in figures["errors"]]
        if row["equal"] == "NO":
            failed.append((f"{row['name']} under weir", "the results differ from native's"))
    return failed


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, required=True, help="where the figures go")
    parser.add_argument("--budget", type=float, default=230, help="seconds for everything")
    parser.add_argument("--allocators", default=",".join(ALLOCATORS))
    parser.add_argument("--workloads", default=",".join(NAMES))
    parser.add_argument("--policy", default="balanced", help="weir's")
    parser.add_argument("--library", default="", help="what micro.py --build made, for host time")
    parser.add_argument("--patience", type=float, default=90, help="seconds for one answer")
    parser.add_argument("--no-check", action="store_true", help="do not compare results")
    parser.add_argument("--worker", default=str(HERE / "worker.py"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.allocators = options.allocators.split(",")
    options.worker = [options.worker]
    names = options.workloads.split(",")
    unknown = [name for name in options.allocators if name not in ALLOCATORS]
    unknown += [name for name in names if name not in NAMES]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}")

    begun = time.monotonic()
    end = begun + options.budget
    report = {"budget_s": options.budget, "policy": options.policy, "about": {}, "rows": [],
              "not_run": [], "ends": {}}
    options.json.parent.mkdir(parents=True, exist_ok=True)

    def save():
        report["seconds"] = time.monotonic() - begun
        report["failures"] = failures(report["rows"])
        options.json.write_text(json.dumps(report, indent=1) + "\n")

    units = {"serve_short": "tokens", "generate": "tokens", "graph_decode": "tokens",
             "graphs_ascending": "tokens", "graphs_descending": "tokens"}
    with tempfile.TemporaryDirectory() as logs:
        team = Team(options, Path(logs))
        try:
            for allocator in options.allocators:
                with contextlib.suppress(WorkerError):  # the first workload says so
                    team.get(allocator)
            report["start_seconds"] = time.monotonic() - begun
            print(f"processes: {report['start_seconds']:.1f} s", flush=True)
            for number_, name in enumerate(names):
                now = time.monotonic()
                if now > end - 10:
                    report["not_run"].append(name)
                    continue
                row = summarise(measure(name, number_, team, options), units)
                seconds = ", ".join(f"{phase} {spent:.1f}" for phase, spent in row["phases"].items())
                report["rows"].append(row)
                report["about"] = next((member.about for member in team.members.values()
                                        if member.about), {})
                took = time.monotonic() - now
                print(f"{name}: {took:.1f} s ({seconds}); results as native: {row['equal']}", flush=True)
                save()
        finally:
            for allocator, member in team.members.items():
                said = member.stop()
                if said:
                    report["ends"][allocator] = said
            save()
    print(table(report["rows"], options.allocators))
    for name in report["not_run"]:
        print(f"not run for want of time: {name}")
    for test, message in report["failures"]:
        print(f"FAILED {test}: {message.splitlines()[-1]}")
    for allocator, said in report["ends"].items():
        print(f"the process of {allocator}: {said}")
    return 1 if report["failures"] or report["ends"] or report["not_run"] else 0


if __name__ == "__main__":
    sys.exit(main())
