#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Which builds of torch weir.torch.enable() takes, and what its functions ask of the extension, under a stand-in
(fake_torch.py). tests/torch has the real one."""

import gc
import os
import re
import sys
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

    def test_uses_are_watched_where_memory_is_checked(self):
        for options, environment, watched in (
                (None, None, 0), (None, "off", 0), (None, "guard_pages", 1), ({"heap_debug": "red_zones"}, None, 1),
                ("heap_limit=1GiB,heap_debug=guard_pages", "off", 1), ({"heap_debug": "off"}, "guard_pages", 0)):
            with self.subTest(options=options, environment=environment):
                module = self.make()
                variables = {} if environment is None else {"WEIR_HEAP_DEBUG": environment}
                with unittest.mock.patch.dict(os.environ, variables), \
                        unittest.mock.patch.object(module, "watch_uses") as watch_uses:
                    if environment is None:
                        os.environ.pop("WEIR_HEAP_DEBUG", None)
                    module.enable(options=options)
                    self.assertEqual(watch_uses.call_count, watched)

    def test_uses_are_not_watched_under_compute_sanitizer(self):
        for library, watched in (("/opt/cuda/compute-sanitizer/libsanitizer-collection.so", 0),
                                 ("/home/sanitizer/libnvtx-recorder.so", 1)):
            with self.subTest(library):
                module = self.make()
                with unittest.mock.patch.dict(os.environ, {"NVTX_INJECTION64_PATH": library}), \
                        unittest.mock.patch.object(module, "watch_uses") as watch_uses:
                    module.enable(options="heap_debug=red_zones")
                    self.assertEqual(watch_uses.call_count, watched)

    def test_who_watches_uses_is_told_of_them(self):
        module = self.make()
        for report in (None, print):
            with unittest.mock.patch.dict(sys.modules, {"weir._torch_uses": unittest.mock.Mock()}) as modules:
                module.watch_uses(*([] if report is None else [report]))
                modules["weir._torch_uses"].watch.assert_called_once_with(report)

    def test_older_ones_are_refused(self):
        self.assertRegex(self.refusal("2.5.1+cu121"), "torch 2.6 to 2.14, this is 2.5.1\\+cu121.*pluggable")
        self.assertRegex(self.refusal("1.13.1"), "supports torch 2.6 to 2.14, this is 1.13.1")

    def test_a_version_that_is_none_is_refused(self):
        self.assertRegex(self.refusal("unknown"), "cannot read the version of torch from 'unknown'")

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
                    self.assertLogs("weir.torch", "WARNING") as logged, \
                    self.assertRaises(RuntimeError) as caught:
                module.enable()
            self.assertRegex(logged.output[0], f"no built extension fits torch {re.escape(version)} .*no extension was found. "
                                               "An extension is compiled now, once, which takes .* s with .* cores; "
                                               f"the result is kept in {folder}/torch")
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
        self.assertRegex(text, "torch 2.16.0 could not be built. enable\\(\\) supports torch 2.6 to 2.14")
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

    def test_devices_that_are_no_gpu_are_refused(self):
        for call in (self.weir_torch.stats, self.weir_torch.trim, self.weir_torch.report):
            for device in ("cpu", "cpu:0", "meta"):
                with self.assertRaisesRegex(ValueError, f"expected a CUDA device, got '{device}'"):
                    call(device)
        self.assertEqual(self.extension.calls, [])

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
                    "handles_created": 6, "handles_moved": 7, "handles_released": 8, "suspended": 6 * mib,
                    "backup": 32 * mib, "reserved_and_suspended_peak": 28 * mib}
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
            "  reserved  22 MiB, peak 24 MiB, 28 MiB with suspended memory: 1.400 of the peak that was requested, "
            "limit 64 MiB",
            "  cached    9 MiB: 4 MiB by threads, 5 MiB for one stream only; waiting for other streams 2 MiB",
            "  suspended 6 MiB of physical memory, which resume() takes again; 32 MiB held on the host for contents",
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
        counters["suspended"] = 0
        counters["reserved_and_suspended_peak"] = counters["reserved_peak"]
        self.assertNotIn("suspended", self.weir_torch.report(0, 5 * mib))


class Suspension(Case):
    """What is chosen reaches the extension as weir.h numbers it, and what it answers becomes a value or an exception."""

    KEEP, EVICTED = (0, 0, 0, 0, 0), (0, 0, 2, 0, 0)

    def setUp(self):
        self.weir_torch = self.make()
        self.weir_torch.enable()
        self.extension.answers.update({
            "declare_suspendable": (0, 0, ""), "suspend": (0, 0, "", 6, 5, 4), "resume": (0, 0, "", 3, 2),
            "is_suspended": True, "suspend_stats": (9, 8, 7, 6, 5), "reserve_backup": (0, 0, ""),
            "trim_backup": (0, 0, "", 77)})

    def told(self):
        """The calls, without the functions among their arguments."""
        return [tuple("function" if callable(part) else part for part in call) for call in self.extension.calls]

    def test_a_tag_is_declared_once_by_its_blocks(self):
        for _ in range(2):
            with self.weir_torch.tag("weights", suspendable=True):
                pass
        with self.weir_torch.tag("plain"):
            pass
        declared = ("declare_suspendable", 1, "weights", False, 0, self.EVICTED)
        scope = [("enter", "weights"), ("leave", "weights")]
        self.assertEqual(self.extension.calls, [declared, *scope, *scope, ("enter", "plain"), ("leave", "plain")])

    def test_options_that_were_chosen_are_not_reset_by_a_block(self):
        self.weir_torch.declare_suspendable("stash", evictable=True, priority=3, contents="discard", to="pageable",
                                            requests="wait", chunk=4096)
        with self.weir_torch.tag("stash", suspendable=True):
            pass
        self.assertEqual(self.extension.calls, [("declare_suspendable", 1, "stash", True, 3, (1, 1, 1, 4096, 0)),
                                                ("enter", "stash"), ("leave", "stash")])

    def test_a_tag_a_pool_the_pool_of_a_graph_and_everything(self):
        pool = self.weir_torch.mem_pool(suspendable=True)
        for what, meant in (("weights", "weights"), (pool, (1, 7)), ((0, 3), (0, 3)), (None, None)):
            self.extension.calls.clear()
            self.assertEqual(self.weir_torch.suspend(what), weir.SuspendOutcome(6, 5, 4))
            self.assertEqual(self.weir_torch.resume(what, device=2), weir.ResumeOutcome(3, 2))
            self.assertEqual(self.weir_torch.is_suspended(what), True)
            self.assertEqual(self.weir_torch.suspend_stats(what, "cuda:2"),
                             weir.SuspendStats(9, weir.Gauge(8, 7), weir.Gauge(6, 5)))
            self.assertEqual(self.extension.calls,
                             [("suspend", 1, meant, self.KEEP, None), ("resume", 2, meant, None),
                              ("is_suspended", 1, meant), ("suspend_stats", 2, meant)])

    def test_without_waiting(self):
        self.extension.answers.update({"suspend_async": (0, 0, ""), "resume_async": (0, 0, "", 3, 2)})
        stream = types.SimpleNamespace(cuda_stream=77)
        self.assertEqual(self.weir_torch.suspend("a", wait=False, chunk=512, streams="known"), weir.SuspendOutcome())
        self.assertEqual(self.weir_torch.resume("a", ahead_of=stream, device=2), weir.ResumeOutcome(3, 2))
        self.assertEqual(self.extension.calls,
                         [("suspend_async", 1, "a", (0, 0, 0, 512, 1)), ("resume_async", 2, "a", 77)])
        with self.assertRaisesRegex(ValueError, "needs a suspend.. with wait=True"):
            self.weir_torch.suspend("a", wait=False, progress=print)
        with self.assertRaisesRegex(ValueError, "needs a resume.. with wait=True"):
            self.weir_torch.resume("a", ahead_of=stream, progress=print)

    def test_what_is_chosen(self):
        self.weir_torch.suspend("a", contents="discard", to="pageable", requests="resume", chunk=512, device=0)
        self.assertEqual(self.extension.calls, [("suspend", 0, "a", (1, 1, 2, 512, 0), None)])
        for arguments, words in (({"contents": 1}, "contents: expected one of 'keep', 'discard', got 1"),
                                 ({"to": "disk"}, "to: expected one of"), ({"requests": "hope"}, "requests: expected one of"),
                                 ({"chunk": 511}, "at least 512")):
            with self.assertRaisesRegex(ValueError, words):
                self.weir_torch.suspend("a", **arguments)
            with self.assertRaisesRegex(ValueError, words):
                self.weir_torch.declare_suspendable("a", **arguments)
        self.assertEqual(len(self.extension.calls), 1)

    def test_a_block_of_code_resumes_on_its_device_whatever_happens(self):
        with self.assertRaises(KeyError), self.weir_torch.suspended("a", to="pageable", progress=print) as outcome:
            self.assertEqual(outcome, weir.SuspendOutcome(6, 5, 4))
            self.fake.torch.cuda.current_device = lambda: 0
            raise KeyError
        self.assertEqual(self.told(), [("suspend", 1, "a", (0, 1, 0, 0, 0), "function"),
                                       ("resume", 1, "a", "function")])

    def test_what_progress_raises_goes_no_further(self):
        told = []
        self.weir_torch.suspend("a", progress=lambda *step: told.append(step))
        self.extension.calls[0][-1](1, 2)
        self.assertEqual(told, [(1, 2)])
        self.weir_torch.resume("a", progress=lambda *step: 1 / 0)
        with unittest.mock.patch("sys.excepthook") as hook:
            self.extension.calls[1][-1](1, 2)
        self.assertIs(hook.call_args.args[0], ZeroDivisionError)

    def test_no_memory_is_torchs_error_and_weirs(self):
        self.extension.answers["resume"] = (4, 2, "out_of_memory: 5 GiB have to come back")
        with self.assertRaises(self.weir_torch.OutOfMemory) as caught:
            self.weir_torch.resume("a")
        self.assertIsInstance(caught.exception, self.fake.torch.cuda.OutOfMemoryError)
        self.assertIsInstance(caught.exception, weir.OutOfMemory)
        self.assertIsInstance(caught.exception, MemoryError)
        self.assertEqual((str(caught.exception), caught.exception.code, caught.exception.name, caught.exception.native),
                         ("out_of_memory: 5 GiB have to come back", 4, "out_of_memory", 2))

    def test_other_errors_have_their_kinds(self):
        for code, kind, name in ((19, weir.NotSupported, "not_supported"), (24, weir.Error, "not_found"),
                                 (34, weir.NoHostMemory, "no_host_memory"), (11, weir.Error, "capture_forbidden")):
            answer = (code, 0, "why")
            self.extension.answers.update(suspend=answer, declare_suspendable=answer, reserve_backup=answer,
                                          trim_backup=answer)
            for call in (self.weir_torch.suspend, lambda: self.weir_torch.declare_suspendable("b"),
                         lambda: self.weir_torch.reserve_backup(1), self.weir_torch.trim_backup):
                with self.assertRaises(kind) as caught:
                    call()
                self.assertEqual((str(caught.exception), caught.exception.name), ("why", name))
        self.extension.answers["declare_suspendable"] = (0, 0, "")
        self.extension.calls.clear()
        with self.weir_torch.tag("b", suspendable=True):  # it was not declared before
            self.assertEqual([call[0] for call in self.extension.calls], ["declare_suspendable", "enter"])

    def test_host_memory(self):
        self.weir_torch.reserve_backup(1 << 20)
        self.weir_torch.reserve_backup(5, "pageable", 0)
        self.assertEqual(self.weir_torch.trim_backup(), 77)
        self.assertEqual(self.extension.calls,
                         [("reserve_backup", 1, 1 << 20, 0), ("reserve_backup", 0, 5, 1), ("trim_backup", 1)])

    def test_a_pool_is_made_suspendable_before_it_is_used(self):
        pool = self.weir_torch.mem_pool(suspendable=True, use_on_oom=True)
        self.assertEqual((pool.allocator, pool.arguments), ((), {"use_on_oom": True}))
        self.assertEqual(self.extension.calls, [("make_pool_suspendable", 1, (1, 7), False, 0, self.EVICTED)])

    def test_without_enable_they_say_so(self):
        fresh = self.make()
        for call in (fresh.suspend, fresh.resume, fresh.trim_backup, lambda: fresh.is_suspended("a"),
                     lambda: fresh.mem_pool(suspendable=True), lambda: fresh.declare_suspendable("a")):
            with self.assertRaisesRegex(RuntimeError, "call weir.torch.enable\\(\\) first"):
                call()


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


class Sent(Case):
    """A tensor that this process sends, and the memory's handle among what torch sends of it."""

    def send(self, handle, needs_weir=None, rebuild=fake_torch.Fake.rebuild):
        module = self.make()
        reductions = self.fake.torch.multiprocessing.reductions
        self.sent = ("tensor", (2, 3), (3, 1), 5, "storage", "float", 1, handle, 4096, 512, True, b"counter", 9,
                     b"event", True)
        reductions.reduce_tensor = lambda tensor: (rebuild, self.sent)
        self.extension.answers["needs_weir"] = needs_weir
        module.enable()
        import weir._torch_sharing
        self.sharing = weir._torch_sharing
        return reductions.reduce_tensor("tensor")

    def test_is_opened_by_weir_where_its_handle_needs_that(self):
        self.assertEqual(self.send(b"handle", True), (self.sharing.rebuild_cuda_tensor, self.sent))
        self.assertEqual(self.extension.calls, [("needs_weir", b"handle")])
        self.assertEqual(self.send(b"handle", False), (self.fake.rebuild, self.sent))
        self.assertEqual(self.extension.calls, [("needs_weir", b"handle")])

    def test_goes_torchs_way_where_it_has_no_handle_or_is_no_cuda_tensor(self):
        self.assertEqual(self.send(None), (self.fake.rebuild, self.sent))
        self.assertEqual(self.send(b"handle", True, print), (print, self.sent))
        self.assertEqual(self.extension.calls, [])


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
