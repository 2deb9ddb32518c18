# SPDX-License-Identifier: Apache-2.0
"""CUDA graphs: private pools, sharing them, replay beside other work, and what becomes of the memory."""

import gc

import support
import torch
from support import GPU, MIB, AllocatorTest, allocated, block, reserved


def warm(function, *arguments):
    """What must not happen for the first time inside a capture, as the documentation asks."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            function(*arguments)
    torch.cuda.current_stream().wait_stream(side)


class Capture(AllocatorTest):
    def test_replay_computes_anew(self):
        x = torch.zeros(1000, device=GPU)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = x * 2 + 1
        for value in (1.0, 5.0, -3.0):
            x.fill_(value)
            graph.replay()
            self.assertTrue(bool((y == 2 * value + 1).all()))

    def test_intermediate_memory_is_reused_inside(self):
        x = torch.zeros(4 * MIB, device=GPU)  # 16 MiB
        graph = torch.cuda.CUDAGraph()
        before = reserved()
        with torch.cuda.graph(graph):
            y = x
            for _ in range(20):
                y = y + 1  # needs two at a time, not twenty
        self.assertLessEqual(reserved() - before, 5 * 16 * MIB)
        graph.replay()
        self.assertTrue(bool((y == 20).all()))

    def test_memory_freed_inside_is_not_given_away(self):
        """The graph writes to its temporaries on every replay, whoever else allocates."""
        x = torch.ones(4 * MIB, device=GPU)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            passing = x + 1
            y = passing * 3
            del passing
        others = [torch.full((4 * MIB,), 7.0, device=GPU) for _ in range(6)]
        for _ in range(5):
            graph.replay()
        torch.cuda.synchronize()
        self.assertTrue(bool((y == 6).all()))
        for other in others:
            self.assertTrue(bool((other == 7).all()))

    def test_an_output_that_was_dropped_stays_the_graphs(self):
        x = torch.ones(4 * MIB, device=GPU)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = x + 1
            z = y * 2
        del y
        gc.collect()
        torch.cuda.empty_cache()
        others = [torch.full((4 * MIB,), 7.0, device=GPU) for _ in range(4)]
        graph.replay()
        torch.cuda.synchronize()
        self.assertTrue(bool((z == 4).all()))
        for other in others:
            self.assertTrue(bool((other == 7).all()))

    def test_empty_cache_leaves_a_live_graph_alone(self):
        x = torch.ones(4 * MIB, device=GPU)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = (x + 1) * (x + 2)
        for _ in range(3):
            torch.cuda.empty_cache()
            block(64 * MIB).fill_(255)
            graph.replay()
        torch.cuda.synchronize()
        self.assertTrue(bool((y == 6).all()))

    def test_memory_goes_back_with_the_graph(self):
        x = torch.ones(16 * MIB, device=GPU)
        before = reserved()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = x + 1
        self.assertGreater(reserved(), before)
        graph.replay()
        torch.cuda.synchronize()
        del y, graph
        gc.collect()
        torch.cuda.empty_cache()
        self.assertLessEqual(reserved(), before)

    def test_an_output_outlives_its_graph(self):
        x = torch.ones(MIB, device=GPU)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = x + 4
        graph.replay()
        torch.cuda.synchronize()
        del graph
        gc.collect()
        torch.cuda.empty_cache()
        block(32 * MIB).fill_(9)
        self.assertTrue(bool((y == 5).all()))

    def test_reset_and_capture_again(self):
        x = torch.ones(1000, device=GPU)
        graph = torch.cuda.CUDAGraph()
        for add in (1, 2, 3):
            with torch.cuda.graph(graph):
                y = x + add
            graph.replay()
            self.assertTrue(bool((y == 1 + add).all()))
            del y
            graph.reset()

    def test_replay_interleaved_with_eager_work(self):
        x = torch.zeros(MIB, device=GPU)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = (x + 1).relu() * 2
        total = torch.zeros((), device=GPU)
        for i in range(30):
            x.copy_(torch.full((MIB,), float(i), device=GPU))
            graph.replay()
            noise = torch.randn(MIB + 1000 * i, device=GPU)
            total += (y != 2 * (i + 1)).sum()
            del noise
        self.assertEqual(int(total), 0)

    def test_two_streams_inside_a_capture(self):
        x = torch.ones(MIB, device=GPU)
        side = torch.cuda.Stream()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            a = x + 1
            main = torch.cuda.current_stream()
            side.wait_stream(main)
            with torch.cuda.stream(side):
                b = x + 2
                a.record_stream(side)
                c = a + b
            main.wait_stream(side)
            c.record_stream(main)
            del b
            d = c * 2
            del a, c
        for _ in range(3):
            graph.replay()
        torch.cuda.synchronize()
        self.assertTrue(bool((d == 10).all()))
        # What was put off for the capture is free again afterwards.
        del d, graph
        gc.collect()
        self.assertTrue(bool((torch.full((MIB,), 3.0, device=GPU) == 3).all()))

    def test_joined_streams_reuse_inside_a_capture(self):
        torch.cuda.memory._set_allocator_settings("graph_capture_record_stream_reuse:True")
        self.addCleanup(torch.cuda.memory._set_allocator_settings, "graph_capture_record_stream_reuse:False")
        x = torch.ones(1000, device=GPU)
        side, third = torch.cuda.Stream(), torch.cuda.Stream()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            main = torch.cuda.current_stream()
            total = torch.zeros(1000, device=GPU)
            first = x + 1
            address = first.data_ptr()
            outputs = []
            for stream, factor in ((side, 2), (third, 3)):
                stream.wait_stream(main)
                with torch.cuda.stream(stream):
                    outputs.append(first * factor)
                first.record_stream(stream)
            del first
            main.wait_stream(side)
            total.add_(1)
            early = torch.full((1000,), 5.0, device=GPU)  # the third stream may still read
            self.assertNotEqual(early.data_ptr(), address)
            main.wait_stream(third)
            total.add_(1)
            late = torch.full((1000,), 7.0, device=GPU)
            self.assertEqual(late.data_ptr(), address)
            for each in outputs:
                total.add_(each)
        for _ in range(3):
            graph.replay()
            torch.cuda.synchronize()
            self.assertTrue(bool((total == 2 + 4 + 6).all()))
            self.assertTrue(bool((late == 7).all()) and bool((early == 5).all()))

    def test_without_the_setting_what_was_recorded_waits_for_the_end(self):
        side = torch.cuda.Stream()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            main = torch.cuda.current_stream()
            first = torch.ones(1000, device=GPU)
            address = first.data_ptr()
            side.wait_stream(main)
            with torch.cuda.stream(side):
                output = first * 2
            first.record_stream(side)
            del first
            main.wait_stream(side)
            late = torch.full((1000,), 7.0, device=GPU)
            self.assertNotEqual(late.data_ptr(), address)
        graph.replay()
        torch.cuda.synchronize()
        self.assertTrue(bool((output == 2).all()))

    def test_record_stream_of_outside_memory_during_a_capture(self):
        x = torch.ones(MIB, device=GPU)
        graph = torch.cuda.CUDAGraph()
        side = torch.cuda.Stream()
        outside = torch.ones(MIB, device=GPU)
        with torch.cuda.graph(graph):
            main = torch.cuda.current_stream()
            side.wait_stream(main)
            with torch.cuda.stream(side):
                y = x + outside
            outside.record_stream(side)
            main.wait_stream(side)
        graph.replay()
        torch.cuda.synchronize()
        self.assertTrue(bool((y == 2).all()))

    def test_random_numbers_go_on_from_replay_to_replay(self):
        graph = torch.cuda.CUDAGraph()
        torch.manual_seed(3)
        with torch.cuda.graph(graph):
            y = torch.rand(1000, device=GPU)
        graph.replay()
        first = y.clone()
        graph.replay()
        self.assertFalse(torch.equal(first, y))


class Sharing(AllocatorTest):
    def test_two_graphs_share_a_pool(self):
        x = torch.ones(4 * MIB, device=GPU)
        first, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(first):
            y = (x + 1) * 2
        before = reserved()
        with torch.cuda.graph(second, pool=first.pool()):
            z = (y + 1) * 3
        self.assertEqual(first.pool(), second.pool())
        self.assertLessEqual(reserved() - before, 3 * 16 * MIB)
        for _ in range(4):
            first.replay()
            second.replay()
        torch.cuda.synchronize()
        self.assertTrue(bool((y == 4).all()))
        self.assertTrue(bool((z == 15).all()))

    def test_a_handle_made_beforehand(self):
        pool = torch.cuda.graph_pool_handle()
        x = torch.ones(MIB, device=GPU)
        graphs, outputs = [], []
        for i in range(4):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool):
                outputs.append(x + i)
            graphs.append(graph)
        for graph in graphs:
            graph.replay()
        torch.cuda.synchronize()
        for i, output in enumerate(outputs):
            self.assertTrue(bool((output == 1 + i).all()))
        # The pool lives as long as any of them.
        del graphs[0], outputs[0]
        gc.collect()
        torch.cuda.empty_cache()
        for graph in graphs:
            graph.replay()
        torch.cuda.synchronize()
        for i, output in enumerate(outputs):
            self.assertTrue(bool((output == 2 + i).all()))

    def test_the_memory_of_a_shared_pool_goes_back_at_last(self):
        x = torch.ones(8 * MIB, device=GPU)
        before = reserved()
        pool = torch.cuda.graph_pool_handle()
        graphs = []
        for _ in range(3):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool):
                y = x * 2
            graphs.append(graph)
            del y, graph
        graphs.clear()
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        self.assertLessEqual(reserved(), before)


class Callables(AllocatorTest):
    def test_a_graphed_module_trains_as_an_eager_one(self):
        def train(graphed):
            torch.manual_seed(0)
            model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(),
                                        torch.nn.Linear(128, 8)).to(GPU)
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            if graphed:
                model = torch.cuda.make_graphed_callables(model, (torch.randn(32, 64, device=GPU),))
            generator = torch.Generator(GPU).manual_seed(1)
            for _ in range(10):
                x = torch.randn(32, 64, device=GPU, generator=generator)
                optimizer.zero_grad(set_to_none=True)  # a graph writes its gradients anew
                model(x).square().mean().backward()
                optimizer.step()
            return [parameter.detach().clone() for parameter in model.parameters()]

        for graphed, eager in zip(train(True), train(False)):
            torch.testing.assert_close(graphed, eager)

    def test_several_callables_share_their_memory(self):
        first, second = torch.nn.Linear(256, 256).to(GPU), torch.nn.Linear(256, 16).to(GPU)
        x = torch.randn(64, 256, device=GPU, requires_grad=True)
        h = torch.randn(64, 256, device=GPU, requires_grad=True)
        a, b = torch.cuda.make_graphed_callables((first, second), ((x,), (h,)))
        out = b(a(torch.randn(64, 256, device=GPU, requires_grad=True)))
        out.sum().backward()
        torch.cuda.synchronize()
        self.assertTrue(bool(torch.isfinite(first.weight.grad).all()))

    def test_a_whole_training_step_in_one_graph(self):
        torch.manual_seed(0)
        model = torch.nn.Linear(128, 128).to(GPU)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        x = torch.randn(64, 128, device=GPU)

        def step():
            optimizer.zero_grad(set_to_none=True)
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        warm(step)
        graph = torch.cuda.CUDAGraph()
        optimizer.zero_grad(set_to_none=True)
        with torch.cuda.graph(graph):
            loss = step()
        graph.replay()
        begin = float(loss)
        for _ in range(20):
            graph.replay()
        self.assertLess(float(loss), begin)

    def test_allocated_counts_the_memory_of_graphs(self):
        x = torch.ones(4 * MIB, device=GPU)
        before = allocated()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = x + 1
        self.assertGreaterEqual(allocated() - before, 16 * MIB)
        del y
        self.assertLess(allocated() - before, 16 * MIB)


if __name__ == "__main__":
    support.main()
