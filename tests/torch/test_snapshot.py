# SPDX-License-Identifier: Apache-2.0
"""memory_snapshot(), _record_memory_history(), _snapshot() and _dump_snapshot()."""

import inspect
import os
import pickle
import tempfile
import threading
import unittest

import support
import torch
from support import GPU, KIB, MIB, AllocatorTest, allocated, block, busy, reserved, stat

SKIPS_ACTIONS = "skip_actions" in inspect.signature(torch.cuda.memory._record_memory_history_impl).parameters

STATES = {"active_allocated", "active_pending_free", "active_awaiting_free", "inactive"}


def blocks_of(segments):
    return [(segment, each) for segment in segments for each in segment["blocks"]]


class Segments(AllocatorTest):
    def test_they_add_up_to_what_the_counters_say(self):
        keep = [block(size) for size in (1000, 30 * KIB, 3 * MIB, 50 * MIB)]
        del keep[1]
        segments = torch.cuda.memory_snapshot()
        self.assertEqual(sum(segment["total_size"] for segment in segments), reserved())
        self.assertEqual(sum(segment["allocated_size"] for segment in segments), allocated())
        self.assertEqual(sum(each["size"] for _, each in blocks_of(segments)
                             if each["state"] == "active_allocated"), allocated())

    def test_every_segment_is_covered_by_its_blocks(self):
        keep = [block(size) for size in (512, 5 * KIB, 2 * MIB, 9 * MIB, 70 * MIB)]
        del keep[::2]
        for segment in torch.cuda.memory_snapshot():
            self.assertIn(segment["segment_type"], ("small", "large"))
            self.assertEqual(segment["device"], 0)
            place = segment["address"]
            for each in segment["blocks"]:
                self.assertEqual(each["address"], place)
                self.assertIn(each["state"], STATES)
                place += each["size"]
            self.assertEqual(place, segment["address"] + segment["total_size"])

    def test_a_tensor_is_found_at_its_address(self):
        x = block(3 * MIB + 7)
        blocks = [each for _, each in blocks_of(torch.cuda.memory_snapshot())
                  if each["address"] == x.data_ptr()]
        self.assertEqual(len(blocks), 1)
        self.assertEqual(blocks[0]["state"], "active_allocated")
        self.assertEqual(blocks[0]["requested_size"], 3 * MIB + 7)
        self.assertGreaterEqual(blocks[0]["size"], 3 * MIB + 7)

    def test_streams_are_named(self):
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            x = block(40 * MIB)
        for segment, each in blocks_of(torch.cuda.memory_snapshot()):
            if each["address"] == x.data_ptr():
                if support.WEIR:
                    # weir's physical memory belongs to no stream; a segment names that of its blocks.
                    self.assertIn(segment["stream"], (0, stream.cuda_stream))
                else:
                    self.assertEqual(segment["stream"], stream.cuda_stream)
                return
        self.fail("the block is not there")

    def test_memory_that_a_recorded_stream_uses_is_pending(self):
        side = torch.cuda.Stream()
        x = block(20 * MIB)
        address = x.data_ptr()
        with torch.cuda.stream(side):
            busy(300)
        x.record_stream(side)
        del x
        states = [each["state"] for _, each in blocks_of(torch.cuda.memory_snapshot())
                  if each["address"] == address]
        self.assertEqual(states, ["active_pending_free"])
        torch.cuda.synchronize()

    def test_none_after_everything_is_given_back(self):
        block(30 * MIB)
        torch.cuda.empty_cache()
        self.assertEqual(sum(segment["total_size"] for segment in torch.cuda.memory_snapshot()),
                         reserved())


class History(AllocatorTest):
    def setUp(self):
        super().setUp()
        torch.cuda.memory._record_memory_history(enabled="all", context="all", stacks="python",
                                                 max_entries=10_000, clear_history=True)

    def tearDown(self):
        torch.cuda.memory._record_memory_history(enabled=None)
        super().tearDown()

    def trace(self):
        return torch.cuda.memory._snapshot()["device_traces"][0]

    def test_an_allocation_and_its_free(self):
        x = block(5 * MIB + 1)
        address = x.data_ptr()
        del x
        entries = [entry for entry in self.trace() if entry.get("addr") == address]
        actions = [entry["action"] for entry in entries
                   if entry["action"] in ("alloc", "free_requested", "free_completed")]
        self.assertEqual(actions, ["alloc", "free_requested", "free_completed"])
        for entry in entries:
            if entry["action"] == "alloc":
                self.assertEqual(entry["size"], 5 * MIB + 1)
                self.assertEqual(entry["stream"], torch.cuda.current_stream().cuda_stream)
                self.assertGreater(entry["time_us"], 0)

    def test_refused_frees_leave_no_entries(self):
        raw = torch.cuda.caching_allocator_alloc(5 * MIB)
        gone = torch.cuda.caching_allocator_alloc(5 * MIB)
        keep = block(1000)
        torch.cuda.caching_allocator_delete(gone)
        before = len([entry for entry in self.trace() if "free" in entry["action"]])
        live = stat("allocation.all.current")
        for bad in (raw + 512, raw + 1, raw + 2 * MIB, keep.data_ptr() + 4, 4096, gone):
            with self.assertRaisesRegex(RuntimeError, "invalid device pointer"):
                torch.cuda.caching_allocator_delete(bad)
        self.assertEqual(stat("allocation.all.current"), live)
        self.assertEqual(len([entry for entry in self.trace() if "free" in entry["action"]]), before)
        torch.cuda.caching_allocator_delete(raw)
        del keep

    def test_stacks_lead_here(self):
        x = block(5 * MIB)
        address = x.data_ptr()
        entry = [entry for entry in self.trace()
                 if entry["action"] == "alloc" and entry["addr"] == address][-1]
        self.assertIn("test_stacks_lead_here", [frame["name"] for frame in entry["frames"]])
        self.assertTrue(any(frame["filename"].endswith("test_snapshot.py") for frame in entry["frames"]))
        live = [each for _, each in blocks_of(torch.cuda.memory_snapshot())
                if each["address"] == address]
        self.assertIn("test_stacks_lead_here", [frame["name"] for frame in live[0]["frames"]])

    def test_the_order_is_that_of_the_program(self):
        addresses = []
        for i in range(20):
            x = block((i + 1) * 100 * KIB)
            addresses.append((x.data_ptr(), (i + 1) * 100 * KIB))
            del x
        seen = [(entry["addr"], entry["size"]) for entry in self.trace() if entry["action"] == "alloc"]
        self.assertEqual(seen[-20:], addresses)
        times = [entry["time_us"] for entry in self.trace()]
        self.assertEqual(times, sorted(times))

    def test_memory_from_the_driver_is_in_it(self):
        torch.cuda.empty_cache()
        x = block(300 * MIB)
        taken = [entry for entry in self.trace() if entry["action"] in ("segment_alloc", "segment_map")]
        self.assertGreaterEqual(sum(entry["size"] for entry in taken), 300 * MIB)
        del x
        torch.cuda.empty_cache()
        released = [entry for entry in self.trace() if entry["action"] in ("segment_free", "segment_unmap")]
        self.assertGreaterEqual(sum(entry["size"] for entry in released), 300 * MIB)

    def test_memory_from_the_driver_has_the_stack_of_what_took_it(self):
        def take():
            return block(40 * MIB)

        def empty():
            torch.cuda.empty_cache()

        x = take()
        names = [[frame["name"] for frame in segment["frames"]] for segment in torch.cuda.memory_snapshot()
                 if segment["address"] <= x.data_ptr() < segment["address"] + segment["total_size"]]
        self.assertIn("take", names[0])

        def stacks(*actions):
            return [[frame["name"] for frame in entry["frames"]] for entry in self.trace()
                    if entry["action"] in actions]

        taken = stacks("segment_alloc", "segment_map")
        del x
        empty()
        released = stacks("segment_free", "segment_unmap")
        self.assertTrue(taken and released)
        for names in taken:
            self.assertIn("take", names)
        for names in released:
            self.assertIn("empty", names)
            self.assertIn("empty_cache", names)

    def test_frees_have_the_stack_of_the_allocation_where_only_allocations_have_one(self):
        def take():
            return block(40 * MIB)

        torch.cuda.memory._record_memory_history(enabled="all", context="alloc", stacks="python",
                                                 clear_history=True)
        x = take()
        taken = self.trace()
        self.assertIn("alloc", [entry["action"] for entry in taken])
        for entry in taken:
            self.assertTrue(entry["frames"], entry["action"])
        del x
        torch.cuda.empty_cache()
        rest = [entry for entry in self.trace()[len(taken):] if entry["action"] != "snapshot"]
        self.assertIn("free_completed", [entry["action"] for entry in rest])
        self.assertIn("segment", "".join(entry["action"] for entry in rest))
        for entry in rest:
            self.assertIn("take", [frame["name"] for frame in entry.get("frames", [])], entry["action"])

    def test_running_out_is_in_it(self):
        with self.assertRaises(torch.OutOfMemoryError):
            block(1 << 47)
        ooms = [entry for entry in self.trace() if entry["action"] == "oom"]
        self.assertEqual(len(ooms), 1)
        self.assertGreaterEqual(ooms[0]["size"], 1 << 47)
        self.assertGreater(ooms[0]["device_free"], 0)

    def test_a_free_that_waits_is_completed_later(self):
        side = torch.cuda.Stream()
        x = block(20 * MIB)
        address = x.data_ptr()
        with torch.cuda.stream(side):
            busy(200)
        x.record_stream(side)
        del x
        actions = [entry["action"] for entry in self.trace() if entry.get("addr") == address]
        self.assertIn("free_requested", actions)
        self.assertNotIn("free_completed", actions)
        torch.cuda.synchronize()
        block(MIB)
        actions = [entry["action"] for entry in self.trace() if entry.get("addr") == address]
        self.assertIn("free_completed", actions)

    def test_a_record_on_the_own_stream_delays_no_free(self):
        x = block(20 * MIB)
        address = x.data_ptr()
        x.record_stream(torch.cuda.current_stream())
        del x
        actions = [entry["action"] for entry in self.trace() if entry.get("addr") == address]
        self.assertEqual(actions[-2:], ["free_requested", "free_completed"])

    def test_only_the_last_entries_are_kept(self):
        torch.cuda.memory._record_memory_history(enabled="all", context=None, stacks="python",
                                                 max_entries=50, clear_history=True)
        for _ in range(200):
            block(10 * KIB)
        self.assertLessEqual(len(self.trace()), 50)
        self.assertGreater(len(self.trace()), 10)

    @unittest.skipUnless(SKIPS_ACTIONS, "this torch skips none")
    def test_actions_that_are_skipped_leave_no_entries(self):
        torch.cuda.memory._record_memory_history(enabled="all", context=None, stacks="python", clear_history=True,
                                                 skip_actions=["free_requested", "free_completed"])
        block(3 * MIB)
        self.assertEqual([entry["action"] for entry in self.trace() if "free" in entry["action"]], [])
        self.assertIn("alloc", [entry["action"] for entry in self.trace()])
        torch.cuda.memory._record_memory_history(enabled=None)

    @unittest.skipUnless(support.WEIR and SKIPS_ACTIONS, "later versions of torch refuse them")
    def test_actions_that_do_not_exist_are_ignored(self):
        done = support.run_program("""
            import torch
            torch.cuda.init()
            torch.cuda.memory._record_memory_history(enabled="all", context=None, skip_actions=["no such action"])
            x = torch.ones(10, device="cuda")
            print(any(entry["action"] == "alloc"
                      for trace in torch.cuda.memory._snapshot()["device_traces"] for entry in trace))
            """)
        self.assertEqual((done[0], done[1].strip()), (0, "True"), done[2])

    def test_turned_off_nothing_is_added(self):
        torch.cuda.memory._record_memory_history(enabled=None)
        before = len(self.trace())
        block(MIB)
        self.assertEqual([entry for entry in self.trace()[before:] if entry["action"] == "alloc"], [])

    def test_a_dump_can_be_read_and_shown(self):
        from torch.cuda import _memory_viz

        keep = [block(size) for size in (KIB, 3 * MIB)]
        with tempfile.TemporaryDirectory() as folder:
            file = os.path.join(folder, "snapshot.pickle")
            torch.cuda.memory._dump_snapshot(file)
            with open(file, "rb") as opened:
                snapshot = pickle.load(opened)
        self.assertEqual(set(snapshot) & {"segments", "device_traces", "allocator_settings"},
                         {"segments", "device_traces", "allocator_settings"})
        self.assertTrue(_memory_viz.segsum(snapshot).strip())
        self.assertIn("TOTAL MEM", _memory_viz.trace(snapshot))
        self.assertIn("<script", _memory_viz.trace_plot(snapshot))
        del keep

    def test_user_metadata_reaches_the_entries(self):
        torch.cuda.memory._set_memory_metadata("a phase")
        try:
            x = block(5 * MIB)
            self.assertEqual(torch.cuda.memory._get_memory_metadata(), "a phase")
            entry = [entry for entry in self.trace()
                     if entry["action"] == "alloc" and entry["addr"] == x.data_ptr()][-1]
            self.assertEqual(entry["user_metadata"], "a phase")
        finally:
            torch.cuda.memory._set_memory_metadata("")

    def test_user_metadata_is_the_threads_own(self):
        torch.cuda.memory._set_memory_metadata("of the main thread")
        try:
            seen, addresses = [], []

            def other():
                seen.append(torch.cuda.memory._get_memory_metadata())
                x = block(5 * MIB)
                addresses.append(x.data_ptr())

            thread = threading.Thread(target=other)
            thread.start()
            thread.join()
            self.assertEqual(seen, [""])
            texts = {entry["user_metadata"] for entry in self.trace()
                     if entry["action"] == "alloc" and entry["addr"] == addresses[0]}
            self.assertEqual(texts, {""})
        finally:
            torch.cuda.memory._set_memory_metadata("")

    def test_it_does_not_change_what_programs_compute(self):
        torch.manual_seed(0)
        x = torch.randn(256, 256, device=GPU)
        with_history = (x @ x).relu().sum()
        torch.cuda.memory._record_memory_history(enabled=None)
        self.assertEqual(float(with_history), float((x @ x).relu().sum()))


if __name__ == "__main__":
    support.main()
