#!/usr/bin/env python3
"""weir.numba under a stand-in for Numba's interface (fake_numba.py) on a simulated GPU."""

import gc
import unittest

from support import MIB, Case

import fake_numba
import weir

cuda = fake_numba.install()

import weir.numba  # noqa: E402  (Numba must be there first)


class Numba(Case):
    def setUp(self):
        super().setUp()
        weir.numba.enable(options="heap_limit=256MiB")
        self.device = weir.Runtime.default().device(0)
        self.context = fake_numba.Context(0, self.device.synchronize)
        self.manager = cuda.manager(context=self.context)

    def tearDown(self):
        self.manager.reset()
        super().tearDown()

    def stats(self):
        return self.manager._memory.stats()

    def test_it_is_what_numba_looks_for(self):
        self.assertIs(weir.numba._numba_memory_manager, cuda.manager)
        self.assertTrue(issubclass(cuda.manager, fake_numba.HostOnlyCUDAMemoryManager))
        self.assertEqual(self.manager.interface_version, 1)

    def test_memory_is_handed_out_and_taken_back(self):
        self.manager.initialize()
        self.manager.initialize()
        memory = self.manager.memalloc(3 * MIB)
        self.assertEqual((memory.size, self.manager._memory.size_of(int(memory.device_pointer))),
                         (3 * MIB, 3 * MIB))
        self.assertIs(memory.context, self.context)
        del memory
        self.assertEqual(self.stats().blocks.current, 1)  # the device may use it still
        self.assertEqual(self.context.waits, 0)
        self.manager.reset()
        self.assertEqual((self.stats().blocks.current, self.context.waits), (0, 1))
        self.assertIn("reset", self.manager.host_calls)

    def test_one_wait_serves_many(self):
        for _ in range(3 * weir.numba._MOST_BLOCKS):
            self.manager.memalloc(512)
        self.assertIn(self.context.waits, (2, 3))
        self.assertLessEqual(self.stats().blocks.current, weir.numba._MOST_BLOCKS)

    def test_large_memory_does_not_pile_up(self):
        for _ in range(20):
            self.manager.memalloc(100 * MIB)
        self.assertLessEqual(self.stats().reserved.peak, 256 * MIB)
        self.assertGreater(self.context.waits, 0)

    def test_out_of_memory_is_a_memory_error(self):
        held = self.manager.memalloc(200 * MIB)
        self.assertRaises(MemoryError, self.manager.memalloc, 200 * MIB)
        del held
        self.manager.memalloc(200 * MIB)

    def test_cleanup_can_be_deferred(self):
        with self.manager.defer_cleanup():
            for _ in range(2 * weir.numba._MOST_BLOCKS):
                self.manager.memalloc(512)
            self.assertEqual(self.context.waits, 0)
        self.manager.memalloc(512)
        self.assertEqual(self.context.waits, 1)
        self.assertEqual(self.manager.host_calls[:2], ["defer", "resume"])

    def test_reset_may_come_first_and_ends_what_is_live(self):
        manager = cuda.manager(context=self.context)
        manager.reset()
        memory = self.manager.memalloc(MIB)
        self.manager.reset()
        self.assertEqual(self.stats().blocks.current, 0)
        del memory  # its finalizer finds nothing to free
        gc.collect()
        self.assertEqual(self.stats().blocks.current, 0)

    def test_what_is_cached_counts_as_free(self):
        memory = self.manager.memalloc(64 * MIB)
        info = self.manager.get_memory_info()
        self.assertEqual(info.total, self.device.info.total_memory)
        del memory
        self.manager.reset()
        self.assertGreaterEqual(self.manager.get_memory_info().free, info.free + 64 * MIB)

    def test_ipc_only_where_the_driver_can(self):
        memory = self.manager.memalloc(MIB)
        with self.assertRaisesRegex(RuntimeError, "classic"):
            self.manager.get_ipc_handle(memory)
        weir.numba.enable(policy="classic")
        manager = cuda.manager(context=self.context)
        self.assertEqual(manager.get_ipc_handle(manager.memalloc(MIB)).size, MIB)
        manager.reset()


if __name__ == "__main__":
    unittest.main()
