#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""weir's objects in Python on a simulated GPU: memory, streams, errors, statistics, pools, recordings."""

import copy
import ctypes
import dataclasses
import gc
import os
import pickle
import tempfile
import threading
import unittest
import unittest.mock
import weakref
from pathlib import Path

from support import GIB, MIB, Case

import weir
from weir import _native
from weir._native import lib
from weir._machine import native_stream, options_text


class Machine(Case):
    def test_a_machine_says_what_it_has(self):
        machine = weir.Runtime({"runtime": "sim", "sim_devices": 2}, sim_capacity="2GiB")
        self.assertEqual((machine.driver, machine.device_count), ("simulated", 2))
        self.assertGreaterEqual(machine.driver_version, 12000)
        device = machine.devices()[1]
        self.assertEqual((device.number, device.info.total_memory), (1, 2 * GIB))
        self.assertIn(weir.DeviceFeature.VIRTUAL_MEMORY, device.info.features)
        free, total = device.memory()
        self.assertTrue(0 < free <= total == 2 * GIB)
        device.synchronize()
        self.assertEqual((machine.device().number, weir.Device(machine).number), (0, 0))
        self.assertEqual([each.number for each in machine.devices()], [0, 1])
        self.assertIs(device.runtime, machine)
        self.assertEqual((repr(machine), repr(device)),
                         ("<weir.Runtime 'simulated'>", f"<weir.Device 1 {device.info.name!r}>"))
        machine.close()
        self.assertEqual(repr(machine), "<weir.Runtime closed>")

    def test_a_device_says_what_it_is(self):
        from weir._native import lib, structure
        read = structure("weir_device_info")()
        lib.weir_device_get_info(self.machine._handle, 0, ctypes.byref(read))
        info = self.device.info
        self.assertEqual((info.name, info.pci_bus_id), (read.name.decode(), read.pci_bus_id.decode()))
        self.assertEqual((info.total_memory, info.granularity), (read.total_memory, 2 * MIB))
        self.assertEqual(info.compute, (read.compute_major, read.compute_minor))
        self.assertNotEqual(*info.compute)
        self.assertEqual((info.multiprocessors, int(info.features)), (read.multiprocessors, read.features))
        self.assertIn(weir.DeviceFeature.HAS_UUID, info.features)
        self.assertEqual(info.uuid, bytes(read.uuid))
        self.assertEqual(len(info.uuid), 16)

    def test_the_environment_counts_unless_told_otherwise(self):
        with unittest.mock.patch.dict(os.environ, WEIR_SIM_DEVICES="3", WEIR_HEAP_LIMIT="64MiB"):
            self.assertEqual(weir.Runtime(runtime="sim").device_count, 3)
            machine = weir.Runtime(runtime="sim", environment=False)
            self.assertEqual(machine.device_count, 1)
            device = machine.device()
            self.assertEqual(weir.Allocator(device).limit, 64 * MIB)
            self.assertNotEqual(weir.Allocator(device, environment=False).limit, 64 * MIB)
            self.assertEqual(weir.Allocator(device, "heap_limit=32MiB").limit, 32 * MIB)

    def test_the_processes_own_cannot_be_closed(self):
        for default in (weir.Runtime.default, weir.Allocator.default):
            with default() as own:
                pass
            self.assertTrue(own.closed)  # there was nothing to close
            self.assertEqual(own._handle, default()._handle)
        self.assertEqual(weir.Allocator.default().device.number, 0)
        with weir.Allocator.default().allocate(MIB) as block:
            self.assertEqual(block.nbytes, MIB)

    def test_a_closed_machine_is_an_error_not_a_crash(self):
        with weir.Runtime(runtime="sim") as machine:
            pass
        with self.assertRaises(weir.Closed) as caught:
            machine.device(0)
        self.assertEqual((caught.exception.name, caught.exception.code), ("closed", 32))
        machine.close()  # a second time does nothing
        with self.assertRaises(weir.Error) as caught:
            self.machine.device(7)
        self.assertEqual(caught.exception.name, "no_device")

    def test_options_are_checked(self):
        with self.assertRaises(weir.InvalidArgument) as caught:
            weir.Runtime(runtim="sim")
        self.assertEqual(caught.exception.name, "bad_option")
        self.assertIsInstance(caught.exception, ValueError)
        self.assertRaises(ValueError, weir.Runtime, "runtime=sim\0")
        self.assertEqual(options_text("a=1", {"b": True, "c": "x,y\\z"}), r"a=1,b=on,c=x\,y\\z")
        self.assertEqual(options_text({"a": False}), "a=off")
        self.assertEqual((options_text(), options_text(""), options_text("", {"b": 1})), ("", "", "b=1"))
        self.assertEqual(options_text({"a": 1}, {"b": 2}), "a=1,b=2")
        rows = {row["name"]: row for row in weir.option_rows()}
        self.assertEqual(rows["heap_policy"]["environment"], "WEIR_HEAP_POLICY")
        self.assertEqual(list(rows["sim_devices"].items()),
                         [("name", "sim_devices"), ("type", "whole number"), ("initial", "1"), ("values", "1 to 16"),
                          ("unit", "devices"), ("environment", "WEIR_SIM_DEVICES"),
                          ("meaning", "How many devices the simulated machine has.")])

    def test_errors_pass_between_processes(self):
        error = weir.OutOfMemory("no room", 4, "out_of_memory", 2)
        again = pickle.loads(pickle.dumps(error))
        self.assertEqual((type(again), str(again), again.code, again.name, again.native),
                         (weir.OutOfMemory, "no room", 4, "out_of_memory", 2))
        plain = weir.Error("no room")
        self.assertEqual((plain.code, plain.name, plain.native), (0, "", 0))

    def test_an_error_says_what_the_library_said(self):
        with self.assertRaises(weir.Error) as caught:
            self.machine.device(7)
        code, name, message = caught.exception.code, caught.exception.name, str(caught.exception)
        self.assertEqual((name, caught.exception.native), ("no_device", 0))
        self.assertEqual(_native.lib.weir_error_name(code), b"no_device")
        self.assertNotEqual(message, name)
        self.assertIn(name, message)
        with unittest.mock.patch.object(_native.lib, "weir_last_error_message", lambda: b""):
            self.assertEqual(str(_native.last_error(code)), "no_device")  # where there is nothing to say
        with unittest.mock.patch.object(_native.lib, "weir_last_error_native", lambda: 719):
            self.assertEqual(_native.last_error(code).native, 719)


class Streams(Case):
    def test_streams_and_events_keep_order(self):
        first, second = weir.Stream(self.device), weir.Stream(self.device, blocking=True, priority=-1)
        self.assertNotEqual(first.id, second.id)
        event = weir.Event(self.device)
        event.record(first)
        second.wait(event)
        second.synchronize()
        self.assertTrue(event.is_complete and first.is_complete and second.is_complete)
        self.assertEqual(first.capture, weir.CaptureStatus.NONE)
        self.assertTrue(first.device is event.device is self.device)
        self.assertFalse(first.closed)
        first.close()
        self.assertTrue(first.closed)
        self.assertRaises(weir.Closed, first.synchronize)

    def test_work_is_done_when_it_is(self):
        machine = weir.Runtime(runtime="sim", sim_mode="manual")  # work happens when somebody waits
        device = machine.device()
        first, second, legacy = weir.Stream(device), weir.Stream(device), weir.Stream.wrap(device, None)
        block, event, later = weir.BinPool(device).allocate(MIB, first), weir.Event(device), weir.Event(device)
        self.assertTrue(event.is_complete and first.is_complete)  # nothing was asked of them
        first.fill(block.ptr, 1, MIB)
        event.record(first)
        second.wait(event)
        self.assertFalse(event.is_complete or first.is_complete or second.is_complete)
        second.synchronize()
        self.assertTrue(event.is_complete and second.is_complete)
        for wait in (first.synchronize, event.synchronize, device.synchronize):
            first.fill(block.ptr, 1, MIB)
            event.record(first)
            self.assertFalse(event.is_complete)
            wait()
            self.assertTrue(event.is_complete)
        legacy.fill(block.ptr, 2, MIB)
        later.record()  # on the legacy stream
        self.assertFalse(later.is_complete)
        later.synchronize()
        self.assertTrue(legacy.is_complete)

    def test_events_measure_time(self):
        stream = weir.Stream(self.device)
        begin, end = weir.Event(self.device, timing=True), weir.Event(self.device, timing=True)
        begin.record(stream)
        end.record(stream)
        end.synchronize()
        self.assertGreaterEqual(end.elapsed_since(begin), 0)
        self.assertEqual(begin.elapsed_since(end), -end.elapsed_since(begin))
        self.assertRaises(weir.Error, end.elapsed_since, weir.Event(self.device))  # which measures none

    def test_anybodys_stream_is_understood(self):
        stream = weir.Stream(self.device)

        class Cupy:
            ptr = stream.handle

        class Torch:
            cuda_stream = stream.handle

        class Numba:
            handle = ctypes.c_void_p(stream.handle)

        for other in (stream, stream.handle, Cupy(), Torch(), Numba()):
            self.assertEqual(native_stream(other), stream.handle)
            wrapped = weir.Stream.wrap(self.device, other)
            self.assertEqual((wrapped.handle, wrapped.id), (stream.handle, stream.id))
            wrapped.close()  # the reference goes, the stream stays
        stream.synchronize()
        self.assertEqual(native_stream(None), 0)
        self.assertRaises(TypeError, native_stream, "stream")
        self.assertEqual(stream.__cuda_stream__(), (0, stream.handle))

        class Named:
            __cuda_stream__ = (0, 4711)  # a property there, a method here

        class NumbasDefault:
            handle = ctypes.c_void_p(0)

        class Torch2(Torch):
            ptr = None

        self.assertEqual((native_stream(Named()), native_stream(NumbasDefault()), native_stream(Torch2())),
                         (4711, 0, stream.handle))

    def test_a_wrapped_stream_is_kept_alive(self):
        stream = weir.Stream(self.device)

        class Theirs:
            ptr = stream.handle

        theirs = Theirs()
        gone = weakref.ref(theirs)
        wrapped = weir.Stream.wrap(self.device, theirs)
        self.assertIs(wrapped.device, self.device)
        del theirs
        gc.collect()
        self.assertIsNotNone(gone())
        del wrapped
        self.assertIsNone(gone())


class Memory(Case):
    def setUp(self):
        super().setUp()
        self.memory = weir.Allocator(self.device)
        self.stream = weir.Stream(self.device)

    def live(self):
        return self.memory.stats().blocks.current

    def test_memory_holds_what_is_written(self):
        pinned = weir.PinnedPool(self.device)
        block, host = self.memory.allocate(1 * MIB, self.stream), pinned.allocate(1 * MIB, self.stream)
        self.stream.fill(block.ptr, 0x5A, block.nbytes)
        self.stream.copy(host.ptr, block.ptr, block.nbytes)
        self.stream.synchronize()
        self.assertEqual(ctypes.string_at(host.ptr, host.nbytes), b"\x5a" * MIB)
        with self.assertRaises(AttributeError):
            host.__cuda_array_interface__

    def test_a_block_is_an_array_of_bytes(self):
        block = self.memory.allocate(1000, self.stream)
        shown = block.__cuda_array_interface__
        self.assertEqual(shown, {"shape": (1000,), "typestr": "|u1", "data": (block.ptr, False), "version": 3,
                                 "strides": None, "stream": self.stream.handle})
        self.assertEqual(repr(block), f"<weir.Block 1000 bytes at {block.ptr:#x}>")
        self.assertEqual(self.memory.allocate(8).__cuda_array_interface__["stream"], 1)
        self.assertEqual((len(block), int(block), block.ptr % 512), (1000, block.ptr, 0))
        self.assertEqual(self.memory.size_of(block), 1000)
        info = self.memory.find_block(block.ptr + 999)
        self.assertEqual((info.address, info.requested, info.state),
                         (block.ptr, 1000, weir.BlockState.LIVE))
        block.free()
        with self.assertRaises(AttributeError):
            block.__cuda_array_interface__
        self.assertEqual(repr(block), "<weir.Block freed>")

    def test_blocks_go_back_by_every_way(self):
        with self.memory.allocate(MIB, self.stream) as kept:
            self.assertEqual(self.live(), 1)
        self.assertEqual((kept.ptr, kept.stream, self.live()), (0, None, 0))
        block = self.memory.allocate(MIB, self.stream)
        self.assertIs(block.stream, self.stream)
        block.free()
        block.free()  # nothing more
        self.assertEqual((block.ptr, block.stream, self.live()), (0, None, 0))
        self.memory.allocate(MIB, self.stream)  # forgotten at once
        other = weir.Stream(self.device)
        block = self.memory.allocate(MIB, self.stream)
        block.record_stream(other)
        block.free(other)
        released = self.memory.allocate(MIB, self.stream)
        address = released.release()
        self.assertEqual((released.ptr, released.release()), (0, 0))
        released.free()  # not its own any more
        self.assertEqual(self.live(), 1)
        self.memory.deallocate(address, size=MIB)
        cycle = [self.memory.allocate(MIB, self.stream)]
        cycle.append(cycle)
        del cycle
        gc.collect()
        self.assertEqual(self.live(), 0)
        self.assertRaises(ValueError, block.record_stream, other)

    def test_streams_of_others_are_taken_as_numbers(self):
        block = self.memory.allocate(MIB, self.stream.handle)
        other = weir.Stream(self.device)
        self.memory.record_stream(block, other.handle)
        block.free(self.stream.handle)
        aligned = self.memory.allocate(MIB, self.stream.handle, alignment=MIB)
        self.assertEqual(aligned.ptr % MIB, 0)
        aligned.free()
        self.memory.release_stream(self.stream.handle)
        self.assertEqual(self.live(), 0)

    def test_streams_that_ask_for_nothing_can_be_watched(self):
        machine = weir.Runtime(runtime="sim", sim_mode="manual")  # work happens when somebody waits
        device = machine.device(0)
        owner, other = weir.Stream(device), weir.Stream(device)
        legacy = weir.Stream.wrap(device, 0)
        for watched in (legacy, 0):
            memory = weir.Allocator(device, heap_queued_waits=False)
            weir.watch_stream(watched, device)
            block = memory.allocate(4 * MIB, owner)
            address = block.ptr
            legacy.fill(address, 1, block.nbytes)  # and nobody recorded that
            block.free()
            memory.trim()
            again = memory.allocate(4 * MIB, other)
            self.assertNotEqual(again.ptr, address)
            again.free()
            weir.unwatch_stream(watched, device)
            memory.close()
        self.assertRaises(TypeError, weir.watch_stream, 0)  # of which device?
        with self.assertRaises(weir.Error) as caught:
            weir.watch_stream(2, device)
        self.assertEqual(caught.exception.name, "bad_stream")
        legacy.close()
        self.assertRaises(weir.Closed, weir.watch_stream, legacy)

    def test_nothing_is_nothing(self):
        pool = self.memory.pool("apart")
        for memory in (self.memory, pool, weir.StreamPool(self.device), weir.BinPool(self.device),
                       weir.PinnedPool(self.device)):
            block = memory.allocate(0, self.stream)
            self.assertEqual((block.ptr, block.nbytes, block.release()), (0, 0, 0))
            memory.allocate(0, self.stream).free()
        stats = self.memory.stats()
        self.assertEqual((stats.blocks.current, stats.failures), (0, 0))
        self.assertEqual(self.memory.allocate(0, alignment=4096).ptr, 0)
        self.assertEqual(self.memory.allocate(0, self.stream.handle).ptr, 0)

    def test_less_than_nothing_is_an_error(self):
        for memory in (self.memory, self.memory.pool("apart"), weir.StreamPool(self.device), weir.BinPool(self.device),
                       weir.PinnedPool(self.device)):
            self.assertRaisesRegex(ValueError, "weir: size must not be negative", memory.allocate, -1, self.stream)

    def test_sizes_may_be_text_as_options_spell_them(self):
        pools = (self.memory, self.memory.pool("apart"), weir.StreamPool(self.device), weir.BinPool(self.device),
                 weir.PinnedPool(self.device))
        for memory in pools:
            for text, size in (("4096", 4096), ("64B", 64), ("3 KiB", 3072), ("2MiB", 2 * MIB)):
                self.assertEqual(memory.allocate(text, self.stream).nbytes, size)
        self.assertEqual(weir.BufferPool().take("1 KiB", self.stream).nbytes, 1024)
        self.assertEqual(weir.UnifiedBuffer(self.device, "1 KiB").nbytes, 1024)

    def test_what_is_no_size_is_said_to_be_none(self):
        for memory in (self.memory, self.memory.pool("apart"), weir.StreamPool(self.device),
                       weir.BinPool(self.device), weir.PinnedPool(self.device)):
            for text in ("", "1 GB", "1.5GiB", "GiB", "-1", "1  MiB", "1 iB"):
                with self.assertRaises(weir.InvalidArgument) as refused:
                    memory.allocate(text, self.stream)
                self.assertEqual(str(refused.exception),
                                 f"weir: expected a size, got {text!r}; a size is a number of bytes, or text such as "
                                 "'4096', '512KiB', '20 MiB', '2GiB'")
            for size in (1.5, None, b"4096", [1]):
                self.assertRaisesRegex(TypeError, "weir: expected a size, a number of bytes or text such as '64 MiB', "
                                       f"got {type(size).__name__}", memory.allocate, size, self.stream)
            for size in (2**64, "16777216 TiB"):
                self.assertRaisesRegex(weir.InvalidArgument, "does not fit in 64 bits", memory.allocate,
                                       size, self.stream)

    def test_objects_say_what_they_are(self):
        block = self.memory.allocate(1000, self.stream)
        pool, bins, driver = self.memory.pool("apart"), weir.BinPool(self.device), weir.StreamPool(self.device)
        kept = [pool.allocate(100), bins.allocate(200, self.stream), driver.allocate(300, self.stream)]
        buffers, field, event = weir.BufferPool(), weir.UnifiedBuffer(self.device, 64), weir.Event(self.device)
        self.assertEqual(
            [repr(each) for each in (self.memory, pool, bins, driver, buffers, field, event, self.stream)],
            ["<weir.Allocator of device 0, 2 blocks of 1100 bytes>",
             "<weir.Pool 'apart' of device 0, 1 blocks of 100 bytes>",
             "<weir.BinPool of device 0, 1 blocks of 200 bytes>", "<weir.StreamPool of device 0, 1 blocks>",
             "<weir.BufferPool with 0 buffers taken>", f"<weir.UnifiedBuffer 64 bytes at {field.ptr:#x}>",
             "<weir.Event of device 0, complete>", f"<weir.Stream {self.stream.id} of device 0>"])
        del block, kept
        for each in (pool, bins, driver, buffers, field, event):
            each.close()
            self.assertEqual(repr(each), f"<weir.{type(each).__name__} closed>")

    def test_what_is_forgotten_is_closed_behind_its_blocks(self):
        for memory, allocate in ((weir.Allocator(self.device), weir.Allocator.allocate),
                                 (weir.StreamPool(self.device), weir.StreamPool.allocate),
                                 (weir.BinPool(self.device), weir.BinPool.allocate),
                                 (weir.BufferPool(), weir.BufferPool.take)):
            blocks = [allocate(memory, MIB, self.stream) for _ in range(2)]
            memory.__del__()  # as the collector does with a cycle, in any order
            self.assertFalse(memory.closed)
            blocks.pop()
            self.assertFalse(memory.closed)
            blocks.pop()
            self.assertTrue(memory.closed)
            memory.__del__()
            empty = type(memory)(*(() if isinstance(memory, weir.BufferPool) else (self.device,)))
            empty.__del__()
            self.assertTrue(empty.closed)

    def test_finalizers_run_once(self):
        block = self.memory.allocate(MIB, self.stream)
        block.__del__()
        self.assertEqual((block.ptr, self.live()), (0, 0))
        with unittest.mock.patch.object(weir.Allocator, "_free_quietly") as free:
            del block
            self.memory.allocate(0)  # there is nothing to free
        free.assert_not_called()
        closes = []
        with unittest.mock.patch.object(weir.Stream, "_close_quietly", staticmethod(lambda handle: closes.append(handle))):
            stream = weir.Stream(self.device)
            handle = stream._handle
            stream.__del__()
            del stream
            stream = weir.Stream(self.device)
            stream.close()
            closed = stream._handle
            del stream
        self.assertEqual(closes, [handle, closed])
        for each in closes:
            _native.lib.weir_stream_close(each)

    def test_what_was_never_made_owns_nothing(self):
        stream = weir.Stream.__new__(weir.Stream)
        self.assertEqual((stream.closed, stream._handle), (True, 0))
        stream.close()
        with self.assertRaises(TypeError):
            type("Misspelt", (weir._machine.Owned,), {}, closes="weir_stream_close")

    def test_what_cannot_be_closed_says_so(self):
        stream = weir.Stream(self.device)
        self.assertIsNone(stream.close())
        stream._closed = False  # so that it tries again
        self.assertRaises(weir.Error, stream.close)
        self.assertTrue(stream.closed)

    def test_bad_input_is_a_typed_error(self):
        with self.assertRaises(weir.BadPointer) as caught:
            self.memory.deallocate(0x1234)
        self.assertEqual(caught.exception.name, "foreign_pointer")
        address = self.memory.allocate(MIB, self.stream).release()
        self.memory.deallocate(address)
        with self.assertRaises(weir.BadPointer) as caught:
            self.memory.deallocate(address)
        self.assertEqual(caught.exception.name, "double_free")
        for alignment in (3, 511, 513):
            with self.assertRaises(weir.InvalidArgument) as caught:
                self.memory.allocate(8, alignment=alignment)
            self.assertEqual(caught.exception.name, "bad_alignment")
        with self.assertRaises(weir.Error) as caught:
            self.memory.allocate(2**64 - 1)
        self.assertIn(caught.exception.name, ("size_overflow", "out_of_memory"))
        self.assertRaises(TypeError, self.memory.allocate, 1.5)
        self.assertRaises(TypeError, self.memory.allocate, 8, "stream")

    def test_out_of_memory_is_a_memory_error_that_explains(self):
        self.memory.limit = 64 * MIB
        with weir.tag("held"):
            held = self.memory.allocate(40 * MIB, self.stream)
        with self.assertRaises(MemoryError) as caught:
            self.memory.allocate(40 * MIB, self.stream)
        self.assertIsInstance(caught.exception, weir.OutOfMemory)
        self.assertEqual((caught.exception.name, caught.exception.code), ("out_of_memory", 4))
        number = self.stream.id
        self.assertEqual(str(caught.exception),
                         f"out_of_memory: not enough memory for the request (40 MiB): stream {number}: The allocator's "
                         "limit of 64 MiB is in the way: 40 MiB are live, 40 MiB reserved. Raise it by 16 MiB, "
                         "or free 16 MiB.")
        self.assertEqual(caught.exception.report, self.memory.explain(40 * MIB, self.stream))
        self.assertIn("held", caught.exception.report)
        self.assertEqual(pickle.loads(pickle.dumps(caught.exception)).report, caught.exception.report)
        self.assertEqual(self.memory.stats().failures, 1)
        held.free()
        self.memory.allocate(40 * MIB, self.stream)

    def test_others_are_asked_before_memory_is_out(self):
        self.memory.limit = 64 * MIB
        held = [self.memory.allocate(40 * MIB, self.stream)]
        sizes = []

        def give(needed):
            sizes.append(needed)
            held.clear()
            return True

        with self.memory.on_out_of_memory(give):
            block = self.memory.allocate(40 * MIB, self.stream)
        self.assertEqual(len(sizes), 1)
        self.assertGreaterEqual(sizes[0], 40 * MIB)
        self.assertRaises(MemoryError, self.memory.allocate, 40 * MIB, self.stream)
        self.assertEqual(len(sizes), 1)  # not registered any more
        del block

    def test_a_callback_is_asked_before_memory_is_taken_from_the_driver(self):
        held = [self.memory.allocate(40 * MIB, self.stream)]
        address, sizes = held[0].ptr, []

        def give(needed):
            sizes.append(needed)
            held.clear()

        with self.memory.before_growth(give):
            block = self.memory.allocate(40 * MIB, self.stream)
        self.assertEqual((block.ptr, sizes), (address, [40 * MIB]))
        more = self.memory.allocate(80 * MIB, self.stream)
        self.assertEqual(len(sizes), 1)  # not registered any more
        del block, more

    @staticmethod
    def as_the_library(registration):
        number = registration._number
        return lambda needed: weir._allocator._reclaim(number, needed)

    def test_a_callback_answers_with_a_number(self):
        answers = {1: True, 2: [], 3: None, 4: "some"}
        asked = []

        def give(needed):
            asked.append(needed)
            return answers[needed]

        registration = self.memory.on_out_of_memory(give)
        called = self.as_the_library(registration)
        self.assertEqual([called(needed) for needed in (1, 2, 3, 4)], [1, 0, 0, 1])
        self.assertEqual(asked, [1, 2, 3, 4])
        registration.close()
        self.assertTrue(registration.closed)
        self.assertEqual((called(1), asked), (0, [1, 2, 3, 4]))
        gone = weakref.ref(give)
        del give, registration
        self.assertIsNone(gone())
        self.assertEqual(called(1), 0)
        forgotten = self.memory.on_out_of_memory(lambda needed: 1)
        called = self.as_the_library(forgotten)
        self.assertEqual(called(1), 1)
        del forgotten
        self.assertEqual(called(1), 0)
        self.assertEqual(dict(weir._allocator._reclaims), {})  # nothing stays

    def test_a_callback_that_raises_does_no_harm(self):
        import sys
        kinds, before = [], sys.excepthook
        sys.excepthook = lambda kind, *_: kinds.append(kind)
        try:
            self.memory.limit = 4 * MIB
            registration = self.memory.on_out_of_memory(lambda needed: 1 / 0)
            self.assertRaises(MemoryError, self.memory.allocate, 40 * MIB)
            registration.close()
            self.assertEqual(kinds, [ZeroDivisionError])
            with self.memory.on_out_of_memory(lambda needed: 1 / 0) as registration:
                self.assertEqual(self.as_the_library(registration)(1), 0)
        finally:
            sys.excepthook = before
        self.assertEqual(kinds, [ZeroDivisionError] * 2)

    def test_limits_can_be_set_and_read(self):
        self.memory.limit = 0.5
        self.assertAlmostEqual(self.memory.limit, self.device.info.total_memory / 2, delta=2 * MIB)
        self.memory.limit = 10 * MIB
        self.assertEqual(self.memory.limit, 10 * MIB)
        self.memory.limit = None
        self.assertIn(self.memory.limit, (None, self.device.info.total_memory))
        self.memory.set_tag_limit("small", MIB)
        with weir.tag("small"), self.assertRaises(weir.OutOfMemory) as caught:
            self.memory.allocate(2 * MIB, self.stream)
        self.assertIsInstance(caught.exception, MemoryError)
        self.memory.allocate(2 * MIB, self.stream)  # the tag ended with its scope

    def test_statistics_add_up(self):
        with weir.tag("weights"):
            weights = self.memory.allocate(1000, self.stream)
        other = self.memory.allocate(3 * MIB, self.stream)
        stats = self.memory.stats()
        self.assertEqual((stats.requested.current, stats.blocks.current, stats.allocations),
                         (1000 + 3 * MIB, 2, 2))
        self.assertLessEqual(stats.allocated.current, stats.reserved.current)
        self.assertEqual(self.memory.stats("weights").requested.current, 1000)
        tags = self.memory.stats_by_tag()
        self.assertEqual([(tag, of.requested.current) for tag, of in tags.items()],
                         [("", 3 * MIB), ("weights", 1000)])  # the most memory first
        self.assertEqual(weir.Allocator(self.device).stats_by_tag(), {})
        other.free()
        self.assertEqual(self.memory.stats().requested.peak, 1000 + 3 * MIB)
        self.memory.reset_peaks()
        self.assertEqual(self.memory.stats().requested, weir.Gauge(1000, 1000))
        del weights
        self.stream.synchronize()
        self.assertGreater(self.memory.empty_cache(), 0)
        self.assertEqual(self.memory.stats().reserved.current, 0)
        self.assertEqual(self.memory.trim(), 0)

    def test_a_snapshot_shows_every_block(self):
        with weir.tag("shown"):
            block = self.memory.allocate(1000, self.stream)
        pool = self.memory.pool("apart")
        apart = pool.allocate(5 * MIB, self.stream)
        shown = self.memory.snapshot()
        self.assertEqual((shown.device, shown.stats), (0, self.memory.stats()))
        own, other = shown.pools
        self.assertEqual([(each.id, each.name) for each in shown.pools], [(0, own.name), (pool.id, "apart")])
        self.assertEqual(other.stats, pool.stats())
        self.assertNotIn("Info", repr(shown))  # of blocks and pieces there may be thousands
        [shown_block] = [each for each in own.blocks if each.state is weir.BlockState.LIVE]
        self.assertEqual((shown_block.address, shown_block.requested, shown_block.tag, shown_block.stream),
                         (block.ptr, 1000, "shown", self.stream.id))
        self.assertEqual(shown_block, self.memory.find_block(block.ptr))
        self.assertEqual((shown_block.pool, shown_block.size), (0, own.stats.allocated.current))
        for each in shown.pools:
            self.assertEqual(sum(piece.size for piece in each.physical), each.stats.reserved.current)
            for pieces in (each.blocks, each.physical):
                addresses = [piece.address for piece in pieces]
                self.assertEqual(addresses, sorted(set(addresses)))
        [other_block] = [each for each in other.blocks if each.state is weir.BlockState.LIVE]
        self.assertEqual((other_block.address, other_block.requested, other_block.pool, other_block.tag),
                         (apart.ptr, 5 * MIB, pool.id, ""))

    def test_values_stay_as_they_were(self):
        kinds = (weir.Gauge, weir.Stats, weir.PoolStats, weir.BufferPoolStats, weir.StreamPoolStats, weir.RecorderStats)
        for kind in kinds:  # what nobody counted yet is 0
            self.assertEqual({str(value) for value in dataclasses.astuple(kind())} - {"(0, 0)"}, {"0"})
            self.assertEqual(kind(), kind())
        kinds += (weir.ManagedInfo, weir.BlockInfo, weir.PhysicalInfo, weir.PoolSnapshot, weir.Snapshot, weir.DeviceInfo)
        for kind in kinds:
            value = kind(*dataclasses.fields(kind))
            with self.assertRaises(dataclasses.FrozenInstanceError):
                setattr(value, dataclasses.fields(kind)[0].name, 1)

    def test_pools_keep_apart(self):
        pool = self.memory.pool("own")
        with pool.use():
            block = self.memory.allocate(MIB, self.stream)
        outside = self.memory.allocate(MIB, self.stream)
        self.assertEqual((pool.stats().blocks.current, self.live()), (1, 2))
        self.assertEqual(self.memory.find_block(block.ptr).pool, pool.id)
        own = pool.allocate(1000, self.stream, alignment=MIB)
        self.assertEqual((own.ptr % MIB, own.nbytes), (0, 1000))
        self.assertIs(own.stream, self.stream)
        self.assertEqual(self.memory.find_block(own.ptr).stream, self.stream.id)
        self.assertIs(pool.allocator, self.memory)
        own.free()
        block.free()
        pool.close()
        self.assertRaises(weir.Error, pool.allocate, MIB, self.stream)
        del outside

    def test_the_policy_can_be_chosen(self):
        for policy in ("throughput", "compact", "classic", "classic_expandable"):
            memory = weir.Allocator(self.device, heap_policy=policy)
            with memory.allocate(3 * MIB, self.stream) as block:
                self.stream.fill(block.ptr, 1, block.nbytes)

    def test_a_closed_allocator_is_an_error_not_a_crash(self):
        memory = weir.Allocator(self.device)
        memory.close()
        memory.close()
        self.assertTrue(memory.closed)
        self.assertRaises(weir.Closed, memory.allocate, 8)
        self.assertRaises(weir.Closed, memory.stats)

    def test_objects_may_go_in_any_order(self):
        machine = weir.Runtime(runtime="sim")
        memory, stream = weir.Allocator(machine.device(0)), weir.Stream(machine.device(0))
        block = memory.allocate(MIB, stream)
        del machine, memory, stream
        gc.collect()
        block.free()
        everything = {"machine": weir.Runtime(runtime="sim")}
        everything["memory"] = weir.Allocator(everything["machine"].device(0))
        everything["block"] = everything["memory"].allocate(MIB)
        everything["memory"].back, everything["itself"] = everything, everything
        del everything
        gc.collect()  # a cycle: finalizers come in no order

    def test_a_recording_is_a_file(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "run.weirtrace"
            with self.memory.record(path, level=0, program="train.py") as recorder:
                self.memory.allocate(MIB, self.stream).free()
                recorder.marker("half way")
                recorder.flush()
                stats = recorder.stats()
                self.assertGreaterEqual(stats.written, 3)
                self.assertEqual((stats.dropped, stats.threads), (0, 1))
                self.assertFalse(path.exists())
            recorded = path.read_bytes()
            self.assertIn(b"half way", recorded)
            self.assertIn(b"train.py", recorded)
            self.assertGreaterEqual(len(recorded), stats.file_size)
            with self.assertRaises(weir.Error):
                self.memory.record(Path(folder) / "no" / "such" / "folder")
            with self.assertRaisesRegex(FileExistsError, "overwrite=True replaces it.*run.weirtrace"):
                self.memory.record(path)
            self.assertEqual(path.read_bytes(), recorded)
            self.memory.record(path, overwrite=True).stop()
            self.assertNotEqual(path.read_bytes(), recorded)

    def test_a_number_instead_of_a_device_is_refused_with_what_to_pass(self):
        for create in (weir.Allocator, weir.Stream):
            self.assertRaisesRegex(TypeError, r"expected a weir.Device, got 0; weir.Runtime\(\).device\(0\)", create, 0)


class Pools(Case):
    def test_the_drivers_pool(self):
        pool, stream = weir.StreamPool(self.device, maximum=GIB), weir.Stream(self.device)
        self.assertNotEqual(pool.handle, 0)
        block = pool.allocate(MIB, stream)
        self.assertEqual((pool.stats().allocations.current, pool.stats().allocated), (1, MIB))
        block.record_stream(weir.Stream(self.device))
        pool.record_stream(block, stream)
        block.free()
        self.assertRaises(ValueError, block.record_stream, stream)
        self.assertEqual(pool.stats().allocations.current, 0)
        pool.allocate(MIB)  # on the legacy stream, forgotten at once
        self.assertEqual(pool.stats().allocations.current, 0)
        self.assertRaises(MemoryError, pool.allocate, 2 * GIB, stream)
        self.assertRaises(TypeError, pool.allocate, MIB, stream.handle)
        self.device.synchronize()
        reserved = pool.stats().reserved.current
        self.assertGreaterEqual(reserved, MIB)
        self.assertEqual((pool.stats().used, pool.stats().allocations), (weir.Gauge(0, MIB), weir.Gauge(0, 1)))
        pool.reset_peaks()
        self.assertEqual(pool.stats(), weir.StreamPoolStats(reserved=weir.Gauge(reserved, reserved)))
        self.assertEqual(pool.trim(reserved), 0)
        self.assertEqual(pool.trim(), reserved)
        self.assertEqual(pool.stats().reserved, weir.Gauge(0, reserved))
        address = pool.allocate(MIB, stream).release()
        self.assertRaises(weir.InvalidArgument, pool.deallocate, address, stream, size=MIB - 1)
        address = pool.allocate(MIB, stream).release()
        pool.deallocate(address, stream)
        self.assertRaises(weir.BadPointer, pool.deallocate, address, stream)
        pool.close()
        self.assertTrue(pool.closed)
        self.assertRaises(weir.Closed, pool.stats)
        self.assertRaises(weir.Closed, pool.allocate, MIB, stream)

    def test_the_devices_own_pool(self):
        stream = weir.Stream(self.device)
        pool, same = weir.StreamPool.default(self.device), weir.StreamPool.default(self.device)
        self.assertEqual(pool.handle, same.handle)
        block = pool.allocate(MIB, stream)
        self.assertEqual(same.stats().allocated, MIB)
        same.close()
        block.free()
        self.assertEqual(pool.stats().allocations, weir.Gauge(0, 1))

    def test_attributes_of_the_drivers_pool(self):
        rules = weir.StreamPoolAttribute
        pool = weir.StreamPool(self.device, maximum=GIB, threshold=64 * MIB,
                               reuse=[rules.REUSE_FOLLOW_EVENT_DEPENDENCIES, rules.REUSE_INTERNAL_DEPENDENCIES])
        self.assertEqual([pool.reuse(rule) for rule in list(rules)[:3]], [True, False, True])
        pool.set_reuse(rules.REUSE_OPPORTUNISTIC)
        pool.set_reuse(rules.REUSE_INTERNAL_DEPENDENCIES, False)
        self.assertEqual([pool.reuse(rule) for rule in list(rules)[:3]], [True, True, False])
        self.assertRaises(ValueError, pool.reuse, rules.RESERVED)
        self.assertEqual(pool.threshold, 64 * MIB)
        pool.threshold = None
        self.assertIsNone(pool.threshold)
        pool.threshold = 0
        self.assertEqual(pool.attribute(rules.RELEASE_THRESHOLD), 0)
        self.assertEqual(pool.attribute(rules.RESERVED), 0)
        pool.set_attribute(rules.USED_PEAK, 0)
        self.assertRaises(weir.InvalidArgument, pool.set_attribute, rules.USED, 0)

    def test_peers_of_the_drivers_pool(self):
        machine = weir.Runtime(runtime="sim", sim_devices=2)
        pool, other = weir.StreamPool(machine.device(0)), machine.device(1)
        self.assertEqual(pool.peer_access(other), weir.AccessRights.NONE)
        pool.set_peer(other)
        self.assertEqual(pool.peer_access(other), weir.AccessRights.READ_WRITE)
        pool.set_peer(other, False)
        self.assertEqual(pool.peer_access(other), weir.AccessRights.NONE)
        self.assertEqual(pool.peer_access(machine.device(0)), weir.AccessRights.READ_WRITE)

    def test_the_drivers_pool_in_another_process(self):  # here the same one plays both
        stream = weir.Stream(self.device)
        pool = weir.StreamPool(self.device, shareable=True)
        block = pool.allocate(MIB, stream)
        descriptor = pool.export_descriptor()
        try:
            imported = weir.StreamPool.import_descriptor(self.device, descriptor)
        finally:
            os.close(descriptor)
        exported = pool.export_pointer(block)
        self.assertEqual(len(exported), 64)
        same = imported.import_pointer(exported, stream)
        self.assertEqual(same.nbytes, MIB)
        stream.fill(block.ptr, 7, MIB)
        host = weir.PinnedPool(self.device).allocate(1, stream)
        stream.copy(host.ptr, same.ptr + MIB - 1, 1)
        stream.synchronize()
        self.assertEqual(ctypes.c_ubyte.from_address(host.ptr).value, 7)
        self.assertRaises(weir.NotSupported, imported.allocate, 1, stream)
        self.assertRaises(weir.NotSupported, imported.stats)
        for wrong in (b"short", exported + b"!"):
            self.assertRaisesRegex(ValueError, "weir: an exported pointer must have 64 bytes", imported.import_pointer, wrong)
        self.assertEqual((imported._live(), imported.device), (1, self.device))
        same.free()
        self.assertEqual(imported._live(), 0)
        stream.synchronize()
        again = imported.import_pointer(exported, stream)
        self.assertEqual((imported._live(), again.stream), (1, stream))
        del again
        self.assertEqual(imported._live(), 0)
        stream.synchronize()
        imported.deallocate(imported.import_pointer(exported, stream).release(), stream)
        self.assertEqual(imported._live(), 0)
        stream.synchronize()
        del same, imported
        block.free()
        self.assertRaises(weir.NotSupported, weir.StreamPool(self.device).export_descriptor)

    def test_pools_of_whole_blocks(self):
        stream = weir.Stream(self.device)
        for kind in (weir.PinnedPool, weir.BinPool):
            pool = kind(self.device, threshold=64 * MIB)
            self.assertIs(pool.device, self.device)
            block = pool.allocate(MIB, stream)
            self.assertEqual(hasattr(block, "__cuda_array_interface__"), kind is weir.BinPool)
            self.assertEqual((block.nbytes, block.stream, block.ptr % 512), (MIB, stream, 0))
            self.assertEqual(pool.stats(), weir.PoolStats(
                requested=weir.Gauge(MIB, MIB), allocated=weir.Gauge(MIB, MIB), reserved=weir.Gauge(MIB, MIB),
                blocks=weir.Gauge(1, 1), allocations=1, misses=1))
            block.record_stream(weir.Stream(self.device))
            block.free(stream)
            pool.allocate(MIB, stream)
            self.assertEqual((pool.stats().blocks.current, pool.stats().allocations), (0, 2))
            self.device.synchronize()
            pool.reset_peaks()
            pool.reset_counters()
            cached = pool.stats().cached
            self.assertEqual(pool.stats(), weir.PoolStats(reserved=weir.Gauge(cached, cached), cached=cached))
            pool.deallocate(pool.allocate(MIB, stream).release())
            self.device.synchronize()
            self.assertEqual(pool.trim(weir.NO_LIMIT), 0)
            self.assertEqual(pool.empty_cache(), cached)
            self.assertEqual((pool.stats().cached, pool.trim()), (0, 0))

    def test_pools_of_whole_blocks_keep_to_their_threshold(self):
        for kind in (weir.PinnedPool, weir.BinPool):
            for set_up, cached in ((lambda: kind(self.device), 3 * MIB),
                                   (lambda: kind(self.device, threshold=2 * MIB), 2 * MIB),
                                   (lambda: kind(self.device, threshold=0), 0)):
                pool = set_up()
                self.cache(pool)
                self.assertEqual(pool.stats().cached, cached)
            pool.set_threshold(MIB)
            self.cache(pool)
            self.assertEqual(pool.stats().cached, MIB)
            pool.set_threshold(None)
            self.cache(pool)
            self.assertEqual((pool.stats().cached, pool.trim(MIB)), (3 * MIB, 2 * MIB))

    def cache(self, pool):
        blocks = [pool.allocate(MIB) for _ in range(3)]
        for block in blocks:
            block.free()
        self.device.synchronize()
        pool.trim(weir.NO_LIMIT)  # only what is over the threshold


class Frees(Case):
    """Blocks whose free fails, and blocks whose stream was closed before them."""

    options = {"sim_devices": 2}

    def setUp(self):
        super().setUp()
        self.stream, self.elsewhere = weir.Stream(self.device), weir.Stream(self.machine.device(1))

    def memories(self):
        """Each kind with a call that allocates and one that counts."""
        allocator, driver, buffers = weir.Allocator(self.device), weir.StreamPool(self.device), weir.BufferPool()
        yield allocator, allocator.allocate, lambda: allocator.stats().blocks.current
        yield driver, driver.allocate, lambda: driver.stats().allocations.current
        yield buffers, buffers.take, lambda: buffers.stats().taken.current // MIB
        for kind in (weir.PinnedPool, weir.BinPool):
            pool = kind(self.device)
            yield pool, pool.allocate, lambda: pool.stats().blocks.current

    def test_a_free_that_fails_leaves_the_block_to_its_owner(self):
        for memory, allocate, live in self.memories():
            with self.subTest(memory=type(memory).__name__):
                block = allocate(MIB, self.stream)
                address = block.ptr
                gone = weir.Stream(self.device)
                gone.close()
                wrong = object() if isinstance(memory, weir.Allocator) else 77
                for stream, error in ((self.elsewhere, weir.Error), (gone, weir.Closed), (wrong, TypeError)):
                    if stream is self.elsewhere and not isinstance(memory, weir.Allocator):
                        continue  # pools take streams of every device
                    self.assertRaises(error, block.free, stream)
                    self.assertEqual((block.ptr, block.stream, live()), (address, self.stream, 1))
                self.assertEqual(memory._live(), 1)
                block.free(self.stream)
                self.assertEqual((block.ptr, block.stream, live(), memory._live()), (0, None, 0, 0))
                block.free()
                block = allocate(MIB, self.stream)
                self.assertRaises(error, block.free, wrong)
                del block  # what failed by hand the finalizer does
                self.assertEqual((live(), memory._live()), (0, 0))

    def test_a_free_of_what_is_not_live_is_the_last(self):
        memory = weir.Allocator(self.device)
        block = memory.allocate(MIB, self.stream)
        memory.deallocate(block.ptr)
        self.assertRaises(weir.BadPointer, block.free)
        self.assertEqual((block.ptr, block.stream), (0, None))
        block.free()

    def test_a_stream_may_be_closed_before_its_blocks(self):
        for memory, allocate, live in self.memories():
            for end in ("drop", "free", "free elsewhere", "release"):
                with self.subTest(memory=type(memory).__name__, end=end):
                    with weir.Stream(self.device) as stream:
                        block = allocate(MIB, stream)
                    self.assertRaises(weir.Closed, stream.synchronize)
                    if end == "free":
                        block.free()
                    elif end == "free elsewhere":
                        block.free(self.stream)
                    elif end == "release":
                        memory.deallocate(block.release(), self.stream)
                    del block
                    self.assertEqual((live(), memory._live(), getattr(memory, "_streams", {})), (0, 0, {}))

    def test_a_stream_may_be_garbage_with_its_blocks(self):
        class Holder:
            pass

        for memory, allocate, live in self.memories():
            for order in (0, 1):
                with self.subTest(memory=type(memory).__name__, order=order):
                    holder, stream = Holder(), weir.Stream(self.device)
                    if order:
                        holder.stream = stream
                    holder.itself, holder.block = holder, allocate(MIB, stream)
                    holder.stream = stream
                    del holder, stream
                    gc.collect()
                    self.assertEqual(live(), 0)

    def test_a_streams_handle_is_kept_no_longer_than_its_block(self):
        pool = weir.StreamPool(self.device)
        closed, real = [], weir._pools._stream_close
        with unittest.mock.patch.object(weir._pools, "_stream_close", lambda handle: closed.append(handle) or real(handle)):
            self.assertRaises(MemoryError, pool.allocate, 1 << 50, self.stream)
            self.assertEqual(len(closed), 1)
            self.assertEqual((pool.allocate(0, self.stream).ptr, len(closed)), (0, 2))
            block = pool.allocate(MIB, self.stream)
            kept = pool._streams[block.ptr]
            self.assertEqual((len(closed), pool._streams), (2, {block.ptr: kept}))
            self.assertRaises(weir.InvalidArgument, pool.deallocate, block.release(), self.stream, size=MIB + 1)
            self.assertEqual((closed[2:], pool._streams, pool.stats().allocations.current), ([kept], {}, 0))
            block = pool.allocate(MIB, self.stream)
            kept = pool._streams[block.ptr]
            lib.weir_stream_pool_deallocate(pool._handle, block.ptr, self.stream._handle)  # behind its back
            self.assertRaises(weir.BadPointer, block.free)
            self.assertEqual((closed[3:], pool._streams), ([kept], {}))

    def test_whatever_takes_a_stream_takes_a_number(self):
        memory, event = weir.Allocator(self.device), weir.Event(self.device)
        for stream in (self.stream, self.stream.handle, unittest.mock.Mock(spec=["ptr"], ptr=self.stream.handle), None, 0):
            event.record(stream)
            event.synchronize()
            self.assertTrue(event.is_complete)
        self.assertRaises(TypeError, event.record, "stream")
        for stream in (self.stream, self.stream.handle):
            with memory.capture(stream) as capture:
                self.assertEqual([pool.name for pool in memory.snapshot().pools], ["", "graph"])
                capture.end()


class Threads(Case):
    def test_many_threads_share_an_allocator(self):
        memory, wrong = weir.Allocator(self.device), []

        def work(seed):
            try:
                stream, blocks = weir.Stream(self.device), []
                for step in range(300):
                    blocks.append(memory.allocate(512 * (1 + (seed * step) % 97), stream))
                    if len(blocks) > 8:
                        blocks.pop(step % 8)
                passed.extend(blocks[:4])  # freed by another thread
                self.assertRaises(weir.BadPointer, memory.deallocate, seed)
            except BaseException as problem:
                wrong.append(problem)

        passed = []
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(1, 9)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])
        self.assertEqual(memory.stats().blocks.current, len(passed))
        passed.clear()
        self.assertEqual(memory.stats().blocks.current, 0)

    def test_each_thread_has_its_own_error_and_tag(self):
        memory = weir.Allocator(self.device)
        entered, go, blocks = threading.Event(), threading.Event(), []

        def other():
            with weir.tag("other"):
                entered.set()
                go.wait()
                blocks.append(memory.allocate(100))

        thread = threading.Thread(target=other)
        thread.start()
        entered.wait()
        untagged = memory.allocate(200)
        go.set()
        thread.join()
        self.assertEqual(memory.stats("other").requested.current, 100)
        self.assertEqual(memory.stats("").requested.current, 200)
        del untagged


class Copies(Case):
    def test_what_owns_a_handle_is_neither_copied_nor_pickled(self):
        memory = weir.Allocator(self.device)
        stream = weir.Stream(self.device)
        pool, pinned = memory.pool("copies"), weir.PinnedPool(self.device)
        block, host = memory.allocate(MIB, stream), pinned.allocate(MIB, stream)
        for owner in (memory, stream, pool, pinned, block, host, weir.Event(self.device)):
            for make in (copy.copy, copy.deepcopy, pickle.dumps):
                with self.assertRaisesRegex(TypeError, f"a {type(owner).__name__} cannot be copied or pickled"):
                    make(owner)
        gc.collect()
        self.assertEqual(memory.stats().blocks.current, 1)
        self.assertNotEqual(memory.allocate(MIB, stream).ptr, block.ptr)

    def test_a_dataclass_with_a_block_is_not_copied_either(self):
        @dataclasses.dataclass
        class Holder:
            block: weir.Block

        memory = weir.Allocator(self.device)
        holder = Holder(memory.allocate(MIB))
        self.assertRaises(TypeError, dataclasses.asdict, holder)
        self.assertEqual(memory.stats().blocks.current, 1)


class Numbers(Case):
    def test_sizes_that_do_not_fit_are_refused(self):
        memory, pool = weir.Allocator(self.device), weir.BinPool(self.device)
        memory.limit = GIB
        calls = (lambda size: setattr(memory, "limit", size), lambda size: memory.set_tag_limit("numbers", size),
                 memory.trim, memory.allocate, memory.explain, pool.trim, pool.set_threshold)
        for call in calls:
            self.assertRaisesRegex(weir.InvalidArgument, "does not fit in 64 bits", call, 2**64)
            self.assertRaisesRegex(ValueError, "size must not be negative", call, -1)
            self.assertRaisesRegex(TypeError, "got bool", call, True)
        self.assertEqual(memory.limit, GIB)

    def test_other_numbers_that_do_not_fit_are_refused(self):
        memory = weir.Allocator(self.device)
        for value in (2**64, -1):
            with self.assertRaisesRegex(ctypes.ArgumentError, f"is {value}, but must be between 0 and {2**64 - 1}"):
                memory.deallocate(value)
        self.assertRaises(ctypes.ArgumentError, memory.allocate, 64, 1 << 70)  # a stream's handle
        self.assertRaises(OverflowError, memory.suspend, chunk=2**64 + 512)
        self.assertRaises(OverflowError, memory.declare_suspendable, "numbers", priority=2**31)
        self.assertEqual(memory.stats().blocks.current, 0)


if __name__ == "__main__":
    unittest.main()
