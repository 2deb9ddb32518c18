#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the package asks of the library: which call, with which arguments, in which order. Behaviour is the
business of the other tests; here a default or an argument in the wrong place shows even where nothing
comes of it."""

import ctypes
import os
import tempfile
import unittest
import unittest.mock
from pathlib import Path

from support import GIB, MIB, Case

import weir
from weir import _native

OUT = "out"  # where the call writes its result
NAMES = [name for _, name, _ in _native.functions()]


def shown(argument):
    """As tests can compare it: of a structure the members that are not 0, less its size."""
    if isinstance(argument, ctypes.Array):
        return OUT
    to = getattr(argument, "_obj", None)
    if isinstance(to, ctypes.Structure):
        members = {name: getattr(to, name) for name, *_ in to._fields_ if name != "struct_size"}
        return {name: value for name, value in members.items() if isinstance(value, (int, bytes)) and value}
    return argument if to is None else OUT


class Spy:
    """Every call that is made through `lib`, and of the two quick ones; they go through."""

    def __init__(self):
        self.calls = []

    def watch(self, place, attribute, name):
        function = getattr(place, attribute)

        def call(*arguments):
            self.calls.append((name, *map(shown, arguments)))
            return function(*arguments)

        self.watched.append((place, attribute, function))
        setattr(place, attribute, call)

    def __enter__(self):
        self.watched = []
        for name in NAMES:
            self.watch(_native.lib, name, name)
        self.watch(weir._allocator, "_allocate", "weir_allocator_allocate")
        return self

    def __exit__(self, *problem):
        for place, attribute, function in self.watched:
            setattr(place, attribute, function)


class Calls(Case):
    options = {"sim_devices": 2}

    def setUp(self):
        super().setUp()
        self.device = self.machine.device(1)  # a number that is no default
        self.place = self.machine._handle, 1
        self.stream = weir.Stream(self.device)

    def expect(self, what, *calls):
        """Makes just these calls; returns what `what` does."""
        with Spy() as spy:
            result = what()
        self.assertEqual(spy.calls, list(calls))
        return result


class Machines(Calls):
    def test_runtimes(self):
        given = {"runtime": "sim", "sim_devices": 2}
        self.expect(lambda: weir.Runtime(given, sim_seed=3),
                    ("weir_runtime_open", b"runtime=sim,sim_devices=2,sim_seed=3", OUT))
        self.expect(weir.Runtime.default, ("weir_default_runtime", OUT))
        self.expect(lambda: self.machine.device(), ("weir_device_get_info", self.machine._handle, 0, {}))
        self.expect(lambda: weir.Device(self.machine), ("weir_device_get_info", self.machine._handle, 0, {}))
        self.expect(self.device.memory, ("weir_device_get_memory", *self.place, OUT, OUT))
        self.expect(self.device.synchronize, ("weir_device_synchronize", *self.place))

    def test_streams(self):
        self.expect(lambda: weir.Stream(self.device), ("weir_stream_create", *self.place, 0, 0, OUT))
        self.expect(lambda: weir.Stream(self.device, blocking=True, priority=-1),
                    ("weir_stream_create", *self.place, 1, -1, OUT))
        self.expect(lambda: weir.Stream.wrap(self.device, self.stream.handle),
                    ("weir_stream_get_native", self.stream._handle, OUT),
                    ("weir_stream_wrap", *self.place, self.stream.handle, OUT))
        event = weir.Event(self.device)
        self.expect(lambda: self.stream.wait(event), ("weir_stream_wait", self.stream._handle, event._handle))
        with weir.BinPool(self.device).allocate(3, self.stream) as to, weir.BinPool(self.device).allocate(3) as source:
            self.expect(lambda: self.stream.copy(to.ptr, source.ptr, 2),
                        ("weir_copy", to.ptr, source.ptr, 2, self.stream._handle))
            self.expect(lambda: self.stream.fill(to.ptr, 7, 3), ("weir_fill", to.ptr, 7, 3, self.stream._handle))
            self.stream.synchronize()

    def test_captures(self):
        self.expect(lambda: self.stream.capture, ("weir_stream_get_capture", self.stream._handle, OUT, None))

        def capture(handle, status, number):
            status._obj.value = 1

        with unittest.mock.patch.object(_native.lib, "weir_stream_get_capture", capture):
            self.assertIs(self.stream.capture, weir.CaptureStatus.ACTIVE)

    def test_watching(self):
        for watch, call in ((weir.watch_stream, "weir_watch_stream"), (weir.unwatch_stream, "weir_unwatch_stream")):
            self.expect(lambda: watch(self.stream), (call, self.stream._handle))
            with Spy() as spy:
                watch(0, self.device)
            self.assertEqual([name for name, *_ in spy.calls], ["weir_stream_wrap", call])
            self.assertEqual(spy.calls[0][1:], (*self.place, 0, OUT))

    def test_events(self):
        for flags, given in ((0, {}), (1, {"timing": True}), (4, {"blocking_sync": True})):
            self.expect(lambda: weir.Event(self.device, **given), ("weir_event_create", *self.place, flags, OUT))
        earlier = self.expect(lambda: weir.Event(self.device, timing=True, blocking_sync=True),
                              ("weir_event_create", *self.place, 5, OUT))
        later = weir.Event(self.device, timing=True)
        self.expect(earlier.record, ("weir_event_record", earlier._handle, None))
        self.expect(lambda: later.record(self.stream), ("weir_event_record", later._handle, self.stream._handle))
        self.expect(later.synchronize, ("weir_event_synchronize", later._handle))
        earlier.synchronize()
        self.expect(lambda: later.elapsed_since(earlier),
                    ("weir_event_get_elapsed", earlier._handle, later._handle, OUT))


class Allocators(Calls):
    def setUp(self):
        super().setUp()
        self.memory = weir.Allocator(self.device)
        self.handle = self.memory._handle

    def test_making_one(self):
        self.expect(lambda: weir.Allocator(self.device, {"heap_policy": "compact"}, heap_limit="1GiB"),
                    ("weir_allocator_create", *self.place, b"heap_policy=compact,heap_limit=1GiB", OUT))
        self.expect(weir.Allocator.default, ("weir_default_runtime", OUT),
                    ("weir_device_get_info", weir.Runtime.default()._handle, 0, {}), ("weir_default_allocator", 0, OUT))

    def test_allocating(self):
        stream, native = self.stream._handle, self.stream.handle
        allocate = self.memory.allocate
        self.expect(lambda: allocate(1000), ("weir_allocator_allocate", self.handle, 1000, None, OUT))
        self.expect(lambda: allocate(1000, self.stream), ("weir_allocator_allocate", self.handle, 1000, stream, OUT))
        self.expect(lambda: allocate(1000, native), ("weir_allocator_allocate_native", self.handle, 1000, native, OUT))
        self.expect(lambda: allocate(1000, self.stream, alignment=4096),
                    ("weir_allocator_allocate_aligned", self.handle, 1000, 4096, stream, OUT))
        self.expect(lambda: allocate(1000, alignment=4096),
                    ("weir_allocator_allocate_aligned", self.handle, 1000, 4096, None, OUT))
        pool = self.memory.pool("apart")
        self.expect(lambda: pool.allocate(1000), ("weir_pool_allocate", pool._handle, 1000, 512, None, OUT))
        self.expect(lambda: pool.allocate(1000, self.stream, alignment=4096),
                    ("weir_pool_allocate", pool._handle, 1000, 4096, stream, OUT))

    def test_freeing(self):
        stream, native = self.stream._handle, self.stream.handle
        for given, call, *more in (((), "weir_allocator_free"),
                                   ((self.stream,), "weir_allocator_deallocate", stream),
                                   ((native,), "weir_allocator_deallocate_native", native)):
            block = self.memory.allocate(1000)
            self.expect(lambda: block.free(*given), (call, self.handle, block.ptr, *more))
            address = self.memory.allocate(1000).release()
            self.expect(lambda: self.memory.deallocate(address, *given), (call, self.handle, address, *more))
        nothing = self.memory.allocate(0)
        self.expect(nothing.free)
        address = self.memory.allocate(1000).release()
        self.expect(lambda: self.memory.deallocate(address, self.stream, size=1000),
                    ("weir_allocator_deallocate_sized", self.handle, address, 1000, stream))
        address = self.memory.allocate(1000).release()
        self.expect(lambda: self.memory.deallocate(address, size=1000),
                    ("weir_allocator_size_of", self.handle, address, OUT), ("weir_allocator_free", self.handle, address))

    def test_a_wrong_size_is_told_and_frees(self):
        for given in ((), (self.stream,)):
            address = self.memory.allocate(1000, self.stream).release()
            with self.assertRaisesRegex(weir.InvalidArgument, r"\(999 B\): the block was allocated with 1000 B") as caught:
                self.memory.deallocate(address, *given, size=999)
            self.assertEqual((caught.exception.code, caught.exception.name), (1, "invalid_argument"))
            self.assertEqual(self.memory.stats().blocks.current, 0)
            with self.assertRaises(weir.BadPointer):
                self.memory.deallocate(address, *given, size=1000)
        self.memory.deallocate(0, size=1000)  # nothing

    def test_asking(self):
        block = self.memory.allocate(1000, self.stream)
        self.expect(lambda: self.memory.size_of(block), ("weir_allocator_size_of", self.handle, block.ptr, OUT))
        self.expect(lambda: self.memory.find_block(block.ptr + 1),
                    ("weir_allocator_find_block", self.handle, block.ptr + 1, {}), ("weir_tag_name", 0))
        self.expect(self.memory.stats, ("weir_allocator_get_stats", self.handle, {}))
        self.expect(lambda: self.memory.stats(""), ("weir_allocator_get_tag_stats", self.handle, 0, {}))
        number = weir._allocator.tag_number("asked")
        self.expect(lambda: self.memory.stats("asked"), ("weir_tag_named", b"asked", OUT),
                    ("weir_allocator_get_tag_stats", self.handle, number, {}))
        self.expect(self.memory.stats_by_tag, ("weir_allocator_get_stats_by_tag", self.handle, None, 0, OUT),
                    ("weir_allocator_get_stats_by_tag", self.handle, OUT, 1, OUT), ("weir_tag_name", 0))
        for stream, known in ((None, None), (self.stream, self.stream._handle)):
            with Spy() as spy:
                self.memory.explain(MIB, stream)
            first, second = spy.calls
            self.assertEqual(first, ("weir_allocator_explain", self.handle, MIB, known, None, 0, OUT))
            self.assertEqual(second[:5], ("weir_allocator_explain", self.handle, MIB, known, OUT))

    def test_addresses(self):
        block = self.memory.allocate(1000, self.stream)
        with Spy() as spy:
            text = self.memory.describe_address(block.ptr + 3)
        first, second = spy.calls
        self.assertEqual(first, ("weir_allocator_describe_address", self.handle, block.ptr + 3, None, 0, OUT))
        self.assertEqual(second[:4], ("weir_allocator_describe_address", self.handle, block.ptr + 3, OUT))
        self.assertTrue(text.startswith(f"{block.ptr + 3:#x} is 3 bytes into a live block: {block.ptr:#x}, 1000 B"),
                        text)
        with self.assertRaises(weir.BadPointer):
            self.memory.describe_address(1)

    def test_damage(self):
        with weir.Allocator(self.memory.device, heap_debug="guard_pages") as memory:
            block = memory.allocate(1000, self.stream)
            ptr = block.release()
            ctypes.memset(ptr + 1000, 0, 1)  # device addresses of a simulated machine are host addresses
            with self.assertRaises(weir.MemoryDamaged) as caught:
                memory.deallocate(ptr)
            self.assertIn("1000 B: 1 byte after its end was written, at offset 1000: fd there became 00",
                          str(caught.exception))
            self.assertIn(" is 1 byte after a freed block: ", memory.describe_address(ptr + 1000))

    def test_snapshots(self):
        block, apart = self.memory.allocate(1000, self.stream), self.memory.pool("apart")
        with Spy() as spy:
            shown = self.memory.snapshot()
        taken = spy.calls[1][1]
        wanted = [("weir_snapshot_take", self.handle, OUT), ("weir_snapshot_get_info", taken, {})]
        for number, pool in enumerate(shown.pools):
            wanted.append(("weir_snapshot_get_pool", taken, number, {}))
            for call, pieces in (("blocks", pool.blocks), ("physical", pool.physical)):
                if pieces:
                    wanted.append((f"weir_snapshot_get_{call}", taken, number, 0, OUT, len(pieces), OUT))
            wanted += [("weir_tag_name", 0)] * len(pool.blocks)
        self.assertEqual(spy.calls, [*wanted, ("weir_snapshot_close", taken)])
        self.assertEqual([pool.id for pool in shown.pools], [0, apart.id])
        del block

    def test_limits_and_upkeep(self):
        self.expect(self.memory.trim, ("weir_allocator_trim", self.handle, 0, OUT))
        self.expect(lambda: self.memory.trim(MIB), ("weir_allocator_trim", self.handle, MIB, OUT))
        self.expect(self.memory.empty_cache, ("weir_allocator_empty_cache", self.handle, OUT))
        self.expect(self.memory.reset_peaks, ("weir_allocator_reset_peaks", self.handle))
        self.expect(lambda: self.memory.release_stream(self.stream),
                    ("weir_allocator_release_stream", self.handle, self.stream._handle))
        set_limit = type(self.memory).limit.fset
        for most, call in ((None, ("weir_allocator_set_limit", self.handle, 2**64 - 1)),
                           (MIB, ("weir_allocator_set_limit", self.handle, MIB)),
                           (0.5, ("weir_allocator_set_limit_fraction", self.handle, 0.5))):
            self.expect(lambda: set_limit(self.memory, most), call)
        number = weir._allocator.tag_number("kept short")
        for most, limit in ((None, 2**64 - 1), (MIB, MIB)):
            self.expect(lambda: self.memory.set_tag_limit("kept short", most), ("weir_tag_named", b"kept short", OUT),
                        ("weir_allocator_set_tag_limit", self.handle, number, limit))

    def test_parts(self):
        for given, flags in (({}, 0), ({"exportable": True}, 1)):
            self.expect(lambda: self.memory.pool("apart", **given), ("weir_pool_create", self.handle, b"apart", flags, OUT))
        pool = self.expect(lambda: weir.Pool(self.memory, "apart"), ("weir_pool_create", self.handle, b"apart", 0, OUT))
        self.expect(pool.stats, ("weir_pool_get_stats", pool._handle, {}))
        with Spy() as spy, pool.use() as used:
            self.assertIs(used, pool)
            self.assertEqual(spy.calls, [("weir_pool_enter", pool._handle)])
        self.assertEqual(spy.calls[1:], [("weir_pool_leave",)])
        capture = self.expect(lambda: self.memory.capture(self.stream),
                              ("weir_capture_begin", self.handle, self.stream._handle, OUT))
        self.assertIs(capture.allocator, self.memory)
        self.expect(capture.end, ("weir_capture_end", capture._handle))
        with unittest.mock.patch.object(_native.lib, "weir_capture_tie_to_graph") as tie_to_graph:
            capture.tie_to_graph(0x1234)
        tie_to_graph.assert_called_once_with(capture._handle, 0x1234)

    def test_recordings(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "run.weirtrace"

            def start(wanted, **options):
                return self.expect(lambda: self.memory.record(path, overwrite=True, **options),
                                   ("weir_recorder_start", self.handle, os.fsencode(path), wanted, OUT))

            start({"level": 3}).stop()
            start({"flags": 1, "level": 3}, drop_when_full=True).stop()
            start({"flags": 2, "level": 3}, stacks=True).stop()
            start({"flags": 4}, level=0).stop()
            start({"flags": 7}, level=0, stacks=True, drop_when_full=True).stop()
            recorder = start({"level": 5, "ring_events": 4096, "flush_every": 1000, "program": b"train.py"}, level=5,
                             ring_events=4096, flush_every=1000, program="train.py")
            self.expect(lambda: recorder.marker("half way"), ("weir_recorder_marker", recorder._handle, b"half way"))
            self.expect(recorder.flush, ("weir_recorder_flush", recorder._handle))
            self.expect(recorder.stats, ("weir_recorder_get_stats", recorder._handle, {}))
            recorder.stop()
            self.assertTrue(recorder.closed)


class Pools(Calls):
    def test_stream_pools(self):
        rules = weir.StreamPoolAttribute
        for given, wanted in (({}, {"threshold": 2**64 - 1}),
                              ({"initial": MIB, "maximum": GIB, "threshold": 2 * MIB, "shareable": True},
                               {"flags": 1, "initial": MIB, "max": GIB, "threshold": 2 * MIB}),
                              ({"threshold": 0, "reuse": [rules.REUSE_OPPORTUNISTIC]}, {"flags": 2 | 8}),
                              ({"threshold": 0, "reuse": []}, {"flags": 2 | 4 | 8})):
            self.expect(lambda: weir.StreamPool(self.device, **given),
                        ("weir_stream_pool_create", *self.place, wanted, OUT))
        self.expect(lambda: weir.StreamPool.default(self.device), ("weir_stream_pool_open_default", *self.place, OUT))
        pool, stream = weir.StreamPool(self.device, shareable=True), self.stream._handle
        handle = pool._handle
        self.expect(lambda: pool.allocate(1000), ("weir_stream_pool_allocate", handle, 1000, 0, None, OUT))
        block = self.expect(lambda: pool.allocate(1000, self.stream, alignment=256),
                            ("weir_stream_duplicate", stream, OUT),
                            ("weir_stream_pool_allocate", handle, 1000, 256, unittest.mock.ANY, OUT))
        kept = pool._streams[block.ptr]
        self.expect(block.free, ("weir_stream_pool_deallocate", handle, block.ptr, kept))
        for given, *wanted in (((), None), ((self.stream,), stream)):
            address = pool.allocate(1000).release()
            self.expect(lambda: pool.deallocate(address, *given), ("weir_stream_pool_deallocate", handle, address, *wanted))
            address = pool.allocate(1000).release()
            self.expect(lambda: pool.deallocate(address, *given, size=1000),
                        ("weir_stream_pool_deallocate_sized", handle, address, 1000, *wanted))
        self.expect(pool.reset_peaks, ("weir_stream_pool_reset_peaks", handle))
        self.expect(pool.trim, ("weir_stream_pool_trim", handle, 0, OUT))
        self.expect(lambda: pool.trim(MIB), ("weir_stream_pool_trim", handle, MIB, OUT))
        self.expect(lambda: pool.set_attribute(rules.RELEASE_THRESHOLD, MIB),
                    ("weir_stream_pool_set_attribute", handle, 4, MIB))
        self.expect(lambda: pool.attribute(rules.USED), ("weir_stream_pool_get_attribute", handle, 7, OUT))
        self.expect(lambda: pool.set_reuse(rules.REUSE_OPPORTUNISTIC), ("weir_stream_pool_set_attribute", handle, 2, 1))
        self.expect(lambda: pool.set_peer(self.machine.device(0)), ("weir_device_get_info", self.machine._handle, 0, {}),
                    ("weir_stream_pool_set_peer", handle, 0, 1))
        descriptor = pool.export_descriptor()
        imported = self.expect(lambda: weir.StreamPool.import_descriptor(self.device, descriptor),
                               ("weir_stream_pool_import", *self.place, descriptor, OUT))
        os.close(descriptor)
        block = pool.allocate(1000, self.stream)
        exported = self.expect(lambda: pool.export_pointer(block),
                               ("weir_stream_pool_export_pointer", handle, block.ptr, OUT))
        self.expect(lambda: imported.import_pointer(exported, self.stream).free(),
                    ("weir_stream_duplicate", stream, OUT),
                    ("weir_stream_pool_import_pointer", imported._handle, OUT, unittest.mock.ANY, OUT, OUT),
                    ("weir_stream_pool_deallocate", imported._handle, unittest.mock.ANY, unittest.mock.ANY))

    def test_pools_of_whole_blocks(self):
        for kind, create in ((weir.PinnedPool, "weir_pinned_pool_create"), (weir.BinPool, "weir_bin_pool_create")):
            self.expect(lambda: kind(self.device), (create, *self.place, {"threshold": 2**64 - 1}, OUT))
            self.expect(lambda: kind(self.device, threshold=0), (create, *self.place, {}, OUT))
            pool, stream = kind(self.device), self.stream._handle
            handle = pool._handle
            self.expect(lambda: pool.allocate(1000), ("weir_block_pool_allocate", handle, 1000, 0, None, OUT))
            block = self.expect(lambda: pool.allocate(1000, self.stream, alignment=256),
                                ("weir_block_pool_allocate", handle, 1000, 256, stream, OUT))
            self.expect(lambda: block.record_stream(self.stream),
                        ("weir_block_pool_record_stream", handle, block.ptr, stream))
            self.expect(lambda: block.free(self.stream), ("weir_block_pool_deallocate", handle, block.ptr, stream))
            address = pool.allocate(1000).release()
            self.expect(lambda: pool.deallocate(address), ("weir_block_pool_free", handle, address))
            self.expect(lambda: pool.release_stream(self.stream), ("weir_block_pool_release_stream", handle, stream))
            self.expect(pool.reset_peaks, ("weir_block_pool_reset_peaks", handle))
            self.expect(pool.reset_counters, ("weir_block_pool_reset_counters", handle))
            self.expect(pool.trim, ("weir_block_pool_trim", handle, 0, OUT))
            self.expect(pool.empty_cache, ("weir_block_pool_empty_cache", handle, OUT))
            for most, limit in ((None, 2**64 - 1), (0, 0), (MIB, MIB)):
                self.expect(lambda: pool.set_threshold(most), ("weir_block_pool_set_threshold", handle, limit))

    def test_buffer_pools(self):
        for given, wanted in (({}, {"max_cached": 2**64 - 1, "max_idle_time": 2**64 - 1}),
                              ({"max_cached": 0, "max_idle_time": 0}, {}),
                              ({"max_cached": MIB, "max_idle_time": 1.5, "declared_uses": True},
                               {"flags": 1, "max_cached": MIB, "max_idle_time": 1_500_000_000})):
            self.expect(lambda: weir.BufferPool(**given), ("weir_buffer_pool_create", wanted, OUT))
        pool, stream = weir.BufferPool(), self.stream._handle
        handle = pool._handle
        for take, call in ((pool.take, "weir_buffer_pool_take"), (pool.take_cached, "weir_buffer_pool_take_cached")):
            for given, flags in (({}, 0), ({"zeroed": True}, 1)):
                pool.take(1000, self.stream).free()
                block = self.expect(lambda: take(1000, self.stream, **given),
                                    (call, handle, 1000, flags, stream, OUT),
                                    ("weir_buffer_get_info", unittest.mock.ANY, {}))
                block.free()
        block = pool.take(1000, self.stream)
        self.assertEqual((block.nbytes, block.stream), (1000, self.stream))
        buffer = pool._buffers[block.ptr]
        self.expect(lambda: block.record_stream(self.stream), ("weir_buffer_record_stream", buffer, stream))
        self.expect(lambda: block.free(self.stream), ("weir_buffer_pool_free", handle, buffer, stream))
        for device, about in ((None, (None, 0)), (self.device, self.place)):
            self.expect(lambda: pool.stats(device), ("weir_buffer_pool_get_stats", handle, *about, {}))
            self.expect(lambda: pool.reset_peaks(device), ("weir_buffer_pool_reset_peaks", handle, *about))
            self.expect(lambda: pool.reset_counters(device), ("weir_buffer_pool_reset_counters", handle, *about))
            self.expect(lambda: pool.trim(device=device), ("weir_buffer_pool_trim", handle, *about, 0, OUT))
            self.expect(lambda: pool.trim(MIB, device), ("weir_buffer_pool_trim", handle, *about, MIB, OUT))
            self.expect(lambda: pool.empty_cache(device), ("weir_buffer_pool_empty_cache", handle, *about, OUT))

    def test_unified_buffers(self):
        stream = self.stream._handle
        for given, *wanted in (((self.device, 64), 64, 1, 0, None), ((self.device, 64, self.stream), 64, 1, 0, stream)):
            self.expect(lambda: weir.UnifiedBuffer(*given), ("weir_buffer_create_managed", *self.place, *wanted, OUT))
        self.expect(lambda: weir.UnifiedBuffer(self.device, 64, zeroed=False, attachment=weir.Attachment.HOST),
                    ("weir_buffer_create_managed", *self.place, 64, 0, 1, None, OUT))
        self.expect(lambda: weir.UnifiedBuffer.copy_of(self.device, b"weir", self.stream),
                    ("weir_buffer_create_managed_copy", *self.place, b"weir", 4, 0, stream, OUT))
        buffer = weir.UnifiedBuffer(self.device, 4 * MIB)
        handle = buffer._handle
        range_ = {"offset": MIB, "size": 2 * MIB}
        for given, place in (({}, (0, 0)), (range_, (MIB, 2 * MIB))):
            self.expect(lambda: buffer.prefetch(1, **given), ("weir_buffer_prefetch", handle, *place, 1, None))
            self.expect(lambda: buffer.advise_read_mostly(**given), ("weir_buffer_advise_read_mostly", handle, *place, 1))
            self.expect(lambda: buffer.advise_preferred(self.device, **given),
                        ("weir_buffer_advise_preferred", handle, *place, 1))
            self.expect(lambda: buffer.advise_preferred(None, **given),
                        ("weir_buffer_advise_preferred", handle, *place, -2**31))
            self.expect(lambda: buffer.advise_accessed_by(weir.HOST, **given),
                        ("weir_buffer_advise_accessed_by", handle, *place, -1, 1))
            self.expect(lambda: buffer.advise_accessed_by(1, False, **given),
                        ("weir_buffer_advise_accessed_by", handle, *place, 1, 0))
            self.expect(lambda: buffer.info(**given), ("weir_buffer_get_managed_info", handle, *place, {}))
        self.expect(lambda: buffer.prefetch(weir.HOST, self.stream), ("weir_buffer_prefetch", handle, 0, 0, -1, stream))
        self.expect(lambda: buffer.attach(weir.Attachment.GLOBAL, self.stream), ("weir_buffer_attach", handle, 0, stream))
        self.expect(lambda: buffer.resize(MIB, self.stream), ("weir_buffer_resize_managed", handle, MIB, stream))
        self.expect(lambda: buffer.use_on(self.stream), ("weir_buffer_use_on", handle, stream))
        event = weir.Event(self.device)
        event.record(self.stream)
        for given, call in (({}, ("weir_buffer_begin_host", handle)),
                            ({"wait": False}, ("weir_buffer_try_begin_host", handle)),
                            ({"after": event}, ("weir_buffer_begin_host_after", handle, event._handle))):
            self.device.synchronize()
            with Spy() as spy:
                with buffer.view(**given):
                    pass
            self.assertEqual(spy.calls, [call, ("weir_buffer_get_info", handle, {}), ("weir_buffer_end_host", handle)])


if __name__ == "__main__":
    unittest.main()
