# SPDX-License-Identifier: Apache-2.0
"""What weir adds: weir.torch's own functions, and the plug-in interface that any torch has."""

import concurrent.futures
import os
import tempfile
import unittest

import support
import torch
from support import GPU, MIB, AllocatorTest, block

if support.WEIR:
    import weir.torch


@unittest.skipUnless(support.WEIR, "weir's own, nothing of torch's to compare with")
class Functions(AllocatorTest):
    def test_it_is_enabled_once_and_for_good(self):
        self.assertTrue(weir.torch.is_enabled())
        weir.torch.enable()
        self.assertTrue(weir.torch.is_enabled())

    def test_its_counters_agree_with_torchs(self):
        x = block(5 * MIB + 3)
        weirs, torchs = weir.torch.stats(), torch.cuda.memory_stats()
        for ours, name in (("active_requested", "requested_bytes"), ("allocated", "allocated_bytes"),
                           ("active", "active_bytes"), ("reserved", "reserved_bytes")):
            self.assertEqual(weirs[ours], torchs[f"{name}.all.current"])
            self.assertEqual(weirs[f"{ours}_peak"], torchs[f"{name}.all.peak"])
        del x

    def test_the_report_names_what_is_live(self):
        keep = [torch.ones(MIB, device=GPU) for _ in range(3)]
        text = weir.torch.report()
        self.assertIn("live", text)
        self.assertIn("reserved", text)
        del keep

    def test_tags_are_told_apart(self):
        with weir.torch.tag("kv cache"):
            keep = block(7 * MIB)
        self.assertIn("tag kv cache: 7", weir.torch.report())
        del keep

    def test_trim_releases_without_waiting(self):
        block(100 * MIB)
        torch.cuda.synchronize()
        before = torch.cuda.memory_reserved()
        self.assertGreater(weir.torch.trim(), 0)
        self.assertLess(torch.cuda.memory_reserved(), before)

    def test_histories_and_recordings_beside_a_recording_of_the_process(self):
        with tempfile.TemporaryDirectory() as folder:
            self.assert_ran(support.run_program("""
                import torch, weir.torch
                torch.cuda.memory._record_memory_history(enabled="all", context=None, stacks="python",
                                                         max_entries=1000)
                weir.torch.record(folder + "/part.weirtrace")
                x = torch.empty(300 << 20, dtype=torch.uint8, device="cuda")
                weir.torch.stop()
                actions = {entry["action"] for entry in torch.cuda.memory._snapshot()["device_traces"][0]}
                assert {"alloc", "segment_alloc"} <= actions, actions
                """, before=f"""
                import os
                folder = {folder!r}
                os.environ["WEIR_RECORD"] = folder + "/process.weirtrace"
                """))
            sizes = {name: os.path.getsize(os.path.join(folder, name)) for name in os.listdir(folder)}
            self.assertEqual(set(sizes), {"part.weirtrace", "process.weirtrace"})
            self.assertGreater(min(sizes.values()), 0)


@unittest.skipUnless(support.WEIR, "torch's own allocator may have its lock held in the child")
class Forks(AllocatorTest):
    def test_children_drop_tensors_while_threads_allocate_and_a_history_is_recorded(self):
        self.assert_ran(support.run_program("""
            import collections, os, random, signal, threading, time, torch
            torch.cuda.memory._record_memory_history(enabled="all", context=None, stacks="python", max_entries=1000)
            stop = threading.Event()

            def churn():
                with torch.cuda.stream(torch.cuda.Stream()):
                    kept = collections.deque()
                    while not stop.is_set():
                        kept.append(torch.empty(random.randint(1, 4 << 20), dtype=torch.uint8, device="cuda"))
                        if len(kept) > 10:
                            kept.popleft()

            tensors = [torch.full((1000,), float(i), device="cuda") for i in range(20)]
            torch.cuda.synchronize()
            threads = [threading.Thread(target=churn, daemon=True) for _ in range(4)]
            for thread in threads:
                thread.start()
            for i in range(40):
                child = os.fork()
                if child == 0:
                    tensors.clear()
                    os._exit(7)
                end, ended = time.monotonic() + 5, 0
                while not ended and time.monotonic() < end:
                    time.sleep(0.002)
                    ended, status = os.waitpid(child, os.WNOHANG)
                if not ended:
                    os.kill(child, signal.SIGKILL)
                    os.waitpid(child, 0)
                assert ended, f"child {i} hangs"
                assert os.waitstatus_to_exitcode(status) == 7, f"child {i}: {status}"
            stop.set()
            for thread in threads:
                thread.join()
            assert all(float(each.min()) == float(each.max()) == i for i, each in enumerate(tensors))
            """))

    def test_a_request_in_a_child_is_an_error(self):
        self.assert_ran(support.run_program("""
            import os, torch
            x = torch.ones(1000, device="cuda")
            torch.cuda.memory._record_memory_history(enabled="all", context=None, stacks="python")
            child = os.fork()
            if child == 0:
                try:
                    torch._C._cuda_cudaCachingAllocator_raw_alloc(1000, 0)
                except RuntimeError:
                    os._exit(7)
                os._exit(8)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
            assert float(x.sum()) == 1000
            """))


@unittest.skipUnless(support.WEIR, "weir's own, nothing of torch's to compare with")
class OtherWaysIn(AllocatorTest):
    def test_too_late_is_refused(self):
        self.assert_ran(support.run_program("""
            import torch, weir.torch
            x = torch.ones(10, device="cuda")
            try:
                weir.torch.enable()
                raise SystemExit("it was allowed")
            except RuntimeError as error:
                assert "before anything" in str(error), error
            assert not weir.torch.is_enabled()
            assert float((x + 1).sum()) == 20
            """, allocator="native"))

    def test_it_is_not_enabled_once_another_allocator_took_its_place(self):
        """torch allows that until CUDA is initialised."""
        self.assert_ran(support.run_program("""
            import torch, weir.torch
            weir.torch.enable()
            assert weir.torch.is_enabled()
            weir.torch.pluggable()
            assert not weir.torch.is_enabled()
            """, allocator="native"))

    def test_after_cuda_is_initialised_but_before_any_tensor(self):
        self.assert_ran(support.run_program("""
            import torch, weir.torch
            torch.cuda.init()
            weir.torch.enable()
            x = torch.ones(1000, device="cuda")
            assert float(x.sum()) == 1000 and torch.cuda.memory_allocated() >= 4000
            """, allocator="native"))

    def test_every_policy(self):
        program = """
            import torch, weir.torch
            weir.torch.enable(policy="{}")
            model = torch.nn.Linear(256, 256, device="cuda")
            for i in range(20):
                model(torch.randn(10 * i + 1, 256, device="cuda")).sum().backward()
            assert bool(torch.isfinite(model.weight.grad).all())
            """
        policies = ("throughput", "compact", "never_move", "classic", "classic_expandable")
        with concurrent.futures.ThreadPoolExecutor(5) as pool:
            done = pool.map(lambda policy: support.run_program(program.format(policy),
                                                               allocator="native"), policies)
            for policy, each in zip(policies, done):
                with self.subTest(policy=policy):
                    self.assert_ran(each)

    def test_bad_arguments(self):
        self.assert_ran(support.run_program("""
            import torch, weir.torch
            for arguments in ({"policy": "no such"}, {"options": {"no_such_option": 1}}):
                try:
                    weir.torch.enable(**arguments)
                    raise SystemExit(f"{arguments} were taken")
                except (ValueError, RuntimeError):
                    pass
            weir.torch.enable()
            assert float(torch.ones(5, device="cuda").sum()) == 5
            """, allocator="native"))

    def test_the_plug_in_interface(self):
        self.assert_ran(support.run_program("""
            import torch, weir.torch
            weir.torch.pluggable()
            side = torch.cuda.Stream()
            for i in range(20):
                x = torch.full((1 << 20,), float(i), device="cuda")
                side.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(side):
                    support.busy(2)
                    y = x + 1
                x.record_stream(side)
                del x
                z = torch.full((1 << 20,), -1.0, device="cuda")
                torch.cuda.synchronize()
                assert bool((y == i + 1).all())
            torch.cuda.empty_cache()
            try:
                torch.empty(1 << 47, dtype=torch.uint8, device="cuda")
                raise SystemExit("there was memory")
            except RuntimeError:
                pass
            assert float(torch.ones(5, device="cuda").sum()) == 5
            """, allocator="native"))


if __name__ == "__main__":
    support.main()
