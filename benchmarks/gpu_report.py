#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes what the tests and benchmarks found on a machine with a GPU, as gpu-<date>.json and .md.

Everything comes from files that the programs themselves wrote: ctest's JUnit file (which programs ran
and how they ended), GoogleTest's XML (each test in them), Google Benchmark's JSON (the figures), and
what the programs for PyTorch leave (torch_report.py). Exits with 1 if anything failed, or if not a single
test really ran.
"""

import argparse
import datetime
import itertools
import json
import os
import platform
import re
import subprocess
import sys
import xml.etree.ElementTree
from pathlib import Path

import torch_report

ROOT = Path(__file__).resolve().parent.parent


def ask(*command):
    """What a command prints, or nothing where it is not there or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
        return done.stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


# --- The machine and the code ------------------------------------------------------------------------


def read_commit():
    """WEIR_COMMIT, else git, else the file commit.txt for a tree that was copied without its history."""
    if os.environ.get("WEIR_COMMIT"):
        return os.environ["WEIR_COMMIT"]
    commit = ask("git", "rev-parse", "HEAD")
    if commit:
        return commit + (" with changes" if ask("git", "status", "--porcelain") else "")
    file = ROOT / "commit.txt"
    return file.read_text().strip() if file.exists() else "unknown"


def read_gpus(text):
    """The lines of nvidia-smi as records."""
    gpus = []
    for line in text.splitlines():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) == 3:
            gpus.append({"name": fields[0], "driver": fields[1], "memory_mib": int(fields[2])})
    return gpus


def read_machine():
    model = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.M)
    return {
        "gpus": read_gpus(ask("nvidia-smi", "--query-gpu=name,driver_version,memory.total",
                              "--format=csv,noheader,nounits")),
        "cpu": model.group(1) if model else platform.machine(),
        "cores": os.cpu_count(),
        "system": platform.freedesktop_os_release().get("PRETTY_NAME", platform.system()),
        "kernel": platform.release(),
        "compiler": (ask("c++", "--version").splitlines() or ["unknown"])[0],
    }


# --- The tests ---------------------------------------------------------------------------------------


def read_gtest(file):
    """How many of a program's tests ended how, and what failed or was skipped and why."""
    program = {"passed": 0, "failed": 0, "skipped": 0, "failures": [], "skips": []}
    for case in xml.etree.ElementTree.parse(file).getroot().iter("testcase"):
        name = f"{case.get('classname')}.{case.get('name')}"
        failure, skip = case.find("failure"), case.find("skipped")
        if failure is not None:
            program["failed"] += 1
            program["failures"].append({"test": name, "message": failure.get("message", "")})
        elif skip is not None or case.get("result") == "skipped":
            program["skipped"] += 1
            reason = skip.get("message", "") if skip is not None else ""
            # The first line is the place in the source.
            program["skips"].append({"test": name, "reason": reason.partition("\n")[2] or reason})
        elif case.get("result") == "completed":
            program["passed"] += 1
    return program


def read_ctest(case):
    """The same for a program that left no file of its own: ctest's word is all there is."""
    skip = case.find("skipped")
    why = skip.get("message", "") if skip is not None else ""
    if case.get("status") == "run":
        return {"passed": 1, "failed": 0, "skipped": 0, "failures": [], "skips": []}
    if why.startswith("SKIP_") or case.get("status") == "disabled":
        return {"passed": 0, "failed": 0, "skipped": 1, "failures": [],
                "skips": [{"test": case.get("name"), "reason": why or "disabled"}]}
    said = why or (case.findtext("system-out") or "").strip()[-2000:]
    return {"passed": 0, "failed": 1, "skipped": 0, "skips": [], "failures": [
        {"test": case.get("name"), "message": f"ended without a report: {said}"}]}


def read_tests(ctest_file, gtest_folder):
    """Each program that ctest ran, with the tests inside it where it wrote them down."""
    programs = []
    for case in xml.etree.ElementTree.parse(ctest_file).getroot().iter("testcase"):
        name = case.get("name")
        file = gtest_folder / f"{name}.xml"
        found = read_gtest(file) if file.exists() else read_ctest(case)
        if case.get("status") == "fail" and not found["failed"]:
            found["failed"] = 1
            found["failures"].append({"test": name, "message": "failed beside its tests"})
        programs.append({"name": name, "seconds": float(case.get("time", 0))} | found)
    return programs


# --- The benchmarks ----------------------------------------------------------------------------------

PLAIN = {"name", "run_name", "run_type", "real_time", "cpu_time", "time_unit", "iterations", "threads",
         "family_index", "per_family_instance_index", "repetitions", "repetition_index",
         "aggregate_name", "aggregate_unit", "error_occurred", "error_message", "label"}


def read_benchmarks(folder):
    """(the figures, what failed)."""
    figures, failures = [], []
    for file in sorted(folder.glob("*.json")):
        try:
            runs = json.loads(file.read_text())["benchmarks"]
        except (json.JSONDecodeError, KeyError):
            failures.append({"test": file.stem, "message": "left no readable figures"})
            continue
        for run in runs:
            if run.get("error_occurred"):
                failures.append({"test": f"{file.stem} {run['name']}",
                                 "message": run.get("error_message", "")})
                continue
            figures.append({
                "program": file.stem, "name": run["name"], "iterations": run["iterations"],
                "real_time": run["real_time"], "cpu_time": run["cpu_time"], "unit": run["time_unit"],
                "label": run.get("label", ""),
                "counters": {key: value for key, value in run.items() if key not in PLAIN}})
    failed = folder / "failed.txt"
    if failed.exists():
        failures += [{"test": name, "message": "the benchmark program failed"}
                     for name in failed.read_text().split()]
    return figures, failures


# --- The report --------------------------------------------------------------------------------------


def outcome(report):
    totals = report["tests"]["totals"]
    if totals["failed"] or report["benchmark_failures"]:
        return "failed"
    return "passed" if totals["passed"] else "nothing ran"


def make_report(options):
    programs = read_tests(options.ctest, options.gtest) if options.ctest else []
    figures, benchmark_failures = read_benchmarks(options.benchmarks) if options.benchmarks else ([], [])
    torch = torch_report.read(options.torch) if options.torch else {"left_out": "not asked for"}
    programs += torch_report.programs(torch)
    benchmark_failures += torch.get("failures", [])
    report = {
        "date": options.date,
        "commit": read_commit(),
        "machine": read_machine(),
        "tests": {
            "totals": {key: sum(program[key] for program in programs)
                       for key in ("passed", "failed", "skipped")},
            "programs": programs,
        },
        "benchmarks": figures,
        "benchmark_failures": benchmark_failures,
        "torch": {key: value for key, value in torch.items() if key != "tests"} | {
            "tests": {allocator: found["totals"] for allocator, found in torch.get("tests", {}).items()}},
    }
    return {"outcome": outcome(report)} | report


def cell(text):
    return " ".join(str(text).split()).replace("|", "\\|")


def torch_lines(part):
    tests = {allocator: {"totals": totals} for allocator, totals in part["tests"].items()}
    return torch_report.markdown(part | {"tests": tests})


def markdown(report):
    machine, tests = report["machine"], report["tests"]
    gpus = [f"{gpu['name']}, {gpu['memory_mib']:,} MiB, driver {gpu['driver']}"
            for gpu in machine["gpus"]] or ["unknown: nvidia-smi gave no answer"]
    totals = tests["totals"]
    lines = [
        f"# GPU run of {report['date']}: {report['outcome']}", "",
        f"- GPU: {'; '.join(gpus)}",
        f"- Host: {machine['cpu']}, {machine['cores']} cores, {machine['system']}, "
        f"Linux {machine['kernel']}, {machine['compiler']}",
        f"- Commit: {report['commit']}", "",
        f"## Tests: {totals['passed']} passed, {totals['failed']} failed, {totals['skipped']} skipped",
        "", "| program | passed | failed | skipped | seconds |", "|---|--:|--:|--:|--:|",
    ]
    lines += [f"| {cell(program['name'])} | {program['passed']} | {program['failed']} | "
              f"{program['skipped']} | {program['seconds']:.1f} |" for program in tests["programs"]]

    failures = [failure for program in tests["programs"] for failure in program["failures"]]
    failures += report["benchmark_failures"]
    if failures:
        lines += ["", "### Failed", ""]
        lines += [f"- `{failure['test']}`: {cell(failure['message'])}" for failure in failures]
    skips = [skip for program in tests["programs"] for skip in program["skips"]]
    if skips:
        lines += ["", "### Skipped", ""]
        lines += [f"- `{skip['test']}`: {cell(skip['reason']) or 'no reason given'}" for skip in skips]

    lines += torch_lines(report["torch"])
    if report["benchmarks"]:
        lines += ["", "## Benchmarks", "",
                  "| program | benchmark | time | CPU time | unit | more |", "|---|---|--:|--:|---|---|"]
        for figure in report["benchmarks"]:
            more = [f"{key} {value:,.4g}" if isinstance(value, (int, float)) else f"{key} {value}"
                    for key, value in figure["counters"].items()]
            if figure["label"]:
                more.insert(0, figure["label"])
            lines.append(f"| {cell(figure['program'])} | {cell(figure['name'])} | "
                         f"{figure['real_time']:,.1f} | "
                         f"{figure['cpu_time']:,.1f} | {figure['unit']} | {cell('; '.join(more))} |")
    return "\n".join(lines) + "\n"


def free_name(folder, wanted):
    """The path of a report that is not there yet: a second one of a day has a number."""
    names = itertools.chain([wanted], (f"{wanted}-{number}" for number in itertools.count(2)))
    return next(folder / name for name in names if not (folder / f"{name}.md").exists())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ctest", type=Path, help="ctest's JUnit file")
    parser.add_argument("--gtest", type=Path, help="folder of GoogleTest's XML files, <program>.xml")
    parser.add_argument("--benchmarks", type=Path, help="folder of Google Benchmark's JSON files")
    parser.add_argument("--torch", type=Path, help="folder of what the programs for PyTorch left")
    parser.add_argument("--out", type=Path, required=True, help="folder for the report")
    parser.add_argument("--name", default="gpu", help="what the report's name begins with")
    parser.add_argument("--readme", type=Path, help="put the headline between this file's marks")
    parser.add_argument("--date", default=datetime.datetime.now(datetime.timezone.utc).date().isoformat())
    options = parser.parse_args()

    report = make_report(options)
    options.out.mkdir(parents=True, exist_ok=True)
    name = free_name(options.out, f"{options.name}-{report['date']}")
    name.with_suffix(".json").write_text(json.dumps(report, indent=1) + "\n")
    name.with_suffix(".md").write_text(markdown(report))
    if options.readme:
        torch_report.put_into(options.readme, report["date"], report["machine"], report["torch"])
    totals = report["tests"]["totals"]
    print(f"{report['outcome']}: {totals['passed']} passed, {totals['failed']} failed, "
          f"{totals['skipped']} skipped, {len(report['benchmarks'])} figures; {name}.md")
    return 0 if report["outcome"] == "passed" else 1


if __name__ == "__main__":
    sys.exit(main())
