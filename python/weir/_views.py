# SPDX-License-Identifier: Apache-2.0
"""Typed views of memory, for every library that takes arrays of others: CUDA arrays, DLPack, Python's buffers."""

import ctypes
import struct
from typing import Any, Callable, Dict, Optional, Sequence, Tuple, Union

#: Where the bytes are, by DLPack's numbers.
CUDA, CUDA_HOST, CUDA_MANAGED = 2, 3, 13

Shape = Union[int, Sequence[int], None]

# By the letter of NumPy's array interface: DLPack's number of the kind, and the letters of Python's struct by size.
_KINDS: Dict[str, Tuple[int, Dict[int, str]]] = {
    "i": (0, {1: "b", 2: "h", 4: "i", 8: "q"}),
    "u": (1, {1: "B", 2: "H", 4: "I", 8: "Q"}),
    "f": (2, {2: "e", 4: "f", 8: "d"}),
    "b": (6, {1: "?"}),
    "c": (5, {8: "", 16: ""}),
}
_NAMES = {"bool": "b1", **{f"int{8 * size}": f"i{size}" for size in (1, 2, 4, 8)},
          **{f"uint{8 * size}": f"u{size}" for size in (1, 2, 4, 8)},
          **{f"float{8 * size}": f"f{size}" for size in (2, 4, 8)}, "complex64": "c8", "complex128": "c16"}


def type_of(dtype: Any) -> Tuple[str, int]:
    """Letter and size of an element type: "float32", "f4", "<f4", or anything whose text or `str` is one of these, as
    NumPy's and CuPy's types."""
    named = dtype if isinstance(dtype, str) else getattr(dtype, "str", None) or getattr(dtype, "__name__", dtype)
    text = str(named)
    short = _NAMES.get(text, text).lstrip("<=|")
    letter, digits = short[:1], short[1:]
    if letter in _KINDS and digits.isdigit() and int(digits) in _KINDS[letter][1]:
        return letter, int(digits)
    raise TypeError(f"weir: dtype must name a type such as 'float32', 'int64', 'u1' or 'complex64', got {dtype!r}")


# --- DLPack: a capsule with a structure that its consumer gives back -------------------------------------------------


class _Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
                ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
                ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64)]


class _Managed(ctypes.Structure):
    pass


_Deleter = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Managed))
_Managed._fields_ = [("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _Deleter)]

_lent: Dict[int, Tuple[Any, ...]] = {}  # by address of the structure: what has to live as long as it is used


def _forget(managed: Any) -> None:
    _lent.pop(ctypes.addressof(managed.contents), None)


_give_back = _Deleter(_forget)


_api: Any = ctypes.pythonapi
_api.PyCapsule_New.restype = ctypes.py_object
_api.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_api.PyCapsule_IsValid.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
_api.PyCapsule_GetPointer.restype = ctypes.c_void_p
_api.PyCapsule_GetPointer.argtypes = [ctypes.c_void_p, ctypes.c_char_p]


def _end_capsule(capsule: int) -> None:
    """The end of a capsule; one that somebody consumed has another name by then."""
    if _api.PyCapsule_IsValid(capsule, b"dltensor"):
        _lent.pop(_api.PyCapsule_GetPointer(capsule, b"dltensor"), None)


_drop_unused = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(_end_capsule)


# --- The view ---------------------------------------------------------------------------------------------------------


class ArrayView:
    """Memory as an array of one element type, contiguous, which CuPy, PyTorch, Numba, JAX and others take without a
    copy: cupy.asarray(view), torch.from_dlpack(view). Keeps the memory's owner alive; what ends before, because it
    was freed by a call, must not be used any more.

    shape, dtype, nbytes  as of NumPy's arrays
    """

    def __init__(self, owner: Any, ptr: int, nbytes: int, dtype: Any, shape: Shape, *, device: Tuple[int, int],
                 stream: Optional[Callable[[], int]] = None) -> None:
        self._letter, self._size = type_of(dtype)
        if shape is None:
            if nbytes % self._size:
                raise ValueError(f"weir: size must be a multiple of the element size, {self._size} bytes, got {nbytes}")
            shape = nbytes // self._size
        self.shape: Tuple[int, ...] = (shape,) if isinstance(shape, int) else tuple(shape)
        count = 1
        for extent in self.shape:
            if extent < 0:
                raise ValueError(f"weir: shape must not have a negative extent, got {self.shape}")
            count *= extent
        self.nbytes = count * self._size
        if self.nbytes > nbytes:
            raise ValueError(f"weir: shape {self.shape} needs {self.nbytes} bytes, and the memory has {nbytes}")
        self._owner, self._ptr, self._device, self._stream = owner, ptr, device, stream

    @property
    def dtype(self) -> str:
        """The element type, in NumPy's notation: "<f4"."""
        return ("|" if self._size == 1 else "<") + f"{self._letter}{self._size}"

    @property
    def ptr(self) -> int:
        """The address."""
        return self._ptr

    def __repr__(self) -> str:
        return f"<weir.ArrayView {self.dtype} {self.shape} at {self._ptr:#x}>"

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("weir: an ArrayView cannot be copied or pickled; copy its contents instead")

    @property
    def __cuda_array_interface__(self) -> Dict[str, Any]:
        if self._device[0] == CUDA_HOST:
            raise AttributeError("weir: pinned memory is on the host")
        interface = {"shape": self.shape, "typestr": self.dtype, "data": (self._ptr, False), "version": 3,
                     "strides": None}
        if self._stream is not None:
            interface["stream"] = self._stream() or 1  # 0 is forbidden there; 1 is the legacy stream
        return interface

    def __dlpack_device__(self) -> Tuple[int, int]:
        return self._device

    def __dlpack__(self, *, stream: Any = None, **_: Any) -> Any:
        """Consumers order their work behind the stream of the memory as the array interface says."""
        managed = _Managed()
        tensor = managed.tensor
        tensor.data, (tensor.device_type, tensor.device_id) = self._ptr, self._device
        tensor.ndim = len(self.shape)
        tensor.code, tensor.bits, tensor.lanes = _KINDS[self._letter][0], 8 * self._size, 1
        extents = (ctypes.c_int64 * max(len(self.shape), 1))(*self.shape)
        tensor.shape = ctypes.cast(extents, ctypes.POINTER(ctypes.c_int64))
        managed.deleter = _give_back
        address = ctypes.addressof(managed)
        _lent[address] = (managed, extents, self)
        return _api.PyCapsule_New(address, b"dltensor", ctypes.cast(_drop_unused, ctypes.c_void_p))

    def host(self) -> memoryview:
        """The elements for the host, by Python's buffer protocol; only of memory that the host can touch."""
        if self._device[0] == CUDA:
            raise TypeError("weir: the host cannot access device memory; copy it first")
        bytes_ = memoryview((ctypes.c_ubyte * self.nbytes).from_address(self._ptr) if self.nbytes else b"").cast("B")
        letter = _KINDS[self._letter][1][self._size]
        if not letter:
            raise TypeError("weir: Python's buffers do not support complex elements; view the parts as floats")
        assert struct.calcsize(letter) == self._size
        return bytes_.cast(letter, list(self.shape)) if self.nbytes else bytes_.cast(letter)
