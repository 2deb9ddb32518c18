# SPDX-License-Identifier: Apache-2.0
"""Memory from anywhere: an object of the program below a pool, in place of the driver."""

import contextlib
import ctypes
import gc
import itertools
import sys
import threading
import weakref
from typing import Any, Dict, Iterator, Optional, Protocol

from . import _callbacks, _native
from ._native import structure


class MemorySource(Protocol):
    """What a pool asks for memory: `BinPool(device, source=...)` and `Allocator.pool(name, source=...)`.

    Called from any thread, with the device's context current. A pool of an allocator calls it with the allocator's
    lock held: it must not use that allocator, nor wait for a thread that may.
    """

    def allocate(self, nbytes: int, stream: int) -> int:
        """The address of so many bytes on the pool's device that nothing uses any more, aligned to 512. `stream` is the
        CUstream of the request. MemoryError: there are none now."""
        ...

    def deallocate(self, address: int, nbytes: int) -> None:
        """Takes back what allocate() returned; no work uses it any more."""
        ...


def _codes() -> Dict[str, int]:
    return {_native.lib.weir_error_name(code).decode(): code for code in range(1, 64)}


_code = _codes()
_sources: Dict[int, "Source"] = {}
_numbers = itertools.count(1)
_lock = threading.RLock()
_running = 0
_collects = False


@contextlib.contextmanager
def _without_collection() -> Iterator[None]:
    """A garbage collection on this thread could free a block of the allocator whose lock is held."""
    global _running, _collects
    with _lock:
        if not _running:
            _collects = gc.isenabled()
            gc.disable()
        _running += 1
    try:
        yield
    finally:
        with _lock:
            _running -= 1
            if not _running and _collects:
                gc.enable()


class Source:
    """A source of the program for one pool. Known to the library by number until the pool is closed and has given back
    all that it got."""

    def __init__(self, source: MemorySource) -> None:
        for name in ("allocate", "deallocate"):
            if not callable(getattr(source, name, None)):
                raise TypeError(f"weir: source: expected an object with allocate() and deallocate(), got {source!r}")
        self._source: MemorySource = source
        self._live = 0
        self._is_closed = False
        self._number = next(_numbers)
        _sources[self._number] = self

    def native(self) -> Any:
        """As calls of weir.h take it."""
        source = structure("weir_memory_source")()
        source.context, source.allocate, source.deallocate = self._number, _allocate, _deallocate
        return ctypes.byref(source)

    def attach(self, pool: Any) -> None:
        """Ends with the pool: when that is closed or forgotten, and before the interpreter ends."""
        weakref.finalize(pool, self.close).atexit = False
        _callbacks.register(pool)

    def close(self) -> None:
        """The pool asks for nothing more."""
        self._is_closed = True
        self._forget()

    def _forget(self) -> None:
        if self._is_closed and not self._live:
            _sources.pop(self._number, None)

    def allocate(self, size: int, stream: Optional[int]) -> int:
        """For the library."""
        address = int(self._source.allocate(size, stream or 0))
        self._live += 1
        return address

    def deallocate(self, address: int, size: int) -> None:
        """For the library."""
        self._source.deallocate(address, size)
        self._live -= 1
        self._forget()


def _outcome_of(problem: BaseException) -> int:
    """The code of an exception, which may not pass through the library."""
    if isinstance(problem, MemoryError):
        return _code["out_of_memory"]
    sys.excepthook(type(problem), problem, problem.__traceback__)
    return _code["driver_error"]


def _called_allocate(number: int, size: int, stream: Optional[int], memory: Any) -> int:
    with _callbacks.under_way(), _without_collection():
        source = None if _callbacks.is_ending() else _sources.get(number)
        if source is None:
            return _code["closed"]
        try:
            memory[0] = source.allocate(size, stream)
            return 0
        except BaseException as problem:
            return _outcome_of(problem)


def _called_deallocate(number: int, address: int, size: int) -> int:
    with _callbacks.under_way(), _without_collection():
        source = _sources.get(number)
        if source is None:
            return _code["closed"]
        try:
            source.deallocate(address, size)
            return 0
        except BaseException as problem:
            return _outcome_of(problem)


_allocate = _native.types.known["weir_source_allocate"](_called_allocate)
_deallocate = _native.types.known["weir_source_deallocate"](_called_deallocate)
