#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Who gets freed memory, and when: on a machine where work happens only when somebody waits for it."""

import unittest

from support import MIB, Case

import weir

SIZE = 4 * MIB


class Order(Case):
    """Memory that is freed in the order of one stream, while every stream has work to do."""

    options = {"sim_mode": "manual"}

    def setUp(self):
        super().setUp()
        self.own, self.other, self.third = (weir.Stream(self.device) for _ in range(3))
        work = weir.BinPool(self.device)
        self.work = {stream: work.allocate(MIB, stream) for stream in (self.own, self.other, self.third)}

    def tearDown(self):
        self.device.synchronize()
        super().tearDown()

    def keep_busy(self, **times):
        """Every stream has something to do; one that is waited for moves the others on, too, by chance."""
        for name in ("own", "other", "third"):
            stream = getattr(self, name)
            for _ in range(times.get(name, 1)):
                stream.fill(self.work[stream].ptr, 1, MIB)

    def pools(self):
        """Everything that gives memory to the stream it was freed on before others may have it."""
        return [(weir.Allocator(self.device, heap_queued_waits=False), weir.Allocator.allocate),
                (weir.StreamPool(self.device), weir.StreamPool.allocate),
                (weir.BinPool(self.device), weir.BinPool.allocate), (weir.BufferPool(), weir.BufferPool.take)]

    def expect_it_goes_to(self, stream, pool, allocate, address):
        """Freed memory is the stream's, and not yet another's."""
        for each in (self.own, self.other, self.third):
            if each is not stream:
                self.assertNotEqual(allocate(pool, SIZE, each).ptr, address)
        again = allocate(pool, SIZE, stream)
        self.assertEqual(again.ptr, address)
        self.assertFalse(stream.is_complete)  # nobody waited for it

    def expect_of_each(self, free, stream, left_out=()):
        """What `free` frees goes to the stream, whatever pool it is of."""
        for pool, allocate in self.pools():
            if isinstance(pool, left_out):
                continue
            with self.subTest(pool=type(pool).__name__):
                block = allocate(pool, SIZE, self.own)
                address = block.ptr
                self.keep_busy()
                free(pool, block)
                del block
                self.expect_it_goes_to(stream, pool, allocate, address)

    def test_free_is_in_the_order_of_the_blocks_stream(self):
        self.expect_of_each(lambda pool, block: block.free(), self.own)

    def test_free_is_in_the_order_of_the_stream_that_is_named(self):
        self.expect_of_each(lambda pool, block: block.free(self.other), self.other)

    def test_the_end_of_a_with_statement_is_in_the_order_of_the_blocks_stream(self):
        def leave(pool, block):
            with block as same:
                self.assertIs(same, block)
            self.assertEqual((block.ptr, block.stream), (0, None))

        self.expect_of_each(leave, self.own)

    def test_deallocate_is_in_the_order_of_the_stream_that_is_named(self):
        self.expect_of_each(lambda pool, block: pool.deallocate(block.release(), self.other), self.other)

    def test_deallocate_without_a_stream_is_in_the_order_of_the_blocks_stream(self):
        self.expect_of_each(lambda pool, block: pool.deallocate(block.release()), self.own,
                            left_out=weir.StreamPool)  # the legacy stream's there

    def test_deallocate_with_a_size_keeps_the_order(self):
        self.expect_of_each(lambda pool, block: pool.deallocate(block.release(), self.other, size=SIZE), self.other,
                            left_out=(weir.BinPool, weir.BufferPool))

    def test_deallocate_with_a_size_alone_is_in_the_order_of_the_blocks_stream(self):
        self.expect_of_each(lambda pool, block: pool.deallocate(block.release(), size=SIZE), self.own,
                            left_out=(weir.StreamPool, weir.BinPool, weir.BufferPool))  # the legacy stream's, and none

    def test_what_is_forgotten_is_free_in_the_order_of_its_stream(self):
        for pool, allocate in self.pools():
            with self.subTest(pool=type(pool).__name__):
                block = allocate(pool, SIZE, self.own)
                address = block.ptr
                self.keep_busy()
                del block
                self.expect_it_goes_to(self.own, pool, allocate, address)

    def test_streams_of_others_keep_the_same_order(self):
        memory = weir.Allocator(self.device, heap_queued_waits=False)
        for free in (lambda block: block.free(self.other.handle),
                     lambda block: memory.deallocate(block.release(), self.other.handle),
                     lambda block: memory.deallocate(block.release(), self.other.handle, size=SIZE)):
            block = memory.allocate(SIZE, self.own.handle)
            address = block.ptr
            self.assertEqual(memory.find_block(address).stream, self.own.id)
            self.keep_busy()
            free(block)
            self.expect_it_goes_to(self.other, memory,
                                   lambda pool, size, stream: pool.allocate(size, stream.handle), address)
            self.device.synchronize()
            memory.empty_cache()

    def test_recorded_streams_are_waited_for(self):
        def record_block(pool, block):
            block.record_stream(self.other)

        def record_address(pool, block):
            pool.record_stream(block.ptr, self.other)

        for record in (record_block, record_address):
            for pool, allocate in self.pools():
                if not isinstance(pool, weir.StreamPool):  # the driver's pools know no recorded streams
                    with self.subTest(pool=type(pool).__name__, record=record.__name__):
                        self.expect_a_wait_for_other(pool, allocate, record)

    def test_recorded_streams_of_others_are_waited_for(self):
        self.expect_a_wait_for_other(weir.Allocator(self.device, heap_queued_waits=False), weir.Allocator.allocate,
                                     lambda pool, block: pool.record_stream(block, self.other.handle))

    def expect_a_wait_for_other(self, pool, allocate, record):
        """After `record`, not even the block's own stream gets it back before `other` is done."""
        block = allocate(pool, SIZE, self.own)
        address = block.ptr
        self.keep_busy()
        record(pool, block)
        block.free()
        held = allocate(pool, SIZE, self.own)
        self.assertNotEqual(held.ptr, address)
        self.other.synchronize()
        self.assertEqual(allocate(pool, SIZE, self.own).ptr, address)

    def test_pinned_memory_is_the_hosts_again_when_its_stream_is_done(self):
        for free, done, early in ((lambda pool, block: block.free(), "own", "other"),
                                  (lambda pool, block: block.free(self.other), "other", "own"),
                                  (lambda pool, block: pool.deallocate(block.release()), "own", "other"),
                                  (lambda pool, block: pool.deallocate(block.release(), self.other), "other", "own")):
            pool = weir.PinnedPool(self.device)
            block = pool.allocate(SIZE, self.own)
            address = block.ptr
            self.keep_busy(**{done: 100})
            free(pool, block)
            getattr(self, early).synchronize()
            self.assertFalse(getattr(self, done).is_complete)
            held = pool.allocate(SIZE, self.third)
            self.assertNotEqual(held.ptr, address)
            getattr(self, done).synchronize()
            self.assertEqual(pool.allocate(SIZE, self.third).ptr, address)


if __name__ == "__main__":
    unittest.main()
