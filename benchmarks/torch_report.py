# SPDX-License-Identifier: Apache-2.0
"""What gpu_report.py says about PyTorch: the behaviour tests, the workloads and the microbenchmarks.

Reads the folder that ./dev gpu fills: tests-weir.json, tests-native.json, workloads.json, micro.json,
refused.json, and left-out.txt with the reason where there is no PyTorch.

    torch_report.py benchmarks/results/gpu-DATE.json README.md

puts the headline of a report that was written elsewhere into this README.
"""

import importlib.util
import json
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
BEGIN, END = "<!-- torch: begin -->", "<!-- torch: end -->"


def load(name):
    """A program of benchmarks/torch as a module, for its tables."""
    spec = importlib.util.spec_from_file_location(f"torch_{name}", HERE / "torch" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def read(folder):
    """Everything that is there, and what is not as a failure."""
    part = {"tests": {}, "failures": []}
    left_out = folder / "left-out.txt"
    if left_out.exists():
        return part | {"left_out": left_out.read_text().strip()}
    for key, name in (("weir", "tests-weir"), ("native", "tests-native"), ("workloads", "workloads"),
                      ("micro", "micro"), ("refused", "refused")):
        file = folder / f"{name}.json"
        try:
            found = json.loads(file.read_text())
        except (OSError, json.JSONDecodeError):
            part["failures"].append({"test": f"torch {name}", "message": "left no figures: "
                                     + last_words(folder / f"{name}.txt")})
            continue
        if key in ("weir", "native"):
            part["tests"][key] = found
        else:
            part[key] = found
    workloads = part.get("workloads", {})
    part["failures"] += [{"test": test, "message": message}
                         for test, message in workloads.get("failures", [])]
    part["failures"] += [{"test": f"workloads under {allocator}", "message": said}
                         for allocator, said in workloads.get("ends", {}).items()]
    part["failures"] += [{"test": f"workload {name}", "message": "not run for want of time"}
                         for name in workloads.get("not_run", [])]
    part["failures"] += [{"test": "micro", "message": message}
                         for message in part.get("micro", {}).get("failures", [])]
    return part


def last_words(file):
    return file.read_text(errors="replace").strip()[-1500:] if file.exists() else "it did not run"


def programs(part):
    """The behaviour tests as programs beside those that ctest ran."""
    found = []
    for allocator, tests in part.get("tests", {}).items():
        for program in tests["programs"]:
            kept = {key: program[key] for key in ("seconds", "passed", "failed", "skipped", "passes",
                                                  "failures", "skips")}
            found.append({"name": f"torch {program['name']}, {allocator}"} | kept)
    return found


def headline(part):
    """The table for a reader in a hurry."""
    rows = part.get("workloads", {}).get("rows", [])
    return load("run").headline(rows) if rows else ""


def markdown(part):
    if "left_out" in part:
        return ["", "## PyTorch", "", f"Left out: {part['left_out']}"]
    lines = ["", "## PyTorch"]
    for allocator, tests in part["tests"].items():
        totals = tests["totals"]
        lines += ["", f"Behaviour tests under {allocator}: {totals['passed']} passed, "
                      f"{totals['failed']} failed, {totals['skipped']} skipped."]
    workloads = part.get("workloads")
    if workloads and workloads["rows"]:
        run, about = load("run"), workloads.get("about", {})
        allocators = list(workloads["rows"][0]["allocators"])
        lines += ["", "### Workloads", "",
                  f"PyTorch {about.get('torch', 'unknown')}, CUDA {about.get('cuda', 'unknown')}; weir "
                  f"with policy {workloads['policy']}. Speed is of the fastest rounds. Host time is "
                  "that of one step's recorded allocations and frees, played back through each allocator, "
                  "beside what the program keeps in use, up to twelve times: the median of the second half.",
                  "", run.table(workloads["rows"], allocators)]
    micro = part.get("micro")
    if micro and micro["figures"]:
        lines += ["", "### Allocate and free, inside a PyTorch process", "",
                  load("micro").table(micro["figures"])]
    if part.get("refused"):
        lines += ["", "### Requests that cannot be met", "",
                  "The slowest of five, beside a process that allocates and frees 1 GiB all the time.",
                  "", load("refused").table(part["refused"])]
    return lines


def put_into(file, date, machine, part):
    """Replaces what stands between the marks of the README by the headline of this run."""
    table = headline(part)
    text = file.read_text()
    if not table or BEGIN not in text or END not in text:
        return False
    gpus = "; ".join(f"{gpu['name']}, driver {gpu['driver']}" for gpu in machine["gpus"])
    version = part["workloads"].get("about", {}).get("torch", "unknown")
    begin, end = text.index(BEGIN) + len(BEGIN), text.index(END)
    said = f"\n{table}\n\n{date}, {gpus or 'unknown GPU'}, PyTorch {version}; `./dev gpu`.\n"
    file.write_text(text[:begin] + said + text[end:])
    return True


def main():
    if len(sys.argv) != 3:
        print("usage: torch_report.py REPORT.json README.md", file=sys.stderr)
        return 2
    report = json.loads(Path(sys.argv[1]).read_text())
    if put_into(Path(sys.argv[2]), report["date"], report["machine"], report.get("torch", {})):
        return 0
    print("the report has no workloads, or the file no marks", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
