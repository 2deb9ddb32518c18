# SPDX-License-Identifier: Apache-2.0
"""torch's operations, streams and events, told to a UseBook.

What is seen: every operation that goes through torch's dispatcher in a thread that called watch(); record_stream();
events, waits and synchronisations of torch's own. What is not seen: kernels that are launched past the dispatcher
(Triton, extensions with calls of their own, what torch.compile made of several operations, replays of graphs), and waits
that are made past torch.
"""

import os
import sys
import threading
import warnings
from typing import Any, Callable, Dict, Iterator, List, Optional, Set, Tuple

import torch
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

from ._uses import Stack, Stream, UndeclaredUse, UseBook

Report = Callable[[UndeclaredUse], None]

_HERE = os.path.dirname(os.path.abspath(__file__))
_TORCH = os.path.join(os.path.dirname(os.path.abspath(torch.__file__)), "")
_DEEPEST = 30

_book: Optional[UseBook] = None
_report: Optional[Report] = None
_thread = threading.local()


class UndeclaredUseWarning(RuntimeWarning):
    """A block was freed too early for a use on another stream that nobody declared."""


def watch(report: Optional[Report] = None) -> None:
    """From now on, and for good: operations of this thread are looked at. The latest `report` counts; None warns."""
    global _book, _report
    _report = report
    if _book is None:
        _book = UseBook(_stack)
        _listen(_book)
    if not getattr(_thread, "watched", False):
        _Operations(_book).__enter__()
        _thread.watched = True


def _stack() -> Stack:
    """Of the program: without the frames of this package, and those of torch that called it."""
    frame = sys._getframe(1)
    frames: List[Any] = []
    while frame is not None and len(frames) < _DEEPEST:
        code = frame.f_code
        file = os.path.abspath(code.co_filename)
        if frames or not (os.path.dirname(file) == _HERE or file.startswith(_TORCH)):
            frames.append((code.co_filename, frame.f_lineno, code.co_name))
        frame = frame.f_back  # type: ignore[assignment]
    return tuple(frames)


def _tell(found: UndeclaredUse) -> None:
    if _report is not None:
        _report(found)
    else:
        warnings.warn(str(found), UndeclaredUseWarning, stacklevel=2)


def _listen(book: UseBook) -> None:
    import torch.cuda._gpu_trace as gpu_trace

    # torch tells the number of a stream, and makes its device the current one meanwhile.
    def at(stream: int) -> Stream:
        return torch.cuda.current_device(), stream

    def freed(address: int) -> None:
        for found in book.freed(address):
            _tell(found)

    gpu_trace.register_callback_for_memory_allocation(
        lambda address: book.allocated(address, at(torch.cuda.current_stream().cuda_stream)))
    gpu_trace.register_callback_for_memory_deallocation(freed)
    gpu_trace.register_callback_for_event_record(lambda event, stream: book.event_recorded(event, at(stream)))
    gpu_trace.register_callback_for_event_wait(lambda event, stream: book.event_waited(event, at(stream)))
    gpu_trace.register_callback_for_event_deletion(book.event_deleted)
    gpu_trace.register_callback_for_event_synchronization(book.event_synchronized)
    gpu_trace.register_callback_for_stream_synchronization(lambda stream: book.stream_synchronized(at(stream)))
    gpu_trace.register_callback_for_device_synchronization(
        lambda: book.device_synchronized(torch.cuda.current_device()))
    torch._C._activate_gpu_trace()


class _Operations(TorchDispatchMode):
    """Tells the book which blocks each operation uses, and on which stream."""

    def __init__(self, book: UseBook) -> None:
        super().__init__()
        self._uses = book

    def __torch_dispatch__(self, func: Any, types: Any, args: Tuple[Any, ...] = (),
                           kwargs: Optional[Dict[str, Any]] = None) -> Any:
        named = kwargs or {}
        name = func._schema.name
        if name == "aten::record_stream":
            self._declare(*args, **named)
            return func(*args, **named)
        # Before the call, which may free its arguments' memory, and behind it for what it made.
        self._tell(name, _used_arguments(func._schema, args, named))
        outcome = func(*args, **named)
        self._tell(name, _used_results(func._schema, outcome))
        return outcome

    def _declare(self, tensor: Any, s: Any) -> None:
        address = _address_of(tensor)
        if address is not None:
            stream = torch.cuda.Stream(stream_id=s.stream_id, device_index=s.device_index, device_type=s.device_type)
            self._uses.declared(address, (s.device_index, stream.cuda_stream))

    def _tell(self, name: str, values: Iterator[Any]) -> None:
        seen: Set[int] = set()
        for value in values:
            for leaf in _pytree.tree_flatten(value)[0]:
                address = _address_of(leaf)
                if address is not None and address not in seen:
                    seen.add(address)
                    stream = torch.cuda.current_stream(leaf.device).cuda_stream
                    self._uses.used(address, (leaf.device.index, stream), name)


def _used_arguments(schema: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Iterator[Any]:
    for argument, value in zip(schema.arguments, args):
        if not _is_view(argument):
            yield value
    for argument in schema.arguments[len(args):]:
        if argument.name in kwargs and not _is_view(argument):
            yield kwargs[argument.name]


def _used_results(schema: Any, outcome: Any) -> Iterator[Any]:
    results = outcome if len(schema.returns) > 1 else (outcome,)
    for declared, value in zip(schema.returns, results):
        if not _is_view(declared):
            yield value


def _is_view(declared: Any) -> bool:
    """Whether it is only looked at in another shape: no kernel touches it."""
    alias = declared.alias_info
    return alias is not None and not alias.is_write


def _address_of(value: Any) -> Optional[int]:
    """Where the memory of a tensor begins; None: it has none on a GPU."""
    if not isinstance(value, torch.Tensor) or not value.is_cuda:
        return None
    try:
        return value.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):  # a tensor without a storage, as compilers trace with
        return None
