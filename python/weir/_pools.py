"""The driver's stream-ordered pools, and pools of whole blocks: pinned memory, plain device memory."""

import ctypes
from typing import Any, Callable, Optional

from . import _native
from ._allocator import NO_LIMIT
from ._block import Block, Memory
from ._machine import Device, Stream
from ._native import lib, structure
from ._stats import PoolStats, StreamPoolUsage, ask

_free_quietly = _native.quiet("weir_block_pool_free")
_stream_pool_close = _native.quiet("weir_stream_pool_close")
_stream_pool_free = _native.quiet("weir_stream_pool_deallocate")


def _known(stream: Optional[Stream]) -> Any:
    """These pools take streams that weir knows, which can be told from their successors."""
    if stream is None:
        return None
    if not isinstance(stream, Stream):
        raise TypeError("weir: a weir.Stream is needed here; weir.Stream.wrap() makes one of any stream")
    return stream._handle


class StreamPool(Memory):
    """A pool of the driver (cudaMemPool_t): what cudaMallocAsync uses, with its figures and limits.

    initial    reserved at once
    maximum    the most that is reserved; 0: what the device has
    threshold  what stays reserved unused when the host synchronises; None keeps everything
    """

    def __init__(self, device: Device, *, initial: int = 0, maximum: int = 0,
                 threshold: Optional[int] = None, shareable: bool = False) -> None:
        config = structure("weir_stream_pool_config")()
        config.flags, config.initial, config.max = int(shareable), initial, maximum
        config.threshold = NO_LIMIT if threshold is None else threshold
        self.device = device
        self._own(_native.new(lib.weir_stream_pool_create, device.runtime._handle, device.number,
                              ctypes.byref(config)))

    @staticmethod
    def _close_quietly(handle: int, close: Callable[..., int] = _stream_pool_close) -> int:
        return close(handle, None)

    def _live(self) -> int:
        return self.usage().allocations.current

    @property
    def handle(self) -> int:
        """The CUmemoryPool, for code that speaks to the driver itself."""
        return _native.number(lib.weir_stream_pool_get_native, self._handle, kind=ctypes.c_void_p)

    def allocate(self, nbytes: int, stream: Optional[Stream] = None, *, alignment: int = 0) -> Block:
        if nbytes < 0:
            raise ValueError("weir: a negative size")
        made = ctypes.c_void_p()
        lib.weir_stream_pool_allocate(self._handle, nbytes, alignment, _known(stream), ctypes.byref(made))
        return Block(self, made.value or 0, nbytes, stream)

    def _give_back(self, ptr: int, nbytes: int, stream: Any, made_for: Any) -> None:
        lib.weir_stream_pool_deallocate(self._handle, ptr, nbytes, _known(stream or made_for))

    def _give_back_quietly(self, ptr: int, nbytes: int, made_for: Any,
                           free: Callable[..., int] = _stream_pool_free) -> None:
        free(self._handle, ptr, nbytes, made_for and made_for._handle)

    def usage(self) -> StreamPoolUsage:
        return ask(StreamPoolUsage, "weir_stream_pool_usage", lib.weir_stream_pool_get_usage, self._handle)

    def reset_peaks(self) -> None:
        lib.weir_stream_pool_reset_peaks(self._handle)

    def trim(self, keep: int = 0) -> int:
        """Gives unused memory back while at least `keep` stays reserved; how much went."""
        return _native.number(lib.weir_stream_pool_trim, self._handle, keep)


class _BlockPool(Memory, close="weir_block_pool_close"):
    """Blocks by size that are kept when they are freed, at most `threshold` bytes of them."""

    _create: str
    _on_device: bool

    def __init__(self, device: Device, *, threshold: Optional[int] = None) -> None:
        self.device = device
        self._own(_native.new(getattr(lib, self._create), device.runtime._handle, device.number,
                              NO_LIMIT if threshold is None else threshold))

    def _live(self) -> int:
        return self.stats().blocks.current

    def allocate(self, nbytes: int, stream: Optional[Stream] = None, *, alignment: int = 0) -> Block:
        if nbytes < 0:
            raise ValueError("weir: a negative size")
        made = ctypes.c_void_p()
        lib.weir_block_pool_allocate(self._handle, nbytes, alignment, _known(stream), ctypes.byref(made))
        return Block(self, made.value or 0, nbytes, stream, self._on_device)

    def record_stream(self, ptr: Any, stream: Stream) -> None:
        """Work queued on `stream` until the block is freed may use it, too."""
        lib.weir_block_pool_record_stream(self._handle, int(ptr), _known(stream))

    def release_stream(self, stream: Stream) -> None:
        """Needed before a stream is destroyed that weir did not create."""
        lib.weir_block_pool_release_stream(self._handle, _known(stream))

    def _give_back(self, ptr: int, nbytes: int, stream: Any, made_for: Any) -> None:
        if stream is None:
            lib.weir_block_pool_free(self._handle, ptr)
        else:
            lib.weir_block_pool_deallocate(self._handle, ptr, _known(stream))

    def _give_back_quietly(self, ptr: int, nbytes: int, made_for: Any,
                           free: Callable[..., int] = _free_quietly) -> None:
        free(self._handle, ptr)

    def stats(self) -> PoolStats:
        return ask(PoolStats, "weir_block_pool_stats", lib.weir_block_pool_get_stats, self._handle)

    def reset_peaks(self) -> None:
        lib.weir_block_pool_reset_peaks(self._handle)

    def trim(self, keep: int = 0) -> int:
        return _native.number(lib.weir_block_pool_trim, self._handle, keep)


class PinnedPool(_BlockPool):
    """Pinned host memory, kept for reuse. What allocate() returns is used by nobody: the host may write
    it at once."""

    _create, _on_device = "weir_pinned_pool_create", False


class BinPool(_BlockPool):
    """Plain device memory by size, for drivers without pools of their own."""

    _create, _on_device = "weir_bin_pool_create", True
