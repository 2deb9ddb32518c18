#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How long requests take that cannot be met, and what a neighbouring process sees of them.

    refused.py --json FILE          weir and torch's own allocator, one process each after the other

A neighbour allocates and frees 1 GiB of plain device memory all the time. Every one of its requests can be
met, so each refusal is the fault of the process beside it.
"""

import argparse
import ctypes
import json
import subprocess
import sys
import time

ALLOCATORS = ("weir", "native")
GIB = 1 << 30
ROUNDS = 5


def cases(total):
    """Name, what is held before, what is asked: the second is above what is left of any card."""
    return (("more than the card has", 0, total + 60 * GIB),
            ("more than is left", 60 * GIB * total // (140 * GIB), 100 * GIB * total // (140 * GIB)))


def neighbour():
    """Allocates and frees until its standard input ends; prints how often, and how often in vain."""
    import select
    driver = ctypes.CDLL("libcuda.so.1")
    context, device = ctypes.c_void_p(), ctypes.c_int()
    for outcome in (driver.cuInit(0), driver.cuDeviceGet(ctypes.byref(device), 0),
                    driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device),
                    driver.cuCtxSetCurrent(context)):
        assert outcome == 0, outcome
    print("ready", flush=True)
    asked = refused = 0
    while not select.select([sys.stdin], [], [], 0)[0]:
        pointer = ctypes.c_uint64()
        asked += 1
        if driver.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(GIB)) != 0:
            refused += 1
        else:
            assert driver.cuMemFree_v2(pointer) == 0
    print(json.dumps({"asked": asked, "refused": refused}))


def worker(allocator):
    """Times the refused requests; prints their milliseconds by case."""
    import torch
    if allocator == "weir":
        import weir.torch
        weir.torch.enable()
    torch.ones(1, device="cuda")
    total = torch.cuda.get_device_properties(0).total_memory
    found = {}
    for name, held, asked in cases(total):
        kept = torch.empty(held, dtype=torch.uint8, device="cuda") if held else None
        times = []
        for _ in range(ROUNDS):
            begin = time.perf_counter()
            try:
                torch.empty(asked, dtype=torch.uint8, device="cuda")
                raise SystemExit(f"{asked} bytes were not refused")
            except torch.OutOfMemoryError:
                times.append((time.perf_counter() - begin) * 1e3)
        del kept
        torch.cuda.empty_cache()
        found[name] = {"held": held, "asked": asked, "ms": times}
    print(json.dumps(found))


def measure(allocator):
    beside = subprocess.Popen([sys.executable, __file__, "--neighbour"], text=True,
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert beside.stdout.readline() == "ready\n"
        ran = subprocess.run([sys.executable, __file__, "--worker", allocator], text=True,
                             stdout=subprocess.PIPE, check=True, timeout=90)
        said, _ = beside.communicate("end\n", timeout=30)
    finally:
        beside.kill()
    return {"cases": json.loads(ran.stdout.splitlines()[-1]),
            "neighbour": json.loads(said.splitlines()[-1])}


def table(figures):
    """The slowest of the rounds: the first one is the one that a program meets."""
    lines = ["| request that is refused | " + " | ".join(f"{each}, ms" for each in figures) + " |",
             "|---|" + "--:|" * len(figures)]
    for name, first in next(iter(figures.values()))["cases"].items():
        worst = [f"{max(each['cases'][name]['ms']):.1f}" for each in figures.values()]
        held = f" ({first['held'] / GIB:.0f} GiB held)" if first["held"] else ""
        lines.append(f"| {name}: {first['asked'] / GIB:.0f} GiB{held} | " + " | ".join(worst) + " |")
    counts = [f"{each['neighbour']['refused']} of {each['neighbour']['asked']}"
              for each in figures.values()]
    lines.append("| refused requests of a neighbouring process | " + " | ".join(counts) + " |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json")
    parser.add_argument("--neighbour", action="store_true")
    parser.add_argument("--worker", choices=ALLOCATORS)
    given = parser.parse_args()
    if given.neighbour:
        return neighbour()
    if given.worker:
        return worker(given.worker)
    figures = {each: measure(each) for each in ALLOCATORS}
    print(table(figures))
    if given.json:
        with open(given.json, "w") as file:
            json.dump(figures, file)
    return None


if __name__ == "__main__":
    main()
