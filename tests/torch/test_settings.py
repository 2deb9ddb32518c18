# SPDX-License-Identifier: Apache-2.0
"""PYTORCH_ALLOC_CONF and its run-time form, and the switches of the cache."""

import collections
import random
import threading
import time
import unittest

import support
import torch
from support import GIB, KIB, MIB, AllocatorTest, allocated, block, reserved, run_program, stat

NOTHING = ""  # resets what a setting resets that does not name it


def configure(text):
    torch.cuda.memory._set_allocator_settings(text)


def rounded(size, divisions):
    """The size that a request of `size` bytes gets, as PyTorch documents roundup_power2_divisions."""
    least = (size + 511) // 512 * 512
    if divisions <= 1 or size <= 512 * divisions:
        return least
    step = (1 << (size.bit_length() - 1)) // divisions
    return (size + step - 1) // step * step


class SettingsTest(AllocatorTest):
    def tearDown(self):
        configure(NOTHING)
        super().tearDown()


class RoundUp(SettingsTest):
    SIZES = (1, 511, 512, 513, 5 * KIB, 5 * KIB + 1, 100_000, 700 * KIB, MIB, MIB + 1, 3 * MIB - 7, 21 * MIB,
             64 * MIB, 65 * MIB)

    def taken(self, size):
        """What a block of the size adds to the counters: allocated, requested, and ever so."""
        names = ("allocated_bytes.all.current", "requested_bytes.all.current", "active_bytes.all.allocated",
                 "requested_bytes.all.allocated", "requested_bytes.all.freed")
        before = [stat(name) for name in names]
        keep = block(size)
        self.assertEqual(keep.numel(), size)
        now = [stat(name) - old for name, old in zip(names, before)]
        del keep
        freed = stat(names[-1]) - before[-1]
        self.assertEqual([stat(name) for name in names[:2]], before[:2])
        return now[:-1] + [freed]

    def test_one_number_for_all_sizes(self):
        for divisions in (2, 4, 8):
            configure(f"roundup_power2_divisions:{divisions}")
            for size in self.SIZES:
                block_size = rounded(size, divisions)
                self.assertEqual(self.taken(size), [block_size, size, block_size, size, size],
                                 (size, divisions))

    def test_a_list_by_size(self):
        configure("roundup_power2_divisions:[1:2,4:8,16:4,>:1]")
        for size, divisions in ((600 * KIB, 2), (MIB + 1, 2), (5 * MIB, 8), (19 * MIB, 4), (40 * MIB + 3, 1)):
            self.assertEqual(self.taken(size)[0], rounded(size, divisions), size)

    def test_the_next_settings_end_it(self):
        configure("roundup_power2_divisions:2")
        size = 5 * MIB + 1
        early = block(size)
        base = allocated()
        configure("garbage_collection_threshold:0.9")
        self.assertEqual(self.taken(size)[0], rounded(size, 1))
        requested = stat("requested_bytes.all.current")
        del early  # its padding is not forgotten
        self.assertEqual(base - allocated(), rounded(size, 2))
        self.assertEqual(requested - stat("requested_bytes.all.current"), size)

    def test_the_snapshot_tells_both_sizes(self):
        configure("roundup_power2_divisions:2")
        size = 5 * MIB + 1
        keep = block(size)
        segments = torch.cuda.memory_snapshot()
        found = [each for segment in segments for each in segment["blocks"]
                 if each["address"] == keep.data_ptr()]
        self.assertEqual([(each["size"], each["requested_size"]) for each in found], [(rounded(size, 2), size)])
        self.assertEqual(sum(segment["requested_size"] for segment in segments),
                         stat("requested_bytes.all.current"))

    def test_the_history_tells_what_was_requested(self):
        configure("roundup_power2_divisions:2")
        torch.cuda.memory._record_memory_history(max_entries=100, clear_history=True)
        try:
            keep = block(5 * MIB + 1)
            address = keep.data_ptr()
            del keep
            entries = torch.cuda.memory._snapshot()["device_traces"][0]
        finally:
            torch.cuda.memory._record_memory_history(enabled=None)
        sizes = {entry["action"]: entry["size"] for entry in entries if entry.get("addr") == address
                 and not entry["action"].startswith("segment")}
        self.assertEqual(sizes["alloc"], 5 * MIB + 1)
        self.assertEqual(sizes["free_requested"], 5 * MIB + 1)

    def test_a_block_serves_other_requests_of_its_rounded_size(self):
        configure("roundup_power2_divisions:2")
        x = block(5 * MIB)
        address = x.data_ptr()
        del x
        self.assertEqual(block(5 * MIB + 70 * KIB).data_ptr(), address)


    @unittest.skipUnless(support.WEIR, "torch's own allocator reads its settings without a lock")
    def test_changes_beside_requests_and_over_live_blocks(self):
        base = stat("requested_bytes.all.current")
        end = time.monotonic() + 1.5

        def work():
            kept = collections.deque()
            while time.monotonic() < end:
                kept.append(block(3 * MIB + 1))
                if len(kept) > 2:
                    kept.popleft()

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        while time.monotonic() < end:
            configure("roundup_power2_divisions:4")
            configure(NOTHING)
        for thread in threads:
            thread.join()
        self.assertEqual(stat("requested_bytes.all.current"), base)
        keep = [block(3 * MIB + 1) for _ in range(4)]
        self.assertEqual(stat("requested_bytes.all.current") - base, 4 * (3 * MIB + 1))
        del keep

    def test_requested_is_exact_whatever_the_settings_were(self):
        rng = random.Random(4)
        side = torch.cuda.Stream()
        base = stat("requested_bytes.all.current")
        live, cached = [], True
        try:
            for step in range(600):
                chance = rng.random()
                if chance < 0.03:
                    configure(rng.choice(("roundup_power2_divisions:4", "roundup_power2_divisions:[64:2,256:4,>:1]",
                                          "roundup_power2_divisions:1", "roundup_power2_divisions:8")))
                elif chance < 0.04:
                    cached = not cached
                    torch.cuda.caching_allocator_enable(cached)
                elif chance < 0.6 or not live:
                    size = rng.choice((700, 5000, rng.randint(1, 3 * MIB), rng.randint(MIB, 9 * MIB)))
                    live.append((block(size), cached))
                    if rng.random() < 0.2:
                        side.wait_stream(torch.cuda.current_stream())
                        with torch.cuda.stream(side):
                            live[-1][0].fill_(1)
                        live[-1][0].record_stream(side)
                else:
                    live.pop(rng.randrange(len(live)))
                if step % 50 == 0:
                    torch.cuda.synchronize()
                    torch.cuda.empty_cache()  # sees what recorded streams are done with
                    self.assertEqual(stat("requested_bytes.all.current") - base,
                                     sum(tensor.numel() for tensor, is_cached in live if is_cached), step)
        finally:
            torch.cuda.caching_allocator_enable(True)
        live.clear()


class Threshold(SettingsTest):
    def setUp(self):
        super().setUp()
        self.fraction = torch.cuda.get_per_process_memory_fraction()
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction((reserved() + 400 * MIB) / total)

    def tearDown(self):
        torch.cuda.set_per_process_memory_fraction(self.fraction)
        super().tearDown()

    def test_memory_is_collected_and_nothing_is_lost(self):
        configure("garbage_collection_threshold:0.25")
        keep = []
        for size in (40, 30, 50, 20, 60, 45, 70):
            passing = block(size * MIB)
            kept = block(8 * MIB)
            kept.fill_(size)
            keep.append(kept)
            del passing
        self.assertEqual([int(each[-1]) for each in keep], [40, 30, 50, 20, 60, 45, 70])
        # Torch's own collects when it takes memory, so the last that was freed may be cached.
        self.assertLessEqual(reserved(), allocated() + 170 * MIB)

    def test_without_a_limit_there_is_nothing_to_collect_for(self):
        torch.cuda.set_per_process_memory_fraction(1.0)
        configure("garbage_collection_threshold:0.01")
        x = block(50 * MIB)
        del x
        y = block(10 * MIB)
        self.assertGreaterEqual(reserved(), 50 * MIB)
        del y


class Keys(SettingsTest):
    def test_what_torch_does_not_know_is_torchs_error(self):
        for text in ("foo:1", "garbage_collection_threshold:1.2", "max_split_size_mb:2",
                     "release_lock_on_cudamalloc:none", "pinned_num_register_threads:1024"):
            with self.assertRaises(ValueError):
                configure(text)

    def test_every_other_key_is_accepted(self):
        for text in ("expandable_segments:True", "expandable_segments:False", "backend:native",
                     "release_lock_on_cudamalloc:False", "pinned_use_cuda_host_register:False",
                     "pinned_num_register_threads:1", "per_process_memory_fraction:1.0",
                     "max_split_size_mb:64,garbage_collection_threshold:0.5"):
            configure(text)
            keep = block(3 * MIB)
            keep.fill_(1)
            self.assertEqual(int(keep[-1]), 1)

    def test_settings_before_an_error_count(self):
        with self.assertRaises(ValueError):
            configure("roundup_power2_divisions:2,pinned_num_register_threads:3")
        before = allocated()
        keep = block(5 * MIB)
        self.assertEqual(allocated() - before, 6 * MIB)
        del keep

    def test_the_snapshot_has_the_settings(self):
        configure("garbage_collection_threshold:0.75,roundup_power2_divisions:[2:4,>:1]")
        settings = torch.cuda.memory._snapshot()["allocator_settings"]
        self.assertEqual(settings["garbage_collection_threshold"], 0.75)
        self.assertEqual(settings["roundup_power2_divisions"]["2"], 4)
        self.assertIn("garbage_collection_threshold:0.75", settings["PYTORCH_CUDA_ALLOC_CONF"])

    @unittest.skipUnless(support.WEIR, "weir's own words")
    @unittest.skipUnless(hasattr(torch._C, "_accelerator_setAllocatorSettings"), "before 2.10 nobody tells")
    def test_memory_that_is_mapped_is_said_to_be(self):
        for policy, said in (("balanced", "True"), ("classic", "False")):
            done = run_program("""
                import torch
                torch.cuda.init()
                for text in (None, "expandable_segments:False,garbage_collection_threshold:0.5"):
                    if text is not None:
                        torch.cuda.memory._set_allocator_settings(text)
                    said = torch.cuda.memory._snapshot()["allocator_settings"]
                    print(said["expandable_segments"], said["garbage_collection_threshold"])
                """, environment={"WEIR_TORCH_POLICY": policy})
            self.assert_ran(done)
            self.assertEqual(done[1].split(), [said, "0.0", said, "0.5"], policy)

    @unittest.skipUnless(support.WEIR, "weir's own words")
    def test_keys_without_effect_are_named_once(self):
        done = run_program("""
            import torch
            torch.cuda.init()
            for size in (64, 128):
                torch.cuda.memory._set_allocator_settings(f"max_split_size_mb:{size}")
            torch.cuda.memory._set_allocator_settings("expandable_segments:True")
            torch.ones(10, device="cuda")
        """)
        self.assert_ran(done)
        self.assertEqual(done[2].count("the allocator setting max_split_size_mb has no effect"), 1, done[2])
        self.assertNotIn("expandable_segments has", done[2])

    def test_the_environment_is_read(self):
        done = run_program("""
            import torch
            keep = torch.empty(5 << 20, dtype=torch.uint8, device="cuda")
            print(torch.cuda.memory_allocated(), torch.cuda.get_per_process_memory_fraction())
        """, environment={"PYTORCH_CUDA_ALLOC_CONF":
                          "backend:native,roundup_power2_divisions:2,per_process_memory_fraction:0.5"})
        self.assert_ran(done)
        self.assertEqual(done[1].split(), [str(6 * MIB), "0.5"])


class WithoutCache(AllocatorTest):
    def tearDown(self):
        torch.cuda.caching_allocator_enable(True)
        super().tearDown()

    def test_requests_and_frees_pass_the_cache_by(self):
        cached = block(3 * MIB)
        counts = allocated(), reserved(), stat("allocation.all.allocated")
        torch.cuda.caching_allocator_enable(False)
        free, _ = torch.cuda.mem_get_info()
        plain = block(8 * GIB)  # more than other tests take or free meanwhile
        plain.fill_(7)
        self.assertEqual((allocated(), reserved(), stat("allocation.all.allocated")), counts)
        taken = free - torch.cuda.mem_get_info()[0]
        self.assertGreaterEqual(taken, 4 * GIB)
        plain.record_stream(torch.cuda.Stream())
        self.assertEqual(int(plain[-1]), 7)
        del plain
        self.assertGreaterEqual(torch.cuda.mem_get_info()[0], free - 4 * GIB)
        del cached  # of the cache, and goes back to it
        self.assertEqual(allocated(), counts[0] - 3 * MIB)
        self.assertEqual(reserved(), counts[1])

    def test_blocks_of_both_kinds_live_side_by_side(self):
        first = block(MIB)
        torch.cuda.caching_allocator_enable(False)
        second = block(MIB)
        torch.cuda.caching_allocator_enable(True)
        third = block(MIB)
        first.fill_(0)
        second.fill_(1)
        third.fill_(2)
        self.assertEqual([int(each.max()) for each in (first, second, third)], [0, 1, 2])
        base = allocated()
        del second
        self.assertEqual(allocated(), base)
        del first, third
        self.assertEqual(allocated(), base - 2 * MIB)

    def test_raw_blocks(self):
        requested = stat("requested_bytes.all.allocated")
        torch.cuda.caching_allocator_enable(False)
        plain = torch.cuda.caching_allocator_alloc(MIB)
        self.assertEqual(stat("requested_bytes.all.allocated"), requested)
        torch.cuda.caching_allocator_delete(plain)
        torch.cuda.caching_allocator_enable(True)
        cached = torch.cuda.caching_allocator_alloc(MIB)
        self.assertEqual(stat("requested_bytes.all.allocated"), requested + MIB)
        torch.cuda.caching_allocator_delete(cached)

    @unittest.skipUnless(support.WEIR, "torch's own frees it with the wrong function")
    def test_a_raw_block_of_before_goes_back_to_the_cache(self):
        base = allocated()
        cached = torch.cuda.caching_allocator_alloc(MIB)
        torch.cuda.caching_allocator_enable(False)
        plain = torch.cuda.caching_allocator_alloc(MIB)
        torch.cuda.caching_allocator_delete(cached)
        self.assertEqual(allocated(), base)
        torch.cuda.caching_allocator_enable(True)
        torch.cuda.caching_allocator_delete(plain)
        self.assertEqual(allocated(), base)

    def test_too_much_is_an_error_and_nothing_else(self):
        torch.cuda.caching_allocator_enable(False)
        with self.assertRaises(RuntimeError):
            block(1 << 46)
        x = block(MIB)
        x.fill_(3)
        self.assertEqual(int(x.sum(dtype=torch.int64)), 3 * MIB)
        del x

    def test_the_environment_forbids_the_cache(self):
        done = run_program("""
            import torch
            x = torch.ones(1 << 20, device="cuda")
            y = x * 2
            del x
            print(torch.cuda.memory_allocated(), torch.cuda.memory_reserved(), float(y.sum()))
        """, environment={"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"})
        self.assert_ran(done)
        self.assertEqual(done[1].split(), ["0", "0", str(float(2 << 20))])


if __name__ == "__main__":
    support.main()
