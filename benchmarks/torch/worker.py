# SPDX-License-Identifier: Apache-2.0
"""One process under one allocator, which runs workloads piece by piece as run.py tells it.

Reads a JSON object a line from standard input and answers each with one. Commands, in `do`:

    start name         set the workload up and run its warm-up
    round number       one timed round: which of the different ones it was, its units and seconds
    record path        one round whose allocations and frees are written to path
    finish             the peaks since start; everything is freed
    check name         a short deterministic run: a fingerprint of its results
    play path          allocator host time: what path holds, through this process's allocator
    stop
"""

import argparse
import gc
import json
import os
import struct
import sys
import time
import traceback

SETTINGS = {"native": "", "weir": "", "expandable": "expandable_segments:True",
            "cudaMallocAsync": "backend:cudaMallocAsync"}
NO_STATS = ("cudaMallocAsync",)  # counts what it reserved, not what was asked for


def settle():
    """Leaves nothing of what ran before in the allocator, as far as torch can."""
    import torch

    gc.collect()
    torch.cuda.synchronize()
    if hasattr(torch._C, "_cuda_clearCublasWorkspaces"):
        torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()


def live_blocks(segments):
    """What is in use, by address: (size, stream)."""
    live = {}
    for segment in segments:
        address = segment["address"]
        for block in segment["blocks"]:
            if block["state"] == "active_allocated":
                live[address] = (block.get("requested_size") or block["size"], segment["stream"])
            address += block["size"]
    return live


THE_ROUND_BEGINS = struct.pack("=QQ", 0, 2**64 - 1)


def write_record(path, live, events):
    """Allocations and frees as 64-bit numbers: (size, number of the stream), or (0, which one).

    First what was in use before the round and after it: a program's own memory is beside what a round
    takes, and allocators behave by how much they hold.
    """
    freed = {event["addr"] for event in events if event["action"] == "free_requested"}
    kept = [block for address, block in live.items() if address not in freed]
    blocks, streams, count = {}, {}, len(kept)
    with open(path, "wb") as file:
        for size, stream in kept:
            file.write(struct.pack("=QQ", size, streams.setdefault(stream, len(streams))))
        file.write(THE_ROUND_BEGINS)
        for event in events:
            if event["action"] == "alloc" and event["size"] > 0:
                stream = streams.setdefault(event["stream"], len(streams))
                blocks[event["addr"]] = count
                count += 1
                file.write(struct.pack("=QQ", event["size"], stream))
            elif event["action"] == "free_requested" and event["addr"] in blocks:
                file.write(struct.pack("=QQ", 0, blocks.pop(event["addr"])))
    return count - len(kept)


class Worker:
    def __init__(self, allocator, policy, library):
        import torch

        self.torch = torch
        self.allocator = allocator
        self.library = library
        if allocator == "weir":
            import weir.torch

            weir.torch.enable(policy=policy)
            if not weir.torch.is_enabled():
                raise RuntimeError("weir.torch.enable() did not take")
        torch.cuda.init()
        torch.zeros(1, device="cuda").sum().item()
        import others_measured  # noqa: F401: they join the workloads
        import workloads

        workloads.import_libraries()  # while the other processes do the same
        self.workloads = workloads
        self.running = self.workload = None
        # What libraries made stays: without that, each collection looks at all of it again.
        gc.collect()
        gc.freeze()

    def hello(self):
        torch = self.torch
        return {"torch": torch.__version__, "cuda": torch.version.cuda,
                "backend": torch.cuda.get_allocator_backend(),
                "device": torch.cuda.get_device_name()}

    def set_up(self, name):
        torch = self.torch
        self.running = None
        settle()
        torch.manual_seed(0)
        self.workload = self.workloads.WORKLOADS[name]
        self.running = self.workload.start()

    def start(self, name):
        torch = self.torch
        begun = time.perf_counter()
        settle()
        carried = self.peaks()
        self.set_up(name)
        for i in range(self.workload.warm):
            self.running.step(i)
        torch.cuda.synchronize()
        return {"seconds": time.perf_counter() - begun, "carried": carried,
                "after_warm_up": self.peaks()}

    def round(self, number=0):
        torch = self.torch
        turn = number % self.workload.turns
        first = turn * self.workload.round
        torch.cuda.synchronize()
        begun = time.perf_counter()
        units = sum(self.running.step(i) for i in range(first, first + self.workload.round))
        torch.cuda.synchronize()
        return {"turn": turn, "units": units, "seconds": time.perf_counter() - begun}

    def record(self, path):
        memory = self.torch.cuda.memory
        live = live_blocks(memory._snapshot()["segments"])
        memory._record_memory_history(enabled="all", context=None, stacks="python",
                                      max_entries=4_000_000, clear_history=True)
        try:
            self.round()
            events = memory._snapshot()["device_traces"][0]
        finally:
            memory._record_memory_history(enabled=None)
        return {"allocations": write_record(path, live, events), "steps": self.workload.round}

    def peaks(self):
        stats = self.torch.cuda.memory_stats()
        peaks = {}
        for key in ("requested_bytes", "allocated_bytes", "reserved_bytes"):
            for when in ("peak", "current"):
                peaks[f"{key}.{when}"] = stats.get(f"{key}.all.{when}")
        if self.allocator in NO_STATS:
            peaks["requested_bytes.peak"] = peaks["requested_bytes.current"] = None
        for key in ("num_ooms", "num_alloc_retries", "num_device_alloc", "num_device_free"):
            peaks[key] = stats.get(key)
        return peaks

    def finish(self):
        self.torch.cuda.synchronize()
        peaks = self.peaks()
        self.running = None
        settle()
        return peaks

    def check(self, name):
        self.workloads.be_deterministic(True)
        try:
            self.set_up(name)
            for i in range(self.workload.check):
                self.running.step(i)
            self.torch.cuda.synchronize()
            return {"fingerprint": self.workloads.fingerprint(self.running.results())}
        finally:
            self.workloads.be_deterministic(False)
            self.running = None
            settle()

    def play(self, path):
        import micro

        settle()
        try:
            return micro.play(self.library, path)
        finally:
            settle()

    def answer(self, command):
        do = command.pop("do")
        if do not in ("start", "round", "record", "finish", "check", "play"):
            raise ValueError(f"no such command: {do}")
        return getattr(self, do)(**command)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--allocator", choices=SETTINGS, required=True)
    parser.add_argument("--policy", default="balanced")
    parser.add_argument("--library", default="", help="what micro.py built, for play")
    options = parser.parse_args()

    # Answers go where standard output went; what libraries print goes to standard error.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # cuBLAS is deterministic only with it
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = os.environ["PYTORCH_ALLOC_CONF"] = \
        SETTINGS[options.allocator]
    if not SETTINGS[options.allocator]:
        del os.environ["PYTORCH_CUDA_ALLOC_CONF"], os.environ["PYTORCH_ALLOC_CONF"]

    def say(**answer):
        answers.write(json.dumps(answer) + "\n")

    try:
        worker = Worker(options.allocator, options.policy, options.library)
        say(ok=True, **worker.hello())
    except Exception:
        say(ok=False, error=traceback.format_exc()[-3000:])
        return 1
    for line in sys.stdin:
        command = json.loads(line)
        if command["do"] == "stop":
            break
        try:
            say(ok=True, **worker.answer(command))
        except Exception:
            worker.running = None
            say(ok=False, error=traceback.format_exc()[-3000:])
    return 0


if __name__ == "__main__":
    sys.exit(main())
