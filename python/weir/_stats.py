# SPDX-License-Identifier: Apache-2.0
"""Plain values: counters, snapshots, the properties of a device. docs/stats.md says what each number
means."""

import ctypes
import enum
from dataclasses import dataclass, field, fields
from typing import Any, List, Optional, Tuple, Type, TypeVar

from . import _native
from ._native import lib, structure


class BlockState(enum.IntEnum):
    """What a piece of an allocator's address space is."""

    LIVE = 0           #: allocated and not freed
    THREAD_CACHED = 1  #: freed, kept by a thread for its next request
    PENDING = 2        #: freed, but a recorded stream may still use it
    STREAM_BOUND = 3   #: free for the stream that used it last
    FREE = 4           #: free for every stream
    HOLE = 5           #: addresses without memory of their own


class DeviceFeature(enum.IntFlag):
    """What a device can do."""

    UNIFIED_ADDRESSING = 1 << 0
    VIRTUAL_MEMORY = 1 << 1
    MEMORY_POOLS = 1 << 2
    MANAGED_MEMORY = 1 << 3
    CONCURRENT_MANAGED_ACCESS = 1 << 4
    POSIX_DESCRIPTORS = 1 << 5
    FABRIC_HANDLES = 1 << 6
    RDMA = 1 << 7
    HAS_UUID = 1 << 8


class CaptureStatus(enum.IntEnum):
    """Whether a stream is being captured into a graph."""

    NONE = 0
    ACTIVE = 1
    INVALIDATED = 2  #: broken, and must be ended
    IMPLICIT = 3     #: the legacy stream, while one that synchronises with it is captured


class Attachment(enum.IntEnum):
    """Who may use a UnifiedBuffer. Binding only on devices without concurrent managed access; a hint to
    others."""

    GLOBAL = 0  #: every stream; the host only while the whole device is idle
    HOST = 1    #: the host at any time, and no device
    SINGLE = 2  #: one stream; the host while that stream is idle


class StreamPoolAttribute(enum.IntEnum):
    """The driver's attributes of a pool, by the driver's numbers."""

    REUSE_FOLLOW_EVENT_DEPENDENCIES = 1  #: memory freed before an event that the allocating stream waits for
    REUSE_OPPORTUNISTIC = 2              #: memory whose free has happened, whether or not anybody waited
    REUSE_INTERNAL_DEPENDENCIES = 3      #: memory whose free is pending: the driver queues a wait for it
    RELEASE_THRESHOLD = 4
    RESERVED = 5                         #: read only
    RESERVED_PEAK = 6                    #: can be set to 0, which means: to what is reserved now
    USED = 7                             #: read only
    USED_PEAK = 8                        #: like RESERVED_PEAK


class AccessRights(enum.IntEnum):
    """What a device may do with the memory of a pool."""

    NONE = 0
    READ = 1
    READ_WRITE = 2


@dataclass(frozen=True)
class Gauge:
    """An amount, and the most it has been since the peaks were last reset."""

    current: int = 0
    peak: int = 0


@dataclass(frozen=True)
class Stats:
    """What an allocator, one of its pools or one tag holds; sizes in bytes.

    requested <= allocated <= active <= reserved, of one moment, and the same of the peaks. Where memory is
    suspended, or was, SuspendStats.reserved_and_suspended is the bound of active.
    """

    requested: Gauge = Gauge()  #: allocated and not freed, as requested
    allocated: Gauge = Gauge()  #: the same, rounded to whole blocks
    active: Gauge = Gauge()     #: allocated, and freed memory that other streams may still use
    reserved: Gauge = Gauge()   #: physical memory taken from the driver
    blocks: Gauge = Gauge()     #: live blocks, a count
    cached: int = 0             #: reserved - active
    thread_cached: int = 0      #: of cached: held by threads for their next request
    pending: int = 0            #: active - allocated
    stream_bound: int = 0       #: of cached: free for the stream that used it last only
    allocations: int = 0        #: successful ones
    frees: int = 0
    hits: int = 0               #: allocations served by the thread's cache
    failures: int = 0           #: allocations that ended out of memory or at a limit
    handles_created: int = 0    #: physical handles or segments taken from the driver
    handles_moved: int = 0      #: mapped somewhere else
    handles_returned: int = 0   #: remapped where they had been mapped before
    handles_released: int = 0   #: released to the driver
    waits: int = 0              #: queued on a stream so that it could reuse memory
    events: int = 0             #: recorded to know when memory is free for others
    metadata: int = 0           #: host memory of the bookkeeping tables
    heap_hits: int = 0          #: allocations served by free memory of the heap, without a driver call
    misses: int = 0             #: the other ones: the driver was called to reserve, map or wait
    active_requested: Gauge = Gauge()  #: requested, with the freed memory that is in active
    active_blocks: Gauge = Gauge()     #: blocks, with the freed ones that are in active


@dataclass(frozen=True)
class PoolStats:
    """What a pool of whole blocks (PinnedPool, BinPool) holds; sizes in bytes. Counts are since
    reset_counters()."""

    requested: Gauge = Gauge()  #: allocated and not freed, as requested
    allocated: Gauge = Gauge()  #: the same, rounded to whole blocks
    reserved: Gauge = Gauge()   #: taken from the driver
    blocks: Gauge = Gauge()     #: live blocks, a count
    cached: int = 0             #: freed, and not allocated again
    pending: int = 0            #: of cached: waits for recorded streams
    allocations: int = 0        #: successful ones
    frees: int = 0
    hits: int = 0               #: allocations served by a cached block
    misses: int = 0             #: allocations served by the driver
    failures: int = 0           #: requests that ended out of memory
    waits: int = 0              #: queued on a stream so that it could reuse memory
    events: int = 0             #: recorded to know when memory is free for others


@dataclass(frozen=True)
class BufferPoolStats:
    """What a BufferPool did and holds; sizes in bytes. Counts are since reset_counters()."""

    hits: int = 0           #: takes served by a cached buffer
    misses: int = 0         #: takes served by the driver
    returns: int = 0        #: buffers that were freed
    cached: int = 0         #: freed and not taken again
    taken: Gauge = Gauge()  #: rounded; of several devices the peak is the sum of theirs


@dataclass(frozen=True)
class StreamPoolStats:
    """What a driver's pool holds: the driver's figures count all its users."""

    reserved: Gauge = Gauge()
    used: Gauge = Gauge()
    allocations: Gauge = Gauge()  #: made through weir and not freed, a count
    allocated: int = 0            #: their bytes


@dataclass(frozen=True)
class ManagedInfo:
    """The driver's record of a range of a UnifiedBuffer; nothing where its pages differ. Places are
    numbers of devices, weir.HOST, or weir.host_node(n)."""

    attachment: Attachment              #: of the whole buffer
    read_mostly: bool
    preferred: Optional[int]            #: where pages should stay
    accessed_by: Tuple[int, ...]        #: who reaches the pages without moving them
    last_prefetch: Optional[int]        #: not where the pages are now, which the driver does not tell


@dataclass(frozen=True)
class RecorderStats:
    """What a Recorder has written."""

    written: int = 0  #: events in the file
    dropped: int = 0
    threads: int = 0
    file_size: int = 0


@dataclass(frozen=True)
class BlockInfo:
    """A piece of the address space."""

    address: int
    size: int       #: rounded
    requested: int  #: only of live blocks
    state: BlockState
    stream: int     #: number of the stream it was allocated for, or is bound to; 0: none
    pool: int       #: number; 0 is the allocator's own
    tag: str        #: only of live blocks


@dataclass(frozen=True)
class PhysicalInfo:
    """A handle or segment of physical memory, and where it is mapped."""

    address: int
    size: int


@dataclass(frozen=True)
class PoolSnapshot:
    """One pool of an allocator as it was; number 0 is the allocator's default pool."""

    id: int
    name: str
    stats: Stats
    blocks: List[BlockInfo] = field(repr=False)       #: by address
    physical: List[PhysicalInfo] = field(repr=False)  #: by address


@dataclass(frozen=True)
class Snapshot:
    """Everything an allocator held at one moment."""

    device: int
    stats: Stats
    pools: List[PoolSnapshot]  #: the allocator's own first


@dataclass(frozen=True)
class DeviceInfo:
    """What a device is and can do."""

    name: str
    total_memory: int   #: bytes
    granularity: int    #: the unit of physical memory; 0 without virtual memory
    compute: Tuple[int, int]
    multiprocessors: int
    features: DeviceFeature
    pci_bus_id: str
    uuid: bytes         #: empty if the device has none


# --- From structures --------------------------------------------------------------------------------


_Values = TypeVar("_Values")


def values(kind: Type[_Values], read: Any) -> _Values:
    """A dataclass of the members that it shares its names with in a structure."""
    members = {}
    described: Any = kind
    for member in fields(described):
        value = getattr(read, member.name)
        members[member.name] = Gauge(value.current, value.peak) if hasattr(value, "peak") else value
    return kind(**members)


def ask(kind: Type[_Values], name: str, call: Any, *arguments: Any) -> _Values:
    """What a call writes into the structure `name`, as a dataclass."""
    read = structure(name)()
    call(*arguments, ctypes.byref(read))
    return values(kind, read)


def tag_name(tag: int) -> str:
    name = lib.weir_tag_name(tag)
    return "" if name is None else str(name, "utf-8", "replace")


def block_info(read: Any) -> BlockInfo:
    return BlockInfo(read.address, read.size, read.requested, BlockState(read.state), read.stream,
                     read.pool, tag_name(read.tag))


def device_info(runtime: int, number: int) -> DeviceInfo:
    read = structure("weir_device_info")()
    lib.weir_device_get_info(runtime, number, ctypes.byref(read))
    features = DeviceFeature(read.features)
    return DeviceInfo(read.name.decode("utf-8", "replace"), read.total_memory, read.granularity,
                      (read.compute_major, read.compute_minor), read.multiprocessors, features,
                      read.pci_bus_id.decode("utf-8", "replace"),
                      bytes(read.uuid) if DeviceFeature.HAS_UUID in features else b"")


def snapshot(allocator: int) -> Snapshot:
    taken = _native.new(lib.weir_snapshot_take, allocator)
    try:
        info = structure("weir_snapshot_info")()
        lib.weir_snapshot_get_info(taken, ctypes.byref(info))
        return Snapshot(info.device, values(Stats, info.stats),
                        [_pool_snapshot(taken, number) for number in range(info.pool_count)])
    finally:
        lib.weir_snapshot_close(taken)


def _pool_snapshot(taken: int, number: int) -> PoolSnapshot:
    info = structure("weir_pool_info")()
    lib.weir_snapshot_get_pool(taken, number, ctypes.byref(info))

    def pieces(name: str, call: Any, count: int) -> Any:
        if not count:
            return []
        space = (structure(name) * count)()
        for piece in space:  # an array's elements are not made by their __init__
            piece.struct_size = ctypes.sizeof(piece)
        written = ctypes.c_uint64()
        call(taken, number, 0, space, count, ctypes.byref(written))
        return space[:written.value]

    blocks = pieces("weir_block_info", lib.weir_snapshot_get_blocks, info.block_count)
    physical = pieces("weir_physical_info", lib.weir_snapshot_get_physical, info.physical_count)
    return PoolSnapshot(info.id, info.name.decode("utf-8", "replace"), values(Stats, info.stats),
                        [block_info(block) for block in blocks],
                        [PhysicalInfo(piece.address, piece.size) for piece in physical])
