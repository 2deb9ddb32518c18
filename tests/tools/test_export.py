#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""weir export as its users run it, and what the programs that read its files rely on."""

import argparse
import gzip
import json
import pickle
import pickletools
import sys
import unittest
from bisect import bisect_right
from pathlib import Path

import test_replay
from test_replay import SMALL, Case, weir

# What torch's viewers look up without asking whether it is there.
SEGMENT_KEYS = {"device", "address", "total_size", "allocated_size", "active_size", "requested_size",
                "stream", "segment_type", "segment_pool_id", "is_expandable", "frames", "blocks"}
BLOCK_KEYS = {"address", "size", "requested_size", "state", "frames"}
ENTRY_KEYS = {"action", "addr", "size", "stream", "time_us"}
FRAME_KEYS = {"name", "filename", "line"}
# What the one for browsers can unpickle.
OPCODES = {"PROTO", "STOP", "MARK", "EMPTY_DICT", "EMPTY_LIST", "SETITEMS", "APPENDS", "MEMOIZE",
           "BINGET", "LONG_BINGET", "SHORT_BINUNICODE", "BINUNICODE", "BININT1", "BININT2", "LONG1",
           "BINFLOAT", "NEWTRUE", "NEWFALSE", "TUPLE2"}
STATES = {"active_allocated", "active_pending_free", "inactive"}


class Walk:
    """Steps back from a snapshot's end through its history, as torch's viewer for browsers does. It
    has no answer to a block outside of all segments, nor to a segment that is not there."""

    def __init__(self, snapshot):
        self.segments = sorted([each["address"], each["total_size"]] for each in snapshot["segments"])
        self.blocks = {block["address"] for segment in snapshot["segments"]
                       for block in segment["blocks"] if block["state"] != "inactive"}
        self.peak = self.reserved()
        for entry in reversed(snapshot["device_traces"][0]):
            getattr(self, entry["action"])(entry.get("addr", 0), entry["size"])

    def reserved(self):
        return sum(size for _, size in self.segments)

    def around(self, address):
        return bisect_right(self.segments, [address, 2**64]) - 1

    def covers(self, at, address, size):
        return (at >= 0 and
                address + size <= self.segments[at][0] + self.segments[at][1])

    def free_completed(self, address, size):
        assert self.covers(self.around(address), address, size), hex(address)
        assert address not in self.blocks
        self.blocks.add(address)

    def free_requested(self, address, _size):
        assert address in self.blocks

    def alloc(self, address, _size):
        self.blocks.remove(address)

    def oom(self, _address, _size):
        pass

    def segment_map(self, address, size):
        at = self.around(address)
        assert self.covers(at, address, size), hex(address)
        first, whole = self.segments[at]
        rest = [[first, address - first], [address + size, first + whole - address - size]]
        self.segments[at:at + 1] = [each for each in rest if each[1]]

    def segment_unmap(self, address, size):
        at = self.around(address) + 1
        self.segments.insert(at, [address, size])
        if at + 1 < len(self.segments) and address + size == self.segments[at + 1][0]:
            self.segments[at][1] += self.segments.pop(at + 1)[1]
        if at > 0 and sum(self.segments[at - 1]) == address:
            self.segments[at - 1][1] += self.segments.pop(at)[1]
        self.peak = max(self.peak, self.reserved())


class Export(Case):
    def export(self, trace, format, *words, code=0):
        path = self.folder / f"out.{format}"
        ran = self.expect(weir("export", trace, "-o", path, "--format", format, "-f", *words), code)
        return path, ran

    def snapshot(self, trace, *words):
        path, ran = self.export(trace, "torch", *words)
        return pickle.loads(path.read_bytes()), ran.stdout

    def test_what_torchs_viewers_look_up_is_there(self):
        snapshot, _ = self.snapshot(self.gpt2, "--place", "balanced")
        self.assertEqual(len(snapshot["device_traces"]), 1)
        self.assertIn("allocator_settings", snapshot)
        for segment in snapshot["segments"]:
            self.assertLessEqual(SEGMENT_KEYS, set(segment))
            self.assertEqual(sum(block["size"] for block in segment["blocks"]), segment["total_size"])
            for block in segment["blocks"]:
                self.assertLessEqual(BLOCK_KEYS, set(block))
                self.assertIn(block["state"], STATES)
        for entry in snapshot["device_traces"][0]:
            self.assertLessEqual(ENTRY_KEYS, set(entry))
            for frame in entry.get("frames", []):
                self.assertLessEqual(FRAME_KEYS, set(frame))

    def test_the_pickle_is_one_that_a_browser_reads(self):
        path, _ = self.export(self.gpt2, "torch")
        since_mark, longest = [], 0
        for opcode, argument, _ in pickletools.genops(path.read_bytes()):
            self.assertIn(opcode.name, OPCODES)
            if opcode.name == "PROTO":
                self.assertLessEqual(argument, 4)
            elif opcode.name == "MARK":
                since_mark.append(0)
            elif opcode.name in ("APPENDS", "SETITEMS"):
                longest = max(longest, since_mark.pop())
            elif opcode.name == "EMPTY_DICT" and since_mark:
                since_mark[-1] += 1  # items of a list of dicts
        # Its items are arguments of one call: too many overflow the stack.
        self.assertLessEqual(longest, 1000)

    def test_stepping_back_finds_each_block_in_a_segment(self):
        # What the policies reserve at most is in tests of replay; unplaced, blocks stand alone.
        for words, peak in (((), 13594220032), (("--place", "balanced"), 13727956992),
                            (("--place", "torch-default"), 15286140928)):
            snapshot, said = self.snapshot(self.gpt2, *words)
            reserved = sum(each["total_size"] for each in snapshot["segments"])
            live = sum(block["requested_size"] for each in snapshot["segments"]
                       for block in each["blocks"] if block["state"] == "active_allocated")
            self.assertIn(f"at the end {live} bytes live in {reserved} bytes reserved", said)
            walked = Walk(snapshot)
            self.assertEqual(walked.peak, peak)
            self.assertEqual((walked.segments, walked.blocks), ([], set()))

    def test_a_programs_own_recording_can_be_stepped_through(self):
        trace = self.folder / "run.weirtrace"
        self.expect(weir("record", "-o", trace, "--", test_replay.arguments.program), 0)
        snapshot, _ = self.snapshot(trace)
        self.assertEqual(sum(each["action"] == "alloc" for each in snapshot["device_traces"][0]), 1001)
        self.assertEqual(Walk(snapshot).blocks, set())

    def test_csv_is_what_the_trace_was_made_of(self):
        path, _ = self.export(test_replay.arguments.shipped / "multistream_prefetch.weirtrace", "csv")
        lines = path.read_text().splitlines()
        original = gzip.open(test_replay.arguments.traces / "multistream_prefetch.trace.gz", "rt")
        with original:
            self.assertEqual(lines[1:], original.read().splitlines()[1:])
        self.assertEqual(lines[0], "op,id,bytes,stream,t_us")

    def test_formats_of_one_recording_say_the_same(self):
        expected = self.export(self.small, "csv")[0].read_text()
        for format in ("weirtrace", "csv"):
            path, _ = self.export(self.small, format)
            again = self.folder / "again.csv"
            self.expect(weir("export", path, "-o", again, "--format", "csv", "-f"), 0)
            self.assertEqual(again.read_text(), expected)
        # With places, blocks are numbered anew, and the rest is the same.
        path, _ = self.export(self.small, "weirtrace", "--place", "balanced")
        self.assertEqual(self.export(path, "csv")[0].read_text(), expected)

    def test_chrome_counts_live_and_reserved_bytes(self):
        path, _ = self.export(self.small, "chrome", "--place", "balanced")
        events = json.loads(path.read_text())["traceEvents"]
        counters = [each["args"] for each in events if each["ph"] == "C" and each["name"] == "memory"]
        self.assertEqual(max(each["live"] for each in counters), 3 << 20)
        self.assertTrue(all(each["live"] <= each["reserved"] for each in counters))
        self.assertEqual(sum(each["ph"] == "b" for each in events), 3)

    def test_progress_is_shown_on_a_terminal(self):
        self.expect_progress("playing", "export", self.small, "-o", self.folder / "out", "--format", "csv",
                             "--place", "balanced")

    def test_nothing_is_overwritten_unless_asked(self):
        path = self.folder / "there"
        path.write_text("precious")
        ran = self.expect(weir("export", self.small, "-o", path, "--format", "csv"), 2)
        self.assertIn("exists; --force replaces it", ran.stderr)
        self.assertEqual(path.read_text(), "precious")
        self.expect(weir("export", self.small, "-o", path, "--format", "csv", "--force"), 0)
        self.assertNotEqual(path.read_text(), "precious")

    def test_a_file_that_cannot_be_is_an_error_as_any_other(self):
        path = self.folder / ("x" * 300)
        for form in ("torch", "chrome", "csv", "weirtrace"):
            ran = self.expect(weir("export", self.small, "-o", path, "--format", form), 2)
            self.assertTrue(ran.stderr.startswith("weir export: "), ran.stderr)
            self.assertIn(": File name too long", ran.stderr)

    def test_what_cannot_be_written_leaves_nothing(self):
        before = sorted(self.folder.iterdir())
        for format in ("torch", "chrome", "weirtrace", "csv"):
            ran = self.expect(weir("export", self.small, "-o", self.folder / "no/such", "--format",
                                   format), 2)
            self.assertIn("no/such", ran.stderr)
            ran = self.expect(weir("export", self.folder / "missing", "-o", self.folder / "out",
                                   "--format", format), 2)
            self.assertIn("missing", ran.stderr)
        self.assertEqual(sorted(self.folder.iterdir()), before)

    def test_a_damaged_trace_is_exported_as_far_as_it_goes(self):
        whole = (test_replay.arguments.shipped / "serve_short.weirtrace").read_bytes()
        damaged = self.folder / "cut.weirtrace"
        damaged.write_bytes(whole[:len(whole) // 2])
        path, ran = self.export(damaged, "csv", code=1)
        self.assertIn(f"weir export: {damaged}: damaged at byte", ran.stderr)
        self.assertGreater(len(path.read_text().splitlines()), 1)

    def test_bad_words(self):
        for words in (["--format", "svg"], [], ["--format", "csv", "--place", "balancd"],
                      ["--format", "csv", "--place", "driver-pool"],
                      ["--format", "csv", "--place", "balanced,compact"]):
            ran = self.expect(weir("export", self.small, "-o", self.folder / "out", *words), 64)
            self.assertNotEqual(ran.stderr, "")
        self.expect(weir("export", self.small, "--format", "csv"), 64)
        self.assertFalse((self.folder / "out").exists())
        self.assertEqual(self.small.read_text(), SMALL)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--weir", required=True)
    parser.add_argument("--program", required=True)
    parser.add_argument("--traces", required=True, type=Path)
    parser.add_argument("--shipped", required=True, type=Path)
    test_replay.arguments, rest = parser.parse_known_args()
    unittest.main(argv=[sys.argv[0], *rest])
