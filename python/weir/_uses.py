# SPDX-License-Identifier: Apache-2.0
"""Who uses which block on which stream, and whether the free of a block came too early for one of them.

Knows no torch: whoever sees the program's calls tells of them, in the order in which the program made them.
Events are known by their numbers, streams by their devices and numbers: each device has a default stream 0.
"""

import threading
from dataclasses import dataclass, field
from typing import Callable, Dict, Hashable, List, Set, Tuple

Stack = Tuple[Tuple[str, int, str], ...]  # file, line and function, the innermost first
Stacks = Callable[[], Stack]

Stream = Tuple[int, int]  # device and number

# Of each stream the last operation that is known to come before.
_Clock = Dict[Stream, int]


@dataclass(frozen=True)
class UndeclaredUse:
    """A block was freed on its stream while another stream, which nobody had declared, may still use it."""

    address: int
    stream: int  # that it was allocated for, and freed on
    used_on: int
    operation: str
    used_at: Stack
    freed_at: Stack
    device: int = 0  # of `stream`
    used_on_device: int = 0

    def __str__(self) -> str:
        freed_on, used_on = f"stream {self.stream:#x}", f"stream {self.used_on:#x}"
        if self.device != self.used_on_device:
            freed_on += f" of device {self.device}"
            used_on += f" of device {self.used_on_device}"
        return (f"memory at {self.address:#x} was freed on {freed_on} while {used_on} may "
                f"still use it: {self.operation} was queued there, nobody called record_stream(), and the one "
                f"stream did not wait for the other\n"
                f"  used in\n{_lines(self.used_at)}  freed in\n{_lines(self.freed_at)}")


def _lines(stack: Stack) -> str:
    return "".join(f"    {function} at {file}:{line}\n" for file, line, function in stack) or "    (not recorded)\n"


@dataclass
class _Use:
    number: int  # of the operation, in its stream
    operation: str
    stack: Stack


@dataclass
class _Block:
    stream: Stream
    uses: Dict[Stream, _Use] = field(default_factory=dict)  # the last of each other stream
    declared: Set[Stream] = field(default_factory=set)


class UseBook:
    """What a program did with blocks, streams and events.

    A use on the block's own stream is always in order, so only those on others are kept. A use is covered if the
    stream was declared (record_stream), if the block's stream waits for it, or if the host has waited. Any thread may
    call. A block whose allocation was not told of is left alone.

    The garbage collector may run wherever objects are made, here too, and its finalizers call the book on the same
    thread: they free tensors and events. So the lock is recursive, and no call relies on what another such call may
    change: dictionaries are copied before they are iterated.
    """

    def __init__(self, stacks: Stacks = tuple) -> None:
        self._stacks = stacks
        self._lock = threading.RLock()
        self._blocks: Dict[int, _Block] = {}
        self._counts: _Clock = {}  # operations of each stream
        self._behind: Dict[Stream, _Clock] = {}  # what each stream comes after
        self._events: Dict[Hashable, _Clock] = {}
        self._finished: _Clock = {}  # what the host has waited for

    # --- Blocks ----------------------------------------------------------------------------------

    def allocated(self, address: int, stream: Stream) -> None:
        block = _Block(stream)
        with self._lock:
            self._blocks[address] = block

    def used(self, address: int, stream: Stream, operation: str) -> None:
        with self._lock:
            number = self._counts[stream] = self._counts.get(stream, 0) + 1
            block = self._blocks.get(address)
        if block is None or stream == block.stream:
            return
        use = _Use(number, operation, self._stacks())
        with self._lock:
            latest = block.uses.get(stream)
            if latest is None or latest.number < number:
                block.uses[stream] = use

    def declared(self, address: int, stream: Stream) -> None:
        with self._lock:
            block = self._blocks.get(address)
            if block is not None:
                block.declared.add(stream)

    def freed(self, address: int) -> List[UndeclaredUse]:
        """The uses that it came too early for, the streams in the order of their first use."""
        with self._lock:
            block = self._blocks.pop(address, None)
            if block is None:
                return []
            early = [(stream, use) for stream, use in block.uses.copy().items()
                     if stream not in block.declared and not self._is_covered(block, stream, use)]
        if not early:
            return []
        stack = self._stacks()
        device, number = block.stream
        return [UndeclaredUse(address, number, stream[1], use.operation, use.stack, stack, device, stream[0])
                for stream, use in early]

    def _is_covered(self, block: _Block, stream: Stream, use: _Use) -> bool:
        ordered = self._behind.get(block.stream, {}).get(stream, 0)
        return max(ordered, self._finished.get(stream, 0)) >= use.number

    # --- Order -----------------------------------------------------------------------------------

    def event_recorded(self, event: Hashable, stream: Stream) -> None:
        with self._lock:
            self._events[event] = self._reached(stream)

    def event_waited(self, event: Hashable, stream: Stream) -> None:
        with self._lock:
            _advance(self._behind.setdefault(stream, {}), self._events.get(event, {}))

    def event_deleted(self, event: Hashable) -> None:
        with self._lock:
            self._events.pop(event, None)

    def event_synchronized(self, event: Hashable) -> None:
        with self._lock:
            _advance(self._finished, self._events.get(event, {}))

    def stream_synchronized(self, stream: Stream) -> None:
        with self._lock:
            _advance(self._finished, self._reached(stream))

    def device_synchronized(self, device: int) -> None:
        with self._lock:
            _advance(self._finished, {stream: number for stream, number in self._counts.copy().items()
                                      if stream[0] == device})

    def _reached(self, stream: Stream) -> _Clock:
        """What comes before whatever the stream is given next."""
        reached = self._behind.get(stream, {}).copy()
        reached[stream] = self._counts.get(stream, 0)
        return reached


def _advance(clock: _Clock, other: _Clock) -> None:
    for stream, number in other.copy().items():
        if clock.get(stream, 0) < number:
            clock[stream] = number
