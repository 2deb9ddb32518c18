#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Growable memory from Python, on a simulated GPU."""

import ctypes
import unittest

from support import MIB, Case

import weir


class Growable(Case):
    def setUp(self):
        super().setUp()
        self.memory = weir.Allocator(self.device)
        self.addCleanup(self.memory.close)
        self.stream = weir.Stream(self.device)
        self.addCleanup(self.stream.close)

    def fill(self, cache, offset, nbytes, value):
        weir._native.lib.weir_fill(cache.ptr + offset, value, nbytes, self.stream._handle)

    def byte(self, cache, offset):
        found = ctypes.c_uint8()
        weir._native.lib.weir_copy(ctypes.addressof(found), cache.ptr + offset, 1, self.stream._handle)
        self.stream.synchronize()
        return found.value

    def test_pages_are_committed_and_decommitted(self):
        with self.memory.growable("64 MiB", page="4 MiB", tag="py kv", name="kv") as cache:
            self.assertEqual(cache.stats(), weir.GrowableStats(64 * MIB, 64 * MIB, 4 * MIB))
            self.assertEqual(cache.nbytes, 64 * MIB)
            cache.commit(1 * MIB, 4 * MIB, self.stream)
            self.assertTrue(cache.is_committed(0, 8 * MIB))
            self.assertFalse(cache.is_committed(0, 8 * MIB + 1))
            self.fill(cache, 0, 8 * MIB, 7)
            self.assertEqual(self.byte(cache, 8 * MIB - 1), 7)
            self.assertEqual(self.memory.stats("py kv").allocated.current, 8 * MIB)
            cache.decommit("4 MiB", "60 MiB", self.stream)
            self.assertEqual(cache.stats().committed, weir.Gauge(4 * MIB, 8 * MIB))
            self.assertEqual((cache.stats().commits, cache.stats().decommits), (2, 1))
            self.assertEqual(repr(cache), f"<weir.Growable 'kv', {4 * MIB} of {64 * MIB} bytes committed>")
            self.assertIn("page 1 of growable memory \"kv\"", self.memory.describe_address(cache.ptr + 5 * MIB))
        self.assertTrue(cache.closed)
        self.assertEqual(self.memory.stats().allocated.current, 0)

    def test_a_batch_is_all_or_nothing(self):
        cache = self.memory.growable(64 * MIB, page=4 * MIB)
        self.memory.limit = 16 * MIB
        with self.assertRaises(weir.OutOfMemory) as refused:
            cache.commit_ranges([(0, 8 * MIB), (32 * MIB, 16 * MIB)], self.stream)
        self.assertIn("16 MiB", refused.exception.report)
        self.assertEqual(cache.stats().committed.current, 0)
        cache.commit_ranges([(0, 8 * MIB), (32 * MIB, 8 * MIB)], self.stream)
        self.assertEqual(cache.stats().committed.current, 16 * MIB)
        cache.decommit_ranges([(0, 8 * MIB), (32 * MIB, 4 * MIB)], self.stream)
        self.assertEqual(cache.stats().committed.current, 4 * MIB)
        self.assertRaises(weir.InvalidArgument, cache.commit, 64 * MIB, 1, self.stream)
        cache.close()

    def test_a_request_gets_pages_from_a_callback(self):
        cache = self.memory.growable(64 * MIB, page=4 * MIB)
        self.memory.limit = 16 * MIB
        cache.commit(0, 16 * MIB, self.stream)
        asked = []

        def lend(needed):
            asked.append(needed)
            cache.decommit(0, 8 * MIB, self.stream)
            return True

        with self.memory.on_out_of_memory(lend):
            block = self.memory.allocate(8 * MIB, self.stream)
        self.assertEqual(asked, [8 * MIB])
        self.assertEqual(cache.stats().committed.current, 8 * MIB)
        block.free()
        cache.close()

    def test_a_plan_is_committed_or_given_back(self):
        cache = self.memory.growable(64 * MIB, page=4 * MIB)
        cache.commit(0, 4 * MIB, self.stream)
        with cache.prepare([(8 * MIB, 8 * MIB)], [(0, 4 * MIB)], self.stream):
            self.assertEqual(self.memory.stats().allocated.current, 12 * MIB)
            with self.assertRaises(weir.Error) as refused:
                cache.close()
            self.assertEqual(refused.exception.name, "not_ready")
            cache._closed = False  # it is still open
        self.assertEqual(self.memory.stats().allocated.current, 4 * MIB)
        plan = cache.prepare([(8 * MIB, 8 * MIB)], [(0, 4 * MIB)], self.stream)
        plan.commit()
        self.assertTrue(plan.closed)
        self.assertTrue(cache.is_committed(8 * MIB, 8 * MIB))
        self.assertFalse(cache.is_committed(0, 1))
        cache.close()

    def test_pages_ahead_sizes_and_holds(self):
        cache = self.memory.growable(64 * MIB, page=4 * MIB)
        cache.commit_ahead("8 MiB", self.stream)
        self.assertEqual(cache.stats().ahead, 8 * MIB)
        cache.commit(0, 4 * MIB, self.stream)
        self.assertEqual(cache.trim(), 4 * MIB)
        with cache.hold():
            cache.decommit(0, 4 * MIB, self.stream)
            self.assertEqual(cache.stats().held, 4 * MIB)
        self.assertEqual(cache.stats().held, 0)
        cache.resize(8 * MIB, self.stream)
        self.assertEqual(cache.stats().size, 8 * MIB)
        self.assertRaises(weir.InvalidArgument, cache.resize, 65 * MIB, self.stream)
        cache.close()

    def test_it_leaves_and_comes_back(self):
        cache = self.memory.growable(64 * MIB, page=4 * MIB)
        cache.commit(0, 8 * MIB, self.stream)
        self.fill(cache, 0, 8 * MIB, 5)
        self.assertEqual(cache.suspend(), 8 * MIB)
        self.assertEqual(cache.stats().suspended, 8 * MIB)
        self.assertRaises(weir.Suspended, cache.commit, 0, 1, self.stream)
        cache.resume(self.stream)
        self.assertEqual(self.byte(cache, 8 * MIB - 1), 5)
        self.assertRaises(ValueError, cache.suspend, contents="some")
        cache.close()

    def test_it_is_an_array_for_other_libraries(self):
        cache = self.memory.growable(64 * MIB, page=4 * MIB)
        array = cache.view("float32", (16, 1024, 1024), stream=self.stream)
        interface = array.__cuda_array_interface__
        self.assertEqual(interface["shape"], (16, 1024, 1024))
        self.assertEqual(interface["data"], (cache.ptr, False))
        self.assertEqual(array.__dlpack_device__(), (2, 0))
        self.assertEqual(cache.view(offset=4 * MIB).nbytes, 60 * MIB)
        self.assertRaises(ValueError, cache.view, offset=65 * MIB)
        cache.close()


if __name__ == "__main__":
    unittest.main()
