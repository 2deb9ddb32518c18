# SPDX-License-Identifier: Apache-2.0
"""Several GPUs: copies between them, kernels that reach each other's memory, streams of other GPUs."""

import unittest

import support
import torch
from support import MIB, AllocatorTest

SEVERAL = torch.cuda.device_count() > 1


@unittest.skipUnless(SEVERAL, "needs two GPUs")
class SeveralGpus(AllocatorTest):
    def test_copies_both_ways(self):
        x = torch.arange(3 * MIB, dtype=torch.int32, device="cuda:0")
        there = x.to("cuda:1")
        self.assertEqual(there.device.index, 1)
        self.assertTrue(torch.equal(there.cpu(), x.cpu()))
        back = torch.zeros_like(x)
        back.copy_(there.add(1), non_blocking=True)
        self.assertTrue(torch.equal(back, x + 1))

    def test_copies_of_memory_that_came_after_the_first(self):
        for size in (1000, 50 * MIB, 200 * MIB):
            x = torch.ones(size, dtype=torch.uint8, device="cuda:0")
            self.assertEqual(int(x.to("cuda:1").sum(dtype=torch.int64)), size)

    def test_strided_copies_reach_the_other_memory(self):
        """A kernel makes them, which reads one GPU and writes the other where they are peers."""
        x = torch.arange(1000 * 1000, dtype=torch.float32, device="cuda:0").view(1000, 1000)
        y = torch.empty(1000, 1000, device="cuda:1").t()
        y.copy_(x)
        self.assertTrue(torch.equal(y.cpu(), x.cpu()))

    def test_memory_waits_for_a_stream_of_another_gpu(self):
        def active():
            return torch.cuda.memory_stats(0)["active_bytes.all.current"]

        side = torch.cuda.Stream("cuda:1")
        x = torch.empty(8 * MIB, dtype=torch.uint8, device="cuda:0")
        before = active()
        with torch.cuda.device(1), torch.cuda.stream(side):
            support.busy(300)
        x.record_stream(side)
        del x
        self.assertEqual(active(), before)  # the other GPU's stream may still use it
        side.synchronize()
        torch.empty(8 * MIB, dtype=torch.uint8, device="cuda:0")  # both allocators look at streams then
        torch.cuda.synchronize(0)
        torch.cuda.empty_cache()
        self.assertEqual(active(), before - 8 * MIB)

    def test_each_gpu_counts_its_own(self):
        before = [torch.cuda.memory_allocated(i) for i in range(2)]
        x = torch.empty(5 * MIB, dtype=torch.uint8, device="cuda:1")
        self.assertEqual(torch.cuda.memory_allocated(0), before[0])
        self.assertEqual(torch.cuda.memory_allocated(1), before[1] + 5 * MIB)
        del x

    def test_plain_requests_on_the_other_gpu(self):
        with torch.cuda.device(1):
            pointer = torch.cuda.caching_allocator_alloc(MIB)
        before = torch.cuda.memory_allocated(1)
        torch.cuda.caching_allocator_delete(pointer)  # whichever GPU is current
        self.assertEqual(torch.cuda.memory_allocated(1), before - MIB)


if __name__ == "__main__":
    support.main()
