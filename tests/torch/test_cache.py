# SPDX-License-Identifier: Apache-2.0
"""The cache: reuse, empty_cache(), raw allocations, contents that stay what they were."""

import random

import support
import torch
from support import GPU, KIB, MIB, AllocatorTest, allocated, block, reserved, stat


class Cache(AllocatorTest):
    def test_a_size_that_comes_again_takes_no_new_memory(self):
        for size in (100, 64 * KIB, 3 * MIB, 100 * MIB):
            block(size)
            held, calls = reserved(), stat("num_device_alloc")
            for _ in range(100):
                block(size)
            self.assertEqual(reserved(), held)
            self.assertEqual(stat("num_device_alloc"), calls)

    def test_a_freed_block_serves_smaller_requests(self):
        block(100 * MIB)
        held = reserved()
        keep = [block(20 * MIB) for _ in range(4)]
        self.assertLessEqual(reserved(), held + 2 * MIB)
        del keep

    def test_neighbours_that_were_freed_serve_a_larger_request(self):
        keep = [block(64 * KIB) for _ in range(16)]
        held = reserved()
        del keep
        keep = block(700 * KIB)
        self.assertLessEqual(reserved(), held + 2 * MIB)
        del keep

    def test_empty_cache_gives_back_what_is_free(self):
        keep = [block(50 * MIB) for _ in range(4)]
        del keep
        self.assertGreaterEqual(reserved(), 200 * MIB)
        torch.cuda.empty_cache()
        self.assertLessEqual(reserved() - allocated(), 4 * MIB)

    def test_empty_cache_keeps_what_is_live(self):
        keep = [torch.full((MIB,), float(i), device=GPU) for i in range(8)]
        passing = [block(50 * MIB) for _ in range(4)]
        del passing
        torch.cuda.empty_cache()
        for i, x in enumerate(keep):
            self.assertTrue(bool((x == i).all()))
        self.assertGreaterEqual(reserved(), allocated())

    def test_empty_cache_with_nothing_cached(self):
        for _ in range(5):
            torch.cuda.empty_cache()
        self.assertGreaterEqual(reserved(), 0)

    def test_empty_cache_while_work_is_queued(self):
        x = torch.ones(16 * MIB, device=GPU)
        support.busy(50)
        y = x * 3
        del x
        torch.cuda.empty_cache()
        z = torch.full((16 * MIB,), 9.0, device=GPU)
        self.assertTrue(bool((y == 3).all()))
        self.assertTrue(bool((z == 9).all()))

    def test_memory_can_be_taken_again_after_it_was_given_back(self):
        for _ in range(10):
            x = torch.full((10 * MIB,), 2.0, device=GPU)
            self.assertEqual(float(x.sum()), 2.0 * 10 * MIB)
            del x
            torch.cuda.empty_cache()

    def test_live_tensors_never_overlap(self):
        draw = random.Random(1)
        keep = {}
        for i in range(600):
            if len(keep) > 60:
                del keep[draw.choice(list(keep))]
            size = int(2 ** draw.uniform(0, 22))
            keep[i] = torch.full((size,), i % 120, dtype=torch.uint8, device=GPU)
        ranges = sorted((x.data_ptr(), x.data_ptr() + x.numel()) for x in keep.values())
        for (_, end), (begin, _) in zip(ranges, ranges[1:]):
            self.assertLessEqual(end, begin)
        for i, x in keep.items():
            self.assertTrue(bool((x == i % 120).all()))

    def test_alignment(self):
        keep = [block(size) for size in (1, 3, 511, 513, 100_001, 3 * MIB + 1)]
        for x in keep:
            self.assertEqual(x.data_ptr() % 512, 0)

    def test_a_resized_storage_moves_with_its_contents(self):
        x = torch.arange(1000, device=GPU)
        x.resize_(1_000_000)
        self.assertTrue(torch.equal(x[:1000], torch.arange(1000, device=GPU)))
        x.untyped_storage().resize_(0)
        torch.cuda.synchronize()


class Raw(AllocatorTest):
    def test_allocate_and_free_by_pointer(self):
        before = allocated()
        pointer = torch.cuda.caching_allocator_alloc(3 * MIB)
        self.assertNotEqual(pointer, 0)
        self.assertGreaterEqual(allocated() - before, 3 * MIB)
        torch.cuda.caching_allocator_delete(pointer)
        self.assertEqual(allocated(), before)

    def test_for_a_stream(self):
        stream = torch.cuda.Stream()
        pointer = torch.cuda.caching_allocator_alloc(3 * MIB, stream=stream)
        torch.cuda.caching_allocator_delete(pointer)
        stream.synchronize()

    def test_a_foreign_pointer_is_refused(self):
        with self.assertRaises(RuntimeError):
            torch.cuda.caching_allocator_delete(0x1234)
        self.assertEqual(int(torch.ones(5, device=GPU).sum()), 5)

    def test_a_second_free_is_refused(self):
        pointer = torch.cuda.caching_allocator_alloc(3 * MIB)
        torch.cuda.caching_allocator_delete(pointer)
        with self.assertRaises(RuntimeError):
            torch.cuda.caching_allocator_delete(pointer)


if __name__ == "__main__":
    support.main()
