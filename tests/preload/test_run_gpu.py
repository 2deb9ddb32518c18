#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""weir run beside a real driver: programs of the CUDA runtime and of the driver's interface, PyTorch, CuPy,
compute-sanitizer and MPS. What the machine does not have is skipped.

Ends with 77, which ctest takes as skipped, where there is no GPU.
"""

import argparse
import concurrent.futures
import itertools
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
import running  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
KINDS = ("static", "shared")
LEFT_TO_THE_DRIVER = {
    "kinds": {"weir run: pools that the program created are left to the driver; they count towards the limit",
              "weir run: memory that graphs allocate is left to the driver"},
    "pools": {"weir run: pools that the program created are left to the driver; they count towards the limit"},
    "capture": {"weir run: memory that graphs allocate is left to the driver"}}


# What the scenario prints on the simulator, and with weir. The driver alone never returns from it: it waits for a
# stream that was destroyed (seen with one of CUDA 13.0).
ORDERED = """alloc 0
used 3145728
context 0 null 1
free by cuMemFree: 0
most 3145728
from the default pool: 0
on a default stream: 0
free on another: 0 0
plain memory freed on a stream: 0
freed twice: 1
nothing: 0
destroy 0
destroy 0
free after its stream: 0
holds 1
trim 0
"""


def sanitizer():
    return shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path="/usr/local/cuda/bin")


class Case(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def start(self, words, **environment):
        paths = os.pathsep.join(filter(None, [str(ROOT / "python"), os.environ.get("PYTHONPATH")]))
        return running.run(str(words[0]), [str(word) for word in words[1:]],
                           {"PYTHONPATH": paths, "WEIR_LIBRARY": arguments.library, **environment}, timeout=200)

    def weir_run(self, program, *flags, **environment):
        return self.start([arguments.weir, "run", *flags, "--", *program], **environment)

    def compare_all(self, cases):
        """Of (program, flags, scenario): programs begin and end slowly, so several run side by side. Each is recorded,
        which shows that weir was there."""
        def compared(numbered):
            number, (program, flags, _) = numbered
            trace = self.folder / f"compared{number}.weirtrace"
            native = self.start(program)
            served = self.weir_run(program, "--record", trace, *flags)
            said = set(served.stderr.splitlines()) - set(native.stderr.splitlines())
            return native, served, said, self.events(trace)[0] if trace.exists() else 0

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            for case, (native, served, said, events) in zip(cases, pool.map(compared, enumerate(cases))):
                program, flags, scenario = case
                with self.subTest(program=[Path(program[0]).name, *program[1:]], flags=flags):
                    self.assertEqual(native.returncode, 0, native.stderr)
                    self.assertGreater(events, 0)
                    self.assertEqual((served.returncode, served.stdout), (native.returncode, native.stdout), said)
                    self.assertEqual(said, LEFT_TO_THE_DRIVER.get(scenario, set()))
                    self.assertNotRegex(served.stdout, r"[1-9]\d* wrong")

    def runtime_program(self, kind, scenario):
        program = Path(arguments.programs) / f"runtime_program_{kind}"
        if not program.exists():
            self.skipTest("there was no nvcc")
        return [program, scenario]

    def events(self, trace):
        return running.events_of(arguments.weir, trace)


class RandomPrograms(Case):
    SETTINGS = ([], ["--policy", "compact"], ["--policy", "classic"], ["--policy", "never_move"], ["--free", "async"],
                ["--keep", "cuMemAlloc"], ["--keep", "cuMemAllocAsync"], ["--limit", "3GiB"])

    def compared(self, seed):
        """Lines that differ, and how many requests weir served; None where the driver alone does not return."""
        program = [arguments.random, seed, "600"]
        try:
            native = running.run(str(program[0]), [str(word) for word in program[1:]], {}, timeout=30)
        except subprocess.TimeoutExpired:
            return None
        if native.returncode != 0:
            return None
        flags = self.SETTINGS[seed % len(self.SETTINGS)]
        trace = self.folder / f"{seed}.weirtrace"
        served = self.weir_run(program, "--quiet", "--record", trace, *flags)
        if served.returncode != 0:
            return [(seed, flags, served.returncode, served.stderr)], 0
        lines = zip(native.stdout.splitlines(), served.stdout.splitlines(), strict=True)
        return [(seed, flags, *each) for each in lines if each[0] != each[1]], self.events(trace)[0]

    def test_answers_are_the_drivers(self):
        """The random programs of test_run.py, beside this machine's driver, for WEIR_RUN_SECONDS."""
        seconds = float(os.environ.get("WEIR_RUN_SECONDS", "0"))
        if seconds == 0:
            self.skipTest("WEIR_RUN_SECONDS says how long")
        deadline, first = time.monotonic() + seconds, random.SystemRandom().randrange(1, 1 << 40)
        begun, different = itertools.count(first), []

        def go_on(_):
            outcomes = []
            while time.monotonic() < deadline:
                outcomes.append(self.compared(next(begun)))
            return outcomes

        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            outcomes = [each for some in pool.map(go_on, range(4)) for each in some]
        judged = [each for each in outcomes if each is not None]
        print(f"random programs: {len(judged)} from seed {first} on, "
              f"{len(outcomes) - len(judged)} that the driver alone does not end", file=sys.stderr)
        for lines, served in judged:
            different += lines
            self.assertGreater(served, 0)
        self.assertGreater(len(judged), 0)
        self.assertEqual(different[:20], [])


class OfTheRuntime(Case):
    def test_results_are_the_same(self):
        self.compare_all([(self.runtime_program(kind, scenario), flags, scenario)
                          for kind in KINDS for scenario in ("sums", "ordered", "kinds", "threads", "fault")
                          for flags in ([], ["--free", "async"], ["--policy", "classic"])
                          # A free that does not wait does not hear of a kernel's fault.
                          if (scenario, flags[:1]) != ("fault", ["--free"])])

    def test_it_is_served(self):
        """A limit that no driver has, in every place where the runtime asks."""
        for kind in KINDS:
            ran = self.weir_run(self.runtime_program(kind, "fill"), "--limit", "1GiB")
            self.assertEqual(ran.stdout, "total 1024 MiB, 1024 MiB\n16 blocks, then cudaErrorMemoryAllocation\n")

    def test_every_event_is_recorded(self):
        for kind in KINDS:
            for scenario, count in {"sums": 100, "ordered": 120}.items():
                for flags in ([], ["--record-only"]):
                    with self.subTest(kind=kind, scenario=scenario, flags=flags):
                        trace = self.folder / f"{kind}{scenario}{len(flags)}.weirtrace"
                        ran = self.weir_run(self.runtime_program(kind, scenario), "--record", trace, *flags)
                        self.assertEqual((ran.returncode, ran.stderr), (0, ""))
                        self.assertEqual(self.events(trace), (count, count))

    def test_children_are_followed(self):
        ran = self.weir_run(["sh", "-c", '"$0" fill', self.runtime_program("static", "fill")[0]], "--limit", "640MiB")
        self.assertIn("10 blocks, then cudaErrorMemoryAllocation\n", ran.stdout)


class OfTheDriver(Case):
    def test_results_are_the_same(self):
        self.compare_all([([arguments.opened, way, *scenario], [], scenario[0])
                          for way in ("dlsym", "runtime", "proc1", "proc2")
                          for scenario in (["basic"], ["many", "200"], ["fill"], ["capture"], ["pools"], ["reset"],
                                           ["threads"], ["forks"], ["child"], ["runtimes"])])

    def test_streams(self):
        for way in ("dlsym", "runtime", "proc1", "proc2"):
            self.assertEqual(self.weir_run([arguments.opened, way, "ordered"]).stdout, ORDERED)

    def test_exit_codes_and_signals_are_the_programs(self):
        for argument, code in {"3": 3, "abort": -signal.SIGABRT, "kill": -signal.SIGKILL}.items():
            ran = self.weir_run([arguments.opened, "dlsym", "leave", argument])
            self.assertEqual(ran.returncode, code)


TRAINING = """
import torch
torch.manual_seed(1)
torch.use_deterministic_algorithms(True)
model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10)).cuda()
optimiser = torch.optim.Adam(model.parameters())
side = torch.cuda.Stream()
for step in range(20):
    x = torch.randn(64 + step * 7, 256, device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        noise = torch.randn_like(x) * 0.1
    torch.cuda.current_stream().wait_stream(side)
    loss = model(x + noise).square().mean()
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    print(loss.item().hex())
"""
WHO = "import sys, torch; sys.stdout.write(str('weir.torch' in sys.modules and sys.modules['weir.torch'].is_enabled()))\n"
ARRAYS = """
import cupy
total = 0.0
for i in range(50):
    with cupy.cuda.Stream(non_blocking=True) as stream:
        x = cupy.arange(1000 * (i + 1), dtype=cupy.float64)
        y = cupy.sqrt(x) * i
        total += float(y.sum())
print(total.hex())
"""


class InPython(Case):
    def script(self, module, text):
        if subprocess.run([sys.executable, "-c", f"import {module}"], capture_output=True).returncode != 0:
            self.skipTest(f"no {module}")
        file = self.folder / f"{module}_script.py"
        file.write_text(text)
        return [sys.executable, file]

    def environment(self):
        return {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}

    def test_torch(self):
        program = self.script("torch", TRAINING)
        trace = self.folder / "torch.weirtrace"
        native = self.start(program, **self.environment())
        served = self.weir_run(program, "--record", trace, "--limit", "2GiB", **self.environment())
        self.assertEqual((served.returncode, served.stdout), (0, native.stdout), served.stderr)
        self.assertEqual(len(native.stdout.splitlines()), 20)
        allocations, frees = self.events(trace)
        self.assertGreater(allocations, 400)
        self.assertGreaterEqual(allocations, frees)
        self.assertEqual(self.weir_run(self.script("torch", WHO)).stdout, "True")

    def test_torch_runs_out_at_the_limit(self):
        program = self.script("torch", "import torch\ntry:\n    torch.empty(3 << 30, dtype=torch.uint8, device='cuda')\n"
                                       "except torch.OutOfMemoryError as reason: print(reason)\n")
        ran = self.weir_run(program, "--limit", "2GiB")
        self.assertEqual(ran.returncode, 0, ran.stderr)
        self.assertIn("2 GiB", ran.stdout)

    def test_torch_as_any_other_program(self):
        """Its own caching allocator, over cudaMalloc from the preloaded library."""
        program = self.script("torch", TRAINING + WHO)
        native = self.start(program, **self.environment())
        trace = self.folder / "torch.weirtrace"
        served = self.weir_run(program, "--python", "off", "--record", trace, **self.environment())
        self.assertEqual((served.returncode, served.stdout), (0, native.stdout), served.stderr)
        self.assertGreater(self.events(trace)[0], 3)

    def test_cupy(self):
        program = self.script("cupy", ARRAYS)
        native = self.start(program)
        trace = self.folder / "cupy.weirtrace"
        served = self.weir_run(program, "--record", trace)
        self.assertEqual((served.returncode, served.stdout), (0, native.stdout), served.stderr)
        self.assertGreaterEqual(self.events(trace)[0], 100)

    def test_jax_as_any_other_program(self):
        program = self.script("jax", "import jax, jax.numpy as n\nx = n.arange(1 << 20, dtype=n.int32)\n"
                                     "for i in range(20): x = (x * 3 + i).block_until_ready()\n"
                                     "print(int(x.sum()), int(x[12345]))\n")
        choice = {"XLA_PYTHON_CLIENT_ALLOCATOR": "platform"}
        native = self.start(program, **choice)
        trace = self.folder / "jax.weirtrace"
        served = self.weir_run(program, "--python", "off", "--record", trace, **choice)
        self.assertEqual((served.returncode, served.stdout), (0, native.stdout), served.stderr)
        # XLA keeps its arrays in memory of cuMemCreate, which is left to the driver; it asks weir for a few blocks.
        self.assertGreater(self.events(trace)[0], 0)


class BesideOthers(Case):
    def setUp(self):
        super().setUp()
        if "sanitizer" in self._testMethodName and sanitizer() is None:
            self.skipTest("no compute-sanitizer")

    def checked(self, *words):
        ran = self.start(words)
        found = re.search(r"ERROR SUMMARY: (\d+) error", ran.stdout)
        self.assertIsNotNone(found, ran.stdout + ran.stderr)
        return int(found[1]), ran

    def test_compute_sanitizer_finds_nothing_in_right_programs(self):
        cases = []
        for kind in KINDS:
            for scenario in ("sums", "ordered", "threads"):
                program = self.runtime_program(kind, scenario)
                for number, around in enumerate(([sanitizer()], [])):
                    trace = self.folder / f"{kind}{scenario}{number}-%p.weirtrace"
                    words = [*around, arguments.weir, "run", "--record", trace, "--",
                             *([] if around else [sanitizer()]), *program]
                    cases.append((scenario, words, f"{kind}{scenario}{number}-*.weirtrace"))
        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            for (scenario, words, traces), (errors, ran) in zip(cases,
                                                                pool.map(lambda case: self.checked(*case[1]), cases)):
                with self.subTest(words=words):
                    self.assertEqual(errors, 0, ran.stdout)
                    self.assertIn(f"{scenario}: 0 wrong", ran.stdout)
                    allocations = sum(self.events(trace)[0] for trace in self.folder.glob(traces))
                    self.assertGreaterEqual(allocations, {"sums": 100, "ordered": 120, "threads": 1}[scenario])

    def test_compute_sanitizer_knows_what_the_driver_keeps(self):
        program = self.runtime_program("static", "overflow")
        errors, ran = self.checked(sanitizer(), arguments.weir, "run", "--keep", "cuMemAlloc", "--", *program)
        self.assertGreater(errors, 0)
        self.assertIn("Invalid __global__ read of size 4 bytes", ran.stdout)
        self.assertRegex(ran.stdout, r"1 bytes after the nearest allocation at 0x\w+ of size 1000 bytes")

    def test_mps(self):
        control = shutil.which("nvidia-cuda-mps-control")
        if control is None:
            self.skipTest("no MPS")
        places = {"CUDA_MPS_PIPE_DIRECTORY": str(self.folder), "CUDA_MPS_LOG_DIRECTORY": str(self.folder)}
        if subprocess.run([control, "-d"], env=os.environ | places, capture_output=True).returncode != 0:
            self.skipTest("MPS does not start")
        try:
            programs = [self.runtime_program(kind, scenario) for kind in KINDS for scenario in ("sums", "ordered")]
            for number, program in enumerate(programs):
                trace = self.folder / f"mps{number}.weirtrace"
                native = self.start(program, **places)
                if native.returncode != 0 or "0 failures" not in native.stdout:
                    self.skipTest(f"MPS does not serve here: {native.stdout}{native.stderr}")
                served = self.weir_run(program, "--record", trace, **places)
                self.assertEqual((served.returncode, served.stdout), (0, native.stdout), served.stderr)
                count = {"sums": 100, "ordered": 120}[program[1]]
                self.assertEqual(self.events(trace), (count, count))
        finally:
            subprocess.run([control], input="quit\n", text=True, env=os.environ | places, capture_output=True, timeout=60)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name in ("weir", "opened", "random", "library", "programs"):
        parser.add_argument(f"--{name}", required=True)
    arguments, rest = parser.parse_known_args()
    if running.run(arguments.opened, ["dlsym", "many", "1"]).stdout != "1 allocations, 0 failures\n":
        print("skipped: no GPU driver")
        sys.exit(77)
    unittest.main(argv=[sys.argv[0], *rest])
