#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""weir run on programs that know nothing of weir, on the simulator's driver library."""

import argparse
import fcntl
import os
import random
import re
import signal
import stat
import subprocess
import sys
import tempfile
import time
import unittest
import zipfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
import running  # noqa: E402

MIB, GIB = 1 << 20, 1 << 30
WAYS = ("dlsym", "linked", "runtime", "proc1", "proc2")


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.report = self.folder / "report"
        elsewhere = tempfile.TemporaryDirectory()  # Python finds modules in the working folder, too
        self.addCleanup(elsewhere.cleanup)
        self.elsewhere = elsewhere.name

    def start(self, words, **environment):
        """A program on the simulated driver, with a report of what it called there."""
        self.report.unlink(missing_ok=True)
        return running.run(str(words[0]), [str(word) for word in words[1:]], {
            "LD_LIBRARY_PATH": str(Path(arguments.driver).parent), "WEIR_SIM_CAPACITY": "4GiB",
            "WEIR_SIM_DEVICES": "2", "WEIR_SIM_REPORT": str(self.report), **environment}, cwd=self.elsewhere)

    def program(self, way, *words):
        return [arguments.linked if way == "linked" else arguments.opened, way, *words]

    def weir_run(self, program, *flags, **environment):
        return self.start([arguments.weir, "run", *flags, "--", *program], **environment)

    def calls(self):
        """How often each driver call was made, of all processes together; no hazard was found."""
        text = self.report.read_text()
        self.assertEqual(set(re.findall(r"^hazards (\d+)$", text, re.M)), {"0"}, text)
        return self.counts(text)

    def counts(self, text):
        counts = {}
        for name, count in re.findall(r"^call (\w+) (\d+)$", text, re.M):
            counts[name] = counts.get(name, 0) + int(count)
        return counts

    def compare(self, scenario, *flags, ways=WAYS, said="", **environment):
        """The program's own output is the same with and without; returns the last counts."""
        for way in ways:
            with self.subTest(way=way, scenario=scenario):
                native = self.start(self.program(way, *scenario), **environment)
                self.assertEqual((native.returncode, native.stderr), (0, ""))
                self.calls()
                served = self.weir_run(self.program(way, *scenario), *flags, **environment)
                self.assertEqual(served.stdout, native.stdout)
                self.assertEqual((served.returncode, served.stderr), (0, said))
        return self.calls()


class Served(Case):
    def test_plain_memory(self):
        calls = self.compare(["basic"])
        # Of nothing, for nobody and of 64 TiB, and one for the wait of each of the four frees.
        self.assertEqual(calls["cuMemAlloc_v2"], 7)
        self.assertGreater(calls["cuMemCreate"], 0)

    def test_streams(self):
        calls = self.compare(["ordered"])
        self.assertEqual(calls.get("cuMemAllocAsync", 0), 1)  # of nothing
        self.assertEqual(calls.get("cuMemAllocFromPoolAsync", 0), 0)

    def test_memory_never_meets_other_streams_work(self):
        for seed in range(1, 9):
            self.compare(["hazard"], ways=["dlsym"], WEIR_SIM_SEED=str(seed))
            self.compare(["hazard"], "--free", "async", ways=["dlsym"], WEIR_SIM_SEED=str(seed))

    def test_frees_wait_for_the_context_or_not(self):
        program = self.program("dlsym", "many", 40)
        self.weir_run(program)
        waiting = self.calls()
        self.weir_run(program, "--free", "async")
        behind_events = self.calls()
        # A free of the driver's own waits for the context, and leaves captures valid.
        self.assertEqual(waiting["cuMemFree_v2"], 40)
        self.assertEqual(waiting.get("cuCtxRecordEvent", 0), 0)
        self.assertEqual(waiting.get("cuCtxSynchronize", 0), 0)
        self.assertEqual(behind_events["cuCtxRecordEvent"], 40)
        self.assertEqual(behind_events.get("cuMemFree_v2", 0), 0)

    def test_memory_that_was_freed_behind_work_is_free_once_the_work_is_done(self):
        for free in ("wait", "async"):
            self.compare(["behind"], "--free", free, ways=["dlsym"], WEIR_SIM_MODE="manual")

    def test_a_free_that_waits_does_not_stop_captures_of_other_devices(self):
        for free in ("wait", "async"):
            self.compare(["gate"], "--free", free, ways=["dlsym"], WEIR_SIM_MODE="manual")

    def test_captures_stay_valid(self):
        """The driver refuses requests during captures of the modes 0 and 1 (global, of the thread), and ends these."""
        def expected(code, end):
            return "".join(f"{mode} {what}: {code if mode < 2 else 0}, end {end if mode < 2 else 0}\n"
                           for mode in range(3) for what in range(4))
        program = self.program("dlsym", "captures")
        self.assertEqual(self.start(program).stdout, expected(900, 901))
        self.assertEqual(self.weir_run(program).stdout, expected(0, 0))

    def test_captures_that_nobody_ends(self):
        for free in ("wait", "async"):
            for scenario in ("unended", "unended_thread"):
                self.compare([scenario], "--free", free, ways=["dlsym"])

    def test_threads(self):
        self.compare(["threads"])

    def test_several_runtimes(self):
        self.compare(["runtimes"])

    def test_reset(self):
        self.compare(["reset"])

    def test_memory_that_goes_with_its_context_does_not_count(self):
        for keep in (["--keep", "cuMemAlloc"], []):
            self.compare(["resets"], "--limit", "1GiB", *keep, ways=["dlsym"])

    def test_release(self):
        self.compare(["releases"])

    def test_a_release_too_many_is_refused(self):
        self.compare(["over"])
        self.assertIn("release 0\nrelease again 201\nholds 1\n",
                      self.weir_run(self.program("dlsym", "over")).stdout)

    def test_peers(self):
        self.compare(["peers"])

    def test_fork_and_exec(self):
        self.compare(["forks"])

    def test_workers_that_are_forked_before_the_driver_is_initialized(self):
        calls = self.compare(["workers"], ways=["dlsym", "linked", "proc2"])
        self.assertGreater(calls["cuMemCreate"], 0)

    def test_a_child_that_does_not_exec(self):
        trace = self.folder / "run.weirtrace"
        self.compare(["child"])
        ran = self.weir_run(self.program("dlsym", "child"), "--record", trace, "--live")
        self.assertEqual(ran.stdout, "child 6\nfree 0\n")
        self.assertEqual(sorted(each.name for each in self.folder.glob("run*")), ["run.weirtrace"])

    def test_keep(self):
        self.compare(["basic"], "--keep", "cuMemAlloc")
        self.assertEqual(self.calls()["cuMemAlloc_v2"], 6)
        self.compare(["ordered"], "--keep", "cuMemAllocAsync")
        self.assertEqual(self.calls()["cuMemAllocAsync"], 44)

    def test_double_frees(self):
        for policy in ("balanced", "classic", "classic_expandable"):
            for free in ("wait", "async"):
                self.compare(["twice"], "--policy", policy, "--free", free, ways=["dlsym"])

    def test_policies(self):
        for policy in ("balanced", "compact", "never_move", "classic"):
            self.compare(["basic"], "--policy", policy, ways=["runtime"])


class RandomPrograms(Case):
    SETTINGS = ([], ["--policy", "compact"], ["--policy", "classic"], ["--policy", "never_move"], ["--free", "async"],
                ["--keep", "cuMemAlloc"], ["--keep", "cuMemAllocAsync"], ["--limit", "3GiB"], ["--record", "%"])

    def made(self):  # the programs have hazards of their own
        return self.counts(self.report.read_text())

    def ordered_requests(self):
        calls = self.made()
        return sum(calls.get(name, 0) for name in ("cuMemAllocAsync", "cuMemAllocFromPoolAsync"))

    def check(self, seed):
        program = [arguments.random, str(seed), "600"]
        native = self.start(program)
        self.assertEqual((native.returncode, native.stderr), (0, ""))
        self.assertEqual(len(native.stdout.splitlines()), 601)
        requests = self.ordered_requests()
        self.assertGreater(requests, 0)
        for flags in (self.SETTINGS[seed % len(self.SETTINGS)], self.SETTINGS[(seed * 5 + 2) % len(self.SETTINGS)]):
            with self.subTest(seed=seed, flags=flags):
                trace = str(self.folder / f"{seed}.weirtrace")
                served = self.weir_run(program, "--quiet", *[trace if each == "%" else each for each in flags])
                self.assertEqual(served.returncode, 0, served.stderr)
                different = [lines for lines in zip(native.stdout.splitlines(), served.stdout.splitlines(), strict=True)
                             if lines[0] != lines[1]]
                self.assertEqual(different[:3], [])
                if "cuMemAllocAsync" in flags:  # plain memory comes in pieces that weir makes
                    self.assertGreater(self.made().get("cuMemCreate", 0), 0)
                else:
                    self.assertLess(self.ordered_requests(), requests)

    def test_answers_are_the_drivers(self):
        """Random programs get the same answers with every setting as from the driver itself. The same programs on every
        machine; WEIR_RUN_SECONDS goes on with new ones, and a failure names its seed."""
        deadline = time.monotonic() + float(os.environ.get("WEIR_RUN_SECONDS", "0"))
        for seed in range(1, 101):
            self.check(seed)
        first = random.SystemRandom().randrange(101, 1 << 40)
        seed = first
        while time.monotonic() < deadline:
            self.check(seed)
            seed += 1
        if seed != first:
            print(f"random programs: seeds 1 to 100, and {seed - first} from {first} on", file=sys.stderr)


class PassedOn(Case):
    def test_graphs(self):
        self.compare(["capture"],
                     said="weir run: memory that graphs allocate is left to the driver\n")

    def test_pools(self):
        said = "weir run: pools that the program created are left to the driver; they count towards the limit\n"
        calls = self.compare(["pools"], said=said)
        self.assertEqual((calls["cuMemAllocFromPoolAsync"], calls["cuMemAllocAsync"]), (1, 1))

    def test_pools_of_another_device(self):
        said = "weir run: pools that the program created are left to the driver; they count towards the limit\n"
        self.compare(["crosses"], said=said)
        ran = self.weir_run(self.program("dlsym", "crosses"), "--limit", "1GiB")
        self.assertEqual(ran.stdout.splitlines(), [
            "default pool 0", "used 64 MiB, most 64 MiB", "free 0", "used 0 MiB", "create 0",
            # Each device has 1 GiB; beside 1 MiB of weir's there are 15 blocks.
            "14 blocks on its stream", "other device 0", "1 more", "create 0", "current pool 2", "other device 0"])

    def test_ipc(self):
        program = self.program("dlsym", "ipc")
        served = self.weir_run(program)
        self.assertEqual(served.stdout, "handle 1\n")  # CUDA_ERROR_INVALID_VALUE, the driver's own
        self.assertEqual(served.stderr, "weir run: cuIpcGetMemHandle does not support weir's memory; "
                                        "use --keep cuMemAlloc to leave cuMemAlloc to the driver\n")
        self.assertEqual(self.weir_run(program, "--quiet").stderr, "")
        self.assertEqual(self.weir_run(program, "--policy", "classic").stdout, "handle 1\n")
        self.assertEqual(self.weir_run(program, "--keep", "cuMemAlloc").stdout, "handle 0\n")

    def test_settings_that_cannot_be_read(self):
        ran = self.weir_run(self.program("dlsym", "many", 3), WEIR_HEAP_POLICY="nonsense")
        self.assertEqual(ran.stdout, "3 allocations, 0 failures\n")
        # The library names the mistake, and the command says what follows from it.
        self.assertRegex(ran.stderr, r"^weir: bad_option: .*WEIR_HEAP_POLICY.*\n"
                                     r"weir run: weir cannot be used here, and the driver serves all memory: "
                                     r".*WEIR_HEAP_POLICY.*\n$")
        self.assertEqual(self.calls()["cuMemAlloc_v2"], 3)


    def test_services_that_cannot_be_provided(self):
        """The program is served without them, and each is told of once."""
        pages = self.folder / "pages"
        pages.mkdir(mode=0o700)
        garbled = self.folder / "garbled"
        garbled.mkdir(mode=0o700)
        budget = f"floor=1MiB,folder={garbled}"
        self.weir_run(self.program("dlsym", "many", 1), WEIR_BUDGET=budget)
        for page in garbled.iterdir():
            page.write_bytes(os.urandom(page.stat().st_size))
        for variable, value in (("WEIR_BUDGET", f"floor=5GiB,folder={pages}"), ("WEIR_BUDGET", budget),
                                ("WEIR_BUDGET", "floor=much"), ("WEIR_RECORD", str(self.folder / "no/such"))):
            with self.subTest(variable=variable, value=value):
                ran = self.weir_run(self.program("dlsym", "many", 50), **{variable: value})
                self.assertEqual(ran.stdout, "50 allocations, 0 failures\n")
                self.assertRegex(ran.stderr, "^weir run: a requested service is not available: "
                                             f".*{variable}: .*\n$")
                self.assertEqual(len(ran.stderr.splitlines()), 1)
                calls = self.calls()
                self.assertEqual(calls["cuMemAlloc_v2"], 50)  # one for the wait of each free
                self.assertGreater(calls["cuMemCreate"], 0)
                self.assertEqual(calls["cuStreamCreateWithPriority"], 1)  # the heap is made once

    def test_a_page_that_is_locked_costs_its_wait_once(self):
        pages = self.folder / "pages"
        pages.mkdir(mode=0o700)
        budget = f"floor=1MiB,folder={pages}"
        self.weir_run(self.program("dlsym", "many", 1), WEIR_BUDGET=budget)
        page, = pages.iterdir()
        with open(page) as locked:
            fcntl.flock(locked, fcntl.LOCK_EX)
            ran = self.weir_run(self.program("dlsym", "many", 20), WEIR_BUDGET=budget)
        self.assertEqual(ran.stdout, "20 allocations, 0 failures\n")
        self.assertEqual(len(ran.stderr.splitlines()), 1, ran.stderr)
        self.assertEqual(self.calls()["cuStreamCreateWithPriority"], 1)


class Limits(Case):
    def test_limit(self):
        for way in WAYS:
            ran = self.weir_run(self.program(way, "fill"), "--limit", "1GiB")
            self.assertEqual(ran.stdout, "total 1024 MiB, 1024 MiB\n16 blocks, then 2\n"
                                         "free at most 64 MiB: 1\nfree afterwards: 1\n")

    def test_without_a_limit_it_is_the_device(self):
        self.compare(["fill"], ways=["dlsym"])

    def test_limit_counts_what_the_driver_serves(self):
        ran = self.weir_run(self.program("dlsym", "fill"), "--limit", "512MiB", "--keep", "cuMemAlloc")
        self.assertIn("8 blocks, then 2\n", ran.stdout)
        self.assertIn("free afterwards: 1\n", ran.stdout)

    def test_limit_counts_what_the_driver_served_before(self):
        for keep in ("cuMemAlloc", "cuMemAllocAsync"):
            ran = self.weir_run(self.program("dlsym", "both"), "--limit", "1GiB", "--keep", keep)
            self.assertEqual(ran.stdout, "12 plain, 4 of streams\n")

    def test_what_is_only_recorded_has_no_limit(self):
        native = self.start(self.program("dlsym", "fill"))
        for variables in ({"WEIR_HEAP_LIMIT": "1GiB"}, {"WEIR_HEAP_LIMIT_PERCENT": "25"}):
            trace = self.folder / f"{len(variables)}{next(iter(variables))}.weirtrace"
            ran = self.weir_run(self.program("dlsym", "fill"), "--record-only", "--record", trace, **variables)
            self.assertEqual((ran.returncode, ran.stdout, ran.stderr), (0, native.stdout, ""))

    def test_limit_as_a_share(self):
        ran = self.weir_run(self.program("dlsym", "fill"), "--option", "heap_limit_percent=25")
        self.assertIn("total 1024 MiB, 1024 MiB\n16 blocks, then 2\n", ran.stdout)


class Recording(Case):
    def events(self, trace):
        return running.events_of(arguments.weir, trace)

    def test_every_event(self):
        trace = self.folder / "run.weirtrace"
        ran = self.weir_run(self.program("runtime", "many", 250), "--record", trace)
        self.assertEqual((ran.returncode, ran.stdout, ran.stderr), (0, "250 allocations, 0 failures\n", ""))
        self.assertEqual(self.events(trace), (250, 250))
        self.assertEqual(sorted(os.listdir(self.folder)), ["report", "run.weirtrace"])

    def test_frees_behind_work_are_in_the_trace(self):
        for number in (0, 1):
            trace = self.folder / f"behind{number}.weirtrace"
            ran = self.weir_run(self.program("dlsym", "behind", number), "--free", "async", "--record", trace,
                                WEIR_SIM_MODE="manual")
            self.assertEqual((ran.returncode, ran.stderr), (0, ""))
            self.assertEqual(self.events(trace), (11, 11))

    def test_record_only(self):
        trace = self.folder / "run.weirtrace"
        native = self.start(self.program("runtime", "many", 250))
        expected = self.calls()
        ran = self.weir_run(self.program("runtime", "many", 250), "--record-only", "--record", trace)
        self.assertEqual((ran.returncode, ran.stdout, ran.stderr), (0, native.stdout, ""))
        self.assertEqual(self.events(trace), (250, 250))
        calls = self.calls()
        for name in ("cuMemAlloc_v2", "cuMemFree_v2"):
            self.assertEqual(calls[name], expected[name])
        self.assertNotIn("cuMemCreate", calls)
        replayed = running.run(arguments.weir, ["replay", str(trace), "--format", "json"])
        self.assertEqual(replayed.returncode, 0, replayed.stderr)

    def test_pools_and_streams_are_in_the_trace(self):
        for number, (scenario, count) in enumerate({"pools": 2, "ordered": 46}.items()):
            for flags in ([], ["--record-only"]):
                trace = self.folder / f"{number}{len(flags)}.weirtrace"
                self.weir_run(self.program("dlsym", scenario), "--record", trace, *flags)
                self.assertEqual(self.events(trace)[0], count, (scenario, flags))

    def test_children_have_traces_of_their_own(self):
        trace = self.folder / "run.weirtrace"
        ran = self.weir_run(self.program("dlsym", "forks"), "--record", trace)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        traces = sorted(each.name for each in self.folder.glob("*.weirtrace"))
        self.assertEqual(len(traces), 2, traces)
        self.assertRegex(traces[0], r"^run\.\d+\.weirtrace$")
        self.assertEqual(self.events(trace), (1, 1))
        self.assertEqual(self.events(self.folder / traces[0]), (4, 4))

    def test_a_second_device(self):
        trace = self.folder / "run.weirtrace"
        self.weir_run(self.program("dlsym", "peers"), "--record", trace)
        self.assertEqual(self.events(trace), (1, 1))
        self.assertEqual(self.events(self.folder / "run.2.weirtrace"), (1, 1))

    def test_a_reset_ends_what_was_live(self):
        trace = self.folder / "run.weirtrace"
        self.weir_run(self.program("dlsym", "reset"), "--record", trace)
        self.assertEqual(self.events(trace), (2, 2))

    def test_memory_of_the_driver_ends_with_its_context(self):
        trace = self.folder / "run.weirtrace"
        self.weir_run(self.program("dlsym", "resets"), "--record-only", "--record", trace)
        self.assertEqual(self.events(trace), (4, 4))

    def test_a_crash_leaves_what_was_recorded(self):
        trace = self.folder / "run.weirtrace"
        ran = self.weir_run(self.program("dlsym", "leave", "segv"), "--record", trace)
        self.assertEqual(ran.returncode, -signal.SIGSEGV)
        self.assertEqual([name for name in os.listdir(self.folder) if not name.endswith(".part")], [])

    def test_a_crash_leaves_no_page_that_others_must_know_of(self):
        environment = running.clean_environment(LD_LIBRARY_PATH=str(Path(arguments.driver).parent))
        pages = running.PAGES
        with subprocess.Popen([arguments.weir, "run", "--live", "--", *self.program("dlsym", "hold")], text=True,
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as process:
            self.assertEqual(process.stdout.readline(), "ready\n")
            self.assertEqual(len(list(pages.glob(f"weir.{process.pid}.*"))), 1)
            process.kill()
            self.assertEqual(process.wait(timeout=60), -signal.SIGKILL)
        running.run(arguments.weir, ["top", "--once"])
        self.assertEqual(list(pages.glob(f"weir.{process.pid}.*")), [])

    def test_a_recording_stays_out_of_the_programs_own_files(self):
        trace = self.folder / "run.weirtrace"
        own = self.folder / "own"
        ran = self.weir_run(self.program("dlsym", "closes", own), "--record", trace)
        self.assertEqual((ran.stdout, ran.stderr), ("closed 1\nwritten 3\nread 3 own\n", ""))
        self.assertEqual(own.read_bytes(), b"own")
        self.assertEqual(self.events(trace), (501, 500))

    def test_a_program_that_executes_itself_keeps_its_first_recording(self):
        trace = self.folder / "run.weirtrace"
        ran = self.weir_run(self.program("dlsym", "again"), "--record", trace)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        self.assertEqual(self.events(trace), (1, 1))
        part, = self.folder.glob("run.weirtrace.*.part")
        self.assertGreater(part.stat().st_size, 0)

    def test_a_recording_that_fails_half_way_is_told_of(self):
        trace = self.folder / "run.weirtrace"
        ran = self.weir_run(self.program("dlsym", "closes", "unlink"), "--record", trace)
        self.assertEqual((ran.stdout, ran.returncode), ("closed 1\n", 0))
        self.assertRegex(ran.stderr, r"^weir run: the recording is incomplete: .*\.part: .*No such file or directory\n$")

    def test_a_trace_that_is_there_stays(self):
        trace = self.folder / "run.weirtrace"
        trace.write_text("mine")
        ran = self.weir_run(["true"], "--record", trace)
        self.assertEqual(ran.returncode, 64)
        self.assertIn("the file exists; remove it or name another", ran.stderr)
        self.assertEqual(trace.read_text(), "mine")

    def test_a_program_that_the_library_does_not_see_is_reported(self):
        trace = self.folder / "run.weirtrace"
        said = ("weir run: nothing was recorded: the program requested no memory from the driver; a program that uses weir "
                "itself is recorded with weir record\n")
        for flags, expected in ([], said), (["--quiet"], ""):
            ran = self.weir_run(["true"], "--record", trace, *flags)
            self.assertEqual((ran.returncode, ran.stdout, ran.stderr), (0, "", expected))
        self.assertEqual(self.weir_run(["true"]).stderr, "")
        self.assertFalse(trace.exists())
        # A child recorded: the shell has nothing to say.
        program = " ".join(self.program("dlsym", "basic"))
        ran = self.weir_run(["sh", "-c", f"{program}; true"], "--record", trace)
        self.assertEqual((ran.returncode, ran.stderr), (0, ""))
        self.assertEqual(len(list(self.folder.glob("run*.weirtrace"))), 1)

    def test_further_traces_replace_nothing(self):
        trace = self.folder / "run.weirtrace"
        other = self.folder / "run.2.weirtrace"
        other.write_text("mine")
        self.weir_run(self.program("dlsym", "peers"), "--record", trace)
        self.assertEqual(other.read_text(), "mine")
        self.assertEqual(self.events(trace), (1, 1))
        self.assertEqual(self.events(self.folder / "run.3.weirtrace"), (1, 1))

    def test_a_trace_without_standard_outputs_is_whole(self):
        trace = self.folder / "run.weirtrace"
        closing = ["sh", "-c", 'exec 0<&- 1>&- 2>&-; exec "$@"', "sh"]
        self.start([*closing, arguments.weir, "run", "--record", str(trace), "--", *self.program("dlsym", "pools")])
        self.assertEqual(self.events(trace), (2, 2))

    def test_nothing_is_told_into_the_programs_own_files(self):
        own = self.folder / "own"
        self.compare(["errors", str(own)], ways=["dlsym"])
        self.assertEqual(own.read_bytes(), b"own")

    def test_live(self):
        """weir top sees a program that is run with --live, and its page goes with it."""
        environment = running.clean_environment(LD_LIBRARY_PATH=str(Path(arguments.driver).parent))
        with subprocess.Popen([arguments.weir, "run", "--live", "--", *self.program("dlsym", "hold")], text=True,
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as process:
            self.assertEqual(process.stdout.readline(), "ready\n")
            deadline = time.monotonic() + 30  # what is shown is half a second old at most
            while True:
                shown = running.run(arguments.weir, ["top", "--once", str(process.pid)])
                if "3 MiB" in shown.stdout or time.monotonic() > deadline:
                    break
                time.sleep(0.1)
            process.communicate("on\n", timeout=30)
        self.assertEqual(process.returncode, 0)
        self.assertEqual(shown.returncode, 0, shown.stderr)
        self.assertIn("3 MiB", shown.stdout)
        self.assertEqual(list(running.PAGES.glob(f"weir.{process.pid}.*")), [])


class Processes(Case):
    def test_exit_codes_and_signals_are_the_programs(self):
        for argument, code in {"0": 0, "3": 3, "abort": -signal.SIGABRT, "segv": -signal.SIGSEGV,
                               "kill": -signal.SIGKILL}.items():
            native = self.start(self.program("dlsym", "leave", argument))
            ran = self.weir_run(self.program("dlsym", "leave", argument))
            self.assertEqual((native.returncode, ran.returncode), (code, code))
            self.assertEqual(ran.stdout, native.stdout)

    def test_programs_that_cannot_be_started(self):
        self.assertEqual(self.weir_run(["./no-such-program"]).returncode, 127)
        file = self.folder / "text"
        file.write_text("no program")
        self.assertEqual(self.weir_run([file]).returncode, 126)

    def test_a_program_without_cuda(self):
        native = self.start([arguments.plain])
        ran = self.weir_run([arguments.plain])
        self.assertEqual((native.stdout, native.returncode),
                         ("chain 11\nprintf 1\nnothing 0\nno driver call 0\nerror 1\ndriver 0\n", 7))
        self.assertEqual((ran.stdout, ran.stderr, ran.returncode), (native.stdout, "", 7))
        self.assertFalse(self.report.exists())

    def test_the_program_becomes_the_command(self):
        process = subprocess.Popen([arguments.weir, "run", "--", "sleep", "60"], env=running.clean_environment())
        deadline = time.monotonic() + 30
        while Path(f"/proc/{process.pid}/comm").read_text() != "sleep\n":
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(timeout=30), -signal.SIGTERM)

    def test_the_pipe_signal_is_as_it_was(self):
        show = "grep SigIgn /proc/self/status"
        native = running.run("sh", ["-c", show]).stdout
        self.assertEqual(running.run(arguments.weir, ["run", "--", "sh", "-c", show]).stdout, native)

    def test_children_are_followed_or_not(self):
        program = ["sh", "-c", '"$0" dlsym many 3; echo "$LD_PRELOAD"', arguments.opened]
        followed = self.weir_run(program)
        self.assertEqual(followed.stdout, f"3 allocations, 0 failures\n{arguments.preload}\n")
        self.assertIn("cuMemCreate", self.calls())
        alone = self.weir_run(program, "--no-children")
        self.assertEqual(alone.stdout, "3 allocations, 0 failures\n\n")
        self.assertEqual(self.calls()["cuMemAlloc_v2"], 3)
        self.assertNotIn("cuMemCreate", self.calls())
        self.weir_run(self.program("dlsym", "many", 3), "--no-children")
        self.assertIn("cuMemCreate", self.calls())

    def test_what_is_preloaded_already_stays(self):
        ran = self.weir_run(self.program("linked", "many", 9), LD_PRELOAD=arguments.interposer)
        self.assertEqual((ran.stdout, ran.stderr), ("9 allocations, 0 failures\n", "interposer saw 9\n"))
        self.assertIn("cuMemCreate", self.calls())
        ran = self.weir_run(["sh", "-c", 'echo "$LD_PRELOAD"'], "--no-children",
                            LD_PRELOAD=arguments.interposer)
        self.assertEqual(ran.stdout, arguments.interposer + "\n")

    def test_programs_that_take_no_preload(self):
        source = self.folder / "static.c"
        source.write_text("int main(void) { return 4; }\n")
        program = self.folder / "static"
        if subprocess.run(["cc", "-static", "-o", program, source], capture_output=True).returncode != 0:
            self.skipTest("no static C library")
        ran = self.weir_run([program])
        self.assertEqual((ran.returncode, ran.stderr), (4, f"weir run: {program} is linked statically, so nothing can be "
                                                          "preloaded; it runs without weir\n"))

    def test_programs_with_rights_of_their_own(self):
        program = self.folder / "program"
        program.write_bytes(Path("/bin/true").read_bytes())
        try:
            os.chown(program, 1, 1)
        except OSError:
            self.skipTest("only root can make a program another user's")
        program.chmod(0o755 | stat.S_ISUID)
        os.chmod(self.folder, 0o755)
        ran = self.weir_run([program])
        self.assertEqual(ran.returncode, 0)
        self.assertEqual(ran.stderr, f"weir run: {program} is set-uid or has capabilities, so the loader "
                                     "preloads nothing; it runs without weir\n")
        self.assertEqual(self.weir_run([program], "--quiet").stderr, "")

    def test_words_that_are_not_understood(self):
        for flags in (["--limit", "much"], ["--policy", "best"], ["--option", "x"], ["--option", "x=y"],
                      ["--free", "never"], ["--keep", "cuMemFree"], ["--record-only"],
                      ["--record-only", "--record", "x", "--limit", "1GiB"]):
            ran = self.weir_run(["true"], *flags)
            self.assertEqual(ran.returncode, 64, flags)
            self.assertNotEqual(ran.stderr, "")
        self.assertEqual(running.run(arguments.weir, ["run"]).returncode, 64)


class InPython(Case):
    """Modules of the frameworks' names, and of weir's, that say what is called."""

    def setUp(self):
        super().setUp()
        self.modules = self.folder / "modules"
        for name in ("weir", "numba"):
            (self.modules / name).mkdir(parents=True)
            (self.modules / name / "__init__.py").touch()
        for name in ("torch", "cupy", "numba/cuda"):
            (self.modules / f"{name}.py").write_text(f"print('{name} is imported')\n")
        for name in ("torch", "cupy", "numba"):
            (self.modules / "weir" / f"{name}.py").write_text(
                f"import {'numba.cuda' if name == 'numba' else name}\n"
                f"def enable(): print('weir in {name}')\n")

    def python(self, text, *flags, program=sys.executable, **environment):
        return self.weir_run([program, "-c", text], *flags, PYTHONPATH=str(self.modules), **environment)

    def test_weir_is_enabled_at_import(self):
        ran = self.python("import sys; print('begin'); import torch, torch; import cupy; "
                          "from numba import cuda; print(cuda.__name__)")
        self.assertEqual((ran.returncode, ran.stderr), (0, ""))
        self.assertEqual(ran.stdout.splitlines(), [
            "begin", "torch is imported", "weir in torch", "cupy is imported", "weir in cupy",
            "numba/cuda is imported", "weir in numba", "numba.cuda"])

    def test_nothing_happens_without_a_framework(self):
        ran = self.python("import os; print(os.environ.get('LD_PRELOAD')); import json")
        self.assertEqual((ran.stdout, ran.stderr), ("None\n", ""))

    def test_flags_become_options(self):
        trace = self.folder / "x.weirtrace"
        ran = self.python("import os; print([os.environ.get(name) for name in ('WEIR_HEAP_LIMIT', "
                          "'WEIR_HEAP_POLICY', 'WEIR_RECORD', 'WEIR_RECORD_STACKS', 'WEIR_LIVE', "
                          "'WEIR_HEAP_THREAD_CACHE')])",
                          "--limit", "20GiB", "--policy", "compact", "--record", trace, "--record-stacks", "--live",
                          "--option", "heap_thread_cache=0")
        self.assertEqual(ran.stdout, f"{['20GiB', 'compact', str(trace), 'on', 'on', '0']}\n")

    def test_what_fails_is_said_and_the_program_goes_on(self):
        (self.modules / "weir/torch.py").write_text("def enable(): raise RuntimeError('no CUDA here')\n")
        (self.modules / "weir/cupy.py").unlink()
        ran = self.python("import torch, cupy; print('end')")
        self.assertEqual(ran.stdout, "torch is imported\ncupy is imported\nend\n")
        self.assertEqual(ran.stderr, "weir run: torch keeps its own allocator: no CUDA here\n"
                                     "weir run: cupy keeps its own allocator: this Python cannot import weir.cupy "
                                     "(No module named 'weir.cupy')\n")
        self.assertEqual(self.python("import torch, cupy", "--quiet").stderr, "")

    def test_a_framework_that_is_not_there(self):
        (self.modules / "torch.py").unlink()
        # What is installed beside Python does not count.
        ran = self.python("import sys\nsys.path = [each for each in sys.path if not each.endswith('-packages')]\n"
                          "try:\n  import torch\nexcept ImportError as reason: print(reason)\nimport cupy")
        self.assertEqual(ran.stdout, "No module named 'torch'\ncupy is imported\nweir in cupy\n")

    def test_a_framework_that_fails(self):
        (self.modules / "torch.py").write_text("raise ValueError('broken')\n")
        # What is installed beside Python does not count.
        ran = self.python("import sys\nsys.path = [each for each in sys.path if not each.endswith('-packages')]\n"
                          "try:\n  import torch\nexcept ValueError as reason: print(reason)")
        self.assertEqual((ran.stdout, ran.stderr), ("broken\n", ""))

    def test_a_loader_that_other_modules_have(self):
        archive = self.folder / "modules.zip"
        with zipfile.ZipFile(archive, "w") as modules:
            modules.writestr("cupy/__init__.py",
                             "import cupy.part\nprint(type(__loader__).__name__, type(__spec__.loader).__name__)\n")
            modules.writestr("cupy/part.py", "print('part')\n")
            modules.writestr("later.py", "print('later')\n")
        ran = self.python(f"import sys; sys.path.insert(0, {str(archive)!r}); import cupy, later")
        self.assertEqual((ran.stdout, ran.stderr),
                         ("part\nzipimporter zipimporter\nweir in cupy\nlater\n", ""))

    def test_a_sitecustomize_of_the_installations_own(self):
        (self.modules / "sitecustomize.py").write_text("print('mine'); value = 3\n")
        ran = self.python("import sitecustomize; print(sitecustomize.value); import cupy")
        self.assertEqual(ran.stdout, "mine\n3\ncupy is imported\nweir in cupy\n")

    def test_python_that_ignores_its_environment(self):
        """It cannot import what PYTHONPATH names: it gets the preloaded library."""
        text = "import os; print('LD_PRELOAD' in os.environ)"
        script = self.folder / "job"
        for flags in (["-I"], ["-S"], ["-E"], ["-BS"], ["-X", "dev", "-E"], ["-W", "ignore", "-uI"]):
            with self.subTest(flags=flags):
                self.assertEqual(self.weir_run([sys.executable, *flags, "-c", text]).stdout, "True\n")
                script.write_text(f"#!/usr/bin/env -S {sys.executable} {' '.join(flags)}\n{text}\n")
                script.chmod(0o755)
                self.assertEqual(self.weir_run([script]).stdout, "True\n")
        for flags in (["-B"], ["-X", "dev"], ["-WIgnore"], ["-W", "ignore"]):
            with self.subTest(flags=flags):
                self.assertEqual(self.weir_run([sys.executable, *flags, "-c", text, "-I"]).stdout, "False\n")
        ran = self.weir_run([sys.executable, "-I", "-c", text], "--python", "on")
        self.assertEqual(ran.stdout, "False\n")
        self.assertEqual(ran.stderr, f"weir run: {sys.executable} ignores PYTHONPATH (-E, -I or -S), so weir is not "
                                     "enabled in it; leave --python on out to preload the library instead\n")

    def test_children(self):
        text = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import cupy'])"
        self.assertEqual(self.python(text).stdout, "cupy is imported\nweir in cupy\n")
        self.assertEqual(self.python(text, "--no-children").stdout, "cupy is imported\n")
        self.assertEqual(self.python("import cupy", "--no-children").stdout, "cupy is imported\nweir in cupy\n")

    def test_scripts_and_choices(self):
        script = self.folder / "job"
        script.write_text(f"#!{sys.executable}\nimport os, cupy\nprint('LD_PRELOAD' in os.environ)\n")
        script.chmod(0o755)
        environment = {"PYTHONPATH": str(self.modules)}
        self.assertEqual(self.weir_run([script], **environment).stdout,
                         "cupy is imported\nweir in cupy\nFalse\n")
        self.assertEqual(self.weir_run([script], "--python", "off", **environment).stdout,
                         "cupy is imported\nTrue\n")
        self.assertEqual(self.weir_run(["sh", "-c", f"'{script}'"], "--python", "on", **environment).stdout,
                         "cupy is imported\nweir in cupy\nFalse\n")
        trace = self.folder / "x.weirtrace"  # what only records is not in Python
        self.assertEqual(self.weir_run([script], "--record-only", "--record", trace, **environment).stdout,
                         "cupy is imported\nTrue\n")


class Library(Case):
    def test_what_it_shows(self):
        lines = subprocess.run(["nm", "--dynamic", "--defined-only", "--with-symbol-versions", arguments.preload],
                               capture_output=True, text=True, check=True).stdout.splitlines()
        names = {line.split()[-1] for line in lines}
        definitions = Path(__file__).resolve().parents[2] / "plugins/preload/hooks.def"
        hooks = set(re.findall(r"^WEIR_HOOK\((\w+),", definitions.read_text(), re.M))
        self.assertEqual(names, hooks | {"dlsym"})

    def test_what_it_needs(self):
        text = subprocess.run(["readelf", "--dynamic", "--wide", arguments.preload], capture_output=True, text=True,
                              check=True).stdout
        for name in re.findall(r"\(NEEDED\).*\[(.+)\]", text):
            self.assertRegex(name, r"^(libc|libm|libdl|libpthread|libgcc_s|ld-linux[-\w]*)\.so")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name in ("weir", "preload", "driver", "opened", "random", "linked", "plain", "interposer"):
        parser.add_argument(f"--{name}", required=True)
    arguments, rest = parser.parse_known_args()
    unittest.main(argv=[sys.argv[0], *rest])
