# SPDX-License-Identifier: Apache-2.0
"""memory_stats(), memory_allocated(), memory_reserved(), their peaks and their resets."""

import collections
import gc
import json
import random
import tempfile
import threading
import time
import unittest
from pathlib import Path

import support
import torch
from support import GPU, KIB, MIB, AllocatorTest, allocated, block, reserved, stat

FAMILIES = ("allocation", "segment", "active", "inactive_split", "allocated_bytes", "reserved_bytes",
            "active_bytes", "inactive_split_bytes", "requested_bytes")


class Stats(AllocatorTest):
    def test_every_documented_name_is_there(self):
        keep = block(MIB)
        stats = torch.cuda.memory_stats()
        for family in FAMILIES:
            for pool in ("all", "large_pool", "small_pool"):
                for metric in ("current", "peak", "allocated", "freed"):
                    self.assertIn(f"{family}.{pool}.{metric}", stats)
        for name in ("num_alloc_retries", "num_ooms", "num_sync_all_streams", "num_device_alloc",
                     "num_device_free", "max_split_size", "oversize_allocations.current",
                     "oversize_segments.current"):
            self.assertIn(name, stats)
        del keep

    def test_no_current_or_peak_is_negative(self):
        keep = [block(size) for size in (1, 513, 70 * KIB, 3 * MIB, 40 * MIB)]
        del keep[::2]
        for name, value in torch.cuda.memory_stats().items():
            if name != "max_split_size":  # -1 where there is none
                self.assertGreaterEqual(value, 0, name)

    def test_all_is_the_sum_of_both_pools(self):
        keep = [block(size) for size in (1 * KIB, 100 * KIB, 2 * MIB, 30 * MIB)]
        stats = torch.cuda.memory_stats()
        for family in ("allocation", "allocated_bytes", "requested_bytes", "active_bytes",
                       "reserved_bytes"):
            both = sum(stats[f"{family}.{pool}.current"] for pool in ("large_pool", "small_pool"))
            self.assertEqual(stats[f"{family}.all.current"], both, family)
        del keep

    def test_requested_is_exact(self):
        before = stat("requested_bytes.all.current")
        a, b = block(1000), block(3 * MIB + 5)
        self.assertEqual(stat("requested_bytes.all.current") - before, 1000 + 3 * MIB + 5)
        del a
        self.assertEqual(stat("requested_bytes.all.current") - before, 3 * MIB + 5)
        del b
        self.assertEqual(stat("requested_bytes.all.current"), before)

    def test_allocated_covers_what_was_requested(self):
        for size in (1, 512, 1000, 1 * MIB, 5 * MIB + 1, 64 * MIB):
            before = allocated()
            keep = block(size)
            grown = allocated() - before
            self.assertGreaterEqual(grown, size)
            self.assertLessEqual(grown, max(512, size + size // 8 + 512))
            del keep
            self.assertEqual(allocated(), before)

    def test_allocated_never_exceeds_reserved(self):
        keep = []
        for size in (10, 3 * KIB, 700 * KIB, 9 * MIB, 33 * MIB):
            keep.append(block(size))
            self.assertLessEqual(allocated(), reserved())
        while keep:
            keep.pop()
            self.assertLessEqual(allocated(), reserved())

    def test_counts_of_allocations(self):
        current, total = stat("allocation.all.current"), stat("allocation.all.allocated")
        freed = stat("allocation.all.freed")
        keep = [block(4 * KIB) for _ in range(10)]
        self.assertEqual(stat("allocation.all.current") - current, 10)
        self.assertEqual(stat("allocation.all.allocated") - total, 10)
        keep.clear()
        self.assertEqual(stat("allocation.all.current"), current)
        self.assertEqual(stat("allocation.all.freed") - freed, 10)

    def test_small_and_large_by_size(self):
        small = stat("allocation.small_pool.current")
        large = stat("allocation.large_pool.current")
        a, b = block(64 * KIB), block(8 * MIB)
        # weir has no pools by size: as its guide says, all of it counts as large.
        counted_small = 0 if support.WEIR else 1
        self.assertEqual(stat("allocation.small_pool.current") - small, counted_small)
        self.assertEqual(stat("allocation.large_pool.current") - large, 2 - counted_small)
        del a, b

    def test_an_empty_tensor_takes_nothing(self):
        before = stat("allocation.all.allocated"), allocated()
        empty = block(0)
        self.assertEqual((stat("allocation.all.allocated"), allocated()), before)
        self.assertEqual(empty.data_ptr(), 0)

    def test_a_view_takes_nothing(self):
        base = block(4 * MIB)
        before = allocated()
        view = base[100:200].view(10, 10)
        self.assertEqual(allocated(), before)
        del base
        self.assertEqual(allocated(), before)  # the view keeps it
        del view

    def test_stats_are_those_of_the_device_asked_for(self):
        keep = block(MIB)
        self.assertEqual(torch.cuda.memory_allocated(0), torch.cuda.memory_allocated("cuda:0"))
        self.assertEqual(torch.cuda.memory_stats(0)["allocated_bytes.all.current"], allocated())
        nested = torch.cuda.memory_stats_as_nested_dict()
        self.assertEqual(nested["allocated_bytes"]["all"]["current"], allocated())
        del keep

    def test_a_device_that_does_not_exist_is_an_error(self):
        block(KIB)
        for index in (-2, torch.cuda.device_count(), 63, 100):
            for call in (torch.cuda.memory_stats, torch.cuda.memory_allocated, torch.cuda.reset_peak_memory_stats,
                         torch.cuda.reset_accumulated_memory_stats):
                with self.assertRaises((RuntimeError, AssertionError, ValueError), msg=f"{call.__name__}({index})"):
                    call(index)

    def test_the_summary_can_be_written(self):
        keep = block(3 * MIB)
        for abbreviated in (False, True):
            text = torch.cuda.memory_summary(abbreviated=abbreviated)
            self.assertIn("Allocated memory", text)
        del keep

    def test_the_profiler_hears_of_blocks(self):
        base = allocated()
        with torch.profiler.profile(profile_memory=True) as profile:
            x = block(3 * MIB + 1)
            address = x.data_ptr()
            del x
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace.json"
            profile.export_chrome_trace(str(path))
            events = json.loads(path.read_text())["traceEvents"]
        size = 3 * MIB + 512
        heard = [(event["args"]["Bytes"], event["args"]["Total Allocated"]) for event in events
                 if event.get("name") == "[memory]" and event["args"].get("Addr") == address]
        self.assertEqual(heard, [(size, base + size), (-size, base)])

    def test_a_profiler_hears_of_its_own_thread(self):
        def allocate(size):
            block(size)

        allocate(MIB)  # the thread has allocated before the profiler begins
        with torch.profiler.profile(profile_memory=True) as profile:
            other = threading.Thread(target=allocate, args=(7 * MIB,))
            other.start()
            other.join()
            allocate(5 * MIB)
        allocate(3 * MIB)
        heard = [event.nbytes() for event in profile.profiler.kineto_results.events()
                 if event.name() == "[memory]" and abs(event.nbytes()) >= MIB]
        self.assertEqual(heard, [5 * MIB, -5 * MIB])

    def test_backend_and_process_list_answer(self):
        self.assertIsInstance(torch.cuda.get_allocator_backend(), str)
        free, total = torch.cuda.mem_get_info()
        self.assertLess(free, total)


BYTES = ("requested_bytes", "allocated_bytes", "active_bytes")
COUNTS = ("allocation", "active")


class Sums(AllocatorTest):
    def test_a_program_with_one_thread_is_counted_exactly(self):
        """Against a model: tensors, a MemPool's, raw blocks, storages that are resized; both resets."""
        rng = random.Random(2)
        # torch's own allocator rounds all blocks by its segments, weir those of a MemPool.
        exact = BYTES + COUNTS if support.WEIR else ("requested_bytes", "allocation")
        base = {name: stat(f"{name}.all.current") for name in exact}
        torch.cuda.reset_accumulated_memory_stats()
        now, peak = dict.fromkeys(exact, 0), dict.fromkeys(exact, 0)
        sums = {"allocated": dict.fromkeys(exact, 0), "freed": dict.fromkeys(exact, 0)}

        def count(sign, which, size, taken):
            for name in exact:
                amount = 1 if name in COUNTS else size if name == "requested_bytes" else taken
                now[name] += sign * amount
                sums[which][name] += amount
                peak[name] = max(peak[name], now[name])

        def rounded(size):
            return (size + 511) // 512 * 512

        live, pool = [], torch.cuda.MemPool()
        for step in range(800):
            chance = rng.random()
            if chance < 0.5 or not live:
                size = rng.choice((1, 511, 512, 513, rng.randint(1, 5000), rng.randint(1, 3 * MIB), 17 * MIB + 1))
                how, taken = rng.random(), rounded(size)
                if how < 0.5:
                    live.append((size, taken, block(size), None))
                elif how < 0.8:
                    before = allocated()
                    with torch.cuda.use_mem_pool(pool):
                        tensor = block(size)
                    # What is left of a segment and too small for another block is the block's.
                    taken = allocated() - before
                    self.assertLessEqual(rounded(size), taken)
                    self.assertLessEqual(taken, rounded(size) + MIB)
                    live.append((size, taken, tensor, None))
                    del tensor
                else:
                    live.append((size, taken, None, torch.cuda.caching_allocator_alloc(size)))
                count(1, "allocated", size, taken)
            elif chance < 0.93 or len(live) > 40:
                size, taken, tensor, raw = live.pop(rng.randrange(len(live)))
                del tensor
                if raw is not None:
                    torch.cuda.caching_allocator_delete(raw)
                count(-1, "freed", size, taken)
            elif chance < 0.96:
                i = rng.randrange(len(live))
                size, taken, tensor, _ = live[i]
                if tensor is not None:
                    more = size + rng.randint(1, 3000)
                    live[i] = None
                    tensor.untyped_storage().resize_(more)
                    count(1, "allocated", more, rounded(more))
                    count(-1, "freed", size, taken)
                    live[i] = (more, rounded(more), tensor, None)
                del tensor
            elif chance < 0.97:
                torch.cuda.reset_peak_memory_stats()
                peak = dict(now)
            elif chance < 0.98:
                torch.cuda.reset_accumulated_memory_stats()
                sums = {which: dict.fromkeys(exact, 0) for which in sums}
            elif chance < 0.99:
                torch.cuda.empty_cache()
            if step % 10 == 0:
                seen = torch.cuda.memory_stats()
                for name in exact:
                    found = [seen[f"{name}.all.{each}"] for each in ("current", "peak", "allocated", "freed")]
                    model = [base[name] + now[name], base[name] + peak[name], sums["allocated"][name],
                             sums["freed"][name]]
                    self.assertEqual(found, model, (step, name))
        while live:
            _, _, _, raw = live.pop()
            if raw is not None:
                torch.cuda.caching_allocator_delete(raw)

    def test_every_reading_adds_up_beside_threads(self):
        torch.cuda.reset_accumulated_memory_stats()
        base = {name: stat(f"{name}.all.current") for name in BYTES + COUNTS}
        end = time.monotonic() + 2.5
        problems = []

        def churn(number):
            rng = random.Random(number)
            with torch.cuda.stream(torch.cuda.Stream()):
                kept = collections.deque()
                while time.monotonic() < end:
                    kept.append(block(rng.choice((1000, 70_000, 3 * MIB, 40 * MIB))))
                    if len(kept) > 8:
                        kept.popleft()

        threads = [threading.Thread(target=churn, args=(number,)) for number in range(5)]
        for thread in threads:
            thread.start()
        before = {}
        while time.monotonic() < end and not problems:
            seen = torch.cuda.memory_stats()
            for name in BYTES + COUNTS:
                current, peak, taken, freed = (seen[f"{name}.all.{each}"]
                                               for each in ("current", "peak", "allocated", "freed"))
                taken_before, freed_before = before.get(name, (0, 0))
                if taken - freed != current - base[name] or peak < current or taken < taken_before or \
                        freed < freed_before:
                    problems.append((name, current, peak, taken, freed, before.get(name)))
                before[name] = taken, freed
        for thread in threads:
            thread.join()
        self.assertEqual(problems, [])


class Peaks(AllocatorTest):
    def test_the_peak_stays_when_memory_is_freed(self):
        base = allocated()
        keep = block(32 * MIB)
        top = allocated()
        del keep
        self.assertEqual(allocated(), base)
        self.assertEqual(torch.cuda.max_memory_allocated(), top)

    def test_reset_starts_from_what_is_live(self):
        keep = block(8 * MIB)
        passing = block(32 * MIB)
        del passing
        torch.cuda.reset_peak_memory_stats()
        self.assertEqual(torch.cuda.max_memory_allocated(), allocated())
        self.assertEqual(torch.cuda.max_memory_reserved(), reserved())
        more = block(16 * MIB)
        self.assertEqual(torch.cuda.max_memory_allocated(), allocated())
        del keep, more

    def test_the_peak_of_reserved_outlives_empty_cache(self):
        keep = block(64 * MIB)
        del keep
        torch.cuda.empty_cache()
        self.assertGreaterEqual(torch.cuda.max_memory_reserved(), 64 * MIB)
        self.assertLess(reserved(), torch.cuda.max_memory_reserved())

    def test_the_peak_of_requested_is_exact(self):
        base = stat("requested_bytes.all.current")
        torch.cuda.reset_peak_memory_stats()
        a, b = block(5 * MIB + 3), block(7)
        del a
        c = block(MIB)
        self.assertEqual(stat("requested_bytes.all.peak") - base, 5 * MIB + 10)
        del b, c

    def test_the_peak_counts_what_the_cache_served(self):
        for size in (3 * KIB, 900 * KIB, 8 * MIB):
            passing = block(size)
            top = allocated()
            del passing
            torch.cuda.reset_peak_memory_stats()
            again = block(size)
            self.assertEqual(allocated(), top)
            del again
            self.assertEqual(torch.cuda.max_memory_allocated(), top)

    def test_two_ways_to_one_product_peak_alike(self):
        a = torch.rand(1, 32, 32, device=GPU)
        b = torch.rand(24, 32, 1, device=GPU)

        def peak(product):
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            product()
            torch.cuda.synchronize()
            return torch.cuda.max_memory_allocated()

        expanded = a.expand(24, 32, 32)
        torch.bmm(expanded, b)  # cuBLAS has its workspace from here on
        peaks = [peak(lambda: torch.matmul(a, b)), peak(lambda: torch.matmul(expanded, b)),
                 peak(lambda: torch.bmm(expanded, b))]
        self.assertEqual(peaks, peaks[:1] * 3)

    def test_reset_of_the_accumulated_counts(self):
        keep = [block(KIB) for _ in range(3)]
        del keep
        torch.cuda.reset_accumulated_memory_stats()
        self.assertEqual(stat("allocation.all.allocated"), 0)
        self.assertEqual(stat("allocation.all.freed"), 0)
        self.assertEqual(stat("num_ooms"), 0)
        again = block(KIB)
        self.assertEqual(stat("allocation.all.allocated"), 1)
        del again
        self.assertEqual(stat("allocation.all.freed"), 1)

    def test_resets_leave_current_alone(self):
        keep = block(3 * MIB)
        before = allocated(), reserved(), stat("allocation.all.current")
        torch.cuda.reset_accumulated_memory_stats()
        torch.cuda.reset_peak_memory_stats()
        self.assertEqual((allocated(), reserved(), stat("allocation.all.current")), before)
        del keep

    def test_the_old_names_of_the_resets_work(self):
        keep = block(20 * MIB)
        del keep
        with self.assertWarns(FutureWarning):
            torch.cuda.reset_max_memory_allocated()
        self.assertEqual(torch.cuda.max_memory_allocated(), allocated())

    def test_a_step_of_training_peaks_above_its_weights(self):
        model = torch.nn.Linear(1024, 1024, device=GPU)
        torch.cuda.reset_peak_memory_stats()
        base = allocated()
        model(torch.randn(2048, 1024, device=GPU)).sum().backward()
        torch.cuda.synchronize()
        self.assertGreaterEqual(torch.cuda.max_memory_allocated() - base, 16 * MIB)
        del model
        gc.collect()


if __name__ == "__main__":
    unittest.TestCase.maxDiff = None
    support.main()
