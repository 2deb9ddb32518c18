# SPDX-License-Identifier: Apache-2.0
"""torch.cuda.MemPool and use_mem_pool(), and weir.torch.mem_pool() inside torch's own allocator."""

import gc
import threading
import unittest

import support
import torch
from support import GPU, MIB, AllocatorTest, allocated, block, reserved


def addresses_in(pool):
    return {each["address"] for segment in pool.snapshot() for each in segment["blocks"]
            if each["state"] == "active_allocated"}


class Pools(AllocatorTest):
    def test_requests_go_to_the_pool_inside_and_not_outside(self):
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            pooled = block(3 * MIB)
        outside = block(3 * MIB)
        held = addresses_in(pool)
        self.assertIn(pooled.data_ptr(), held)
        self.assertNotIn(outside.data_ptr(), held)
        del pooled, outside

    def test_freed_memory_of_a_pool_is_reused_by_it_alone(self):
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            block(40 * MIB)
        held = reserved()
        with torch.cuda.use_mem_pool(pool):
            again = block(40 * MIB)
        self.assertEqual(reserved(), held)
        del again
        other = block(40 * MIB)
        self.assertGreater(reserved(), held)
        self.assertNotIn(other.data_ptr(), addresses_in(pool))

    def test_counters_include_pools(self):
        before = allocated()
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            x = block(10 * MIB)
        self.assertGreaterEqual(allocated() - before, 10 * MIB)
        del x
        self.assertEqual(allocated(), before)

    def test_every_pool_has_an_id_of_its_own(self):
        pools = [torch.cuda.MemPool() for _ in range(3)]
        self.assertEqual(len({pool.id for pool in pools}), 3)
        for pool in pools:
            self.assertEqual(pool.use_count(), 1)

    def test_the_memory_goes_back_with_the_pool(self):
        before = reserved()
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            x = block(60 * MIB)
        del x
        torch.cuda.synchronize()
        del pool
        gc.collect()
        torch.cuda.empty_cache()
        self.assertLessEqual(reserved(), before)

    def test_a_tensor_outlives_its_pool(self):
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            x = torch.full((MIB,), 4.0, device=GPU)
        del pool
        gc.collect()
        torch.cuda.empty_cache()
        block(30 * MIB).fill_(1)
        self.assertTrue(bool((x == 4).all()))

    def test_pools_one_inside_the_other(self):
        outer, inner = torch.cuda.MemPool(), torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(outer):
            a = block(3 * MIB)
            with torch.cuda.use_mem_pool(inner):
                b = block(3 * MIB)
            c = block(3 * MIB)
        self.assertIn(a.data_ptr(), addresses_in(outer))
        self.assertIn(b.data_ptr(), addresses_in(inner))
        self.assertIn(c.data_ptr(), addresses_in(outer))
        del a, b, c

    def test_another_thread_is_not_in_the_pool(self):
        pool = torch.cuda.MemPool()
        blocks = []
        with torch.cuda.use_mem_pool(pool):
            thread = threading.Thread(target=lambda: blocks.append(block(3 * MIB)))
            thread.start()
            thread.join()
        self.assertNotIn(blocks[0].data_ptr(), addresses_in(pool))

    def test_streams_inside_a_pool(self):
        pool = torch.cuda.MemPool()
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

    def test_a_graph_captured_into_a_pool(self):
        pool = torch.cuda.MemPool()
        x = torch.ones(MIB, device=GPU)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool.id):
            y = x + 1
        self.assertIn(y.data_ptr(), addresses_in(pool))
        graph.replay()
        self.assertTrue(bool((y == 2).all()))
        del y, graph

    def test_a_pool_that_helps_when_memory_is_out(self):
        pool = torch.cuda.MemPool(use_on_oom=True)
        with torch.cuda.use_mem_pool(pool):
            block(300 * MIB)  # cached by the pool
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction((reserved() + 50 * MIB) / total)
        try:
            x = block(200 * MIB)
            self.assertEqual(len(x), 200 * MIB)
            del x
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)

    def test_snapshot_of_a_pool_is_its_own(self):
        pool, other = torch.cuda.MemPool(), torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            x = block(25 * MIB)
        self.assertGreaterEqual(sum(segment["total_size"] for segment in pool.snapshot()), 25 * MIB)
        self.assertEqual(sum(segment["total_size"] for segment in other.snapshot()), 0)
        del x


@unittest.skipUnless(support.WEIR, "a pool of weir's, which is not torch's to compare with")
class OnePoolOfWeir(AllocatorTest):
    """The process keeps torch's allocator; one pool's memory is weir's."""

    def test_tensors_come_from_it(self):
        self.assert_ran(support.run_program("""
            import torch, weir.torch
            assert not weir.torch.is_enabled()
            pool = weir.torch.mem_pool()
            with torch.cuda.use_mem_pool(pool):
                x = torch.full((8 << 20,), 3.0, device="cuda")
            y = torch.full((8 << 20,), 4.0, device="cuda")
            addresses = {block["address"] for segment in pool.snapshot() for block in segment["blocks"]}
            assert x.data_ptr() in addresses and y.data_ptr() not in addresses
            assert bool((x == 3).all()) and bool((y == 4).all())
            """, allocator="native"))

    def test_frees_are_safe_while_streams_are_busy(self):
        self.assert_ran(support.run_program("""
            import gc, torch, weir.torch
            for _ in range(5):
                pool = weir.torch.mem_pool()
                with torch.cuda.use_mem_pool(pool):
                    x = torch.ones(8 << 20, device="cuda")
                support.busy(30)
                y = x + 1
                del x, pool  # nothing waits for the stream but the pool itself
                gc.collect()
                torch.cuda.empty_cache()
                z = torch.full((8 << 20,), 9.0, device="cuda")
                torch.cuda.synchronize()
                assert bool((y == 2).all())
            """, allocator="native"))

    def test_a_tensor_of_it_lives_at_the_end(self):
        self.assert_ran(support.run_program("""
            import torch, weir.torch
            pool = weir.torch.mem_pool()
            with torch.cuda.use_mem_pool(pool):
                x = torch.ones(1000, device="cuda")
            print(float(x.sum()))
            """, allocator="native"))


if __name__ == "__main__":
    support.main()
