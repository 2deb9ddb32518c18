#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What an allocator holds, in words."""

import unittest
from types import SimpleNamespace

from support import GIB, MIB, Case

import weir
from weir._report import allocator_report, size_text


class Report(Case):
    def test_sizes_are_short(self):
        for nbytes, text in ((0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (1536, "1.5 KiB"), (MIB - 1, "1024 KiB"),
                             (MIB, "1 MiB"), (100 * MIB, "100 MiB"), (GIB + GIB // 8, "1.12 GiB"),
                             (1 << 40, "1 TiB"), (1 << 50, "1024 TiB")):
            self.assertEqual(size_text(nbytes), text)

    def test_it_says_who_holds_what(self):
        gauge = weir.Gauge
        stats = weir.Stats(requested=gauge(3 * MIB, 4 * MIB), reserved=gauge(6 * MIB, 10 * MIB), blocks=gauge(2, 5),
                           cached=MIB, thread_cached=1024, pending=2048, allocations=8, hits=6, failures=1,
                           handles_created=11, handles_moved=12, handles_released=13)
        tagged = weir.Stats(requested=gauge(MIB, 2 * MIB), blocks=gauge(1, 3))
        device = SimpleNamespace(number=1, info=SimpleNamespace(name="a GPU"), memory=lambda: (3 * GIB, 4 * GIB))
        memory = SimpleNamespace(stats=lambda: stats, device=device, limit=None,
                                 stats_by_tag=lambda: {"": stats, "model": tagged})
        lines = ["weir under CuPy, device 1 (a GPU)",
                 "  live: 3 MiB in 2 blocks, peak 4 MiB",
                 "  reserved: 6 MiB, peak 10 MiB, 2.500 of the requested memory",
                 "  cached: 1 MiB, 1 KiB of it by threads; waiting for streams: 2 KiB",
                 "  8 allocations, 75.0% without a lock, 1 failed; 11 pieces of memory taken from the driver, "
                 "12 moved, 13 released",
                 "  device: 4 GiB, 3 GiB free",
                 "  tag 'model': 1 MiB in 1 blocks, peak 2 MiB"]
        self.assertEqual(allocator_report(memory, "CuPy").splitlines(), lines)
        memory.limit = GIB
        lines[2] += ", limit 1 GiB"
        self.assertEqual(allocator_report(memory, "CuPy").splitlines(), lines)
        stats = weir.Stats()  # nothing was asked for yet
        self.assertIn("1.000 of the requested memory", allocator_report(memory, "CuPy"))
        self.assertIn("0 allocations, 0.0% without a lock", allocator_report(memory, "CuPy"))


if __name__ == "__main__":
    unittest.main()
