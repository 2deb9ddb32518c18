# SPDX-License-Identifier: Apache-2.0
"""weir: GPU memory for Python.

    import weir

    machine = weir.Runtime()                      # a GPU, or a simulated one where there is none
    memory = weir.Allocator(machine.device(0))
    stream = weir.Stream(machine.device(0))
    with memory.allocate(64 << 20, stream) as block:
        ...                                       # block.ptr, or any library that takes CUDA arrays

weir.cupy, weir.numba and weir.torch put whole libraries on weir. docs/python.md is the guide.
"""

import sys as _sys

from ._allocator import NO_LIMIT, Allocator, Capture, Pool, Reclaim, Recorder, tag
from ._block import Block
from ._buffers import HOST, BufferPool, UnifiedBuffer, host_node
from ._errors import (BadPointer, Closed, DriverGone, DriverUnavailable, Error, InvalidArgument,
                      LimitExceeded, MemoryDamaged, NoHostMemory, NotSupported, OutOfMemory, Suspended)
from ._growable import Growable, GrowableHold, GrowablePlan, GrowableStats
from ._machine import (Device, Event, Runtime, Stream, option_rows, reported_errors, unwatch_stream,
                       watch_stream)
from ._native import lib as _lib
from ._native import library_path
from ._pools import BinPool, PinnedPool, StreamPool
from ._sources import MemorySource
from ._stats import (AccessRights, Attachment, BlockInfo, BlockState, BufferPoolStats, CaptureStatus,
                     DeviceFeature, DeviceInfo, Gauge, ManagedInfo, PhysicalInfo, PoolSnapshot, PoolStats,
                     RecorderStats, Snapshot, Stats, StreamPoolAttribute, StreamPoolStats)
from ._suspend import ResumeOutcome, SuspendOutcome, SuspendStats
from ._views import ArrayView

if _sys.flags.dev_mode:  # python -X dev: as in C programs that are compiled for debugging
    _lib.weir_mark_debug_program()

__version__ = _lib.weir_version_text().decode()

__all__ = [
    "AccessRights", "Allocator", "ArrayView", "Attachment", "BadPointer", "BinPool", "Block", "BlockInfo", "BlockState",
    "BufferPool", "BufferPoolStats", "Capture", "CaptureStatus", "Closed", "Device", "DeviceFeature",
    "DeviceInfo", "DriverGone", "DriverUnavailable", "Error", "Event", "Gauge", "Growable", "GrowableHold", "GrowablePlan",
    "GrowableStats", "HOST", "InvalidArgument",
    "LimitExceeded", "ManagedInfo", "MemoryDamaged", "MemorySource", "NO_LIMIT", "NoHostMemory", "NotSupported", "OutOfMemory", "PhysicalInfo",
    "PinnedPool", "Pool", "PoolSnapshot", "PoolStats", "Reclaim", "Recorder", "RecorderStats", "ResumeOutcome",
    "Runtime", "Snapshot", "Stats", "Stream", "StreamPool", "StreamPoolAttribute", "StreamPoolStats",
    "SuspendOutcome", "SuspendStats", "Suspended", "UnifiedBuffer",
    "host_node", "library_path", "option_rows", "reported_errors", "tag", "unwatch_stream", "watch_stream",
]
