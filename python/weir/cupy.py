# SPDX-License-Identifier: Apache-2.0
"""CuPy on weir.

    import weir.cupy
    weir.cupy.enable()

From then on CuPy's device memory comes from weir's caching allocator, in the order of CuPy's current
stream, and its pinned memory from weir's pinned pool. docs/cupy.md is the guide.

Everything made here lives as long as the process: arrays may be freed at any time, by any thread, even
while the interpreter goes down.
"""

import collections
import ctypes
import gc
import threading
from typing import Any, Callable, Dict, List, Optional, Set, Tuple

from . import _native
from ._allocator import Allocator, plugin_options, process_allocator
from ._errors import Error, OutOfMemory
from ._machine import Device, Options, Runtime, Stream, native_stream, place_of
from ._native import lib
from ._pools import PinnedPool, StreamPool
from ._report import allocator_report
from ._stats import PoolStats, Stats

_LEGACY, _PER_THREAD = (0, 1), 2
_BY_HAND = 0  # no handle: watch_stream() as the user of a watch
# How many of CuPy's streams are remembered, so that their allocations need not ask the driver who they
# are. One that is forgotten, and that no array needs, is given up by weir and may be destroyed.
_REMEMBERED_STREAMS = 64

# --- Streams ----------------------------------------------------------------------------------------

_watch_stream = _native.quiet("weir_watch_stream")
_unwatch_stream = _native.quiet("weir_unwatch_stream")
_close_stream = _native.quiet("weir_stream_close")
_free = _native.quiet("weir_allocator_free")


class _Watches:
    """Who needs weir to watch which stream: allocators' streams and watch_stream(). The last one ends it.

    No locks, as in _Stream: who comes says so and watches; who leaves says so, looks who is there, ends the watch,
    and looks again.
    """

    def __init__(self) -> None:
        self.users: Set[Tuple[int, int]] = set()  # CUstream and user

    def begin(self, native: int, user: int, handle: int) -> int:
        self.users.add((native, user))
        return self.watch(handle)

    def end(self, native: int, user: int, handle: int) -> None:
        self.users.discard((native, user))
        if self.is_watched(native):
            return
        self.unwatch(handle)
        if self.is_watched(native):
            self.watch(handle)

    def is_watched(self, native: int) -> bool:
        return any(each == native for each, _ in self.users.copy())

    watch = staticmethod(_watch_stream)
    unwatch = staticmethod(_unwatch_stream)


_watches = _Watches()


class _Stream:
    """weir's handle of a CuPy stream, and the stream.

    Whoever destroys a stream that weir may still ask the driver about ends the process. So the stream is
    kept, out of reach of the garbage collector, as long as it is remembered or has users; then weir lets go
    of it, and CuPy may destroy it. Meanwhile weir watches it, so that it can be asked at any time.

    No locks: finalizers run in the middle of anything. Single calls of sets and dictionaries are atomic,
    and whoever takes the stream, and whoever lets it go, first says so and then looks at the other.
    """

    __slots__ = ("handle", "native", "stream", "remembered", "users", "watched")

    def __init__(self, handle: int, stream: Any) -> None:
        self.handle, self.native, self.stream = handle, stream.ptr, stream
        self.remembered, self.watched = True, False
        self.users: Set[int] = set()
        self.kept[handle] = self

    def begin(self) -> None:
        """Of several for the same stream, one is it."""
        self.watched = True
        self.watches.begin(self.native, self.handle, self.handle)

    def take(self, user: int) -> bool:
        """Whether the stream stays until leave(user); if not, weir has let go of it already."""
        self.users.add(user)
        return self.handle in self.kept

    def leave(self, user: int) -> None:
        self.users.discard(user)
        self._let_go_if_unused()

    def forget(self) -> None:
        self.remembered = False
        self._let_go_if_unused()

    def _let_go_if_unused(self) -> None:
        while not self.remembered and not self.users:
            if self.kept.pop(self.handle, None) is None:
                return
            if self.users:  # somebody came while we left, and may have left again: look once more
                self.kept[self.handle] = self
                continue
            if self.watched:
                self.watches.end(self.native, self.handle, self.handle)
            self.close(self.handle)
            self.stream = None
            return

    # Of the class: at the end of the process the module may be empty.
    kept: Dict[int, "_Stream"] = {}
    watches = _watches
    close = staticmethod(_close_stream)


class _Memory:
    """An allocator and the streams that it met."""

    def __init__(self, device: int, options: str) -> None:
        self.allocator = process_allocator(device, options)
        self._streams: "collections.OrderedDict[int, _Stream]" = collections.OrderedDict()
        self._lock = threading.RLock()

    def take_stream(self, stream: Any, user: int) -> Optional[_Stream]:
        """weir's handle of a stream of CuPy's own, for the user to leave; None if it cannot have one."""
        while True:
            # It is kept alive, so no other object has this id.
            known = self._streams.get(id(stream)) or self._meet(stream)
            if known is None or known.take(user):
                return known
            known.leave(user)

    def _meet(self, stream: Any) -> Optional[_Stream]:
        import cupy
        if type(stream) is not cupy.cuda.Stream:
            return None  # an ExternalStream lives and dies without our knowing
        device = self.allocator.device
        try:
            handle = _native.new(lib.weir_stream_wrap, *place_of(device), stream.ptr)
        except Error:
            return None  # it is being captured; next time
        entry = _Stream(handle, stream)
        forgotten = []
        with self._lock:
            known = self._streams.setdefault(id(stream), entry)
            if known is entry:
                entry.begin()
            else:  # another thread was quicker
                forgotten.append(entry)
            while len(self._streams) > _REMEMBERED_STREAMS:
                forgotten.append(self._streams.popitem(last=False)[1])
        for each in forgotten:
            each.forget()
        return known

    def forget_stream(self, stream: Any) -> None:
        with self._lock:
            known = self._streams.pop(id(stream), None)
        if known is not None:
            known.forget()


# --- Memory -----------------------------------------------------------------------------------------


class _Owner:
    """Owns the memory of an array: freed, on the stream it was allocated for, when CuPy forgets it. A user
    of its stream."""

    __slots__ = ("ptr", "allocator", "process", "stream", "__weakref__")

    def __init__(self, allocator: int) -> None:
        self.ptr, self.allocator, self.process = 0, allocator, _native.process()
        self.stream: Optional[_Stream] = None

    # The defaults are bound now: at the end of the process the module may be empty.
    def __del__(self, free: Callable[..., int] = _free,
                process: Callable[[], int] = _native.process) -> None:
        if self.process != process():
            return
        if self.ptr:
            free(self.allocator, self.ptr)
        if self.stream is not None:
            self.stream.leave(id(self))


class _Pinned:
    """What CuPy expects of pinned memory: an address and a size. Owns a block."""

    __slots__ = ("ptr", "size", "_block")

    def __init__(self, block: Any, size: int) -> None:
        self.ptr, self.size, self._block = block.ptr if block else 0, size, block

    def __int__(self) -> int:
        return self.ptr


class _State:
    """What enable() set up."""

    def __init__(self, options: str) -> None:
        self.options = options
        self.memories: Dict[int, _Memory] = {}
        self.pinned: Optional[PinnedPool] = None
        self.lock = threading.RLock()

    def memory(self, device: int) -> _Memory:
        memory = self.memories.get(device)
        if memory is None:
            with self.lock:
                memory = self.memories.setdefault(device, _Memory(device, self.options))
        return memory

    def pinned_pool(self) -> PinnedPool:
        with self.lock:
            if self.pinned is None:
                created = PinnedPool(Device(Runtime.default(), 0))
                self.pinned = self.pinned or created
            return self.pinned


_state: Optional[_State] = None   # of the last enable(); stays after disable()
_states: Dict[str, _State] = {}   # by options: enabling again finds the same memory
_before: Any = None               # CuPy's allocator before enable(); None: not enabled
_pinned_too = False
_stream_pools: List[StreamPool] = []
_watched: Dict[int, Stream] = {}  # by CUstream; of watch_stream()
_lock = threading.RLock()


def malloc(size: int) -> Any:
    """CuPy's allocator function: cupy.cuda.using_allocator(weir.cupy.malloc) uses weir in one place."""
    import cupy
    cuda = cupy.cuda
    device = cuda.runtime.getDevice()
    if size <= 0:
        return cuda.MemoryPointer(cuda.UnownedMemory(0, 0, None, device), 0)
    memory = _current_state().memory(device)
    stream = cuda.get_current_stream(device)
    try:
        owner = _allocate(memory, size, stream)
    except OutOfMemory:
        gc.collect()  # arrays in cycles
        try:
            owner = _allocate(memory, size, stream)
        except OutOfMemory as problem:
            memory.allocator._with_report(problem, size, stream)
            raise _cupy_error(problem, size, memory.allocator) from None
    return cuda.MemoryPointer(cuda.UnownedMemory(owner.ptr, size, owner, device), 0)


def _allocate(memory: _Memory, size: int, stream: Any) -> _Owner:
    pointer, native = ctypes.c_void_p(), stream.ptr
    owner = _Owner(memory.allocator._handle)
    if native in _LEGACY:
        lib.weir_allocator_allocate(owner.allocator, size, None, ctypes.byref(pointer))
    else:
        if native != _PER_THREAD:
            owner.stream = memory.take_stream(stream, id(owner))
        if owner.stream is not None:
            lib.weir_allocator_allocate(owner.allocator, size, owner.stream.handle, ctypes.byref(pointer))
        else:
            lib.weir_allocator_allocate_native(owner.allocator, size, native, ctypes.byref(pointer))
    owner.ptr = pointer.value or 0
    return owner


def pinned_malloc(size: int) -> Any:
    """CuPy's allocator function for pinned memory."""
    import cupy
    if size <= 0:
        return cupy.cuda.PinnedMemoryPointer(_Pinned(None, 0), 0)
    pool = _current_state().pinned_pool()
    try:
        block = pool.allocate(size)
    except OutOfMemory:
        gc.collect()
        block = pool.allocate(size)
    return cupy.cuda.PinnedMemoryPointer(_Pinned(block, size), 0)


def _cupy_error(problem: OutOfMemory, size: int, allocator: Allocator) -> OutOfMemory:
    """The same error, also for those who catch CuPy's."""
    import cupy
    theirs = getattr(getattr(cupy.cuda, "memory", None), "OutOfMemoryError", None)
    if theirs is None:
        return problem

    class OutOfMemoryError(type(problem), theirs):  # type: ignore[misc,valid-type]
        """weir.OutOfMemory and cupy.cuda.memory.OutOfMemoryError in one."""

        # CuPy's would make a message of its own.
        def __init__(self, *arguments: Any) -> None:
            type(problem).__init__(self, *arguments)
            self._size, self._total, self._limit = size, allocator.stats().allocated.current, 0

        def __reduce__(self) -> Any:  # as weir's, which other processes can make again
            return problem.__reduce__()

    made = OutOfMemoryError(str(problem), problem.code, problem.name, problem.native)
    made.report = problem.report
    return made


# --- On and off -------------------------------------------------------------------------------------


def enable(policy: Optional[str] = None, options: Options = None, *, pinned: bool = True) -> None:
    """Makes CuPy take its memory from weir, in all threads.

    policy   how memory is placed: "balanced" (the default), "throughput", "compact", "never_move",
             "classic", "classic_expandable"; docs/tuning.md compares them
    options  further options (docs/options.md), as text or a mapping: "heap_limit=8GiB"
    pinned   pinned memory, too

    Arrays that exist stay where they are. Calling it again with other options makes the allocator for
    arrays from then on; with the same options it is the same allocator.
    """
    import cupy
    global _state, _before, _pinned_too
    # CuPy does not say when it captures a graph, whose memory must stay, so weir asks the driver.
    text = plugin_options(policy, options)
    text = "heap_detect_captures=on" + ("," + text if text else "")
    with _lock:
        state = _states.get(text) or _State(text)
        state.memory(cupy.cuda.runtime.getDevice())  # so that what is wrong is said here
        _states[text] = _state = state
        if _before is None:
            _before = cupy.cuda.get_allocator()
        cupy.cuda.set_allocator(malloc)
        if pinned:
            cupy.cuda.set_pinned_memory_allocator(pinned_malloc)
            _pinned_too = True


def disable() -> None:
    """Restores the allocator CuPy had, and its own pool for pinned memory. Arrays that exist stay
    on weir. Does nothing if weir is not enabled."""
    import cupy
    global _before, _pinned_too
    with _lock:
        if _before is None:
            return
        cupy.cuda.set_allocator(_before)
        _before = None
        if _pinned_too:
            cupy.cuda.set_pinned_memory_allocator(cupy.get_default_pinned_memory_pool().malloc)
            _pinned_too = False


def is_enabled() -> bool:
    """Whether enable() made weir CuPy's allocator."""
    return _before is not None


def _current_state() -> _State:
    global _state
    if _state is None:
        with _lock:
            if _state is None:
                text = "heap_detect_captures=on"
                _states[text] = _state = _State(text)
    return _state


# --- Looking ----------------------------------------------------------------------------------------


def _device(device: Optional[int]) -> int:
    if device is not None:
        return device
    import cupy
    return cupy.cuda.runtime.getDevice()


def allocator(device: Optional[int] = None) -> Allocator:
    """The allocator under CuPy, for limits, tags, recordings, snapshots; of CuPy's current device if
    none is named. It cannot be closed."""
    return _current_state().memory(_device(device)).allocator


def stats(device: Optional[int] = None) -> Stats:
    """What CuPy's arrays take; docs/stats.md explains each number."""
    return allocator(device).stats()


def pinned_stats() -> PoolStats:
    """What CuPy's pinned memory takes."""
    return _current_state().pinned_pool().stats()


def report(device: Optional[int] = None) -> str:
    """The same for people: who holds the memory, what it costs, how it was served."""
    return allocator_report(allocator(device), "CuPy")


def empty_cache(device: Optional[int] = None) -> int:
    """Releases what is not in use to the driver, after waiting for the streams; returns how many bytes."""
    return allocator(device).empty_cache()


def _device_of(stream: Any) -> int:
    """CuPy's current device for a stream that does not know its own."""
    device = getattr(stream, "device_id", -1)
    return _device(None) if device < 0 else device


def watch_stream(stream: Any) -> None:
    """For a stream on which arrays are used and none is made: weir counts its work, too, before memory that
    was freed leaves its stream. The stream is kept until release_stream(). Streams that arrays were made on
    count without this."""
    known = Stream.wrap(_current_state().memory(_device_of(stream)).allocator.device, stream)
    native = native_stream(stream)
    with _lock:
        before = _watched.get(native)
        code = _watches.begin(native, _BY_HAND, known._handle)
        if code:
            if before is None:
                _watches.users.discard((native, _BY_HAND))
            raise _native.last_error(code)
        _watched[native] = known


def release_stream(stream: Any) -> None:
    """Before a stream is destroyed that watch_stream() was told of, or that CuPy does not own
    (cupy.cuda.ExternalStream) and that allocated memory here: weir lets go of it. CuPy's own streams need no
    such call otherwise. One that nobody tells of costs no more than memory that changes streams later."""
    native, device = native_stream(stream), _device_of(stream)
    with _lock:
        watched = _watched.pop(native, None)
        states = list(_states.values())
    if watched is not None:
        _watches.end(native, _BY_HAND, watched._handle)
        watched.close()
    for memory in [each for state in states for each in list(state.memories.values())]:
        memory.forget_stream(stream)
        if native in (*_LEGACY, _PER_THREAD):
            continue
        try:
            memory.allocator.release_stream(native)
        except Error as problem:
            if problem.name != "bad_stream" or memory.allocator.device.number == device:
                raise  # otherwise it is a stream of another device


# --- The driver's pool ------------------------------------------------------------------------------


def stream_pool(*, initial: int = 0, maximum: int = 0, threshold: Optional[int] = None) -> Any:
    """A cupy.cuda.MemoryAsyncPool on driver pools that weir made and configured, one a device:

        cupy.cuda.set_allocator(weir.cupy.stream_pool(maximum=8 << 30).malloc)

    initial    reserved at once, on each device
    maximum    the most that is reserved; 0: what the device has
    threshold  what stays reserved when the host synchronises; None keeps everything

    The pools live as long as the process. CuPy makes them the devices' current pools (cudaMallocAsync).
    """
    import cupy
    pools = [StreamPool(Device(Runtime.default(), number), initial=initial, maximum=maximum,
                        threshold=threshold) for number in range(cupy.cuda.runtime.getDeviceCount())]
    _stream_pools.extend(pools)
    return cupy.cuda.MemoryAsyncPool([pool.handle for pool in pools])
