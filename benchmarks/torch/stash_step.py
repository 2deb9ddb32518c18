#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A training step that stashes 8 GiB between the start of its forward and the end of its backward pass, beside the same
step that does not.

Embedding tables are read at the start of a step and updated at its end; a deep stack of matrix products runs in between.
"kept" leaves the tables where they are. "stashed" sends them to the host as soon as they were read
(weir.torch.suspend(wait=False)), has them gone when the forward pass was queued, and brings them back ahead of the update,
while the backward pass runs (weir.torch.resume(ahead_of=...)). With --short it gets so much less memory than the kept step
takes, and nobody waits for the tables but the requests that do not fit otherwise. Each runs in a process of its own; steps
take turns between the two, so that what changes on the machine meanwhile meets both. Both must leave the same bits in
every weight and table.

    stash_step.py [--steps N] [--short GiB] [--json FILE]
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
TABLES, ROWS, WIDTH = 128, 4096, 8192  # 64 MiB each in 16 bits
GIB = 1 << 30


class Program:
    """The model, its tables, and one step of training."""

    def __init__(self, torch, weir_torch, layers, tokens, stash, back_at, waits):
        self.torch, self.weir, self.stash, self.back_at, self.waits = torch, weir_torch, stash, back_at, waits
        torch.manual_seed(1)
        new = dict(device="cuda", dtype=torch.bfloat16)
        with weir_torch.tag("stash", suspendable=True):
            self.tables = [torch.randn(ROWS, WIDTH, **new) for _ in range(TABLES)]
        self.layers = [torch.nn.Parameter(torch.randn(WIDTH, WIDTH, **new) / WIDTH**0.5) for _ in range(layers)]
        self.rows = torch.randint(0, ROWS, (tokens,), device="cuda")
        self.restored = []
        if stash:
            weir_torch.reserve_backup(TABLES * ROWS * WIDTH * 2)

    def step(self):
        torch = self.torch
        x = torch.zeros(self.rows.numel(), WIDTH, device="cuda", dtype=torch.bfloat16)
        for table in self.tables[:: TABLES // 8]:
            x += table[self.rows]
        if self.stash:
            self.weir.suspend("stash", wait=False)
        x.requires_grad_()
        start = x
        for number, layer in enumerate(self.layers):
            x = torch.nn.functional.relu(x @ layer)
            if self.stash and number == self.back_at:
                x.register_hook(self.bring_back)
        loss = x.float().square().mean()
        if self.stash and self.waits:
            self.weir.suspend("stash")  # which is under way
        loss.backward()
        # All tables are updated: what was stashed is really used.
        change = start.grad.float().mean(0).to(torch.bfloat16)
        with torch.no_grad():
            for layer in self.layers:
                layer -= 0.001 * layer.grad
                layer.grad = None
            for table in self.tables:
                table.sub_(change)

    def bring_back(self, _):
        outcome = self.weir.resume("stash", ahead_of=self.torch.cuda.current_stream())
        self.restored.append(outcome.restored)

    def digest(self):
        """Of every bit of the weights and tables."""
        torch = self.torch
        total = torch.zeros((), device="cuda", dtype=torch.int64)
        for number, each in enumerate([*self.tables, *self.layers]):
            bits = each.detach().view(torch.int16).to(torch.int32)
            total = total * 31 + (bits * (1 + torch.arange(WIDTH, device="cuda", dtype=torch.int32) % 251)).sum() + number
        return int(total.item())


def worker(options):
    """Does what it is told on standard input, and answers on standard output."""
    import torch
    sys.path.insert(0, str(ROOT / "python"))
    import weir.torch

    weir.torch.enable(options=f"heap_limit={options.limit}" if options.limit else None)
    program = Program(torch, weir.torch, options.layers, options.tokens, options.worker == "stashed", options.back_at,
                      not options.limit)
    torch.cuda.synchronize()
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        if line.strip() == "step":
            start = time.perf_counter()
            program.step()
            torch.cuda.synchronize()
            answer = time.perf_counter() - start
        else:
            stats = torch.cuda.memory_stats()
            answer = {"digest": program.digest(), "restored": program.restored,
                      "reserved": stats["reserved_bytes.all.peak"], "allocated": stats["allocated_bytes.all.peak"]}
        print(json.dumps(answer), flush=True)


class Process:
    def __init__(self, kind, options, limit):
        command = [sys.executable, __file__, "--worker", kind, "--layers", str(options.layers), "--tokens",
                   str(options.tokens), "--back-at", str(options.back_at), "--limit", str(limit)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.read()

    def read(self):
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"a worker ended with status {self.process.wait()}")
        return json.loads(line)

    def ask(self, what):
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()
        return self.read()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=9)
    parser.add_argument("--layers", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--back-at", type=int, default=40, help="the layer whose backward pass brings the tables back")
    parser.add_argument("--short", type=float, default=0, help="GiB that the stashed step has less than the kept one takes")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--worker", choices=("kept", "stashed"), help=argparse.SUPPRESS)
    parser.add_argument("--limit", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        return worker(options)

    kept = Process("kept", options, 0)
    for _ in range(2):
        kept.ask("step")
    limit = int(kept.ask("look")["reserved"] - options.short * GIB) if options.short else 0
    stashed = Process("stashed", options, limit)
    for _ in range(2):
        stashed.ask("step")
    times = {"kept": [], "stashed": []}
    for number in range(options.steps):
        for name, process in (("kept", kept), ("stashed", stashed))[:: 1 if number % 2 else -1]:
            times[name].append(process.ask("step"))
    seen = {"kept": kept.ask("look"), "stashed": stashed.ask("look")}
    ratios = [b / a for a, b in zip(times["kept"], times["stashed"])]
    report = {
        "stashed_GiB": TABLES * ROWS * WIDTH * 2 / GIB,
        "kept_ms": [round(1000 * each, 1) for each in times["kept"]],
        "stashed_ms": [round(1000 * each, 1) for each in times["stashed"]],
        "ratio_of_medians": statistics.median(times["stashed"]) / statistics.median(times["kept"]),
        "ratios": [round(each, 4) for each in sorted(ratios)],
        "same_bits": seen["kept"]["digest"] == seen["stashed"]["digest"],
        "reserved_GiB": {name: round(each["reserved"] / GIB, 2) for name, each in seen.items()},
        "steps_that_copied_back": sum(1 for each in seen["stashed"]["restored"] if each),
        "steps_that_resumed": len(seen["stashed"]["restored"]),
    }
    print(json.dumps(report, indent=1))
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    return 0 if report["same_bits"] else 1


if __name__ == "__main__":
    sys.exit(main())
