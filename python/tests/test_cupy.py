#!/usr/bin/env python3
"""weir.cupy under a stand-in for CuPy (fake_cupy.py) on a simulated GPU. gpu_cupy.py has the real one."""

import ctypes
import gc
import pickle
import sys
import threading
import unittest
import unittest.mock

from support import MIB, Case, run

import fake_cupy
import weir
import weir.cupy


class Cupy(Case):
    def setUp(self):
        super().setUp()
        self.fake = fake_cupy.Fake()
        self.fake.runtime = weir.Runtime.default()
        self.cupy = self.fake.install()
        self.addCleanup(self.fake.remove)
        self.addCleanup(weir.cupy.disable)

    def live(self):
        return weir.cupy.stats().blocks.current

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
        text = weir._allocator.unannounced_ends
        self.assertEqual((text(""), text("a=1")), ("heap_unannounced_ends=on", "heap_unannounced_ends=on,a=1"))
        with unittest.mock.patch.dict("os.environ", WEIR_HEAP_UNANNOUNCED_ENDS="off"):
            self.assertEqual(text("a=1"), "a=1")
        created = []
        with unittest.mock.patch.object(weir._allocator, "Allocator", side_effect=lambda *all: created.append(all)):
            weir._allocator.process_allocator(0, "heap_limit=77MiB")
        weir._allocator._shared.pop((0, "heap_limit=77MiB"))
        self.assertEqual([options for _, options in created], ["heap_unannounced_ends=on,heap_limit=77MiB"])

    def test_cupys_own_streams_are_watched_as_long_as_they_are_kept(self):
        calls = []
        for name in ("watch", "unwatch"):
            real = getattr(weir.cupy._Stream, name)
            self.addCleanup(setattr, weir.cupy._Stream, name, staticmethod(real))
            setattr(weir.cupy._Stream, name, staticmethod(
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


if __name__ == "__main__":
    unittest.main()
