# SPDX-License-Identifier: Apache-2.0
"""Programs in which others measured that memory is lost, as their developers describe them.

Serving: one CUDA graph for each batch size, all in one pool. What a capture freed serves the next one only if it is
large enough, so that it matters in which order the sizes are captured.

Stashing: tables leave the device at the start of the forward pass and come back in the backward pass, over another
stream. The activations in between die in the reverse order of their birth, or like the teeth of a comb, and the
tables must find room in what they leave.
"""

import random

import torch

from workloads import GPU, Decoder, Running, workload

MIB = 1 << 20


def captured_sizes(order):
    """A decoder's step as a graph for each batch size, in that order, before the cache of keys and values is made."""
    sizes = [1, 2, 4, *range(16, 513, 16)]
    with torch.device(GPU):
        model = Decoder(layers=4, width=1024, context=64).to(torch.bfloat16).eval()
    graphs, draw = {}, random.Random(0)
    with torch.inference_mode():
        caches = model.caches(max(sizes))
        tokens = torch.zeros(max(sizes), 1, dtype=torch.long, device=GPU)
        position = torch.zeros(1, dtype=torch.long, device=GPU)
        mask = torch.ones(1, model.context, dtype=torch.bool, device=GPU)
        logits = torch.zeros(max(sizes), 32000, dtype=torch.bfloat16, device=GPU)

        def once(batch):
            mine = [(keys[:batch], values[:batch]) for keys, values in caches]
            logits[:batch].copy_(model(tokens[:batch], position, mine, mask))

        pool, side = torch.cuda.graph_pool_handle(), torch.cuda.Stream()
        for batch in order(sizes):
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):  # everything lazy happens before the capture
                once(batch)
            torch.cuda.current_stream().wait_stream(side)
            graphs[batch] = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graphs[batch], pool=pool):
                once(batch)
        pages = [torch.zeros(64 * MIB, dtype=torch.uint8, device=GPU) for _ in range(32)]

    def step(i):
        count = 0
        with torch.inference_mode():
            for _ in range(20):
                batch = draw.choice(sizes)
                tokens.random_(0, 32000)
                position.fill_(count % 64)
                graphs[batch].replay()
                count += batch
            pages[i % len(pages)].add_(1)
        return count

    return Running(step, lambda: [logits, *pages])


@workload("tokens", warm=2, round=2, check=2)
def graphs_ascending():
    return captured_sizes(sorted)


@workload("tokens", warm=2, round=2, check=2)
def graphs_descending():
    return captured_sizes(lambda sizes: sorted(sizes, reverse=True))


def stashing(deaths):
    """A step in which the tables are elsewhere between the passes; deaths(n) is the order in which activations die."""
    draw = random.Random(0)
    sizes = [draw.randrange(10, 75) * MIB // 4 for _ in range(44)]
    side = torch.cuda.Stream()
    with torch.device(GPU):
        weights = [torch.randn(16 * MIB) for _ in range(16)]
        tables = [torch.randn(320 * MIB), torch.randn(128 * MIB)]
    stashed = [torch.empty(len(table), pin_memory=True) for table in tables]
    last = {}

    def stash():
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for table, host in zip(tables, stashed):
                host.copy_(table, non_blocking=True)
                table.record_stream(side)
        tables.clear()

    def take_back():
        main = torch.cuda.current_stream()
        side.wait_stream(main)
        for host in stashed:
            table = torch.empty(len(host), device=GPU)
            with torch.cuda.stream(side):
                table.copy_(host, non_blocking=True)
            table.record_stream(side)
            tables.append(table)
        main.wait_stream(side)

    def step(i):
        begin = tables[0][:1024].sum()
        stash()
        activations = [torch.full((size,), 1.0 + i + number, device=GPU).mul_(begin)
                       for number, size in enumerate(sizes)]
        loss = torch.zeros((), device=GPU)
        order = deaths(len(sizes))
        for turn, number in enumerate(order):
            if turn == len(order) * 3 // 4:
                take_back()
            loss += activations[number][::4096].sum()
            weights[number % len(weights)][:1024] += loss * 1e-9
            activations[number] = None
        for table in tables:
            table[:1024] += loss * 1e-12
        last["loss"] = loss
        return 1

    return Running(step, lambda: [*tables, *weights, last["loss"]])


@workload("steps", warm=4, round=4, check=3)
def stash_pyramid():
    return stashing(lambda count: list(range(count))[::-1])


@workload("steps", warm=4, round=4, check=3)
def stash_comb():
    return stashing(lambda count: [*range(0, count, 2), *range(1, count, 2)])
