# SPDX-License-Identifier: Apache-2.0
"""benchmarks/gpu_report.py says what happened, and fails when anything did."""

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
import gpu_report  # noqa: E402

PASSED = '<testcase name="v/0" status="run" result="completed" classname="gpu/contract"/>'
FAILED = ('<testcase name="alias" status="run" result="completed" classname="vmm">'
          '<failure message="vmm.cpp:7&#x0A;1 | 2" type=""/></testcase>')
SKIPPED = ('<testcase name="peer" status="run" result="skipped" classname="copies">'
           '<skipped message="copies.cpp:9&#x0A;one device only"/></testcase>')
DISABLED = '<testcase name="DISABLED_x" status="notrun" result="suppressed" classname="a"/>'
FIGURES = {"context": {}, "benchmarks": [
    {"name": "record/64", "run_name": "record/64", "run_type": "iteration", "iterations": 1000,
     "real_time": 201.5, "cpu_time": 200.0, "time_unit": "ns", "threads": 1,
     "items_per_second": 5.0e6},
    {"name": "broken", "run_name": "broken", "run_type": "iteration", "iterations": 0,
     "real_time": 0, "cpu_time": 0, "time_unit": "ns", "error_occurred": True,
     "error_message": "no stream"}]}


class GpuReport(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        for name in ("tests", "benchmarks"):
            (self.root / name).mkdir()

    def ctest(self, *cases):
        (self.root / "ctest.xml").write_text(f"<testsuite>{''.join(cases)}</testsuite>")

    def gtest(self, program, *cases):
        (self.root / "tests" / f"{program}.xml").write_text(
            f'<testsuites><testsuite name="s">{"".join(cases)}</testsuite></testsuites>')

    def figures(self, benchmarks):
        (self.root / "benchmarks/events.json").write_text(
            json.dumps({"context": {}, "benchmarks": benchmarks}))

    def report(self):
        """(exit status, the JSON report, the Markdown report)."""
        done = subprocess.run(
            [sys.executable, ROOT / "benchmarks/gpu_report.py", "--ctest", self.root / "ctest.xml",
             "--gtest", self.root / "tests", "--benchmarks", self.root / "benchmarks",
             "--out", self.root / "out", "--date", "2030-01-02"],
            env=os.environ | {"WEIR_COMMIT": "abc123"}, capture_output=True, text=True, check=False)
        self.assertIn(done.returncode, (0, 1), done.stderr)
        self.assertEqual(done.stderr, "")
        name = self.root / "out/gpu-2030-01-02"
        return (done.returncode, json.loads(name.with_suffix(".json").read_text()),
                name.with_suffix(".md").read_text())

    def test_everything_passed(self):
        self.ctest('<testcase name="contract" time="1.5" status="run"/>')
        self.gtest("contract", PASSED, SKIPPED, DISABLED)
        self.figures(FIGURES["benchmarks"][:1])
        status, report, text = self.report()
        self.assertEqual(status, 0)
        self.assertEqual(report["outcome"], "passed")
        self.assertEqual(report["commit"], "abc123")
        self.assertEqual(report["tests"]["totals"], {"passed": 1, "failed": 0, "skipped": 1})
        self.assertEqual(report["benchmarks"][0]["real_time"], 201.5)
        self.assertEqual(report["benchmarks"][0]["counters"], {"items_per_second": 5.0e6})
        self.assertIn("# GPU run of 2030-01-02: passed", text)
        self.assertIn("`copies.peer`: one device only", text)
        self.assertIn("| record/64 | 201.5 | 200.0 | ns |", text)

    def test_a_second_report_of_a_day_leaves_the_first_alone(self):
        self.ctest('<testcase name="contract" status="run"/>')
        self.gtest("contract", PASSED)
        self.report()
        names = ["gpu-2030-01-02.json", "gpu-2030-01-02.md"]
        first = [(self.root / "out" / name).read_text() for name in names]
        for number in (2, 3):
            self.gtest("contract", FAILED)
            self.report()
            names += [f"gpu-2030-01-02-{number}.json", f"gpu-2030-01-02-{number}.md"]
        self.assertEqual(sorted(each.name for each in (self.root / "out").iterdir()), sorted(names))
        self.assertEqual([(self.root / "out" / name).read_text() for name in names[:2]], first)
        last = json.loads((self.root / "out/gpu-2030-01-02-3.json").read_text())
        self.assertEqual(last["tests"]["totals"], {"passed": 0, "failed": 1, "skipped": 0})

    def test_a_failed_test(self):
        self.ctest('<testcase name="contract" status="fail"><failure/></testcase>')
        self.gtest("contract", PASSED, FAILED)
        status, report, text = self.report()
        self.assertEqual(status, 1)
        self.assertEqual(report["tests"]["totals"], {"passed": 1, "failed": 1, "skipped": 0})
        self.assertIn(": failed", text)
        self.assertIn("`vmm.alias`: vmm.cpp:7 1 \\| 2", text)

    def test_a_program_that_died(self):
        self.ctest('<testcase name="contract" status="fail"><failure/>'
                   "<system-out>dying</system-out></testcase>")
        status, report, text = self.report()
        self.assertEqual(status, 1)
        self.assertEqual(report["tests"]["totals"]["failed"], 1)
        self.assertIn("dying", text)

    def test_a_program_that_failed_after_its_tests_passed(self):
        self.ctest('<testcase name="contract" status="fail"><failure/></testcase>')
        self.gtest("contract", PASSED)
        status, report, _ = self.report()
        self.assertEqual(status, 1)
        self.assertEqual(report["tests"]["totals"], {"passed": 1, "failed": 1, "skipped": 0})

    def test_a_program_that_was_not_built(self):
        self.ctest('<testcase name="contract" status="notrun">'
                   '<skipped message="Unable to find executable"/></testcase>',
                   '<testcase name="other" status="run"/>')
        status, report, text = self.report()
        self.assertEqual(status, 1)
        self.assertEqual(report["tests"]["totals"], {"passed": 1, "failed": 1, "skipped": 0})
        self.assertIn("Unable to find executable", text)

    def test_nothing_but_skips_is_no_success(self):
        self.ctest('<testcase name="contract" status="run"/>',
                   '<testcase name="ipc" status="notrun"><skipped message="SKIP_RETURN_CODE=7"/>'
                   "</testcase>")
        self.gtest("contract", SKIPPED)
        status, report, _ = self.report()
        self.assertEqual(status, 1)
        self.assertEqual(report["outcome"], "nothing ran")
        self.assertEqual(report["tests"]["totals"], {"passed": 0, "failed": 0, "skipped": 2})

    def test_a_benchmark_with_an_error(self):
        self.ctest('<testcase name="contract" status="run"/>')
        self.figures(FIGURES["benchmarks"])
        status, report, text = self.report()
        self.assertEqual(status, 1)
        self.assertEqual(len(report["benchmarks"]), 1)
        self.assertIn("`events broken`: no stream", text)

    def test_a_benchmark_that_died(self):
        self.ctest('<testcase name="contract" status="run"/>')
        (self.root / "benchmarks/events.json").write_text('{"context": {')
        (self.root / "benchmarks/failed.txt").write_text("events\n")
        status, report, _ = self.report()
        self.assertEqual(status, 1)
        self.assertEqual([failure["test"] for failure in report["benchmark_failures"]],
                         ["events", "events"])

    def test_gpus_are_read_from_nvidia_smi(self):
        self.assertEqual(gpu_report.read_gpus("NVIDIA H200, 580.159.04, 143771\n"),
                         [{"name": "NVIDIA H200", "driver": "580.159.04", "memory_mib": 143771}])
        self.assertEqual(gpu_report.read_gpus(""), [])


if __name__ == "__main__":
    unittest.main()
