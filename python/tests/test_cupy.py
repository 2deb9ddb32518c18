#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""weir.cupy under a stand-in for CuPy (fake_cupy.py) on a simulated GPU. gpu_cupy.py has the real one."""

import ctypes
import gc
import pickle
import sys
import threading
import types
import unittest
import unittest.mock

from support import MIB, Case, run

import fake_cupy
import weir
import weir.cupy


class Cupy(Case):
    """With a CuPy of its own."""

    def setUp(self):
        super().setUp()
        self.fake = fake_cupy.Fake()
        self.fake.runtime = weir.Runtime.default()
        self.cupy = self.fake.install()
        self.addCleanup(self.fake.remove)
        self.addCleanup(weir.cupy.disable)

    def live(self):
        return weir.cupy.stats().blocks.current


class Arrays(Cupy):
    def test_it_goes_on_and_off(self):
        before = self.fake.allocator
        self.assertFalse(weir.cupy.is_enabled())
        weir.cupy.enable()
        self.assertTrue(weir.cupy.is_enabled())
        array = self.fake.empty(MIB)
        pinned = self.fake.empty_pinned(MIB)
        self.assertEqual((self.live(), weir.cupy.pinned_stats().blocks.current), (1, 1))
        weir.cupy.disable()
        weir.cupy.disable()
        self.assertIs(self.fake.allocator.__self__, before.__self__)
        self.assertEqual(self.fake.pinned_allocator, self.fake.pinned_pool.malloc)
        self.assertEqual((array.device_id, array.mem.size, pinned.size()), (0, MIB, MIB))
        weir.cupy.enable()
        self.assertEqual(self.live(), 1)  # the same allocator as before
        del array, pinned
        self.assertEqual((self.live(), weir.cupy.pinned_stats().blocks.current), (0, 0))

    def test_arrays_follow_the_current_stream(self):
        weir.cupy.enable()
        stream, other = self.fake.Stream(), self.fake.Stream()
        with stream:
            array = self.fake.empty(3 * MIB)
            with other:
                second = self.fake.empty(3 * MIB)
        on = {block.address: block.stream for block in weir.cupy.allocator().snapshot().pools[0].blocks
              if block.state is weir.BlockState.LIVE}
        self.assertEqual(on, {array.ptr: stream.weir_stream.id, second.ptr: other.weir_stream.id})
        address = array.ptr
        del array
        with stream:
            self.assertEqual(self.fake.empty(3 * MIB).ptr, address)

    def test_memory_passes_between_streams_in_order(self):
        weir.cupy.enable(options="heap_limit=8MiB")  # so that they must share
        streams = [self.fake.Stream() for _ in range(3)]
        host = weir.PinnedPool(self.fake.runtime.device(0)).allocate(MIB)
        for step in range(60):
            with streams[step % 3] as stream:
                array = self.fake.empty(3 * MIB)
                stream.weir_stream.fill(array.ptr, step, 3 * MIB)
                if step % 7 == 0:
                    stream.weir_stream.copy(host.ptr, array.ptr + 2 * MIB, MIB)
                    stream.synchronize()
                    self.assertEqual(ctypes.string_at(host.ptr, MIB), bytes([step]) * MIB)
            del array  # its stream may be at work still

    def test_each_thread_has_its_stream(self):
        weir.cupy.enable()
        wrong = []

        def work():
            try:
                stream = self.fake.Stream()
                with stream:
                    kept = [self.fake.empty(512 * (1 + step % 9)) for step in range(50)]
                on = weir.cupy.allocator().find_block(kept[-1].ptr).stream
                if on != stream.weir_stream.id:
                    wrong.append((on, stream.weir_stream.id))
            except BaseException as problem:
                wrong.append(problem)

        threads = [threading.Thread(target=work) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        gc.collect()
        self.assertEqual((wrong, self.live()), ([], 0))

    def test_a_stream_lives_until_weir_let_go_of_it(self):
        weir.cupy.enable()
        stream = self.fake.Stream()
        handle = stream.ptr
        with stream:
            array = self.fake.empty(MIB)
        del stream
        self.assertNotIn(handle, self.fake.destroyed)
        for _ in range(weir.cupy._REMEMBERED_STREAMS + 8):
            with self.fake.Stream():
                self.fake.empty(MIB)
        self.assertNotIn(handle, self.fake.destroyed)  # the array needs it
        self.assertGreaterEqual(len(self.fake.destroyed), 8)
        del array
        self.assertIn(handle, self.fake.destroyed)
        self.fake.empty(64 * MIB)  # weir asks the driver about its streams here

    def test_a_stream_in_a_cycle_with_its_array_is_destroyed_last(self):
        weir.cupy.enable()
        for _ in range(weir.cupy._REMEMBERED_STREAMS + 2):
            stream = self.fake.Stream()
            with stream:
                array = self.fake.empty(MIB)
            cycle = {"stream": stream, "array": array}
            cycle["itself"] = cycle
        del stream, array, cycle
        gc.collect()
        self.assertEqual(self.live(), 0)
        self.assertGreater(self.fake.destroyed, [])
        weir.cupy.empty_cache()

    def test_streams_that_threads_forget_and_meet_again(self):
        weir.cupy.enable()
        before, weir.cupy._REMEMBERED_STREAMS = weir.cupy._REMEMBERED_STREAMS, 1  # each meeting forgets
        self.addCleanup(setattr, weir.cupy, "_REMEMBERED_STREAMS", before)
        streams, wrong = [self.fake.Stream() for _ in range(3)], []

        def work(seed):
            try:
                kept = []
                for step in range(200):
                    with streams[(seed + step) % 3]:
                        kept.append(self.fake.empty(4096))
                    if len(kept) > 3:
                        kept.pop(step % 3)
            except BaseException as problem:
                wrong.append(problem)

        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-5)
        self.addCleanup(sys.setswitchinterval, interval)
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual((wrong, self.live()), ([], 0))
        handles = {stream.ptr for stream in streams}
        streams.clear()
        del work
        with self.fake.Stream():
            self.fake.empty(4096)
        self.assertLessEqual(handles, set(self.fake.destroyed))  # none is kept for ever

    def test_other_peoples_streams_are_released_by_hand(self):
        weir.cupy.enable()
        external = weir.Stream(self.fake.runtime.device(0))

        class ExternalStream:
            ptr = external.handle

        self.fake.stack().append(ExternalStream())
        self.addCleanup(self.fake.stack().pop)
        array = self.fake.empty(MIB)
        self.assertEqual(weir.cupy.allocator().find_block(array.ptr).stream, external.id)
        del array
        weir.cupy.release_stream(external.handle)
        external.close()

    def test_streams_may_end_without_notice(self):
        text = weir._allocator.allow_unreleased_streams
        self.assertEqual((text(""), text("a=1")), ("heap_allow_unreleased_streams=on", "heap_allow_unreleased_streams=on,a=1"))
        with unittest.mock.patch.dict("os.environ", WEIR_HEAP_ALLOW_UNRELEASED_STREAMS="off"):
            self.assertEqual(text("a=1"), "a=1")
        created = []
        with unittest.mock.patch.object(weir._allocator, "Allocator", side_effect=lambda *all: created.append(all)):
            weir._allocator.process_allocator(0, "heap_limit=77MiB")
        weir._allocator._shared.pop((0, "heap_limit=77MiB"))
        self.assertEqual([options for _, options in created], ["heap_allow_unreleased_streams=on,heap_limit=77MiB"])

    def test_cupys_own_streams_are_watched_as_long_as_they_are_kept(self):
        calls = []
        for name in ("watch", "unwatch"):
            real = getattr(weir.cupy._Watches, name)
            self.addCleanup(setattr, weir.cupy._Watches, name, staticmethod(real))
            setattr(weir.cupy._Watches, name, staticmethod(
                lambda handle, name=name, real=real: (calls.append((name, handle)), real(handle))[1]))
        weir.cupy.enable(options="heap_limit=76MiB")  # so that it meets them for the first time
        stream = self.fake.Stream()
        for _ in range(2):
            with stream:
                self.fake.empty(MIB)
        handle = calls[0][1]
        self.assertEqual(calls, [("watch", handle)])
        weir.cupy._current_state().memory(0).forget_stream(stream)
        self.assertEqual(calls, [("watch", handle), ("unwatch", handle)])

    def test_a_stream_that_makes_no_array_can_be_watched(self):
        weir.cupy.enable()
        stream = self.fake.Stream()
        handle = stream.ptr
        weir.cupy.watch_stream(stream)
        weir.cupy.watch_stream(stream)
        self.assertIn(handle, weir.cupy._watched)
        weir.cupy.watch_stream(self.fake.Stream.null)
        again = stream
        del stream
        weir.cupy.release_stream(self.fake.Stream.null)
        self.assertNotIn(handle, self.fake.destroyed)
        weir.cupy.release_stream(again)
        del again
        self.assertIn(handle, self.fake.destroyed)
        self.assertEqual(weir.cupy._watched, {})

    def test_one_that_makes_arrays_too_is_watched_until_it_is_released(self):
        calls = self.watch_calls()
        weir.cupy.enable(options="heap_limit=75MiB")  # so that it meets them for the first time
        stream = self.fake.Stream()
        with stream:
            self.fake.empty(MIB)
        weir.cupy.watch_stream(stream)
        weir.cupy._current_state().memory(0).forget_stream(stream)
        self.assertEqual(calls, ["watch", "watch"])
        weir.cupy.release_stream(stream)
        self.assertEqual(calls, ["watch", "watch", "unwatch"])

    def test_streams_are_released_from_every_allocator_that_was_enabled(self):
        calls = self.watch_calls()
        stream = self.fake.Stream()
        for options in ("heap_limit=73MiB", "heap_limit=74MiB"):
            weir.cupy.enable(options=options)
            with stream:
                self.fake.empty(MIB)
        weir.cupy.release_stream(stream)
        self.assertEqual(calls, ["watch", "watch", "unwatch"])
        handle = stream.ptr
        del stream
        self.assertIn(handle, self.fake.destroyed)

    def watch_calls(self):
        calls = []
        for name in ("watch", "unwatch"):
            real = getattr(weir.cupy._Watches, name)
            patch = unittest.mock.patch.object(weir.cupy._Watches, name, staticmethod(
                lambda handle, name=name, real=real: (calls.append(name), real(handle))[1]))
            patch.start()
            self.addCleanup(patch.stop)
        return calls

    def test_finalizers_may_use_it_in_the_middle_of_a_call(self):
        weir.cupy.enable(options="heap_limit=72MiB")
        state, nested, ended = weir.cupy._current_state(), [], []

        def collected(call):
            """Calls `call`, and makes arrays as a finalizer might that runs meanwhile."""
            def replaced(*given):
                outcome = call(*given)
                if not nested:
                    nested.append(None)
                    with self.fake.Stream():
                        nested.extend((self.fake.empty(MIB), self.fake.empty_pinned(MIB)))
                return outcome
            return replaced

        def work(patch):
            nested.clear()
            with patch, self.fake.Stream():
                self.fake.empty(MIB)
                self.fake.empty_pinned(MIB)
            ended.append(len(nested))

        for patch in (unittest.mock.patch.object(weir.cupy._Watches, "watch", staticmethod(collected(weir.cupy._Watches.watch))),
                      unittest.mock.patch.object(weir.cupy, "PinnedPool", collected(weir.PinnedPool)),
                      unittest.mock.patch.object(weir.cupy, "_Memory", collected(weir.cupy._Memory)),
                      unittest.mock.patch.object(weir._allocator, "Allocator", collected(weir.Allocator))):
            state.memories.clear()
            state.pinned = None
            weir._allocator._shared.pop((0, state.options), None)
            thread = threading.Thread(target=work, args=(patch,), daemon=True)  # it does not end where it waits for itself
            thread.start()
            thread.join(30)
        self.assertEqual(ended, [3] * 4)
        nested.clear()
        gc.collect()
        self.assertEqual((self.live(), weir.cupy.pinned_stats().blocks.current), (0, 0))

    def test_no_bytes_need_no_memory(self):
        weir.cupy.enable()
        before = weir.cupy.stats().allocations
        self.assertEqual((self.fake.empty(0).ptr, self.fake.empty_pinned(0).ptr), (0, 0))
        self.assertEqual(weir.cupy.stats().allocations, before)

    def test_out_of_memory_is_an_error_of_python_weir_and_cupy(self):
        weir.cupy.enable(options="heap_limit=64MiB")
        held = self.fake.empty(40 * MIB)
        with self.assertRaises(MemoryError) as caught:
            self.fake.empty(40 * MIB)
        self.assertIsInstance(caught.exception, weir.OutOfMemory)
        self.assertIsInstance(caught.exception, self.cupy.cuda.memory.OutOfMemoryError)
        self.assertIn("out_of_memory", str(caught.exception))
        self.assertIs(type(pickle.loads(pickle.dumps(caught.exception))), weir.OutOfMemory)
        del held
        self.fake.empty(40 * MIB)

    def test_garbage_is_collected_before_memory_is_out(self):
        weir.cupy.enable(options={"heap_limit": "64MiB", "heap_thread_cache": 0})
        gc.disable()
        self.addCleanup(gc.enable)
        cycle = [self.fake.empty(40 * MIB)]
        cycle.append(cycle)
        del cycle
        self.assertEqual(self.live(), 1)
        again = self.fake.empty(40 * MIB)
        self.assertEqual(self.live(), 1)
        del again

    def test_policies_and_options_are_checked(self):
        weir.cupy.enable(policy="compact")
        compact = weir.cupy.allocator()
        weir.cupy.enable(policy="throughput", options={"heap_limit_percent": 50})
        self.assertIsNot(weir.cupy.allocator(), compact)
        self.assertRaises(weir.InvalidArgument, weir.cupy.enable, policy="best")
        self.assertIn("heap_policy=throughput", weir.cupy._state.options)  # as it was
        self.fake.empty(MIB)

    def test_the_report_says_who_holds_what(self):
        weir.cupy.enable()
        weir.cupy.allocator().reset_peaks()
        with weir.tag("model"):
            array = self.fake.empty(3 * MIB)
        report = weir.cupy.report()
        self.assertIn("weir under CuPy, device 0", report)
        self.assertIn("live: 3 MiB in 1 blocks", report)
        self.assertIn("tag 'model': 3 MiB in 1 blocks, peak 3 MiB", report)
        del array
        self.assertGreater(weir.cupy.empty_cache(), 0)

    def test_the_drivers_pool_for_cupy(self):
        pool = weir.cupy.stream_pool(maximum=64 * MIB)
        self.assertIsInstance(pool, self.cupy.cuda.MemoryAsyncPool)
        self.assertEqual(len(pool.handles), 1)
        self.assertTrue(all(isinstance(handle, int) and handle for handle in pool.handles))

    def test_one_place_may_use_weir_alone(self):
        array = weir.cupy.malloc(MIB)
        self.assertEqual(weir.cupy.allocator().size_of(array.ptr), MIB)
        self.assertFalse(weir.cupy.is_enabled())


class Streams(Cupy):
    """How long weir keeps hold of CuPy's streams."""

    def setUp(self):
        super().setUp()
        self.calls = []
        for name in ("watch", "unwatch", "close"):
            of = weir.cupy._Stream if name == "close" else weir.cupy._Watches
            patch = unittest.mock.patch.object(of, name, staticmethod(
                lambda handle, name=name: self.calls.append((name, handle))))
            patch.start()
            self.addCleanup(patch.stop)
        patch = unittest.mock.patch.object(weir.cupy._Stream, "watches", weir.cupy._Watches())
        patch.start()
        self.addCleanup(patch.stop)
        patch = unittest.mock.patch.object(weir.cupy._Stream, "kept", {})
        self.kept = patch.start()
        self.addCleanup(patch.stop)

    def entry(self):
        self.stream = types.SimpleNamespace(ptr=0x70)
        entry = weir.cupy._Stream(7, self.stream)
        self.assertEqual((entry.handle, entry.native, entry.stream, entry.users, entry.watched, self.kept),
                         (7, 0x70, self.stream, set(), False, {7: entry}))
        return entry

    def test_it_is_let_go_of_when_forgotten_and_unused(self):
        entry = self.entry()
        entry.begin()
        self.assertTrue(entry.take(1) and entry.take(2))
        entry.leave(1)
        entry.forget()
        self.assertEqual((self.calls, self.kept), ([("watch", 7)], {7: entry}))
        entry.leave(2)
        self.assertEqual((self.calls, self.kept, entry.stream),
                         ([("watch", 7), ("unwatch", 7), ("close", 7)], {}, None))
        entry.leave(2)
        entry.forget()
        self.assertEqual(len(self.calls), 3)  # once is enough

    def test_it_is_let_go_of_when_unused_and_forgotten(self):
        entry = self.entry()
        entry.begin()
        entry.take(1)
        entry.leave(1)
        self.assertEqual((self.calls, entry.stream), ([("watch", 7)], self.stream))
        entry.forget()
        self.assertEqual(self.calls, [("watch", 7), ("unwatch", 7), ("close", 7)])
        self.assertFalse(entry.take(3))  # too late
        entry.leave(3)
        self.assertEqual((len(self.calls), self.kept), (3, {}))

    def test_one_that_was_never_watched_is_only_closed(self):
        self.entry().forget()
        self.assertEqual(self.calls, [("close", 7)])

    def test_somebody_may_come_while_it_is_left(self):
        entry = self.entry()

        class Kept(dict):
            def pop(self, *arguments):
                found = super().pop(*arguments)
                entry.users.add(5)
                return found

        weir.cupy._Stream.kept = Kept(self.kept)
        entry.forget()
        self.assertEqual((self.calls, weir.cupy._Stream.kept, entry.stream), ([], {7: entry}, self.stream))

    def test_somebody_may_come_and_leave_while_it_is_left(self):
        entry = self.entry()

        class Kept(dict):
            def pop(self, *arguments):
                found = super().pop(*arguments)
                if not pops:
                    entry.users.add(5)
                pops.append(found)
                return found

            def __setitem__(self, *arguments):
                super().pop(7, None)
                entry.leave(5)  # finds nothing to let go of
                super().__setitem__(*arguments)

        pops = []
        weir.cupy._Stream.kept = Kept(self.kept)
        entry.forget()
        self.assertEqual((self.calls, weir.cupy._Stream.kept, entry.stream), ([("close", 7)], {}, None))

    def test_a_stream_is_watched_until_the_last_who_needs_it(self):
        memories, stream = (self.memory(), weir.cupy._Memory(0, "")), self.fake.Stream()
        entries = [memory.take_stream(stream, 1) for memory in memories]
        self.assertEqual(self.calls, [("watch", 100), ("watch", 101)])
        entries[0].leave(1)
        memories[0].forget_stream(stream)
        self.assertEqual(self.calls[2:], [("close", 100)])
        entries[1].leave(1)
        memories[1].forget_stream(stream)
        self.assertEqual(self.calls[3:], [("unwatch", 101), ("close", 101)])

    def test_somebody_may_begin_to_watch_while_another_ends_it(self):
        watches = weir.cupy._Watches()
        watches.begin(0x70, 1, 7)
        with unittest.mock.patch.object(watches, "unwatch", lambda handle: (
                self.calls.append(("unwatch", handle)), watches.begin(0x70, 2, 8)), create=True):
            watches.end(0x70, 1, 7)
        self.assertEqual(self.calls, [("watch", 7), ("unwatch", 7), ("watch", 8), ("watch", 7)])
        watches.begin(0x90, 3, 9)
        watches.end(0x70, 2, 8)
        self.assertEqual((self.calls[4:], watches.users), ([("watch", 9), ("unwatch", 8)], {(0x90, 3)}))

    def memory(self):
        self.wrapped = iter(range(100, 300))
        patch = unittest.mock.patch.object(weir._native.lib, "weir_stream_wrap", self.wrap)
        patch.start()
        self.addCleanup(patch.stop)
        return weir.cupy._Memory(0, "")

    def wrap(self, runtime, device, native, handle):
        self.assertEqual((runtime, device), (self.fake.runtime._handle, 0))
        self.natives = getattr(self, "natives", []) + [native]
        handle._obj.value = next(self.wrapped)

    def test_a_stream_is_met_once(self):
        memory, stream = self.memory(), self.fake.Stream()
        entry = memory.take_stream(stream, 1)
        self.assertIs(memory.take_stream(stream, 2), entry)
        self.assertEqual((entry.handle, entry.stream, entry.users, self.natives), (100, stream, {1, 2}, [stream.ptr]))
        self.assertEqual(self.calls, [("watch", 100)])
        memory.forget_stream(stream)
        memory.forget_stream(stream)  # nobody knows it any more
        self.assertEqual(self.calls, [("watch", 100)])
        entry.leave(1)
        entry.leave(2)
        self.assertEqual(self.calls, [("watch", 100), ("unwatch", 100), ("close", 100)])

    def test_so_many_are_remembered_the_oldest_are_forgotten(self):
        memory, streams = self.memory(), [self.fake.Stream() for _ in range(66)]
        for stream in streams[:64]:
            memory.take_stream(stream, 1).leave(1)
        self.assertEqual([call for call in self.calls if call[0] != "watch"], [])
        for stream in streams[64:]:
            memory.take_stream(stream, 1).leave(1)
        self.assertEqual([call for call in self.calls if call[0] != "watch"],
                         [("unwatch", 100), ("close", 100), ("unwatch", 101), ("close", 101)])
        self.assertEqual(list(memory._streams), [id(stream) for stream in streams[2:]])

    def test_another_thread_may_be_quicker(self):
        memory, stream = self.memory(), self.fake.Stream()
        first = memory.take_stream(stream, 1)
        self.assertIs(memory._meet(stream), first)
        self.assertEqual(self.calls, [("watch", 100), ("close", 101)])  # the second goes again

    def test_one_that_was_just_let_go_of_is_met_again(self):
        memory, stream = self.memory(), self.fake.Stream()
        entry = memory.take_stream(stream, 1)
        entry.leave(1)
        entry.forget()  # though the memory knows it still
        self.assertEqual(self.kept, {})

        def take(user, real=entry.take):
            memory._streams.clear()  # as whoever forgets it does first
            return real(user)

        with unittest.mock.patch.object(weir.cupy._Stream, "take", lambda self, user: (
                take(user) if self is entry else self.users.add(user) is None)):
            again = memory.take_stream(stream, 2)
        self.assertIsNot(again, entry)
        self.assertEqual((entry.users, again.handle, again.users), (set(), 101, {2}))

    def test_streams_that_cannot_be_had(self):
        memory = self.memory()
        self.assertIsNone(memory.take_stream(unittest.mock.Mock(ptr=5), 1))  # not CuPy's own
        with unittest.mock.patch.object(weir._native.lib, "weir_stream_wrap", side_effect=weir.Error("captured")):
            self.assertIsNone(memory.take_stream(self.fake.Stream(), 1))
        self.assertEqual((self.calls, memory._streams), ([], {}))


class Requests(Cupy):
    """What CuPy asks for, and what weir is asked for then."""

    def asked(self, stream):
        """The call for 1000 bytes on CuPy's current stream."""
        calls = []
        with unittest.mock.patch.multiple(
                weir._native.lib,
                weir_allocator_allocate=lambda *given: self.serve(calls, "allocate", *given),
                weir_allocator_allocate_native=lambda *given: self.serve(calls, "native", *given)):
            owner = weir.cupy._allocate(weir.cupy._current_state().memory(0), 1000, stream)
        self.assertEqual((owner.ptr, owner.allocator), (0x4000, weir.cupy.allocator()._handle))
        owner.ptr = 0
        [(name, allocator, size, on)] = calls
        self.assertEqual((allocator, size), (owner.allocator, 1000))
        return name, on, owner.stream

    def serve(self, calls, name, allocator, size, on, pointer):
        calls.append((name, allocator, size, on))
        pointer._obj.value = 0x4000

    def test_each_kind_of_stream_has_its_call(self):
        weir.cupy.enable()
        Stream = unittest.mock.Mock
        for native in (0, 1):  # the legacy stream by both its names
            self.assertEqual(self.asked(Stream(ptr=native)), ("allocate", None, None))
        self.assertEqual(self.asked(Stream(ptr=2)), ("native", 2, None))  # a thread's own
        self.assertEqual(self.asked(Stream(ptr=4711)), ("native", 4711, None))  # somebody else's
        stream = self.fake.Stream()
        name, on, entry = self.asked(stream)
        self.assertEqual((name, on, entry.stream), ("allocate", entry.handle, stream))

    def test_a_threads_own_stream_is_not_kept(self):
        weir.cupy.enable()
        with unittest.mock.patch.object(weir.cupy._Memory, "take_stream") as take:
            self.asked(unittest.mock.Mock(ptr=2))
            self.asked(unittest.mock.Mock(ptr=0))
        take.assert_not_called()

    def test_an_array_is_what_cupy_expects(self):
        weir.cupy.enable()
        array = self.fake.empty(1000)
        self.assertEqual((array.ptr, array.mem.ptr, array.mem.size, array.device_id), (array.mem._owner.ptr,) * 2 + (1000, 0))
        for size in (0, -5):
            nothing = self.fake.empty(size)
            self.assertEqual((nothing.ptr, nothing.mem.size, nothing.mem._owner, nothing.device_id), (0, 0, None, 0))
            pinned = self.fake.empty_pinned(size)
            self.assertEqual((pinned.ptr, pinned.size(), int(pinned.mem)), (0, 0, 0))
        self.assertEqual(self.fake.empty(1).mem.size, 1)
        pinned = self.fake.empty_pinned(1)
        self.assertEqual((pinned.size(), int(pinned.mem)), (1, pinned.ptr))
        self.assertNotEqual(pinned.ptr, 0)

    def test_one_that_could_not_be_made_frees_nothing(self):
        frees = []
        owner = weir.cupy._Owner(5)
        self.assertEqual((owner.ptr, owner.allocator, owner.stream), (0, 5, None))
        owner.__del__(free=lambda *given: frees.append(given), process=lambda: owner.process)
        self.assertEqual(frees, [])
        owner.ptr, owner.stream = 0x4000, unittest.mock.Mock()
        owner.__del__(free=lambda *given: frees.append(given), process=lambda: owner.process + 1)
        self.assertEqual((frees, owner.stream.mock_calls), ([], []))
        owner.__del__(free=lambda *given: frees.append(given), process=lambda: owner.process)
        self.assertEqual((frees, owner.stream.mock_calls), ([(5, 0x4000)], [unittest.mock.call.leave(id(owner))]))
        owner.ptr, owner.stream = 0, None

    def test_garbage_is_collected_before_pinned_memory_is_out(self):
        weir.cupy.enable()
        pool, collected = weir.cupy._current_state().pinned_pool(), []
        self.assertIs(weir.cupy._current_state().pinned_pool(), pool)
        block = pool.allocate(MIB)
        with unittest.mock.patch.object(weir.PinnedPool, "allocate", side_effect=[weir.OutOfMemory("full"), block]) as allocate, \
                unittest.mock.patch.object(weir.cupy.gc, "collect", lambda: collected.append(True)):
            pinned = self.fake.empty_pinned(MIB)
        self.assertEqual((pinned.ptr, pinned.size(), collected, allocate.mock_calls),
                         (block.ptr, MIB, [True], [unittest.mock.call(MIB)] * 2))
        with unittest.mock.patch.object(weir.PinnedPool, "allocate", side_effect=weir.OutOfMemory("full")):
            self.assertRaises(weir.OutOfMemory, self.fake.empty_pinned, MIB)

    def test_the_error_says_what_cupys_would(self):
        weir.cupy.enable(options="heap_limit=65MiB")
        held = self.fake.empty(40 * MIB)
        with self.assertRaises(weir.OutOfMemory) as caught:
            self.fake.empty(40 * MIB)
        problem = caught.exception
        self.assertEqual((problem._size, problem._total, problem._limit, problem.code, problem.name, problem.native),
                         (40 * MIB, 40 * MIB, 0, 4, "out_of_memory", problem.native))
        self.assertIsNone(problem.__cause__)
        self.assertTrue(problem.__suppress_context__)
        again = pickle.loads(pickle.dumps(problem))
        self.assertEqual((str(again), again.code, again.name, again.native),
                         (str(problem), problem.code, problem.name, problem.native))
        del self.cupy.cuda.memory.OutOfMemoryError  # a version that has none
        with self.assertRaises(weir.OutOfMemory) as caught:
            self.fake.empty(40 * MIB)
        self.assertIs(type(caught.exception), weir.OutOfMemory)
        del held

    def test_what_was_before_comes_back(self):
        before = self.fake.allocator
        weir.cupy.enable(pinned=False)
        self.assertEqual((self.fake.allocator, self.fake.pinned_allocator), (weir.cupy.malloc, self.fake.pinned_pool.malloc))
        weir.cupy.enable()
        self.assertEqual(self.fake.pinned_allocator, weir.cupy.pinned_malloc)
        weir.cupy.disable()
        self.assertEqual((self.fake.allocator, self.fake.pinned_allocator, weir.cupy.is_enabled()),
                         (before, self.fake.pinned_pool.malloc, False))
        weir.cupy.enable(pinned=False)
        theirs = self.fake.pinned_allocator = object()  # not weir's to restore
        weir.cupy.disable()
        self.assertIs(self.fake.pinned_allocator, theirs)
        self.fake.allocator = other = object()
        weir.cupy.disable()  # nothing: it is not enabled
        self.assertIs(self.fake.allocator, other)

    def test_options_become_text(self):
        weir.cupy.enable()
        self.assertEqual(weir.cupy._state.options, "heap_detect_captures=on")
        state = weir.cupy._state
        weir.cupy.enable(policy="compact", options={"heap_limit": "77MiB"})
        self.assertEqual(weir.cupy._state.options, "heap_detect_captures=on,heap_limit=77MiB,heap_policy=compact")
        self.assertIsNot(weir.cupy._state, state)
        weir.cupy.enable()
        self.assertIs(weir.cupy._state, state)
        with unittest.mock.patch.multiple(weir.cupy, _state=None, _states={}):
            made = weir.cupy._current_state()
            self.assertEqual((made.options, weir.cupy._states), ("heap_detect_captures=on", {made.options: made}))
            self.assertIs(weir.cupy._current_state(), made)

    def test_devices_have_memory_of_their_own(self):
        weir.cupy.enable()
        memories = {0: weir.cupy._current_state().memory(0), 1: unittest.mock.Mock()}
        memories[1].allocator.stats.return_value, memories[1].allocator.empty_cache.return_value = "stats", 7
        with unittest.mock.patch.object(weir.cupy._current_state(), "memories", memories):
            self.assertIs(weir.cupy.allocator(), memories[0].allocator)
            self.assertEqual((weir.cupy.stats(1), weir.cupy.empty_cache(1)), ("stats", 7))
            self.fake.device = 1  # CuPy's current one
            self.addCleanup(setattr, self.fake, "device", 0)
            self.assertIs(weir.cupy.allocator(), memories[1].allocator)
            self.assertEqual(weir.cupy.stats(), "stats")
            self.assertIs(weir.cupy.allocator(0), memories[0].allocator)
            with unittest.mock.patch.object(weir.cupy, "allocator_report") as report:
                weir.cupy.report(0)
                weir.cupy.report()
            self.assertEqual(report.mock_calls, [unittest.mock.call(memory.allocator, "CuPy") for memory in memories.values()])

    def test_streams_are_watched_on_their_device(self):
        weir.cupy.enable()
        devices = []

        def memory(device):
            devices.append(device)
            return weir.cupy._State.memory(weir.cupy._current_state(), 0)

        calls = []
        stream = self.fake.Stream()

        def noted(name):
            return staticmethod(lambda handle: calls.append((name, weir._native.number(
                weir._native.lib.weir_stream_get_native, handle, kind=ctypes.c_void_p))))

        with unittest.mock.patch.object(weir.cupy._current_state(), "memory", memory), \
                unittest.mock.patch.object(weir.cupy._Watches, "watch", noted("watch")), \
                unittest.mock.patch.object(weir.cupy._Watches, "unwatch", noted("unwatch")):
            for device_id, device in ((3, 3), (0, 0), (-1, 9)):
                stream.device_id, self.fake.device = device_id, 9
                weir.cupy.watch_stream(stream)
                self.assertEqual(devices.pop(), device)
            weir.cupy.watch_stream(unittest.mock.Mock(spec=["ptr"], ptr=stream.ptr))
            self.assertEqual(devices, [9])
            self.fake.device = 0
            known = weir.cupy._watched[stream.ptr]
            weir.cupy.release_stream(stream)
        self.assertEqual(calls, [("watch", stream.ptr)] * 4 + [("unwatch", stream.ptr)])
        self.assertEqual((weir.cupy._watched, known.closed), ({}, True))

    def test_released_streams_are_forgotten_by_all(self):
        weir.cupy.enable()
        memories = {0: unittest.mock.Mock(), 1: unittest.mock.Mock()}
        with unittest.mock.patch.object(weir.cupy._current_state(), "memories", memories), \
                unittest.mock.patch.dict(weir.cupy._states, {"": weir.cupy._current_state()}, clear=True):
            for native in (0, 1, 2, 3):
                weir.cupy.release_stream(native)
        call = unittest.mock.call
        for memory in memories.values():
            self.assertEqual(memory.mock_calls, [call.forget_stream(0), call.forget_stream(1), call.forget_stream(2),
                                                 call.forget_stream(3), call.allocator.release_stream(3)])

    def test_the_drivers_pools_are_as_asked_for(self):
        made = []
        with unittest.mock.patch.object(weir.cupy, "StreamPool", side_effect=lambda device, **given: made.append(
                (device.runtime._handle, device.number, given)) or unittest.mock.Mock(handle=40 + len(made))):
            weir.cupy.stream_pool()
            pool = weir.cupy.stream_pool(initial=MIB, maximum=4 * MIB, threshold=2 * MIB)
        runtime = self.fake.runtime._handle
        self.assertEqual(made, [(runtime, 0, {"initial": 0, "maximum": 0, "threshold": None}),
                                (runtime, 0, {"initial": MIB, "maximum": 4 * MIB, "threshold": 2 * MIB})])
        self.assertEqual(pool.handles, [42])
        self.assertEqual([pool.handle for pool in weir.cupy._stream_pools[-2:]], [41, 42])  # they live on
        del weir.cupy._stream_pools[-2:]


class Exit(Case):
    PROGRAM = """
import weir, weir.cupy, fake_cupy
fake = fake_cupy.Fake()
fake.runtime = weir.Runtime.default()
cupy = fake.install()
weir.cupy.enable()
stream = fake.Stream()
with stream:
    arrays = [fake.empty(1 << 20) for _ in range(4)] + [fake.empty_pinned(4096)]
fake.arrays = arrays
"""

    def test_arrays_may_outlive_everything(self):
        for end in ("", "del stream, fake", "weir.cupy.disable()", "import sys; sys.modules.clear()",
                    "cycle = [arrays]; cycle.append(cycle); del arrays, fake, cupy, stream"):
            with self.subTest(end=end):
                self.expect_silence(run(self.PROGRAM + end))

    def test_a_forked_child_leaves_arrays_alone(self):
        self.expect_silence(run(self.PROGRAM + """
import os, sys
child = os.fork()
if child == 0:
    arrays.clear(); fake.arrays = None
    sys.exit(0)
print(os.waitpid(child, 0)[1], weir.cupy.stats().blocks.current)
"""), "0 4\n")

    def test_a_forked_child_that_enables_it_itself_frees_its_arrays(self):
        self.expect_silence(run("""
import os, fake_cupy, weir, weir.cupy
child = os.fork()
if child == 0:
    fake = fake_cupy.Fake()
    fake.runtime = weir.Runtime.default()
    fake.install()
    weir.cupy.enable(options="heap_limit=256MiB")
    for _ in range(20):
        fake.empty(100 << 20)
        fake.empty_pinned(1 << 20)
    print(weir.cupy.stats().blocks.current, weir.cupy.pinned_stats().blocks.current, flush=True)
    os._exit(0)
print(os.waitpid(child, 0)[1])
"""), "0 0\n0\n")


if __name__ == "__main__":
    unittest.main()
