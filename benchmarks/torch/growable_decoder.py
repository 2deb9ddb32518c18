#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A small decoder with a contiguous cache for each sequence and continuous batching, on three kinds of cache.

    growable      addresses for the longest sequence, pages as it grows (weir.torch.growable)
    preallocated  a tensor for the longest sequence
    cat           torch.cat() of the cache and the new rows, in every layer and step

Each runs in a process of its own with the same sequences and a limit for its memory. Where the card is full, the newest
sequence goes back into the queue. The report has, for each kind, tokens a second, the mean number of sequences at a time,
mean and highest reserved memory, and a digest of the last logits, which must be the same for all.

    growable_decoder.py [--sequences N] [--limit GiB] [--page MiB] [--json FILE]

It needs a GPU, and has not run on one yet.
"""

import argparse
import json
import subprocess
import sys
import time
from collections import deque
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
KINDS = ("growable", "preallocated", "cat")
LAYERS, HEADS, WIDTH, LONGEST = 8, 8, 128, 4096
MODEL = HEADS * WIDTH
GIB = 1 << 30


class OneTensor:
    """The cache of a sequence in one tensor: layers, keys and values of a token are a row, so that a token is appended in
    one piece."""

    def __init__(self, rows):
        self.rows, self.length = rows, 0

    def append(self, row):
        self.rows[self.length:self.length + row.shape[0]] = row
        self.length += row.shape[0]

    def tensor(self):
        return self.rows[:self.length]

    def close(self):
        self.rows = None


class Grown:
    """The same in growable memory."""

    def __init__(self, rows):
        self.rows = rows

    def append(self, row):
        self.rows.append(row)

    def tensor(self):
        return self.rows.tensor

    def close(self):
        self.rows.shrink()


class Concatenated:
    """The same with torch.cat()."""

    def __init__(self, torch, row):
        self.torch, self.all = torch, row[:0]

    def append(self, row):
        self.all = self.torch.cat([self.all, row])

    def tensor(self):
        return self.all

    def close(self):
        self.all = None


class Decoder:
    """Attention over the cache and two products, for one sequence at a time."""

    def __init__(self, torch):
        self.torch = torch
        torch.manual_seed(1)
        new = dict(device="cuda", dtype=torch.bfloat16)
        self.into = [torch.randn(MODEL, 3 * MODEL, **new) / MODEL**0.5 for _ in range(LAYERS)]
        self.out = [torch.randn(MODEL, MODEL, **new) / MODEL**0.5 for _ in range(LAYERS)]

    def step(self, x, cache):
        """Appends the rows of these tokens, and returns what comes after the last one."""
        torch = self.torch
        past = cache.tensor().shape[0]
        rows = torch.empty(x.shape[0], LAYERS, 2, HEADS, WIDTH, device="cuda", dtype=torch.bfloat16)
        hidden = x
        for layer in range(LAYERS):
            query, key, value = (hidden @ self.into[layer]).split(MODEL, dim=1)
            rows[:, layer, 0] = key.view(-1, HEADS, WIDTH)
            rows[:, layer, 1] = value.view(-1, HEADS, WIDTH)
            before = cache.tensor()
            keys = torch.cat([before[:, layer, 0], rows[:, layer, 0]]).transpose(0, 1)
            values = torch.cat([before[:, layer, 1], rows[:, layer, 1]]).transpose(0, 1)
            mask = torch.ones(x.shape[0], past + x.shape[0], device="cuda", dtype=torch.bool).tril(past)
            attended = torch.nn.functional.scaled_dot_product_attention(
                query.view(-1, HEADS, WIDTH).transpose(0, 1), keys, values, attn_mask=mask)
            hidden = hidden + attended.transpose(0, 1).reshape(-1, MODEL) @ self.out[layer]
        cache.append(rows)
        return torch.nn.functional.normalize(hidden[-1:].float(), dim=1).to(torch.bfloat16)


def serve(kind, sequences, limit, page):
    """Runs in a process of its own."""
    sys.path.insert(0, str(ROOT / "python"))
    import torch

    import weir.torch

    weir.torch.enable(options={"heap_limit": f"{limit}B"})
    torch.use_deterministic_algorithms(True, warn_only=True)
    random = torch.Generator().manual_seed(7)
    waiting = deque()
    for number in range(sequences):
        prompt = int(torch.empty(1).log_normal_(5.5, 0.9, generator=random).clamp(16, LONGEST // 2))
        answer = int(torch.empty(1).log_normal_(5.0, 0.8, generator=random).clamp(16, LONGEST // 2))
        waiting.append({"number": number, "prompt": prompt, "answer": answer})
    decoder = Decoder(torch)
    shape = (LONGEST, LAYERS, 2, HEADS, WIDTH)
    spare = []  # growable tensors whose pages went: their addresses serve the next sequence

    def new_cache():
        if kind == "growable":
            return Grown(spare.pop() if spare else weir.torch.growable(shape, torch.bfloat16, page=page))
        if kind == "preallocated":
            return OneTensor(torch.empty(shape, device="cuda", dtype=torch.bfloat16))
        return Concatenated(torch, torch.empty((1,) + shape[1:], device="cuda", dtype=torch.bfloat16))

    def prompt_of(sequence):
        seeded = torch.Generator(device="cuda").manual_seed(sequence["number"])
        return torch.randn(sequence["prompt"], MODEL, device="cuda", dtype=torch.bfloat16, generator=seeded)

    def end(sequence):
        cache = sequence.pop("cache")
        cache.close()
        if kind == "growable":
            spare.append(cache.rows)

    running, digests, tokens, preempted = [], {}, 0, 0
    held, at_once = [], []
    torch.cuda.synchronize()
    began = time.monotonic()
    while waiting or running:
        try:
            while waiting:
                sequence = waiting[0]
                sequence["cache"] = new_cache()
                sequence["next"], sequence["left"] = decoder.step(prompt_of(sequence), sequence["cache"]), sequence["answer"]
                running.append(waiting.popleft())
        except torch.cuda.OutOfMemoryError:
            if "cache" in waiting[0]:
                end(waiting[0])
            if not running:
                raise
        for sequence in list(running):
            if sequence not in running:
                continue
            try:
                sequence["next"] = decoder.step(sequence["next"], sequence["cache"])
            except torch.cuda.OutOfMemoryError:
                newest = running.pop()
                end(newest)
                waiting.appendleft(newest)
                preempted += 1
                continue
            tokens += 1
            sequence["left"] -= 1
            if sequence["left"] == 0:
                digests[sequence["number"]] = sequence["next"].float().sum().item()
                end(sequence)
                running.remove(sequence)
        held.append(torch.cuda.memory_reserved())
        at_once.append(len(running))
    torch.cuda.synchronize()
    seconds = time.monotonic() - began
    return {"kind": kind, "tokens_per_second": tokens / seconds, "sequences": sum(at_once) / len(at_once),
            "held": sum(held) / len(held), "peak": max(held), "preempted": preempted,
            "digest": sum(digests[number] * (number + 1) for number in sorted(digests))}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sequences", type=int, default=64)
    parser.add_argument("--limit", type=float, default=8, help="GiB that the program may hold")
    parser.add_argument("--page", type=int, default=16, help="MiB that a growable tensor gets at a time")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", choices=KINDS, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.only:
        print(json.dumps(serve(chosen.only, chosen.sequences, int(chosen.limit * GIB), chosen.page << 20)))
        return 0
    results = []
    for kind in KINDS:
        ran = subprocess.run([sys.executable, __file__, "--only", kind, "--sequences", str(chosen.sequences),
                              "--limit", str(chosen.limit), "--page", str(chosen.page)],
                             capture_output=True, text=True, check=False)
        if ran.returncode:
            print(f"{kind}: failed\n{ran.stderr[-2000:]}", file=sys.stderr)
            continue
        results.append(json.loads(ran.stdout.splitlines()[-1]))
        row = results[-1]
        print(f"{kind:13} {row['tokens_per_second']:8.0f} tokens/s, {row['sequences']:6.1f} sequences at a time, "
              f"{row['held'] / GIB:5.2f} GiB held, {row['peak'] / GIB:5.2f} at most, {row['preempted']} preempted")
    if chosen.json:
        chosen.json.write_text(json.dumps(results, indent=1))
    same = len({row["digest"] for row in results}) == 1
    print("results", "are the same" if same else "DIFFER")
    return 0 if len(results) == len(KINDS) and same else 1


if __name__ == "__main__":
    sys.exit(main())
