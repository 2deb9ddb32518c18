# SPDX-License-Identifier: Apache-2.0
"""Unified buffers, which host and devices share, and pools of buffers on all devices."""

import contextlib
import ctypes
from typing import Any, Callable, Dict, Iterator, Optional, Tuple, Union

from . import _native
from ._allocator import NO_LIMIT
from ._block import Block, Memory
from ._errors import Error
from ._machine import Device, Event, Owned, Size, Stream, as_bytes, place_of
from ._native import lib, structure
from ._pools import known_stream
from ._stats import Attachment, BufferPoolStats, ManagedInfo, ask
from ._views import CUDA_MANAGED, ArrayView, Shape

_ZEROED = 1
_DECLARED_USES = 1
_NOT_FOUND = 24
_NO_PLACE = -2**31

HOST = -1  #: the host, as a place of a UnifiedBuffer's pages

Place = Union[Device, int]

_close_buffer = _native.quiet("weir_buffer_close")


def host_node(number: int) -> int:
    """A node of the host's memory, as a place of a UnifiedBuffer's pages."""
    return -2 - number


def _place(place: Place) -> int:
    return place.number if isinstance(place, Device) else place


# --- Unified memory ---------------------------------------------------------------------------------


class UnifiedBuffer(Owned, close="weir_buffer_close"):
    """Memory that host and devices see at one address, each when it is safe.

        field = weir.UnifiedBuffer(device, 4096, stream)
        field.use_on(stream)
        launch(field.ptr, stream)
        with field.view() as view:                # waits for that stream
            view[0] = 7                           # until here devices are refused

    Work on a stream may use it after use_on(); the host may inside a with statement over view(). A
    place is a weir.Device, the number of one, weir.HOST or weir.host_node(n).

    zeroed      zeros, by a fill queued on the stream; otherwise undefined
    attachment  who may use it
    """

    def __init__(self, device: Device, nbytes: Size, stream: Optional[Stream] = None, *, zeroed: bool = True,
                 attachment: Attachment = Attachment.GLOBAL) -> None:
        self._create(lib.weir_buffer_create_managed, device, as_bytes(nbytes), _ZEROED if zeroed else 0,
                     int(attachment), known_stream(stream))

    @classmethod
    def copy_of(cls, device: Device, data: Any, stream: Optional[Stream] = None, *,
                attachment: Attachment = Attachment.GLOBAL) -> "UnifiedBuffer":
        """With the bytes of `data`, any object of Python's buffer protocol, copied before this returns."""
        source = memoryview(data).tobytes()
        buffer = cls.__new__(cls)
        buffer._create(lib.weir_buffer_create_managed_copy, device, source, len(source), int(attachment),
                       known_stream(stream))
        return buffer

    def _create(self, call: Callable[..., Any], device: Device, *arguments: Any) -> None:
        self.device = device
        self._views = 0
        self._own(_native.new(call, *place_of(device), *arguments))

    def _info(self) -> Any:
        info = structure("weir_buffer_info")()
        lib.weir_buffer_get_info(self._handle, ctypes.byref(info))
        return info

    @property
    def ptr(self) -> int:
        """The address, one for the host and the devices."""
        return self._info().data or 0

    @property
    def nbytes(self) -> int:
        """The size in bytes."""
        return int(self._info().size)

    def __len__(self) -> int:
        return self.nbytes

    def array(self, dtype: Any = "u1", shape: Shape = None) -> ArrayView:
        """The memory as an array for devices, after use_on(): cupy.asarray(buffer.array("float32")). For the host
        there is view()."""
        info = self._info()
        return ArrayView(self, info.data or 0, info.size, dtype, shape, device=(CUDA_MANAGED, self.device.number))

    def _words(self) -> str:
        return f"{self.nbytes} bytes at {self.ptr:#x}"

    def close(self) -> None:
        """Waits for the streams that use the memory and frees it. BufferError: a view is open."""
        if self._views:
            raise BufferError("weir: the host holds a view of the buffer; release the view first")
        super().close()

    # --- Who uses it ------------------------------------------------------------------------------

    def use_on(self, stream: Optional[Stream]) -> None:
        """Work that is queued on the stream next uses the buffer. Call it before each piece of work. weir.Error with the name not_ready: a
        view is open."""
        lib.weir_buffer_use_on(self._handle, known_stream(stream))

    @contextlib.contextmanager
    def view(self, *, after: Optional[Event] = None, wait: bool = True) -> Iterator[memoryview]:
        """The bytes for the host, after waiting for the streams of use_on(); meanwhile use_on(),
        prefetch(), attach() and resize() are refused. With `after`, waits only for that event, recorded
        behind all work on the buffer; with wait=False, not at all: weir.Error with the name not_ready if a
        stream has not finished. Arrays made of the view must not be used after it."""
        if after is not None:
            lib.weir_buffer_begin_host_after(self._handle, after._handle)
        elif wait:
            lib.weir_buffer_begin_host(self._handle)
        else:
            lib.weir_buffer_try_begin_host(self._handle)
        self._views += 1
        info = self._info()
        view = memoryview((ctypes.c_ubyte * info.size).from_address(info.data)).cast("B")
        try:
            yield view
        finally:
            with contextlib.suppress(BufferError):  # an array of it lives on
                view.release()
            self._views -= 1
            lib.weir_buffer_end_host(self._handle)

    def attach(self, attachment: Attachment, stream: Optional[Stream] = None) -> None:
        """Changes who may use the memory, in the stream's order; SINGLE gives it to that stream, which must
        not be the legacy one."""
        lib.weir_buffer_attach(self._handle, int(attachment), known_stream(stream))

    def resize(self, nbytes: Size, stream: Optional[Stream] = None) -> None:
        """Other memory: the old bytes as far as there are, then zeros. Waits for the streams that use the
        old memory; advice about it is lost."""
        lib.weir_buffer_resize_managed(self._handle, as_bytes(nbytes), known_stream(stream))

    # --- Placement: of `size` bytes from `offset` on; a size of 0 is up to the end ------------------

    def prefetch(self, place: Place, stream: Optional[Stream] = None, *, offset: int = 0,
                 size: int = 0) -> None:
        """Queues a move of the pages."""
        lib.weir_buffer_prefetch(self._handle, offset, size, _place(place), known_stream(stream))

    def advise_read_mostly(self, on: bool = True, *, offset: int = 0, size: int = 0) -> None:
        """Each reader gets a copy; a write ends all but the writer's."""
        lib.weir_buffer_advise_read_mostly(self._handle, offset, size, int(on))

    def advise_preferred(self, place: Optional[Place], *, offset: int = 0, size: int = 0) -> None:
        """Where pages should stay; None withdraws the advice."""
        lib.weir_buffer_advise_preferred(self._handle, offset, size,
                                         _NO_PLACE if place is None else _place(place))

    def advise_accessed_by(self, place: Place, on: bool = True, *, offset: int = 0, size: int = 0) -> None:
        """Accesses from there reach the pages without moving them."""
        lib.weir_buffer_advise_accessed_by(self._handle, offset, size, _place(place), int(on))

    def info(self, *, offset: int = 0, size: int = 0) -> ManagedInfo:
        """The driver's record of the range."""
        read = structure("weir_managed_info")()
        lib.weir_buffer_get_managed_info(self._handle, offset, size, ctypes.byref(read))

        def optional(place: int) -> Optional[int]:
            return None if place == _NO_PLACE else place

        count = min(read.accessed_by_count, len(read.accessed_by))
        return ManagedInfo(Attachment(read.attachment), bool(read.read_mostly), optional(read.preferred),
                           tuple(read.accessed_by[:count]), optional(read.last_prefetch))

    @property
    def __cuda_array_interface__(self) -> Dict[str, Any]:
        info = self._info()
        return {"shape": (info.size,), "typestr": "|u1", "data": (info.data, False), "version": 3,
                "strides": None}


# --- Buffer pools -----------------------------------------------------------------------------------


def _foreign_address() -> ValueError:
    return ValueError("weir: the address is not that of a buffer taken from this pool")


class BufferPool(Memory, close="weir_buffer_pool_close"):
    """Plain device memory on all devices, cached by device and rounded size, up to bounds.

    max_cached     the most bytes that are cached on each device; None: all
    max_idle_time  how many seconds an unused buffer is cached; None: for good
    declared_uses  a freed buffer waits for its own and the recorded streams alone before it goes to another
                   stream, and not for the work of all streams that weir knows

    Buffers that are taken stay valid when the pool is closed.
    """

    def __init__(self, *, max_cached: Optional[int] = None, max_idle_time: Optional[float] = None,
                 declared_uses: bool = False) -> None:
        options = structure("weir_buffer_pool_options")()
        options.flags = _DECLARED_USES if declared_uses else 0
        options.max_cached = NO_LIMIT if max_cached is None else max_cached
        if max_idle_time is not None and max_idle_time < 0:
            raise ValueError(f"weir: max_idle_time must not be negative, got {max_idle_time}")
        options.max_idle_time = NO_LIMIT if max_idle_time is None else int(max_idle_time * 1e9)
        self._buffers: Dict[int, int] = {}  # handles by address
        self._own(_native.new(lib.weir_buffer_pool_create, ctypes.byref(options)))

    def _live(self) -> int:
        return len(self._buffers)

    def _words(self) -> str:
        return f"with {len(self._buffers)} buffers taken"

    def take(self, nbytes: Size, stream: Stream, *, zeroed: bool = False) -> Block:
        """A buffer for work queued on the stream from now on, on the stream's device."""
        nbytes = as_bytes(nbytes)
        return self._block(_native.new(lib.weir_buffer_pool_take, self._handle, nbytes,
                                       _ZEROED if zeroed else 0, known_stream(stream)), nbytes, stream)

    def take_cached(self, nbytes: Size, stream: Stream, *, zeroed: bool = False) -> Optional[Block]:
        """The same, but only if a cached buffer is known to be free for the stream; None if none is."""
        nbytes = as_bytes(nbytes)
        try:
            buffer = _native.new(lib.weir_buffer_pool_take_cached, self._handle, nbytes,
                                 _ZEROED if zeroed else 0, known_stream(stream))
        except Error as problem:
            if problem.code == _NOT_FOUND:
                return None
            raise
        return self._block(buffer, nbytes, stream)

    def _block(self, buffer: int, nbytes: int, stream: Stream) -> Block:
        info = structure("weir_buffer_info")()
        lib.weir_buffer_get_info(buffer, ctypes.byref(info))
        self._buffers[info.data] = buffer
        return Block(self, info.data, nbytes, stream)

    def _buffer(self, ptr: int) -> int:
        buffer = self._buffers.get(ptr)
        if buffer is None:
            raise _foreign_address()
        return buffer

    def record_stream(self, ptr: Union[int, Block], stream: Optional[Stream]) -> None:
        """Work queued on `stream` until the buffer is freed may use it, too."""
        lib.weir_buffer_record_stream(self._buffer(int(ptr)), known_stream(stream))

    def deallocate(self, ptr: int, stream: Optional[Stream] = None) -> None:
        """Frees an address that Block.release() passed on: on the stream it was taken for, or on another,
        which has been made to wait for the work that used it."""
        target = known_stream(stream)
        # Taken out first: once the buffer is freed another thread may be given one at the same address.
        buffer = self._buffers.pop(ptr, None)
        if buffer is None:
            raise _foreign_address()
        if target is None:
            lib.weir_buffer_close(buffer)  # closed whatever the outcome is
            return
        try:
            lib.weir_buffer_pool_free(self._handle, buffer, target)
        except BaseException:
            self._buffers[ptr] = buffer
            raise

    def _free(self, ptr: int, nbytes: int, stream: Any, own_stream: Any) -> None:
        self.deallocate(ptr, stream)

    def _free_quietly(self, ptr: int, nbytes: int, own_stream: Any,
                      close: Callable[..., int] = _close_buffer) -> None:
        buffer = self._buffers.pop(ptr, None)
        if buffer is not None:
            close(buffer)

    # --- Of one device, or of all together ----------------------------------------------------------

    @staticmethod
    def _about(device: Optional[Device]) -> Tuple[Optional[int], int]:
        return (None, 0) if device is None else place_of(device)

    def stats(self, device: Optional[Device] = None) -> BufferPoolStats:
        """Of one device, or of all together."""
        return ask(BufferPoolStats, "weir_buffer_pool_stats", lib.weir_buffer_pool_get_stats, self._handle,
                   *self._about(device))

    def reset_peaks(self, device: Optional[Device] = None) -> None:
        """Every peak becomes the current value."""
        lib.weir_buffer_pool_reset_peaks(self._handle, *self._about(device))

    def reset_counters(self, device: Optional[Device] = None) -> None:
        """Hits, misses and returns become 0."""
        lib.weir_buffer_pool_reset_counters(self._handle, *self._about(device))

    def trim(self, keep: int = 0, device: Optional[Device] = None) -> int:
        """Releases cached memory that nothing uses any more to the driver until at most `keep` bytes are
        reserved on the device, or on each, and what is over the bounds in any case; waits for nothing.
        Returns how much was released."""
        return _native.number(lib.weir_buffer_pool_trim, self._handle, *self._about(device), keep)

    def empty_cache(self, device: Optional[Device] = None) -> int:
        """The same for all that is cached, after waiting for the streams."""
        return _native.number(lib.weir_buffer_pool_empty_cache, self._handle, *self._about(device))
