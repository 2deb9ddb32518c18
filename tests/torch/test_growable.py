# SPDX-License-Identifier: Apache-2.0
"""weir.torch.growable() and growable_list() inside torch's own allocator."""

import unittest

import support
import torch
from support import GPU, MIB, AllocatorTest

if support.WEIR:
    import weir.torch


@unittest.skipUnless(support.WEIR, "growable memory is weir's")
class Growable(AllocatorTest):
    def rows(self, count, value):
        return torch.full((count, 512, 512), float(value), device=GPU)

    def make(self, rows=64):
        made = weir.torch.growable((rows, 512, 512), torch.float32, page="4 MiB")
        self.addCleanup(made.close)
        return made

    def test_rows_are_appended_without_moving(self):
        grown = self.make()
        self.assertEqual((len(grown), grown.committed, grown.capacity), (0, 0, 64))
        address = grown.full.data_ptr()
        for value in range(10):
            added = grown.append(self.rows(1, value)[0])
            self.assertEqual(added.shape, (1, 512, 512))
        self.assertEqual(grown.tensor.shape, (10, 512, 512))
        self.assertEqual(grown.tensor.data_ptr(), address)
        self.assertTrue(grown.tensor.is_contiguous())
        self.assertEqual(grown.committed, 12 * MIB)
        self.assertEqual([int(row.max()) for row in grown.tensor], list(range(10)))
        self.assertEqual([int(row.min()) for row in grown.tensor], list(range(10)))

    def test_it_shrinks_and_grows_again(self):
        grown = self.make()
        grown.append(self.rows(16, 3))
        grown.shrink(5)
        self.assertEqual((len(grown), grown.committed), (5, 8 * MIB))
        grown.append(self.rows(3, 4))
        self.assertEqual([int(row.max()) for row in grown.tensor], [3] * 5 + [4] * 3)
        self.assertEqual(grown.resize(12).shape[0], 12)
        grown.shrink()
        self.assertEqual((len(grown), grown.committed), (0, 0))

    def test_what_it_cannot_hold_is_refused(self):
        grown = self.make(8)
        self.assertRaises(ValueError, grown.append, self.rows(9, 0))
        self.assertRaises(ValueError, grown.append, torch.zeros(512, 511, device=GPU))
        self.assertRaises(ValueError, grown.shrink, 1)
        self.assertRaises(ValueError, weir.torch.growable, (0, 4))
        self.assertEqual(len(grown), 0)

    def test_pages_serve_tensors_and_tensors_pages(self):
        grown = self.make()
        grown.append(self.rows(32, 1))
        reserved = torch.cuda.memory_reserved()
        grown.shrink()
        torch.cuda.synchronize()
        tensor = torch.zeros(24 * MIB, dtype=torch.uint8, device=GPU)
        self.assertEqual(torch.cuda.memory_reserved(), reserved)
        del tensor

    def test_a_list_is_one_tensor(self):
        grown = weir.torch.growable_list((64, 512, 512), torch.float32, page="4 MiB")
        self.addCleanup(grown.rows.close)
        parts = [self.rows(count, count) for count in (1, 3, 2)]
        for part in parts:
            grown.append(part)
        self.assertTrue(torch.equal(grown.cat(), torch.cat(parts)))
        self.assertEqual(len(grown), 3)
        self.assertTrue(torch.equal(grown[1], parts[1]))
        self.assertTrue(torch.equal(grown[-1], parts[2]))
        self.assertEqual([part.shape[0] for part in grown], [1, 3, 2])
        grown.pop()
        self.assertTrue(torch.equal(grown.cat(), torch.cat(parts[:2])))
        grown.clear()
        self.assertEqual((len(grown), grown.cat().shape[0]), (0, 0))

    def test_a_graph_keeps_its_pages(self):
        grown = self.make()
        grown.append(self.rows(4, 1))
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        static = grown.tensor
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.graph(graph, stream=stream):
            static.add_(1)
        grown.tie_to_graph(graph)
        graph.instantiate()
        graph.replay()
        self.assertEqual(int(grown.tensor.min()), 2)
        torch.cuda.synchronize()
        grown.shrink()
        graph.replay()  # the pages are held
        torch.cuda.synchronize()
        del graph

    def test_half_precision(self):
        grown = weir.torch.growable((1024, 4096), torch.bfloat16, page="2 MiB")
        self.addCleanup(grown.close)
        grown.append(torch.ones(3, 4096, dtype=torch.bfloat16, device=GPU))
        self.assertEqual(grown.tensor.dtype, torch.bfloat16)
        self.assertEqual(float(grown.tensor.sum()), 3 * 4096)



if __name__ == "__main__":
    support.main()
