#!/usr/bin/env python3
"""Which builds of torch weir.torch.enable() takes, and what its functions ask of the extension, under a stand-in
(fake_torch.py). tests/torch has the real one."""

import gc
import os
import tempfile
import types
import unittest
import unittest.mock
import warnings
from pathlib import Path

import support  # noqa: F401  (finds the package)

import fake_torch
import weir


class Case(unittest.TestCase):
    def make(self, version="2.11.0+cu130", **arguments):
        """weir.torch under a torch of that version, with an extension that is built already."""
        self.fake = fake_torch.Fake(version, **arguments)
        module = self.fake.install()
        self.addCleanup(self.fake.remove)
        self.extension = fake_torch.Extension()

        def load(_verbose=False):
            module._extension = self.extension
            return self.extension

        module._load = load
        return module


class Versions(Case):
    def refusal(self, version, any_version=False, **arguments):
        module = self.make(version, **arguments)
        with self.assertRaises(RuntimeError) as caught:
            module.enable(any_version=any_version)
        self.assertEqual(self.extension.installs, [])
        self.assertFalse(module.is_enabled())
        return str(caught.exception)

    def test_covered_ones_are_taken_without_a_word(self):
        for version in ("2.6.0+cu126", "2.7.1", "2.9.0.dev20250801+cu128", "2.10.0", "2.11.0+cu130", "2.14.1",
                        "2.14.0a0+git93e9d17"):
            with self.subTest(version), warnings.catch_warnings():
                warnings.simplefilter("error")
                module = self.make(version)
                module.enable(policy="compact", exportable=False)
                self.assertEqual(self.extension.installs, [("heap_policy=compact", False)])
                self.assertTrue(module.is_enabled())
                module.enable()  # the second time does nothing
                self.assertEqual(len(self.extension.installs), 1)

    def test_later_ones_are_tried_with_a_warning(self):
        for version in ("2.15.0a0+gitec30410", "2.20.0", "3.0.0"):
            with self.subTest(version):
                module = self.make(version)
                with self.assertWarnsRegex(RuntimeWarning, f"not tested with torch {version[:4]}.*2.6 to 2.14"):
                    module.enable()
                self.assertEqual(self.extension.installs, [("", True)])

    def test_whoever_asks_for_any_version_is_not_warned(self):
        for version in ("2.5.1", "2.15.0"):
            with self.subTest(version), warnings.catch_warnings():
                warnings.simplefilter("error")
                self.make(version).enable(any_version=True)
                self.assertEqual(self.extension.installs, [("", True)])

    def test_older_ones_are_refused(self):
        self.assertRegex(self.refusal("2.5.1+cu121"), "torch 2.6 to 2.14, this is 2.5.1\\+cu121.*pluggable")
        self.assertRegex(self.refusal("1.13.1"), "covers torch 2.6 to 2.14, this is 1.13.1")

    def test_a_version_that_is_none_is_refused(self):
        self.assertRegex(self.refusal("unknown"), "'unknown' is no version")

    def test_the_old_abi_is_refused_whoever_asks(self):
        for any_version in (False, True):
            text = self.refusal("2.6.0+cu124", any_version=any_version, cxx11_abi=False)
            self.assertRegex(text, "torch 2.6.0\\+cu124 was built with the C\\+\\+ ABI from before 2011")
            self.assertRegex(text, "wheel for CUDA 12.6.*pluggable")

    def test_one_without_cuda_is_refused(self):
        self.assertRegex(self.refusal("2.11.0+cpu", any_version=True, cuda=None), "without CUDA")


class Builds(unittest.TestCase):
    def failure(self, version):
        """The error of a build that the compiler ends."""
        fake = fake_torch.Fake(version)
        module = fake.install()
        self.addCleanup(fake.remove)
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "include").mkdir()
            (Path(folder) / "include" / "cuda_runtime_api.h").touch()
            with unittest.mock.patch.dict(os.environ, {"WEIR_CACHE": folder, "CUDA_HOME": folder}), \
                    unittest.mock.patch.object(module, "_loaded", str), \
                    self.assertRaises(RuntimeError) as caught:
                module.enable()
            self.assertEqual(list(Path(folder, "torch").iterdir()), [])  # nothing is left of it
        self.assertIn("-std=c++20", fake.builds[0]["extra_cflags"])
        self.assertIn("module.cpp", {Path(source).name for source in fake.builds[0]["sources"]})
        self.assertRegex(str(caught.exception.__cause__), "Error building extension")
        return str(caught.exception)

    def test_a_failure_names_the_version_and_what_to_do(self):
        text = self.failure("2.9.1+cu128")
        self.assertRegex(text, "extension for torch 2.9.1\\+cu128 could not be built. A C\\+\\+20 compiler")
        self.assertRegex(text, "verbose=True.*pluggable")

    def test_a_failure_with_a_later_one_says_that_the_interface_may_have_changed(self):
        text = self.failure("2.16.0")
        self.assertRegex(text, "torch 2.16.0 could not be built. enable\\(\\) covers torch 2.6 to 2.14")
        self.assertRegex(text, "may have changed.*newer weir.*pluggable")


class Functions(Case):
    """What is given reaches the extension as it is; a device is a number, a name, or the current one."""

    def setUp(self):
        self.weir_torch = self.make()
        self.weir_torch.enable()

    def test_without_enable_they_say_so(self):
        fresh = self.make()
        for call in (fresh.stats, fresh.report, fresh.trim, fresh.stop, lambda: fresh.mark("here")):
            if call is fresh.stop:
                call()  # nothing was begun
                continue
            with self.assertRaisesRegex(RuntimeError, "call weir.torch.enable\\(\\) first"):
                call()

    def test_devices(self):
        self.extension.answers["stats"] = {"requested": 7}
        for device, number in ((None, 1), (3, 3), ("cuda", 1), ("cuda:2", 2), (fake_torch.Device("cuda:5"), 5)):
            if isinstance(device, fake_torch.Device):
                self.fake.torch.device = lambda given: given
            self.assertEqual(self.weir_torch.stats(device), {"requested": 7})
            self.assertEqual(self.extension.calls.pop(), ("stats", number))

    def test_stats_before_the_first_allocation_are_empty(self):
        self.assertEqual(self.weir_torch.stats(), {})

    def test_trim(self):
        self.extension.answers["trim"] = 4096
        self.assertEqual(self.weir_torch.trim(0, keep=512), 4096)
        self.assertEqual(self.weir_torch.trim(), 4096)
        self.assertEqual(self.extension.calls, [("trim", 0, 512), ("trim", 1, 0)])

    def test_recordings_end_in_the_order_in_which_they_were_begun_last_first(self):
        self.weir_torch.record(Path("a.weirtrace"), 0, stacks=True)
        self.weir_torch.record("b.weirtrace", 2)
        self.weir_torch.mark("epoch 3")
        self.weir_torch.stop()
        self.weir_torch.stop()  # twice does no harm
        self.assertEqual(self.extension.calls,
                         [("record", 0, "a.weirtrace", True), ("record", 2, "b.weirtrace", False), ("mark", "epoch 3"),
                          ("stop_recording", 2), ("stop_recording", 0)])

    def test_a_tag_ends_with_its_block_whatever_happens_there(self):
        with self.assertRaises(KeyError), self.weir_torch.tag("kv cache"):
            self.assertEqual(self.extension.calls, [("enter", "kv cache")])
            raise KeyError
        self.assertEqual(self.extension.calls, [("enter", "kv cache"), ("leave", "kv cache")])

    def test_streams_are_given_by_device_and_handle(self):
        stream = types.SimpleNamespace(device_index=2, cuda_stream=0x77)
        self.weir_torch.watch_stream(stream)
        self.weir_torch.release_stream(stream)
        self.assertEqual(self.extension.calls, [("watch_stream", 2, 0x77), ("release_stream", 2, 0x77)])


class Reports(Case):
    def setUp(self):
        self.weir_torch = self.make()
        self.weir_torch.enable()

    def test_nothing_was_allocated(self):
        self.assertEqual(self.weir_torch.report(3), "weir under torch, cuda:3: nothing was allocated yet")
        self.assertEqual(self.extension.calls, [("describe", 3, 1)])

    def test_every_line(self):
        mib = 1 << 20
        counters = {"requested": 10 * mib, "blocks": 3, "allocated": 11 * mib, "requested_peak": 20 * mib,
                    "reserved": 22 * mib, "reserved_peak": 24 * mib, "cached": 9 * mib, "thread_cached": 4 * mib,
                    "stream_bound": 5 * mib, "pending": 2 * mib, "allocations": 200, "hits": 150, "failures": 1,
                    "handles_created": 6, "handles_moved": 7, "handles_released": 8}
        part = {"requested": mib, "blocks": 2, "requested_peak": 3 * mib, "reserved": 4 * mib}
        nothing = {"requested": 0, "blocks": 0, "requested_peak": 0, "reserved": 0}
        self.extension.answers["describe"] = {
            "stats": counters, "limit": 64 * mib, "name": "H200", "fragments": mib, "largest_free": 3 * mib,
            "device_total": 1024 * mib, "device_free": 512 * mib, "elsewhere": 100 * mib,
            "tags": [("weights", part), ("", part), ("gone", nothing)], "sizes": [(2 * mib, 4), (mib, 1)],
            "streams": [(0, mib, 0), (0x10, 0, 2 * mib), (0x20, 0, 0)],
            "pools": [((0, 0), None, part), ((1, 2), None, part), ((1, 3), None, nothing)],
            "advice": "Free something.\nOr wait."}
        self.assertEqual(self.weir_torch.report(0, 5 * mib).splitlines(), [
            "weir under torch, cuda:0 (H200)",
            "  live      10 MiB in 3 tensors' storages (11 MiB rounded), peak 20 MiB",
            "  reserved  22 MiB, peak 24 MiB: 1.200 of the peak that was requested, limit 64 MiB",
            "  cached    9 MiB: 4 MiB by threads, 5 MiB for one stream only; waiting for other streams 2 MiB",
            "  fragments 1 MiB free in pieces that cannot leave; longest free piece 3 MiB",
            "  calls     200 allocations, 75.0% without a lock, 1 failed; 6 pieces of memory taken from the driver, "
            "7 moved, 8 released",
            "  device    1 GiB, 512 MiB free, 100 MiB used by others",
            "  tag weights: 1 MiB in 2 blocks, peak 3 MiB",
            "  tag (none): 1 MiB in 2 blocks, peak 3 MiB",
            "  most of it in blocks of 2 MiB x 4, 1 MiB x 1",
            "  default stream: 1 MiB live, 0 B cached for it alone",
            "  stream 0x10: 0 B live, 2 MiB cached for it alone",
            "  pool (1, 2): 1 MiB live, 4 MiB reserved and kept for its graphs",
            "  Free something.",
            "  Or wait."])
        self.assertEqual(self.extension.calls, [("describe", 0, 5 * mib)])


class OtherWaysIn(Case):
    def test_a_pool_beside_torchs_own_allocator_is_served_by_the_plug_in(self):
        module = self.make()
        pool = module.mem_pool(use_on_oom=True)
        library = os.path.realpath(module._library())
        self.assertEqual(pool.arguments, {"use_on_oom": True})
        self.assertEqual(pool.allocator, (pool.weir_provider,))  # which lives as long as the pool
        self.assertEqual(pool.weir_provider.made_of[1:], ("weir_torch_malloc", "weir_torch_free"))
        self.assertEqual(os.path.realpath(pool.weir_provider.made_of[0]), library)

    def test_a_pool_under_weir_is_torchs(self):
        module = self.make()
        module.enable()
        pool = module.mem_pool(no_split=True)
        self.assertEqual((pool.allocator, pool.arguments), ((), {"no_split": True}))

    def test_the_plug_in_interface_gets_every_hook_and_becomes_the_allocator(self):
        module = self.make()
        module.pluggable()
        allocator = self.fake.allocator
        self.assertEqual(allocator.made_of[1:], ("weir_torch_malloc_or_throw", "weir_torch_free"))
        names = {"set_init_fn": "weir_torch_init", "set_reset_fn": "weir_torch_empty_cache",
                 "set_memory_fraction_fn": "weir_torch_memory_fraction", "set_base_alloc_fn": "weir_torch_base_alloc",
                 "set_record_stream_fn": "weir_torch_record_stream"}
        import ctypes
        self.assertEqual(allocator.hooks, {
            setter: ctypes.cast(getattr(weir._native.lib, name), ctypes.c_void_p).value
            for setter, name in names.items()})


class Received(Case):
    """A tensor that another process sent: (class, size, stride, offset, storage class, dtype, device, handle, bytes,
    offset in bytes, requires_grad, counter's handle and offset, event, whether to wait for it)."""

    def sent(self, kind="tensor", waits=True):
        return (kind, (2, 3), (3, 1), 5, "storage", "float", 1, b"handle", 4096, 512, True, b"counter", 9, b"event",
                waits)

    def receive(self):
        self.weir_torch = self.make()
        self.torch = fake_torch.Received(self.fake.torch)
        import weir._torch_sharing
        self.sharing = weir._torch_sharing

    def test_by_a_process_with_weir_goes_to_torch(self):
        self.receive()
        self.weir_torch.enable()
        self.assertEqual(self.sharing.rebuild_cuda_tensor(*self.sent()), ("torch's own", *self.sent()))
        self.assertEqual(self.torch.story, [])

    def test_twice_is_found_in_torchs_cache(self):
        self.receive()
        self.fake.torch.multiprocessing.reductions.shared_cache[(b"handle", 512)] = "there"
        self.assertEqual(self.sharing.rebuild_cuda_tensor(*self.sent()), ("torch's own", *self.sent()))

    def test_by_another_process_is_opened_by_weir_and_closed_with_the_last_tensor(self):
        self.receive()
        memory = types.SimpleNamespace(address=1 << 20, close=lambda: self.torch.story.append("closed"))
        self.extension.answers["OpenedMemory"] = memory
        tensor = self.sharing.rebuild_cuda_tensor(*self.sent())
        self.assertEqual(self.extension.calls, [("OpenedMemory", b"handle", 1)])
        self.assertEqual(self.torch.story, ["init", ("device", "cuda", 1), ("wait", 1, b"event")])
        interface = {"shape": (4096,), "typestr": "|u1", "version": 3, "data": ((1 << 20) + 512, False)}
        self.assertEqual(tensor.storage["wrap_storage"].bytes, interface)
        self.assertEqual((tensor.storage["dtype"], tensor.offset, tensor.size, tensor.stride, tensor.requires_grad),
                         ("float", 5, (2, 3), (3, 1), True))
        self.assertEqual(self.fake.torch.multiprocessing.reductions.shared_cache,
                         {(b"handle", 512): ("weak", interface)})
        del tensor
        gc.collect()
        self.assertEqual(self.torch.story[3:], ["closed", ("released", b"counter", 9)])

    def test_a_parameter_is_one_again_and_events_are_waited_for_only_if_asked(self):
        self.receive()
        self.extension.answers["OpenedMemory"] = types.SimpleNamespace(address=0, close=lambda: None)
        made = self.sharing.rebuild_cuda_tensor(*self.sent(self.torch.parameter, waits=False))
        self.assertIsInstance(made, self.torch.parameter)
        self.assertEqual((made.requires_grad, made.tensor.offset), (True, 5))
        self.assertEqual(self.torch.story, ["init", ("device", "cuda", 1)])


if __name__ == "__main__":
    unittest.main()
