# SPDX-License-Identifier: Apache-2.0
"""OutOfMemoryError, what happens before and after it, and the memory fraction."""

import gc

import support
import torch
from support import GIB, GPU, MIB, AllocatorTest, allocated, block, reserved, stat

TOO_MUCH = 1 << 47  # no machine has it


def limit(size):
    """Lets this process have so many bytes beyond what it has."""
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((size + reserved()) / total)


class Refused(AllocatorTest):
    def test_too_much_is_an_error_with_a_type_and_a_text(self):
        with self.assertRaises(torch.OutOfMemoryError) as caught:
            block(TOO_MUCH)
        self.assertIsInstance(caught.exception, RuntimeError)
        self.assertIn("out of memory", str(caught.exception))
        self.assertIn("Tried to allocate", str(caught.exception))

    def test_it_is_counted(self):
        before = stat("num_ooms")
        for _ in range(2):
            with self.assertRaises(torch.OutOfMemoryError):
                block(TOO_MUCH)
        self.assertEqual(stat("num_ooms") - before, 2)

    def test_nothing_is_lost_by_it(self):
        keep = torch.arange(1000, device=GPU)
        before = allocated(), stat("allocation.all.current")
        with self.assertRaises(torch.OutOfMemoryError):
            block(TOO_MUCH)
        self.assertEqual((allocated(), stat("allocation.all.current")), before)
        self.assertTrue(torch.equal(keep, torch.arange(1000, device=GPU)))

    def test_observers_are_told(self):
        reported = []
        torch._C._cuda_attach_out_of_memory_observer(
            lambda device, size, total, free: reported.append((device, size)))
        with self.assertRaises(torch.OutOfMemoryError):
            block(TOO_MUCH)
        self.assertEqual(len(reported), 1)
        self.assertEqual(reported[0][0], 0)
        self.assertGreaterEqual(reported[0][1], TOO_MUCH)

    def test_on_a_side_stream(self):
        with torch.cuda.stream(torch.cuda.Stream()):
            with self.assertRaises(torch.OutOfMemoryError):
                block(TOO_MUCH)
            self.assertEqual(int(torch.ones(10, device=GPU).sum()), 10)

    def test_caught_in_the_middle_of_a_step_and_tried_smaller(self):
        size = TOO_MUCH
        while True:
            try:
                x = block(size)
                break
            except torch.OutOfMemoryError:
                size //= 1 << 20  # other tests want memory, too
        self.assertEqual(len(x), size)


class Fraction(AllocatorTest):
    def tearDown(self):
        torch.cuda.set_per_process_memory_fraction(1.0)
        super().tearDown()

    def test_it_is_remembered(self):
        torch.cuda.set_per_process_memory_fraction(0.25)
        self.assertAlmostEqual(torch.cuda.get_per_process_memory_fraction(), 0.25, places=6)
        torch.cuda.set_per_process_memory_fraction(1.0)
        self.assertAlmostEqual(torch.cuda.get_per_process_memory_fraction(), 1.0, places=6)

    def test_beyond_it_there_is_no_memory(self):
        limit(GIB)
        with self.assertRaises(torch.OutOfMemoryError):
            block(GIB + 64 * MIB)
        keep = block(GIB // 2)
        self.assertEqual(len(keep), GIB // 2)
        with self.assertRaises(torch.OutOfMemoryError):
            block(GIB // 2 + 64 * MIB)

    def test_the_text_says_what_is_allowed(self):
        limit(GIB)
        with self.assertRaisesRegex(torch.OutOfMemoryError, "allowed"):
            block(2 * GIB)

    def test_lifting_it_gives_the_memory(self):
        limit(256 * MIB)
        with self.assertRaises(torch.OutOfMemoryError):
            block(512 * MIB)
        torch.cuda.set_per_process_memory_fraction(1.0)
        self.assertEqual(len(block(512 * MIB)), 512 * MIB)

    def test_what_is_cached_is_given_up_first(self):
        limit(GIB)
        keep = [block(100 * MIB) for _ in range(8)]
        del keep  # 800 MiB cached, in pieces too small for the next request
        gc.collect()
        x = block(900 * MIB)
        x.fill_(1)
        torch.cuda.synchronize()
        self.assertEqual(len(x), 900 * MIB)

    def test_what_another_stream_cached_is_given_up_too(self):
        limit(GIB)
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            keep = [block(100 * MIB).fill_(3) for _ in range(8)]
        del keep
        x = block(900 * MIB)
        x.fill_(1)
        torch.cuda.synchronize()
        self.assertEqual(len(x), 900 * MIB)

    def test_what_a_recorded_stream_still_uses_is_waited_for(self):
        limit(GIB)
        side = torch.cuda.Stream()
        x = torch.ones(150 * MIB, device=GPU)  # 600 MiB
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            support.busy(50)
            y = x[:1000] + 1
        x.record_stream(side)
        del x
        z = torch.zeros(200 * MIB, device=GPU)  # 800 MiB: fits only when the first is gone
        torch.cuda.synchronize()
        self.assertTrue(bool((y == 2).all()))
        del z

    def test_many_refusals_leave_nothing_behind(self):
        limit(512 * MIB)
        for _ in range(50):
            keep = [block(64 * MIB) for _ in range(4)]
            with self.assertRaises(torch.OutOfMemoryError):
                block(GIB)
            del keep
        self.assertEqual(len(block(400 * MIB)), 400 * MIB)

    def test_bad_fractions_are_refused(self):
        for bad, error in ((1, TypeError), (-0.5, ValueError), (1.5, ValueError)):
            with self.assertRaises(error):
                torch.cuda.set_per_process_memory_fraction(bad)

    def test_a_training_loop_that_runs_into_it_goes_on_smaller(self):
        limit(GIB)
        model = torch.nn.Linear(1024, 1024, device=GPU)
        batch, done = 1 << 20, 0
        while done < 5:
            try:
                model(torch.randn(batch, 1024, device=GPU)).square().mean().backward()
                done += 1
            except torch.OutOfMemoryError:
                model.zero_grad(set_to_none=True)
                batch //= 2
        self.assertTrue(bool(torch.isfinite(model.weight.grad).all()))
        self.assertGreaterEqual(batch, 1 << 14)


if __name__ == "__main__":
    support.main()
