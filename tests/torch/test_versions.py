# SPDX-License-Identifier: Apache-2.0
"""What only some versions of torch have: each test is skipped where this torch lacks it."""

import gc
import unittest

import support
import torch
from support import GPU, MIB, AllocatorTest, allocated, block, reserved


def has(owner, name):
    return unittest.skipUnless(hasattr(owner, name), f"this torch has no {name}")


class History(AllocatorTest):
    def setUp(self):
        super().setUp()
        torch.cuda.memory._record_memory_history("all", stacks="python", max_entries=10000)
        self.addCleanup(torch.cuda.memory._record_memory_history, None)

    def trace(self):
        return torch.cuda.memory._snapshot()["device_traces"][torch.cuda.current_device()]

    def test_the_first_memory_of_a_pool_is_a_segment_of_its_own(self):
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            x = block(30 * MIB)
        entries = [entry for entry in self.trace() if entry["action"] in ("segment_alloc", "segment_map")
                   and entry["addr"] <= x.data_ptr() < entry["addr"] + entry["size"]]
        self.assertEqual([entry["action"] for entry in entries], ["segment_alloc"])
        self.assertGreaterEqual(entries[0]["size"], 30 * MIB)
        if "pool_id" in entries[0]:  # from 2.12 on
            self.assertEqual(tuple(entries[0]["pool_id"]), tuple(pool.id))
        del x

    @has(torch.cuda.memory, "_allocation_traceback")
    def test_the_stack_of_a_live_block_is_found_by_its_address(self):
        x = block(5 * MIB)
        address = x.data_ptr()
        names = [frame["name"] for frame in torch.cuda.memory._allocation_traceback(address)]
        self.assertIn("test_the_stack_of_a_live_block_is_found_by_its_address", names)
        del x
        self.assertIsNone(torch.cuda.memory._allocation_traceback(address))

    @has(torch.cuda.memory, "_annotate_tensor")
    def test_live_blocks_are_annotated(self):
        self.assertTrue(torch.cuda.memory._memory_metadata_supported())
        x = block(5 * MIB)
        address = x.data_ptr()
        torch.cuda.memory._annotate_tensor(x, "first")
        torch.cuda.memory._annotate_tensor(x[100:], "second")
        entries = [entry for entry in self.trace() if entry["action"] == "annotate"]
        self.assertEqual([(entry["addr"], entry["size"], entry["user_metadata"]) for entry in entries],
                         [(address, 5 * MIB, "first"), (address, 5 * MIB, "second")])
        del x
        with self.assertRaisesRegex(RuntimeError, "no live allocation"):
            torch._C._cuda_annotateMemory(address, "too late")


class Counters(AllocatorTest):
    @has(torch.accelerator, "memory_allocated")
    def test_the_accelerator_interface_shows_the_same_memory(self):
        x = block(30 * MIB)
        self.assertEqual(torch.accelerator.memory_allocated(), allocated())
        self.assertEqual(torch.accelerator.memory_reserved(), reserved())
        self.assertGreaterEqual(torch.accelerator.memory_allocated(), 30 * MIB)
        del x
        torch.accelerator.empty_cache()
        self.assertLess(torch.accelerator.memory_reserved(), 30 * MIB)

    @has(torch.cuda.memory, "private_pool_memory_reserved")
    def test_pools_are_counted_apart_also_when_they_are_gone(self):
        def counters(pool):
            stats = torch.cuda.memory_stats_as_nested_dict()["reserved_bytes_by_private_pools"]
            return stats[tuple(pool)]["all"]

        pool = torch.cuda.MemPool()
        name = pool.id
        with torch.cuda.use_mem_pool(pool):
            x = block(30 * MIB)
        held = counters(name)["current"]
        self.assertGreaterEqual(held, 30 * MIB)
        torch.cuda.reset_accumulated_memory_stats()
        del x, pool
        gc.collect()
        torch.cuda.empty_cache()
        self.assertEqual({key: counters(name)[key] for key in ("current", "peak", "allocated", "freed")},
                         {"current": 0, "peak": held, "allocated": 0, "freed": held})

    @unittest.skipUnless(support.WEIR, "torch's own limit cannot be read")
    def test_a_fraction_is_rounded_to_the_next_byte(self):
        import weir.torch

        total = torch.cuda.get_device_properties(GPU).total_memory
        size = next(size for size in range(total // 2, total)  # one that a cut would make smaller
                    if int(size / total * total) != size)
        self.addCleanup(torch.cuda.set_per_process_memory_fraction, 1.0)
        torch.cuda.set_per_process_memory_fraction(size / total)
        self.assertEqual(weir.torch._enabled().describe(0, 1)["limit"], size)


class Settings(AllocatorTest):
    def test_a_snapshot_says_what_was_set(self):
        status, output, errors = support.run_program("""
            import torch
            x = torch.empty(1 << 20, device="cuda")
            settings = torch.cuda.memory._snapshot()["allocator_settings"]
            print(settings["expandable_segments"], settings["max_split_size"])
            """, before="""
            import os
            os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True,max_split_size_mb:300"
            """)
        self.assertEqual((status, output.strip()), (0, f"True {300 * MIB}"), errors)
        self.assertNotIn("not supported on this platform", errors)


class ExactAddresses(AllocatorTest):
    @has(torch.UntypedStorage, "_resize_with_addr_")
    def test_a_storage_comes_back_where_it_was(self):
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            before, x, behind = block(3729), block(4017), block(2738)
        address = x.data_ptr()
        occupied = behind.data_ptr()
        for each in (before, x):
            each.untyped_storage().resize_(0)
        with torch.cuda.use_mem_pool(pool):
            with self.assertRaisesRegex(RuntimeError, "exact address"):
                x.untyped_storage()._resize_with_addr_(2738, occupied)
            with self.assertRaisesRegex(RuntimeError, "aligned to kMinBlockSize"):
                x.untyped_storage()._resize_with_addr_(4017, address + 1)
            x.untyped_storage()._resize_with_addr_(4017, address)
        self.assertEqual((x.untyped_storage().data_ptr(), x.untyped_storage().nbytes()), (address, 4017))


if __name__ == "__main__":
    support.main()
