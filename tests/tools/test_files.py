#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the command reads and writes: regular files, the standard streams, and nothing half."""

import argparse
import array
import fcntl
import os
import re
import signal
import stat
import subprocess
import sys
import termios
import time
import unittest
from pathlib import Path

import running
import test_replay
from test_replay import SMALL, Case, weir

# What each writes to the file that -o names.
WRITERS = (["export", "--format", "csv"], ["export", "--format", "torch"], ["export", "--format", "weirtrace"],
           ["report", "--policy", "none"], ["plan", "--seconds", "0"])


def piped(words, text, **how):
    """weir with that on its standard input."""
    return running.run(test_replay.arguments.weir, map(str, words), input=text, text=False, **how)


class Output(Case):
    def test_only_regular_files_are_replaced(self):
        pipe = self.folder / "pipe"
        os.mkfifo(pipe)
        for words in WRITERS:
            for path in (pipe, Path("/dev/null"), self.folder):
                ran = self.expect(weir(*words, self.small, "-o", path, "--force"), 2)
                self.assertEqual(ran.stderr, f"weir {words[0]}: {path}: expected a regular file; - writes to the "
                                             "standard output\n")
        self.assertTrue(stat.S_ISFIFO(pipe.stat().st_mode))
        self.assertTrue(stat.S_ISCHR(os.stat("/dev/null").st_mode))

    def test_what_a_link_leads_to_is_replaced(self):
        target, link = self.folder / "target", self.folder / "link"
        target.write_text("before")
        link.symlink_to(target)
        self.expect(weir("export", self.small, "--format", "csv", "-o", link, "--force"), 0)
        self.assertTrue(link.is_symlink())
        self.assertTrue(target.read_text().startswith("op,id,bytes,stream,t_us\n"))

    def test_a_dash_is_the_standard_output(self):
        before = sorted(self.folder.iterdir())
        for words in WRITERS:
            path = self.folder / "out"
            said = self.expect(weir(*words, self.small, "-o", path), 0).stdout
            ran = running.run(test_replay.arguments.weir, [*words, str(self.small), "-o", "-"], text=False,
                              cwd=self.folder)
            self.assertEqual(ran.returncode, 0, ran.stderr)
            if words[0] == "report":  # whose page says when it was made
                self.assertTrue(ran.stdout.startswith(b"<!doctype html>") and ran.stdout.endswith(b"</html>\n"))
            else:
                self.assertEqual(ran.stdout, path.read_bytes(), words)
            # What it says of the file goes where it does not meet it.
            told = ran.stderr.decode().replace("standard output", str(path)).splitlines()[0]
            said = said.splitlines()[0]
            if words[0] == "report":  # and is as long as that takes
                told, said = (re.sub(r", [\d.]+ KiB$", "", line) for line in (told, said))
                self.assertEqual(told, f"{path}: 7 events")
            self.assertEqual(told.split(" s")[0], said.split(" s")[0])
            path.unlink()
        self.assertEqual(sorted(self.folder.iterdir()), before)

    def test_what_does_not_arrive_is_a_failure(self):
        for words in WRITERS:
            with open("/dev/full", "wb") as full:
                ran = running.run(test_replay.arguments.weir, [*words, str(self.small), "-o", "-"],
                                  capture_output=False, stdout=full, stderr=subprocess.PIPE)
            self.assertEqual(ran.returncode, 2, words)
            self.assertIn(f"weir {words[0]}: standard output: No space left on device\n", ran.stderr)

    def test_a_closed_pipe_ends_the_command_quietly(self):
        for words in (["replay", self.small, "--format", "csv"], ["help", "--man"], ["top"],
                      ["plan", self.small, "--seconds", "0"], ["diff", self.small, self.small],
                      ["export", self.small, "--format", "csv", "-o", "-"], ["report", self.small, "-o", "-"]):
            reading, writing = os.pipe()
            os.close(reading)
            ran = running.run(test_replay.arguments.weir, map(str, words), capture_output=False, stdout=writing,
                              stderr=subprocess.PIPE)
            self.assertEqual(ran.returncode, 0, words)
            if "-o" not in words:  # which says on the standard error output what it wrote
                self.assertEqual(ran.stderr, "", words)
            # As with `weir ... 2>&1 | head`.
            ran = running.run(test_replay.arguments.weir, map(str, words), capture_output=False, stdout=writing,
                              stderr=writing)
            os.close(writing)
            self.assertEqual(ran.returncode, 0, words)

    def test_an_interrupted_command_leaves_nothing(self):
        """It is stopped while it waits for a reader, with its file written, and before it has begun."""
        scratch = self.folder / "scratch"
        scratch.mkdir()
        large = self.folder / "large.trace"
        large.write_text("# op,id,bytes,stream,t_us\n" + "".join(
            f"a,{i},512,0,{i}\nr,{i},,0,{i}\n" for i in range(40_000)))
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            words = [test_replay.arguments.weir, "export", str(large), "--format", "csv", "-o", "-"]
            process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                       env=running.clean_environment(TMPDIR=str(scratch)))
            with process:
                self.assertTrue(process.stdout.read(1))  # and no more: the pipe fills up
                self.assertNotEqual(list(scratch.iterdir()), [])
                process.send_signal(number)
                self.assertEqual(process.wait(timeout=60), -number)
            self.assertEqual(list(scratch.iterdir()), [])

    def test_a_part_goes_with_the_command(self):
        """What stands for a part that is half written goes when the command is stopped while it reads."""
        out = self.folder / "out"
        words = [test_replay.arguments.weir, "export", "-", "--format", "csv", "-o", str(out)]
        process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   env=running.clean_environment())
        with process:
            part = self.folder / f"out.{process.pid}.part"
            part.write_text("half")
            process.stdin.write(SMALL.encode())
            process.stdin.flush()
            while array.array("i", fcntl.ioctl(process.stdin, termios.FIONREAD, bytes(4)))[0]:
                time.sleep(0.01)  # until it has begun to read
            process.send_signal(signal.SIGTERM)
            self.assertEqual(process.wait(timeout=60), -signal.SIGTERM)
        self.assertFalse(part.exists())
        self.assertFalse(out.exists())


class Input(Case):
    def test_a_dash_is_the_standard_input(self):
        for name in (self.small, self.gpt2):
            bytes_ = name.read_bytes()
            from_file = self.expect(weir("replay", name, "--format", "csv"), 0).stdout.splitlines()
            ran = piped(["replay", "-", "--format", "csv"], bytes_)
            self.assertEqual(ran.returncode, 0, ran.stderr)
            lines = ran.stdout.decode().splitlines()
            self.assertEqual(lines[0], from_file[0])
            self.assertEqual(lines[1].split(",")[1:-1], from_file[1].split(",")[1:-1])
            self.assertEqual(lines[1].split(",")[0], "-")
        ran = piped(["replay", "-"], b"neither\n")
        self.assertEqual(ran.returncode, 2)
        self.assertEqual(ran.stderr.decode(), "weir replay: standard input: unknown format; expected a .weirtrace, a "
                                              "CSV trace, a PyTorch snapshot or an RMM log\n")

    def test_both_at_once(self):
        ran = piped(["export", "-", "--format", "csv", "-o", "-"], SMALL.encode())
        self.assertEqual(ran.returncode, 0, ran.stderr)
        self.assertEqual(ran.stdout.decode().splitlines()[0], "op,id,bytes,stream,t_us")
        self.assertEqual(len(ran.stdout.decode().splitlines()), len(SMALL.splitlines()))

    def test_a_trace_cut_early_gives_what_it_can(self):
        text = "# op,id,bytes,stream,t_us\n" + "".join(
            f"a,{i},{512 * (1 + i * 7919 % 4093)},0,{i}\nr,{i},,0,{i}\n" for i in range(50_000))
        whole = self.folder / "whole.weirtrace"
        ran = piped(["export", "-", "--format", "weirtrace", "-o", whole], text.encode())
        self.assertEqual(ran.returncode, 0, ran.stderr)
        cut = self.folder / "cut.weirtrace"
        cut.write_bytes(whole.read_bytes()[:20_000])
        self.assertGreater(whole.stat().st_size, 40_000)
        ran = self.expect(weir("replay", cut, "--format", "csv"), 1)
        self.assertRegex(ran.stderr, r"damaged at byte \d+: .*; read \d{4,} events before it")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--weir", required=True)
    parser.add_argument("--traces", required=True, type=Path)
    test_replay.arguments, rest = parser.parse_known_args()
    unittest.main(argv=[sys.argv[0], *rest])
