# SPDX-License-Identifier: Apache-2.0
"""The exceptions: weir.Error for everything that goes wrong in weir, and kinds of it that Python knows."""

from typing import Any, Dict, Tuple, Type


class Error(RuntimeError):
    """Something that weir could not do.

    code    the number, as in weir.h (weir_error_...)
    name    its name, "out_of_memory"
    native  the driver's own result code; 0 where no driver call was involved
    """

    def __init__(self, message: str, code: int = 0, name: str = "", native: int = 0) -> None:
        super().__init__(message)
        self.code = code
        self.name = name
        self.native = native

    def __reduce__(self) -> Tuple[Any, ...]:
        return type(self), (str(self), self.code, self.name, self.native)


class OutOfMemory(Error, MemoryError):
    """There is no room, after everything that could be released was. The message names what is in the way.

    report  who held the memory at that moment and what would help, as Allocator.explain(); "" where the
            memory was no allocator's
    """

    report: str = ""

    def __reduce__(self) -> Tuple[Any, ...]:
        return (*super().__reduce__(), {"report": self.report})


class LimitExceeded(Error):
    """A limit on something other than an allocation would be passed: names of tags, the floors of a card, descriptors."""


class NoHostMemory(Error, MemoryError):
    """The host has no memory."""


class InvalidArgument(Error, ValueError):
    """A value that the call cannot take: a size, an alignment, an option, a null."""


class BadPointer(Error, ValueError):
    """The pointer is not that of a live block: foreign, or freed already."""


class Closed(Error):
    """The object was closed, or is empty."""


class DriverUnavailable(Error):
    """No driver that weir can use is on this machine."""


class DriverGone(Error):
    """The driver was shut down, or this is a forked child of the process that opened it."""


class NotSupported(Error):
    """The device or the driver cannot do this."""


class Suspended(Error):
    """The memory is suspended: resume() brings it back."""


class MemoryDamaged(Error):
    """Bytes around a block, or of a freed one, were written (heap_debug). The message tells which, and where."""


# By the numbers in weir/base/errc.def, which never change their meaning. The others are plain Errors.
_CLASSES: Dict[int, Type[Error]] = {
    1: InvalidArgument,    # invalid_argument
    2: InvalidArgument,    # size_overflow
    3: InvalidArgument,    # bad_alignment
    4: OutOfMemory,        # out_of_memory
    5: LimitExceeded,      # limit_exceeded
    6: BadPointer,         # foreign_pointer
    7: BadPointer,         # double_free
    8: BadPointer,         # already_freed
    13: DriverUnavailable,  # driver_unavailable
    16: DriverGone,        # driver_gone
    19: NotSupported,      # not_supported
    25: InvalidArgument,   # bad_option
    32: Closed,            # closed
    33: Closed,            # moved_from
    34: NoHostMemory,      # no_host_memory
    35: Suspended,         # suspended
    36: MemoryDamaged,     # memory_damaged
}


def error_class(code: int) -> Type[Error]:
    return _CLASSES.get(code, Error)
