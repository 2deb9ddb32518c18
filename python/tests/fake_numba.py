# SPDX-License-Identifier: Apache-2.0
"""A stand-in for Numba, for machines that have none: the External Memory Management interface as its
documentation describes it, and a context that counts how often it was waited for.
"""

import abc
import collections
import contextlib
import sys
import types
import weakref

MemoryInfo = collections.namedtuple("MemoryInfo", "free,total")


class MemoryPointer:
    """Memory with a finalizer, called when nobody refers to it any more."""

    def __init__(self, context, pointer, size, owner=None, finalizer=None):
        self.context, self.device_pointer, self.size = context, pointer, size
        self._finalizer = weakref.finalize(self, finalizer) if finalizer else None


class IpcHandle:
    def __init__(self, base, handle, size, source_info=None, offset=0):
        self.base, self.size, self.offset = base, size, offset


class BaseCUDAMemoryManager(abc.ABC):
    def __init__(self, *args, **kwargs):
        if "context" not in kwargs:
            raise RuntimeError("Memory manager requires a context")
        self.context = kwargs.pop("context")

    @abc.abstractmethod
    def memalloc(self, size): ...

    @abc.abstractmethod
    def memhostalloc(self, size, mapped=False, portable=False, wc=False): ...

    @abc.abstractmethod
    def mempin(self, owner, pointer, size, mapped=False): ...

    @abc.abstractmethod
    def initialize(self):
        self.initialized = getattr(self, "initialized", 0) + 1

    @abc.abstractmethod
    def get_ipc_handle(self, memory): ...

    @abc.abstractmethod
    def get_memory_info(self): ...

    @abc.abstractmethod
    def reset(self): ...

    @abc.abstractmethod
    def defer_cleanup(self): ...

    @property
    @abc.abstractmethod
    def interface_version(self): ...


class HostOnlyCUDAMemoryManager(BaseCUDAMemoryManager):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.host_calls = []

    def memhostalloc(self, size, mapped=False, portable=False, wc=False):
        self.host_calls.append("memhostalloc")

    def mempin(self, owner, pointer, size, mapped=False):
        self.host_calls.append("mempin")

    def reset(self):
        self.host_calls.append("reset")

    @contextlib.contextmanager
    def defer_cleanup(self):
        self.host_calls.append("defer")
        yield
        self.host_calls.append("resume")


class GetIpcHandleMixin:
    def get_ipc_handle(self, memory):
        return IpcHandle(memory, b"\0" * 64, memory.size)


class CUdeviceptr(int):
    """As in NVIDIA's binding: an object that int() understands."""


class Context:
    def __init__(self, number, wait):
        self.device = types.SimpleNamespace(id=number)
        self.waits, self._wait = 0, wait

    def synchronize(self):
        self.waits += 1
        self._wait()


def install():
    """Makes it importable; returns the module numba.cuda."""
    numba, cuda = types.ModuleType("numba"), types.ModuleType("numba.cuda")
    cudadrv, driver = types.ModuleType("numba.cuda.cudadrv"), types.ModuleType("numba.cuda.cudadrv.driver")
    numba.cuda, cuda.cudadrv, cudadrv.driver = cuda, cudadrv, driver
    driver.USE_NV_BINDING, driver.binding = True, types.SimpleNamespace(CUdeviceptr=CUdeviceptr)
    for thing in (MemoryPointer, MemoryInfo, IpcHandle, BaseCUDAMemoryManager, HostOnlyCUDAMemoryManager,
                  GetIpcHandleMixin):
        setattr(cuda, thing.__name__, thing)

    def set_memory_manager(kind):
        if kind(context=None).interface_version != 1:
            raise RuntimeError("another version of the interface")
        cuda.manager = kind

    cuda.set_memory_manager = set_memory_manager
    sys.modules.update({"numba": numba, "numba.cuda": cuda, "numba.cuda.cudadrv": cudadrv,
                        "numba.cuda.cudadrv.driver": driver})
    return cuda
