#!/usr/bin/env python3
"""weir replay, plan, diff, record, top, help and completion as their users run them."""

import argparse
import csv
import gzip
import io
import json
import os
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

arguments = None

COLUMNS = ("trace,policy,streams,allocs,requested_peak,reserved_peak,ratio,driver_calls,driver_us,"
           "steady_driver_pct,waits,ooms,events_per_s").split(",")
POLICIES = ["torch-default", "torch-expandable", "balanced", "throughput", "compact", "driver-pool"]

SMALL = """# op,id,bytes,stream,t_us
a,1,1048576,0,0
a,2,2097152,7,10
r,1,,0,20
f,1,,0,25
a,3,524288,0,30
r,2,,7,40
f,2,,7,40
"""


def weir(*words, **environment):
    """Runs the command; nothing of the caller's own settings reaches it."""
    clean = {name: text for name, text in os.environ.items() if not name.startswith("WEIR_")}
    clean["ASAN_OPTIONS"] = clean.get("ASAN_OPTIONS", "") + ":detect_leaks=0"
    return subprocess.run([arguments.weir, *map(str, words)], capture_output=True, text=True,
                          timeout=100, env={**clean, "LC_ALL": "C", **environment}, check=False)


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.small = self.folder / "small.trace"
        self.small.write_text(SMALL)
        self.gpt2 = arguments.traces / "gpt2_two_steps.trace.gz"

    def expect(self, ran, code):
        self.assertEqual(ran.returncode, code, ran.stdout + ran.stderr)
        return ran


class Replay(Case):
    def rows(self, *words, code=0, **environment):
        ran = self.expect(weir("replay", *words, "--format", "csv", **environment), code)
        return list(csv.DictReader(io.StringIO(ran.stdout)))

    def test_csv_has_the_promised_columns_in_their_order(self):
        ran = self.expect(weir("replay", self.small, "--format", "csv"), 0)
        self.assertEqual(ran.stdout.splitlines()[0].split(","), COLUMNS)
        self.assertEqual(ran.stderr, "")

    def test_all_policies_of_a_recorded_program(self):
        rows = self.rows(self.gpt2, "--policy", "all")
        self.assertEqual([row["policy"] for row in rows], POLICIES)
        for row in rows:
            self.assertEqual(row["trace"], "gpt2_two_steps")
            self.assertEqual(row["allocs"], "3313")
            self.assertEqual(row["requested_peak"], "13594206920")
            self.assertEqual(row["ooms"], "0")
            self.assertAlmostEqual(float(row["ratio"]),
                                   int(row["reserved_peak"]) / int(row["requested_peak"]), places=4)
            self.assertGreater(int(row["events_per_s"]), 0)
        # PyTorch's own counters.
        self.assertEqual(rows[0]["reserved_peak"], "15286140928")
        self.assertEqual(rows[1]["reserved_peak"], "14543749120")

    def test_rows_come_in_the_order_of_the_command_line_however_many_jobs(self):
        other = self.folder / "other.trace"
        other.write_text(SMALL)
        rows = self.rows(self.small, other, "--policy", "compact,balanced", "--jobs", "3")
        self.assertEqual([(row["trace"], row["policy"]) for row in rows],
                         [("small", "compact"), ("small", "balanced"),
                          ("other", "compact"), ("other", "balanced")])

    def test_names_lose_folder_and_extensions(self):
        packed = self.folder / "my.run.trace.gz"
        packed.write_bytes(gzip.compress(SMALL.encode()))
        self.assertEqual(self.rows(packed)[0]["trace"], "my.run")

    def test_the_same_trace_gives_the_same_figures(self):
        def figures():
            row = self.rows(arguments.traces / "gnn_sample.trace.gz", "--lag-us", "300")[0]
            del row["events_per_s"]
            return row
        self.assertEqual(figures(), figures())

    def test_table_shows_what_was_recorded_beside_ours(self):
        ran = self.expect(weir("replay", self.gpt2, "--policy", "torch-default,balanced"), 0)
        self.assertIn("recorded GB", ran.stdout)
        line = next(each for each in ran.stdout.splitlines() if "torch-default" in each)
        self.assertEqual(line.split()[2:5], ["13.594", "15.286", "15.286"])

    def test_json(self):
        ran = self.expect(weir("replay", self.small, "--format", "json"), 0)
        written = json.loads(ran.stdout)
        self.assertEqual(written["device"], "sim")
        replay = written["replays"][0]
        self.assertEqual(replay["streams"], 2)
        self.assertEqual(replay["requested_peak"], 3 << 20)
        self.assertIsNone(replay["recorded_reserved_peak"])

    def test_what_does_not_fit_is_said_and_makes_the_exit_code(self):
        rows = self.rows(self.gpt2, "--capacity", "8GiB", code=1)
        self.assertGreater(int(rows[0]["ooms"]), 0)
        self.assertLessEqual(int(rows[0]["reserved_peak"]), 8 << 30)

    def test_an_unknown_policy_gets_a_suggestion(self):
        ran = self.expect(weir("replay", self.small, "--policy", "balancd"), 64)
        self.assertIn('did you mean "balanced"?', ran.stderr)
        self.assertEqual(ran.stdout, "")

    def test_bad_words_are_refused(self):
        for words in (["--device", "gpu"], ["--capacity", "much"], ["--capacity", "0"],
                      ["--lag-us", "-1"], ["--jobs", "0"], ["--format", "xml"], ["--policy", ""]):
            ran = self.expect(weir("replay", self.small, *words), 64)
            self.assertEqual(ran.stdout, "")
            self.assertNotEqual(ran.stderr, "")
        self.expect(weir("replay"), 64)

    def test_files_that_cannot_be_read(self):
        empty = self.folder / "empty.trace"
        empty.write_bytes(b"")
        foreign = self.folder / "foreign.trace"
        foreign.write_bytes(bytes(range(256)) * 20)
        cut = self.folder / "cut.trace.gz"
        cut.write_bytes(gzip.compress(SMALL.encode() * 100)[:60])
        for path in (self.folder / "missing", empty, foreign, cut, self.folder):
            ran = self.expect(weir("replay", path), 2)
            self.assertIn(str(path), ran.stderr)
            self.assertEqual(ran.stdout, "")

    def test_a_damaged_trace_is_played_as_far_as_it_goes(self):
        whole = (arguments.shipped / "serve_short.weirtrace").read_bytes()
        damaged = self.folder / "cut.weirtrace"
        damaged.write_bytes(whole[:len(whole) * 9 // 10])
        ran = self.expect(weir("replay", damaged, "--format", "csv"), 1)
        self.assertIn("damaged at byte", ran.stderr)
        row = next(csv.DictReader(io.StringIO(ran.stdout)))
        self.assertEqual(row["trace"], "cut")
        self.assertGreater(int(row["allocs"]), 0)
        self.assertLess(int(row["allocs"]), 214141)

    def test_shipped_traces_play_as_their_originals(self):
        def figures(path):
            row = self.rows(path, "--policy", "balanced")[0]
            del row["events_per_s"]
            return row
        for name in ("gpt2_two_steps", "multistream_prefetch"):
            self.assertEqual(figures(arguments.shipped / f"{name}.weirtrace"),
                             figures(arguments.traces / f"{name}.trace.gz"))

    def test_one_bad_file_does_not_hide_the_others(self):
        rows = self.rows(self.folder / "missing", self.small, code=2)
        self.assertEqual([row["trace"] for row in rows], ["small"])

    def test_without_a_driver_a_real_device_is_refused(self):
        ran = self.expect(weir("replay", self.small, "--device", "cuda",
                               WEIR_DRIVER="/nonexistent/libcuda.so.1"), 2)
        self.assertIn("driver_unavailable", ran.stderr)

    def test_a_driver_is_played_on_and_patterns_are_kept(self):
        for policy in POLICIES:
            rows = self.rows(self.small, "--device", "cuda:0", "--policy", policy,
                             WEIR_DRIVER=arguments.driver)
            self.assertEqual(rows[0]["requested_peak"], str(3 << 20))
            self.assertGreater(int(rows[0]["driver_calls"]), 0)
        ran = self.expect(weir("replay", self.small, "--device", "cuda:9",
                               WEIR_DRIVER=arguments.driver), 2)
        self.assertIn("no_device", ran.stderr)


class Plan(Case):
    def test_a_small_trace_reaches_its_bound(self):
        ran = self.expect(weir("plan", self.small, "--json"), 0)
        written = json.loads(ran.stdout)
        self.assertEqual(written["blocks"], 3)
        self.assertEqual(written["lower_bound"], 3 << 20)
        self.assertEqual(written["height"], 3 << 20)
        self.assertEqual(written["ratio"], 1.0)

    def test_text_and_offsets(self):
        offsets = self.folder / "offsets.csv"
        ran = self.expect(weir("plan", self.small, "-o", offsets), 0)
        self.assertIn("lower bound    3145728 bytes (3 MiB)", ran.stdout)
        rows = list(csv.DictReader(io.StringIO(offsets.read_text())))
        self.assertEqual([row["size"] for row in rows], ["1048576", "2097152", "524288"])
        before = offsets.read_text()
        self.expect(weir("plan", self.small, "-o", offsets), 2)
        self.assertEqual(offsets.read_text(), before)

    def test_bad_words(self):
        self.expect(weir("plan", self.small, "--step", "0"), 64)  # it has no markers
        self.expect(weir("plan", self.folder / "missing"), 2)
        self.expect(weir("plan"), 64)


class Diff(Case):
    def test_what_grew_comes_first(self):
        larger = self.folder / "larger.trace"
        larger.write_text(SMALL.replace("2097152", "8388608"))
        ran = self.expect(weir("diff", self.small, larger, "--json"), 0)
        written = json.loads(ran.stdout)
        self.assertEqual(written["requested_peak"], {"before": 3 << 20, "after": 9 << 20})
        self.assertEqual(written["by_size"][0]["name"], "8 MiB to 16 MiB")
        self.assertIn("+8 MiB", self.expect(weir("diff", self.small, larger), 0).stdout)

    def test_equals_have_no_groups(self):
        written = json.loads(self.expect(weir("diff", self.small, self.small, "--json"), 0).stdout)
        self.assertEqual((written["by_size"], written["by_tag"], written["by_site"]), ([], [], []))

    def test_bad_words(self):
        self.expect(weir("diff", self.small), 64)
        self.expect(weir("diff", self.small, self.folder / "missing"), 2)


class Record(Case):
    def test_the_programs_exit_code_comes_through(self):
        trace = self.folder / "run.weirtrace"
        self.expect(weir("record", "-o", trace, "--", "sh", "-c", "exit 7"), 7)
        self.expect(weir("record", "-o", trace, "--", "sh", "-c", "kill -9 $$"), 137)
        self.expect(weir("record", "-o", trace, "--", "/nonexistent/program"), 127)
        self.expect(weir("record"), 64)

    def test_the_program_is_told_where_to_record(self):
        trace = self.folder / "run.weirtrace"
        ran = self.expect(weir("record", "-o", trace, "--", "sh", "-c", 'echo x > "$WEIR_RECORD"'), 0)
        self.assertIn(str(trace), ran.stderr)

    def test_a_program_is_recorded_and_its_recording_replayed(self):
        trace = self.folder / "run.weirtrace"
        ran = self.expect(weir("record", "-o", trace, "--", arguments.program), 0)
        self.assertIn("ready", ran.stdout)
        self.assertIn("run.weirtrace", ran.stderr)
        ran = self.expect(weir("replay", trace, "--policy", "balanced", "--format", "csv"), 0)
        row = next(csv.DictReader(io.StringIO(ran.stdout)))
        self.assertEqual(row["allocs"], "1001")
        self.assertEqual(row["requested_peak"], str((64 << 20) + 4096))

    def test_nothing_recorded_is_said(self):
        ran = self.expect(weir("record", "-o", self.folder / "run.weirtrace", "--", "true"), 3)
        self.assertIn("nothing was recorded", ran.stderr)

    def test_a_file_that_is_there_is_left_alone(self):
        self.expect(weir("record", "-o", self.small, "--", "true"), 64)
        self.assertEqual(self.small.read_text(), SMALL)


class Top(Case):
    def test_a_running_program_is_shown(self):
        with subprocess.Popen([arguments.program], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                              text=True, env={**os.environ, "WEIR_LIVE": "1"}) as program:
            self.assertEqual(program.stdout.readline(), "ready\n")
            for _ in range(100):  # the page is refreshed now and then
                ran = self.expect(weir("top", program.pid, "--once", "--format", "json"), 0)
                shown = json.loads(ran.stdout)["allocators"][0]
                if shown["allocations"] == 1001:
                    break
                time.sleep(0.1)
            self.assertEqual(shown["requested"]["current"], 64 << 20)
            self.assertEqual(shown["allocations"], 1001)
            ran = self.expect(weir("top", program.pid, "--once"), 0)
            self.assertRegex(ran.stdout, "weights +64 MiB")
            program.stdin.close()
            self.assertEqual(program.wait(timeout=20), 0)
        self.expect(weir("top", program.pid, "--once"), 2)

    def test_without_a_page_or_a_process(self):
        ran = self.expect(weir("top", os.getpid(), "--once"), 2)
        self.assertIn("publishes no live page", ran.stderr)
        self.expect(weir("top", 2**22 + 1, "--once"), 2)
        self.expect(weir("top", "-3"), 64)
        self.expect(weir("top", "me"), 64)

    def test_what_is_no_page_is_refused(self):
        page = Path(f"/dev/shm/weir.{os.getpid()}.1")
        page.write_bytes(b"weirlive" + bytes(20000))
        try:
            ran = self.expect(weir("top", os.getpid(), "--once"), 2)
            self.assertIn("another weir", ran.stderr)
            page.write_bytes(b"something else" * 2000)
            self.assertIn("no live page", self.expect(weir("top", os.getpid(), "--once"), 2).stderr)
        finally:
            page.unlink()


class Help(Case):
    def test_every_command_is_in_the_help(self):
        text = self.expect(weir("help"), 0).stdout
        for name in ("doctor", "replay", "plan", "diff", "report", "export", "record", "top", "help",
                     "completion"):
            self.assertIn(name, text)
        self.assertEqual(self.expect(weir("help", "replay"), 0).stdout,
                         self.expect(weir("replay", "--help"), 0).stdout)
        self.expect(weir("help", "reply"), 64)
        self.expect(weir("reply"), 64)

    def test_the_manual_page_is_the_one_in_docs(self):
        text = self.expect(weir("help", "--man"), 0).stdout
        if os.environ.get("WRITE_DOCUMENTS"):
            arguments.man.write_text(text)
        self.assertEqual(text, arguments.man.read_text())

    def test_bash_completes(self):
        script = self.expect(weir("completion", "bash"), 0).stdout
        self.expect(weir("completion", "fish"), 64)

        def complete(*words):
            line = (f'{script}\nCOMP_WORDS=({" ".join(words)})\nCOMP_CWORD={len(words) - 1}\n_weir\n'
                    'echo "${COMPREPLY[@]}"')
            return subprocess.run(["bash", "-c", line], capture_output=True, text=True,
                                  check=True).stdout.split()

        self.assertEqual(complete("weir", "repl"), ["replay"])
        self.assertEqual(complete("weir", "replay", "--lag"), ["--lag-us"])
        self.assertIn("balanced", complete("weir", "replay", "--policy", "b"))
        self.assertEqual(complete("weir", "replay", "--format", ""), ["table", "csv", "json"])
        self.assertEqual(complete("weir", "export", "--format", "c"), ["chrome", "csv"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--weir", required=True)
    parser.add_argument("--program", required=True)
    parser.add_argument("--driver", required=True)
    parser.add_argument("--traces", required=True, type=Path)
    parser.add_argument("--shipped", required=True, type=Path)
    parser.add_argument("--man", required=True, type=Path)
    arguments, rest = parser.parse_known_args()
    unittest.main(argv=[sys.argv[0], *rest])
