# SPDX-License-Identifier: Apache-2.0
"""MemPools over other allocators, one that can be suspended and NCCL's; no_split and use_on_oom."""

import atexit
import ctypes
import gc
import shutil
import subprocess
import tempfile
import threading
import unittest
from pathlib import Path

import support
import torch
from support import GIB, GPU, MIB, AllocatorTest, allocated, block, reserved

HERE = Path(__file__).resolve().parent


def compile_library():
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = str(Path(folder) / "suspendable_allocator.so")
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", path, str(HERE / "suspendable_allocator.c"), "-ldl"],
                   check=True)
    return path


class ForeignTest(AllocatorTest):
    """Begins and ends with nothing of the foreign allocator's, and without trouble in it."""

    @classmethod
    def setUpClass(cls):
        if shutil.which("cc") is None:
            raise unittest.SkipTest("needs a C compiler")
        torch.empty(1, device=GPU)
        if not hasattr(ForeignTest, "path"):
            ForeignTest.path = compile_library()
            library = ForeignTest.library = ctypes.CDLL(ForeignTest.path)
            for name in ("allocations", "frees", "troubles"):
                getattr(library, "suspendable_" + name).restype = ctypes.c_long
            library.suspendable_size_at.restype = ctypes.c_ulonglong
            library.suspendable_size_at.argtypes = [ctypes.c_ulonglong]
            library.suspendable_held.restype = ctypes.c_ulonglong
            library.suspendable_refuse.argtypes = [ctypes.c_long]
            library.nccl_allocation_count.restype = ctypes.c_long
            library.nccl_free_count.restype = ctypes.c_long

    def setUp(self):
        super().setUp()
        self.assertEqual(self.held(), 0)
        self.troubles = self.library.suspendable_troubles()

    def tearDown(self):
        torch.cuda.set_per_process_memory_fraction(1.0)
        self.library.suspendable_refuse(0)
        super().tearDown()
        self.assertEqual(self.held(), 0)
        self.assertEqual(self.library.suspendable_troubles(), self.troubles)

    def make_pool(self, **arguments):
        allocator = torch.cuda.memory.CUDAPluggableAllocator(self.path, "suspendable_alloc", "suspendable_free")
        pool = torch.cuda.MemPool(allocator.allocator(), **arguments)
        return pool

    def held(self):
        return self.library.suspendable_held()

    def limit_to(self, more):
        """No more than so many bytes beyond what is reserved now."""
        torch.cuda.empty_cache()
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction((reserved() + more + 4096) / total)


def inside(pool, pointer):
    return any(segment["address"] <= pointer < segment["address"] + segment["total_size"]
               for segment in pool.snapshot())


class ForeignPools(ForeignTest):
    def test_tensors_lie_in_the_allocators_memory(self):
        pool = self.make_pool()
        before = self.library.suspendable_allocations()
        self.assertEqual(self.held(), 0)
        with torch.cuda.use_mem_pool(pool):
            x = torch.arange(3 * MIB, device=GPU, dtype=torch.int32)
            y = x + 1
        self.assertEqual(self.library.suspendable_allocations(), before + 2)
        self.assertEqual(self.held(), 24 * MIB)
        self.assertEqual(self.library.suspendable_size_at(x.data_ptr()), 12 * MIB)
        self.assertEqual(self.library.suspendable_size_at(y.data_ptr()), 12 * MIB)
        self.assertTrue(torch.equal(y.cpu(), torch.arange(1, 3 * MIB + 1, dtype=torch.int32)))
        outside = block(12 * MIB)
        self.assertEqual(self.held(), 24 * MIB)
        self.assertFalse(inside(pool, outside.data_ptr()))
        del x, y, outside

    def test_segments_have_torchs_sizes_and_are_split(self):
        pool = self.make_pool()
        with torch.cuda.use_mem_pool(pool):
            tensors = [block(MIB)]
            self.assertEqual(len(pool.snapshot()), 1)
            tensors.append(block(MIB))
            self.assertEqual(len(pool.snapshot()), 1)
            tensors.append(block(MIB))
            self.assertEqual(len(pool.snapshot()), 2)
            self.assertEqual(self.held(), 4 * MIB)
            tensors.append(block(3 * MIB))
            tensors.append(block(4 * MIB))
            self.assertEqual(self.held(), 24 * MIB)
            tensors.append(block(33 * MIB))
            self.assertEqual(self.held(), 58 * MIB)
        self.assertEqual(tensors[1].data_ptr(), tensors[0].data_ptr() + MIB)
        self.assertEqual(tensors[4].data_ptr(), tensors[3].data_ptr() + 3 * MIB)
        del tensors

    def test_snapshot_shows_its_segments(self):
        pool, other = self.make_pool(), self.make_pool()
        with torch.cuda.use_mem_pool(pool):
            x = block(3 * MIB)
            y = block(30 * MIB)
        with torch.cuda.use_mem_pool(other):
            z = block(3 * MIB)
        segments = pool.snapshot()
        self.assertEqual(sorted(segment["total_size"] for segment in segments), [20 * MIB, 30 * MIB])
        for segment in segments:
            self.assertEqual(self.library.suspendable_size_at(segment["address"]), segment["total_size"])
            self.assertEqual(segment["segment_pool_id"], pool.id)
            self.assertEqual(segment["segment_type"], "large")
            self.assertFalse(segment["is_expandable"])
        self.assertEqual(sum(segment["allocated_size"] for segment in segments), 33 * MIB)
        self.assertEqual([segment["total_size"] for segment in other.snapshot()], [20 * MIB])
        self.assertNotIn(z.data_ptr(), {each["address"] for segment in segments for each in segment["blocks"]})
        del x, y, z

    def test_counters_include_it(self):
        before, held = allocated(), reserved()
        pool = self.make_pool()
        with torch.cuda.use_mem_pool(pool):
            x = block(30 * MIB)
        self.assertEqual(allocated() - before, 30 * MIB)
        self.assertEqual(reserved() - held, 30 * MIB)
        del x
        self.assertEqual(allocated(), before)
        self.assertEqual(reserved() - held, 30 * MIB)
        del pool
        self.assertEqual(reserved(), held)

    def test_freed_memory_is_reused_and_not_given_back(self):
        pool = self.make_pool()
        with torch.cuda.use_mem_pool(pool):
            x = block(30 * MIB)
            address = x.data_ptr()
            del x
            before = self.library.suspendable_allocations()
            y = block(28 * MIB)
            self.assertEqual(y.data_ptr(), address)
            del y
        torch.cuda.empty_cache()  # the pool is held
        self.assertEqual(self.held(), 30 * MIB)
        self.assertEqual(self.library.suspendable_allocations(), before)

    @unittest.skipUnless(support.WEIR, "torch's own allocator gives back what a stream still uses")
    def test_the_memory_goes_back_with_the_pool_though_streams_are_busy(self):
        pool = self.make_pool()
        with torch.cuda.use_mem_pool(pool):
            x = torch.ones(8 * MIB, device=GPU)
        support.busy(50)
        y = x + 1
        frees = self.library.suspendable_frees()
        del x, pool
        self.assertEqual(self.library.suspendable_frees(), frees + 1)
        self.assertEqual(self.held(), 0)
        self.assertTrue(bool((y == 2).all()))
        del y

    def test_a_tensor_outlives_pool_and_allocator(self):
        allocator = torch.cuda.memory.CUDAPluggableAllocator(self.path, "suspendable_alloc", "suspendable_free")
        pool = torch.cuda.MemPool(allocator.allocator())
        with torch.cuda.use_mem_pool(pool):
            x = torch.full((4 * MIB,), 6.0, device=GPU)
            y = block(50 * MIB)
        del y
        del pool, allocator
        gc.collect()
        torch.cuda.empty_cache()
        self.assertEqual(self.held(), 16 * MIB)
        other = torch.full((4 * MIB,), 1.0, device=GPU)
        self.assertTrue(bool((x == 6).all()))
        del x
        torch.cuda.empty_cache()
        self.assertEqual(self.held(), 0)
        del other

    def test_many_pools_that_come_and_go(self):
        kept = []
        for i in range(20):
            pool = self.make_pool()
            with torch.cuda.use_mem_pool(pool):
                kept.append(torch.full((MIB,), float(i), device=GPU))
                block(25 * MIB)
            del pool
        for i, x in enumerate(kept):
            self.assertTrue(bool((x == i).all()))
        self.assertEqual(self.held(), 20 * 20 * MIB)
        kept.clear()

    def test_pools_one_inside_the_other(self):
        outer, inner = torch.cuda.MemPool(), self.make_pool()
        with torch.cuda.use_mem_pool(outer):
            a = block(20 * MIB)
            with torch.cuda.use_mem_pool(inner):
                b = block(20 * MIB)
            c = block(20 * MIB)
        self.assertEqual(self.library.suspendable_size_at(b.data_ptr()), 20 * MIB)
        self.assertEqual(len(outer.snapshot()), 2)
        self.assertEqual(len(inner.snapshot()), 1)
        self.assertTrue(inside(outer, a.data_ptr()) and inside(outer, c.data_ptr()))
        del a, b, c

    def test_another_thread_allocates_in_it(self):
        pool = self.make_pool()
        kept = []

        def work():
            with torch.cuda.use_mem_pool(pool):
                kept.append(torch.full((4 * MIB,), 9.0, device=GPU))

        with torch.cuda.use_mem_pool(self.make_pool()):
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
        self.assertEqual(self.library.suspendable_size_at(kept[0].data_ptr()), 16 * MIB)
        self.assertEqual(sum(segment["allocated_size"] for segment in pool.snapshot()), 16 * MIB)
        self.assertTrue(bool((kept[0] == 9).all()))
        kept.clear()

    def test_streams_inside_it(self):
        pool = self.make_pool()
        side = torch.cuda.Stream()
        with torch.cuda.use_mem_pool(pool):
            x = torch.ones(4 * MIB, device=GPU)
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                support.busy(30)
                y = x + 1
            x.record_stream(side)
            del x
            z = [torch.full((4 * MIB,), 8.0, device=GPU) for _ in range(3)]
        torch.cuda.synchronize()
        self.assertTrue(bool((y == 2).all()))
        del y, z

    def test_a_graph_captured_into_it(self):
        pool = self.make_pool()
        x = torch.ones(4 * MIB, device=GPU)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool.id):
            y = x * 2
            z = y + 1
        self.assertTrue(inside(pool, y.data_ptr()) and inside(pool, z.data_ptr()))
        for value in (1.0, 5.0):
            x.fill_(value)
            graph.replay()
            self.assertTrue(bool((z == 2 * value + 1).all()))
        del y, z, graph

    def test_out_of_memory_of_the_allocator(self):
        pool = self.make_pool()
        cached = block(100 * MIB)
        del cached
        self.library.suspendable_refuse(1 if support.WEIR else 0)
        with torch.cuda.use_mem_pool(pool):
            x = block(30 * MIB)  # under weir at the second time of asking; torch asks once in a scope
            self.library.suspendable_refuse(1 << 30)
            with self.assertRaises(torch.OutOfMemoryError):
                block(40 * MIB)
            self.library.suspendable_refuse(0)
            y = torch.ones(10 * MIB, device=GPU)
        self.assertTrue(bool((y == 1).all()), "no error is left behind")
        self.assertEqual(self.held(), 70 * MIB)
        del x, y

    def test_limit(self):
        pool = self.make_pool()
        self.limit_to(60 * MIB)
        with torch.cuda.use_mem_pool(pool):
            x = block(40 * MIB)
            with self.assertRaises(torch.OutOfMemoryError):
                block(30 * MIB)
        with self.assertRaises(torch.OutOfMemoryError):
            block(30 * MIB)
        self.assertEqual(self.held(), 40 * MIB)
        del x, pool
        y = block(40 * MIB)
        del y


class Suspended(ForeignTest):
    def suspend_frees(self, size):
        """Whether the card then has so much more free. Other tests use it, too: one look may deceive."""
        before = torch.cuda.mem_get_info()[0]
        self.library.suspendable_suspend(1)
        after = torch.cuda.mem_get_info()[0]
        self.library.suspendable_resume()
        return after - before >= size

    def test_data_are_right_after_suspend_and_resume(self):
        pool = self.make_pool()
        with torch.cuda.use_mem_pool(pool):
            weights = [torch.full((n * MIB,), float(n), device=GPU) for n in (1, 3, 5)]
            small = torch.arange(100, device=GPU)
            freed = torch.full((5 * MIB,), 8.0, device=GPU)
            large = block(4 * GIB)  # more than other tests take meanwhile
        del freed
        torch.cuda.synchronize()
        addresses = [each.data_ptr() for each in weights]
        self.assertTrue(any(self.suspend_frees(2 * GIB) for _ in range(5)))
        self.library.suspendable_suspend(1)
        others = [torch.full((20 * MIB,), 7.0, device=GPU) for _ in range(3)]  # meanwhile
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        self.assertTrue(all(bool((each == 7).all()) for each in others))
        self.library.suspendable_resume()
        self.assertEqual([each.data_ptr() for each in weights], addresses)
        for n, each in zip((1, 3, 5), weights):
            self.assertTrue(bool((each == n).all()))
        self.assertTrue(torch.equal(small.cpu(), torch.arange(100)))
        with torch.cuda.use_mem_pool(pool):
            again = torch.full((5 * MIB,), 4.0, device=GPU)  # cached while it was suspended
        self.assertTrue(bool((again == 4).all()))
        for n, each in zip((1, 3, 5), weights):
            self.assertTrue(bool((each == n).all()))
        del weights, small, again, others, each, large

    def test_contents_that_were_not_kept_can_be_written_anew(self):
        pool = self.make_pool()
        with torch.cuda.use_mem_pool(pool):
            cache = torch.zeros(10 * MIB, device=GPU)
        for value in (1.0, 2.0, 3.0):
            torch.cuda.synchronize()
            self.library.suspendable_suspend(0)
            self.library.suspendable_resume()
            cache.fill_(value)
            self.assertTrue(bool((cache == value).all()))
        del cache

    def test_a_pool_ends_while_it_is_suspended(self):
        pool = self.make_pool()
        with torch.cuda.use_mem_pool(pool):
            x = block(30 * MIB)
        torch.cuda.synchronize()
        self.library.suspendable_suspend(0)
        del x, pool
        gc.collect()
        torch.cuda.empty_cache()
        self.assertEqual(self.held(), 0)


class WholeSegments(ForeignTest):
    def test_segments_are_not_split(self):
        for make in (lambda: self.make_pool(no_split=True), lambda: torch.cuda.MemPool(no_split=True)):
            pool = make()
            with torch.cuda.use_mem_pool(pool):
                tensors = [torch.full((MIB,), float(i), device=GPU) for i in range(3)]
                small = block(1000)
            segments = pool.snapshot()
            self.assertEqual(sorted(segment["total_size"] for segment in segments),
                             [2 * MIB, 20 * MIB, 20 * MIB, 20 * MIB])
            self.assertTrue(all(len(segment["blocks"]) == 1 for segment in segments))
            address = tensors[1].data_ptr()
            tensors[1] = None
            with torch.cuda.use_mem_pool(pool):
                whole = torch.full((4 * MIB,), 5.0, device=GPU)
            self.assertEqual(whole.data_ptr(), address)
            self.assertEqual(len(pool.snapshot()), 4)
            self.assertTrue(bool((tensors[0] == 0).all()) and bool((tensors[2] == 2).all()))
            del tensors, small, whole, pool

    def test_a_plain_pool_has_segments_that_are_split(self):
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            x, y = block(4 * MIB), block(4 * MIB)
        self.assertEqual([segment["total_size"] for segment in pool.snapshot()], [20 * MIB])
        self.assertEqual([each["size"] for each in pool.snapshot()[0]["blocks"]], [4 * MIB, 4 * MIB, 12 * MIB])
        del x, y


class UseOnOutOfMemory(ForeignTest):
    def test_only_the_pool_that_may_helps_out(self):
        apart, helper = self.make_pool(), self.make_pool(use_on_oom=True)
        self.limit_to(80 * MIB)
        with torch.cuda.use_mem_pool(apart):
            a = block(40 * MIB)
        with torch.cuda.use_mem_pool(helper):
            b = block(40 * MIB)
        address = b.data_ptr()
        with self.assertRaises(torch.OutOfMemoryError):
            block(40 * MIB)
        del a, b
        c = block(30 * MIB)
        self.assertEqual(c.data_ptr(), address)
        self.assertTrue(inside(helper, c.data_ptr()))
        with self.assertRaises(torch.OutOfMemoryError):
            block(30 * MIB)
        del c
        with torch.cuda.use_mem_pool(helper):
            e = block(20 * MIB)
        self.assertEqual(e.data_ptr(), address)
        del e

    def test_what_is_cached_elsewhere_is_not_given_up_for_it(self):
        helper = self.make_pool(use_on_oom=True)
        with torch.cuda.use_mem_pool(helper):
            a = block(40 * MIB)
        address = a.data_ptr()
        del a
        self.limit_to(20 * MIB)
        cached = block(20 * MIB)
        del cached
        held = reserved()
        b = block(30 * MIB)  # 20 MiB of cache would not be enough, and stay
        self.assertEqual(b.data_ptr(), address)
        self.assertEqual(reserved(), held)
        del b

    def test_a_pool_that_is_gone_does_not_help(self):
        self.limit_to(40 * MIB)
        for _ in range(5):
            helper = self.make_pool(use_on_oom=True)
            with torch.cuda.use_mem_pool(helper):
                a = block(40 * MIB)
            del a, helper
            self.assertEqual(self.held(), 0)
        helper = self.make_pool(use_on_oom=True)
        with torch.cuda.use_mem_pool(helper):
            a = block(40 * MIB)
        del a
        b, c = block(20 * MIB), block(20 * MIB)
        self.assertTrue(inside(helper, b.data_ptr()) and inside(helper, c.data_ptr()))
        del b, c


class NcclPools(ForeignTest):
    def test_tensors_in_memory_of_nccls(self):
        if not self.library.nccl_is_there():
            raise unittest.SkipTest("torch loaded no libnccl.so.2 with ncclMemAlloc")
        allocator = torch.cuda.memory.CUDAPluggableAllocator(self.path, "nccl_alloc", "nccl_free")
        pool = torch.cuda.MemPool(allocator.allocator())
        before = self.library.nccl_allocation_count(), self.library.nccl_free_count()
        with torch.cuda.use_mem_pool(pool):
            x = torch.arange(4 * MIB, device=GPU, dtype=torch.float32)
            y = x * 2
        self.assertEqual(self.library.nccl_allocation_count(), before[0] + 2)
        self.assertEqual(len(pool.snapshot()), 2)
        self.assertEqual(float((y - x - x).abs().max()), 0.0)
        del x, y, pool
        self.assertEqual(self.library.nccl_free_count(), before[1] + 2)


if __name__ == "__main__":
    support.main()
