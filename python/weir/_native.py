# SPDX-License-Identifier: Apache-2.0
"""The C library: found, loaded, with every call of weir.h declared and its errors turned into exceptions.

The declarations are C, in _abi.py. The package and the PyTorch plug-in share one libweir.so. It is
looked for

1. where the environment variable WEIR_LIBRARY says,
2. in the package (weir/lib), where pip puts it,
3. in build trees of the source tree that the package stands in,
4. wherever the system looks for libraries.
"""

import ctypes
import os
import re
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

from . import _abi
from ._errors import Error, error_class

PACKAGE = Path(__file__).resolve().parent
# The version that _abi.py speaks; before 1.0 another minor version may have other structures.
SPOKEN = (0, 1)
SONAME = f"libweir.so.{SPOKEN[0]}.{SPOKEN[1]}" if SPOKEN[0] == 0 else f"libweir.so.{SPOKEN[0]}"

# --- From C to ctypes -------------------------------------------------------------------------------

_PLAIN: Dict[str, Any] = {
    "void": None,
    "char": ctypes.c_char,
    "int32_t": ctypes.c_int32,
    "uint8_t": ctypes.c_uint8,
    "uint32_t": ctypes.c_uint32,
    "uint64_t": ctypes.c_uint64,
    "float": ctypes.c_float,
    "double": ctypes.c_double,
    "weir_error": ctypes.c_int32,
}


# ctypes cuts numbers that do not fit. Here they are errors: ctypes.ArgumentError for parameters, OverflowError
# for members of structures.
_RANGES: Dict[Any, Tuple[int, int]] = {
    ctypes.c_int32: (-2**31, 2**31 - 1),
    ctypes.c_uint8: (0, 2**8 - 1),
    ctypes.c_uint32: (0, 2**32 - 1),
    ctypes.c_uint64: (0, 2**64 - 1),
    ctypes.c_void_p: (0, 2**64 - 1),
}


def _does_not_fit(name: str, value: int, low: int, high: int) -> OverflowError:
    return OverflowError(f"weir: {name} is {value}, but must be between {low} and {high}")


class _Number:
    """A parameter that is a number or an address: the type for ctypes, which refuses what does not fit."""

    __slots__ = ("kind", "_low", "_high", "_name", "_is_size")

    def __init__(self, kind: Any, name: str) -> None:
        self.kind, self._name = kind, name
        self._low, self._high = _RANGES[kind]
        self._is_size = kind is ctypes.c_uint64

    def from_param(self, value: Any) -> Any:
        if isinstance(value, int):
            if not self._low <= value <= self._high:
                raise _does_not_fit(self._name, value, self._low, self._high)
            if value is True and self._is_size:
                raise TypeError(f"weir: {self._name}: expected a number, got True")
        return self.kind.from_param(value)


class Structure(ctypes.Structure):
    """A structure of weir.h; one that begins with its size knows it from the start."""

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, int):
            low, high = _RANGES.get(dict(self._fields_)[name], (value, value))
            if not low <= value <= high:
                raise _does_not_fit(name, value, low, high)
        super().__setattr__(name, value)

    def __init__(self, *values: Any, **members: Any) -> None:
        super().__init__(*values, **members)
        if self._fields_[0][0] == "struct_size":
            self.struct_size = ctypes.sizeof(self)


class _Types:
    """What a name of C means: plain types, our structures and callbacks, addresses for the rest."""

    def __init__(self) -> None:
        self.known: Dict[str, Any] = dict(_PLAIN)
        for result, name, parameters in re.findall(r"typedef (\w+) \(\*(\w+)\)\((.*?)\);",
                                                   _abi.CALLBACKS):
            kinds = [self.of(split(parameter)[0]) for parameter in parameters.split(", ")]
            self.known[name] = ctypes.CFUNCTYPE(self.of(result), *kinds)
        for name, members in re.findall(r"struct (\w+) \{\n(.*?)\};", _abi.STRUCTURES, re.S):
            fields = []
            for member in members.strip().rstrip(";").split(";"):
                kind, called, length = split(member)
                fields.append((called, self.of(kind) * length if length else self.of(kind)))
            self.known[name] = type(name, (Structure,), {"_fields_": fields})

    def of(self, kind: str) -> Any:
        kind = kind.replace("const ", "")
        if kind == "char*":
            return ctypes.c_char_p
        if not kind.endswith("*"):
            return self.known[kind]
        below = kind[:-1]
        if below == "void" or (below not in self.known and not below.endswith("*")):
            return ctypes.c_void_p  # an address, or a handle that only the library can read
        return ctypes.POINTER(self.of(below))


def split(declaration: str) -> Tuple[str, str, int]:
    """"char name[16]" as type, name and length; the length is 0 for what is no array."""
    match = re.fullmatch(r"\s*(.+?)\s*(\w+)(?:\[(\d+)\])?\s*", declaration)
    if match is None:
        raise ValueError(f"no declaration: {declaration}")
    return match[1], match[2], int(match[3] or 0)


def functions() -> Iterator[Tuple[str, str, List[str]]]:
    """Type, name and parameters of each call in _abi.py."""
    for line in _abi.FUNCTIONS.strip().splitlines():
        head, _, parameters = line.rstrip(");").partition("(")
        result, name, _ = split(head)
        yield result, name, [] if parameters == "void" else parameters.split(", ")


def _parameter(declaration: str) -> Any:
    kind, name, length = split(declaration)
    meant = types.of(kind + "*" if length else kind)  # C passes arrays as pointers
    return _Number(meant, name) if meant in _RANGES else meant


# --- The library ------------------------------------------------------------------------------------


def candidates() -> List[str]:
    """Where to look, first come first served."""
    named = os.environ.get("WEIR_LIBRARY")
    if named:
        return [named]  # whoever names one wants that one or an error
    paths = [PACKAGE / "lib" / SONAME]
    source = PACKAGE.parents[1]
    if (source / "include" / "weir.h").exists():
        # Not every tree under build/: a library with a sanitizer cannot be loaded into Python.
        paths += [source / "build" / tree / "src" / "libweir.so"
                  for tree in ("release", "gpu", "python", "debug", "")]
    return [str(path) for path in paths if path.exists()] + [SONAME, "libweir.so"]


def _load() -> ctypes.CDLL:
    problems = []
    for path in candidates():
        try:
            return ctypes.CDLL(path)
        except OSError as problem:
            problems.append(str(problem))
    raise ImportError("weir: libweir.so could not be loaded; build it with ./dev build, install the package "
                      "with `pip install .`, or set WEIR_LIBRARY: " + "; ".join(problems))


def last_error(code: int) -> Error:
    """The exception for a code that a call on this thread just returned."""
    message = lib.weir_last_error_message().decode("utf-8", "replace")
    name = lib.weir_error_name(code).decode()
    return error_class(code)(message or name, code, name, lib.weir_last_error_native())


def _raise_on_error(code: int, function: Any, arguments: Any) -> int:
    if code:
        raise last_error(code)
    return code


def _declare(library: ctypes.CDLL) -> None:
    for result, name, parameters in functions():
        function = getattr(library, name)
        function.restype = types.of(result)
        function.argtypes = [_parameter(parameter) for parameter in parameters]
        if result == "weir_error":
            function.errcheck = _raise_on_error


def quiet(name: str) -> Callable[..., int]:
    """The same call, but it returns its code: for where nobody could catch an exception."""
    function = lib[name]  # another object than lib.<name>
    function.restype, function.argtypes = ctypes.c_int32, getattr(lib, name).argtypes
    return function


types = _Types()
lib = _load()
try:
    _declare(lib)
except AttributeError as problem:
    raise ImportError(f"weir: {lib._name} is older than this package: {problem}") from problem
if (lib.weir_version() // 10000, lib.weir_version() // 100 % 100) != SPOKEN:
    raise ImportError(f"weir: {lib._name} is version {lib.weir_version_text().decode()}, this package "
                      f"needs {SPOKEN[0]}.{SPOKEN[1]}")


def structure(name: str) -> Any:
    """A structure of weir.h by its name, to be made and filled."""
    return types.known[name]


def library_path() -> Optional[str]:
    """The file of the library that was loaded, with links followed; None if the system will not say."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            for line in maps:
                path = line.rstrip("\n").partition("/")[2]
                if os.path.basename(path).startswith("libweir.so"):
                    return "/" + path
    except OSError:
        pass
    return None


# --- Calling ----------------------------------------------------------------------------------------

# In a forked child nothing that the parent opened can be used or freed: the library refuses such calls, and
# finalizers make none. So objects remember the process that opened them.
process: Callable[[], int] = os.getpid


def text(value: str) -> bytes:
    """A C string. What holds a null character cannot be one."""
    if "\0" in value:
        raise ValueError("weir: the text contains a null character")
    return value.encode()


def read_text(call: Callable[..., Any], *arguments: Any) -> str:
    """The text that a call hands out in the way of weir.h: asked for its length first."""
    length = ctypes.c_uint64()
    call(*arguments, None, 0, ctypes.byref(length))
    space = ctypes.create_string_buffer(length.value + 1)
    call(*arguments, space, len(space), ctypes.byref(length))
    return space.value.decode("utf-8", "replace")


def new(call: Callable[..., Any], *arguments: Any) -> int:
    """The handle, or the address, that a call writes behind its last parameter."""
    return number(call, *arguments, kind=ctypes.c_void_p)


def number(call: Callable[..., Any], *arguments: Any, kind: Any = ctypes.c_uint64) -> int:
    """The number that a call writes behind its last parameter; 0 for a null address."""
    value = kind()
    call(*arguments, ctypes.byref(value))
    return value.value or 0
