#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Devices beside each other, and what an allocator does for them and for streams that were joined."""

import unittest

import support
import weir
from support import MIB


class Devices(support.Case):
    options = {"sim_devices": 2}

    def setUp(self):
        super().setUp()
        self.second = self.machine.device(1)

    def test_priorities(self):
        least, greatest = self.device.stream_priorities()
        self.assertLess(greatest, least)
        weir.Stream(self.device, priority=greatest).close()

    def test_peers(self):
        self.assertTrue(self.device.can_access_peer(self.device))
        self.assertIs(self.device.can_access_peer(self.second), True)
        for enabled in (True, True, False, False):
            self.device.set_peer_access(self.second, enabled)
        with weir.Allocator(self.device) as memory:
            block = memory.allocate(MIB)
            memory.enable_peer(self.second)
            with self.assertRaises(weir.InvalidArgument):
                memory.enable_peer(self.device)
            block.free()

    def test_an_event_behind_all_work(self):
        streams = [weir.Stream(self.device) for _ in range(2)]
        with weir.Allocator(self.device) as memory:
            blocks = [memory.allocate(MIB, stream) for stream in streams]
            for block, stream in zip(blocks, streams):
                stream.fill(block.ptr, 1, MIB)
            event = weir.Event(self.device)
            event.record_all()
            self.assertNotEqual(event.handle, 0)
            event.synchronize()
            self.assertTrue(all(stream.is_complete for stream in streams))
            for block in blocks:
                block.free()

    def test_shrinking(self):
        with weir.Allocator(self.device) as memory:
            memory.allocate(64 * MIB).free()
            self.assertEqual(memory.shrink(), 64 * MIB)
            self.assertEqual(memory.stats().reserved.current, 0)

    def test_streams_that_were_joined(self):
        first, second = weir.Stream(self.device), weir.Stream(self.device)
        with weir.Allocator(self.device) as memory:
            block = memory.allocate(MIB, first)
            memory.record_stream(block, second)
            self.assertFalse(memory.assume_joined(block.ptr))
            address = block.ptr
            block.free()
            self.assertTrue(memory.assume_joined(address))

    def test_a_pool_as_fallback(self):
        with weir.Allocator(self.device) as memory, memory.pool("fallback") as pool:
            pool.allocate(16 * MIB).free()
            memory.limit = memory.stats().reserved.current
            pool.set_fallback()
            memory.allocate(16 * MIB).free()
            self.assertEqual(memory.stats().reserved.current, 16 * MIB)
            pool.set_fallback(False)


if __name__ == "__main__":
    unittest.main()
