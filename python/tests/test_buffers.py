#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""weir.UnifiedBuffer and weir.BufferPool, on a simulated machine."""

import ctypes
import gc
import sys
import threading
import unittest
import unittest.mock

from support import MIB, Case

import weir


class Unified(Case):
    options = {"sim_devices": 2, "sim_mode": "manual"}  # work happens when somebody waits

    def setUp(self):
        super().setUp()
        self.stream = weir.Stream(self.device)

    def test_host_and_devices_take_turns(self):
        buffer = weir.UnifiedBuffer(self.device, 4096, self.stream)
        self.assertEqual((buffer.nbytes, len(buffer)), (4096, 4096))
        with buffer.view() as view:
            self.assertEqual((len(view), view[17], view[4095]), (4096, 0, 0))
            view[17] = 5
            with self.assertRaises(weir.Error) as caught:
                buffer.use_on(self.stream)
            self.assertEqual(caught.exception.name, "not_ready")
            self.assertRaises(BufferError, buffer.close)
            with buffer.view() as second:  # they nest
                self.assertEqual(second[17], 5)
        self.assertRaises(ValueError, lambda: view[0])  # released
        buffer.use_on(self.stream)
        self.stream.fill(buffer.ptr, 9, 4096)
        with self.assertRaises(weir.Error) as caught:
            with buffer.view(wait=False):
                pass
        self.assertEqual(caught.exception.name, "not_ready")
        filled = weir.Event(self.device)
        filled.record(self.stream)
        with buffer.view(after=filled) as view:
            self.assertEqual(bytes(view[:3]), b"\t\t\t")
        with buffer.view(wait=False) as view:
            self.assertEqual(view[4095], 9)
        buffer.close()
        buffer.close()
        self.assertRaises(weir.Closed, buffer.use_on, self.stream)

    def test_a_copy_has_the_bytes_of_any_buffer(self):
        for data in (b"weir", bytearray(b"weir"), memoryview(b"weir")):
            with weir.UnifiedBuffer.copy_of(self.device, data, attachment=weir.Attachment.HOST) as buffer:
                self.assertEqual(buffer.info().attachment, weir.Attachment.HOST)
                with buffer.view() as view:
                    self.assertEqual(bytes(view), b"weir")
        self.assertRaises(weir.InvalidArgument, weir.UnifiedBuffer.copy_of, self.device, b"")

    def test_a_resize_keeps_the_bytes(self):
        buffer = weir.UnifiedBuffer.copy_of(self.device, b"abcd", self.stream)
        buffer.resize(8, self.stream)
        with buffer.view() as view:
            self.assertEqual(bytes(view), b"abcd\0\0\0\0")
        buffer.resize(2)
        with buffer.view() as view:
            self.assertEqual(bytes(view), b"ab")
        self.assertRaisesRegex(ValueError, "weir: size must not be negative", buffer.resize, -1)

    def test_placement_is_advised_by_range(self):
        half = 2 * MIB
        buffer = weir.UnifiedBuffer(self.device, 2 * half, zeroed=False)
        self.assertEqual(buffer.info(), weir.ManagedInfo(weir.Attachment.GLOBAL, False, None, (), None))
        buffer.advise_read_mostly(offset=half)
        self.assertEqual((buffer.info(offset=half).read_mostly, buffer.info(size=half).read_mostly),
                         (True, False))
        other = self.machine.device(1)
        buffer.advise_preferred(other)
        self.assertEqual(buffer.info().preferred, 1)
        buffer.advise_preferred(weir.HOST, size=half)
        self.assertEqual((buffer.info(size=half).preferred, buffer.info().preferred), (weir.HOST, None))
        buffer.advise_preferred(None)
        self.assertIsNone(buffer.info(offset=half).preferred)
        self.assertEqual(buffer.info(), weir.ManagedInfo(weir.Attachment.GLOBAL, False, None, (), None))
        buffer.advise_preferred(1)
        buffer.advise_read_mostly()
        buffer.advise_accessed_by(0)
        buffer.advise_accessed_by(1)
        self.assertEqual(buffer.info(), weir.ManagedInfo(weir.Attachment.GLOBAL, True, 1, (0, 1), None))
        buffer.advise_read_mostly(False)
        buffer.advise_preferred(None)
        buffer.advise_accessed_by(0, False)
        buffer.advise_accessed_by(1, False)
        buffer.advise_accessed_by(1)
        self.assertEqual(buffer.info().accessed_by, (1,))
        buffer.advise_accessed_by(other, False)
        self.assertEqual(buffer.info().accessed_by, ())
        buffer.prefetch(other, self.stream)
        self.stream.synchronize()
        self.assertEqual(buffer.info().last_prefetch, 1)
        self.assertRaises(weir.InvalidArgument, buffer.prefetch, 0, self.stream, offset=2 * half)
        with self.assertRaises(weir.Error) as caught:
            buffer.prefetch(7, self.stream)
        self.assertEqual(caught.exception.name, "no_device")
        self.assertEqual((weir.HOST, weir.host_node(0), weir.host_node(3)), (-1, -2, -5))

    def test_attachments_change(self):
        buffer = weir.UnifiedBuffer(self.device, 64)
        buffer.attach(weir.Attachment.SINGLE, self.stream)
        self.assertEqual(buffer.info().attachment, weir.Attachment.SINGLE)
        self.assertRaises(weir.InvalidArgument, buffer.attach, weir.Attachment.SINGLE)
        buffer.attach(weir.Attachment.GLOBAL, self.stream)
        self.assertEqual(buffer.info().attachment, weir.Attachment.GLOBAL)

    def test_bad_input_is_a_typed_error(self):
        self.assertRaises(weir.InvalidArgument, weir.UnifiedBuffer, self.device, 0)
        self.assertRaisesRegex(ValueError, "weir: size must not be negative", weir.UnifiedBuffer, self.device, -1)
        self.assertRaises(TypeError, weir.UnifiedBuffer, self.device, 1, self.stream.handle)
        with self.assertRaises(weir.Error) as caught:
            weir.UnifiedBuffer(self.machine.device(1), 1, self.stream)
        self.assertEqual(caught.exception.name, "bad_stream")

    def test_it_is_an_array_to_other_libraries(self):
        buffer = weir.UnifiedBuffer(self.device, 100)
        self.assertEqual(buffer.__cuda_array_interface__,
                         {"shape": (100,), "typestr": "|u1", "data": (buffer.ptr, False), "version": 3, "strides": None})
        self.assertIs(buffer.device, self.device)


class Pools(Case):
    options = {"sim_devices": 2}

    def setUp(self):
        super().setUp()
        self.stream = weir.Stream(self.device)

    def test_buffers_are_reused(self):
        pool = weir.BufferPool()
        self.assertIsNone(pool.take_cached(MIB, self.stream))
        block = pool.take(MIB, self.stream, zeroed=True)
        address = block.ptr
        self.assertEqual(pool.stats(self.device),
                         weir.BufferPoolStats(hits=0, misses=1, returns=0, cached=0,
                                              taken=weir.Gauge(MIB, MIB)))
        block.free()
        block.free()  # nothing more
        again = pool.take_cached(MIB, self.stream)
        self.assertEqual((again.ptr, again.nbytes, again.stream), (address, MIB, self.stream))
        other = weir.Stream(self.device)
        again.record_stream(other)
        again.free(other)
        with pool.take(MIB, weir.Stream(self.machine.device(1))):
            self.assertEqual(pool.stats().taken.current, MIB)
        stats = pool.stats()
        self.assertEqual((stats.hits, stats.misses, stats.returns, stats.cached), (1, 2, 3, 2 * MIB))
        self.assertEqual(pool.stats(self.device).cached, MIB)
        pool.reset_counters()
        pool.reset_peaks(self.device)
        self.assertEqual(pool.stats(self.device), weir.BufferPoolStats(cached=MIB))
        self.assertEqual(pool.stats().taken.peak, MIB)  # of the other device
        pool.reset_peaks()
        self.assertEqual(pool.stats(), weir.BufferPoolStats(cached=2 * MIB))
        self.device.synchronize()
        self.machine.device(1).synchronize()
        self.assertEqual(pool.trim(weir.NO_LIMIT), 0)
        self.assertEqual(pool.trim(device=self.device), MIB)
        self.assertEqual(pool.empty_cache(), MIB)
        self.assertEqual(pool.stats().cached, 0)

    def test_what_is_forgotten_goes_back(self):
        pool = weir.BufferPool()
        block = pool.take(MIB, self.stream)
        self.assertEqual((pool._live(), pool.stats().returns), (1, 0))
        del block
        self.assertEqual((pool._live(), pool.stats().returns, pool.stats().cached), (0, 1, MIB))

    def test_zeros_are_zeros(self):
        pool, host = weir.BufferPool(), weir.PinnedPool(self.device).allocate(2, self.stream)
        for take in (pool.take, pool.take_cached):
            for given, byte in (({"zeroed": True}, 0), ({"zeroed": False}, 7), ({}, 7)):
                with pool.take(512, self.stream) as block:
                    self.stream.fill(block.ptr, 7, 512)
                block = take(512, self.stream, **given)
                self.stream.copy(host.ptr, block.ptr + 511, 1)
                self.stream.synchronize()
                self.assertEqual(ctypes.c_ubyte.from_address(host.ptr).value, byte)
                block.free()

    def test_bounds_are_kept(self):
        pool = weir.BufferPool(max_cached=0, max_idle_time=1.5, declared_uses=True)
        pool.take(1000, self.stream).free()
        self.stream.synchronize()
        self.assertEqual(pool.trim(weir.NO_LIMIT), 1024)  # what is over the bounds
        self.assertRaisesRegex(ValueError, "weir: max_idle_time must not be negative, got -1", weir.BufferPool, max_idle_time=-1)

    def test_addresses_can_be_released(self):
        pool = weir.BufferPool()
        address = pool.take(MIB, self.stream).release()
        self.assertEqual(pool.stats().returns, 0)
        pool.record_stream(address, self.stream)
        pool.deallocate(address)
        self.assertEqual(pool.stats().returns, 1)
        self.assertRaises(ValueError, pool.deallocate, address)

    def test_an_address_that_is_taken_again_at_once_is_kept(self):
        # As another thread that is given the buffer between the free and the end of the call.
        pool = weir.BufferPool()
        for name in ("weir_buffer_close", "weir_buffer_pool_free"):
            block, again = pool.take(MIB, self.stream), []
            address = block.ptr
            real = getattr(weir._native.lib, name)
            with unittest.mock.patch.object(weir._native.lib, name, lambda *given: (
                    real(*given), again.append(pool.take(MIB, self.stream)))):
                block.free(None if name == "weir_buffer_close" else self.stream)
            self.assertEqual(again[0].ptr, address)
            self.assertEqual(pool._live(), 1)
            again[0].free()
            self.assertEqual((pool._live(), pool.stats().taken.current), (0, 0))

    def test_threads_may_take_and_free(self):
        pool, wrong = weir.BufferPool(), []

        def work():
            try:
                for _ in range(300):
                    pool.take(MIB, self.stream).free()
            except BaseException as problem:
                wrong.append(problem)

        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-5)
        self.addCleanup(sys.setswitchinterval, interval)
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual((wrong, pool._live(), pool.stats().taken.current), ([], 0, 0))

    def test_bad_input_is_a_typed_error(self):
        pool = weir.BufferPool()
        self.assertRaises(weir.InvalidArgument, pool.take, 0, self.stream)
        for take in (pool.take, pool.take_cached):
            self.assertRaisesRegex(ValueError, "weir: size must not be negative", take, -1, self.stream)
        self.assertRaises(weir.InvalidArgument, pool.take, 1, None)  # of which device?
        self.assertRaises(TypeError, pool.take, 1, self.stream.handle)
        self.assertRaises(MemoryError, pool.take, 1 << 50, self.stream)
        self.assertRaises(weir.InvalidArgument, pool.take_cached, 0, self.stream)

    def test_objects_may_go_in_any_order(self):
        pool = weir.BufferPool()
        block = pool.take(MIB, self.stream)
        pool.close()
        self.assertRaises(weir.Closed, pool.take, MIB, self.stream)
        block.free()
        pool = weir.BufferPool()
        block = pool.take(MIB, self.stream)
        del pool
        gc.collect()
        block.free()
        everything = {"pool": weir.BufferPool()}
        everything["block"] = everything["pool"].take(MIB, self.stream)
        everything["pool"].back, everything["itself"] = everything, everything
        del everything
        gc.collect()  # a cycle: finalizers come in no order


if __name__ == "__main__":
    unittest.main()
