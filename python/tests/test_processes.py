#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""weir at the edges of a process: forks, exits in any state, libraries that are missing or wrong."""

import os
import struct
import tempfile
import unittest
from pathlib import Path

from support import PYTHON, Case, run

BEGIN = """
import gc, os, sys, threading, weir
machine = weir.Runtime(runtime="sim")
memory = weir.Allocator(machine.device(0))
stream = weir.Stream(machine.device(0))
blocks = [memory.allocate(1 << 20, stream) for _ in range(4)]
"""

LATE = """
class Late:
    def __del__(self):
        try:
            memory.allocate(512, stream)
        except weir.Closed:
            pass
late = Late()
"""


class Processes(Case):
    def test_exit_in_any_state_is_silent(self):
        for end in ("", "keep = blocks, blocks[0], memory; blocks.append(keep)",
                    "del machine, memory", "del stream; sys.stdout.flush()",
                    LATE,
                    "import builtins; builtins.kept = blocks",
                    "threading.Thread(target=lambda: blocks.clear()).start()",
                    "sys.exit(0)"):
            with self.subTest(end=end):
                self.expect_silence(run(BEGIN + end))

    def test_memory_goes_back_before_its_allocator_at_exit(self):
        self.expect_silence(run(BEGIN + """
import atexit
atexit.register(lambda: print(weir.reported_errors()))
memory.blocks = blocks
memory.itself = memory  # a cycle that only the last collection finds
del blocks, memory, stream, machine
gc.collect()
"""), "0\n")

    def test_callbacks_of_other_threads_are_over_before_the_exit(self):
        for use in ("""
kept = memory.on_out_of_memory(lambda needed: time.sleep(0.001))
def use():
    while True:
        try:
            memory.allocate(1 << 37, stream)
        except weir.OutOfMemory:
            pass
""", """
memory.declare_suspendable("away")
with weir.tag("away"):
    away = [memory.allocate(1 << 20, stream) for _ in range(8)]
def use():
    while True:
        memory.suspend("away", progress=lambda *_: time.sleep(0.001), chunk=4096, to="pageable")
        memory.resume("away", progress=lambda *_: time.sleep(0.001))
"""):
            with self.subTest(use=use):
                self.expect_silence(run("import time" + BEGIN + use + """
for _ in range(3):
    threading.Thread(target=use, daemon=True).start()
time.sleep(0.1)
"""))

    def test_a_child_does_not_wait_for_callbacks_of_its_parent(self):
        self.expect_silence(run("import time" + BEGIN + """
asked, forked = threading.Event(), threading.Event()
def ask(needed):
    asked.set()
    forked.wait()
def use():
    try:
        memory.allocate(1 << 37, stream)
    except weir.OutOfMemory:
        pass
kept = memory.on_out_of_memory(ask)
held = memory.allocate(1 << 37, stream)
user = threading.Thread(target=use)
user.start()
asked.wait()
child = os.fork()
if child == 0:
    sys.exit(0)
forked.set()
began = time.monotonic()
os.waitpid(child, 0)
user.join()
print(time.monotonic() - began < 5)
"""), "True\n")

    def test_a_forked_child_can_do_nothing_and_breaks_nothing(self):
        ran = run(BEGIN + """
child = os.fork()
if child == 0:
    try:
        memory.allocate(512, stream)
    except weir.DriverGone as problem:
        print(problem.name, flush=True)
    blocks.clear()
    gc.collect()
    sys.exit(0)  # with all finalizers
_, status = os.waitpid(child, 0)
more = memory.allocate(512, stream)
print(status, memory.stats().blocks.current, weir.reported_errors())
""")
        self.expect_silence(ran, "driver_gone\n0 5 0\n")

    def test_a_forked_child_does_not_even_try(self):
        ran = run(BEGIN + """
made = [weir.Event(machine.device(0)), weir.BinPool(machine.device(0)), weir.BufferPool()]
called = []
for kind in (weir.Runtime, weir.Allocator, weir.Stream, weir.Event, weir.BinPool, weir.BufferPool):
    kind._close_quietly = staticmethod(lambda handle, kind=kind: called.append(kind.__name__) or 0)
weir.Allocator._free_quietly = lambda *_: called.append("free")
weir.Allocator._live = weir.BinPool._live = lambda self: 0  # they could not even ask
def forget():
    made.clear(); blocks.clear()
    global memory, stream, machine
    del memory, stream, machine
    gc.collect()
    print(sorted(called), os.getpid() != parent, flush=True)
parent = os.getpid()
child = os.fork()
if child == 0:
    forget()
    os._exit(0)
os.waitpid(child, 0)
forget()
""")
        self.expect_silence(ran, "[] True\n['Allocator', 'BinPool', 'BufferPool', 'Event', 'Runtime', 'Stream', "
                                 "'free', 'free', 'free', 'free'] False\n")

    def test_a_forked_child_frees_what_it_opened_itself(self):
        for parent in ("import os, sys, weir", BEGIN):  # the package alone, and a machine and blocks too
            with self.subTest(parent=parent):
                self.expect_silence(run(parent + """
def work():
    machine = weir.Runtime(runtime="sim", sim_capacity="1GiB")
    device = machine.device(0)
    memory, stream, event = weir.Allocator(device), weir.Stream(device), weir.Event(device)
    for _ in range(20):
        memory.allocate(100 << 20, stream)  # dropped at once
    print(memory.stats().blocks.current, memory.stats().allocations)
    pools = weir.PinnedPool(device), weir.StreamPool(device), weir.BufferPool()
    pools[0].allocate(4096), pools[1].allocate(4096, stream), pools[2].take(4096, stream)
    print(pools[0].stats().blocks.current, pools[1].stats().allocations.current, pools[2].stats().taken.current)
    closed = []
    for owned in (event, stream, machine):
        owned._close_quietly = lambda handle, name=type(owned).__name__: closed.append(name) or 0
    del memory, pools
    del event, stream, owned
    del device, machine
    print(sorted(closed), weir.reported_errors(), flush=True)
child = os.fork()
if child == 0:
    work()
    os._exit(0)
print(os.waitpid(child, 0)[1])
"""), "0 20\n0 0 0\n['Event', 'Runtime', 'Stream'] 0\n0\n")

    def test_a_machine_without_a_driver_says_so(self):
        ran = run("""
import weir
try:
    weir.Runtime(runtime="cuda", driver_path="/no/such/libcuda.so")
except weir.DriverUnavailable as problem:
    print(problem.name)
""")
        self.expect_silence(ran, "driver_unavailable\n")

    def test_a_wrong_library_is_an_import_error(self):
        with tempfile.TemporaryDirectory() as folder:
            wrong = Path(folder) / "libweir.so"
            wrong.write_text("no library")
            for path in (str(wrong), folder + "/missing.so", "libc.so.6"):
                ran = run("try:\n  import weir\nexcept ImportError as problem:\n  print(problem)",
                          WEIR_LIBRARY=path)
                self.assertEqual((ran.returncode, ran.stderr), (0, ""))
                self.assertIn("weir:", ran.stdout)

    def test_the_library_fits_into_a_running_process(self):
        # Its thread-local memory must be placed in what the C library keeps for latecomers: 512 bytes
        # for certain, a little over a thousand in practice, for all of them together.
        with open(self.library(), "rb") as file:
            elf = file.read()
        self.assertEqual((elf[:5], elf[5]), (b"\x7fELF\x02", 1))  # 64 bits, little-endian
        begin, = struct.unpack_from("<Q", elf, 32)
        size, count = struct.unpack_from("<HH", elf, 54)
        headers = [struct.unpack_from("<IIQQQQQQ", elf, begin + size * each) for each in range(count)]
        taken = sum(header[6] for header in headers if header[0] == 7)  # PT_TLS
        self.assertGreater(taken, 0)
        self.assertLessEqual(taken, 512)

    def library(self):
        import weir
        return weir.library_path()

    def test_the_library_is_the_one_that_was_named(self):
        named = os.environ.get("WEIR_LIBRARY")
        if not named:
            self.skipTest("WEIR_LIBRARY is not set")
        ran = run("import weir; print(weir.library_path())")
        self.expect_silence(ran, os.path.realpath(named) + "\n")

    def test_modules_of_others_are_not_needed(self):
        ran = run("import weir, sys, weir.cupy\nprint([name for name in ('cupy', 'numpy', 'torch', 'numba')"
                  " if name in sys.modules])")
        self.expect_silence(ran, "[]\n")

    def test_the_package_needs_only_what_old_pythons_have(self):
        import ast
        for path in sorted((PYTHON / "weir").glob("*.py")):
            with self.subTest(path=path.name):
                ast.parse(path.read_text(), feature_version=(3, 9))


if __name__ == "__main__":
    unittest.main()
