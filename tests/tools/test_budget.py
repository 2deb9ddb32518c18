#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""weir budget and weir top without a process, on programs that share a simulated card."""

import argparse
import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

import running

CARD = "GPU-77656972-2d73-696d-0000-000000000000"
MIB, GIB = 1 << 20, 1 << 30


def weir(*words, **environment):
    return running.run(arguments.weir, [str(word) for word in words], environment)


class Program:
    """A program that does as it is told."""

    def __init__(self, folder, share, **environment):
        budget = f"{share},folder={folder},period=5" if share else "off"
        self.process = subprocess.Popen(
            [arguments.program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=running.clean_environment(WEIR_BUDGET=budget, **environment))
        assert self.process.stdout.readline() == "ready\n"
        self.pid = self.process.pid

    def tell(self, words):
        self.process.stdin.write(words + "\n")
        self.process.stdin.flush()
        said = self.process.stdout.readline().split()
        return int(said[1]), int(said[3])

    def end(self):
        self.process.stdin.close()
        self.process.wait(timeout=30)
        self.process.stdout.close()


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name) / "pages"

    def program(self, share, **environment):
        made = Program(self.folder, share, **environment)
        self.addCleanup(made.end)
        return made

    def expect(self, ran, code):
        self.assertEqual(ran.returncode, code, ran.stdout + ran.stderr)
        return ran

    def eventually(self, look, value):
        deadline = time.monotonic() + 30
        while (seen := look()) != value and time.monotonic() < deadline:
            time.sleep(0.02)
        self.assertEqual(seen, value)

    def budget(self, *words):
        return weir("budget", *words, "--folder", self.folder)

    def members(self):
        cards = json.loads(self.expect(self.budget("--format", "json"), 0).stdout)["cards"]
        return {each["name"]: each for card in cards for each in card["members"]}


class Budget(Case):
    def test_nobody(self):
        self.assertEqual(self.expect(self.budget(), 0).stdout, "no process has a share of a card; start one with "
                         "WEIR_BUDGET=floor=8GiB,ceiling=20GiB\n")
        self.assertEqual(self.expect(self.budget("clear"), 0).stdout, "0 shares removed\n")

    def test_shares_are_listed(self):
        one = self.program("floor=8GiB,ceiling=20GiB,priority=2,name=trainer")
        two = self.program("floor=4GiB,name=server")
        one.tell("take 1024")
        self.eventually(lambda: self.members()["trainer"]["held"], GIB)
        lines = self.expect(self.budget(), 0).stdout.splitlines()
        self.assertEqual(lines[:2], [f"card {CARD}, 80 GiB: floors 12 GiB, held 1 GiB", ""])
        self.assertEqual(lines[2].split(), ["PID", "NAME", "FLOOR", "CEILING", "PRIORITY", "HELD", "ASKED", "GIVEN"])
        self.assertEqual([line.split() for line in lines[3:]],
                         [[str(one.pid), "trainer", "8", "GiB", "20", "GiB", "2", "1", "GiB", "0", "B", "0", "B"],
                          [str(two.pid), "server", "4", "GiB", "80", "GiB", "0", "0", "B", "0", "B", "0", "B"]])
        self.assertEqual(self.members()["trainer"],
                         {"process": one.pid, "number": 1, "name": "trainer", "floor": 8 * GIB,
                          "ceiling": 20 * GIB, "priority": 2, "held": GIB, "asked": 0, "given": 0})
        two.end()
        self.assertEqual(list(self.members()), ["trainer"])

    def test_a_share_is_changed_while_the_program_runs(self):
        one = self.program("floor=8GiB,ceiling=20GiB,priority=2,name=trainer")
        two = self.program("floor=4GiB,name=server")
        one.tell("take 2048")
        one.tell("drop")
        self.assertEqual(one.tell("look"), (2 * GIB, 20 * GIB))
        self.expect(self.budget("set", one.pid, "--floor", "0.5GiB", "--ceiling", "1GiB"), 0)
        self.eventually(lambda: one.tell("look"), (GIB, GIB))
        self.expect(self.budget("set", "trainer", "--priority", "-7"), 0)
        self.expect(self.budget("set", f"{two.pid}.1", "--ceiling", "5GiB"), 0)
        self.eventually(lambda: two.tell("look"), (0, 5 * GIB))
        shown = self.members()
        self.assertEqual([shown["trainer"][each] for each in ("floor", "ceiling", "priority")],
                         [GIB // 2, GIB, -7])
        for words, code, said in (
                (["set", "nobody", "--floor", "1GiB"], 2, "member nobody does not exist; weir budget lists the members"),
                (["set", "trainer", "--floor", "2GiB"], 2, "a floor of 2 GiB is above the ceiling of 1 GiB"),
                (["set", "trainer", "--floor", "77GiB", "--ceiling", "80GiB"], 2,
                 f"the floors of others leave 76 GiB of the card's 80 GiB: server (process {two.pid}, floor 4 GiB, "
                 "priority 0) holds 0 B"),
                (["set", "trainer"], 64, "set: missing --floor, --ceiling or --priority"),
                (["set", "trainer", "--floor", "much"], 64,
                 "--floor: expected a size, such as 24GiB or 24GB, got much"),
                (["set", "trainer", "--ceiling", "12"], 64,
                 "--ceiling: expected a size with a unit, such as 24GiB or 24GB, got 12"),
                (["set", "--floor", "1GiB"], 64, "set: missing MEMBER, a process's number or a name"),
                (["list", "trainer"], 64, "list takes no MEMBER; only set does")):
            self.assertEqual(self.expect(self.budget(*words), code).stderr, f"weir budget: {said}\n")
        self.expect(self.budget("sell"), 64)
        self.expect(self.budget("set", "trainer", "--priority", "1001"), 64)

    def test_names_that_two_have_are_told_apart(self):
        one, two = self.program("name=twin"), self.program("name=twin")
        ran = self.expect(self.budget("set", "twin", "--priority", "1"), 2)
        self.assertEqual(ran.stderr, f"weir budget: twin names several members; choose one of {one.pid}.1, {two.pid}.1\n")

    def test_the_share_of_a_killed_program_is_taken_back(self):
        one = self.program("floor=60GiB,name=first")
        one.process.send_signal(signal.SIGKILL)
        one.process.wait()
        self.assertEqual(self.members(), {})
        self.assertEqual(self.expect(self.budget("clear"), 0).stdout, "1 share removed\n")
        self.program("floor=60GiB,name=second")
        self.assertEqual(list(self.members()), ["second"])

    def test_pages_that_are_none_are_named(self):
        self.program("name=one").end()
        page = next(self.folder.iterdir())
        page.write_bytes(b"x" * 100)
        said = f"weir budget: {page}: not a budget file\n"
        self.assertEqual(self.expect(self.budget(), 1).stderr, said)
        self.assertEqual(self.expect(self.budget("clear"), 2).stderr, said)
        shown = json.loads(self.expect(self.budget("--format", "json"), 1).stdout)
        self.assertEqual(shown["refused"], [f"{page}: not a budget file"])
        self.folder.chmod(0o755)
        self.assertEqual(self.expect(self.budget(), 2).stderr,
                         f"weir budget: {self.folder}: other users can write it; expected a folder of this user with mode 0700\n")


class Top(Case):
    def top(self, *words):
        return weir("top", "--folder", self.folder, *words)

    def rows(self, *words, pids):
        shown = json.loads(self.expect(self.top("--once", "--format", "json", *words), 0).stdout)
        return [each for each in shown["processes"] if each["process"] in pids]

    def test_all_processes_are_shown(self):
        both = self.program("floor=8GiB,ceiling=20GiB,priority=2,name=both", WEIR_LIVE="on")
        live = self.program("", WEIR_LIVE="on")
        share = self.program("floor=1GiB,name=only-a-share")
        pids = {both.pid, live.pid, share.pid}
        both.tell("take 1024")
        both.tell("take 512")
        both.tell("drop")
        live.tell("take 256")
        share.tell("take 2048")
        self.eventually(lambda: self.members()["only-a-share"]["held"], 2 * GIB)
        self.eventually(lambda: [each["live"] for each in self.rows("--sort", "live", pids=pids)],
                        [GIB, 256 * MIB, None])
        rows = self.rows("--sort", "pid", pids=pids)
        self.assertEqual(rows[0], {
            "process": both.pid, "name": "both", "card": CARD, "capacity": 80 * GIB, "live": GIB,
            "reserved": GIB + 512 * MIB, "share": {"floor": 8 * GIB, "ceiling": 20 * GIB, "priority": 2},
            "asked": 0, "history": [GIB]})
        self.assertEqual(rows[1], {
            "process": live.pid, "name": "budget_program", "card": CARD, "capacity": 80 * GIB, "live": 256 * MIB,
            "reserved": 256 * MIB, "share": None, "asked": 0, "history": [256 * MIB]})
        self.assertEqual(rows[2], {
            "process": share.pid, "name": "only-a-share", "card": CARD, "capacity": 80 * GIB, "live": None,
            "reserved": 2 * GIB, "share": {"floor": GIB, "ceiling": 80 * GIB, "priority": 0}, "asked": 0,
            "history": [2 * GIB]})
        for order, names in (("reserved", ["only-a-share", "both", "budget_program"]),
                             ("live", ["both", "budget_program", "only-a-share"]),
                             ("name", ["both", "budget_program", "only-a-share"])):
            self.assertEqual([each["name"] for each in self.rows("--sort", order, pids=pids)], names, order)
        lines = self.expect(self.top("--once"), 0).stdout.splitlines()
        heading = next(i for i, line in enumerate(lines) if line.split()[:1] == ["PID"])
        self.assertEqual(lines[heading].split(), ["PID", "NAME", "CARD", "LIVE", "RESERVED", "SHARE", "PRIORITY",
                                                  "HISTORY"])
        card = next(line for line in lines if CARD in line).split(":")[0].split()[1]
        shown = {line.split()[0]: line.split()[1:] for line in lines[heading + 1:]}
        self.assertEqual(shown[str(both.pid)], ["both", card, "1", "GiB", "1.5", "GiB", "8", "GiB", "to", "20",
                                                "GiB", "2", "█"])
        self.assertEqual(shown[str(live.pid)], ["budget_program", card, "256", "MiB", "256", "MiB", "-", "-", "█"])
        self.assertEqual(shown[str(share.pid)], ["only-a-share", card, "-", "2", "GiB", "1", "GiB", "to", "80", "GiB",
                                                 "0", "█"])
        live.process.send_signal(signal.SIGKILL)
        live.process.wait()
        share.end()
        self.assertEqual([each["name"] for each in self.rows(pids=pids)], ["both"])
        with contextlib.suppress(FileNotFoundError):  # what a killed process leaves
            os.unlink(running.PAGES / f"weir.{live.pid}.1")

    def shown_on_a_terminal(self, *words, until, **environment):
        """What it writes to a terminal up to that text."""
        ours, its = pty.openpty()
        with subprocess.Popen([arguments.weir, "top", "--folder", str(self.folder), *words], stdout=its, stderr=its,
                              env=running.clean_environment(**environment)) as top:
            os.close(its)
            shown = ""
            deadline = time.monotonic() + 30
            while until not in shown and time.monotonic() < deadline:
                shown += os.read(ours, 1 << 16).decode(errors="replace")
            top.kill()
        os.close(ours)
        return shown

    def test_it_goes_on_with_colours_and_a_history(self):
        one = self.program("floor=1GiB,ceiling=4GiB,name=coloured")
        one.tell("take 512")
        self.eventually(lambda: self.members()["coloured"]["held"], 512 * MIB)
        shown = self.shown_on_a_terminal("--seconds", "0.05", until="███", TERM="xterm")
        self.assertIn("\033[H\033[J", shown)
        self.assertIn("\033[32m    512 MiB\033[0m", shown)
        self.assertIn("\033[1m", shown)
        one.tell("take 1024")
        self.eventually(lambda: self.members()["coloured"]["held"], 1536 * MIB)
        shown = self.shown_on_a_terminal("--once", until="HISTORY", TERM="xterm")
        shown += self.shown_on_a_terminal("--seconds", "0.05", until="██", TERM="xterm")
        self.assertIn("\033[33m    1.5 GiB\033[0m", shown)
        shown = self.shown_on_a_terminal("--seconds", "0.05", until="██", TERM="xterm", NO_COLOR="1")
        self.assertNotIn("\033[3", shown)
        self.assertNotIn("\033[1m", shown)

    def test_pages_that_are_none_are_named_once_and_skipped(self):
        one = self.program("name=one", WEIR_LIVE="on")
        garbled = running.PAGES / f"weir.{one.pid}.99"
        garbled.write_bytes(b"garbled")
        self.addCleanup(garbled.unlink)
        ran = self.expect(self.top("--once"), 1)
        self.assertEqual(ran.stderr, f"weir top: {garbled}: not a live page (bad header); skipped\n")
        self.assertIn(str(one.pid), ran.stdout)
        with subprocess.Popen([arguments.weir, "top", "--folder", str(self.folder), "--seconds", "0.05"],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              env=running.clean_environment()) as top:
            seen = 0
            while seen < 3:
                seen += top.stdout.readline().startswith("     PID")
            top.kill()
            self.assertEqual(top.stderr.read(), f"weir top: {garbled}: not a live page (bad header); skipped\n")

    def test_bad_words(self):
        self.expect(self.top("--once", "--sort", "size"), 64)
        self.expect(self.top("0", "--once"), 64)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--weir", required=True)
    parser.add_argument("--program", required=True)
    arguments, rest = parser.parse_known_args()
    unittest.main(argv=[sys.argv[0], *rest], verbosity=1)
