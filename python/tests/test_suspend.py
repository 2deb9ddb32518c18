#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Suspended memory from Python, on a simulated GPU."""

import ctypes
import threading
import unittest
import unittest.mock

from support import MIB, Case

import weir


class Suspend(Case):
    def setUp(self):
        super().setUp()
        self.memory = weir.Allocator(self.device)
        self.addCleanup(self.memory.close)
        self.stream = weir.Stream(self.device)
        self.addCleanup(self.stream.close)
        self.device.synchronize()
        self.free = self.device.memory()[0]  # the context is there, and nothing else

    def filled(self, tag, nbytes, value):
        with weir.tag(tag):
            block = self.memory.allocate(nbytes, self.stream)
        weir._native.lib.weir_fill(block.ptr, value, nbytes, self.stream._handle)
        return block

    def ends(self, block):
        """The first and the last byte."""
        found = (ctypes.c_uint8 * 2)()
        for number, address in enumerate((block.ptr, block.ptr + block.nbytes - 1)):
            weir._native.lib.weir_copy(ctypes.addressof(found) + number, address, 1, self.stream._handle)
        self.stream.synchronize()
        return list(found)

    def in_use(self):
        return self.free - self.device.memory()[0]

    def test_a_tag_goes_to_the_driver_and_comes_back(self):
        self.memory.declare_suspendable("py weights")
        self.assertFalse(self.memory.is_suspended("py weights"))
        block = self.filled("py weights", 8 * MIB, 7)
        address = block.ptr
        self.assertEqual(self.memory.suspend("py weights"), weir.SuspendOutcome(8 * MIB, 8 * MIB, 0))
        self.assertTrue(self.memory.is_suspended("py weights"))
        self.assertEqual(self.in_use(), 0)  # anybody's
        self.assertEqual(self.memory.suspend_stats(), weir.SuspendStats(8 * MIB, weir.Gauge(32 * MIB, 32 * MIB),
                                                                        weir.Gauge(8 * MIB, 8 * MIB)))
        self.assertTrue(self.memory.is_address_suspended(address + 5))
        self.assertIn(" is 5 bytes into a live block whose memory is suspended: ",
                      self.memory.describe_address(address + 5))
        self.assertRaises(weir.BadPointer, self.memory.is_address_suspended, 5)
        self.assertEqual(self.memory.suspend_stats("py weights").backup.current, 8 * MIB)
        self.assertEqual(self.memory.suspend("py weights"), weir.SuspendOutcome())  # twice is once
        self.assertEqual(self.memory.resume("py weights"), weir.ResumeOutcome(8 * MIB, 8 * MIB))
        self.assertEqual(self.memory.resume("py weights"), weir.ResumeOutcome())
        self.assertEqual((block.ptr, self.ends(block)), (address, [7, 7]))
        self.assertFalse(self.memory.is_address_suspended(address))
        self.assertEqual(self.memory.suspend_stats().suspended, 0)
        block.free()

    def test_without_waiting(self):
        self.memory.declare_suspendable("py weights")
        block = self.filled("py weights", 4 * MIB, 9)
        pool = self.memory.pool("py pool")
        for owner, what in ((self.memory, ("py weights",)), (self.memory, ())):
            self.assertEqual(owner.suspend(*what, wait=False), weir.SuspendOutcome())
            self.assertEqual(owner.suspend(*what), weir.SuspendOutcome())  # waits for it
            self.assertTrue(self.memory.is_suspended("py weights"))
            self.assertEqual(owner.resume(*what, ahead_of=self.stream), weir.ResumeOutcome(4 * MIB, 4 * MIB))
            self.assertEqual(self.ends(block), [9, 9])
        block.free()
        block = pool.allocate(2 * MIB, self.stream)
        pool.suspend(wait=False, contents="discard", streams="known")
        pool.suspend()
        self.assertTrue(pool.is_suspended)
        self.assertEqual(pool.resume(ahead_of=self.stream), weir.ResumeOutcome(2 * MIB, 0))
        block.free()
        pool.close()
        with self.assertRaisesRegex(ValueError, "streams: expected one of 'all', 'known', got 'some'"):
            self.memory.suspend(wait=False, streams="some")
        with self.assertRaisesRegex(ValueError, "needs a suspend.. with wait=True"):
            self.memory.suspend(wait=False, progress=print)
        with self.assertRaisesRegex(ValueError, "needs a resume.. with wait=True"):
            self.memory.resume(ahead_of=self.stream, progress=print)

    def test_a_block_of_code_with_memory_away(self):
        self.memory.declare_suspendable("py weights")
        block = self.filled("py weights", 4 * MIB, 3)
        with self.memory.suspended("py weights", to="pageable") as outcome:
            self.assertEqual(outcome.saved, 4 * MIB)
            self.assertEqual(self.in_use(), 0)
        self.assertFalse(self.memory.is_suspended("py weights"))
        with self.assertRaises(KeyError), self.memory.suspended("py weights"):
            raise KeyError
        self.assertFalse(self.memory.is_suspended("py weights"))
        self.assertEqual(self.ends(block), [3, 3])
        with self.memory.suspended() as outcome:  # everything
            self.assertEqual(outcome, weir.SuspendOutcome(4 * MIB, 4 * MIB, 0))
        self.assertEqual(self.ends(block), [3, 3])
        block.free()

    def test_contents_may_be_discarded(self):
        self.memory.declare_suspendable("py cache")
        block = self.filled("py cache", 4 * MIB, 3)
        self.assertEqual(self.memory.suspend("py cache", contents="discard"), weir.SuspendOutcome(4 * MIB, 0, 0))
        self.assertEqual(self.memory.suspend_stats().backup, weir.Gauge(0, 0))
        self.assertEqual(self.memory.resume("py cache"), weir.ResumeOutcome(4 * MIB, 0))
        block.free()

    def test_requests_meanwhile(self):
        self.memory.declare_suspendable("py weights")
        block = self.filled("py weights", 4 * MIB, 3)
        self.memory.suspend("py weights")
        with weir.tag("py weights"), self.assertRaises(weir.Suspended) as caught:
            self.memory.allocate(MIB, self.stream)
        self.assertEqual((caught.exception.code, caught.exception.name), (35, "suspended"))
        self.assertIn("py weights", str(caught.exception))
        self.memory.allocate(MIB, self.stream).free()  # other memory is there
        self.memory.resume("py weights")

        self.memory.suspend("py weights", requests="resume")
        with weir.tag("py weights"):
            self.memory.allocate(MIB, self.stream).free()
        self.assertFalse(self.memory.is_suspended("py weights"))

        self.memory.suspend("py weights", requests="wait")
        done = []

        def wait():
            with weir.tag("py weights"):
                self.memory.allocate(MIB, self.stream).free()
            done.append(self.memory.is_suspended("py weights"))

        waiter = threading.Thread(target=wait)
        waiter.start()
        waiter.join(0.05)
        self.assertEqual(done, [])
        self.memory.resume("py weights")
        waiter.join()
        self.assertEqual(done, [False])
        block.free()
        self.assertEqual(self.memory.stats().blocks.current, 0)

    def test_a_resume_that_finds_no_memory_is_typed_and_can_be_tried_again(self):
        self.memory.declare_suspendable("py weights")
        block = self.filled("py weights", 200 * MIB, 9)
        self.memory.suspend("py weights")
        other = weir.Allocator(self.device)  # somebody else on the card
        taken = other.allocate((self.device.memory()[0] - 100 * MIB) // (2 * MIB) * (2 * MIB))
        for _ in range(2):
            with self.assertRaises(weir.OutOfMemory) as caught:
                self.memory.resume("py weights")
            self.assertIn("200 MiB are needed to resume it", str(caught.exception))
            self.assertIn("suspended", caught.exception.report)
            self.assertTrue(self.memory.is_suspended("py weights"))
        taken.free()
        other.close()
        self.assertEqual(self.memory.resume("py weights").restored, 200 * MIB)
        self.assertEqual(self.ends(block), [9, 9])
        block.free()

    def test_progress_is_told_in_chunks(self):
        self.memory.declare_suspendable("py weights")
        block = self.filled("py weights", 5 * MIB, 3)
        told = []

        def note(done, total):
            self.memory.stats()  # no lock is held
            told.append((done // MIB, total // MIB))

        self.memory.suspend("py weights", chunk=2 * MIB, progress=note)
        self.assertEqual(told, [(2, 5), (4, 5), (5, 5)])
        self.memory.resume("py weights", progress=note)
        self.assertEqual(told, [(2, 5), (4, 5), (5, 5)] * 2)
        with self.memory.suspended("py weights", chunk=2 * MIB, progress=note):
            self.assertEqual(len(told), 9)
        self.assertEqual(len(told), 12)
        self.assertEqual(self.ends(block), [3, 3])
        block.free()

    def test_what_progress_raises_changes_nothing(self):
        self.memory.declare_suspendable("py weights")
        block = self.filled("py weights", 4 * MIB, 3)

        def fail(done, total):
            raise KeyboardInterrupt

        with unittest.mock.patch("sys.excepthook") as hook:
            self.assertEqual(self.memory.suspend("py weights", chunk=2 * MIB, progress=fail),
                             weir.SuspendOutcome(4 * MIB, 4 * MIB, 0))
            self.assertEqual([call.args[0] for call in hook.call_args_list], [KeyboardInterrupt] * 2)
            self.assertEqual(self.memory.resume("py weights", progress=fail).restored, 4 * MIB)
            self.assertEqual(hook.call_count, 4)
        self.assertEqual(self.ends(block), [3, 3])
        block.free()

    def test_tags_come_back_one_at_a_time(self):
        blocks = {}
        for value, name in enumerate(("py weights", "py optimizer", "py cache"), 1):
            self.memory.declare_suspendable(name)
            blocks[name] = self.filled(name, 4 * MIB, value)
        self.assertEqual(self.memory.suspend().released, 12 * MIB)
        for number, name in enumerate(blocks, 1):
            self.memory.resume(name)
            self.assertEqual(self.in_use(), 4 * MIB * number)
            self.assertEqual(self.ends(blocks[name]), [number, number])
        for block in blocks.values():
            block.free()

    def test_a_block_that_is_freed_meanwhile_does_not_come_back(self):
        self.memory.declare_suspendable("py weights")
        block, gone = self.filled("py weights", 4 * MIB, 3), self.filled("py weights", 4 * MIB, 4)
        self.memory.suspend("py weights")
        gone.free()
        self.assertEqual(self.memory.resume("py weights"), weir.ResumeOutcome(4 * MIB, 4 * MIB))
        self.assertEqual(self.ends(block), [3, 3])
        block.free()

    def test_a_pool_is_suspended_like_a_tag(self):
        plain = self.memory.pool("py plain")
        pool = self.memory.pool("py apart", suspendable=True)
        kept, block = plain.allocate(2 * MIB, self.stream), pool.allocate(64 * MIB, self.stream)
        self.assertEqual(self.memory.snapshot().pools[-1].physical[0].size, 64 * MIB)  # in one piece
        with pool.suspended(contents="discard") as outcome:
            self.assertEqual(outcome, weir.SuspendOutcome(64 * MIB, 0, 0))
            self.assertTrue(pool.is_suspended)
            self.assertFalse(plain.is_suspended)
            self.assertEqual(pool.suspend_stats(),
                             weir.SuspendStats(64 * MIB, weir.Gauge(0, 0), weir.Gauge(64 * MIB, 64 * MIB)))
            self.assertRaises(weir.Suspended, pool.allocate, 512)
        self.assertFalse(pool.is_suspended)
        self.assertEqual(plain.suspend().released, 2 * MIB)
        self.assertEqual(plain.resume().restored, 2 * MIB)
        kept.free()
        block.free()
        pool.close()
        plain.close()

    def test_what_nobody_says_is_kept_and_of_priority_0(self):
        options = weir._suspend.suspendable_options()
        self.assertEqual((options.evictable, options.priority), (0, 0))
        eviction = options.eviction.contents
        self.assertEqual((eviction.contents, eviction.backup, eviction.requests, eviction.chunk), (0, 0, 2, 0))

    def test_what_is_evictable_makes_room_the_lowest_priority_first(self):
        self.memory.declare_suspendable("py weights", evictable=True, priority=2)
        self.memory.declare_suspendable("py cache", evictable=True, priority=1, contents="discard")
        self.memory.limit = 64 * MIB
        weights, cache = self.filled("py weights", 20 * MIB, 5), self.filled("py cache", 20 * MIB, 6)
        first = self.memory.allocate(40 * MIB, self.stream)
        away = [self.memory.is_suspended(name) for name in ("py weights", "py cache")]
        self.assertEqual((away, self.memory.suspend_stats().backup.current), ([False, True], 0))
        second = self.memory.allocate(20 * MIB, self.stream)
        self.assertTrue(self.memory.is_suspended("py weights"))
        first.free()
        second.free()
        with weir.tag("py weights"):
            self.memory.allocate(MIB, self.stream).free()  # a request brings it back
        self.assertEqual(self.ends(weights), [5, 5])
        pool = self.memory.pool("py evictable", evictable=True, priority=-1)
        block = pool.allocate(20 * MIB, self.stream)
        third = self.memory.allocate(40 * MIB, self.stream)
        self.assertTrue(pool.is_suspended)
        for each in (weights, cache, block, third):
            each.free()
        pool.close()

    def test_host_memory_is_kept_until_it_is_trimmed(self):
        self.memory.reserve_backup(40 * MIB)
        self.assertEqual(self.memory.suspend_stats().backup.current, 64 * MIB)
        self.memory.reserve_backup(1, "pageable")
        self.assertEqual(self.memory.suspend_stats().backup.current, 96 * MIB)
        self.assertEqual(self.memory.trim_backup(), 96 * MIB)
        self.assertEqual(self.memory.trim_backup(), 0)
        self.assertEqual(self.memory.suspend_stats().backup, weir.Gauge(0, 96 * MIB))

    def test_what_has_no_meaning_is_refused(self):
        self.memory.declare_suspendable("py weights")
        for arguments, words in (({"contents": "lose"}, "contents: expected one of 'keep', 'discard', got 'lose'"),
                                 ({"to": "disk"}, "to: expected one of 'pinned', 'pageable', got 'disk'"),
                                 ({"requests": "hope"}, "requests: expected one of 'fail', 'wait', 'resume', got 'hope'"),
                                 ({"chunk": 0}, "chunk must be at least 512 bytes")):
            with self.assertRaisesRegex(ValueError, words):
                self.memory.suspend("py weights", **arguments)
            with self.assertRaisesRegex(ValueError, words):
                self.memory.declare_suspendable("py weights", **arguments)
        with self.assertRaisesRegex(ValueError, "kind: expected one of"):
            self.memory.reserve_backup(1, "disk")
        with self.assertRaises(weir.InvalidArgument):
            self.memory.declare_suspendable("")
        with self.assertRaises(weir.Error) as caught:
            self.memory.suspend("py nobody declared this")
        self.assertEqual(caught.exception.name, "not_found")


class Classic(Case):
    def test_everything_cannot_go_and_a_tag_can(self):
        with weir.Allocator(self.device, heap_policy="classic") as memory:
            block = memory.allocate(MIB)
            self.assertRaises(weir.NotSupported, memory.suspend)
            memory.declare_suspendable("py weights")
            with weir.tag("py weights"):
                apart = memory.allocate(4 * MIB)
            with memory.suspended("py weights") as outcome:
                self.assertEqual(outcome.released, 4 * MIB)
            apart.free()
            block.free()


if __name__ == "__main__":
    unittest.main()
