# SPDX-License-Identifier: Apache-2.0
"""Numba on weir: an External Memory Management plug-in.

    NUMBA_CUDA_MEMORY_MANAGER=weir.numba python program.py

or, before anything else touches the GPU:

    import weir.numba
    weir.numba.enable(policy="balanced")

docs/cupy.md tells what to expect. Numba's interface knows no streams, so a block is free for others only
after all work on the device is done, as with Numba's own manager. Blocks that Numba lets go of are
collected, and one wait serves many.
"""

import contextlib
import ctypes
import os
import threading
from typing import Any, Dict, Iterator, List, Optional

from numba import cuda
from numba.cuda.cudadrv import driver as _numba_driver

from . import _native
from ._allocator import Allocator, plugin_options, process_allocator
from ._block import Block
from ._errors import OutOfMemory
from ._native import lib

# How much may wait for the device before somebody waits: this many blocks, or this part of its memory.
_MOST_BLOCKS = 64
_MOST_MEMORY = 1 / 8

_LEGACY_STREAM = None  # Numba's own streams synchronise with it

_options = ""  # of enable(); those of the environment count, too


def _policy() -> str:
    if "heap_policy=" in _options:
        return _native.read_text(lib.weir_option_get_value, _native.text(_options), b"heap_policy")
    return os.environ.get("WEIR_HEAP_POLICY", "")


def _device_pointer(address: int) -> Any:
    """As Numba's driver layer wants it: NVIDIA's binding, or ctypes in older versions."""
    if getattr(_numba_driver, "USE_NV_BINDING", True):
        return _numba_driver.binding.CUdeviceptr(address)
    return ctypes.c_uint64(address)


class WeirMemoryManager(cuda.GetIpcHandleMixin, cuda.HostOnlyCUDAMemoryManager):
    """Numba makes one for each context. Host memory stays Numba's affair.

    `defer_cleanup` keeps what Numba lets go of, without a wait, until the end of its scope; only a
    request that finds no room waits all the same.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._memory: Any = None  # an Allocator, once it was initialised
        self._live: Dict[int, Block] = {}
        self._released: List[Block] = []  # not used by Numba any more, perhaps by the device
        self._released_bytes = 0
        self._deferred = 0
        # A finalizer may run in the middle of memalloc, on the same thread.
        self._lock = threading.RLock()

    # --- What Numba calls ---------------------------------------------------------------------------

    def initialize(self) -> None:
        """Called by Numba: opens weir's allocator of the context's device."""
        super().initialize()
        if self._memory is None:
            self._memory = process_allocator(self.context.device.id, _options)

    def memalloc(self, size: int) -> Any:
        """Called by Numba: device memory of `size` bytes."""
        self.initialize()
        with self._lock:
            if not self._deferred and self._full():
                self._release()
            try:
                block = self._memory.allocate(size, _LEGACY_STREAM)
            except OutOfMemory:
                if not self._released:
                    raise
                self._release()
                block = self._memory.allocate(size, _LEGACY_STREAM)
            self._live[block.ptr] = block
        return cuda.MemoryPointer(self.context, _device_pointer(block.ptr), size,
                                  finalizer=self._finalizer(block))

    def get_memory_info(self) -> Any:
        """What is free on the device, and what this allocator holds without using it."""
        self.initialize()
        free, total = self._memory.device.memory()
        return cuda.MemoryInfo(free=free + self._memory.stats().cached, total=total)

    def get_ipc_handle(self, memory: Any) -> Any:
        """Only of memory that the driver allocated in one piece: policy "classic"."""
        if _policy() != "classic":
            raise RuntimeError("weir: the driver's IPC handles need the policy \"classic\": call "
                               "weir.numba.enable(policy=\"classic\") or set WEIR_HEAP_POLICY=classic")
        return super().get_ipc_handle(memory)

    def reset(self) -> None:
        """Called by Numba: releases everything that the context allocated."""
        super().reset()
        with self._lock:
            live, self._live = self._live, {}  # a finalizer that runs now finds its block gone
            self._released += live.values()
            if self._memory is not None:
                self._release()
                self._memory.empty_cache()

    @contextlib.contextmanager
    def defer_cleanup(self) -> Iterator[None]:
        """Called by Numba: a block in which nothing is released."""
        with super().defer_cleanup():
            with self._lock:
                self._deferred += 1
            try:
                yield
            finally:
                with self._lock:
                    self._deferred -= 1

    @property
    def interface_version(self) -> int:
        """The version of Numba's interface for memory managers that this is written for."""
        return 1

    # --- Letting go ---------------------------------------------------------------------------------

    def _finalizer(self, block: Block) -> Any:
        address = block.ptr

        def finalize() -> None:
            with self._lock:
                # After reset() it is gone, and its address may be another's.
                if self._live.get(address) is block:
                    self._released.append(self._live.pop(address))
                    self._released_bytes += block.nbytes
        return finalize

    def _full(self) -> bool:
        return (len(self._released) >= _MOST_BLOCKS
                or self._released_bytes > _MOST_MEMORY * self._memory.device.info.total_memory)

    def _release(self) -> None:
        """Waits for the device, then frees what Numba has let go of. Where the wait fails, nothing is freed: the
        device may use it still."""
        released, waiting_bytes = self._released, self._released_bytes
        self._released, self._released_bytes = [], 0  # what a finalizer adds meanwhile is not waited for
        try:
            self.context.synchronize()
        except BaseException:
            self._released[:0] = released
            self._released_bytes += waiting_bytes
            raise
        for block in released:
            block.free()


# Numba looks for this name in the module that NUMBA_CUDA_MEMORY_MANAGER names.
_numba_memory_manager = WeirMemoryManager


def enable(policy: Optional[str] = None, options: Any = None) -> None:
    """Makes Numba take device memory from weir, in contexts that are made from now on.

    Call it before anything else touches the GPU. `policy` and `options` as in weir.cupy.enable().
    """
    global _options
    _options = plugin_options(policy, options)
    cuda.set_memory_manager(WeirMemoryManager)
