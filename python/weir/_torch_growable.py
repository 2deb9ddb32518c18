# SPDX-License-Identifier: Apache-2.0
"""Tensors that grow along their first dimension without being copied, for weir.torch. docs/growable.md is the guide."""

from typing import Any, Dict, Iterator, List, Optional, Protocol, Sequence, Tuple

import torch

from ._allocator import Allocator
from ._growable import Growable
from ._machine import Size, as_bytes
from ._views import CUDA, ArrayView

Ranges = Sequence[Tuple[int, int]]


class Pages(Protocol):
    """Growable memory, of the allocator under torch's tensors or of another."""

    address: int
    reserved: int

    def commit(self, ranges: Ranges, stream: int) -> None: ...
    def decommit(self, ranges: Ranges, stream: int) -> None: ...
    def commit_ahead(self, watermark: int, stream: int) -> None: ...
    def tie_to_graph(self, graph: int) -> None: ...
    def close(self) -> None: ...


class OwnPages:
    """Growable memory of the process's default allocator, where weir is not torch's allocator."""

    def __init__(self, device: int, nbytes: int, page: int, name: str) -> None:
        self._memory: Growable = Allocator.default(device).growable(nbytes, page=page, name=name)
        self.address, self.reserved = self._memory.ptr, self._memory.nbytes

    @property
    def committed(self) -> int:
        return self._memory.stats().committed.current

    def commit(self, ranges: Ranges, stream: int) -> None:
        self._memory.commit_ranges(ranges, stream)

    def decommit(self, ranges: Ranges, stream: int) -> None:
        self._memory.decommit_ranges(ranges, stream)

    def commit_ahead(self, watermark: int, stream: int) -> None:
        self._memory.commit_ahead(watermark, stream)

    def trim(self) -> int:
        return self._memory.trim()

    def tie_to_graph(self, graph: int) -> None:
        self._memory.tie_to_graph(graph)

    def close(self) -> None:
        self._memory.close()


class _Whole:
    """Keeps the pages alive for the tensors that lie in them."""

    def __init__(self, pages: Any) -> None:
        self.pages = pages


class GrowableTensor:
    """A tensor over reserved addresses that grows along its first dimension. Made by weir.torch.growable().

        keys = weir.torch.growable((1 << 20, 8, 128), torch.float16)   # at most so many rows
        keys.append(new_rows)                                          # copies the new rows only
        attention(keys.tensor)                                         # the rows so far, in one piece

    full    a tensor over all addresses; only rows below `committed` may be used
    tensor  the rows so far
    """

    def __init__(self, pages: Any, shape: Sequence[int], dtype: "torch.dtype", device: int) -> None:
        self._pages = pages
        self._device = device
        row = 1
        for extent in shape[1:]:
            row *= int(extent)
        self._row = row * dtype.itemsize
        count = int(shape[0]) * self._row
        view = ArrayView(_Whole(pages), pages.address, pages.reserved, "u1", count, device=(CUDA, device))
        flat = torch.from_dlpack(view)
        self.full: "torch.Tensor" = flat.view(dtype).view(tuple(int(extent) for extent in shape))
        self._length = 0

    # --- What is there ------------------------------------------------------------------------------

    @property
    def tensor(self) -> "torch.Tensor":
        """The rows so far. A view: it changes with them, and is invalid for rows that shrink() took."""
        return self.full[:self._length]

    @property
    def capacity(self) -> int:
        """The most rows there can be."""
        return int(self.full.shape[0])

    @property
    def committed(self) -> int:
        """Bytes of pages that have memory."""
        return int(self._pages.committed)

    def __len__(self) -> int:
        return self._length

    def __repr__(self) -> str:
        return (f"<weir.torch.GrowableTensor of {self._length} of {self.capacity} rows, {self.full.dtype}, "
                f"{self.committed} bytes committed>")

    # --- Growing and shrinking -----------------------------------------------------------------------

    def _stream(self) -> int:
        return int(torch.cuda.current_stream(self._device).cuda_stream)

    def _commit(self, rows: int) -> None:
        if rows > self.capacity:
            raise ValueError(f"weir.torch: {rows} rows, and the reservation has {self.capacity}; reserve more from the "
                             "start, addresses cost nothing")
        if rows:
            self._pages.commit([(0, rows * self._row)], self._stream())

    def reserve(self, rows: int) -> None:
        """Gets memory for so many rows in all, without changing how many there are."""
        self._commit(rows)

    def resize(self, rows: int) -> "torch.Tensor":
        """So many rows from now on. The contents of new ones are undefined. Returns `tensor`."""
        if rows < self._length:
            self.shrink(rows)
        else:
            self._commit(rows)
            self._length = rows
        return self.tensor

    def append(self, rows: "torch.Tensor") -> "torch.Tensor":
        """Adds rows, or one row, on the current stream. Returns the rows as they lie in the tensor."""
        if rows.dim() == self.full.dim() - 1:
            rows = rows.unsqueeze(0)
        if tuple(rows.shape[1:]) != tuple(self.full.shape[1:]):
            raise ValueError(f"weir.torch: expected rows of shape {tuple(self.full.shape[1:])}, got "
                             f"{tuple(rows.shape[1:])}")
        begin = self._length
        end = begin + int(rows.shape[0])
        self._commit(end)
        self._length = end
        added = self.full[begin:end]
        added.copy_(rows)
        return added

    def shrink(self, rows: int = 0) -> None:
        """Keeps the first rows. Pages behind them give their memory back, behind all work queued so far."""
        if rows < 0 or rows > self._length:
            raise ValueError(f"weir.torch: expected at most the {self._length} rows that there are, got {rows}")
        self._length = rows
        begin = rows * self._row
        self._pages.decommit([(begin, self._pages.reserved - begin)], self._stream())

    def commit_ahead(self, rows: int) -> None:
        """Gets memory for so many more rows behind the committed ones; appending them then makes no driver call on the
        current stream."""
        self._pages.commit_ahead(rows * self._row, self._stream())

    def tie_to_graph(self, graph: Any) -> None:
        """The pages that are committed now stay as long as the graph: a torch.cuda.CUDAGraph with raw_cuda_graph(), or
        the address of a CUgraph."""
        raw = graph if isinstance(graph, int) else graph.raw_cuda_graph()
        self._pages.tie_to_graph(int(raw))

    def close(self) -> None:
        """Gives all memory back, after the work that uses it. No tensor of it may be used afterwards."""
        self._length = 0
        self._pages.close()


class GrowableList:
    """A list of tensors that lie one behind the other in one growable tensor, in place of torch.cat(list).

        states = weir.torch.growable_list((1 << 20, 4096), torch.bfloat16)
        states.append(step)          # copies the new tensor only
        states.cat()                 # all of them as one tensor, without a copy
    """

    def __init__(self, rows: GrowableTensor) -> None:
        self._rows = rows
        self._ends: List[int] = []

    def append(self, tensor: "torch.Tensor") -> "torch.Tensor":
        """Adds a tensor of any number of rows. Returns it as it lies in the list."""
        added = self._rows.append(tensor)
        self._ends.append(len(self._rows))
        return added

    def cat(self) -> "torch.Tensor":
        """All tensors in their order, as one. No copy."""
        return self._rows.tensor

    def pop(self) -> None:
        """Removes the last tensor."""
        if not self._ends:
            raise IndexError("weir.torch: pop from an empty list")
        self._ends.pop()
        self._rows.shrink(self._ends[-1] if self._ends else 0)

    def clear(self) -> None:
        """Removes all, and gives their memory back."""
        self._ends.clear()
        self._rows.shrink(0)

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: int) -> "torch.Tensor":
        end = self._ends[index]
        position = index if index >= 0 else len(self._ends) + index
        begin = self._ends[position - 1] if position else 0
        return self._rows.full[begin:end]

    def __iter__(self) -> Iterator["torch.Tensor"]:
        return (self[index] for index in range(len(self)))

    @property
    def rows(self) -> GrowableTensor:
        """The tensor that they lie in."""
        return self._rows


def make(extension: Optional[Any], index: int, shape: Sequence[int], dtype: Optional["torch.dtype"], page: Size,
         name: str) -> GrowableTensor:
    """With pages of the allocator that torch has, or of the default allocator without an extension."""
    if not shape or any(int(extent) <= 0 for extent in shape):
        raise ValueError(f"weir.torch: shape must have positive extents, got {tuple(shape)}")
    kind = torch.get_default_dtype() if dtype is None else dtype
    nbytes = kind.itemsize
    for extent in shape:
        nbytes *= int(extent)
    arguments: Dict[str, Any] = {"device": index, "nbytes": nbytes, "page": as_bytes(page), "name": name}
    pages = OwnPages(**arguments) if extension is None else extension.Growable(*arguments.values())
    return GrowableTensor(pages, shape, kind, index)
