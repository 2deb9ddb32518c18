# SPDX-License-Identifier: Apache-2.0
"""What gpu_report.py says about PyTorch: the behaviour tests, the workloads and the microbenchmarks.

Reads the folder that ./dev gpu fills: tests-weir.json, tests-native.json, workloads.json, micro.json,
refused.json, and left-out.txt with the reason where there is no PyTorch.

    torch_report.py benchmarks/results/gpu-DATE.json README.md

puts the summary and the table of a report that was written elsewhere into this README.
"""

import importlib.util
import json
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
BEGIN, END = "<!-- torch: begin -->", "<!-- torch: end -->"
SUMMARY_BEGIN, SUMMARY_END = "<!-- summary: begin -->", "<!-- summary: end -->"


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


def figures_of(part):
    """Name, speed against native, and reserved over requested by allocator, of each workload that weir finished."""
    found = []
    for row in part.get("workloads", {}).get("rows", []):
        summary = {name: figures.get("summary") or {} for name, figures in row["allocators"].items()}
        if "median" not in summary.get("weir", {}) or "median" not in summary.get("native", {}):
            continue
        ratios = {name: each.get("ratio") for name, each in summary.items()}
        found.append((row["name"], summary["weir"]["median"] / summary["native"]["median"], ratios))
    return found


def listed(words):
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def where_worse(figures, other, title):
    """Where weir reserves more than another allocator: "reserves more than expandable segments in x (1.032, 1.027)"."""
    rows = [f"{name} ({ratios['weir']:.3f}, {ratios[other]:.3f})" for name, _, ratios in figures
            if ratios.get(other) and ratios["weir"] - ratios[other] >= 0.0005]
    return f"reserves more than {title} in {listed(rows)}" if rows else ""


def summary(part):
    """The README's first figures: the largest gains over expandable segments, and the worst row."""
    figures = [each for each in figures_of(part) if each[2].get("expandable") and each[2].get("native")]
    if not figures:
        return ""
    figures.sort(key=lambda each: each[2]["weir"] / each[2]["expandable"])
    shown = figures if len(figures) < 5 else [*figures[:4], figures[-1]]
    lines = ["| program | weir | expandable segments | PyTorch's default |", "|---|--:|--:|--:|"]
    lines += [f"| {name} | **{ratios['weir']:.3f}** | {ratios['expandable']:.3f} | {ratios['native']:.3f} |"
              for name, _, ratios in shown]
    speeds = sorted((speed, name) for name, speed, _ in figures)
    text = [f"The first rows show the largest gains, the last row the worst result of {len(figures)} programs.",
            f"The programs run at {speeds[0][0]:.2f} to {speeds[-1][0]:.2f} times the speed of PyTorch's own allocator "
            "(medians)."]
    slower = [f"{name} ({speed:.2f})" for speed, name in speeds if speed < 0.945]
    worse = [f"is clearly slower in {listed(slower)}" if slower else "",
             where_worse(figures, "expandable", "expandable segments"),
             where_worse(figures, "cudaMallocAsync", "cudaMallocAsync")]
    worse = [each for each in worse if each]
    text += [f"weir {each}." for each in worse]
    return "\n".join(lines) + "\n\n" + "\n".join(text)


def between(text, begin, end, put):
    """The text with other words between its marks; None without the marks."""
    if begin not in text or end not in text:
        return None
    return text[:text.index(begin) + len(begin)] + f"\n{put}\n" + text[text.index(end):]


def put_into(file, date, machine, part):
    """Replaces what stands between the marks of the README by the summary and the table of this run."""
    table = headline(part)
    gpus = "; ".join(f"{gpu['name']}, driver {gpu['driver']}" for gpu in machine["gpus"])
    version = part.get("workloads", {}).get("about", {}).get("torch", "unknown")
    said = f"{table}\n\n{date}, {gpus or 'unknown GPU'}, PyTorch {version}; `./dev gpu`."
    text = between(file.read_text(), BEGIN, END, said) if table else None
    if text is None:
        return False
    first = summary(part)
    file.write_text((between(text, SUMMARY_BEGIN, SUMMARY_END, first) if first else None) or text)
    return True


def is_whole(report):
    """Whether a report is of a run that passed, with every workload."""
    workloads = report.get("torch", {}).get("workloads", {})
    names = [row["name"] for row in workloads.get("rows", [])]
    return report["outcome"] == "passed" and sorted(names) == sorted(load("run").NAMES)


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
