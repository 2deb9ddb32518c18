# SPDX-License-Identifier: Apache-2.0
"""Uses on streams that nobody declared, found when the memory is freed: weir.torch.watch_uses()."""

import support
import torch
from support import GPU, AllocatorTest

import weir.torch

MANY = 1 << 20


class Uses(AllocatorTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.found = []
        weir.torch.watch_uses(cls.found.append)

    def setUp(self):
        super().setUp()
        self.side = torch.cuda.Stream()
        torch.cuda.synchronize()
        self.found.clear()

    def use(self, x):
        with torch.cuda.stream(self.side):
            return x * 2

    def test_a_use_that_nobody_declared_is_told_at_the_free(self):
        x = torch.ones(MANY, device=GPU)
        address = x.untyped_storage().data_ptr()
        y = self.use(x)
        del x
        self.assertEqual([(each.address, each.stream, each.used_on, each.operation) for each in self.found],
                         [(address, torch.cuda.current_stream().cuda_stream, self.side.cuda_stream, "aten::mul")])
        self.assertIn("use", [function for _, _, function in self.found[0].used_at])
        self.assertIn("test_a_use_that_nobody_declared_is_told_at_the_free",
                      [function for _, _, function in self.found[0].freed_at])
        del y

    def test_record_stream_declares_it(self):
        x = torch.ones(MANY, device=GPU)
        y = self.use(x)
        x.record_stream(self.side)
        del x, y
        self.assertEqual(self.found, [])

    def test_a_wait_of_the_blocks_stream_covers_it(self):
        x = torch.ones(MANY, device=GPU)
        y = self.use(x)
        torch.cuda.current_stream().wait_stream(self.side)
        del x, y
        self.assertEqual(self.found, [])

    def test_a_wait_of_the_host_covers_it(self):
        for wait in (torch.cuda.synchronize, self.side.synchronize):
            x = torch.ones(MANY, device=GPU)
            y = self.use(x)
            wait()
            del x, y
            self.assertEqual(self.found, [])

    def test_views_and_uses_on_the_own_stream_are_in_order(self):
        x = torch.ones(MANY, device=GPU)
        with torch.cuda.stream(self.side):
            y = x.view(2, -1)
        z = x + 1
        del x, y, z
        self.assertEqual(self.found, [])


if __name__ == "__main__":
    support.main()
