# SPDX-License-Identifier: Apache-2.0
"""Growable memory: addresses whose pages are committed and decommitted as needed. docs/growable.md is the guide."""

import ctypes
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Iterable, List, Optional, Tuple

from . import _native
from ._errors import OutOfMemory
from ._machine import Owned, Size, as_bytes, native_stream
from ._native import lib, structure
from ._stats import Gauge, ask
from ._views import CUDA, ArrayView, Shape

if TYPE_CHECKING:
    from ._allocator import Allocator

#: Offset and size in bytes, from the begin of the reservation.
Range = Tuple[Size, Size]


@dataclass(frozen=True)
class GrowableStats:
    """Of growable memory, of one moment; sizes in bytes."""

    reserved: int = 0           #: addresses
    size: int = 0               #: what may be committed: resize()
    page: int = 0               #: of each page
    committed: Gauge = Gauge()  #: pages with memory that the caller may use
    ahead: int = 0              #: pages with memory that no commit has asked for yet
    held: int = 0               #: decommitted pages that a graph keeps
    suspended: int = 0          #: pages whose memory is away: suspend()
    commits: int = 0            #: pages that were committed
    decommits: int = 0          #: pages that were decommitted


def _array_of(ranges: Iterable[Range]) -> Tuple[Any, int]:
    kind = structure("weir_byte_range")
    made: List[Any] = [kind(as_bytes(offset), as_bytes(size)) for offset, size in ranges]
    return (kind * max(len(made), 1))(*made), len(made)


class Growable(Owned, close="weir_growable_close"):
    """Reserved addresses whose pages are committed and decommitted as needed. Made by Allocator.growable().

        cache = memory.growable("64 GiB", page="16 MiB")
        cache.commit(0, "512 MiB", stream)        # work queued from now on may use it
        cache.decommit("256 MiB", "256 MiB", stream)

    Pages are memory of the allocator: its limits, tags and statistics count them, and its other requests may use
    what is decommitted. Commits are all or nothing. close() waits for the work that may use the pages.

    ptr     the address of the first byte
    nbytes  of all addresses
    """

    def __init__(self, allocator: "Allocator", nbytes: Size, *, page: Size = 16 << 20, tag: str = "",
                 name: str = "growable") -> None:
        options = structure("weir_growable_options")()
        options.page = as_bytes(page)
        if tag:
            options.tag = _native.number(lib.weir_tag_named, _native.text(tag), kind=ctypes.c_uint32)
        options.name = _native.text(name)
        self.allocator = allocator
        self.name = name
        self._own(_native.new(lib.weir_growable_reserve, allocator._handle, as_bytes(nbytes), ctypes.byref(options)))
        self.ptr = _native.number(lib.weir_growable_get_address, self._handle, kind=ctypes.c_void_p)
        self.nbytes = self.stats().reserved

    def _words(self) -> str:
        now = self.stats()
        return f"{self.name!r}, {now.committed.current} of {now.reserved} bytes committed"

    def stats(self) -> GrowableStats:
        """Exact, of one moment."""
        return ask(GrowableStats, "weir_growable_stats", lib.weir_growable_get_stats, self._handle)

    def is_committed(self, offset: Size, nbytes: Size) -> bool:
        """Whether all pages of the range are committed."""
        return bool(_native.number(lib.weir_growable_is_committed, self._handle, as_bytes(offset), as_bytes(nbytes),
                                   kind=ctypes.c_int32))

    def commit(self, offset: Size, nbytes: Size, stream: Any = None) -> None:
        """Every page that the range touches has memory afterwards, for work queued on the stream from now on."""
        self.commit_ranges([(offset, nbytes)], stream)

    def commit_ranges(self, ranges: Iterable[Range], stream: Any = None) -> None:
        """The same of several ranges: all of them, or after an error none more than before."""
        array, count = _array_of(ranges)
        try:
            with self.allocator._as_stream(stream) as known:
                lib.weir_growable_commit(self._handle, array, count, known)
        except OutOfMemory as problem:
            raise self.allocator._with_report(problem, sum(each.size for each in array), stream)

    def decommit(self, offset: Size, nbytes: Size, stream: Any = None) -> None:
        """Every page that lies in the range as a whole gives its memory back, behind all work queued so far."""
        self.decommit_ranges([(offset, nbytes)], stream)

    def decommit_ranges(self, ranges: Iterable[Range], stream: Any = None) -> None:
        """The same of several ranges."""
        array, count = _array_of(ranges)
        with self.allocator._as_stream(stream) as known:
            lib.weir_growable_decommit(self._handle, array, count, known)

    def prepare(self, commits: Iterable[Range] = (), decommits: Iterable[Range] = (),
                stream: Any = None) -> "GrowablePlan":
        """Both in two steps: this one does all that can fail, GrowablePlan.commit() the rest. For processes that must
        all have the same pages."""
        into, into_count = _array_of(commits)
        out, out_count = _array_of(decommits)
        with self.allocator._as_stream(stream) as known:
            return GrowablePlan(self, _native.new(lib.weir_growable_prepare, self._handle, into, into_count, out,
                                                  out_count, known))

    def commit_ahead(self, watermark: Size, stream: Any = None) -> None:
        """Gets memory for pages behind the last committed one, until `watermark` bytes there are ready. A later
        commit of them on the same stream makes no driver call."""
        with self.allocator._as_stream(stream) as known:
            lib.weir_growable_commit_ahead(self._handle, as_bytes(watermark), known)

    def resize(self, nbytes: Size, stream: Any = None) -> None:
        """So much may be committed from now on; at most nbytes. Pages behind are decommitted."""
        with self.allocator._as_stream(stream) as known:
            lib.weir_growable_resize(self._handle, as_bytes(nbytes), known)

    def trim(self) -> int:
        """Gives back pages that are ready ahead. Returns their bytes."""
        return _native.number(lib.weir_growable_trim, self._handle)

    def suspend(self, *, contents: str = "keep") -> int:
        """Gives the memory of all pages back after waiting for all work; addresses stay. With contents="keep" what they
        hold goes to pinned host memory, with "discard" it is lost. Returns the bytes that went back."""
        if contents not in ("keep", "discard"):
            raise ValueError(f"weir: contents is 'keep' or 'discard', not {contents!r}")
        return _native.number(lib.weir_growable_suspend, self._handle, int(contents == "keep"))

    def resume(self, stream: Any = None) -> None:
        """Brings all pages back to their addresses, with what was kept: all, or none."""
        with self.allocator._as_stream(stream) as known:
            lib.weir_growable_resume(self._handle, known)

    def tie_to_graph(self, graph: int) -> None:
        """The pages that are committed now stay as long as the CUgraph and every executable made of it."""
        lib.weir_growable_tie_to_graph(self._handle, graph)

    def hold(self) -> "GrowableHold":
        """The same until the hold is closed."""
        return GrowableHold(self, _native.new(lib.weir_growable_hold_pages, self._handle))

    def view(self, dtype: Any = "u1", shape: Shape = None, *, offset: Size = 0, stream: Any = None) -> ArrayView:
        """The reservation from `offset` on as an array, committed or not: whoever uses it keeps to committed pages.
        CuPy, PyTorch and others take it without a copy. It keeps this object alive."""
        begin = as_bytes(offset)
        if begin > self.nbytes:
            raise ValueError(f"weir: offset {begin} lies beyond the {self.nbytes} reserved bytes")
        return ArrayView(self, self.ptr + begin, self.nbytes - begin, dtype, shape,
                         device=(CUDA, self.allocator.device.number), stream=lambda: native_stream(stream))


class GrowablePlan(Owned, close="weir_growable_plan_abort"):
    """Pages that are ready to be committed and decommitted together. Made by Growable.prepare(). At the end of a with
    statement, or when nobody refers to it, a plan that was not committed gives its pages back."""

    def __init__(self, of: Growable, handle: int) -> None:
        self._of: Optional[Growable] = of
        self._own(handle)

    def commit(self) -> None:
        """The pages are usable from now on; those that leave are gone. Makes no driver call and does not fail."""
        lib.weir_growable_plan_commit(self._handle)
        self._closed, self._of = True, None

    def abort(self) -> None:
        """Gives the pages back. A second call does nothing."""
        self.close()


class GrowableHold(Owned, close="weir_growable_hold_close"):
    """Keeps pages that were committed when it was made, for graphs. Made by Growable.hold()."""

    def __init__(self, of: Growable, handle: int) -> None:
        self._of = of
        self._own(handle)


