#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""weir.numba under a stand-in for Numba's interface (fake_numba.py) on a simulated GPU."""

import contextlib
import ctypes
import gc
import os
import unittest
import unittest.mock

from support import GIB, MIB, Case

os.environ["WEIR_SIM_CAPACITY"] = "1GiB"  # of the process's own machine, so that an eighth is soon full

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
        allocator = self.manager._memory
        self.manager.initialize()
        self.assertEqual((self.manager.initialized, self.manager._memory), (2, allocator))
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
        for _ in range(3 * 64):
            self.manager.memalloc(512)
        # The 65th and the 129th found 64 that Numba had let go of; the last 64 lie there still.
        self.assertEqual((self.context.waits, self.stats().blocks.current), (2, 64))

    def test_a_wait_that_fails_frees_nothing(self):
        for _ in range(64):
            self.manager.memalloc(MIB)
        with unittest.mock.patch.object(self.context, "synchronize", side_effect=OSError("a capture is under way")):
            self.assertRaises(OSError, self.manager.memalloc, 512)
            gc.collect()
            self.assertEqual((self.stats().requested.current, self.manager._released_bytes), (64 * MIB, 64 * MIB))
        self.manager.memalloc(512)
        self.assertEqual((self.context.waits, self.stats().requested.current), (1, 512))

    def test_large_memory_does_not_pile_up(self):
        bound, kept = GIB // 8, []
        for before in range(3):
            for size in (bound // 2, bound // 2, 1):  # at the bound, the last is not above it yet
                self.manager.memalloc(size)
            self.assertEqual((self.context.waits, self.stats().requested.current),
                             (before, before * 512 + bound + 1))
            kept.append(self.manager.memalloc(512))  # above it: all that was let go of goes first
            self.assertEqual((self.context.waits, self.stats().requested.current),
                             (before + 1, (before + 1) * 512))

    def test_out_of_memory_is_a_memory_error(self):
        held = self.manager.memalloc(200 * MIB)
        self.assertRaises(MemoryError, self.manager.memalloc, 200 * MIB)
        del held
        self.manager.memalloc(200 * MIB)

    def test_cleanup_can_be_deferred(self):
        with contextlib.suppress(KeyError), self.manager.defer_cleanup():
            with self.manager.defer_cleanup():  # scopes nest
                for _ in range(2 * 64):
                    self.manager.memalloc(512)
            self.manager.memalloc(512)
            self.assertEqual((self.context.waits, self.stats().blocks.current), (0, 2 * 64 + 1))
            raise KeyError
        held = self.manager.memalloc(512)
        self.assertEqual((self.context.waits, self.stats().blocks.current), (1, 1))
        self.assertEqual(self.manager.host_calls, ["defer", "defer", "resume"])
        del held

    def test_reset_may_come_first_and_ends_what_is_live(self):
        manager = cuda.manager(context=self.context)
        manager.reset()
        memory = self.manager.memalloc(MIB)
        self.manager.reset()
        self.assertEqual(self.stats().blocks.current, 0)
        self.assertEqual(self.manager._live, {})
        other = self.manager.memalloc(MIB)
        self.assertEqual(int(other.device_pointer), int(memory.device_pointer))
        del memory  # its finalizer finds nothing to free: what is there now is another's
        gc.collect()
        for _ in range(65):
            self.manager.memalloc(512)
        self.assertEqual((self.context.waits, self.stats().requested.current), (2, MIB + 512))

    def test_a_finalizer_may_run_while_it_is_reset(self):
        memory = [self.manager.memalloc(MIB) for _ in range(3)]
        manager = self.manager

        class Released(list):
            def __iadd__(self, blocks):
                for each in blocks:
                    memory.clear()  # the garbage collector: all finalizers run
                    self.append(each)
                return self

        manager._released = Released()
        manager.reset()
        self.assertEqual((self.stats().blocks.current, manager._live, manager._released_bytes), (0, {}, 0))

    def test_what_is_cached_counts_as_free(self):
        free, total = self.device.memory()
        memory = self.manager.memalloc(63 * MIB)
        self.assertEqual(self.stats().cached, MIB)  # the rest of the driver's last 2 MiB
        self.assertEqual(self.device.memory(), (free - 64 * MIB, GIB))
        self.assertEqual(self.manager.get_memory_info(), (free - 63 * MIB, total))
        del memory
        self.manager.reset()
        self.assertEqual(self.device.memory(), (free, total))  # reset() gives everything back
        self.assertEqual(cuda.manager(context=self.context).get_memory_info(), (free, total))  # it may come first

    def test_ipc_only_where_the_driver_can(self):
        memory = self.manager.memalloc(MIB)
        with self.assertRaisesRegex(RuntimeError, "classic"):
            self.manager.get_ipc_handle(memory)
        weir.numba.enable(policy="classic")
        manager = cuda.manager(context=self.context)
        self.assertEqual(manager.get_ipc_handle(manager.memalloc(MIB)).size, MIB)
        manager.reset()
        weir.numba.enable()
        with unittest.mock.patch.dict(os.environ, WEIR_HEAP_POLICY="classic"):
            self.assertEqual(self.manager.get_ipc_handle(memory).size, MIB)
        self.assertRaises(RuntimeError, self.manager.get_ipc_handle, memory)

    def test_addresses_are_what_the_driver_layer_wants(self):
        memory = self.manager.memalloc(MIB)
        self.assertIs(type(memory.device_pointer), fake_numba.CUdeviceptr)
        driver = weir.numba._numba_driver
        with unittest.mock.patch.object(driver, "USE_NV_BINDING", False):  # ctypes, in older versions
            pointer = self.manager.memalloc(MIB).device_pointer
        self.assertIs(type(pointer), ctypes.c_uint64)
        self.assertEqual(self.manager._memory.find_block(pointer.value).requested, MIB)
        self.addCleanup(setattr, driver, "USE_NV_BINDING", True)
        del driver.USE_NV_BINDING  # in newer versions there is no choice
        self.assertIs(type(self.manager.memalloc(MIB).device_pointer), fake_numba.CUdeviceptr)


if __name__ == "__main__":
    unittest.main()
