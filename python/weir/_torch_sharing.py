# SPDX-License-Identifier: Apache-2.0
"""Tensors that processes share, where one of them runs weir and the other does not.

weir's memory consists of physical handles of several sizes. torch's own format of shared memory knows one size,
and the descriptors in it can be copied only by processes that may trace each other. Where a tensor does not fit
into that format, or nobody may trace, it is sent with rebuild_cuda_tensor() of this module in the place of
torch's: the receiving process opens the memory through weir, whatever its own allocator is.
"""

import contextlib
from multiprocessing.reduction import ForkingPickler
from typing import Any, List, Tuple

import torch
import torch.multiprocessing.reductions as reductions

_reduce_tensor = reductions.reduce_tensor
_rebuild_cuda_tensor = reductions.rebuild_cuda_tensor
_HANDLE = 7  # of rebuild_cuda_tensor()'s arguments


def install(extension: Any) -> None:
    """From now on this process sends tensors in a way that every process with weir installed can open."""

    def reduce_tensor(tensor: torch.Tensor) -> Tuple[Any, Any]:
        rebuild, arguments = _reduce_tensor(tensor)
        if rebuild is _rebuild_cuda_tensor:
            handle = arguments[_HANDLE]
            if handle is not None and extension.needs_weir(handle):
                rebuild = rebuild_cuda_tensor
        return rebuild, arguments

    reductions.reduce_tensor = reduce_tensor  # for tensors inside nested and sparse ones
    registered = ForkingPickler._extra_reducers  # type: ignore[attr-defined]
    for kind, reducer in list(registered.items()):
        if reducer is _reduce_tensor:
            registered[kind] = reduce_tensor


_unclosed: List[Tuple[Any, Tuple[bytes, int]]] = []
"""Memory without tensors that could not be closed yet, and the sender's counter of it."""


def _close(memory: Any, counter: Tuple[bytes, int]) -> bool:
    """Whether the memory was unmapped, behind the work that uses it, and its sender told."""
    try:
        memory.close()  # waits for the device; a device that is gone needs no wait
    except RuntimeError:
        return False  # queued work may use the memory: the sender must not reuse it
    with contextlib.suppress(RuntimeError):  # at the end of a process
        torch.UntypedStorage._release_ipc_counter(*counter)
    return True


def _close_received(memory: Any, counter: Tuple[bytes, int]) -> None:
    """Closes this memory, and what could not be closed before; what fails is tried again the next time."""
    _unclosed.append((memory, counter))
    failed = []
    with contextlib.suppress(IndexError):  # empty; other threads, and the collector, may take from it, too
        while True:
            each = _unclosed.pop()
            if not _close(*each):
                failed.append(each)
    _unclosed.extend(failed)


class _Received:
    """Memory of another process, as a CUDA array; closed with the last tensor on it, which tells the process
    that shares it."""

    def __init__(self, memory: Any, offset: int, size: int, counter: Tuple[bytes, int]) -> None:
        self._memory = memory
        self._counter = counter
        self._close = _close_received  # at the end of a process the module may have lost it
        self.__cuda_array_interface__ = {"shape": (size,), "typestr": "|u1", "version": 3,
                                         "data": (memory.address + offset, False)}

    def __del__(self) -> None:
        self._close(self._memory, self._counter)


def rebuild_cuda_tensor(tensor_cls: Any, tensor_size: Any, tensor_stride: Any, tensor_offset: int,
                        storage_cls: Any, dtype: torch.dtype, storage_device: int, storage_handle: bytes,
                        storage_size_bytes: int, storage_offset_bytes: int, requires_grad: bool,
                        ref_counter_handle: bytes, ref_counter_offset: int, event_handle: bytes,
                        event_sync_required: bool) -> torch.Tensor:
    """Does what torch's function of that name does, with memory that weir opens."""
    from . import torch as weir_torch

    key = (storage_handle, storage_offset_bytes)
    if weir_torch.is_enabled() or reductions.storage_from_cache(storage_cls, key) is not None:
        return _rebuild_cuda_tensor(
            tensor_cls, tensor_size, tensor_stride, tensor_offset, storage_cls, dtype, storage_device,
            storage_handle, storage_size_bytes, storage_offset_bytes, requires_grad, ref_counter_handle,
            ref_counter_offset, event_handle, event_sync_required)
    torch.cuda._lazy_init()
    device = torch.device("cuda", storage_device)
    with torch.cuda.device(device):
        if event_sync_required:
            torch.cuda.Event.from_ipc_handle(device, event_handle).wait()
        memory = weir_torch._load().OpenedMemory(storage_handle, storage_device)
        received = _Received(memory, storage_offset_bytes, storage_size_bytes,
                             (ref_counter_handle, ref_counter_offset))
        storage = torch.as_tensor(received, device=device).untyped_storage()
    reductions.shared_cache[key] = reductions.StorageWeakRef(storage)
    tensor = torch._utils._rebuild_tensor(
        torch.storage.TypedStorage(wrap_storage=storage, dtype=dtype, _internal=True),
        tensor_offset, tensor_size, tensor_stride)
    if tensor_cls == torch.nn.parameter.Parameter:
        return torch.nn.parameter.Parameter(tensor, requires_grad=requires_grad)
    tensor.requires_grad = requires_grad
    return tensor
