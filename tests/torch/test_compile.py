# SPDX-License-Identifier: Apache-2.0
"""torch.compile in its default mode and with CUDA graphs (mode="reduce-overhead", cudagraph trees)."""

import gc
import os
import tempfile

# Before torch reads it: a cache of this process's own, so that runs side by side do not share one.
_cache = tempfile.TemporaryDirectory()
os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", _cache.name)
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "4")

import support  # noqa: E402
import torch  # noqa: E402
from support import GPU, MIB, AllocatorTest, allocated, block, reserved  # noqa: E402


class Compile(AllocatorTest):
    def setUp(self):
        super().setUp()
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        torch.manual_seed(0)

    def tearDown(self):
        torch._dynamo.reset()
        super().tearDown()

    def assert_no_graph_was_given_up(self):
        self.assertEqual(torch._dynamo.utils.counters["inductor"]["cudagraph_skips"], 0)

    def test_default_mode_trains_as_eager_does(self):
        def train(compiled):
            torch.manual_seed(0)
            model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(),
                                        torch.nn.Linear(64, 8)).to(GPU)
            run = torch.compile(model) if compiled else model
            optimizer = torch.optim.SGD(model.parameters(), 0.05)
            generator = torch.Generator(GPU).manual_seed(1)
            for _ in range(5):
                x = torch.randn(32, 64, device=GPU, generator=generator)
                run(x).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
            return [parameter.detach() for parameter in model.parameters()]

        for compiled, eager in zip(train(True), train(False)):
            torch.testing.assert_close(compiled, eager, rtol=1e-3, atol=1e-4)

    def test_reduce_overhead_computes_what_eager_does(self):
        def function(x):
            y = torch.sin(x) + 1
            return (y * y).softmax(-1), y

        compiled = torch.compile(function, mode="reduce-overhead")
        for i in range(8):
            x = torch.randn(256, 256, device=GPU)
            torch.compiler.cudagraph_mark_step_begin()
            noise = block((i + 1) * MIB)
            for actual, expected in zip(compiled(x), function(x)):
                torch.testing.assert_close(actual, expected)
            del noise, actual, expected
        self.assert_no_graph_was_given_up()

    def test_reduce_overhead_trains(self):
        model = torch.nn.Sequential(torch.nn.Linear(128, 128), torch.nn.ReLU(),
                                    torch.nn.Linear(128, 1)).to(GPU)
        compiled = torch.compile(model, mode="reduce-overhead")
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        x, y = torch.randn(256, 128, device=GPU), torch.randn(256, 1, device=GPU)
        losses = []
        for _ in range(12):
            torch.compiler.cudagraph_mark_step_begin()
            loss = (compiled(x) - y).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            losses.append(float(loss))
        self.assertLess(losses[-1], losses[0])
        self.assert_no_graph_was_given_up()

    def test_a_tree_of_graphs_with_two_branches(self):
        """Which graph follows depends on the run: pool states are kept and restored between them."""

        @torch.compile(mode="reduce-overhead")
        def trunk(x):
            return x * 2 + 1

        @torch.compile(mode="reduce-overhead")
        def left(x):
            return (x + 3).relu()

        @torch.compile(mode="reduce-overhead")
        def right(x):
            return (x - 3).relu().cumsum(-1)

        for i in range(16):
            torch.compiler.cudagraph_mark_step_begin()
            x = torch.full((512, 512), float(i % 5), device=GPU)
            h = trunk(x)
            if i % 3 == 0:
                torch.testing.assert_close(left(h), (2 * x + 4).relu())
            else:
                torch.testing.assert_close(right(h), (2 * x - 2).relu().cumsum(-1))
            torch.testing.assert_close(h, x * 2 + 1)
            del h
        self.assert_no_graph_was_given_up()

    def test_an_output_that_is_kept_stays_what_it_was(self):
        compiled = torch.compile(lambda x: x.cos() + 1, mode="reduce-overhead")
        kept = []
        for i in range(6):
            torch.compiler.cudagraph_mark_step_begin()
            x = torch.full((1000,), float(i), device=GPU)
            kept.append((i, compiled(x).clone()))
        for i, y in kept:
            torch.testing.assert_close(y, torch.full((1000,), float(i), device=GPU).cos() + 1)

    def test_several_shapes(self):
        compiled = torch.compile(lambda x: (x @ x.t()).sum(-1), mode="reduce-overhead", dynamic=False)
        for size in (64, 128, 64, 192, 128, 64):
            torch.compiler.cudagraph_mark_step_begin()
            x = torch.ones(size, 32, device=GPU)
            torch.testing.assert_close(compiled(x), torch.full((size,), 32.0 * size, device=GPU))

    def test_the_memory_of_the_trees_goes_back(self):
        before = reserved()
        compiled = torch.compile(lambda x: x * 2 + 1, mode="reduce-overhead")
        for _ in range(4):
            torch.compiler.cudagraph_mark_step_begin()
            y = compiled(torch.ones(16 * MIB, device=GPU))
        torch.cuda.synchronize()
        del y, compiled
        torch._dynamo.reset()
        gc.collect()
        torch.cuda.empty_cache()
        self.assertLessEqual(reserved(), before + 32 * MIB)
        self.assertLess(allocated(), before + 32 * MIB)


if __name__ == "__main__":
    support.main()
