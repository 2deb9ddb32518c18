# SPDX-License-Identifier: Apache-2.0
"""weir.Block: memory with an owner, whichever pool it came from."""

from typing import Any, Callable, Dict, Optional, Tuple

from ._errors import BadPointer, MemoryDamaged
from ._machine import Owned, native_stream
from ._native import process
from ._views import CUDA, CUDA_HOST, ArrayView, Shape


class Memory(Owned):
    """What hands out blocks.

    Blocks refer to their memory, so it is closed after them; but of garbage with cycles in it Python
    finalizes the parts in any order. So memory that is finalized while blocks live stays open, and the
    last of them closes it. What Block.release() gave up counts as a block.
    """

    _abandoned = False

    def _free(self, ptr: int, nbytes: int, stream: Any, own_stream: Any) -> None:
        """In the order of `stream`, or of the one it was allocated for if that is None."""
        raise NotImplementedError

    def _free_quietly(self, ptr: int, nbytes: int, own_stream: Any) -> None:
        raise NotImplementedError

    def _record_stream(self, ptr: int, stream: Any) -> None:
        self.record_stream(ptr, stream)  # type: ignore[attr-defined]

    def _live(self) -> int:
        """How many blocks are live."""
        raise NotImplementedError

    def __del__(self, process: Callable[[], int] = process) -> None:
        if not self._closed and self._process == process():
            self._abandoned = True
            self._close_if_empty()

    def _close_if_empty(self) -> None:
        try:
            if not self._live():
                self.close()
        except Exception:  # closed by hand, or the driver is gone: there is nobody to tell
            pass


class Block:
    """Device or pinned memory, freed by free(), at the end of a with statement, or when nobody refers
    to it any more, behind the work queued so far on the stream it was allocated for.

    CuPy, PyTorch and Numba take it as an array of bytes (__cuda_array_interface__) without a copy; the
    array keeps the block alive.
    """

    __slots__ = ("ptr", "nbytes", "stream", "_memory", "_on_device", "__weakref__")

    def __init__(self, memory: Memory, ptr: int, nbytes: int, stream: Any, on_device: bool = True) -> None:
        self.ptr = ptr        #: the address; 0 once freed, and of zero bytes
        self.nbytes = nbytes  #: as requested
        self.stream = stream  #: as given to allocate(); kept alive
        self._memory: Optional[Memory] = memory
        self._on_device = on_device

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Not copied and not pickled: a copy would free the memory of the original."""
        raise TypeError("weir: a Block cannot be copied or pickled; copy its contents instead")

    def free(self, stream: Any = None) -> None:
        """Frees the memory, ordered on `stream` instead of its own where one is given. A second call
        does nothing. One that fails leaves the block as it was, unless the memory was freed already."""
        ptr, self.ptr = self.ptr, 0
        memory, self._memory = self._memory, None
        if ptr and memory is not None:
            try:
                memory._free(ptr, self.nbytes, stream, self.stream)
            except (BadPointer, MemoryDamaged):
                self.stream = None
                raise
            except BaseException:
                self.ptr, self._memory = ptr, memory
                raise
        self.stream = None

    def release(self) -> int:
        """Passes the address to the caller, who frees it with deallocate() of the allocator or pool."""
        ptr, self.ptr, self._memory = self.ptr, 0, None
        return ptr

    def record_stream(self, stream: Any) -> None:
        """Work queued on `stream` until the block is freed may use it, too. Call it at any time before the
        free."""
        if self._memory is None:
            raise ValueError("weir: the block was freed")
        self._memory._record_stream(self.ptr, stream)

    def view(self, dtype: Any = "u1", shape: Shape = None) -> ArrayView:
        """The memory as an array: block.view("float32", (64, 64)). cupy.asarray(), torch.from_dlpack() and others
        take it without a copy; view().host() is for pinned memory. It keeps the block alive."""
        if self._memory is None:
            raise ValueError("weir: the block was freed")
        device = getattr(getattr(self.stream, "device", None) or getattr(self._memory, "device", None), "number", 0)
        return ArrayView(self, self.ptr, self.nbytes, dtype, shape,
                         device=(CUDA, device) if self._on_device else (CUDA_HOST, 0),
                         stream=lambda: native_stream(self.stream))

    def __dlpack__(self, **named: Any) -> Any:
        return self.view().__dlpack__(**named)

    def __dlpack_device__(self) -> Tuple[int, int]:
        return self.view().__dlpack_device__()

    @property
    def __cuda_array_interface__(self) -> Dict[str, Any]:
        if not self._on_device:
            raise AttributeError("weir: pinned memory is on the host")
        if self._memory is None:
            raise AttributeError("weir: the block was freed")
        return {"shape": (self.nbytes,), "typestr": "|u1", "data": (self.ptr, False), "version": 3,
                # 0 is forbidden there; 1 is the legacy stream.
                "strides": None, "stream": native_stream(self.stream) or 1}

    def __int__(self) -> int:
        return self.ptr

    def __len__(self) -> int:
        return self.nbytes

    def __enter__(self) -> "Block":
        return self

    def __exit__(self, *_: Any) -> None:
        self.free()

    # The default is bound now: at the end of the process the module may be empty.
    def __del__(self, process: Callable[[], int] = process) -> None:
        ptr, memory = getattr(self, "ptr", 0), getattr(self, "_memory", None)
        if ptr and memory is not None and memory._process == process():
            self.ptr = 0
            memory._free_quietly(ptr, self.nbytes, self.stream)
            if memory._abandoned:
                memory._close_if_empty()

    def __repr__(self) -> str:
        return f"<weir.Block {self.nbytes} bytes at {self.ptr:#x}>" if self._memory else "<weir.Block freed>"
