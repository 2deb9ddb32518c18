# SPDX-License-Identifier: Apache-2.0
"""The programs for PyTorch survive what happens under them, and say so; torch itself is not needed."""

import json
import subprocess
import sys
import tempfile
import textwrap
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
import torch_report  # noqa: E402

MACHINE = {"gpus": [{"name": "a GPU", "driver": "1.2", "memory_mib": 3}]}

# Answers as worker.py does. What it is to do wrong is in a file: "name allocator command fault".
WORKER = """
import json, os, sys, time
allocator = sys.argv[sys.argv.index("--allocator") + 1]
faults = [line.split() for line in open({faults!r}).read().splitlines()]
def wrong(name, do):
    for fault in faults:
        if fault[:3] == [name, allocator, do]:
            return fault[3]
print(json.dumps({{"ok": True, "torch": "9.9", "cuda": "99"}}), flush=True)
name = ""
for line in sys.stdin:
    command = json.loads(line)
    do = command["do"]
    if do == "stop":
        sys.exit(5 if wrong("any", "stop") else 0)
    name = command.get("name", name)
    fault = wrong(name, do)
    if fault == "die":
        os.abort()
    if fault == "hang":
        time.sleep(100)
    if fault == "fail":
        print(json.dumps({{"ok": False, "error": "Traceback\\nValueError: on purpose"}}), flush=True)
        continue
    answer = {{"start": {{"seconds": 0}}, "round": {{"units": 10, "seconds": 0.01}},
              "finish": {{"requested_bytes.peak": 1 << 30, "reserved_bytes.peak": 1100 << 20}},
              "check": {{"fingerprint": "other" if fault == "differ" else "same"}},
              "record": {{"allocations": 4, "steps": 2}},
              "play": {{"ns": 8000, "operations": 8}}}}[do]
    if do == "record":
        open(command["path"], "w").close()
    print(json.dumps({{"ok": True}} | answer), flush=True)
"""


class Workloads(unittest.TestCase):
    def run_all(self, *faults, workloads="gpt2_train,generate", budget=60):
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            (root / "faults").write_text("\n".join(faults))
            (root / "worker.py").write_text(WORKER.format(faults=str(root / "faults")))
            done = subprocess.run(
                [sys.executable, ROOT / "benchmarks/torch/run.py", "--worker", root / "worker.py",
                 "--json", root / "out.json", "--budget", str(budget), "--patience", "3",
                 "--workloads", workloads, "--library", "anything"],
                capture_output=True, text=True, timeout=100)
            self.assertTrue((root / "out.json").exists(), done.stderr)
            report = json.loads((root / "out.json").read_text())
            (root / "workloads.json").write_text(json.dumps(report))
            return done, report, torch_report.read(root)

    def test_all_goes_well(self):
        done, report, part = self.run_all()
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual([row["name"] for row in report["rows"]], ["gpt2_train", "generate"])
        summary = report["rows"][0]["allocators"]["weir"]["summary"]
        self.assertAlmostEqual(summary["best"], 1000)
        self.assertAlmostEqual(summary["ratio"], 1100 / 1024)
        self.assertAlmostEqual(summary["host_us"], 4)
        self.assertEqual(report["rows"][0]["equal"], "yes")
        self.assertEqual(report["rows"][1]["unit"], "tokens")
        self.assertEqual(list(report["rows"][0]["phases"]),
                         ["start", "rounds", "record", "finish", "play", "check"])
        rounds = {name: len(figures["rounds"])
                  for name, figures in report["rows"][0]["allocators"].items()}
        self.assertEqual(rounds, {"native": 8, "expandable": 8, "weir": 8, "cudaMallocAsync": 2})
        text = "\n".join(torch_report.markdown(part))
        self.assertIn("| gpt2_train | weir | 1,000.0 steps/s | 1.000; 1.000; 1.00 to 1.00 | 1,024 | 1,100 | 1.074 | 4 "
                      "| yes |", text)
        self.assertIn("| gpt2_train | 1.00; 1.00 | 1.074 | 1.074 | 1.074 | 1.074 | yes |",
                      torch_report.headline(part))

    def test_different_rounds_count_once_each(self):
        run = torch_report.load("run")
        rounds = [{"turn": turn, "units": units, "seconds": seconds} for turn, units, seconds in
                  ((0, 10, 2.0), (1, 30, 3.0), (0, 10, 1.0), (1, 30, 5.0), (0, 10, 4.0))]
        self.assertEqual(run.speeds_of(rounds), {"best": 10.0, "median": 40 / 6, "worst": 40 / 9})
        self.assertEqual(run.speeds_of([]), {})
        slower = [each | {"seconds": 2 * each["seconds"]} for each in rounds[:2]]
        self.assertEqual(run.by_round(slower, rounds), (0.5, 0.5, 0.5))
        uneven = [rounds[0] | {"seconds": 4.0}, rounds[1], rounds[2] | {"seconds": 0.5}]
        self.assertEqual(run.by_round(uneven, rounds), (0.5, 1.0, 2.0))

    def test_native_that_differs_from_itself_is_no_judge(self):
        run = torch_report.load("run")
        for marks, said in (((1, None, 1), "yes"), ((1, 1, 2), "NO"), ((1, None, 2), "not compared"),
                            ((1, 3, 2), "native differs from itself"), ((1, 1, None), "not compared")):
            row = {"allocators": {"native": {"check": marks[0], "check_again": marks[1]},
                                  "weir": {"check": marks[2]}}}
            self.assertEqual(run.equal(row), said)

    def test_with_several_streams_one_allocator_works_alone(self):
        done, report, _ = self.run_all(workloads="serve_short")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(len(report["rows"][0]["allocators"]["cudaMallocAsync"]["rounds"]), 2)
        self.assertIn("summary", report["rows"][0]["allocators"]["cudaMallocAsync"])

    def test_one_allocator_dies_and_comes_back(self):
        done, report, part = self.run_all("gpt2_train weir round die")
        self.assertEqual(done.returncode, 1)
        first, second = report["rows"]
        self.assertIn("SIGABRT", first["allocators"]["weir"]["errors"][0])
        self.assertIn("summary", first["allocators"]["native"])
        self.assertIn("summary", second["allocators"]["weir"])
        self.assertIn("gpt2_train under weir", [failure["test"] for failure in part["failures"]])
        self.assertIn("| gpt2_train | failed |", torch_report.headline(part))

    def test_one_workload_fails_and_its_process_goes_on(self):
        done, report, _ = self.run_all("gpt2_train weir start fail")
        self.assertEqual(done.returncode, 1)
        self.assertIn("on purpose", report["rows"][0]["allocators"]["weir"]["errors"][0])
        self.assertEqual(report["rows"][1]["equal"], "yes")

    def test_one_does_not_answer(self):
        done, report, _ = self.run_all("gpt2_train weir start hang")
        self.assertEqual(done.returncode, 1)
        self.assertIn("no answer", report["rows"][0]["allocators"]["weir"]["errors"][0])
        self.assertIn("summary", report["rows"][1]["allocators"]["weir"])

    def test_other_bits_are_a_failure(self):
        done, report, _ = self.run_all("gpt2_train weir check differ")
        self.assertEqual(done.returncode, 1)
        self.assertEqual(report["rows"][0]["equal"], "NO")

    def test_a_peer_that_fails_is_no_failure_of_ours(self):
        done, report, part = self.run_all("gpt2_train cudaMallocAsync start fail")
        self.assertEqual(done.returncode, 0)
        self.assertIn("| gpt2_train | cudaMallocAsync | failed: ValueError: on purpose",
                      "\n".join(torch_report.markdown(part)))

    def test_a_bad_end_of_a_process_is_a_failure(self):
        done, report, _ = self.run_all("any weir stop fail")
        self.assertEqual(done.returncode, 1)
        self.assertIn("exit status 5", report["ends"]["weir"])

    def test_what_there_is_no_time_for_is_named(self):
        done, report, _ = self.run_all(budget=5)
        self.assertEqual(done.returncode, 1)
        self.assertEqual(report["not_run"], ["gpt2_train", "generate"])


class Tests(unittest.TestCase):
    """tests/torch/run.py, with files that only say that they ran something."""

    def run_file(self, body):
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            (root / "test_sample.py").write_text(textwrap.dedent("""
                import json, os, sys, time
                left_out = os.environ["WEIR_TORCH_LEAVE_OUT"].split(",")
                def say(**line):
                    with open(os.environ["WEIR_TORCH_RECORD"], "a") as file:
                        file.write(json.dumps(line) + "\\n")
                def test(name, state="passed", why="", then=lambda: None):
                    if name in left_out: return
                    say(state="begun", test=name); then()
                    say(state=state, test=name, why=why)
                """) + textwrap.dedent(body))
            done = subprocess.run(
                [sys.executable, ROOT / "tests/torch/run.py", "--allocator", "weir", "--seconds", "5",
                 "--json", root / "tests-weir.json", root / "test_sample.py"],
                capture_output=True, text=True, timeout=60)
            report = json.loads((root / "tests-weir.json").read_text())
            return done.returncode, report["programs"][0], torch_report.read(root)

    def test_passed_failed_and_skipped(self):
        status, program, part = self.run_file("""
            say(state="planned", tests=["a", "b", "c"])
            test("a"); test("b", "failed", "it is wrong"); test("c", "skipped", "no reason")
            say(state="over")
            sys.exit(1)
            """)
        self.assertEqual(status, 1)
        self.assertEqual((program["passed"], program["failed"], program["skipped"]), (1, 1, 1))
        self.assertEqual(program["failures"], [{"test": "b", "message": "it is wrong"}])
        self.assertEqual(torch_report.programs(part)[0]["name"], "torch sample, weir")

    def test_a_crash_does_not_hide_the_others(self):
        status, program, _ = self.run_file("""
            say(state="planned", tests=["a", "b", "c"])
            test("a"); test("b", then=os.abort); test("c")
            say(state="over")
            """)
        self.assertEqual(status, 1)
        self.assertEqual(program["passes"], ["a", "c"])
        self.assertIn("SIGABRT", program["failures"][0]["message"])

    def test_what_hangs_ends(self):
        status, program, _ = self.run_file("""
            say(state="planned", tests=["a", "b"])
            test("a", then=lambda: time.sleep(100)); test("b")
            """)
        self.assertEqual(status, 1)
        self.assertIn("took too long", program["failures"][0]["message"])
        self.assertEqual(program["failures"][1], {"test": "b", "message": "not reached"})

    def test_a_crash_after_the_tests(self):
        status, program, _ = self.run_file("""
            say(state="planned", tests=["a"])
            test("a"); say(state="over"); os.abort()
            """)
        self.assertEqual(status, 1)
        self.assertEqual((program["passed"], program["failed"]), (1, 1))
        self.assertIn("after its tests", program["failures"][0]["message"])

    def test_a_file_that_does_not_start(self):
        status, program, _ = self.run_file("raise ImportError('no such thing')")
        self.assertEqual(status, 1)
        self.assertIn("no such thing", program["failures"][0]["message"])


class Report(unittest.TestCase):
    def test_the_headline_goes_between_the_marks(self):
        row = {"name": "x", "equal": "yes", "unit": "steps", "allocators": {
            name: {"errors": [], "rounds": [], "summary": {"best": 2.0, "median": 2.0, "ratio": 1.01}}
            for name in ("native", "weir")}}
        part = {"tests": {}, "failures": [], "workloads": {"rows": [row], "about": {"torch": "2.11"}}}
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "README.md"
            file.write_text(f"before\n{torch_report.BEGIN}\nold\n{torch_report.END}\nafter\n")
            self.assertTrue(torch_report.put_into(file, "2030-01-02", MACHINE, part))
            text = file.read_text()
            self.assertIn("| x | 1.00; 1.00 | 1.010 |", text)
            self.assertIn("2030-01-02, a GPU, driver 1.2, PyTorch 2.11; `./dev gpu`.", text)
            self.assertNotIn("old", text)
            self.assertTrue(text.startswith("before\n") and text.endswith("after\n"))
            file.write_text("no marks")
            self.assertFalse(torch_report.put_into(file, "2030-01-02", MACHINE, part))

    def test_the_summary_shows_the_largest_gains_the_worst_row_and_where_weir_is_worse(self):
        def row(name, speed, weir, expandable, pool):
            ratios = {"native": 2.0, "weir": weir, "expandable": expandable, "cudaMallocAsync": pool}
            return {"name": name, "equal": "yes", "allocators": {
                each: {"summary": {"best": 1.0, "median": speed if each == "weir" else 1.0, "ratio": ratio}}
                for each, ratio in ratios.items()}}
        rows = [row("a", 1.0, 1.0, 1.1, 1.2), row("b", 0.9, 1.0, 1.5, 1.2), row("c", 1.2, 1.03, 1.01, 1.2),
                row("d", 1.0, 1.0, 1.3, 0.99), row("e", 1.0, 1.0, 1.4, 1.2), row("f", 1.0, 1.0, 1.2, 1.2)]
        lines = torch_report.summary({"workloads": {"rows": rows}}).splitlines()
        self.assertEqual(lines[2:7], ["| b | **1.000** | 1.500 | 2.000 |", "| e | **1.000** | 1.400 | 2.000 |",
                                      "| d | **1.000** | 1.300 | 2.000 |", "| f | **1.000** | 1.200 | 2.000 |",
                                      "| c | **1.030** | 1.010 | 2.000 |"])
        self.assertEqual(lines[8:], [
            "The first rows show the largest gains, the last row the worst result of 6 programs.",
            "The programs run at 0.90 to 1.20 times the speed of PyTorch's own allocator (medians).",
            "weir is clearly slower in b (0.90).",
            "weir reserves more than expandable segments in c (1.030, 1.010).",
            "weir reserves more than cudaMallocAsync in d (1.000, 0.990)."])
        self.assertEqual(torch_report.summary({}), "")

    def test_the_readme_shows_the_newest_whole_report(self):
        """Otherwise: benchmarks/torch_report.py benchmarks/results/gpu-DATE.json README.md"""
        reports = [json.loads(file.read_text()) for file in sorted((ROOT / "benchmarks/results").glob("gpu-2*.json"))]
        newest = max(filter(torch_report.is_whole, reports), key=lambda report: report["date"])
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "README.md"
            readme = (ROOT / "README.md").read_text()
            file.write_text(readme)
            self.assertTrue(torch_report.put_into(file, newest["date"], newest["machine"], newest["torch"]))
            self.assertEqual(file.read_text(), readme)
        self.assertIn(torch_report.summary(newest["torch"]), readme)

    def test_why_it_was_left_out(self):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "left-out.txt").write_text("no module named torch\n")
            part = torch_report.read(Path(folder))
        self.assertEqual(part["failures"], [])
        self.assertIn("Left out: no module named torch", torch_report.markdown(part))

    def test_what_left_nothing_is_a_failure(self):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "micro.txt").write_text("it did not compile")
            part = torch_report.read(Path(folder))
        said = {failure["test"]: failure["message"] for failure in part["failures"]}
        self.assertEqual(len(said), 5)
        self.assertIn("it did not compile", said["torch micro"])

    def test_the_table_of_pairs(self):
        figures = [{"what": "pair", "way": way, "parameter": 512, "ns": ns}
                   for way, ns in (("weir", 10.0), ("torch", 500.0))]
        text = torch_report.load("micro").table(figures)
        self.assertIn("| pair, 512 B | 10.0 | – | 500.0 | – | 50.0x | ≤ 20 ns, ≥ 25x |", text)

    def test_refused_requests_show_the_slowest_round_and_the_neighbour(self):
        def figures(ms, refused):
            return {"cases": {"more than the card has": {"held": 0, "asked": 200 << 30, "ms": [1, ms]},
                              "more than is left": {"held": 60 << 30, "asked": 100 << 30, "ms": [2]}},
                    "neighbour": {"asked": 70, "refused": refused}}
        text = torch_report.load("refused").table({"weir": figures(3.25, 0), "native": figures(4, 1)})
        self.assertEqual(text.splitlines()[2:],
                         ["| more than the card has: 200 GiB | 3.2 | 4.0 |",
                          "| more than is left: 100 GiB (60 GiB held) | 2.0 | 2.0 |",
                          "| refused requests of a neighbouring process | 0 of 70 | 1 of 70 |"])


if __name__ == "__main__":
    unittest.main()
