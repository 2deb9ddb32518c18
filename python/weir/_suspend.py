# SPDX-License-Identifier: Apache-2.0
"""Suspended memory: what Allocator and Pool take and answer for it. docs/suspend.md is the guide."""

import ctypes
import sys
from dataclasses import dataclass
from typing import Any, Callable, Optional, Sequence

from . import _callbacks, _native
from ._native import lib, structure
from ._stats import Gauge, ask

# In the order of their numbers in weir.h.
CONTENTS = ("keep", "discard")
STREAMS = ("all", "known")
KINDS = ("pinned", "pageable")
REQUESTS = ("fail", "wait", "resume")

#: Called with the bytes of contents that have arrived, and with all that are copied.
Progress = Callable[[int, int], Any]


@dataclass(frozen=True)
class SuspendOutcome:
    """What suspending did, in bytes. All 0: it was suspended already, or had nothing."""

    released: int = 0       #: physical memory that went back to the driver, and is free now
    saved: int = 0          #: contents that were copied to the host
    not_suspended: int = 0  #: physical memory of pools that cannot be; only where all were meant


@dataclass(frozen=True)
class ResumeOutcome:
    """What resuming did, in bytes. All 0: it was not suspended."""

    reserved: int = 0  #: physical memory that was taken from the driver
    restored: int = 0  #: contents that were copied back


@dataclass(frozen=True)
class SuspendStats:
    """Beside Stats; sizes in bytes. active <= reserved_and_suspended, of current values and of peaks."""

    suspended: int = 0       #: physical memory that went back to the driver, and that resume() takes
    backup: Gauge = Gauge()  #: host memory held for contents, in use or not; of a tag or pool, the contents
    reserved_and_suspended: Gauge = Gauge()  #: reserved + suspended


def number_of(value: str, choices: Sequence[str], name: str) -> int:
    if value not in choices:
        raise ValueError(f"weir: {name}: expected one of {', '.join(map(repr, choices))}, got {value!r}")
    return choices.index(value)


def harmless(progress: Progress) -> Progress:
    """The same, but what it raises goes to sys.excepthook: the memory is on its way, and goes on."""
    def told(done: int, total: int) -> None:
        if _callbacks.is_ending():
            return
        try:
            progress(done, total)
        except BaseException:  # nothing may pass through the library
            sys.excepthook(*sys.exc_info())
    return told


def _set_progress(options: Any, progress: Optional[Progress]) -> None:
    if progress is not None:
        told = harmless(progress)
        # The structure keeps it.
        options.progress = _native.types.known["weir_progress_callback"](
            lambda _, done, total: told(done, total))


def suspend_options(contents: str = "keep", to: str = "pinned", requests: str = "fail",
                    chunk: Optional[int] = None, progress: Optional[Progress] = None,
                    streams: str = "all") -> Any:
    options = structure("weir_suspend_options")()
    options.contents = number_of(contents, CONTENTS, "contents")
    options.backup = number_of(to, KINDS, "to")
    options.requests = number_of(requests, REQUESTS, "requests")
    options.streams = number_of(streams, STREAMS, "streams")
    if chunk is not None:
        if chunk < 512:  # 0 has a meaning in C
            raise ValueError("weir: chunk must be at least 512 bytes")
        options.chunk = chunk
    _set_progress(options, progress)
    return options


def suspendable_options(evictable: bool = False, priority: int = 0, contents: str = "keep",
                        to: str = "pinned", requests: str = "resume",
                        chunk: Optional[int] = None) -> Any:
    options = structure("weir_suspendable_options")()
    options.evictable, options.priority = int(evictable), priority
    options.eviction = ctypes.pointer(suspend_options(contents, to, requests, chunk))
    return options


def suspend(call: Any, *arguments: Any, progress: Optional[Progress] = None, **options: Any) -> SuspendOutcome:
    """A suspending call with suspend_options(**options)."""
    with _callbacks.during(progress) as told:
        return ask(SuspendOutcome, "weir_suspend_outcome", call, *arguments,
                   ctypes.byref(suspend_options(progress=told, **options)))


def resume(call: Any, *arguments: Any, progress: Optional[Progress] = None) -> ResumeOutcome:
    options = structure("weir_resume_options")()
    with _callbacks.during(progress) as told:
        _set_progress(options, told)
        return ask(ResumeOutcome, "weir_resume_outcome", call, *arguments, ctypes.byref(options))


def suspend_later(call: Any, *arguments: Any, **options: Any) -> SuspendOutcome:
    """The same of a call that does not wait."""
    if options.get("progress") is not None:
        raise ValueError("weir: progress needs a suspend() with wait=True")
    call(*arguments, ctypes.byref(suspend_options(**options)))
    return SuspendOutcome()


def resume_ahead(call: Any, *arguments: Any, progress: Optional[Progress] = None) -> ResumeOutcome:
    """A resuming call whose last argument is the stream that waits."""
    if progress is not None:
        raise ValueError("weir: progress needs a resume() with wait=True")
    return ask(ResumeOutcome, "weir_resume_outcome", call, *arguments)


def stats(call: Any, *arguments: Any) -> SuspendStats:
    return ask(SuspendStats, "weir_suspend_stats", call, *arguments)


def is_away(call: Any, *arguments: Any) -> bool:
    return bool(_native.number(call, *arguments, kind=ctypes.c_int32))


def reserve_backup(allocator: int, nbytes: int, kind: str) -> None:
    lib.weir_allocator_reserve_backup(allocator, nbytes, number_of(kind, KINDS, "kind"))
