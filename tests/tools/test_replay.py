#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""weir replay, plan, diff, record, top, help and completion as their users run them."""

import argparse
import csv
import gzip
import io
import json
import os
import pickle
import pty
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

import running

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
    return running.run(arguments.weir, map(str, words), environment)


def snapshot(path):
    """A recording with markers, stacks and memory of the device: two steps of a program, as PyTorch
    writes it. Its second step holds 3 MiB at most, its first 6."""
    frames = {name: [{"name": name, "filename": "train.py", "line": line}]
              for name, line in (("load", 3), ("step", 8))}

    def entry(time, action, address, size, name="step", stream=0):
        return {"action": action, "addr": address << 20, "size": size << 20, "stream": stream,
                "time_us": time, "frames": frames[name]}

    def free(time, address, size):
        return [entry(time, "free_requested", address, size),
                entry(time, "free_completed", address, size)]

    history = [entry(100, "segment_alloc", 64, 20), entry(110, "alloc", 64, 2, "load"),
               entry(120, "alloc", 66, 4), *free(130, 66, 4), entry(210, "alloc", 66, 1),
               entry(220, "oom", 0, 90), *free(230, 66, 1)]
    history[-3]["device_free"] = 0
    marks = [{"stage": stage, "name": name, "device": 0, "time_us": time}
             for stage, name, time in (("START", "one", 105), ("END", "one", 200), ("START", "two", 205))]
    block = {"address": 64 << 20, "size": 2 << 20, "requested_size": 2 << 20,
             "state": "active_allocated", "frames": frames["load"]}
    segment = {"device": 0, "address": 64 << 20, "total_size": 20 << 20, "stream": 0,
               "segment_type": "large", "blocks": [block]}
    path.write_bytes(pickle.dumps({"segments": [segment], "device_traces": [history],
                                   "external_annotations": marks}))
    return path


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

    def expect_progress(self, title, *words):
        """On a terminal the progress is shown up to its end, and disappears."""
        ours, its = pty.openpty()
        try:
            ran = running.run(arguments.weir, map(str, words), capture_output=False,
                              stdout=subprocess.DEVNULL, stderr=its)
            self.assertEqual(ran.returncode, 0)
            shown = ""
            while not shown.endswith("\033[K"):
                shown += os.read(ours, 1 << 16).decode()
        finally:
            os.close(its)
            os.close(ours)
        self.assertTrue(shown.endswith(f"\r{title} [{'#' * 40}] 100 %\r\033[K"), (words, shown))


class Replay(Case):
    def rows(self, *words, code=0, **environment):
        ran = self.expect(weir("replay", *words, "--format", "csv", **environment), code)
        return list(csv.DictReader(io.StringIO(ran.stdout)))

    def test_csv_has_the_promised_columns_in_their_order(self):
        ran = self.expect(weir("replay", self.small, "--format", "csv"), 0)
        self.assertEqual(ran.stdout.splitlines()[0].split(","), COLUMNS)
        self.assertEqual(ran.stderr, "")

    def test_every_figure_of_a_small_trace(self):
        row = self.rows(self.small)[0]
        self.assertGreater(int(row.pop("events_per_s")), 0)
        self.assertEqual(row, {"trace": "small", "policy": "balanced", "streams": "2", "allocs": "3",
                               "requested_peak": "3145728", "reserved_peak": "4194304",
                               "ratio": "1.3333", "driver_calls": "32", "driver_us": "83",
                               "steady_driver_pct": "140.407", "waits": "0", "ooms": "0"})

    def test_the_lag_is_how_long_memory_stays_its_streams(self):
        # Two streams that take turns where only one block fits: the second waits as long as the lag says.
        turns = self.folder / "turns.trace"
        lines = ["op,id,bytes,stream,t_us"]
        for turn in range(6):
            begin = 100 * turn
            lines += [f"a,{turn},67108864,{turn % 2},{begin}", f"r,{turn},,{turn % 2},{begin + 50}",
                      f"f,{turn},,{turn % 2},{begin + 50}"]
        turns.write_text("\n".join(lines) + "\n")
        waits = [int(self.rows(turns, "--lag-us", lag, "--capacity", "100MiB")[0]["waits"])
                 for lag in (0, 1000000)]
        self.assertEqual(waits[0], 0)
        self.assertGreater(waits[1], 0)

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

    def test_the_document_shows_what_is_said(self):
        def words(text):
            return " ".join(text.split())
        document = words((arguments.shipped.parent / "docs/replay.md").read_text())
        shown = "reserved_peak", "ratio", "driver_calls", "driver_us", "steady_driver_pct"
        said = [f"| `{row['policy']}` | " + " | ".join(row[each] for each in shown) + " |"
                for row in self.rows("--policy", "all", self.gpt2)]
        fit = weir("replay", self.gpt2, "--fit", "--policy", "torch-default,torch-expandable,balanced",
                   "--card", "16GiB,12GiB")
        said += fit.stdout.replace("gpt2_two_steps", "").splitlines()[1:]
        target = self.folder / "steps.pickle"
        exported = weir("export", arguments.shipped / "gpt2_two_steps.weirtrace", "-o", target,
                        "--format", "torch", "--place", "balanced")
        said += [(exported.stdout + exported.stderr).replace(str(target), "steps.pickle")]
        self.assertEqual([each for each in said if words(each) not in document], [])

    def test_rows_come_in_the_order_of_the_command_line_however_many_jobs(self):
        other = self.folder / "other.trace"
        other.write_text(SMALL)
        rows = self.rows(self.small, other, "--policy", "compact,balanced", "--jobs", "3")
        self.assertEqual([(row["trace"], row["policy"]) for row in rows],
                         [("small", "compact"), ("small", "balanced"),
                          ("other", "compact"), ("other", "balanced")])

    def watch(self, *words, **environment):
        """The most threads that a replay had, and the pages that it published."""
        most, pages = 0, set()
        with subprocess.Popen([arguments.weir, "replay", *map(str, words)], stdout=subprocess.DEVNULL,
                              env=running.clean_environment(**environment)) as replay:
            while replay.poll() is None:
                try:
                    most = max(most, len(os.listdir(f"/proc/{replay.pid}/task")))
                except OSError:
                    pass  # it ended meanwhile
                pages.update(running.PAGES.glob(f"weir.{replay.pid}.*"))
                time.sleep(0.001)
            self.assertEqual(replay.returncode, 0)
        return most, pages

    def test_as_many_jobs_at_a_time_as_are_asked_for_else_as_there_are_cores(self):
        # Long enough that its threads are seen.
        trace = arguments.shipped / "serve_short.weirtrace"
        long = [trace, trace, "--policy", "balanced,compact,throughput"]
        self.assertEqual(self.watch(trace, "--jobs", "1")[0], 1)
        self.assertEqual(self.watch(*long, "--jobs", "3")[0], 3)
        cores = min(3, len(os.sched_getaffinity(0)))
        self.assertGreaterEqual(self.watch(*long)[0], cores)
        many = [self.small] * 20 + long
        self.assertLessEqual(self.watch(*many, "--jobs", "8")[0], 8)

    def test_names_lose_folder_and_extensions(self):
        packed = self.folder / "my.run.trace.gz"
        packed.write_bytes(gzip.compress(SMALL.encode()))
        self.assertEqual(self.rows(packed)[0]["trace"], "my.run")
        for name, shown in ((".trace", ".trace"), ("x.csv.gz", "x"), ("a.log.csv", "a"), ("plain", "plain"),
                            ("x.pkl", "x"), ("y.gz.z", "y.gz.z")):
            trace = self.folder / name
            trace.write_text(SMALL)
            self.assertEqual(self.rows(trace)[0]["trace"], shown)

    def test_the_same_trace_gives_the_same_figures(self):
        def figures():
            row = self.rows(arguments.traces / "gnn_sample.trace.gz", "--lag-us", "300")[0]
            del row["events_per_s"]
            return row
        self.assertEqual(figures(), figures())

    def test_table_shows_what_was_recorded_beside_ours(self):
        ran = self.expect(weir("replay", self.gpt2, "--policy", "torch-default,balanced"), 0)
        self.assertIn("recorded GiB", ran.stdout)
        line = next(each for each in ran.stdout.splitlines() if "torch-default" in each)
        self.assertEqual(line.split()[2:5], ["12.661", "14.236", "14.236"])

    def test_json(self):
        ran = self.expect(weir("replay", self.small, "--format", "json"), 0)
        written = json.loads(ran.stdout)
        self.assertEqual(written["device"], "sim")
        replay = written["replays"][0]
        self.assertEqual(replay["streams"], 2)
        self.assertEqual(replay["requested_peak"], 3 << 20)
        self.assertIsNone(replay["recorded_reserved_peak"])
        ran = self.expect(weir("replay", self.gpt2, "--policy", "torch-expandable,balanced", "--format",
                               "json"), 0)
        self.assertEqual([each["recorded_reserved_peak"] for each in json.loads(ran.stdout)["replays"]],
                         [14543749120, None])
        # Where nothing was played the document is there all the same, and a table is not.
        missing = self.folder / "missing"
        self.assertEqual(json.loads(self.expect(weir("replay", missing, "--format", "json"), 2).stdout)
                         ["replays"], [])
        self.assertEqual(len(self.expect(weir("replay", missing, "--format", "csv"), 2).stdout
                             .splitlines()), 1)
        self.assertEqual(self.expect(weir("replay", missing), 2).stdout, "")

    def test_what_a_snapshot_reserved_stands_beside_every_policy(self):
        found = json.loads(self.expect(weir("replay", snapshot(self.folder / "two.pickle"), "--policy", "balanced,compact",
                                            "--format", "json"), 0).stdout)["replays"]
        self.assertEqual([each["recorded_reserved_peak"] for each in found], [20 << 20] * 2)

    def test_what_is_replayed_is_neither_recorded_nor_published(self):
        trace = self.folder / "no.weirtrace"
        _, pages = self.watch(arguments.shipped / "serve_short.weirtrace", WEIR_RECORD=str(trace),
                              WEIR_LIVE="on")
        self.assertFalse(trace.exists())
        self.assertEqual(pages, set())

    def test_a_word_of_the_environment_that_is_none_is_refused(self):
        self.expect(weir("replay", self.small, WEIR_HEAP_LIMIT="much"), 64)

    def test_what_does_not_fit_is_said_and_makes_the_exit_code(self):
        ran = self.expect(weir("replay", self.gpt2, "--capacity", "8GiB", "--format", "csv"), 1)
        row = next(csv.DictReader(io.StringIO(ran.stdout)))
        self.assertGreater(int(row["ooms"]), 0)
        self.assertLessEqual(int(row["reserved_peak"]), 8 << 30)
        self.assertEqual(row["ratio"], "")
        self.assertRegex(ran.stderr, r"^weir replay: gpt2_two_steps, balanced: out of memory at \d+\.\d{9} s: a request of .* "
                                     rf"failed with .* in use; {row['ooms']} requests failed\n$")
        # 1 and 2 MiB fit into 3, and then no half.
        little = ["replay", self.small, "--capacity", "3MiB"]
        ran = self.expect(weir(*little), 1)
        self.assertEqual(ran.stderr, "weir replay: small, balanced: out of memory at 0.000010000 s: a request of 2 MiB failed "
                                     "with 1 MiB in use; 1 request failed\n")
        self.assertEqual(ran.stdout.splitlines()[1].split()[:5], ["small", "balanced", "0.003", "0.002", "-"])
        found = json.loads(weir(*little, "--format", "json").stdout)["replays"][0]
        self.assertEqual((found["ratio"], found["ooms"], found["first_oom"]),
                         (None, 1, {"at_ns": 10000, "size": 2 << 20, "in_use": 1 << 20}))
        # What is missing of one and fails of the other is a failure.
        ran = self.expect(weir("replay", self.gpt2, self.folder / "missing", "--capacity", "8GiB"), 2)
        self.assertIn("requests failed", ran.stderr)
        self.rows(self.small, "--capacity", "4194304B")

    def test_the_fit_is_where_the_trace_runs_and_a_step_below_it_does_not(self):
        for trace, policies in ((self.gpt2, "torch-default,torch-expandable,balanced"),
                                (snapshot(self.folder / "two.pickle"), "balanced")):
            ran = self.expect(weir("replay", trace, "--fit", "--policy", policies, "--format", "csv"), 0)
            rows = list(csv.DictReader(io.StringIO(ran.stdout)))
            self.assertEqual(list(rows[0]), ["trace", "policy", "requested_peak", "fit_capacity",
                                             "fit_ratio", "plays"])
            self.assertEqual([row["policy"] for row in rows], policies.split(","))
            for row in rows:
                least = int(row["fit_capacity"])
                self.assertEqual(least % (2 << 20), 0)
                self.assertEqual(row["fit_ratio"], f"{least / int(row['requested_peak']):.4f}")
                self.rows(trace, "--policy", row["policy"], "--capacity", f"{least}B")
                if least - (2 << 20) >= int(row["requested_peak"]):
                    self.rows(trace, "--policy", row["policy"], "--capacity", f"{least - (2 << 20)}B", code=1)
        # The two steps hold 6 MiB at most, and 13.6 GB.
        self.assertEqual((row["requested_peak"], row["fit_capacity"]), (str(6 << 20), str(6 << 20)))

    def test_the_fit_says_which_cards_do(self):
        ran = self.expect(weir("replay", self.small, "--fit", "--card", "528MiB,2GiB", "--card", "533MiB"), 0)
        self.assertEqual(ran.stdout.splitlines()[0].split(),
                         "trace policy in use GiB fits from GiB ratio plays on 528 MiB on 2 GiB on 533 MiB"
                         .split())
        self.assertEqual(ran.stdout.splitlines()[1].split(),
                         ["small", "balanced", "0.003", "0.004", "1.333", "4", "no", "yes", "yes"])
        written = json.loads(self.expect(weir("replay", self.small, "--fit", "--card", "532MiB", "--format",
                                              "json"), 0).stdout)
        self.assertEqual((written["device"], written["fit_step"]), ("sim", 2 << 20))
        # A context takes 554500096 bytes of the 532 MiB, which leaves more than 3 MiB and less than 4.
        self.assertEqual(written["fits"], [{
            "trace": "small", "policy": "balanced", "requested_peak": 3 << 20, "fit_capacity": 4 << 20,
            "fit_ratio": 4 / 3, "plays": 3, "cards": [{"card": 532 << 20, "fits": False}]}])

    def test_what_never_fits_and_what_has_nothing_to_fit(self):
        ran = self.expect(weir("replay", self.gpt2, self.small, "--fit", "--capacity", "8GiB"), 1)
        self.assertEqual(ran.stderr,
                         "weir replay: gpt2_two_steps, balanced: the trace does not run with 8 GiB\n")
        self.assertEqual([line.split()[0] for line in ran.stdout.splitlines()], ["trace", "small"])
        nothing = self.folder / "nothing.trace"
        nothing.write_text("op,id,bytes,stream,t_us\n")
        ran = self.expect(weir("replay", nothing, "--fit"), 2)
        self.assertEqual((ran.stdout, ran.stderr),
                         ("", "weir replay: nothing, balanced: the trace contains no allocation\n"))
        self.assertEqual(json.loads(self.expect(weir("replay", nothing, "--fit", "--format", "json"), 2)
                                    .stdout)["fits"], [])

    def test_a_profile_has_every_request_and_free(self):
        written = json.loads(self.expect(weir("replay", self.gpt2, "--profile", "--policy",
                                              "balanced,driver-pool", "--format", "json"), 0).stdout)
        plain = self.rows(self.gpt2, "--policy", "balanced,driver-pool")
        for replay, row in zip(written["replays"], plain):
            profile = replay["profile"]
            causes = profile["causes"]
            self.assertEqual(list(causes)[:4], ["thread_cache", "free_range", "completed", "flushed"])
            self.assertEqual(list(causes)[-3:], ["kept_free", "heap_free", "record_stream"])
            self.assertEqual(len(causes), 15)
            requests = sum(cost["count"] for name, cost in causes.items()
                           if name not in ("kept_free", "heap_free", "record_stream"))
            self.assertEqual(requests, 3313)
            self.assertEqual(sum(cost["driver_calls"] for cost in causes.values()), int(row["driver_calls"]))
            self.assertEqual(sum(each["count"] for each in profile["calls"].values()),
                             int(row["driver_calls"]))
            self.assertAlmostEqual(sum(cost["driver_us"] for cost in causes.values()),
                                   int(row["driver_us"]), delta=1)
            self.assertEqual(replay["driver_us"], int(row["driver_us"]))
            # The driver's pool has no time of its own: what is left beside the driver's is within the clock's error.
            if replay["policy"] == "balanced":
                self.assertGreater(sum(cost["host_us"] for cost in causes.values()), 0)
        self.assertEqual(written["replays"][1]["profile"]["causes"]["driver_pool"]["count"], 3313)

    def test_a_profile_as_a_table_and_as_csv(self):
        ran = self.expect(weir("replay", self.small, "--profile", "--policy", "balanced,compact"), 0)
        lines = ran.stdout.splitlines()
        self.assertEqual(lines[0], "small, balanced")
        self.assertEqual(lines[1].split(), ["cause", "steps", "calls", "driver", "ms", "host", "ms"])
        self.assertIn("small, compact", lines)
        self.assertEqual([line for line in lines if line.startswith("  all ")][0].split()[:3],
                         ["all", "5", "32"])
        ran = self.expect(weir("replay", self.small, "--profile", "--format", "csv"), 0)
        self.assertEqual(ran.stdout.splitlines()[0],
                         "trace,policy,kind,name,count,driver_calls,driver_us,host_us,bytes")
        rows = list(csv.DictReader(io.StringIO(ran.stdout)))
        self.assertEqual([row["kind"] for row in rows].count("cause"), 15)
        self.assertEqual(sum(int(row["count"]) for row in rows if row["kind"] == "call"), 32)
        space = {row["name"]: int(row["bytes"]) for row in rows if row["kind"] == "space"}
        parts = [size for name, size in space.items()
                 if not name.startswith("slivers_") and name not in ("reserved", "stream_bound")]
        self.assertEqual(len(space), 19)
        self.assertEqual(sum(parts), space["reserved"])
        plain = self.rows(self.small, "--policy", "balanced")
        self.assertEqual(space["reserved"], int(plain[0]["reserved_peak"]))

    def test_an_unknown_policy_gets_a_suggestion(self):
        ran = self.expect(weir("replay", self.small, "--policy", "balancd"), 64)
        self.assertIn('did you mean "balanced"?', ran.stderr)
        self.assertEqual(ran.stdout, "")

    def test_sizes_are_binary_or_decimal(self):
        for size, count in (("8GiB", 8 << 30), ("8GB", 8 * 10**9), ("7.5 GiB", 15 << 29)):
            ran = self.expect(weir("replay", self.gpt2, "--capacity", size, "--format", "csv"), 1)
            row = next(csv.DictReader(io.StringIO(ran.stdout)))
            same = self.expect(weir("replay", self.gpt2, "--capacity", f"{count}B", "--format", "csv"), 1)
            self.assertEqual(row["reserved_peak"],
                             next(csv.DictReader(io.StringIO(same.stdout)))["reserved_peak"])
        for given, wanted in (("12 pounds", "a size"), ("12", "a size with a unit"), ("0", "a size greater than zero")):
            for option in (["--capacity"], ["--fit", "--card"]):
                ran = self.expect(weir("replay", self.small, *option, given), 64)
                self.assertEqual(ran.stderr, f"weir replay: {option[-1]}: expected {wanted}, such as 24GiB or 24GB, "
                                             f"got {given}\n")

    def test_ranges_are_said_in_words(self):
        for words, said in ((["--lag-us", "-5"], "--lag-us: expected a whole number from 0, got -5"),
                            (["--lag-us"], "--lag-us: expected a value (N)"),
                            (["--jobs", "9"], "--jobs: expected a number from 1 to 8, got 9"),
                            (["--format", "xml"], "--format: expected table, csv or json, got xml"),
                            (["--card", "24GiB"], "--card needs --fit as well"),
                            (["--profile", "--fit"], "--profile and --fit cannot be used together")):
            self.assertEqual(self.expect(weir("replay", self.small, *words), 64).stderr,
                             f"weir replay: {said}\nSee weir replay --help.\n")

    def test_bad_words_are_refused(self):
        for words in (["--device", "gpu"], ["--capacity", "much"], ["--capacity", "0"],
                      ["--lag-us", "-1"], ["--lag-us", "0x10"], ["--lag-us", str(2**64)], ["--jobs", "0"], ["--format", "xml"], ["--policy", ""],
                      ["--fit", "--capacity", "0"], ["--fit", "--card", "24 pounds"],
                      ["--fit", "--card", "0"], ["--card", "24GiB"], ["--fit", "--profile"],
                      ["--fit", "--device", "cuda"]):
            ran = self.expect(weir("replay", self.small, *words), 64)
            self.assertEqual(ran.stdout, "")
            self.assertNotEqual(ran.stderr, "")
        self.expect(weir("replay"), 64)

    def test_progress_is_shown_on_a_terminal(self):
        self.expect_progress("replaying", "replay", self.small, "--policy", "all", "--jobs", "1")
        self.expect_progress("replaying", "replay", self.small, self.small, "--jobs", "1")

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
        self.assertIn(f"weir replay: {damaged}: damaged at byte", ran.stderr)
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


    # --- What a file says ---------------------------------------------------------------------------

    def test_a_choice_of_device_is_for_snapshots(self):
        ran = self.expect(weir("replay", self.small, "--device", "7"), 0)
        self.assertEqual(ran.stderr, f"weir replay: {self.small}: not a PyTorch snapshot, so the choice of "
                                     "device 7 has no effect\n")

    def test_names_of_files_cannot_change_the_terminal(self):
        odd = self.folder / "e\033]0;title\a.csv"
        odd.write_text(SMALL)
        for words in (("replay", odd), ("replay", odd, "--fit"), ("replay", odd, "--profile"),
                      ("plan", odd, "--seconds", "0"),
                      ("export", odd, "--format", "csv", "-o", self.folder / "x\033[2J")):
            ran = self.expect(weir(*words), 0)
            self.assertNotIn("\033", ran.stdout + ran.stderr, words)
        for words in (("top", "e\033]0;title\a"), ("e\033]0;title\a",), ("plan", odd, "--step", "\033[2J")):
            ran = self.expect(weir(*words), 64)
            self.assertNotIn("\033", ran.stdout + ran.stderr, words)

    def test_a_request_of_any_size_is_one_that_is_not_met(self):
        large = self.folder / "large.csv"
        large.write_text(SMALL + f"a,9,{1 << 48},0,50\n")
        for policy in POLICIES:
            rows = self.rows(large, "--policy", policy, code=1)
            self.assertEqual([row["ooms"] for row in rows], ["1"], policy)

    def test_a_trace_may_begin_with_remarks(self):
        remarked = self.folder / "remarked.csv"
        remarked.write_text("# made by a script\n" + SMALL + "\n")
        self.assertEqual(self.rows(remarked)[0]["requested_peak"], "3145728")

    def test_a_placed_export_keeps_what_is_each_pools(self):
        """Pools of 64 MiB one after the other, each released before the next: never more than one."""
        def entry(time, action, pool, address, size):
            return {"action": action, "addr": address, "size": size, "stream": 0, "time_us": time,
                    "pool_id": (0, pool)}

        history = []
        for pool in range(1, 6):
            where = (pool, (1 << 40) + pool * (1 << 30), 64 << 20)
            for action in ("segment_alloc", "alloc", "free_requested", "free_completed", "segment_free"):
                history.append(entry(1000 * len(history), action, *where))
        recorded = self.folder / "pools.pickle"
        recorded.write_bytes(pickle.dumps({"segments": [], "device_traces": [history]}))
        placed = self.folder / "placed.weirtrace"
        self.expect(weir("export", recorded, "--format", "weirtrace", "--place", "torch-default", "-o", placed), 0)
        for policy in ("torch-default", "balanced"):
            peaks = [self.rows(each, "--policy", policy)[0]["reserved_peak"] for each in (recorded, placed)]
            self.assertEqual(peaks[0], peaks[1], policy)
            self.assertLess(int(peaks[0]), 2 * (64 << 20), policy)

    def test_figures_are_the_same_however_many_are_played_at_a_time(self):
        """Where memory is short PyTorch's policy gives segments back: which ones must not depend on
        addresses, which the replays of a process share."""
        lines = ["op,id,bytes,stream,t_us"]
        time, live, number, state = 0, [], 0, 12345
        for _ in range(1500):
            state = (state * 1103515245 + 12345) & 0x7fffffff
            time += 2000
            if live and (state >> 8) % 5 < 2:
                lines.append(f"r,{live.pop((state >> 12) % len(live))},,0,{time}")
                continue
            if len(live) > 14:
                lines.append(f"r,{live.pop(0)},,0,{time}")
            number += 1
            live.append(number)
            lines.append(f"a,{number},{((state >> 10) % 40 + 1) * 1000000},0,{time}")
        trace = self.folder / "short.csv"
        trace.write_text("\n".join(lines) + "\n")
        found = set()
        for jobs in ("1", "2", "1", "2"):
            ran = self.expect(weir("replay", trace, trace, trace, "--policy", "torch-default", "--fit",
                                   "--jobs", jobs, "--format", "csv"), 0)
            found |= {tuple(row.values()) for row in csv.DictReader(io.StringIO(ran.stdout))}
        self.assertEqual(len(found), 1, found)


class Plan(Case):
    def test_every_line_of_the_text(self):
        ran = self.expect(weir("plan", self.small, "--seconds", "0"), 0)
        self.assertEqual(ran.stdout,
                         "trace          small\n"
                         "blocks         3\n"
                         "lower bound    3145728 bytes (3 MiB)\n"
                         "by size        3145728 bytes (3 MiB)\n"
                         "height         3145728 bytes (3 MiB)\n"
                         "ratio          1.0000\n"
                         "tries          0\n"
                         "time           0.00 s\n")
        written = json.loads(self.expect(weir("plan", self.small, "--seconds", "0", "--json"), 0).stdout)
        self.assertEqual(list(written), ["weir", "trace", "blocks", "lower_bound", "height_by_size",
                                         "height", "ratio", "tries", "seconds"])
        self.assertEqual((written["trace"], written["tries"]), ("small", 0))
        self.assertLess(written["seconds"], 1)

    def test_a_step_lies_between_two_markers(self):
        recorded = snapshot(self.folder / "two.pickle")

        def figures(*words):
            written = json.loads(self.expect(weir("plan", recorded, "--seconds", "0", "--json", *words),
                                             0).stdout)
            return written["blocks"], written["lower_bound"] >> 20
        self.assertEqual(figures(), (3, 6))
        self.assertEqual(figures("--step", "0"), (2, 6))
        self.assertEqual(figures("--step", "1"), (1, 2))  # what stays from one step to the next
        self.assertEqual(figures("--step", "2"), (2, 3))
        # With one more marker within the first step.
        written = pickle.loads(recorded.read_bytes())
        written["external_annotations"].insert(1, {**written["external_annotations"][0], "time_us": 115})
        four = self.folder / "four.pickle"
        four.write_bytes(pickle.dumps(written))
        recorded, three = four, recorded
        self.assertEqual([figures("--step", step) for step in ("0", "1", "2", "3")],
                         [(1, 2), (2, 6), (1, 2), (2, 3)])
        recorded = three
        ran = self.expect(weir("plan", recorded, "--step", "3"), 64)
        self.assertEqual(ran.stderr, f"weir plan: {recorded}: --step: expected a step from 0 to 2, got 3\n")
        self.assertEqual(ran.stdout, "")

    def test_a_damaged_trace_is_planned_as_far_as_it_goes(self):
        whole = (arguments.shipped / "gpt2_two_steps.weirtrace").read_bytes()
        damaged = self.folder / "cut.weirtrace"
        damaged.write_bytes(whole[:len(whole) // 2])
        self.assertRegex(self.expect(weir("plan", damaged, "--seconds", "0"), 1).stderr,
                         f"^weir plan: {damaged}: damaged at byte [0-9]+: .*; read [0-9]+ events "
                         "before it\n$")
        self.expect(weir("plan", damaged, "--seconds", "0", "-o", self.folder), 2)  # which is no file
        # The step may stand behind the damage.
        self.assertIn("--step: the recording has no markers, so step 999 does not exist; leave --step out",
                      self.expect(weir("plan", damaged, "--step", "999"), 2).stderr)

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
        self.assertEqual(offsets.read_text(), "offset,size,begin,end\n"
                                              "2097152,1048576,1,3\n0,2097152,2,5\n2097152,524288,4,6\n")
        before = offsets.read_text()
        self.expect(weir("plan", self.small, "-o", offsets), 2)
        self.assertEqual(offsets.read_text(), before)

    def test_bad_words(self):
        self.expect(weir("plan", self.small, "--step", "0"), 64)  # it has no markers
        for words in (("--step", "-1"), ("--seed", "-1"), ("--device", "-1")):
            self.assertIn("expected a whole number from 0, got -1",
                          self.expect(weir("plan", self.small, *words), 64).stderr)
        self.expect(weir("plan", self.folder / "missing"), 2)
        self.expect(weir("plan"), 64)


class Diff(Case):
    TEXT = """                               before            after            growth
bytes at the peak             3145728          9437184          +6291456
blocks at the peak                  2                2                +0
reserved at most                    0                0                +0
allocations                         3                3                +0
bytes allocated               3670016          9961472          +6291456
out of memory                       0                0                +0

by tag
        +6 MiB        2 -> 2       blocks  (no tag)

by size
        +8 MiB        0 -> 1       blocks  8 MiB to 16 MiB
        -2 MiB        1 -> 0       blocks  2 MiB to 4 MiB

by site
        +6 MiB        2 -> 2       blocks  (no stack)
"""

    def test_every_line_of_the_text(self):
        larger = self.folder / "larger.trace"
        larger.write_text(SMALL.replace("2097152", "8388608"))
        self.assertEqual(self.expect(weir("diff", self.small, larger), 0).stdout, self.TEXT)
        self.assertEqual(self.expect(weir("diff", self.small, larger, "--top", "2"), 0).stdout, self.TEXT)
        self.assertEqual(self.expect(weir("diff", self.small, larger, "--top", "1"), 0).stdout,
                         self.TEXT.replace("        -2 MiB        1 -> 0       blocks  2 MiB to 4 MiB\n",
                                           "  and 1 more that grew less\n"))
        back = self.expect(weir("diff", larger, self.small), 0).stdout.splitlines()
        self.assertEqual(back[1], "bytes at the peak             9437184          3145728          -6291456")
        self.assertIn("        +2 MiB        0 -> 1       blocks  2 MiB to 4 MiB", back)
        self.assertIn("        -8 MiB        1 -> 0       blocks  8 MiB to 16 MiB", back)

    def test_every_figure_by_name(self):
        recorded = snapshot(self.folder / "two.pickle")
        written = json.loads(self.expect(weir("diff", self.small, recorded, "--json"), 0).stdout)
        self.assertEqual({name: (each["before"], each["after"]) for name, each in written.items()
                          if isinstance(each, dict)},
                         {"requested_peak": (3 << 20, 6 << 20), "blocks_at_peak": (2, 2),
                          "reserved_peak": (0, 20 << 20), "allocs": (3, 3),
                          "allocated_bytes": (3670016, 7 << 20), "ooms": (0, 1)})
        self.assertEqual(written["by_site"],
                         [{"name": name, "bytes_before": before << 20, "bytes_after": after << 20,
                           "blocks_before": blocks_before, "blocks_after": blocks_after}
                          for name, before, after, blocks_before, blocks_after in
                          (("step at train.py:8", 0, 4, 0, 1), ("load at train.py:3", 0, 2, 0, 1),
                           ("(no stack)", 3, 0, 2, 0))])

    def test_a_group_whose_blocks_changed_and_bytes_did_not(self):
        one, two = self.folder / "one.trace", self.folder / "two.trace"
        one.write_text("op,id,bytes,stream,t_us\na,1,2097152,0,0\n")
        two.write_text("op,id,bytes,stream,t_us\na,1,1048576,0,0\na,2,1048576,0,1\n")
        lines = self.expect(weir("diff", one, two), 0).stdout.splitlines()
        self.assertEqual(lines[lines.index("by tag") + 1],
                         "          +0 B        1 -> 2       blocks  (no tag)")

    def test_no_more_groups_are_shown_than_asked_for(self):
        # Eleven sizes, each of them another group; ten is what is shown unless told otherwise.
        many, none = self.folder / "many.trace", self.folder / "none.trace"
        lines = ["op,id,bytes,stream,t_us", *(f"a,{i},{512 << i},0,{i}" for i in range(11))]
        many.write_text("\n".join(lines) + "\n")
        none.write_text("op,id,bytes,stream,t_us\na,1,100,0,0\n")
        text = self.expect(weir("diff", none, many), 0).stdout
        sizes = text[text.index("by size\n") + 8:text.index("\n\nby site")].splitlines()
        self.assertEqual(len(sizes), 11)
        self.assertEqual(sizes[0], "      +512 KiB        0 -> 1       blocks  512 KiB to 1 MiB")
        self.assertEqual(sizes[9], "        +1 KiB        0 -> 1       blocks  1 KiB to 2 KiB")
        self.assertEqual(sizes[10], "  and 2 more that grew less")
        text = self.expect(weir("diff", none, many, "--top", "0"), 0).stdout
        self.assertIn("by size\n  and 12 more that grew less\n", text)

    def test_a_damaged_one_of_the_two_is_said(self):
        whole = (arguments.shipped / "gpt2_two_steps.weirtrace").read_bytes()
        damaged = self.folder / "cut.weirtrace"
        damaged.write_bytes(whole[:len(whole) // 2])
        for pair in ((damaged, self.small), (self.small, damaged)):
            self.assertIn(f"weir diff: {damaged}: damaged at byte",
                          self.expect(weir("diff", *pair), 1).stderr)
        self.expect(weir("diff", self.folder / "missing", self.small), 2)

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
        self.expect(weir("diff", self.small, self.small, "--top", "-1"), 64)
        self.expect(weir("diff", self.small, self.small, "--device", "-1"), 64)
        self.expect(weir("diff", self.small, self.folder / "missing"), 2)


class Record(Case):
    def test_the_programs_exit_code_comes_through(self):
        trace = self.folder / "run.weirtrace"
        self.expect(weir("record", "-o", trace, "--", "sh", "-c", "exit 7"), 7)
        self.expect(weir("record", "-o", trace, "--", "sh", "-c", "kill -9 $$"), 137)
        ran = self.expect(weir("record", "-o", trace, "--", "/nonexistent/program"), 127)
        self.assertEqual(ran.stderr, "weir record: /nonexistent/program: No such file or directory\n")
        ran = self.expect(weir("record", "-o", trace, "--", self.folder), 126)
        self.assertEqual(ran.stderr, f"weir record: {self.folder}: Permission denied\n")
        self.expect(weir("record"), 64)

    def test_the_program_is_told_where_to_record(self):
        trace = self.folder / "run.weirtrace"
        ran = self.expect(weir("record", "-o", trace, "--", "sh", "-c", 'echo x > "$WEIR_RECORD"'), 0)
        self.assertIn(str(trace), ran.stderr)

    def test_the_program_shows_what_it_holds_meanwhile(self):
        for given, published in ((None, "on"), ("off", "off")):
            environment = {} if given is None else {"WEIR_LIVE": given}
            trace = self.folder / f"{published}.weirtrace"
            ran = self.expect(weir("record", "-o", trace, "--", "sh", "-c",
                                   'echo "live=$WEIR_LIVE"; echo > "$WEIR_RECORD"', **environment), 0)
            self.assertEqual(ran.stdout, f"live={published}\n")

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
        self.assertEqual(ran.stderr,
                         "weir record: nothing was recorded: the program created no allocator of weir; a program that "
                         "does not use weir is recorded with weir run --record FILE -- PROGRAM\n")
        # What was there before was not recorded now.
        (self.folder / "run.old").write_text("old")
        self.expect(weir("record", "-o", self.folder / "run.weirtrace", "--", "true"), 3)

    def test_all_that_was_recorded_is_listed(self):
        trace = self.folder / "run.weirtrace"
        write = ('printf 123 > "$WEIR_RECORD"; printf 45 > "${WEIR_RECORD%.weirtrace}.2.weirtrace"; '
                 f'cd {self.folder}; printf 1 > other.weirtrace; printf 1 > runner; mkdir run.folder; exit 5')
        ran = self.expect(weir("record", "-o", trace, "--", "sh", "-c", write), 5)
        self.assertEqual(sorted(ran.stderr.splitlines()),
                         sorted([f"weir record: {trace} (3 B)",
                                 f"weir record: {self.folder / 'run.2.weirtrace'} (2 B)"]))

    def test_the_programs_own_files_are_no_traces(self):
        trace = self.folder / "run.weirtrace"
        names = ["run.log", "run.2.log", "run.x.weirtrace", "run.weirtrace.part", "run.weirtrace.9.bak"]
        write = f"cd {self.folder}; for each in {' '.join(names)}; do echo > $each; done"
        self.expect(weir("record", "-o", trace, "--", "sh", "-c", write), 3)
        write = f"cd {self.folder}; echo > run.3.weirtrace.17.part; echo > run.weirtrace.17.2.part"
        ran = self.expect(weir("record", "-o", trace, "--", "sh", "-c", write), 1)  # incomplete
        self.assertEqual(len(ran.stderr.splitlines()), 2)
        for line in ran.stderr.splitlines():
            self.assertRegex(line, r"\.part \(1 B\): incomplete; it ends where the recording stopped$")

    def test_the_process_may_be_part_of_a_traces_name(self):
        trace = self.folder / "run-%p.weirtrace"
        ran = self.expect(weir("record", "-o", trace, "--", arguments.program), 0)
        [made] = self.folder.glob("run-[0-9]*.weirtrace")
        self.assertRegex(ran.stderr, rf"^weir record: {made} \([0-9.]+ [KM]?i?B\)\n$")
        self.expect(weir("record", "-o", trace, "--", "true"), 3)

    def test_a_trace_that_cannot_be_made_is_said_before_the_program_runs(self):
        trace = self.folder / "missing" / "run.weirtrace"
        for command in (["record", "-o"], ["run", "--record"]):
            ran = self.expect(weir(*command, trace, "--", "echo", "ran"), 64)
            self.assertEqual((ran.stdout, ran.stderr),
                             ("", f"weir {command[0]}: {trace.parent}: No such file or directory\n"))

    def test_the_end_of_flags_is_no_name_of_a_trace(self):
        for command in (["record", "-o"], ["run", "--record"]):
            ran = self.expect(weir(*command, "--", "echo", "ran"), 64)
            self.assertEqual((ran.stdout, ran.stderr),
                             ("", f"weir {command[0]}: --: expected the name of the trace before --\n"))

    def test_a_trace_needs_no_extension(self):
        trace = self.folder / "run"
        ran = self.expect(weir("record", "-o", trace, "--", "sh", "-c", 'printf 123 > "$WEIR_RECORD"'), 0)
        self.assertEqual(ran.stderr, f"weir record: {trace} (3 B)\n")

    def test_a_trace_without_a_name_gets_the_programs(self):
        ran = running.run(arguments.weir, ["record", "--", "/bin/sh", "-c",
                                           'printf 123 > "$WEIR_RECORD"; exit 4'], cwd=self.folder)
        self.expect(ran, 4)
        [trace] = self.folder.glob("*.weirtrace")
        self.assertRegex(trace.name, "^sh-[1-9][0-9]*.weirtrace$")
        self.assertEqual(ran.stderr, f"weir record: {trace} (3 B)\n")

    def test_the_trace_lies_where_we_are_wherever_the_program_goes(self):
        ran = running.run(arguments.weir, ["record", "-o", "run.weirtrace", "--", "sh", "-c",
                                           'cd /; printf 123 > "$WEIR_RECORD"'], cwd=self.folder)
        self.expect(ran, 0)
        self.assertEqual((self.folder / "run.weirtrace").read_text(), "123")
        self.assertEqual(ran.stderr, f"weir record: {self.folder / 'run.weirtrace'} (3 B)\n")

    def test_who_ends_the_command_ends_the_program(self):
        script = f"trap 'exit 9' TERM; echo > {self.folder}/ready; while :; do sleep 0.05; done"
        command = [arguments.weir, "record", "-o", self.folder / "run.weirtrace", "--", "sh", "-c", script]
        with subprocess.Popen([str(each) for each in command], stderr=subprocess.DEVNULL) as running_command:
            while not (self.folder / "ready").exists():
                time.sleep(0.01)
            running_command.terminate()
            self.assertEqual(running_command.wait(timeout=60), 9)

    def test_signals_of_the_terminal_are_the_programs(self):
        def as_in_a_terminal():
            for each in (signal.SIGINT, signal.SIGQUIT):
                signal.signal(each, signal.SIG_DFL)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        for name, number in (("INT", signal.SIGINT), ("QUIT", signal.SIGQUIT)):
            for script, code in ((f"trap 'exit 9' {name}; kill -{name} 0; exit 8", 9),
                                 (f"kill -{name} 0; exit 8", 128 + number)):
                trace = self.folder / f"{name}{code}.weirtrace"
                ran = running.run(arguments.weir, ["record", "-o", trace, "--", "sh", "-c",
                                                   f'printf 123 > "$WEIR_RECORD"; {script}'],
                                  start_new_session=True, preexec_fn=as_in_a_terminal)
                self.expect(ran, code)
                self.assertEqual(ran.stderr, f"weir record: {trace} (3 B)\n")

    def test_a_program_that_may_not_be_run(self):
        ran = self.expect(weir("record", "-o", self.folder / "x.weirtrace", "--", self.small), 126)
        self.assertIn(f"weir record: {self.small}: ", ran.stderr)

    def test_a_file_that_is_there_is_left_alone(self):
        ran = self.expect(weir("record", "-o", self.small, "--", "true"), 64)
        self.assertEqual(ran.stderr, f"weir record: {self.small}: the file exists; remove it or name another\n")
        self.assertEqual(self.small.read_text(), SMALL)

    def test_a_file_that_cannot_be_is_bad_usage(self):
        path = self.folder / ("x" * 300)
        ran = self.expect(weir("record", "-o", path, "--", "true"), 64)
        self.assertEqual(ran.stderr, f"weir record: {path}: File name too long\n")


class Top(Case):
    def test_a_running_program_is_shown(self):
        with subprocess.Popen([arguments.program], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                              text=True, env=running.clean_environment(WEIR_LIVE="1")) as program:
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

    def test_every_figure_of_a_running_program(self):
        with subprocess.Popen([arguments.program], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                              text=True, env=running.clean_environment(WEIR_LIVE="1")) as program:
            self.assertEqual(program.stdout.readline(), "ready\n")
            for _ in range(100):
                shown = json.loads(self.expect(weir("top", program.pid, "--once", "--format", "json"),
                                               0).stdout)["allocators"][0]
                if shown["allocations"] == 1001:
                    break
                time.sleep(0.1)
            updates, stream = shown.pop("updates"), shown["streams"][-1]["stream"]
            total = shown.pop("device_total")
            reserved = shown.pop("reserved")
            self.assertGreaterEqual(reserved["current"], 64 << 20)
            self.assertGreaterEqual(reserved["peak"], reserved["current"])
            peak = (64 << 20) + 4096

            def gauge(current, peak):
                return {"current": current, "peak": peak}
            bound = [each.pop("bound") for each in shown["streams"]]
            self.assertEqual(shown, {
                "process": program.pid, "device": 0, "requested": gauge(64 << 20, peak),
                "allocated": gauge(64 << 20, peak), "active": gauge(64 << 20, peak),
                "blocks": gauge(1, 2), "allocations": 1001, "frees": 1000, "hits": 999, "failures": 0,
                "tags": [{"name": "weights", "requested": 64 << 20, "peak": peak, "blocks": 1}],
                "streams": [{"stream": stream, "live": 64 << 20}]})
            self.assertEqual(len(bound), 1)
            lines = self.expect(weir("top", program.pid, "--once"), 0).stdout.splitlines()
            self.assertRegex(lines[0], f"^process {program.pid}, device 0 of [0-9.]+ GiB, update \\d+$")
            self.assertGreaterEqual(int(lines[0].rsplit(" ", 1)[1]), updates)
            self.assertEqual(lines[2].split(), ["now", "peak"])
            self.assertEqual([line.split() for line in lines[3:6]],
                             [[name, "64", "MiB", "64", "MiB"] for name in ("requested", "allocated",
                                                                            "active")])
            self.assertEqual(lines[6].split()[0], "reserved")
            self.assertEqual(lines[7].split(), ["blocks", "1", "2"])
            self.assertRegex(lines[9], "^allocations 1001, from thread caches 99.8 %, handles [1-9]\\d* created 0 "
                                       "moved, waits 0, failures 0$")
            self.assertEqual(lines[11].split(), ["tag", "requested", "peak", "blocks"])
            self.assertEqual(lines[12].split(), ["weights", "64", "MiB", "64", "MiB", "1"])
            self.assertEqual(lines[14].split(), ["stream", "live", "free", "for", "it"])
            self.assertEqual(lines[15].split()[:3], [str(stream), "64", "MiB"])
            self.assertEqual(len(lines), 16)
            self.assertGreater(total, 64 << 20)
            program.stdin.close()

    def test_a_program_with_two_allocators(self):
        with subprocess.Popen([arguments.program, "two"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                              text=True, env=running.clean_environment(WEIR_LIVE="1")) as program:
            self.assertEqual(program.stdout.readline(), "ready\n")
            for _ in range(100):
                shown = json.loads(self.expect(weir("top", program.pid, "--once", "--format", "json"),
                                               0).stdout)["allocators"]
                if [each["allocations"] for each in shown] == [1001, 2]:
                    break
                time.sleep(0.1)
            self.assertEqual([each["requested"] for each in shown],
                             [{"current": 64 << 20, "peak": (64 << 20) + 4096},
                              {"current": 3 << 20, "peak": 3 << 20}])
            self.assertEqual(shown[1]["tags"],
                             [{"name": "", "requested": 3 << 20, "peak": 3 << 20, "blocks": 1}])
            self.assertEqual([(each["frees"], each["failures"]) for each in shown], [(1000, 0), (1, 0)])
            text = self.expect(weir("top", program.pid, "--once"), 0).stdout
            first, second = text.split(f"\n\nprocess {program.pid}, device 0 of ")
            self.assertTrue(first.startswith(f"process {program.pid}, device 0 of "))
            self.assertRegex(second, "\nallocations 2, from thread caches 0.0 %, handles [1-9]\\d* created 0 moved, "
                                     "waits 0, failures 0\n")
            self.assertRegex(second, "\n\\(no tag\\) +3 MiB +3 MiB +1\n")
            program.stdin.close()
            self.assertEqual(program.wait(timeout=20), 0)

    def test_goes_on_until_the_process_ends(self):
        with subprocess.Popen([arguments.program], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                              text=True, env=running.clean_environment(WEIR_LIVE="1")) as program:
            self.assertEqual(program.stdout.readline(), "ready\n")
            with subprocess.Popen([arguments.weir, "top", str(program.pid), "--seconds", "0.05"],
                                  stdout=subprocess.PIPE, text=True, env=running.clean_environment()) as top:
                for _ in range(2):  # once, and again
                    while not top.stdout.readline().startswith(f"process {program.pid}"):
                        pass
                program.stdin.close()
                program.wait(timeout=20)
                top.stdout.read()
                self.assertEqual(top.wait(timeout=20), 0)

    def test_a_terminal_is_cleared_before_each_update(self):
        def shown(*words):
            ours, its = pty.openpty()
            with subprocess.Popen([arguments.weir, "top", str(program.pid), *words], stdout=its,
                                  env=running.clean_environment()) as top:
                os.close(its)
                text = os.read(ours, 1 << 16)
                while text.count(b"process ") < (1 if "--once" in words else 3):
                    text += os.read(ours, 1 << 16)
                top.terminate()
            os.close(ours)
            return text
        with subprocess.Popen([arguments.program], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                              text=True, env=running.clean_environment(WEIR_LIVE="1")) as program:
            self.assertEqual(program.stdout.readline(), "ready\n")
            begin = f"process {program.pid}, device 0".encode()
            self.assertEqual(shown("--seconds", "0.05").count(b"\033[H\033[J" + begin), 3)
            self.assertTrue(shown("--once").startswith(begin))
            program.stdin.close()

    def test_the_process_of_somebody_else_is_there(self):
        how = {}
        if os.geteuid() == 0:
            how["user"] = 65534
        elif os.stat("/proc/1").st_uid == os.geteuid():
            self.skipTest("every process here is ours")
        try:
            ran = running.run(arguments.weir, ["top", "1", "--once"], **how)
        except PermissionError:
            self.skipTest("nobody else may run the command")
        self.expect(ran, 2)
        self.assertIn("publishes no live page", ran.stderr)

    def test_without_a_page_or_a_process(self):
        ran = self.expect(weir("top", os.getpid(), "--once"), 2)
        self.assertIn("publishes no live page", ran.stderr)
        self.assertEqual(self.expect(weir("top", 2**22 + 1, "--once"), 2).stderr,
                         "weir top: process 4194305 does not exist\n")
        self.expect(weir("top", "-3"), 64)
        self.expect(weir("top", "me"), 64)

    def test_what_is_no_page_is_refused(self):
        page = running.PAGES / f"weir.{os.getpid()}.1"
        page.write_bytes(b"weirlive" + bytes(20000))
        try:
            ran = self.expect(weir("top", os.getpid(), "--once"), 2)
            self.assertIn("another version of weir", ran.stderr)
            page.write_bytes(b"something else" * 2000)
            self.assertIn("not a live page", self.expect(weir("top", os.getpid(), "--once"), 2).stderr)
        finally:
            page.unlink()


class Output(Case):
    def test_what_could_not_be_written_is_no_success(self):
        everything = [["doctor"], ["doctor", "--json"], ["replay", self.small],
                      ["plan", self.small, "--seconds", "0"], ["diff", self.small, self.gpt2, "--json"],
                      ["help", "--man"], ["help"], ["--help"], ["--version"], ["completion", "bash"]]
        with open("/dev/full", "wb") as full:
            for words in everything:
                ran = running.run(arguments.weir, map(str, words), capture_output=False, stdout=full,
                                  stderr=subprocess.PIPE)
                self.assertEqual(ran.returncode, 74, words)
                # The reason is known where it is the end of the output that finds no room.
                self.assertRegex(ran.stderr, "^weir: the output could not be written"
                                             "(: No space left on device)?\n$")

    def test_a_file_that_could_not_be_written_whole_is_no_success(self):
        def limit_files():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # an error, as on a full disk
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        offsets = self.folder / "offsets.csv"
        ran = running.run(arguments.weir, ["plan", self.gpt2, "--seconds", "0", "-o", offsets],
                          preexec_fn=limit_files)
        self.assertEqual((ran.returncode, ran.stderr),
                         (2, f"weir plan: {offsets}: File too large\n"))
        page = self.folder / "page.html"
        before = sorted(self.folder.iterdir())
        ran = running.run(arguments.weir, ["report", self.small, "-o", page], preexec_fn=limit_files)
        self.assertEqual((ran.returncode, ran.stderr),
                         (2, f"weir report: {page}: File too large\n"))
        self.assertEqual(sorted(self.folder.iterdir()), before)


class Help(Case):
    def test_every_command_is_in_the_help(self):
        text = self.expect(weir("help"), 0).stdout
        for name in ("doctor", "replay", "plan", "diff", "report", "export", "record", "top",
                     "budget", "help", "completion"):
            self.assertIn(name, text)
        self.assertEqual(self.expect(weir("help", "replay"), 0).stdout,
                         self.expect(weir("replay", "--help"), 0).stdout)
        self.assertEqual(text, self.expect(weir("--help"), 0).stdout)
        ran = self.expect(weir("help", "reply"), 64)
        self.assertEqual((ran.stdout, ran.stderr),
                         ("", 'weir help: unknown command "reply"; did you mean "replay"?\n'))

    def test_words_that_are_none_get_a_suggestion(self):
        for words, said in ((["repaly", "x"], 'weir: unknown command "repaly"; did you mean "replay"?\nSee weir --help.\n'),
                            (["xyzzy"], 'weir: unknown command "xyzzy"\nSee weir --help.\n'),
                            (["--versoin"], 'weir: unknown option "--versoin"; did you mean "--version"?\nSee weir --help.\n'),
                            (["replay", "x", "--polcy=all"], 'weir replay: unknown option "--polcy"; did you mean "--policy"?\n'
                                                             "See weir replay --help.\n"),
                            (["replay", "x", "--polcy", "all"], 'weir replay: unknown option "--polcy"; did you mean '
                                                                '"--policy"?\nSee weir replay --help.\n'),
                            (["report", "a", "b", "c"], "weir report: TRACE: expected at most 2, got 3\nSee weir report --help.\n"),
                            (["export", "a", "--format", "csv"], "weir export: missing --output FILE (the file to write; - writes "
                                                                 "to the standard output)\nSee weir export --help.\n")):
            ran = self.expect(weir(*words), 64)
            self.assertEqual((ran.stdout, ran.stderr), ("", said))
        # Without a word: all commands.
        self.assertEqual(self.expect(weir(), 64).stderr, self.expect(weir("--help"), 0).stdout)
        ran = self.expect(weir("diff", self.small, self.small, WEIR_HEAP_LIMT="1GiB"), 0)
        self.assertRegex(ran.stderr, r"\Aweir: bad_option: .*: the environment variable WEIR_HEAP_LIMT is unknown and ignored; "
                                     r"did you mean WEIR_HEAP_LIMIT\?\n\Z")
        # What is wrong with words that are known is said by whoever knows it.
        self.assertIn("weir completion: missing SHELL (the shell: bash, zsh or fish)", self.expect(weir("completion"), 64).stderr)
        self.assertNotIn("unknown option", self.expect(weir("record", "-o", self.small, "--", "x", "--polcy"), 64).stderr)

    def test_the_manual_page_is_the_one_in_docs(self):
        text = self.expect(weir("help", "--man"), 0).stdout
        if os.environ.get("WRITE_DOCUMENTS"):
            arguments.man.write_text(text)
        self.assertEqual(text, arguments.man.read_text())

    def test_bash_completes(self):
        script = self.expect(weir("completion", "bash"), 0).stdout
        self.expect(weir("completion", "csh"), 64)

        def complete(*words):
            line = (f'{script}\nCOMP_WORDS=({" ".join(words)})\nCOMP_CWORD={len(words) - 1}\n_weir\n'
                    'echo "${COMPREPLY[@]}"')
            return subprocess.run(["bash", "-c", line], capture_output=True, text=True,
                                  check=True).stdout.split()

        self.assertEqual(complete("weir", ""),
                         ["doctor", "replay", "plan", "diff", "report", "export", "symbolize", "record", "run",
                          "top", "budget", "help", "completion", "--help", "--version"])
        self.assertEqual(complete("weir", "repl"), ["replay"])
        for command, options in {
                "doctor": "--help --driver --device --json",
                "replay": "--help --policy --device --lag-us --capacity --profile --fit --card --jobs "
                          "--format --snapshot-device",
                "plan": "--help --step --seconds --seed --output --force --json --device",
                "diff": "--help --top --json --device",
                "report": "--help --output --policy --place --fit --capacity --force --device",
                "export": "--help --output --format --place --force --device", "symbolize": "--help",
                "record": "--help --output --stacks",
                "run": "--help --limit --policy --record --record-stacks --record-only --live --option --free "
                       "--keep --children --no-children --python --quiet",
                "top": "--help --seconds --once --sort --folder --format",
                "budget": "--help --floor --ceiling --priority --folder --format", "help": "--help --man",
                "completion": "--help"}.items():
            self.assertEqual(complete("weir", command, "-"), options.split(), command)
        self.assertEqual(complete("weir", "replay", "--device", ""), ["sim", "cuda"])
        self.assertEqual(complete("weir", "replay", "--policy", ""), [*POLICIES, "never-move", "all"])
        for option, words in {"--policy": "balanced throughput compact never_move classic classic_expandable",
                              "--free": "wait async", "--keep": "cuMemAlloc cuMemAllocAsync",
                              "--python": "auto on off"}.items():
            self.assertEqual(complete("weir", "run", option, ""), words.split())
        self.assertEqual(complete("weir", "export", "--place", ""),
                         [each for each in POLICIES if each != "driver-pool"] + ["never-move"])
        self.assertEqual(complete("weir", "top", "--format", ""), ["table", "json"])
        self.assertEqual(complete("weir", "top", "--sort", ""), ["reserved", "live", "pid", "name"])
        self.assertEqual(complete("weir", "plan", str(self.folder) + "/sm"), [str(self.small)])
        self.assertEqual(complete("weir", "replay", "--lag"), ["--lag-us"])
        self.assertIn("balanced", complete("weir", "replay", "--policy", "b"))
        self.assertEqual(complete("weir", "replay", "--format", ""), ["table", "csv", "json"])
        self.assertEqual(complete("weir", "export", "--format", "c"), ["chrome", "csv"])


    def test_zsh_and_fish_know_every_word(self):
        """Read as text: the shells are not everywhere. Where they are, they read it, too."""
        for shell, command, option in (
                ("zsh", "'replay:", "'--format[table, csv or json]:FORMAT:(table csv json)'"),
                ("fish", "-a replay ", "'__fish_seen_subcommand_from replay' -l format -d 'table, csv or json' -r "
                                       "-f -a 'table csv json'")):
            script = self.expect(weir("completion", shell), 0).stdout
            self.assertIn(command, script)
            self.assertIn(option, script)
            for word in ("doctor", "plan", "diff", "report", "export", "record", "top", "budget", "help",
                         "completion"):
                self.assertIn(word, script)
            self.assertEqual(script.count("'") % 2, 0)
            if shutil.which(shell):
                subprocess.run([shell, "-n"], input=script, text=True, check=True)


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
