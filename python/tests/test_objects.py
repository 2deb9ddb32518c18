#!/usr/bin/env python3
"""weir's objects in Python on a simulated GPU: memory, streams, errors, statistics, pools, recordings."""

import ctypes
import gc
import os
import pickle
import tempfile
import threading
import unittest
from pathlib import Path

from support import GIB, MIB, Case

import weir
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
        self.assertIn("simulated", repr(machine))

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
        rows = {row["name"]: row for row in weir.option_rows()}
        self.assertEqual(rows["heap_policy"]["environment"], "WEIR_HEAP_POLICY")

    def test_errors_pass_between_processes(self):
        error = weir.OutOfMemory("no room", 4, "out_of_memory", 2)
        again = pickle.loads(pickle.dumps(error))
        self.assertEqual((type(again), str(again), again.code, again.name, again.native),
                         (weir.OutOfMemory, "no room", 4, "out_of_memory", 2))


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
        first.close()
        self.assertRaises(weir.Closed, first.synchronize)

    def test_events_measure_time(self):
        stream = weir.Stream(self.device)
        begin, end = weir.Event(self.device, timing=True), weir.Event(self.device, timing=True)
        begin.record(stream)
        end.record(stream)
        end.synchronize()
        self.assertGreaterEqual(end.elapsed_since(begin), 0)

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
        self.assertEqual((shown["shape"], shown["typestr"], shown["data"], shown["version"]),
                         ((1000,), "|u1", (block.ptr, False), 3))
        self.assertEqual(shown["stream"], self.stream.handle)
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
        with self.memory.allocate(MIB, self.stream):
            self.assertEqual(self.live(), 1)
        block = self.memory.allocate(MIB, self.stream)
        block.free()
        block.free()  # nothing more
        self.memory.allocate(MIB, self.stream)  # forgotten at once
        other = weir.Stream(self.device)
        block = self.memory.allocate(MIB, self.stream)
        block.record_stream(other)
        block.free(other)
        address = self.memory.allocate(MIB, self.stream).release()
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
        block = self.memory.allocate(0, self.stream)
        self.assertEqual((block.ptr, block.nbytes), (0, 0))
        block.free()

    def test_bad_input_is_a_typed_error(self):
        with self.assertRaises(weir.BadPointer) as caught:
            self.memory.deallocate(0x1234)
        self.assertEqual(caught.exception.name, "foreign_pointer")
        address = self.memory.allocate(MIB, self.stream).release()
        self.memory.deallocate(address)
        with self.assertRaises(weir.BadPointer) as caught:
            self.memory.deallocate(address)
        self.assertEqual(caught.exception.name, "double_free")
        self.assertRaises(ValueError, self.memory.allocate, -1)
        with self.assertRaises(weir.InvalidArgument) as caught:
            self.memory.allocate(8, alignment=3)
        self.assertEqual(caught.exception.name, "bad_alignment")
        with self.assertRaises(weir.Error) as caught:
            self.memory.allocate(2**64 - 1)
        self.assertIn(caught.exception.name, ("size_overflow", "out_of_memory"))
        self.assertRaises(ctypes.ArgumentError, self.memory.allocate, 1.5)
        self.assertRaises(TypeError, self.memory.allocate, 8, "stream")

    def test_out_of_memory_is_a_memory_error_that_explains(self):
        self.memory.limit = 64 * MIB
        with weir.tag("held"):
            held = self.memory.allocate(40 * MIB, self.stream)
        with self.assertRaises(MemoryError) as caught:
            self.memory.allocate(40 * MIB, self.stream)
        self.assertIsInstance(caught.exception, weir.OutOfMemory)
        self.assertEqual((caught.exception.name, caught.exception.code), ("out_of_memory", 4))
        self.assertIn("held", self.memory.explain(40 * MIB, self.stream))
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

    def test_a_callback_that_raises_does_no_harm(self):
        import sys
        kinds, before = [], sys.excepthook
        sys.excepthook = lambda kind, *_: kinds.append(kind)
        try:
            self.memory.limit = 4 * MIB
            registration = self.memory.on_out_of_memory(lambda needed: 1 / 0)
            self.assertRaises(MemoryError, self.memory.allocate, 40 * MIB)
            registration.close()
        finally:
            sys.excepthook = before
        self.assertEqual(kinds, [ZeroDivisionError])

    def test_limits_can_be_set_and_read(self):
        self.memory.limit = 0.5
        self.assertAlmostEqual(self.memory.limit, self.device.info.total_memory / 2, delta=2 * MIB)
        self.memory.limit = 10 * MIB
        self.assertEqual(self.memory.limit, 10 * MIB)
        self.memory.limit = None
        self.assertIn(self.memory.limit, (None, self.device.info.total_memory))
        self.memory.set_tag_limit("small", MIB)
        with weir.tag("small"), self.assertRaises(weir.LimitExceeded) as caught:
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
        self.assertEqual(list(tags)[0], "")  # the most memory first
        self.assertEqual(sum(of.requested.current for of in tags.values()), 1000 + 3 * MIB)
        other.free()
        self.assertEqual(self.memory.stats().requested.peak, 1000 + 3 * MIB)
        self.memory.reset_peaks()
        self.assertLess(self.memory.stats().requested.peak, 3 * MIB)
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
        self.assertEqual((shown.device, shown.stats.blocks.current), (0, 2))
        own, other = shown.pools[0], next(each for each in shown.pools if each.id == pool.id)
        self.assertEqual(other.name, "apart")
        [shown_block] = [each for each in own.blocks if each.state is weir.BlockState.LIVE]
        self.assertEqual((shown_block.address, shown_block.requested, shown_block.tag, shown_block.stream),
                         (block.ptr, 1000, "shown", self.stream.id))
        self.assertEqual(sum(piece.size for piece in own.physical), own.stats.reserved.current)
        self.assertIn(apart.ptr, [each.address for each in other.blocks])

    def test_pools_keep_apart(self):
        pool = self.memory.pool("own")
        with pool.use():
            block = self.memory.allocate(MIB, self.stream)
        outside = self.memory.allocate(MIB, self.stream)
        self.assertEqual((pool.stats().blocks.current, self.live()), (1, 2))
        self.assertEqual(self.memory.find_block(block.ptr).pool, pool.id)
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
            with self.memory.record(path, level=0) as recorder:
                self.memory.allocate(MIB, self.stream).free()
                recorder.marker("half way")
                recorder.flush()
                self.assertGreaterEqual(recorder.stats().written, 2)
                self.assertFalse(path.exists())
            self.assertGreater(path.stat().st_size, 0)
            with self.assertRaises(weir.Error):
                self.memory.record(Path(folder) / "no" / "such" / "folder")


class Pools(Case):
    def test_the_drivers_pool(self):
        pool, stream = weir.StreamPool(self.device, maximum=GIB), weir.Stream(self.device)
        self.assertNotEqual(pool.handle, 0)
        block = pool.allocate(MIB, stream)
        self.assertEqual((pool.stats().allocations.current, pool.stats().allocated), (1, MIB))
        block.free()
        self.assertEqual(pool.stats().allocations.current, 0)
        pool.allocate(MIB)  # on the legacy stream, forgotten at once
        self.assertEqual(pool.stats().allocations.current, 0)
        self.assertRaises(MemoryError, pool.allocate, 2 * GIB, stream)
        self.assertRaises(TypeError, pool.allocate, MIB, stream.handle)
        self.device.synchronize()
        pool.reset_peaks()
        self.assertEqual(pool.stats().allocations.peak, 0)
        self.assertEqual(pool.trim(), pool.stats().reserved.peak)
        self.assertEqual(pool.stats().reserved.current, 0)
        address = pool.allocate(MIB, stream).release()
        self.assertRaises(weir.InvalidArgument, pool.deallocate, address, stream, size=MIB - 1)
        address = pool.allocate(MIB, stream).release()
        pool.deallocate(address, stream)
        self.assertRaises(weir.BadPointer, pool.deallocate, address, stream)
        pool.close()

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
        self.assertRaises(ValueError, imported.import_pointer, b"short")
        same.free()
        stream.synchronize()
        del same, imported
        block.free()
        self.assertRaises(weir.NotSupported, weir.StreamPool(self.device).export_descriptor)

    def test_pools_of_whole_blocks(self):
        stream = weir.Stream(self.device)
        for kind in (weir.PinnedPool, weir.BinPool):
            pool = kind(self.device, threshold=64 * MIB)
            block = pool.allocate(MIB, stream)
            self.assertEqual(pool.stats().blocks.current, 1)
            block.record_stream(weir.Stream(self.device))
            block.free(stream)
            pool.allocate(MIB, stream)
            self.assertEqual((pool.stats().blocks.current, pool.stats().allocations), (0, 2))
            self.device.synchronize()
            pool.reset_peaks()
            pool.reset_counters()
            self.assertEqual((pool.stats().allocations, pool.stats().requested.peak), (0, 0))
            pool.deallocate(pool.allocate(MIB, stream).release())
            self.device.synchronize()
            self.assertEqual(pool.trim(weir.NO_LIMIT), 0)
            self.assertGreaterEqual(pool.empty_cache(), MIB)
            self.assertEqual((pool.stats().cached, pool.trim()), (0, 0))
            pool.set_threshold(0)
            pool.set_threshold(None)


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


if __name__ == "__main__":
    unittest.main()
