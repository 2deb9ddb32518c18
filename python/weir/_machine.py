# SPDX-License-Identifier: Apache-2.0
"""Runtimes, devices, streams and events."""

import contextlib
import ctypes
import operator
import re
from typing import Any, Callable, Iterator, List, Mapping, Optional, Tuple, Union

from . import _native
from ._errors import Closed, Error, InvalidArgument
from ._native import lib, process, quiet, structure
from ._stats import CaptureStatus, DeviceInfo, device_info

Options = Union[str, Mapping[str, Any], None]


def options_text(options: Options = None, named: Optional[Mapping[str, Any]] = None) -> str:
    """Options as weir reads them: "name=value,name=value". docs/options.md lists them."""
    def written(value: Any) -> str:
        if isinstance(value, bool):
            return "on" if value else "off"
        return str(value).replace("\\", "\\\\").replace(",", "\\,")

    listed = [options] if isinstance(options, str) and options else []
    for group in (None if isinstance(options, str) else options, named):
        listed += [f"{name}={written(value)}" for name, value in (group or {}).items()]
    return ",".join(listed)


def all_options_text(options: Options, named: Mapping[str, Any], environment: bool) -> Any:
    """The same for a call of weir.h: what is not listed there comes from the environment, unless all is listed."""
    text = options_text(options, named)
    if not environment:
        initial = options_text({row["name"]: row["initial"] for row in option_rows()})
        text = f"{initial},{text}" if text else initial
    return _native.text(text)


Size = Union[int, str]  #: a number of bytes, or text such as "64 MiB"

_UNITS = {unit: 1 << 10 * power for power, unit in enumerate(("B", "KiB", "MiB", "GiB", "TiB"))}


def as_bytes(size: Any) -> int:
    """A size as a number: of an int as it is, of text as the options spell it ("4096", "20 MiB", "1GiB")."""
    if isinstance(size, str):
        match = re.fullmatch(r"([0-9]+) ?([KMGT]?i?B)?", size)
        if match is None or (match[2] or "B") not in _UNITS:
            raise InvalidArgument(f"weir: expected a size, got {size!r}; a size is a number of bytes, or text such as "
                                  "'4096', '512KiB', '20 MiB', '2GiB'", 1, "invalid_argument")
        number = int(match[1]) * _UNITS[match[2] or "B"]
    else:
        try:
            if isinstance(size, bool):
                raise TypeError
            number = operator.index(size)
        except TypeError:
            raise TypeError("weir: expected a size, a number of bytes or text such as '64 MiB', got "
                            f"{type(size).__name__}") from None
    if number < 0:
        raise ValueError(f"weir: size must not be negative, got {number}")
    if number >> 64:
        raise InvalidArgument(f"weir: the size {size!r} does not fit in 64 bits", 2, "size_overflow")
    return number


class Owned:
    """An object with a handle of the library's; a context manager. Closing twice does nothing; using it
    after that raises weir.Closed. Without close() the handle is closed when nobody uses it any more."""

    _handle = 0
    _closed = True  # until there is a handle
    _shared = False  # the process's, and not ours to close
    _process = 0  # that opened it; a forked child of it leaves the object alone
    _close_quietly: Callable[..., int]

    def __init_subclass__(cls, close: str = "", **more: Any) -> None:
        super().__init_subclass__(**more)
        if close:
            cls._close_quietly = staticmethod(quiet(close))

    def _own(self, handle: int) -> None:
        self._handle, self._closed, self._process = handle, False, process()

    def _share(self, handle: int) -> None:
        """A handle of the process's own object, which is never closed."""
        self._handle, self._shared, self._process = handle, True, process()

    def close(self) -> None:
        """Ends the object now. A second call does nothing."""
        if not self._closed:
            self._closed = True
            code = self._close_quietly(self._handle)
            if code:
                raise _native.last_error(code)

    @property
    def closed(self) -> bool:
        """Whether close() was called."""
        return self._closed

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Not copied and not pickled: a copy would close the handle of the original."""
        raise TypeError(f"weir: a {type(self).__name__} cannot be copied or pickled")

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def _words(self) -> str:
        """What there is to say of it, for repr()."""
        return ""

    def __repr__(self) -> str:
        name = f"weir.{type(self).__name__}"
        if self._closed and not self._shared:
            return f"<{name} closed>"
        try:
            return f"<{name} {self._words()}".rstrip() + ">"
        except Error:  # a driver that is gone has nothing to say
            return f"<{name}>"

    # The default is bound now: at the end of the process the module may be empty.
    def __del__(self, process: Callable[[], int] = process) -> None:
        if not self._closed and self._process == process():
            self._closed = True
            self._close_quietly(self._handle)


class Runtime(Owned, close="weir_runtime_close"):
    """A driver with its devices: the machine's own, or a simulated one.

        machine = weir.Runtime()                # a GPU, or a simulated one where there is none
        machine = weir.Runtime(runtime="sim", sim_devices=2)

    The variables of the environment (WEIR_RUNTIME, ...) count unless environment is False; options that
    are given here go before them.
    """

    def __init__(self, options: Options = None, *, environment: bool = True, **named: Any) -> None:
        self._own(_native.new(lib.weir_runtime_open, all_options_text(options, named, environment)))

    @classmethod
    def default(cls) -> "Runtime":
        """The process's own, which plug-ins share. It cannot be closed."""
        runtime = cls.__new__(cls)
        runtime._share(_native.new(lib.weir_default_runtime))
        return runtime

    def _info(self) -> Any:
        info = structure("weir_runtime_info")()
        lib.weir_runtime_get_info(self._handle, ctypes.byref(info))
        return info

    @property
    def driver(self) -> str:
        """The library that was opened, or "simulated"."""
        return str(self._info().driver, "utf-8", "replace")

    @property
    def driver_version(self) -> int:
        """13000 is CUDA 13.0."""
        return int(self._info().driver_version)

    @property
    def device_count(self) -> int:
        """How many devices there are."""
        return int(self._info().device_count)

    def device(self, number: int = 0) -> "Device":
        """The device with that number, from 0."""
        return Device(self, number)

    def devices(self) -> "List[Device]":
        """All devices."""
        return [Device(self, number) for number in range(self.device_count)]

    def __repr__(self) -> str:
        try:
            return f"<weir.Runtime {self.driver!r}>"
        except Closed:
            return "<weir.Runtime closed>"


class Device:
    """A device of a runtime, by its number."""

    def __init__(self, runtime: Runtime, number: int = 0) -> None:
        self.runtime = runtime
        self.number = number
        self.info: DeviceInfo = device_info(runtime._handle, number)  # asks, so that it exists

    def memory(self) -> Tuple[int, int]:
        """Free and total bytes, by all processes together."""
        free, total = ctypes.c_uint64(), ctypes.c_uint64()
        lib.weir_device_get_memory(self.runtime._handle, self.number, ctypes.byref(free),
                                   ctypes.byref(total))
        return free.value, total.value

    def synchronize(self) -> None:
        """Waits for all work of the device."""
        lib.weir_device_synchronize(self.runtime._handle, self.number)

    def stream_priorities(self) -> Tuple[int, int]:
        """The least and the greatest priority of streams; a smaller number goes first."""
        least, greatest = ctypes.c_int32(), ctypes.c_int32()
        lib.weir_device_get_stream_priorities(self.runtime._handle, self.number, ctypes.byref(least),
                                              ctypes.byref(greatest))
        return least.value, greatest.value

    def can_access_peer(self, other: "Device") -> bool:
        """Whether this device can reach the memory of another one of its runtime."""
        return bool(_native.number(lib.weir_device_can_access_peer, self.runtime._handle, self.number, other.number,
                                   kind=ctypes.c_int32))

    def set_peer_access(self, other: "Device", enabled: bool = True) -> None:
        """Lets this device reach plain memory of another, or not. Memory of allocators has Allocator.enable_peer(),
        memory of pools StreamPool.set_peer()."""
        lib.weir_device_set_peer_access(self.runtime._handle, self.number, other.number, int(enabled))

    def __repr__(self) -> str:
        return f"<weir.Device {self.number} {self.info.name!r}>"


def check_device(device: Any) -> None:
    """Raises a TypeError that says what to pass, if this is not a weir.Device."""
    if not isinstance(device, Device):
        raise TypeError(f"weir: device: expected a weir.Device, got {device!r}; weir.Runtime().device(0) is the first one")


def place_of(device: Any) -> Tuple[int, int]:
    """Runtime and number of a device, as calls take them."""
    check_device(device)
    return device.runtime._handle, device.number


class Stream(Owned, close="weir_stream_close"):
    """A stream of weir's own: destroyed when it is closed or forgotten, after the work that is queued.

    blocking: synchronises with the legacy stream instead of running beside it.
    priority: a smaller one goes first.
    """

    def __init__(self, device: Device, *, blocking: bool = False, priority: int = 0) -> None:
        check_device(device)
        self.device = device
        self._kept: Any = None
        self._own(_native.new(lib.weir_stream_create, *place_of(device),
                              int(blocking), priority))

    @classmethod
    def wrap(cls, device: Device, stream: Any) -> "Stream":
        """A reference to somebody's stream: a number (CUstream), or an object of CuPy, PyTorch, Numba or
        anything with __cuda_stream__, which is kept alive. Before that stream is destroyed, call
        weir.unwatch_stream(), which informs every allocator that met it."""
        wrapped = cls.__new__(cls)
        wrapped.device = device
        wrapped._kept = stream
        wrapped._own(_native.new(lib.weir_stream_wrap, *place_of(device),
                                 native_stream(stream)))
        return wrapped

    def _words(self) -> str:
        return f"{self.id} of device {self.device.number}"

    @property
    def handle(self) -> int:
        """The CUstream."""
        return _native.number(lib.weir_stream_get_native, self._handle, kind=ctypes.c_void_p)

    @property
    def id(self) -> int:
        """The driver's number of the stream, never used twice while the process lives."""
        return _native.number(lib.weir_stream_get_id, self._handle)

    def __cuda_stream__(self) -> Tuple[int, int]:
        return 0, self.handle

    def synchronize(self) -> None:
        """Waits until all work queued so far is done."""
        lib.weir_stream_synchronize(self._handle)

    @property
    def is_complete(self) -> bool:
        """Whether all work queued so far is done."""
        return bool(_native.number(lib.weir_stream_is_complete, self._handle, kind=ctypes.c_int32))

    @property
    def capture(self) -> CaptureStatus:
        """Whether the stream is being captured into a graph."""
        status = ctypes.c_int32()
        lib.weir_stream_get_capture(self._handle, ctypes.byref(status), None)
        return CaptureStatus(status.value)

    def wait(self, event: "Event") -> None:
        """Work queued from now on waits for what the event was last recorded behind."""
        lib.weir_stream_wait(self._handle, event._handle)

    def copy(self, to: int, source: int, nbytes: int) -> None:
        """Queues a copy between memory of any kind."""
        lib.weir_copy(to, source, nbytes, self._handle)

    def fill(self, to: int, value: int, nbytes: int) -> None:
        """Queues a fill with one byte value."""
        lib.weir_fill(to, value, nbytes, self._handle)


class Event(Owned, close="weir_event_close"):
    """A mark behind the work queued on a stream, complete when that is done."""

    def __init__(self, device: Device, *, timing: bool = False, blocking_sync: bool = False) -> None:
        self.device = device
        flags = (1 if timing else 0) | (4 if blocking_sync else 0)
        self._own(_native.new(lib.weir_event_create, *place_of(device), flags))

    def _words(self) -> str:
        return f"of device {self.device.number}, {'complete' if self.is_complete else 'pending'}"

    def record(self, stream: Any = None) -> None:
        """Behind what is queued on the stream so far; None is the legacy stream."""
        with stream_argument(self.device, stream) as known:
            lib.weir_event_record(self._handle, known)

    def record_all(self) -> None:
        """Behind all work that is queued in the device's context, on any stream. Fails while a stream of the context is
        being captured, and breaks that capture; needs CUDA 12.5."""
        lib.weir_event_record_all(self._handle)

    @property
    def handle(self) -> int:
        """The CUevent, for code that speaks to the driver itself."""
        return _native.number(lib.weir_event_get_native, self._handle, kind=ctypes.c_void_p)

    @property
    def is_complete(self) -> bool:
        """Whether the work before the mark is done; an event never recorded is complete."""
        return bool(_native.number(lib.weir_event_is_complete, self._handle, kind=ctypes.c_int32))

    def synchronize(self) -> None:
        """Waits until the work before the mark is done."""
        lib.weir_event_synchronize(self._handle)

    def elapsed_since(self, earlier: "Event") -> float:
        """Milliseconds between two marks of events made with timing=True."""
        value = ctypes.c_float()
        lib.weir_event_get_elapsed(earlier._handle, self._handle, ctypes.byref(value))
        return value.value


def native_stream(stream: Any) -> int:
    """The CUstream behind a number or an object that other libraries use for a stream; 0 is the legacy
    stream."""
    if stream is None:
        return 0
    if isinstance(stream, int):
        return stream
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        version_and_handle = protocol() if callable(protocol) else protocol
        return int(version_and_handle[1])
    for name in ("ptr", "cuda_stream", "handle"):  # CuPy, PyTorch, Numba
        value = getattr(stream, name, None)
        if value is not None:
            return int(getattr(value, "value", value) or 0)
    raise TypeError("weir: expected a stream of weir, CuPy, PyTorch or Numba, an object with __cuda_stream__, or a "
                    f"number, got {stream!r}")


@contextlib.contextmanager
def stream_argument(device: Device, stream: Any) -> Iterator[Optional[int]]:
    """The handle of any stream, for calls that take only streams that weir knows."""
    if stream is None or isinstance(stream, Stream):
        yield None if stream is None else stream._handle
    else:
        with Stream.wrap(device, stream) as known:
            yield known._handle


def watch_stream(stream: Any, device: Optional[Device] = None) -> None:
    """From now on every allocator and pool of the device counts the stream's work before freed memory
    leaves its stream, though no request may ever name it: for streams of somebody else that use memory and
    ask for none. Streams that were named in requests, and weir's own, count without this.

    A weir.Stream knows its device; of a number, or of another library's stream, `device` must say it. A
    stream that is watched must be unwatched before it is destroyed. weir.Error with the name bad_stream: a
    thread's default stream."""
    _about_stream(lib.weir_watch_stream, stream, device)


def unwatch_stream(stream: Any, device: Optional[Device] = None) -> None:
    """The stream will not be used any more: its last work is counted, and it is never asked again. Needed
    before a stream is destroyed that is watched, or that weir did not create and an allocator or pool has
    met: the same as release_stream() of all of them."""
    _about_stream(lib.weir_unwatch_stream, stream, device)


def _about_stream(call: Callable[..., Any], stream: Any, device: Optional[Device]) -> None:
    if isinstance(stream, Stream):
        call(stream._handle)
        return
    if device is None:
        raise TypeError("weir: only a weir.Stream knows its device; name the device of other streams")
    with Stream.wrap(device, stream) as known:
        call(known._handle)


def reported_errors() -> int:
    """How many failures there were that no call could return, since the process began."""
    return int(lib.weir_reported_errors())


def option_rows() -> Iterator[Mapping[str, str]]:
    """The table of options: name, type, initial, values, unit, environment, meaning."""
    for index in range(lib.weir_option_count()):
        info = structure("weir_option_info")()
        lib.weir_option_get_info(index, ctypes.byref(info))
        yield {name: getattr(info, name).decode() for name, _ in info._fields_
               if name not in ("struct_size", "reserved")}
