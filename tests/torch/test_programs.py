# SPDX-License-Identifier: Apache-2.0
"""Whole programs: cuDNN's search, cuBLAS, training with reproducible results, pinned copies, libraries."""

import gc

import support
import torch
import torch.nn.functional as F
from support import GPU, MIB, AllocatorTest, allocated, block


class Libraries(AllocatorTest):
    def test_cudnn_searches_with_the_memory_there_is(self):
        """cudnn.benchmark asks the allocator how large its largest block could be."""
        torch.backends.cudnn.benchmark = True
        try:
            for size in (32, 57, 64):
                x = torch.randn(8, 16, size, size, device=GPU, requires_grad=True)
                w = torch.randn(32, 16, 3, 3, device=GPU, requires_grad=True)
                y = F.conv2d(x, w, padding=1)
                y.square().mean().backward()
                with torch.no_grad():
                    expected = F.conv2d(x.double(), w.double(), padding=1)
                torch.testing.assert_close(y.double(), expected, rtol=2e-2, atol=5e-2)
        finally:
            torch.backends.cudnn.benchmark = False

    def test_cudnn_searches_near_the_limit(self):
        total = torch.cuda.get_device_properties(0).total_memory
        torch.backends.cudnn.benchmark = True
        torch.cuda.set_per_process_memory_fraction(
            (torch.cuda.memory_reserved() + 512 * MIB) / total)
        try:
            x = torch.randn(16, 32, 64, 64, device=GPU)
            w = torch.randn(64, 32, 3, 3, device=GPU)
            self.assertTrue(bool(torch.isfinite(F.conv2d(x, w)).all()))
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)
            torch.backends.cudnn.benchmark = False

    def test_products_on_several_streams(self):
        a = torch.randn(512, 512, device=GPU)
        expected = a @ a
        torch.cuda.synchronize()
        results = []
        for _ in range(6):
            with torch.cuda.stream(torch.cuda.Stream()):
                results.append(a @ a)
        torch.cuda.synchronize()
        for result in results:
            torch.testing.assert_close(result, expected)

    def test_sorting_scanning_and_indexing(self):
        x = torch.randperm(1_000_000, device=GPU)
        self.assertTrue(torch.equal(x.sort().values, torch.arange(1_000_000, device=GPU)))
        self.assertEqual(int(x.cumsum(0)[-1]), 999_999 * 500_000)
        self.assertEqual(len((x < 1000).nonzero()), 1000)
        self.assertEqual(len(x.unique()), 1_000_000)

    def test_a_fourier_transform_there_and_back(self):
        x = torch.randn(64, 4096, device=GPU)
        torch.testing.assert_close(torch.fft.irfft(torch.fft.rfft(x), n=4096), x, rtol=1e-4, atol=1e-4)

    def test_pinned_copies_both_ways(self):
        host = torch.randn(4 * MIB).pin_memory()
        for _ in range(10):
            on_gpu = host.to(GPU, non_blocking=True)
            back = torch.empty_like(host).pin_memory()
            back.copy_(on_gpu, non_blocking=True)
            torch.cuda.synchronize()
            self.assertTrue(torch.equal(host, back))

    def test_dlpack_and_the_array_interface(self):
        x = torch.arange(1000, device=GPU)
        y = torch.from_dlpack(x)
        self.assertEqual(y.data_ptr(), x.data_ptr())
        del x
        block(MIB).fill_(1)
        self.assertTrue(torch.equal(y.cpu(), torch.arange(1000)))
        self.assertEqual(y.__cuda_array_interface__["data"][0], y.data_ptr())


def train(steps):
    """A small transformer's weights after some deterministic steps of changing size."""
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(128, 4, 256, dropout=0.1, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).to(GPU).train()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        length = int(torch.randint(10, 200, (), generator=generator))
        x = torch.randn(8, length, 128, generator=generator).to(GPU)
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return torch.cat([parameter.detach().view(-1) for parameter in model.parameters()])


class Training(AllocatorTest):
    def test_twice_the_same_bits(self):
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.backends.cuda.enable_flash_sdp(False)
        torch.backends.cuda.enable_mem_efficient_sdp(False)
        torch.backends.cuda.enable_cudnn_sdp(False)
        try:
            first = train(12)
            noise = [block(size) for size in (1000, 7 * MIB, 33 * MIB)]  # other addresses
            del noise[1]
            self.assertTrue(torch.equal(first, train(12)))
        finally:
            torch.use_deterministic_algorithms(False)
            for choose in (torch.backends.cuda.enable_flash_sdp,
                           torch.backends.cuda.enable_mem_efficient_sdp,
                           torch.backends.cuda.enable_cudnn_sdp):
                choose(True)

    def test_nothing_is_left_afterwards(self):
        before = allocated()
        train(5)
        gc.collect()
        torch.cuda.synchronize()
        torch._C._cuda_clearCublasWorkspaces()
        self.assertEqual(allocated(), before)

    def test_checkpointed_activations_need_less(self):
        from torch.utils.checkpoint import checkpoint

        layers = torch.nn.ModuleList(
            torch.nn.Sequential(torch.nn.Linear(1024, 1024), torch.nn.GELU(),
                                torch.nn.Linear(1024, 1024), torch.nn.GELU())
            for _ in range(8)).to(GPU)

        def peak(use):
            torch.cuda.reset_peak_memory_stats()
            x = torch.randn(8192, 1024, device=GPU, requires_grad=True)
            for layer in layers:
                x = checkpoint(layer, x, use_reentrant=False) if use else layer(x)
            x.sum().backward()
            layers.zero_grad(set_to_none=True)
            return torch.cuda.max_memory_allocated()

        self.assertLess(peak(True), peak(False))

    def test_a_profiler_sees_the_memory(self):
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
            x = torch.empty(8 * MIB, dtype=torch.uint8, device=GPU)
            del x
        sizes = [event.nbytes() for event in profiled.profiler.kineto_results.events()
                 if event.name() == "[memory]"]
        self.assertTrue(any(size >= 8 * MIB for size in sizes), sizes)
        self.assertTrue(any(size <= -8 * MIB for size in sizes), sizes)


if __name__ == "__main__":
    support.main()
