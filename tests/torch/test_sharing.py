# SPDX-License-Identifier: Apache-2.0
"""Tensors that two processes share, through torch.multiprocessing.

The other process uses the same allocator; under weir also torch's own, with and without expandable segments, and
weir over the driver's own memory. Every test sends in one direction or the other, so every pair is met in both.
"""

import ctypes
import gc
import os
import tempfile
import unittest
import unittest.mock
from pathlib import Path

import sharing_children
import support
import torch
import torch.multiprocessing
from support import GPU, MIB, AllocatorTest, allocated, block, reserved

PATIENCE = 60
HERE = "weir" if support.WEIR else "native"


def may_copy_descriptors(process):
    """Whether this process can copy descriptors of that one, as expandable segments need it."""
    call = ctypes.CDLL(None, use_errno=True).syscall
    pidfd = call(434, process.pid, 0)  # pidfd_open
    if pidfd < 0:
        return False
    copy = call(438, pidfd, 0, 0)  # pidfd_getfd
    os.close(pidfd)
    if copy >= 0:
        os.close(copy)
    return copy >= 0


class Sharing(AllocatorTest):
    """The other process has the same allocator."""

    allocator = HERE
    policy = os.environ.get("WEIR_TORCH_POLICY", "balanced")  # of weir, in the other process
    settings = ""  # PYTORCH_CUDA_ALLOC_CONF of the other process

    def setUp(self):
        super().setUp()
        self.context = torch.multiprocessing.get_context("spawn")
        self.processes = []

    def tearDown(self):
        for process in self.processes:
            process.join(PATIENCE)
            if process.exitcode is None:
                process.kill()
                process.join()
                self.fail("the other process does not end")
        super().tearDown()

    def start(self, function, *arguments):
        environment = {"WEIR_TORCH_ALLOCATOR": self.allocator, "WEIR_TORCH_POLICY": self.policy}
        if self.settings:
            environment["PYTORCH_CUDA_ALLOC_CONF"] = self.settings
        process = self.context.Process(target=function, args=arguments)
        with unittest.mock.patch.dict(os.environ, environment):
            process.start()
        self.processes.append(process)
        if self.settings and not may_copy_descriptors(process):
            process.kill()
            self.skipTest("expandable segments cannot be shared here: no right to copy descriptors")
        return process

    def finish(self, process):
        process.join(PATIENCE)
        self.assertEqual(process.exitcode, 0)

    def test_the_other_process_has_the_allocator_that_is_meant(self):
        inbox, outbox = self.context.Queue(), self.context.Queue()
        process = self.start(sharing_children.which_allocator, inbox, outbox)
        self.assertEqual(outbox.get(timeout=PATIENCE), self.allocator)
        inbox.put(None)
        self.finish(process)

    def test_every_byte_of_large_tensors_arrives(self):
        """Of many physical handles, of several sizes where the memory is weir's."""
        inbox, outbox = self.context.Queue(), self.context.Queue()
        process = self.start(sharing_children.check_numbered, inbox, outbox)
        padding = [block(size * MIB) for size in (900, 3, 70, 1)]
        for size in (1, 300_000, 3 * MIB, 25 * MIB + 3, 100 * MIB + 1):
            x = sharing_children.numbered(size)
            inbox.put(x)
            self.assertTrue(outbox.get(timeout=PATIENCE), size)
            torch.cuda.synchronize()
            self.assertTrue(torch.equal(x, sharing_children.numbered(size) + 1), size)
            del x
            padding.pop(0) if padding else None
        inbox.put(None)
        self.assertEqual(outbox.get(timeout=PATIENCE), "over")
        self.finish(process)

    def test_large_tensors_that_come_from_the_other_process(self):
        sizes = (7, 300_000, 3 * MIB, 100 * MIB + 1, 5)
        outbox, done = self.context.Queue(), self.context.Event()
        process = self.start(sharing_children.make_of_sizes, outbox, done, sizes)
        for size in sizes:
            x = outbox.get(timeout=PATIENCE)
            self.assertTrue(torch.equal(x, sharing_children.numbered(size)), size)
            del x
        done.set()
        self.finish(process)

    def test_many_small_tensors(self):
        inbox, outbox = self.context.Queue(), self.context.Queue()
        process = self.start(sharing_children.sum_up, inbox, outbox)
        keep = [torch.full((5,), float(i), device=GPU) for i in range(3000)]
        torch.cuda.synchronize()
        inbox.put(keep)
        self.assertEqual(outbox.get(timeout=PATIENCE), [5.0 * i for i in range(3000)])
        self.finish(process)

    def test_a_parameter_and_what_is_on_another_stream(self):
        inbox, outbox = self.context.Queue(), self.context.Queue()
        process = self.start(sharing_children.sum_up, inbox, outbox)
        with torch.cuda.stream(torch.cuda.Stream()):
            x = torch.zeros(MIB, device=GPU)
            support.busy(30)
            x.add_(1)
            parameter = torch.nn.Parameter(x)
            inbox.put([parameter, parameter.detach()[10:30]])
            self.assertEqual(outbox.get(timeout=PATIENCE), [float(MIB), 20.0])
        self.finish(process)

    def test_the_other_process_writes_where_this_one_reads(self):
        inbox, outbox = self.context.Queue(), self.context.Queue()
        process = self.start(sharing_children.add_one, inbox, outbox)
        x = torch.zeros(MIB, device=GPU)
        for value in (1, 2, 3):
            inbox.put([x])
            self.assertEqual(outbox.get(timeout=PATIENCE), 1)
            self.assertTrue(bool((x == value).all()))
        inbox.put(None)
        self.assertEqual(outbox.get(timeout=PATIENCE), "over")
        self.finish(process)

    def test_tensors_of_many_sizes_and_views(self):
        inbox, outbox = self.context.Queue(), self.context.Queue()
        process = self.start(sharing_children.sum_up, inbox, outbox)
        keep = [torch.full((size,), 2.0, device=GPU) for size in (1, 100, 5000, MIB, 30 * MIB)]
        base = torch.arange(10_000, dtype=torch.float32, device=GPU)
        keep += [base[10:20], base[5000:], base.view(100, 100).t()]
        torch.cuda.synchronize()
        inbox.put(keep)
        self.assertEqual(outbox.get(timeout=PATIENCE),
                         [float(tensor.double().sum()) for tensor in keep])
        self.finish(process)

    def test_memory_next_to_a_shared_block_is_not_touched(self):
        inbox, outbox = self.context.Queue(), self.context.Queue()
        process = self.start(sharing_children.add_one, inbox, outbox)
        tensors = [torch.zeros(3000, device=GPU) for _ in range(20)]
        inbox.put(tensors[::2])
        self.assertEqual(outbox.get(timeout=PATIENCE), 10)
        for i, tensor in enumerate(tensors):
            self.assertTrue(bool((tensor == (i + 1) % 2).all()), i)
        inbox.put(None)
        self.assertEqual(outbox.get(timeout=PATIENCE), "over")
        self.finish(process)

    def test_tensors_that_come_from_the_other_process(self):
        outbox, done = self.context.Queue(), self.context.Event()
        process = self.start(sharing_children.make, outbox, done, 5)
        tensors = outbox.get(timeout=PATIENCE)
        for i, tensor in enumerate(tensors):
            self.assertEqual(tuple(tensor.shape), (1000 * (i + 1),))
            self.assertTrue(bool((tensor == i).all()))
        del tensor, tensors
        gc.collect()
        done.set()
        self.finish(process)

    def test_a_received_tensor_is_not_counted_here(self):
        outbox, done = self.context.Queue(), self.context.Event()
        process = self.start(sharing_children.make, outbox, done, 3)
        before = allocated()
        tensors = outbox.get(timeout=PATIENCE)
        self.assertEqual(allocated(), before)
        tensors[0].record_stream(torch.cuda.Stream())  # not ours: must do no harm
        del tensors
        gc.collect()
        done.set()
        self.finish(process)

    def test_shared_memory_comes_back(self):
        inbox, outbox = self.context.Queue(), self.context.Queue()
        before = allocated()
        process = self.start(sharing_children.add_one, inbox, outbox)
        for _ in range(3):
            x = torch.zeros(4 * MIB, device=GPU)
            inbox.put([x])
            outbox.get(timeout=PATIENCE)
            del x
        inbox.put(None)
        self.assertEqual(outbox.get(timeout=PATIENCE), "over")
        self.finish(process)
        gc.collect()
        torch.cuda.ipc_collect()
        torch.cuda.synchronize()
        block(MIB)
        self.assertEqual(allocated(), before)

    def test_memory_that_the_other_process_gave_back_comes_before_new_memory(self):
        inbox, outbox = self.context.Queue(), self.context.Queue()
        process = self.start(sharing_children.hold_until_told, inbox, outbox)
        x = torch.zeros(32 * MIB, device=GPU)
        inbox.put(x)
        self.assertEqual(outbox.get(timeout=PATIENCE), 0)
        del x  # the other process has it still
        gc.collect()
        inbox.put(None)
        self.assertEqual(outbox.get(timeout=PATIENCE), "over")
        self.finish(process)
        held = reserved()
        y = torch.ones(32 * MIB, device=GPU)
        self.assertLessEqual(reserved(), held)
        del y

    def test_the_other_process_dies_with_it(self):
        inbox, outbox = self.context.Queue(), self.context.Queue()
        process = self.start(sharing_children.hold_and_die, inbox, outbox)
        x = torch.full((MIB,), 2.0, device=GPU)
        torch.cuda.synchronize()
        inbox.put(x)
        self.assertEqual(outbox.get(timeout=PATIENCE), 2.0 * MIB)
        self.finish(process)
        self.assertTrue(bool((x == 2).all()))

    def test_an_event_between_processes(self):
        event = torch.cuda.Event(interprocess=True)
        x = torch.ones(MIB, device=GPU)
        event.record()
        handle = event.ipc_handle()
        self.assertTrue(len(handle) > 0)
        event.synchronize()
        del x


OTHER_PAIRS = unittest.skipUnless(support.WEIR, "pairs that weir is part of")


@OTHER_PAIRS
class SharingWithTorchsOwn(Sharing):
    """The other process only imports torch."""

    allocator = "native"


@OTHER_PAIRS
class SharingWithExpandableSegments(Sharing):
    allocator = "native"
    settings = "expandable_segments:True"


@OTHER_PAIRS
class SharingWithClassicPolicy(Sharing):
    """weir shares the driver's own memory there."""

    allocator = "weir"
    policy = "classic"


@unittest.skipUnless(support.WEIR, "about weir's handles")
class Handles(AllocatorTest):
    def handle_of(self, tensor):
        return tensor.untyped_storage()._share_cuda_()[1]

    def test_begin_with_torchs_own_format(self):
        x = block(1000)
        self.assertEqual(self.handle_of(x)[:2], b"\2e")

    @unittest.skipUnless(Sharing.policy == "balanced", "sizes of handles depend on the policy")
    def test_over_several_sizes_are_refused_by_torchs_own_allocator(self):
        x = block(401 * MIB)  # handles of 8 MiB, and one of 2
        handle = self.handle_of(x)
        self.assertEqual(handle[:2], b"\x7fe")
        status, _, errors = support.run_program(f"""
            import torch
            torch.cuda.init()
            torch.UntypedStorage._new_shared_cuda(0, {handle!r}, 512, 0, b"none", 0, bytes(64), False)
            """, allocator="native")
        self.assertNotEqual(status, 0)
        self.assertIn("future version of torch", errors)

    def test_of_small_tensors_in_one_piece_of_memory_are_the_same(self):
        tensors = [block(512) for _ in range(50)]
        pages = {tensor.data_ptr() >> 21 for tensor in tensors}
        self.assertLessEqual(len({self.handle_of(tensor) for tensor in tensors}), len(pages))

    def test_of_memory_that_was_freed_open_nothing(self):
        x = block(64 * MIB)
        specification = x.untyped_storage()._share_cuda_()
        del x
        torch.cuda.ipc_collect()
        gc.collect()
        # Nobody received it: torch keeps what was sent until the counter says so.
        torch.UntypedStorage._release_ipc_counter(specification[4], specification[5])
        torch.cuda.ipc_collect()
        block(MIB)
        with self.assertRaisesRegex(RuntimeError, "has freed it|not_permitted"):
            torch.UntypedStorage._new_shared_cuda(*specification[:7], False)  # no wait for its event


class Programs(AllocatorTest):
    def train(self, allocator):
        """The digests of what two processes trained, by rank."""
        with tempfile.TemporaryDirectory() as folder:
            self.assert_ran(support.run_program(f"""
                import sharing_children
                import torch.multiprocessing
                torch.multiprocessing.spawn(sharing_children.train, args=({folder!r}, 2), nprocs=2)
                """, allocator=allocator))
            return [Path(folder, f"digest{rank}").read_text() for rank in range(2)]

    def test_two_processes_train_the_same_bits_as_with_torchs_own_allocator(self):
        if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
            self.skipTest("this torch has no gloo")
        weights = self.train(HERE)
        self.assertEqual(weights[0], weights[1])
        self.assertEqual(weights, self.train("native"))

    def test_nccl_registers_a_buffer(self):
        nccl = loaded_nccl()
        if nccl is None or not hasattr(nccl, "ncclCommRegister"):
            self.skipTest("torch has loaded no NCCL that registers buffers")
        x = torch.arange(8 * MIB, dtype=torch.float32, device=GPU)
        y = torch.zeros_like(x)
        communicator, handle = ctypes.c_void_p(), ctypes.c_void_p()
        self.assertEqual(nccl.ncclCommInitAll(ctypes.byref(communicator), 1, (ctypes.c_int * 1)(0)), 0)
        try:
            status = nccl.ncclCommRegister(communicator, ctypes.c_void_p(x.data_ptr()),
                                           ctypes.c_size_t(x.nbytes), ctypes.byref(handle))
            self.assertEqual(status, 0)
            float32, plus = 7, 0
            status = nccl.ncclAllReduce(ctypes.c_void_p(x.data_ptr()), ctypes.c_void_p(y.data_ptr()),
                                        ctypes.c_size_t(x.numel()), float32, plus, communicator,
                                        ctypes.c_void_p(torch.cuda.current_stream().cuda_stream))
            self.assertEqual(status, 0)
            torch.cuda.synchronize()
            self.assertTrue(torch.equal(x, y))
            self.assertEqual(nccl.ncclCommDeregister(communicator, handle), 0)
        finally:
            self.assertEqual(nccl.ncclCommDestroy(communicator), 0)


def loaded_nccl():
    """The NCCL that torch has loaded, or nothing."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        for line in maps:
            path = "/" + line.rstrip("\n").partition("/")[2]
            if os.path.basename(path).startswith("libnccl.so"):
                return ctypes.CDLL(path)
    return None


if __name__ == "__main__":
    support.main()
