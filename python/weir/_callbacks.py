# SPDX-License-Identifier: Apache-2.0
"""Calls of the library back into Python, which are over before the interpreter ends.

A thread that comes back to an interpreter which has ended is ended by Python where it stands. Below a callback
that is in the middle of the library, whose frames do not survive it: the process aborts.
"""

import atexit
import contextlib
import os
import threading
import time
import weakref
from typing import Any, Callable, Iterator, Optional

PATIENCE = 10.0  #: seconds that the end of the interpreter waits for callbacks
_LEEWAY = 0.02  # for a call that the library has begun, and that does not have the interpreter yet

# Recursive, as every lock here: a finalizer may run inside.
_changed = threading.Condition(threading.RLock())
_under_way = 0
_is_ending = False
_is_used = False  # whether the program has callbacks at all
_registered: "weakref.WeakSet[Any]" = weakref.WeakSet()


def is_ending() -> bool:
    """Whether the interpreter ends: callbacks answer without asking the program any more."""
    return _is_ending


def register(owner: Any) -> None:
    """Closes what the library may call at any time when the interpreter ends."""
    global _is_used
    with _changed:
        _is_used = True
        _registered.add(owner)


@contextlib.contextmanager
def under_way() -> Iterator[None]:
    """The interpreter waits with its end until this is over."""
    global _under_way, _is_used
    changed = _changed
    with changed:
        _under_way += 1
        _is_used = True
    try:
        yield
    finally:
        with changed:
            if changed is _changed:  # and this is no child that was forked meanwhile
                _under_way -= 1
            changed.notify_all()


@contextlib.contextmanager
def during(callback: Optional[Callable[..., Any]]) -> Iterator[Optional[Callable[..., Any]]]:
    """For a call of the library that calls back; None once the interpreter ends."""
    if callback is None or _is_ending:
        yield None
        return
    with under_way():
        yield callback


def _end() -> None:
    global _is_ending
    with _changed:
        _is_ending = True
        open_still = list(_registered)
    for owner in open_still:
        with contextlib.suppress(Exception):
            owner.close()
    with _changed:
        _changed.wait_for(lambda: not _under_way, PATIENCE)
    if _is_used:
        time.sleep(_LEEWAY)


def _begin_child() -> None:
    global _changed, _under_way
    _changed, _under_way = threading.Condition(threading.RLock()), 0
    _registered.clear()


atexit.register(_end)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_child)
