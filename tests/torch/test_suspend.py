# SPDX-License-Identifier: Apache-2.0
"""Suspended memory: weights, optimizer states and caches leave the card and come back, bit for bit."""

import concurrent.futures
import contextlib
import gc
import os
import subprocess
import sys
import threading
import time
import unittest
import unittest.mock

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # deterministic only with it

import support
import torch
from support import GIB, GPU, MIB, AllocatorTest, block, reserved

if support.WEIR:
    import weir
    import weir.torch

# A process without torch that takes so many bytes of the first card, fills them, says how it went, and holds them
# until its input ends. 2 is the driver's own number for out of memory.
NEIGHBOUR = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
def check(code):
    if code: print(code, flush=True); sys.exit(0)
context, device, taken = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_uint64()
size = ctypes.c_size_t(int(sys.argv[1]))
check(cuda.cuInit(0))
check(cuda.cuDeviceGet(ctypes.byref(device), 0))
check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
check(cuda.cuCtxSetCurrent(context))
check(cuda.cuMemAlloc_v2(ctypes.byref(taken), size))
check(cuda.cuMemsetD8_v2(taken, ctypes.c_ubyte(171), size))
check(cuda.cuCtxSynchronize())
print(0, flush=True)
sys.stdin.read()
"""
OUT_OF_MEMORY = 2


def total():
    return torch.cuda.get_device_properties(0).total_memory


def ballast_size():
    """With that of a neighbour it is more than the card has."""
    return total() * 55 // 100 // GIB * GIB


def neighbours_size():
    return total() // 2 // GIB * GIB


@contextlib.contextmanager
def neighbour(size):
    """Another process that holds so much of the card; yields the driver's code of its attempt."""
    process = subprocess.Popen([sys.executable, "-c", NEIGHBOUR, str(size)], stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, text=True)
    try:
        yield int(process.stdout.readline())
    finally:
        process.stdin.close()
        process.wait(60)
        process.stdout.close()


def limit_to(more):
    """No more than so many bytes beyond what is reserved now."""
    torch.cuda.set_per_process_memory_fraction((reserved() + more) / total())


def free():
    return torch.cuda.mem_get_info()[0]


@unittest.skipUnless(support.WEIR, "weir's own, nothing of torch's to compare with")
class SuspendTest(AllocatorTest):
    def tearDown(self):
        weir.torch.resume()
        super().tearDown()
        weir.torch.trim_backup()

    def tagged(self, name, size, value):
        """A tensor of so many bytes with the tag, full of the value."""
        with weir.torch.tag(name, suspendable=True):
            return torch.full((size,), value, dtype=torch.uint8, device=GPU)

    def make_ballast(self):
        return [self.tagged("ballast", ballast_size() // 8, 1) for _ in range(8)]

    def assert_full_of(self, tensor, value):
        self.assertTrue(bool((tensor == value).all()))


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.rise = torch.nn.Linear(1024, 4096, device=GPU)
        self.fall = torch.nn.Linear(4096, 1024, device=GPU)

    def forward(self, x):
        return self.fall(torch.nn.functional.gelu(self.rise(x)))


class Training:
    """Weights, optimizer states and a cache, each with a tag of its own, and a graph of the forward pass."""

    def __init__(self):
        torch.manual_seed(7)
        self.inputs = torch.Generator().manual_seed(8)
        with weir.torch.tag("weights", suspendable=True):
            self.model = Model()
        with weir.torch.tag("kv cache", suspendable=True):
            self.cache = torch.zeros(8, 64, 1024, device=GPU)
            self.input = torch.zeros(64, 1024, device=GPU)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        self.losses = []

    def step(self, number):
        x = torch.randn(64, 1024, generator=self.inputs).to(GPU)
        y = self.model(x)
        loss = (y - x.roll(1, 0)).square().mean()
        loss.backward()
        with weir.torch.tag("optimizer", suspendable=True):  # states are made in the first step
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.cache[number].copy_(y.detach())
        self.losses.append(loss.detach().cpu())

    def capture(self):
        """The forward pass over `input`, which changes no weights."""
        with torch.no_grad():
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                self.model(self.input)
            torch.cuda.current_stream().wait_stream(side)
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.output = self.model(self.input)

    def replay(self):
        self.input.copy_(torch.randn(64, 1024, generator=self.inputs))
        self.graph.replay()
        return self.output.cpu()

    def state(self):
        """Everything, on the host."""
        states = [value for state in self.optimizer.state.values() for _, value in sorted(state.items())]
        return [each.detach().cpu() for each in [*self.model.parameters(), *states, self.cache, *self.losses]]


def train(pause):
    """Two steps, a graph, a pause, two more steps; what there is in the end, and what the graph made."""
    deterministic = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        training = Training()
        training.step(0)
        training.step(1)
        training.capture()
        replays = [training.replay()]
        torch.cuda.synchronize()
        pause(training)
        replays.append(training.replay())
        training.step(2)
        training.step(3)
        replays.append(training.replay())
        return training.state(), replays
    finally:
        torch.use_deterministic_algorithms(deterministic)


class TrainingGoesOn(SuspendTest):
    def compare(self, pause):
        expected = train(lambda training: None)
        gc.collect()
        found = train(pause)
        for before, after in zip(expected, found):
            self.assertEqual(len(before), len(after))
            for number, (one, other) in enumerate(zip(before, after)):
                self.assertTrue(torch.equal(one, other), number)
        self.assertGreater(len(found[0]), 8)  # there are optimizer states among them

    def test_while_another_process_uses_the_card(self):
        ballast = self.make_ballast()

        def pause(training):
            live = torch.cuda.memory_allocated()
            with neighbour(neighbours_size()) as code:
                self.assertEqual(code, OUT_OF_MEMORY)  # it does not fit beside us
            before = free()
            lost = weir.torch.suspend("ballast", contents="discard")
            self.assertEqual(lost, weir.SuspendOutcome(ballast_size(), 0, 0))
            kept = weir.torch.suspend()
            self.assertGreaterEqual(free() - before, lost.released + kept.released - 64 * MIB)
            self.assertGreater(kept.saved, 0)
            self.assertEqual(kept.not_suspended, 0)
            self.assertEqual(reserved(), 0)
            self.assertEqual(torch.cuda.memory_allocated(), live)  # tensors stay
            with neighbour(neighbours_size()) as code:
                self.assertEqual(code, 0)
            back = weir.torch.resume()
            self.assertGreaterEqual(back.reserved, ballast_size())
            self.assertEqual(back.restored, kept.saved)

        self.compare(pause)
        del ballast

    def test_tag_by_tag(self):
        def pause(training):
            released = {name: weir.torch.suspend(name).released for name in ("weights", "optimizer", "kv cache")}
            self.assertGreaterEqual(released["weights"], 4 * 1024 * 4096 * 2)
            self.assertGreaterEqual(released["optimizer"], 2 * 4 * 1024 * 4096 * 2)
            self.assertGreaterEqual(released["kv cache"], training.cache.nbytes)
            for name in ("kv cache", "weights", "optimizer"):
                self.assertTrue(weir.torch.is_suspended(name))
                back = weir.torch.resume(name)
                self.assertGreater(back.restored, 0)
                self.assertLessEqual(back.reserved, released[name])  # what is free stays away
                self.assertFalse(weir.torch.is_suspended(name))

        self.compare(pause)

    def test_with_contents_in_memory_that_is_not_pinned(self):
        def pause(training):
            with weir.torch.suspended(to="pageable", chunk=MIB) as outcome:
                self.assertGreater(outcome.saved, 0)

        self.compare(pause)

    def test_with_the_pool_of_the_graph_alone(self):
        def pause(training):
            with weir.torch.suspended(training.graph.pool()) as outcome:
                self.assertGreater(outcome.released, 0)
                self.assertTrue(weir.torch.is_suspended(training.graph.pool()))
                self.assertEqual(weir.torch.suspend_stats().suspended, outcome.released)

        self.compare(pause)

    def test_twice_in_a_row(self):
        def pause(training):
            for _ in range(2):
                weir.torch.suspend("weights")
                self.assertEqual(weir.torch.suspend("weights", contents="discard"), weir.SuspendOutcome())
                weir.torch.resume("weights")
                self.assertEqual(weir.torch.resume("weights"), weir.ResumeOutcome())

        self.compare(pause)


class Memory(SuspendTest):
    def test_it_is_free_when_the_call_returns(self):
        x = self.tagged("a", GIB, 3)
        torch.cuda.synchronize()
        before = free()
        self.assertEqual(weir.torch.suspend("a"), weir.SuspendOutcome(GIB, GIB, 0))
        self.assertGreaterEqual(free() - before, GIB - 8 * MIB)
        self.assertEqual(weir.torch.stats()["suspended"], GIB)
        self.assertIn("suspended 1 GiB", weir.torch.report())
        address = x.data_ptr()
        self.assertEqual(weir.torch.resume("a"), weir.ResumeOutcome(GIB, GIB))
        self.assertEqual(x.data_ptr(), address)
        self.assert_full_of(x, 3)

    def test_contents_may_be_discarded(self):
        x = self.tagged("a", 256 * MIB, 3)
        self.assertEqual(weir.torch.suspend("a", contents="discard"), weir.SuspendOutcome(256 * MIB, 0, 0))
        self.assertEqual(weir.torch.suspend_stats().backup.current, 0)
        self.assertEqual(weir.torch.resume("a"), weir.ResumeOutcome(256 * MIB, 0))
        x.fill_(4)
        self.assert_full_of(x, 4)

    def test_work_that_is_queued_on_any_stream_is_done_before(self):
        x = self.tagged("a", 64 * MIB, 3)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            support.busy(100)
            x.fill_(9)
        with weir.torch.suspended("a"):
            pass
        self.assert_full_of(x, 9)

    def test_no_room_at_resume_is_typed_and_can_be_tried_again(self):
        kept = self.tagged("small", 64 * MIB, 5)
        ballast = self.make_ballast()
        weir.torch.suspend("small")
        weir.torch.suspend("ballast", contents="discard")
        held = reserved()
        with neighbour(neighbours_size()) as code:
            self.assertEqual(code, 0)
            for _ in range(2):
                with self.assertRaises(torch.cuda.OutOfMemoryError) as caught:
                    weir.torch.resume("ballast")
                self.assertIsInstance(caught.exception, weir.torch.OutOfMemory)
                self.assertIsInstance(caught.exception, weir.OutOfMemory)
                self.assertIn("are needed to resume it", str(caught.exception))
                self.assertTrue(weir.torch.is_suspended("ballast"))
                self.assertEqual(reserved(), held)  # nothing stays half-way
            weir.torch.resume("small")  # there is room for this one
            self.assert_full_of(kept, 5)
            # A request that finds no memory says why as ever, though more is live than reserved.
            with self.assertRaisesRegex(torch.cuda.OutOfMemoryError, "suspended") as caught:
                block(ballast_size())
            self.assertRegex(str(caught.exception), r"reserved by PyTorch but unallocated")
            self.assertNotRegex(str(caught.exception), r"\d{6}\.\d\d GiB is reserved")
        for _ in range(100):  # a process that is gone gives its memory back a little later
            with contextlib.suppress(torch.cuda.OutOfMemoryError):
                weir.torch.resume("ballast")
                break
            time.sleep(0.1)
        self.assertFalse(weir.torch.is_suspended("ballast"))
        ballast[7].fill_(2)
        self.assert_full_of(ballast[7], 2)

    def test_a_tensor_that_goes_meanwhile_does_not_come_back(self):
        x, y = self.tagged("a", 64 * MIB, 3), self.tagged("a", 64 * MIB, 4)
        weir.torch.suspend("a")
        del y
        self.assertEqual(weir.torch.resume("a"), weir.ResumeOutcome(64 * MIB, 64 * MIB))
        self.assert_full_of(x, 3)

    def test_its_memory_is_never_another_tags(self):
        x = self.tagged("a", 64 * MIB, 3)
        address = x.data_ptr()
        del x
        torch.cuda.synchronize()
        y, z = block(64 * MIB), self.tagged("b", 64 * MIB, 4)
        self.assertNotEqual(y.data_ptr(), address)
        self.assertNotEqual(z.data_ptr(), address)
        with weir.torch.suspended("a"):
            y.fill_(6)
            self.assert_full_of(y, 6)
            self.assert_full_of(z, 4)

    def test_what_is_cached_does_not_keep_it_away(self):
        x = self.tagged("a", 512 * MIB, 3)
        weir.torch.suspend("a")
        block(600 * MIB)  # cached
        limit_to(100 * MIB)
        try:
            self.assertEqual(weir.torch.resume("a").restored, 512 * MIB)
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)
        self.assert_full_of(x, 3)

    def test_a_limit_that_was_lowered_meanwhile_holds_and_one_that_is_lifted_lets_it_back(self):
        x = self.tagged("a", 512 * MIB, 3)
        weir.torch.suspend("a")
        limit_to(256 * MIB)
        try:
            with self.assertRaises(weir.torch.OutOfMemory):
                weir.torch.resume("a")
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)
        weir.torch.resume("a")
        self.assert_full_of(x, 3)

    def test_host_memory_goes_back_when_asked(self):
        weir.torch.trim_backup()
        weir.torch.reserve_backup(64 * MIB)
        self.assertEqual(weir.torch.suspend_stats().backup.current, 64 * MIB)
        x = self.tagged("a", 64 * MIB, 3)
        with weir.torch.suspended("a"):
            self.assertEqual(weir.torch.suspend_stats().backup.current, 64 * MIB)  # what was reserved
            self.assertEqual(weir.torch.trim_backup(), 0)  # it holds contents
        self.assertEqual(weir.torch.trim_backup(), 64 * MIB)
        self.assertEqual(weir.torch.suspend_stats().backup.current, 0)
        self.assert_full_of(x, 3)

    def test_memory_that_is_no_tensors(self):
        with weir.torch.tag("raw", suspendable=True):
            address = torch.cuda.caching_allocator_alloc(64 * MIB)
        view = torch.as_tensor(Raw(address, 64 * MIB), device=GPU)
        view.fill_(8)
        with weir.torch.suspended("raw") as outcome:
            self.assertEqual(outcome.saved, 64 * MIB)
        self.assert_full_of(view, 8)
        del view
        torch.cuda.caching_allocator_delete(address)

    def test_memory_that_was_sent_to_others_stays(self):
        # From then on others may hold its handles: in a process of its own.
        self.assert_ran(support.run_program("""
            import torch, weir, weir.torch
            with weir.torch.tag("a", suspendable=True):
                apart = torch.full((64 << 20,), 3, dtype=torch.uint8, device="cuda")
            x = torch.full((64 << 20,), 4, dtype=torch.uint8, device="cuda")
            handle = x.untyped_storage()._share_cuda_()
            try:
                weir.torch.suspend()
                raise SystemExit("it was allowed")
            except weir.NotSupported as error:
                assert "handles" in str(error), error
            assert not weir.torch.is_suspended("a")  # all or nothing
            with weir.torch.suspended("a") as outcome:  # lies apart
                assert outcome.saved == 64 << 20, outcome
            assert bool((apart == 3).all()) and bool((x == 4).all())
            """))

    def test_evictable_memory_makes_room(self):
        weir.torch.declare_suspendable("stash", evictable=True, priority=1)
        stash = self.tagged("stash", 512 * MIB, 3)
        limit_to(256 * MIB)
        try:
            x = block(512 * MIB)
            self.assertTrue(weir.torch.is_suspended("stash"))
            del x
            weir.torch.resume("stash")
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)
        self.assert_full_of(stash, 3)

    def test_it_composes_with_expandable_segments_and_every_policy(self):
        program = """
            import torch, weir.torch
            weir.torch.enable(policy={!r})
            with weir.torch.tag("weights", suspendable=True):
                x = torch.full((64 << 20,), 3, dtype=torch.uint8, device="cuda")
            y = torch.full((64 << 20,), 4, dtype=torch.uint8, device="cuda")
            with weir.torch.suspended("weights") as outcome:
                assert outcome.saved == 64 << 20, outcome
                assert bool((y == 4).all())
            assert bool((x == 3).all())
            """
        policies = ("balanced", "classic", "classic_expandable")
        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            done = pool.map(lambda policy: support.run_program(
                program.format(policy), allocator="native",
                environment={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}), policies)
            for policy, each in zip(policies, done):
                with self.subTest(policy=policy):
                    self.assert_ran(each)


class Raw:
    """Memory that somebody else allocated, as an array of bytes."""

    def __init__(self, address, size):
        self.__cuda_array_interface__ = {"shape": (size,), "typestr": "|u1", "data": (address, False), "version": 3}


class Requests(SuspendTest):
    def test_they_fail_by_name(self):
        x = self.tagged("a", 64 * MIB, 3)
        with weir.torch.suspended("a"):
            with weir.torch.tag("a"), self.assertRaisesRegex(RuntimeError, "suspended.*\"a\""):
                block(MIB)
            block(MIB).fill_(1)  # without the tag
        self.assert_full_of(x, 3)

    def test_they_bring_it_back(self):
        x = self.tagged("a", 64 * MIB, 3)
        weir.torch.suspend("a", requests="resume")
        y = self.tagged("a", MIB, 4)
        self.assertFalse(weir.torch.is_suspended("a"))
        self.assert_full_of(x, 3)
        self.assert_full_of(y, 4)

    def test_they_wait(self):
        x = self.tagged("a", 64 * MIB, 3)
        weir.torch.suspend("a", requests="wait")
        made = []

        def wait():
            with weir.torch.tag("a"):
                made.append(block(MIB))

        waiter = threading.Thread(target=wait)
        waiter.start()
        waiter.join(0.2)
        self.assertEqual(made, [])
        weir.torch.resume("a")
        waiter.join(60)
        self.assertEqual(len(made), 1)
        self.assert_full_of(x, 3)

    def test_not_during_a_capture(self):
        x = self.tagged("a", MIB, 3)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = x + 1
            with self.assertRaises(weir.Error) as caught:
                weir.torch.suspend("a")
            self.assertEqual(caught.exception.name, "capture_forbidden")
        graph.replay()
        self.assert_full_of(y, 4)

    def test_a_tag_that_was_not_declared(self):
        with self.assertRaises(weir.Error) as caught:
            weir.torch.suspend("never declared")
        self.assertEqual(caught.exception.name, "not_found")


class Progress(SuspendTest):
    def test_it_is_told_in_chunks(self):
        x = self.tagged("a", 100 * MIB, 3)
        told = []
        weir.torch.suspend("a", chunk=32 * MIB, progress=lambda done, total: told.append((done // MIB, total // MIB)))
        steps = [(32, 100), (64, 100), (96, 100), (100, 100)]
        self.assertEqual(told, steps)
        weir.torch.resume("a", progress=lambda done, total: told.append((done // MIB, total // MIB)))
        self.assertEqual(told[-1], (100, 100))
        self.assertEqual(told[4:], sorted(told[4:]))
        self.assert_full_of(x, 3)

    def test_it_may_use_torch(self):
        x = self.tagged("a", 64 * MIB, 3)
        sums = []
        weir.torch.suspend("a", progress=lambda done, total: sums.append(float(torch.ones(1000, device=GPU).sum())))
        self.assertEqual(sums, [1000.0] * 2)
        weir.torch.resume("a")
        self.assert_full_of(x, 3)

    def test_what_it_raises_changes_nothing(self):
        x = self.tagged("a", 64 * MIB, 3)

        def fail(done, total):
            raise ValueError("no")

        with unittest.mock.patch("sys.excepthook") as hook:
            with weir.torch.suspended("a", progress=fail) as outcome:
                self.assertEqual(outcome, weir.SuspendOutcome(64 * MIB, 64 * MIB, 0))
        self.assertGreaterEqual(hook.call_count, 2)
        self.assertEqual({call.args[0] for call in hook.call_args_list}, {ValueError})
        self.assert_full_of(x, 3)


class Pools(SuspendTest):
    def test_a_pool_that_can_be_suspended(self):
        pool = weir.torch.mem_pool(suspendable=True)
        with torch.cuda.use_mem_pool(pool):
            x = torch.full((64 * MIB,), 3, dtype=torch.uint8, device=GPU)
            y = torch.full((1000,), 4, dtype=torch.uint8, device=GPU)
        outside = torch.full((MIB,), 5, dtype=torch.uint8, device=GPU)
        held = {each["address"] for segment in pool.snapshot() for each in segment["blocks"]}
        self.assertIn(x.data_ptr(), held)
        self.assertNotIn(outside.data_ptr(), held)
        with weir.torch.suspended(pool) as outcome:
            self.assertEqual(outcome.saved, 64 * MIB + 1024)
            self.assertTrue(weir.torch.is_suspended(pool))
            self.assertEqual(weir.torch.suspend_stats(pool).suspended, outcome.released)
            self.assert_full_of(outside, 5)
            with torch.cuda.use_mem_pool(pool), self.assertRaisesRegex(RuntimeError, "suspended"):
                block(MIB)
        self.assertFalse(weir.torch.is_suspended(pool))
        self.assert_full_of(x, 3)
        self.assert_full_of(y, 4)
        before = reserved()
        del x, y, held
        torch.cuda.synchronize()
        del pool
        gc.collect()
        torch.cuda.empty_cache()
        self.assertLessEqual(reserved(), before - 64 * MIB)

    def test_a_graph_captured_into_it_replays_after(self):
        pool = weir.torch.mem_pool(suspendable=True)
        x = torch.ones(MIB, device=GPU)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool.id):
            y = x + 1
        graph.replay()
        with weir.torch.suspended(pool):
            pass
        self.assertTrue(bool((y == 2).all()))
        x.fill_(5)
        graph.replay()
        self.assertTrue(bool((y == 6).all()))
        del y, graph

    def test_it_is_chosen_before_the_first_request_and_not_with_segments(self):
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            x = block(MIB)
        with self.assertRaisesRegex(RuntimeError, "before its first request"):
            weir.torch._extension.make_pool_suspendable(0, pool.id, False, 0, (0, 0, 2, 0, 0))
        del x
        if weir.torch._version() >= (2, 10):
            with self.assertRaisesRegex(RuntimeError, "no_split"):
                weir.torch.mem_pool(suspendable=True, no_split=True)

    def test_a_pool_in_segments_stays(self):
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            x = torch.full((64 * MIB,), 3, dtype=torch.uint8, device=GPU)
        segments = sum(segment["total_size"] for segment in pool.snapshot())
        outside = torch.full((64 * MIB,), 4, dtype=torch.uint8, device=GPU)
        with self.assertRaises(weir.NotSupported):
            weir.torch.suspend(pool)
        with weir.torch.suspended() as outcome:
            self.assertEqual(outcome.not_suspended, segments)
            self.assertEqual(reserved(), segments)
        self.assert_full_of(x, 3)
        self.assert_full_of(outside, 4)

    def test_a_pool_that_is_not_there(self):
        with self.assertRaisesRegex(RuntimeError, "no memory pool"):
            weir.torch.suspend((4711, 4712))


if __name__ == "__main__":
    support.main()
