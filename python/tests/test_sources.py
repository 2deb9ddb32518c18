#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Pools over memory of the program's own: an object with allocate() and deallocate() in place of the driver."""

import gc
import unittest
import unittest.mock

import support
import weir
from weir import _sources


class Ledger:
    """A source over another allocator, which keeps account."""

    def __init__(self, device, limit=1 << 40):
        self.memory = weir.Allocator(device)
        self.limit = limit
        self.live = {}
        self.calls = []

    def allocate(self, nbytes, stream):
        if sum(block.nbytes for block in self.live.values()) + nbytes > self.limit:
            raise MemoryError
        block = self.memory.allocate(nbytes)
        self.live[block.ptr] = block
        self.calls.append(("allocate", nbytes, stream))
        return block.ptr

    def deallocate(self, address, nbytes):
        block = self.live.pop(address)
        assert block.nbytes == nbytes, (block.nbytes, nbytes)
        self.calls.append(("deallocate", nbytes))
        block.free()


class Sources(support.Case):
    def setUp(self):
        super().setUp()
        self.source = Ledger(self.device)

    def test_a_bin_pool_takes_its_blocks_from_the_source_and_gives_them_back(self):
        pool = weir.BinPool(self.device, source=self.source)
        block = pool.allocate(1 << 20)
        self.assertEqual([call[:2] for call in self.source.calls], [("allocate", 1 << 20)])
        self.assertIn(block.ptr, self.source.live)
        block.free()
        self.assertIn(("allocate", 1 << 20), [call[:2] for call in self.source.calls])
        self.assertEqual(len(self.source.calls), 1)  # cached
        self.assertEqual(pool.empty_cache(), 1 << 20)
        self.assertEqual(self.source.live, {})
        known = len(_sources._sources)
        pool.close()
        self.assertEqual(len(_sources._sources), known - 1)

    def test_a_pool_that_is_closed_gives_memory_back_with_its_last_block(self):
        known = len(_sources._sources)
        pool = weir.BinPool(self.device, source=self.source)
        block = pool.allocate(4096)
        address = block.release()
        pool.deallocate(address)
        pool.close()
        self.assertEqual(self.source.live, {})
        self.assertEqual(len(_sources._sources), known)

    def test_a_private_pool_takes_its_segments_from_the_source(self):
        memory = weir.Allocator(self.device)
        with memory.pool("theirs", source=self.source) as pool:
            block = pool.allocate(3 << 20)
            self.assertEqual(len(self.source.live), 1)
            (start, segment), = self.source.live.items()
            self.assertTrue(start <= block.ptr < start + segment.nbytes)
            block.free()
        memory.close()
        self.assertEqual(self.source.live, {})

    def test_one_block_for_each_segment(self):
        memory = weir.Allocator(self.device)
        with memory.pool("whole", source=self.source, one_block=True) as pool:
            blocks = [pool.allocate(1 << 20) for _ in range(2)]
            self.assertEqual(len(self.source.live), 2)
            for block in blocks:
                block.free()
        memory.close()

    def test_a_memory_error_of_the_source_is_out_of_memory(self):
        self.source.limit = 1 << 20
        pool = weir.BinPool(self.device, source=self.source)
        with self.assertRaises(weir.OutOfMemory):
            pool.allocate(2 << 20)
        pool.allocate(1 << 20).free()
        pool.close()

    def test_another_exception_is_shown_and_refuses_the_request(self):
        shown = []
        self.source.allocate = lambda nbytes, stream: 1 // 0
        pool = weir.BinPool(self.device, source=self.source)
        with unittest.mock.patch("sys.excepthook", lambda *problem: shown.append(problem[0])):
            with self.assertRaises(weir.Error) as refused:
                pool.allocate(4096)
        self.assertIn("the program's memory source", str(refused.exception))
        self.assertEqual(shown, [ZeroDivisionError])
        self.assertTrue(gc.isenabled())
        pool.close()

    def test_what_is_no_source_is_refused(self):
        memory = weir.Allocator(self.device)
        for make in (lambda: weir.BinPool(self.device, source=object()), lambda: memory.pool("p", source=42)):
            with self.assertRaisesRegex(TypeError, r"expected an object with allocate\(\) and deallocate\(\)"):
                make()
        for options in ({"one_block": True}, {"source": self.source, "exportable": True}):
            with self.assertRaises(ValueError):
                memory.pool("p", **options)

    def test_a_pool_that_is_open_when_the_interpreter_ends_gives_its_memory_back(self):
        self.expect_silence(support.run("""
import weir
class Source:
    def __init__(self, memory): self.memory, self.blocks = memory, {}
    def allocate(self, nbytes, stream):
        block = self.memory.allocate(nbytes)
        self.blocks[block.ptr] = block
        return block.ptr
    def deallocate(self, address, nbytes): self.blocks.pop(address).free()
device = weir.Runtime(runtime="sim").device(0)
source = Source(weir.Allocator(device))
pool = weir.BinPool(device, source=source)
pool.allocate(4096).free()
print(len(source.blocks))
"""), "1\n")


class Configurations(support.Case):
    def test_are_checked_without_a_driver(self):
        weir.StreamPool.validate(initial=1 << 20, maximum=1 << 21)
        with self.assertRaises(weir.InvalidArgument):
            weir.StreamPool.validate(initial=2 << 20, maximum=1 << 20)


if __name__ == "__main__":
    unittest.main()
