# SPDX-License-Identifier: Apache-2.0
"""weir.Allocator, the caching allocator, and what belongs to it: pools, tags, captures, recorders."""

import contextlib
import ctypes
import errno
import itertools
import os
import sys
import threading
import weakref
from typing import Any, Callable, Dict, Iterator, List, Optional, Union

from . import _callbacks, _native, _stats, _suspend
from ._block import Block, Memory
from ._errors import Error, InvalidArgument, OutOfMemory
from ._growable import Growable
from ._machine import (Device, Options, Owned, Runtime, Size, Stream, all_options_text, as_bytes, native_stream, options_text,
                       place_of, stream_argument)
from ._native import lib, structure
from ._sources import MemorySource, Source
from ._stats import BlockInfo, RecorderStats, Snapshot, Stats, ask
from ._suspend import Progress, ResumeOutcome, SuspendOutcome, SuspendStats

NO_LIMIT = 2**64 - 1

# The two calls that programs make most: a check in place costs less than one that is called.
_allocate = _native.quiet("weir_allocator_allocate")
_quiet_free = _native.quiet("weir_allocator_free")

# --- Tags -------------------------------------------------------------------------------------------


def tag_number(name: str) -> int:
    """The number of a tag's name, which stays the same while the process lives; 0 for ""."""
    return _native.number(lib.weir_tag_named, _native.text(name), kind=ctypes.c_uint32) if name else 0


@contextlib.contextmanager
def tag(name: str) -> Iterator[None]:
    """What this thread allocates inside is tagged with the name, in statistics, limits and reports."""
    previous = ctypes.c_uint32()
    lib.weir_tag_set_current(tag_number(name), ctypes.byref(previous))
    try:
        yield
    finally:
        lib.weir_tag_set_current(previous.value, None)


# --- The allocator ----------------------------------------------------------------------------------


class Allocator(Memory, close="weir_allocator_close"):
    """Device memory for any thread and any stream; docs/allocator.md explains how it works.

        memory = weir.Allocator(weir.Runtime().device(0), heap_policy="compact")
        block = memory.allocate(64 << 20, stream)

    Work queued on the block's stream from then on may use it; what is freed may still be used by work
    queued before. Whoever used it on further streams says so with record_stream() before the free. Freed
    memory leaves its stream only when all work is done that was queued by then on any stream that weir
    knows; weir.watch_stream() adds one.

    A stream is a weir.Stream, None (the legacy stream), the number of a CUstream, or an object of CuPy,
    PyTorch or anything with __cuda_stream__. A weir.Stream is quickest. Before somebody else's stream is
    destroyed, call release_stream(), or weir.unwatch_stream() for all allocators at once.

    An allocator that is forgotten stays open until its last block is freed; close() takes the memory away
    from under them.
    """

    def __init__(self, device: Device, options: Options = None, *, environment: bool = True,
                 **named: Any) -> None:
        self.device = device
        self._own(_native.new(lib.weir_allocator_create, *place_of(device),
                              all_options_text(options, named, environment)))

    @classmethod
    def default(cls, device: int = 0) -> "Allocator":
        """The process's own for a device, which plug-ins share. It cannot be closed."""
        allocator = cls.__new__(cls)
        allocator.device = Runtime.default().device(device)
        allocator._share(_native.new(lib.weir_default_allocator, device))
        return allocator

    def _live(self) -> int:
        return self.stats().blocks.current

    def _words(self) -> str:
        now = self.stats()
        return f"of device {self.device.number}, {now.blocks.current} blocks of {now.requested.current} bytes"

    # --- Memory ---------------------------------------------------------------------------------

    def allocate(self, nbytes: Size, stream: Any = None, *, alignment: int = 512) -> Block:
        """A block of device memory: so many bytes, or text such as "64 MiB". weir.OutOfMemory, which is a
        MemoryError, names what is in the way; its report says who holds what."""
        size: int = nbytes  # type: ignore[assignment]
        if size.__class__ is not int or not 0 <= size < 1 << 64:
            size = as_bytes(nbytes)
        pointer = ctypes.c_void_p()
        try:
            if alignment != 512:
                with self._as_stream(stream) as known:
                    lib.weir_allocator_allocate_aligned(self._handle, size, alignment, known,
                                                        ctypes.byref(pointer))
            elif stream is None or isinstance(stream, Stream):
                code = _allocate(self._handle, size, stream and stream._handle, ctypes.byref(pointer))
                if code:
                    raise _native.last_error(code)
            else:
                lib.weir_allocator_allocate_native(self._handle, size, native_stream(stream),
                                                   ctypes.byref(pointer))
        except OutOfMemory as problem:
            raise self._with_report(problem, size, stream)
        return Block(self, pointer.value or 0, size, stream)

    def _with_report(self, problem: OutOfMemory, nbytes: int, stream: Any) -> OutOfMemory:
        with contextlib.suppress(Error):  # closed meanwhile: the error itself is what matters
            problem.report = self.explain(nbytes, stream)
        return problem

    def allocate_cached(self, nbytes: Size, stream: Optional[Stream] = None) -> Optional[Block]:
        """The same, but only of memory that is free for the stream now: no driver call, no wait, no new memory.
        None: there is none."""
        nbytes = as_bytes(nbytes)
        try:
            with self._as_stream(stream) as known:
                ptr = _native.new(lib.weir_allocator_allocate_cached, self._handle, nbytes, known)
        except Error as problem:
            if problem.name == "not_found":
                return None
            raise
        return Block(self, ptr, nbytes, stream)

    def zeros(self, nbytes: Size, stream: Optional[Stream] = None) -> Block:
        """A block of zeros, by a fill queued on the stream."""
        block = self.allocate(nbytes, stream)
        if block.nbytes:
            with stream_argument(self.device, 0 if stream is None else stream) as known:
                lib.weir_fill(block.ptr, 0, block.nbytes, known)
        return block

    def copy_of(self, data: Any, stream: Optional[Stream] = None) -> Block:
        """A block with the bytes of `data`, any object of Python's buffer protocol; they are copied before this
        returns."""
        source = memoryview(data).tobytes()
        block = self.allocate(len(source), stream)
        if source:
            with stream_argument(self.device, 0 if stream is None else stream) as known:
                lib.weir_copy(block.ptr, ctypes.cast(ctypes.c_char_p(source), ctypes.c_void_p), len(source), known)
                lib.weir_stream_synchronize(known)
        return block

    @staticmethod
    def rounded_size(nbytes: Size) -> int:
        """The size of the block that a request of so many bytes gets: the next multiple of 512."""
        return _native.number(lib.weir_allocator_rounded_size, as_bytes(nbytes))

    def deallocate(self, ptr: int, stream: Any = None, *, size: Optional[int] = None) -> None:
        """Frees an address that Block.release() gave up: on the stream it was allocated for, or on
        another. With `size`, also checks that it is what was asked for; InvalidArgument if not, and the
        block is freed all the same."""
        if size is None:
            self._free(ptr, 0, stream, None)
        elif stream is not None:
            with self._as_stream(stream) as known:
                lib.weir_allocator_deallocate_sized(self._handle, ptr, size, known)
        else:
            # The call with a size takes no stream for the legacy one; the block's own is only known below.
            requested = self.size_of(ptr) if ptr else size
            lib.weir_allocator_free(self._handle, ptr)
            if requested != size:
                raise InvalidArgument("weir: invalid_argument: an argument has a value that the call does not accept "
                                      f"({size} B): the block was allocated with {requested} B", 1, "invalid_argument")

    def record_stream(self, ptr: Union[int, Block], stream: Any) -> None:
        """Work queued on `stream` until the block is freed may use it, too."""
        if isinstance(stream, Stream):
            lib.weir_allocator_record_stream(self._handle, int(ptr), stream._handle)
        else:
            lib.weir_allocator_record_stream_native(self._handle, int(ptr), native_stream(stream))

    def assume_joined(self, ptr: int) -> bool:
        """For a block that was freed and waits for recorded streams: what they do with it comes before everything that
        the stream of the free does from now on, so that stream may have it at once. False: no such block."""
        return bool(_native.number(lib.weir_allocator_assume_joined, self._handle, int(ptr), kind=ctypes.c_int32))

    def _free(self, ptr: int, nbytes: int, stream: Any, own_stream: Any) -> None:
        if stream is None:
            lib.weir_allocator_free(self._handle, ptr)
        elif isinstance(stream, Stream):
            lib.weir_allocator_deallocate(self._handle, ptr, stream._handle)
        else:
            lib.weir_allocator_deallocate_native(self._handle, ptr, native_stream(stream))

    def _free_quietly(self, ptr: int, nbytes: int, own_stream: Any,
                      free: Callable[..., int] = _quiet_free) -> None:
        free(self._handle, ptr)

    def _as_stream(self, stream: Any) -> "contextlib.AbstractContextManager[Optional[int]]":
        return stream_argument(self.device, stream)

    def size_of(self, ptr: Union[int, Block]) -> int:
        """The size that was asked for, of the block that begins there."""
        return _native.number(lib.weir_allocator_size_of, self._handle, int(ptr))

    def find_block(self, address: int) -> BlockInfo:
        """The live block that the address lies in, its first byte or any other."""
        read = structure("weir_block_info")()
        lib.weir_allocator_find_block(self._handle, address, ctypes.byref(read))
        return _stats.block_info(read)

    # --- Statistics -----------------------------------------------------------------------------

    def stats(self, tag: Optional[str] = None) -> Stats:
        """Of the whole allocator, or of one tag; exact, of one moment."""
        if tag is None:
            return ask(Stats, "weir_memory_stats", lib.weir_allocator_get_stats, self._handle)
        return ask(Stats, "weir_memory_stats", lib.weir_allocator_get_tag_stats, self._handle,
                   tag_number(tag))

    def stats_by_tag(self) -> Dict[str, Stats]:
        """Of every tag that has memory or had some, the most memory first; "" is memory without one."""
        count = _native.number(lib.weir_allocator_get_stats_by_tag, self._handle, None, 0)
        if not count:
            return {}
        rows = (structure("weir_tag_stats") * count)()
        for row in rows:
            row.struct_size = ctypes.sizeof(row)
        written = ctypes.c_uint64()
        lib.weir_allocator_get_stats_by_tag(self._handle, rows, count, ctypes.byref(written))
        return {_stats.tag_name(row.tag): _stats.values(Stats, row.stats)
                for row in rows[:min(count, written.value)]}

    def reset_peaks(self) -> None:
        """Every peak becomes the current value, of pools and tags as well."""
        lib.weir_allocator_reset_peaks(self._handle)

    def reset_counters(self) -> None:
        """What is counted (allocations, frees, hits, misses, failures, ...) begins anew at 0, of pools and tags as
        well."""
        lib.weir_allocator_reset_counters(self._handle)

    def streams_of(self, ptr: Union[int, Block]) -> List[int]:
        """The further streams of the block that begins there, by their numbers: of a live block those that
        record_stream() named, of a freed one those that it still waits for. Takes a snapshot."""
        count = ctypes.c_uint64()
        lib.weir_allocator_get_block_streams(self._handle, int(ptr), None, 0, ctypes.byref(count))
        numbers = (ctypes.c_uint64 * count.value)()
        lib.weir_allocator_get_block_streams(self._handle, int(ptr), numbers, len(numbers), ctypes.byref(count))
        return list(numbers[:count.value])

    def snapshot(self) -> Snapshot:
        """Everything the allocator holds, block by block."""
        return _stats.snapshot(self._handle)

    def explain(self, nbytes: Size, stream: Any = None) -> str:
        """What an out-of-memory report would say of such a request now: who holds the memory, and what
        would help."""
        with self._as_stream(stream) as known:
            return _native.read_text(lib.weir_allocator_explain, self._handle, as_bytes(nbytes), known)

    def describe_address(self, address: int) -> str:
        """What an address is to the allocator, such as one that compute-sanitizer or cuda-gdb names: which
        block it lies in or beside, with the block's life where that is known (heap_debug). BadPointer: it
        is not memory of this allocator."""
        return _native.read_text(lib.weir_allocator_describe_address, self._handle, address)

    # --- Release to the driver, limits ------------------------------------------------------------

    def trim(self, keep: Size = 0) -> int:
        """Releases memory that nothing uses any more to the driver until at most `keep` bytes are
        reserved; waits for no stream. Returns how much was released."""
        return _native.number(lib.weir_allocator_trim, self._handle, as_bytes(keep))

    def empty_cache(self) -> int:
        """The same for all that is not live, after waiting for the streams."""
        return _native.number(lib.weir_allocator_empty_cache, self._handle)

    def shrink(self, keep: Size = 0) -> int:
        """Until at most `keep` bytes are reserved: waits for the work that may use cached memory, and then evicts what
        is evictable. Returns by how much less is reserved."""
        return _native.number(lib.weir_allocator_shrink, self._handle, as_bytes(keep))

    def enable_peer(self, device: Device) -> None:
        """Kernels and copies of another device of the runtime may use all memory of the allocator, for good."""
        lib.weir_allocator_enable_peer(self._handle, device.number)

    def release_stream(self, stream: Any) -> None:
        """The stream will not be used any more. Needed before a stream is destroyed that weir did not
        create: the driver does not survive a query of a stream that is gone."""
        with self._as_stream(stream) as known:
            lib.weir_allocator_release_stream(self._handle, known)

    @property
    def limit(self) -> Optional[int]:
        """The most physical memory, in bytes; None is no limit. A float is a fraction of the device. Where
        the allocator has a share of its card's budget (option `budget`), this is the smaller of what was
        set and of the share's ceiling."""
        most = _native.number(lib.weir_allocator_get_limit, self._handle)
        return None if most == NO_LIMIT else most

    @limit.setter
    def limit(self, most: Union[Size, float, None]) -> None:
        if isinstance(most, float):
            lib.weir_allocator_set_limit_fraction(self._handle, most)
        else:
            lib.weir_allocator_set_limit(self._handle, NO_LIMIT if most is None else as_bytes(most))

    def set_tag_limit(self, tag: str, most: Optional[Size]) -> None:
        """The most live memory with this tag; a request beyond it is weir.OutOfMemory."""
        lib.weir_allocator_set_tag_limit(self._handle, tag_number(tag),
                                         NO_LIMIT if most is None else as_bytes(most))

    def on_out_of_memory(self, callback: Callable[[int], bool]) -> "Reclaim":
        """`callback(needed)` is asked to free something before a request fails, and says whether it
        did. It stays as long as the object that this returns is not closed or forgotten. What it raises
        goes to sys.excepthook and counts as nothing freed."""
        return Reclaim(self, callback, lib.weir_allocator_on_out_of_memory)

    def before_growth(self, callback: Callable[[int], object]) -> "Reclaim":
        """`callback(needed)` is asked before a request takes memory from the driver, at most once for each, so
        that memory which it can free at once is used first. It stays registered as with on_out_of_memory()."""
        return Reclaim(self, callback, lib.weir_allocator_before_growth)

    # --- Suspended memory -------------------------------------------------------------------------

    def declare_suspendable(self, tag: str, *, evictable: bool = False, priority: int = 0,
                            contents: str = "keep", to: str = "pinned", requests: str = "resume",
                            chunk: Optional[int] = None) -> None:
        """What is allocated with this tag from now on lies apart, so that it can be suspended. What was
        allocated with it before stays where it is. Once declared, later calls change the options.

        evictable  a request that finds no memory may suspend it, the lowest priority first, with the other
                   options, which are those of suspend(). Requests to it bring it back; whoever uses its
                   blocks must have called resume() before.
        """
        options = _suspend.suspendable_options(evictable, priority, contents, to, requests, chunk)
        lib.weir_allocator_declare_suspendable(self._handle, tag_number(tag), ctypes.byref(options))

    def suspend(self, tag: Optional[str] = None, *, contents: str = "keep", to: str = "pinned",
                requests: str = "fail", chunk: Optional[int] = None,
                progress: Optional[Progress] = None, wait: bool = True,
                streams: str = "all") -> SuspendOutcome:
        """Gives the physical memory of a declared tag, or of everything, back to the driver, after waiting
        for all work that was queued. Blocks stay live and keep their addresses, which nothing may use until
        resume(). All or nothing; of what is suspended already it does nothing.

        contents  "keep": copied to the host, and back by resume(); "discard": lost
        to        "pinned" host memory, which is slow to get for the first time, or "pageable"
        requests  what allocations with the tag do meanwhile: "fail" (weir.Suspended), "wait", "resume"
        chunk     the most bytes that one copy has; None: 32 MiB
        progress  progress(done, total) is called whenever a chunk has arrived. What it raises goes to
                  sys.excepthook and changes nothing.
        wait      False: returns at once, with an empty outcome; the memory goes when the work that was
                  queued before is done. What fails then goes to the error handler.
        streams   with wait=False: "all" waits for the work of every stream, and keeps other threads from
                  queueing work meanwhile. "known" waits only for streams that the allocator has met or that
                  were given to watch_stream(); no other stream may use the memory.
        """
        options: Dict[str, Any] = dict(contents=contents, to=to, requests=requests, chunk=chunk, progress=progress,
                       streams=streams)
        if not wait:
            if tag is None:
                return _suspend.suspend_later(lib.weir_allocator_suspend_async, self._handle, **options)
            return _suspend.suspend_later(lib.weir_allocator_suspend_tag_async, self._handle,
                                          tag_number(tag), **options)
        if tag is None:
            return _suspend.suspend(lib.weir_allocator_suspend, self._handle, **options)
        return _suspend.suspend(lib.weir_allocator_suspend_tag, self._handle, tag_number(tag), **options)

    def resume(self, tag: Optional[str] = None, *, progress: Optional[Progress] = None,
               ahead_of: Any = None) -> ResumeOutcome:
        """Brings it back, to the same addresses, with the contents that were kept. weir.OutOfMemory: it
        stays suspended, and can be resumed later.

        ahead_of  a stream: the copies are not waited for here, but by what is queued on it from now on;
                  uses on other streams must be ordered behind that
        """
        try:
            if ahead_of is not None:
                with self._as_stream(ahead_of) as known:
                    if tag is None:
                        return _suspend.resume_ahead(lib.weir_allocator_resume_async, self._handle, known,
                                                     progress=progress)
                    return _suspend.resume_ahead(lib.weir_allocator_resume_tag_async, self._handle,
                                                 tag_number(tag), known, progress=progress)
            if tag is None:
                return _suspend.resume(lib.weir_allocator_resume, self._handle, progress=progress)
            return _suspend.resume(lib.weir_allocator_resume_tag, self._handle, tag_number(tag),
                                   progress=progress)
        except OutOfMemory as problem:
            raise self._with_report(problem, self.suspend_stats(tag).suspended, None)

    @contextlib.contextmanager
    def suspended(self, tag: Optional[str] = None, **options: Any) -> Iterator[SuspendOutcome]:
        """suspend() with these options, and resume() at the end of the block, whatever happens there."""
        outcome = self.suspend(tag, **options)
        try:
            yield outcome
        finally:
            self.resume(tag, progress=options.get("progress"))

    def is_suspended(self, tag: str) -> bool:
        """Whether the tag is; False also if it was not declared."""
        return _suspend.is_away(lib.weir_allocator_is_tag_suspended, self._handle, tag_number(tag))

    def is_address_suspended(self, address: int) -> bool:
        """Whether the memory of the live block that the address lies in is suspended. BadPointer: the
        address is in no live block."""
        return _suspend.is_away(lib.weir_allocator_is_address_suspended, self._handle, address)

    def suspend_stats(self, tag: Optional[str] = None) -> SuspendStats:
        """What is suspended, of the whole allocator or of one tag, and the host memory for its contents."""
        if tag is None:
            return _suspend.stats(lib.weir_allocator_get_suspend_stats, self._handle)
        return _suspend.stats(lib.weir_allocator_get_tag_suspend_stats, self._handle, tag_number(tag))

    def reserve_backup(self, nbytes: int, kind: str = "pinned") -> None:
        """Gets host memory for so much contents ahead: pinning takes about a second for 2 GiB."""
        _suspend.reserve_backup(self._handle, nbytes, kind)

    def trim_backup(self) -> int:
        """Returns host memory to the system, by whole segments of 32 MiB and more: those that hold no
        contents at all. Returns how much."""
        return _native.number(lib.weir_allocator_trim_backup, self._handle)

    # --- Parts ------------------------------------------------------------------------------------

    def pool(self, name: str, *, exportable: bool = False, suspendable: bool = False,
             source: Optional[MemorySource] = None, one_block: bool = False, **eviction: Any) -> "Pool":
        """Memory that is kept apart: what is freed to it is reused by it alone.

        source       an object with allocate() and deallocate() that the pool gets its segments from
        one_block    each of those segments is one block

        suspendable  it is going to be suspended: its memory comes in large pieces, which makes that quick.
                     With the options of declare_suspendable() it can be evictable, too.
        """
        return Pool(self, name, exportable=exportable, suspendable=suspendable, source=source, one_block=one_block,
                    **eviction)

    def growable(self, nbytes: Size, *, page: Size = 16 << 20, tag: str = "", name: str = "growable") -> "Growable":
        """Addresses whose pages are committed and decommitted as needed, with memory of this allocator.

        page  what is committed at a time: a power of two from 2 MiB to 1 GiB
        tag   what pages count as; by default the tag of the thread that commits
        """
        return Growable(self, nbytes, page=page, tag=tag, name=name)

    def capture(self, stream: Any) -> "Capture":
        """The memory of one graph; begin it before the capture of the stream begins."""
        return Capture(self, stream)

    def record(self, path: Union[str, "os.PathLike[str]"], **options: Any) -> "Recorder":
        """Records what happens to this allocator's memory, as a .weirtrace for `weir replay` and
        `weir report`. An existing file is kept (FileExistsError) unless `overwrite=True` is given."""
        return Recorder(self, path, **options)


class Reclaim(Owned, close="weir_callback_close"):
    """Keeps a callback of Allocator.on_out_of_memory() or before_growth() registered."""

    def __init__(self, allocator: Allocator, callback: Callable[[int], object], register: Any) -> None:
        self._callback: Optional[Callable[[int], object]] = callback
        # A call may have begun on another thread when the registration ends. So the library knows one function
        # that stays for good, and a number that is never used twice.
        self._number = next(_numbers)
        _reclaims[self._number] = self
        _callbacks.register(self)
        self._own(_native.new(register, allocator._handle, _reclaim, self._number))

    def _ask(self, needed: int) -> int:
        callback = self._callback
        try:
            return 0 if callback is None else int(bool(callback(needed)))
        except BaseException:  # nothing may pass through the library
            sys.excepthook(*sys.exc_info())
            return 0

    def close(self) -> None:
        """The callback is not asked any more; a call that had begun may still be running."""
        self._callback = None
        super().close()


_reclaims: "weakref.WeakValueDictionary[int, Reclaim]" = weakref.WeakValueDictionary()
_numbers = itertools.count(1)


def _called(number: int, needed: int) -> int:
    with _callbacks.under_way():
        registered = None if _callbacks.is_ending() else _reclaims.get(number)
        return 0 if registered is None else registered._ask(needed)


_reclaim = _native.types.known["weir_reclaim_callback"](_called)


class Pool(Owned, close="weir_pool_close"):
    """Memory of an allocator that is kept apart. Made by Allocator.pool().

    A with statement over use() sends what this thread asks of the allocator to the pool. When the pool
    is closed it takes no requests; its memory is released when its last block is freed.
    """

    def __init__(self, allocator: Allocator, name: str, *, exportable: bool = False,
                 suspendable: bool = False, source: Optional[MemorySource] = None, one_block: bool = False,
                 **eviction: Any) -> None:
        self.allocator = allocator
        self.name = name
        self._source: Optional[Source] = None
        if source is not None or one_block:
            if exportable or suspendable or eviction or source is None:
                raise ValueError("weir: one_block needs a source, and a pool with a source is not exportable or suspendable")
            self._source = Source(source)
            self._own(_native.new(lib.weir_pool_create_from_source, allocator._handle, _native.text(name),
                                  self._source.native(), int(one_block)))
            self._source.attach(self)
        elif suspendable or eviction:
            options = _suspend.suspendable_options(**eviction)
            self._own(_native.new(lib.weir_pool_create_suspendable, allocator._handle,
                                  _native.text(name), int(exportable), ctypes.byref(options)))
        else:
            self._own(_native.new(lib.weir_pool_create, allocator._handle, _native.text(name),
                                  int(exportable)))

    def close(self) -> None:
        """Ends the pool. Blocks that are live stay good; a source gets its memory back with the last one."""
        super().close()
        if self._source is not None:
            self._source.close()

    def _words(self) -> str:
        now = self.stats()
        return (f"{self.name!r} of device {self.allocator.device.number}, {now.blocks.current} blocks of "
                f"{now.requested.current} bytes")

    @property
    def id(self) -> int:
        """Its number, as in snapshots and events."""
        return _native.number(lib.weir_pool_get_id, self._handle, kind=ctypes.c_uint32)

    def allocate(self, nbytes: Size, stream: Any = None, *, alignment: int = 512) -> Block:
        """As Allocator.allocate(), from this pool."""
        size: int = nbytes  # type: ignore[assignment]
        if size.__class__ is not int or not 0 <= size < 1 << 64:
            size = as_bytes(nbytes)
        pointer = ctypes.c_void_p()
        try:
            with self.allocator._as_stream(stream) as known:
                lib.weir_pool_allocate(self._handle, size, alignment, known, ctypes.byref(pointer))
        except OutOfMemory as problem:
            raise self.allocator._with_report(problem, size, stream)
        return Block(self.allocator, pointer.value or 0, size, stream)

    def set_fallback(self, enabled: bool = True) -> None:
        """While enabled, a request to the allocator itself for which there is no new memory gets what this pool has
        free for its stream, before anything that is cached is released."""
        lib.weir_pool_set_fallback(self._handle, int(enabled))

    def stats(self) -> Stats:
        """Of this pool; exact, of one moment."""
        return ask(Stats, "weir_memory_stats", lib.weir_pool_get_stats, self._handle)

    def suspend(self, *, contents: str = "keep", to: str = "pinned", requests: str = "fail",
                chunk: Optional[int] = None, progress: Optional[Progress] = None,
                wait: bool = True, streams: str = "all") -> SuspendOutcome:
        """As Allocator.suspend(), of this pool."""
        options: Dict[str, Any] = dict(contents=contents, to=to, requests=requests, chunk=chunk, progress=progress,
                       streams=streams)
        if not wait:
            return _suspend.suspend_later(lib.weir_pool_suspend_async, self._handle, **options)
        return _suspend.suspend(lib.weir_pool_suspend, self._handle, **options)

    def resume(self, *, progress: Optional[Progress] = None, ahead_of: Any = None) -> ResumeOutcome:
        """As Allocator.resume(), of this pool."""
        try:
            if ahead_of is not None:
                with self.allocator._as_stream(ahead_of) as known:
                    return _suspend.resume_ahead(lib.weir_pool_resume_async, self._handle, known,
                                                 progress=progress)
            return _suspend.resume(lib.weir_pool_resume, self._handle, progress=progress)
        except OutOfMemory as problem:
            raise self.allocator._with_report(problem, self.suspend_stats().suspended, None)

    @contextlib.contextmanager
    def suspended(self, **options: Any) -> Iterator[SuspendOutcome]:
        """suspend() with these options, and resume() at the end of the block, whatever happens there."""
        outcome = self.suspend(**options)
        try:
            yield outcome
        finally:
            self.resume(progress=options.get("progress"))

    @property
    def is_suspended(self) -> bool:
        """Whether the memory of the pool is with the driver."""
        return _suspend.is_away(lib.weir_pool_is_suspended, self._handle)

    def suspend_stats(self) -> SuspendStats:
        """What is suspended of the pool, and the host memory for its contents."""
        return _suspend.stats(lib.weir_pool_get_suspend_stats, self._handle)

    @contextlib.contextmanager
    def use(self) -> Iterator["Pool"]:
        """What this thread asks of the allocator inside comes from the pool. Scopes nest."""
        lib.weir_pool_enter(self._handle)
        try:
            yield self
        finally:
            lib.weir_pool_leave()


class Capture(Owned, close="weir_capture_close"):
    """The memory of one captured graph, private to it. Made by Allocator.capture() before the capture
    begins; end() when it is over. The memory stays as long as this object, or a graph it was kept with.
    """

    def __init__(self, allocator: Allocator, stream: Any) -> None:
        self.allocator = allocator
        with allocator._as_stream(stream) as known:
            self._own(_native.new(lib.weir_capture_begin, allocator._handle, known))

    def _words(self) -> str:
        return f"of device {self.allocator.device.number}"

    def end(self) -> None:
        """Requests go their usual way again. Twice does no harm."""
        lib.weir_capture_end(self._handle)

    def tie_to_graph(self, graph: int) -> None:
        """Ties the memory to a CUgraph and every executable made of it from now on."""
        lib.weir_capture_tie_to_graph(self._handle, graph)


class Recorder(Owned, close="weir_recorder_close"):
    """Writes what happens to an allocator's memory to a file, while it happens.

    The file appears under its name when the recording is closed, at the end of a with statement or by
    stop().

    stacks: with the call stack of every allocation and free
    drop_when_full: drop events and count them, instead of waiting for the disk
    level: zstd's, 1 to 19; 0 stores uncompressed
    overwrite: replace an existing file; otherwise it raises FileExistsError
    """

    def __init__(self, allocator: Allocator, path: Union[str, "os.PathLike[str]"], *,
                 stacks: bool = False, drop_when_full: bool = False, level: int = 3,
                 ring_events: int = 0, flush_every: int = 0, program: str = "",
                 overwrite: bool = False) -> None:
        self.path = os.fspath(path)
        if not overwrite and os.path.lexists(self.path):
            raise FileExistsError(errno.EEXIST, "weir: the file exists; overwrite=True replaces it", self.path)
        options = structure("weir_recorder_options")()
        options.flags = ((1 if drop_when_full else 0) | (2 if stacks else 0) | (4 if level == 0 else 0))
        options.level, options.ring_events, options.flush_every = level, ring_events, flush_every
        options.program = _native.text(program) if program else None
        self._own(_native.new(lib.weir_recorder_start, allocator._handle, _native.text(self.path),
                              ctypes.byref(options)))

    def _words(self) -> str:
        return f"to {self.path!r}"

    stop = Owned.close

    def marker(self, text: str) -> None:
        """Puts a remark between the events."""
        lib.weir_recorder_marker(self._handle, _native.text(text))

    def flush(self) -> None:
        """Returns when everything received so far is in the file."""
        lib.weir_recorder_flush(self._handle)

    def stats(self) -> RecorderStats:
        """How many events are in the file, and how many were dropped."""
        return ask(RecorderStats, "weir_recorder_stats", lib.weir_recorder_get_stats, self._handle)


# --- Allocators of plug-ins -------------------------------------------------------------------------

_shared: Dict[Any, Allocator] = {}
# Recursive, as every lock here that is held while objects are made: a finalizer that the garbage collector runs
# there, on the same thread, may call weir.
_shared_lock = threading.RLock()


def process_allocator(device: int, options: str = "") -> Allocator:
    """For plug-ins: an allocator that lives as long as the process, the same for the same options. The
    process's own where there are none. Either way streams may end without notice."""
    with _shared_lock:
        key = (device, options)
        if key not in _shared:
            created = (Allocator(Runtime.default().device(device), allow_unreleased_streams(options))
                       if options else Allocator.default(device))
            _shared.setdefault(key, created)
        return _shared[key]


def allow_unreleased_streams(options: str) -> str:
    """The options, with heap_allow_unreleased_streams unless they or the environment say otherwise: other
    libraries destroy streams without a word, and the driver does not survive being asked about one."""
    if os.environ.get("WEIR_HEAP_ALLOW_UNRELEASED_STREAMS"):
        return options
    return "heap_allow_unreleased_streams=on" + ("," + options if options else "")


def plugin_options(policy: Optional[str], options: Options) -> str:
    """The options of a plug-in as text; `policy` is short for heap_policy."""
    return options_text(options, {"heap_policy": policy} if policy else None)
