# SPDX-License-Identifier: Apache-2.0
"""The driver's stream-ordered pools, and pools of whole blocks: pinned memory, plain device memory."""

import contextlib
import ctypes
from typing import Any, Callable, Dict, Iterable, Iterator, Optional, Set, Union

from . import _native
from ._allocator import NO_LIMIT
from ._block import Block, Memory
from ._errors import BadPointer, InvalidArgument, NotSupported
from ._machine import Device, Size, Stream, as_bytes, place_of
from ._native import lib, structure
from ._sources import MemorySource, Source
from ._stats import AccessRights, PoolStats, StreamPoolAttribute, StreamPoolStats, ask

_block_pool_free = _native.quiet("weir_block_pool_free")
_stream_close = _native.quiet("weir_stream_close")
_stream_pool_close = _native.quiet("weir_stream_pool_close")
_stream_pool_free = _native.quiet("weir_stream_pool_deallocate")


def known_stream(stream: Optional[Stream]) -> Any:
    """These pools take streams that weir knows, which can be distinguished from their successors."""
    if stream is None:
        return None
    if not isinstance(stream, Stream):
        raise TypeError(f"weir: stream must be a weir.Stream or None, got {type(stream).__name__}; weir.Stream.wrap() makes "
                        "one of any stream")
    return stream._handle


def _stream_pool_config(initial: int, maximum: int, threshold: Optional[int], shareable: bool,
                        reuse: Optional[Iterable[StreamPoolAttribute]]) -> Any:
    config = structure("weir_stream_pool_config")()
    allowed = set(_REUSE_RULES if reuse is None else reuse)
    config.flags = int(shareable) | sum(1 << rule for rule in _REUSE_RULES if rule not in allowed)
    config.initial, config.max = initial, maximum
    config.threshold = NO_LIMIT if threshold is None else threshold
    return config


class StreamPool(Memory):
    """A pool of the driver (cudaMemPool_t): what cudaMallocAsync uses, with its figures and limits.

    initial    reserved at once
    maximum    the most that is reserved; 0: what the device has
    threshold  what stays reserved unused when the host synchronises; None keeps everything
    shareable  the pool can be exported to other processes
    reuse      the rules by which memory freed on another stream is reused, as StreamPoolAttribute;
               None: all three
    """

    device: Device

    def __init__(self, device: Device, *, initial: int = 0, maximum: int = 0,
                 threshold: Optional[int] = None, shareable: bool = False,
                 reuse: Optional[Iterable[StreamPoolAttribute]] = None) -> None:
        config = _stream_pool_config(initial, maximum, threshold, shareable, reuse)
        self._open(device, lib.weir_stream_pool_create, ctypes.byref(config))

    @staticmethod
    def validate(*, initial: int = 0, maximum: int = 0, threshold: Optional[int] = None, shareable: bool = False,
                 reuse: Optional[Iterable[StreamPoolAttribute]] = None) -> None:
        """Raises weir.InvalidArgument if StreamPool() refuses these arguments on every device. Needs no driver."""
        config = _stream_pool_config(initial, maximum, threshold, shareable, reuse)
        lib.weir_stream_pool_config_validate(ctypes.byref(config))

    @classmethod
    def default(cls, device: Device) -> "StreamPool":
        """The device's own pool, which cudaMallocAsync uses, too. Closing it leaves the pool."""
        pool = cls.__new__(cls)
        pool._open(device, lib.weir_stream_pool_open_default)
        return pool

    @classmethod
    def import_descriptor(cls, device: Device, descriptor: int) -> "StreamPool":
        """The pool behind a descriptor of another process, which stays the caller's. It hands out nothing:
        only import_pointer() works."""
        pool = cls.__new__(cls)
        pool._open(device, lib.weir_stream_pool_import, descriptor)
        return pool

    def _open(self, device: Device, call: Callable[..., Any], *arguments: Any) -> None:
        self.device = device
        self._imported: Set[int] = set()  # addresses of another process's memory
        # By address: handles of the blocks' streams. The program may close its own before it frees the blocks,
        # and a garbage collection may finalize a stream before them.
        self._streams: Dict[int, int] = {}
        self._own(_native.new(call, *place_of(device), *arguments))

    @staticmethod
    def _close_quietly(handle: int, close: Callable[..., int] = _stream_pool_close) -> int:
        return close(handle, None)

    def _live(self) -> int:
        try:
            return self.stats().allocations.current
        except NotSupported:  # the pool of another process
            return len(self._imported)

    def _words(self) -> str:
        return f"of device {self.device.number}, {self._live()} blocks"

    @property
    def handle(self) -> int:
        """The CUmemoryPool, for code that speaks to the driver itself."""
        return _native.number(lib.weir_stream_pool_get_native, self._handle, kind=ctypes.c_void_p)

    # --- Memory ---------------------------------------------------------------------------------

    def allocate(self, nbytes: Size, stream: Optional[Stream] = None, *, alignment: int = 0) -> Block:
        """A block for work queued on `stream` from now on. An alignment of 0 is 256."""
        nbytes = as_bytes(nbytes)
        pointer = ctypes.c_void_p()
        with self._kept(stream, pointer) as known:
            lib.weir_stream_pool_allocate(self._handle, nbytes, alignment, known, ctypes.byref(pointer))
        return Block(self, pointer.value or 0, nbytes, stream)

    @contextlib.contextmanager
    def _kept(self, stream: Optional[Stream], pointer: Any) -> Iterator[Optional[int]]:
        """A handle of the stream for a call, and then for the block that the call writes to `pointer`."""
        known = known_stream(stream)
        if known is not None:
            known = _native.new(lib.weir_stream_duplicate, known)
        try:
            yield known
            if known is not None and pointer.value:
                self._streams[pointer.value], known = known, None
        finally:
            if known is not None:
                _stream_close(known)

    def record_stream(self, ptr: Union[int, Block], stream: Optional[Stream]) -> None:
        """Work queued on `stream` until the memory is freed may use it, too: the stream of the free then waits
        for it. Call it at any time before the free, outside captures."""
        lib.weir_stream_pool_record_stream(self._handle, int(ptr), known_stream(stream))

    def deallocate(self, ptr: int, stream: Optional[Stream] = None, *, size: Optional[int] = None) -> None:
        """Frees an address that Block.release() passed on. The stream may be any that has been made to wait
        for the work that used the memory; None is the legacy stream. With `size`, also checks that it is
        the one requested."""
        self._deallocate(ptr, known_stream(stream), size)

    def _deallocate(self, ptr: int, target: Optional[int], size: Optional[int] = None) -> None:
        # Taken out first: once the memory is freed another thread may be given some at the same address.
        own, is_imported = self._streams.pop(ptr, None), ptr in self._imported
        self._imported.discard(ptr)
        is_gone = True
        try:
            if size is None:
                lib.weir_stream_pool_deallocate(self._handle, ptr, target)
            else:
                lib.weir_stream_pool_deallocate_sized(self._handle, ptr, size, target)
        except BadPointer:
            raise
        except BaseException as problem:
            # A wrong size is an error, and the memory is freed all the same.
            is_gone = size is not None and isinstance(problem, InvalidArgument)
            raise
        finally:
            if not is_gone and is_imported:
                self._imported.add(ptr)
            if own is not None:
                if is_gone:
                    _stream_close(own)
                else:
                    self._streams[ptr] = own

    def _free(self, ptr: int, nbytes: int, stream: Any, own_stream: Any) -> None:
        self._deallocate(ptr, self._streams.get(ptr) if stream is None else known_stream(stream))

    def _free_quietly(self, ptr: int, nbytes: int, own_stream: Any,
                      free: Callable[..., int] = _stream_pool_free, close: Callable[..., int] = _stream_close) -> None:
        own = self._streams.pop(ptr, None)
        self._imported.discard(ptr)
        free(self._handle, ptr, own)
        if own is not None:
            close(own)

    # --- Attributes -----------------------------------------------------------------------------

    def attribute(self, attribute: StreamPoolAttribute) -> int:
        """Reuse rules are 0 or 1, the others bytes."""
        return _native.number(lib.weir_stream_pool_get_attribute, self._handle, int(attribute))

    def set_attribute(self, attribute: StreamPoolAttribute, value: int) -> None:
        """Flags are 0 or 1, the others bytes; peaks can be set to 0 only."""
        lib.weir_stream_pool_set_attribute(self._handle, int(attribute), value)

    @property
    def threshold(self) -> Optional[int]:
        """What stays reserved unused when the host synchronises; None is everything."""
        limit = self.attribute(StreamPoolAttribute.RELEASE_THRESHOLD)
        return None if limit == NO_LIMIT else limit

    @threshold.setter
    def threshold(self, limit: Optional[int]) -> None:
        self.set_attribute(StreamPoolAttribute.RELEASE_THRESHOLD, NO_LIMIT if limit is None else limit)

    def reuse(self, rule: StreamPoolAttribute) -> bool:
        """Whether memory freed on another stream is reused by this rule."""
        return bool(self.attribute(_reuse_rule(rule)))

    def set_reuse(self, rule: StreamPoolAttribute, allowed: bool = True) -> None:
        """Switches one of the three reuse attributes."""
        self.set_attribute(_reuse_rule(rule), int(allowed))

    def stats(self) -> StreamPoolStats:
        """The driver's figures of all users of the pool, and what was allocated here."""
        return ask(StreamPoolStats, "weir_stream_pool_stats", lib.weir_stream_pool_get_stats, self._handle)

    def reset_peaks(self) -> None:
        """Every peak becomes the current value."""
        lib.weir_stream_pool_reset_peaks(self._handle)

    def trim(self, keep: Size = 0) -> int:
        """Releases memory that nothing uses any more to the driver until at most `keep` bytes are reserved,
        in the driver's whole units; waits for nothing. Returns how much was released."""
        return _native.number(lib.weir_stream_pool_trim, self._handle, as_bytes(keep))

    # --- Other devices and processes --------------------------------------------------------------

    def set_peer(self, device: Device, on: bool = True) -> None:
        """Lets another device of the runtime use the pool's memory, or not."""
        lib.weir_stream_pool_set_peer(self._handle, device.number, int(on))

    def peer_access(self, device: Device) -> AccessRights:
        """What another device may do with the memory."""
        return AccessRights(_native.number(lib.weir_stream_pool_get_peer, self._handle, device.number,
                                           kind=ctypes.c_int32))

    def export_descriptor(self) -> int:
        """A file descriptor for import_descriptor() in another process; the caller closes it."""
        return _native.number(lib.weir_stream_pool_export, self._handle, kind=ctypes.c_int32)

    def export_pointer(self, block: Union[int, Block]) -> bytes:
        """A block in the driver's 64 opaque bytes, for import_pointer() in a process that imported the
        pool."""
        exported = (ctypes.c_uint8 * 64)()
        lib.weir_stream_pool_export_pointer(self._handle, int(block), exported)
        return bytes(exported)

    def import_pointer(self, exported: bytes, stream: Optional[Stream] = None) -> Block:
        """Memory of the exporter, to be freed before the exporter frees it."""
        if len(exported) != 64:
            raise ValueError(f"weir: an exported pointer must have 64 bytes, got {len(exported)}")
        pointer, size = ctypes.c_void_p(), ctypes.c_uint64()
        with self._kept(stream, pointer) as known:
            lib.weir_stream_pool_import_pointer(self._handle, (ctypes.c_uint8 * 64)(*exported), known,
                                                ctypes.byref(pointer), ctypes.byref(size))
        block = Block(self, pointer.value or 0, size.value, stream)
        self._imported.add(block.ptr)
        return block


_REUSE_RULES = (StreamPoolAttribute.REUSE_FOLLOW_EVENT_DEPENDENCIES, StreamPoolAttribute.REUSE_OPPORTUNISTIC,
                StreamPoolAttribute.REUSE_INTERNAL_DEPENDENCIES)


def _reuse_rule(rule: StreamPoolAttribute) -> StreamPoolAttribute:
    if rule not in _REUSE_RULES:
        raise ValueError(f"weir: unknown reuse rule {rule!r}")
    return rule


def _block_pool_options(threshold: Optional[Size], declared_uses: bool) -> Any:
    options = structure("weir_block_pool_options")()
    options.flags = 1 if declared_uses else 0
    options.threshold = NO_LIMIT if threshold is None else as_bytes(threshold)
    return options


class _BlockPool(Memory, close="weir_block_pool_close"):
    """Blocks by size that are cached when they are freed, at most `threshold` bytes of them."""

    _create: str
    _on_device: bool

    device: Device

    def __init__(self, device: Device, *, threshold: Optional[Size] = None, declared_uses: bool = False) -> None:
        """declared_uses: a freed block waits for its own and the recorded streams alone before it goes to another
        stream, and not for the work of all streams that weir knows."""
        self.device = device
        self._own(_native.new(getattr(lib, self._create), *place_of(device),
                              ctypes.byref(_block_pool_options(threshold, declared_uses))))

    @staticmethod
    def rounded_size(nbytes: Size) -> int:
        """The size of the block that a request of so many bytes gets."""
        return _native.number(lib.weir_block_pool_rounded_size, as_bytes(nbytes))

    @property
    def threshold(self) -> Optional[int]:
        """The most that is cached, in bytes; None: everything."""
        most = _native.number(lib.weir_block_pool_get_threshold, self._handle)
        return None if most == NO_LIMIT else most

    def _live(self) -> int:
        return self.stats().blocks.current

    def _words(self) -> str:
        now = self.stats()
        return f"of device {self.device.number}, {now.blocks.current} blocks of {now.requested.current} bytes"

    def allocate(self, nbytes: Size, stream: Optional[Stream] = None, *, alignment: int = 0) -> Block:
        """Memory that work queued on `stream` from now on may use."""
        nbytes = as_bytes(nbytes)
        pointer = ctypes.c_void_p()
        lib.weir_block_pool_allocate(self._handle, nbytes, alignment, known_stream(stream), ctypes.byref(pointer))
        return Block(self, pointer.value or 0, nbytes, stream, self._on_device)

    def record_stream(self, ptr: Any, stream: Stream) -> None:
        """Work queued on `stream` until the block is freed may use it, too."""
        lib.weir_block_pool_record_stream(self._handle, int(ptr), known_stream(stream))

    def release_stream(self, stream: Stream) -> None:
        """Needed before a stream is destroyed that weir did not create."""
        lib.weir_block_pool_release_stream(self._handle, known_stream(stream))

    def deallocate(self, ptr: int, stream: Optional[Stream] = None) -> None:
        """Frees an address that Block.release() passed on: on the stream it was allocated for, or on
        another."""
        if stream is None:
            lib.weir_block_pool_free(self._handle, ptr)
        else:
            lib.weir_block_pool_deallocate(self._handle, ptr, known_stream(stream))

    def _free(self, ptr: int, nbytes: int, stream: Any, own_stream: Any) -> None:
        self.deallocate(ptr, stream)

    def _free_quietly(self, ptr: int, nbytes: int, own_stream: Any,
                      free: Callable[..., int] = _block_pool_free) -> None:
        free(self._handle, ptr)

    def stats(self) -> PoolStats:
        """Counters of the pool."""
        return ask(PoolStats, "weir_block_pool_stats", lib.weir_block_pool_get_stats, self._handle)

    def reset_peaks(self) -> None:
        """Every peak becomes the current value."""
        lib.weir_block_pool_reset_peaks(self._handle)

    def reset_counters(self) -> None:
        """Every count becomes 0; what is live, cached and reserved stays."""
        lib.weir_block_pool_reset_counters(self._handle)

    def trim(self, keep: Size = 0) -> int:
        """Releases cached memory that nothing uses any more to the driver until at most `keep` bytes are
        reserved; waits for nothing. Returns how much was released."""
        return _native.number(lib.weir_block_pool_trim, self._handle, as_bytes(keep))

    def empty_cache(self) -> int:
        """The same for all that is cached, after waiting for the streams."""
        return _native.number(lib.weir_block_pool_empty_cache, self._handle)

    def set_threshold(self, most: Optional[Size]) -> None:
        """From now on at most so much is cached; None caches everything."""
        lib.weir_block_pool_set_threshold(self._handle, NO_LIMIT if most is None else as_bytes(most))


class PinnedPool(_BlockPool):
    """Pinned host memory, cached for reuse. What allocate() returns is used by nobody: the host may write
    it at once."""

    _create, _on_device = "weir_pinned_pool_create", False


class BinPool(_BlockPool):
    """Plain device memory by size, for drivers without pools of their own."""

    _create, _on_device = "weir_bin_pool_create", True
    _source: Optional[Source] = None

    def __init__(self, device: Device, *, threshold: Optional[Size] = None, declared_uses: bool = False,
                 source: Optional[MemorySource] = None) -> None:
        """declared_uses: as for PinnedPool. source: an object with allocate() and deallocate() that the pool gets its
        blocks from, in place of the driver."""
        if source is None:
            super().__init__(device, threshold=threshold, declared_uses=declared_uses)
            return
        self.device = device
        self._source = Source(source)
        self._own(_native.new(lib.weir_bin_pool_create_from_source, *place_of(device),
                              ctypes.byref(_block_pool_options(threshold, declared_uses)), self._source.native()))
        self._source.attach(self)

    def close(self) -> None:
        """Ends the pool. Blocks that are live stay good; a source gets its memory back with the last one."""
        super().close()
        if self._source is not None:
            self._source.close()
