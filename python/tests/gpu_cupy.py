#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""weir.cupy under the real CuPy on a real GPU: right results on streams, errors, graphs, no leaks.

Ends with 77, which ctest takes as skipped, where there is no CuPy or no GPU.
"""

import gc
import os
import subprocess
import sys
import threading
import unittest
import warnings
from pathlib import Path

PYTHON = str(Path(__file__).resolve().parents[1])
sys.path.insert(0, PYTHON)

try:
    import cupy
    import numpy
    cupy.cuda.runtime.getDeviceCount()
except Exception as problem:  # any of the ways in which CuPy is not there
    print(f"skipped: CuPy cannot be used here: {problem!r}")
    sys.exit(77)

import weir
import weir.cupy

MIB = 1 << 20


def values(seed, count=1 << 18):
    return numpy.random.default_rng(seed).standard_normal(count).astype(numpy.float32)


def setUpModule():
    """What CuPy keeps for good is made before anybody counts."""
    weir.cupy.enable()
    matrix = cupy.ones((512, 512), dtype=cupy.float32)
    cupy.asnumpy(cupy.sort((matrix @ matrix).ravel()) + cupy.cumsum(matrix.ravel()))
    cupy.cuda.Device().synchronize()


class Cupy(unittest.TestCase):
    def setUp(self):
        self.reported = weir.reported_errors()
        weir.cupy.enable()
        self.before = self.live()

    def tearDown(self):
        cupy.cuda.Device().synchronize()
        gc.collect()
        self.assertEqual(self.live(), self.before)
        self.assertEqual(weir.reported_errors(), self.reported)
        weir.cupy.disable()

    def live(self):
        return weir.cupy.stats().blocks.current

    def test_arrays_are_computed_right(self):
        host = values(1)
        array = cupy.asarray(host)
        self.assertEqual(weir.cupy.allocator().size_of(array.data.ptr), host.nbytes)
        result = cupy.asnumpy(cupy.sort(array * 2 + 1))
        numpy.testing.assert_array_equal(result, numpy.sort(host * numpy.float32(2) + numpy.float32(1)))
        matrix = cupy.asarray(host.reshape(512, 512))
        numpy.testing.assert_allclose(cupy.asnumpy(matrix @ matrix), host.reshape(512, 512)
                                      @ host.reshape(512, 512), rtol=1e-2, atol=1e-2)

    def test_streams_do_not_disturb_each_other(self):
        streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(4)]
        host = [values(seed) for seed in range(4)]
        wanted = [cupy.asnumpy(cupy.cumsum(cupy.asarray(each) * 3)) for each in host]
        for _ in range(30):
            results = []
            for stream, each in zip(streams, host):
                with stream:
                    array = cupy.asarray(each)
                    for _ in range(4):
                        array = array * 1.0  # each temporary is freed at once and reused
                    results.append(cupy.cumsum(array * 3))
            for stream, result, right in zip(streams, results, wanted):
                with stream:
                    # CuPy adds up in no fixed order; memory that was reused too early is far off.
                    numpy.testing.assert_allclose(cupy.asnumpy(result), right, rtol=1e-3, atol=1e-2)

    def test_threads_have_streams_of_their_own(self):
        wrong = []

        def work(seed):
            try:
                host = values(seed)
                with cupy.cuda.Stream(non_blocking=True) as stream:
                    for _ in range(20):
                        array = cupy.asarray(host) + 1
                        if not (cupy.asnumpy(array) == host + 1).all():
                            wrong.append(seed)
                    stream.synchronize()
            except BaseException as problem:
                wrong.append(problem)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])

    def test_streams_may_come_and_go(self):
        for seed in range(200):
            with cupy.cuda.Stream(non_blocking=True):
                array = cupy.arange(1000) * seed
            del array
        gc.collect()
        self.assertEqual(int(cupy.arange(10).sum()), 45)
        weir.cupy.empty_cache()

    def test_out_of_memory_is_a_memory_error_and_passes(self):
        allocator = weir.cupy.allocator()
        allocator.limit = allocator.stats().reserved.current + 256 * MIB
        try:
            held = cupy.zeros(128 * MIB, dtype=cupy.uint8)
            with self.assertRaises(MemoryError) as caught:
                cupy.zeros(512 * MIB, dtype=cupy.uint8)
            self.assertIsInstance(caught.exception, weir.OutOfMemory)
            self.assertIsInstance(caught.exception, cupy.cuda.memory.OutOfMemoryError)
            self.assertEqual(int(held.sum()), 0)  # nothing else broke
            del held
            cupy.zeros(200 * MIB, dtype=cupy.uint8)
        finally:
            allocator.limit = None

    def test_a_captured_graph_keeps_its_memory(self):
        stream = cupy.cuda.Stream(non_blocking=True)
        host = values(7)
        with stream:
            array, result = cupy.asarray(host), cupy.empty_like(cupy.asarray(host))
            cupy.multiply(array, 2, out=result)  # compiled before the capture
            warm = (array + 1) * 3
            result[...] = warm
            stream.synchronize()
            stream.begin_capture()
            temporary = array + 1       # memory of the graph
            result[...] = temporary * 3
            del temporary
            graph = stream.end_capture()
            others = []
            for _ in range(3):
                others.append(cupy.full(host.size, -1, dtype=cupy.float32))
                result.fill(0)
                graph.launch(stream)
                stream.synchronize()
                numpy.testing.assert_array_equal(cupy.asnumpy(result), cupy.asnumpy(warm))
            for other in others:
                self.assertTrue(bool((other == -1).all()))
        del graph

    def test_pinned_memory_is_weirs(self):
        before = weir.cupy.pinned_stats()
        pinned = cupy.cuda.alloc_pinned_memory(MIB)
        self.assertEqual(weir.cupy.pinned_stats().allocations, before.allocations + 1)
        host = numpy.frombuffer(pinned, numpy.uint8, MIB)
        host[...] = numpy.arange(MIB) % 251
        array = cupy.empty(MIB, numpy.uint8)
        with cupy.cuda.Stream(non_blocking=True) as stream:
            array.set(host, stream)
            stream.synchronize()
        numpy.testing.assert_array_equal(cupy.asnumpy(array), host)
        del host, pinned, array
        cupy.cuda.Device().synchronize()
        cupy.cuda.alloc_pinned_memory(512)  # here CuPy lets go of what its copies are done with
        self.assertLessEqual(weir.cupy.pinned_stats().blocks.current, before.blocks.current)

    def test_blocks_are_arrays_without_a_copy(self):
        device = weir.cupy.allocator().device
        with weir.Stream(device) as stream:
            block = weir.cupy.allocator().allocate(4096, stream)
            stream.fill(block.ptr, 7, block.nbytes)
            array = cupy.asarray(block)
            self.assertEqual((array.data.ptr, int(array.sum())), (block.ptr, 7 * 4096))
            cupy.cuda.Device().synchronize()
            del array
            block.free()

    def test_the_drivers_pool(self):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # CuPy calls it experimental
            pool = weir.cupy.stream_pool(maximum=1 << 30)
            with cupy.cuda.using_allocator(pool.malloc):
                array = cupy.arange(1 << 20)
                self.assertEqual(int(array.sum()), (1 << 20) * ((1 << 20) - 1) // 2)
                self.assertGreater(weir.cupy._stream_pools[0].stats().reserved.current, 0)
                del array
                cupy.cuda.get_current_stream().synchronize()

    def test_every_policy_computes_the_same(self):
        host = values(11)
        wanted = numpy.sort(host)
        for policy in ("balanced", "throughput", "compact", "never_move", "classic", "classic_expandable"):
            weir.cupy.enable(policy=policy)
            arrays = [cupy.asarray(host[: 1 + step * 4096]) for step in range(40)]
            del arrays[::2]
            numpy.testing.assert_array_equal(cupy.asnumpy(cupy.sort(cupy.asarray(host))), wanted)
            del arrays
            gc.collect()
            self.assertEqual(self.live(), 0, policy)
        weir.cupy.enable()
        self.assertIn("weir under CuPy", weir.cupy.report())

    def test_exit_with_arrays_alive_is_silent(self):
        program = """
import cupy, weir.cupy
weir.cupy.enable()
stream = cupy.cuda.Stream(non_blocking=True)
with stream:
    arrays = [cupy.arange(1 << 18) for _ in range(8)]
    pinned = cupy.cuda.alloc_pinned_memory(4096)
cycle = [arrays, stream]
cycle.append(cycle)
"""
        for end in ("", "del arrays, stream, cycle", "weir.cupy.disable()"):
            ran = subprocess.run([sys.executable, "-c", program + end], capture_output=True, text=True,
                                 timeout=120, check=False, env={**os.environ, "PYTHONPATH": os.pathsep.join(
                                     filter(None, [PYTHON, os.environ.get("PYTHONPATH")]))})
            self.assertEqual((ran.returncode, ran.stdout), (0, ""), ran.stderr)
            for sign in ("Traceback", "Exception ignored", "terminate", "weir:"):
                self.assertNotIn(sign, ran.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
