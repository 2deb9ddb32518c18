# SPDX-License-Identifier: Apache-2.0
"""Suspended memory under PyTorch: what weir.torch's functions ask of the extension, and what it answers."""

from typing import Any, Optional, Tuple, Union

import torch

from . import _suspend
from ._errors import OutOfMemory as WeirOutOfMemory
from ._errors import error_class
from ._native import lib
from ._stats import Gauge
from ._suspend import CONTENTS, KINDS, REQUESTS, STREAMS, Progress, ResumeOutcome, SuspendOutcome, SuspendStats

_OUT_OF_MEMORY = 4

#: A tag's name, a pool, torch's id of one, or everything.
Target = Union[None, str, "torch.cuda.MemPool", Tuple[int, int]]


class OutOfMemory(WeirOutOfMemory, torch.cuda.OutOfMemoryError):  # type: ignore[misc]
    """There is no room for what is to come back: it stays suspended, and can be resumed later."""


def target(what: Target) -> Union[None, str, Tuple[int, int]]:
    """As the extension takes it."""
    if what is None or isinstance(what, str):
        return what
    return tuple(getattr(what, "id", what))  # type: ignore[arg-type,return-value]


#: As the extension takes suspend()'s options: contents, host memory, requests, chunk, streams.
Options = Tuple[int, int, int, int, int]


def options(contents: str, to: str, requests: str, chunk: Optional[int], streams: str = "all") -> Options:
    if chunk is not None and chunk < 512:
        raise ValueError("weir: chunk must be at least 512 bytes")
    return (_suspend.number_of(contents, CONTENTS, "contents"), _suspend.number_of(to, KINDS, "to"),
            _suspend.number_of(requests, REQUESTS, "requests"), chunk or 0,
            _suspend.number_of(streams, STREAMS, "streams"))


def checked(answer: Tuple[Any, ...]) -> Tuple[Any, ...]:
    """What comes behind the code of a call that succeeded; its exception if it did not."""
    code, native, message, *rest = answer
    if code:
        name = lib.weir_error_name(code).decode()
        kind: Any = OutOfMemory if code == _OUT_OF_MEMORY else error_class(code)
        raise kind(message, code, name, native)
    return tuple(rest)


def suspend(extension: Any, device: int, what: Target, chosen: Options,
            progress: Optional[Progress], wait: bool) -> SuspendOutcome:
    if not wait:
        if progress is not None:
            raise ValueError("weir: progress needs a suspend() with wait=True")
        checked(extension.suspend_async(device, target(what), chosen))
        return SuspendOutcome()
    told = None if progress is None else _suspend.harmless(progress)
    return SuspendOutcome(*checked(extension.suspend(device, target(what), chosen, told)))


def resume(extension: Any, device: int, what: Target, progress: Optional[Progress],
           ahead_of: Optional["torch.cuda.Stream"]) -> ResumeOutcome:
    if ahead_of is not None:
        if progress is not None:
            raise ValueError("weir: progress needs a resume() with wait=True")
        return ResumeOutcome(*checked(extension.resume_async(device, target(what), ahead_of.cuda_stream)))
    told = None if progress is None else _suspend.harmless(progress)
    return ResumeOutcome(*checked(extension.resume(device, target(what), told)))


def stats(extension: Any, device: int, what: Target) -> SuspendStats:
    suspended, backup, backup_peak, both, both_peak = extension.suspend_stats(device, target(what))
    return SuspendStats(suspended, Gauge(backup, backup_peak), Gauge(both, both_peak))
