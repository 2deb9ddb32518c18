# SPDX-License-Identifier: Apache-2.0
"""What an allocator holds, in words."""

from ._allocator import Allocator


def size_text(nbytes: int) -> str:
    """1536 as "1.5 KiB"."""
    value, unit = float(nbytes), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.2f}".rstrip("0").rstrip(".") + f" {unit}"


def allocator_report(allocator: Allocator, user: str) -> str:
    stats = allocator.stats()
    free, total = allocator.device.memory()
    price = stats.reserved.peak / stats.requested.peak if stats.requested.peak else 1.0
    served = stats.hits / stats.allocations if stats.allocations else 0.0
    limit = allocator.limit
    lines = [
        f"weir under {user}, device {allocator.device.number} ({allocator.device.info.name})",
        f"  live: {size_text(stats.requested.current)} in {stats.blocks.current} blocks, "
        f"peak {size_text(stats.requested.peak)}",
        f"  reserved: {size_text(stats.reserved.current)}, peak {size_text(stats.reserved.peak)}, "
        f"{price:.3f} of the requested memory"
        + ("" if limit is None else f", limit {size_text(limit)}"),
        f"  cached: {size_text(stats.cached)}, {size_text(stats.thread_cached)} of it by threads; "
        f"waiting for streams: {size_text(stats.pending)}",
        f"  {stats.allocations} allocations, {served:.1%} without a lock, {stats.failures} failed; "
        f"{stats.handles_created} pieces of memory taken from the driver, {stats.handles_moved} moved, "
        f"{stats.handles_released} released",
        f"  device: {size_text(total)}, {size_text(free)} free",
    ]
    tags = [(name, of) for name, of in allocator.stats_by_tag().items() if name]
    lines += [f"  tag {name!r}: {size_text(of.requested.current)} in {of.blocks.current} blocks, "
              f"peak {size_text(of.requested.peak)}" for name, of in tags]
    return "\n".join(lines)
