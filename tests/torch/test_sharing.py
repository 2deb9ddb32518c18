"""Tensors that two processes share, through torch.multiprocessing."""

import gc

import sharing_children
import support
import torch
import torch.multiprocessing
from support import GPU, MIB, AllocatorTest, allocated, block

PATIENCE = 60


class Sharing(AllocatorTest):
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
        process = self.context.Process(target=function, args=arguments)
        process.start()
        self.processes.append(process)
        return process

    def finish(self, process):
        process.join(PATIENCE)
        self.assertEqual(process.exitcode, 0)

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


if __name__ == "__main__":
    support.main()
