#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""weir report as its users run it: what it writes, when it does not, and its exit codes."""

import argparse
import base64
import os
import re
import struct
import sys
import unittest
import zlib
from pathlib import Path

import test_replay
from running import kibibytes
from test_replay import Case, snapshot, weir


class Index:
    """The beginning of a page's index, and the policies in it."""

    def __init__(self, page, element="index"):
        text = re.search(rf'id="{element}">([^<]*)<', page).group(1)
        self.packed = zlib.decompress(base64.b64decode(text), -15)
        self.at = 0
        self.version = self.number()
        _, self.file, self.program, self.device = (self.text() for _ in range(4))
        self.capacity, self.dropped, self.real = (self.number() for _ in range(3))
        self.placed_by = self.text()
        self.damaged = self.number()

    def number(self):
        value = shift = 0
        while True:
            byte = self.packed[self.at]
            self.at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    def text(self):
        length = self.number()
        self.at += length
        return self.packed[self.at - length:self.at].decode()

    def names(self, *words):
        """Whether each of the words stands in the index as a text of its own."""
        return [bytes([len(word)]) + word.encode() in self.packed for word in words]


class Report(Case):
    def setUp(self):
        super().setUp()
        self.page = self.folder / "page.html"

    def report(self, trace, *words, code=0):
        return self.expect(weir("report", trace, "-o", self.page, *words), code)

    def test_says_what_it_wrote(self):
        ran = self.report(self.small)
        self.assertEqual(ran.stdout, f"{self.page}: 7 events, {kibibytes(self.page.stat().st_size)}\n")
        self.assertEqual(ran.stderr, "")
        self.assertEqual(list(self.folder.glob("*.part")), [])
        index = Index(self.page.read_text())
        self.assertEqual((index.version, index.file, index.real, index.damaged), (2, "small.trace", 0, 0))
        self.assertEqual(index.placed_by, "balanced")
        self.assertEqual(index.names("torch-default", "torch-expandable", "balanced", "compact"),
                         [True, True, True, False])

    def test_the_policies_are_those_that_were_asked_for(self):
        self.report(self.small, "--policy", "compact,driver-pool", "--place", "throughput")
        index = Index(self.page.read_text())
        self.assertEqual(index.placed_by, "throughput")
        self.assertEqual(index.names("compact", "driver-pool", "balanced"), [True, True, False])
        self.report(self.small, "--policy", "none", "-f")
        index = Index(self.page.read_text())
        self.assertEqual(index.placed_by, "balanced")
        self.assertEqual(index.names("torch-default", "compact"), [False, False])

    def test_a_recording_with_addresses_is_placed_by_nobody(self):
        self.report(snapshot(self.folder / "two.pickle"), "--policy", "none")
        index = Index(self.page.read_text())
        self.assertEqual((index.file, index.real, index.placed_by), ("two.pickle", 1, ""))

    def test_progress_is_of_every_policy_that_is_played(self):
        def report(*words, trace=self.small):
            self.expect_progress("playing", "report", trace, "-o", self.page, "-f", *words)
        report()  # of the three one places the blocks, too
        report("--policy", "compact,driver-pool", "--place", "throughput")
        report("--policy", "none")
        # Blocks that have addresses are not placed.
        report("--policy", "balanced,compact", trace=snapshot(self.folder / "two.pickle"))

    def test_the_fit_is_in_the_page_where_it_is_asked_for(self):
        def fits(*words):
            self.report(self.small, "-f", "--policy", "balanced,torch-default", "--place", "compact", *words)
            index = Index(self.page.read_text())
            index.at = index.packed.index(b"\x08balanced")
            found = []
            for name in ("balanced", "torch-default"):
                self.assertEqual(index.text(), name)
                figures = [index.number() for _ in range(7)]
                self.assertEqual(figures[0], 3 << 20)
                found.append(figures[-1])
                for _ in range(index.number()):  # samples
                    index.number(), index.number()
            return found
        self.assertEqual(fits(), [0, 0])
        self.assertEqual(fits("--fit"), [4 << 20, 22 << 20])

    def test_two_recordings_are_compared(self):
        other = snapshot(self.folder / "two.pickle")
        ran = self.expect(weir("report", self.small, other, "-o", self.page, "--policy", "balanced"), 0)
        self.assertEqual(ran.stdout, f"{self.page}: 19 events, {kibibytes(self.page.stat().st_size)}\n")
        page = self.page.read_text()
        first, second = Index(page), Index(page, "other-index")
        self.assertEqual((first.file, first.placed_by), ("small.trace", "balanced"))
        self.assertEqual((second.file, second.placed_by), ("two.pickle", ""))
        self.assertEqual([each.names("balanced", "compact") for each in (first, second)], [[True, False]] * 2)

    def test_recordings_of_one_name_are_told_apart_by_their_folders(self):
        (self.folder / "b").mkdir()
        other = self.folder / "b" / "small.trace"
        other.write_text(self.small.read_text())
        self.expect(weir("report", self.small, other, "-o", self.page, "--policy", "none"), 0)
        page = self.page.read_text()
        self.assertEqual([Index(page).file, Index(page, "other-index").file], [str(self.small), str(other)])

    def test_what_cannot_be_compared(self):
        self.expect(weir("report", self.small, self.folder / "missing", "-o", self.page), 2)
        self.assertFalse(self.page.exists())
        self.expect(weir("report", self.small, self.small, self.small, "-o", self.page), 64)

    def test_a_card_is_said_to_do_or_what_is_in_the_way(self):
        # A context takes 554500096 bytes: of 532 MiB less than 4 MiB are left.
        def summary(trace, *words):
            return self.report(trace, "-f", *words).stdout.split("\n", 1)[1]
        both = ("--policy", "balanced,torch-default", "--capacity")
        self.assertEqual(summary(self.small, *both, "1GB"),
                         "balanced fits on a card of 953.67 MiB\ntorch-default fits on a card of 953.67 MiB\n")
        self.assertEqual(summary(self.small, *both, "532MiB"), "".join(
            f"{policy} does not fit on a card of 532 MiB, of which 3.19 MiB are left after the context: at 0.000010000 s, event 1, "
            "2 MiB could not be allocated with 1 MiB in use\n"
            "  in the way: 1 MiB live\n  by tag: untagged: 1 MiB in 1 block\n  by size: 1 MiB: 1 MiB in 1 block\n"
            for policy in ("balanced", "torch-default")))
        both = self.report(self.small, snapshot(self.folder / "two.pickle"), "-f", "--policy", "balanced", "--capacity", "532MiB")
        self.assertEqual(both.stdout.splitlines()[5:], [
            "  by size: 1 MiB: 1 MiB in 1 block", "two.pickle:",
            "balanced does not fit on a card of 532 MiB, of which 3.19 MiB are left after the context: at 0.000020000 s, event 3, "
            "4 MiB could not be allocated with 2 MiB in use",
            "  in the way: 2 MiB live", "  by tag: untagged: 2 MiB in 1 block", "  by site: load at train.py:3: 2 MiB in 1 block",
            "  by size: 2 MiB: 2 MiB in 1 block"])

    def test_progress_of_cards(self):
        self.expect_progress("trying the card", "report", self.small, "-o", self.page, "--capacity", "1GB")

    def test_cards_that_are_none(self):
        for given, wanted in (("12 pounds", "a size"), ("12", "a size with a unit")):
            ran = self.report(self.small, "--capacity", given, code=64)
            self.assertEqual(ran.stderr, f"weir report: --capacity: expected {wanted}, such as 24GiB or 24GB, got {given}\n")
        self.report(self.small, "--capacity", "0", code=64)
        ran = self.report(self.small, "--capacity", "1GB", "--policy", "none", code=64)
        self.assertEqual(ran.stderr, "weir report: --capacity needs policies; name them with --policy\n")

    def test_progress_of_fits(self):
        self.expect_progress("fitting", "report", self.small, "-o", self.page, "--fit")

    def test_a_recording_of_nothing_has_no_fit(self):
        nothing = self.folder / "nothing.trace"
        nothing.write_text("op,id,bytes,stream,t_us\n")
        self.report(nothing, "--fit")

    def test_nothing_is_overwritten_unless_asked(self):
        self.page.write_text("precious")
        ran = self.report(self.small, code=2)
        self.assertEqual(ran.stderr, f"weir report: {self.page}: the file exists; --force replaces it\n")
        self.assertEqual(self.page.read_text(), "precious")
        self.report(self.small, "--force")
        self.assertTrue(self.page.read_text().startswith("<!doctype html>"))

    def test_a_file_that_cannot_be_is_an_error_as_any_other(self):
        self.page = self.folder / ("x" * 300)
        ran = self.report(self.small, code=2)
        self.assertEqual(ran.stderr,
                         f"weir report: {self.page}: File name too long\n")

    def test_a_damaged_trace_is_shown_as_far_as_it_goes(self):
        whole = (test_replay.arguments.shipped / "gpt2_two_steps.weirtrace").read_bytes()
        damaged = self.folder / "cut.weirtrace"
        damaged.write_bytes(whole[:len(whole) // 2])
        ran = self.report(damaged, "--policy", "none", code=1)
        self.assertIn(f"weir report: {damaged}: damaged at byte", ran.stderr)
        self.assertEqual(Index(self.page.read_text()).damaged, 1)

    def test_a_trace_that_lacks_events_is_said_to(self):
        def frame(kind, records, content):
            head = struct.pack("<BBHIII", kind, 0, 0, records, len(content), len(content))
            return head + struct.pack("<I", zlib.crc32(head + content)) + content
        head = b"\x89WEIR\r\n\x1a" + struct.pack("<I", 2)
        trace = self.folder / "dropped.weirtrace"
        trace.write_bytes(head + struct.pack("<I", zlib.crc32(head)) + frame(1, 1, b"\x0c\x07") + frame(3, 1, b"\x00"))
        ran = self.report(trace, "--policy", "none", code=1)
        self.assertEqual(ran.stderr, f"weir report: {trace}: the recorder dropped 7 events; figures are too low\n")
        self.assertEqual(Index(self.page.read_text()).dropped, 7)

    def test_what_cannot_be_read_or_written(self):
        self.assertIn("missing", self.report(self.folder / "missing", code=2).stderr)
        self.assertFalse(self.page.exists())
        before = sorted(self.folder.iterdir())
        ran = self.expect(weir("report", self.small, "-o", self.folder / "no/such"), 2)
        self.assertIn("no/such: No such file or directory", ran.stderr)
        (self.folder / "full").mkdir()
        ran = self.expect(weir("report", self.small, "-o", self.folder / "full", "-f"), 2)
        self.assertIn("full: expected a regular file", ran.stderr)
        (self.folder / "full").rmdir()
        self.assertEqual(sorted(self.folder.iterdir()), before)

    def test_bad_words(self):
        for words in (["--policy", "balancd"], ["--policy", ""], ["--place", "balancd"],
                      ["--place", "driver-pool"], ["--place", "balanced,compact"], ["--place", "none"]):
            ran = self.report(self.small, *words, code=64)
            self.assertNotEqual(ran.stderr, "")
            self.assertFalse(self.page.exists())
        self.expect(weir("report", "-o", self.page), 64)

    def test_a_page_without_a_name_is_named_after_the_recording(self):
        before = Path.cwd()
        os.chdir(self.folder)
        try:
            self.assertTrue(self.expect(weir("report", self.small, "--policy", "none"), 0).stdout.startswith("small.html: "))
        finally:
            os.chdir(before)
        self.assertTrue((self.folder / "small.html").read_text().startswith("<!doctype html>"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--weir", required=True)
    parser.add_argument("--traces", required=True, type=Path)
    parser.add_argument("--shipped", required=True, type=Path)
    test_replay.arguments, rest = parser.parse_known_args()
    unittest.main(argv=[sys.argv[0], *rest])
