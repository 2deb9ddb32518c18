# SPDX-License-Identifier: Apache-2.0
"""A stand-in for CuPy, for machines that have none: the documented interface that weir.cupy uses, with
CuPy's rules (who calls the allocator, what it must return, whose stream is current, when a stream is
destroyed), on streams of a simulated GPU. It computes nothing.
"""

import sys
import threading
import types

import weir


class BaseMemory:
    def __init__(self, ptr, size, device_id):
        self.ptr, self.size, self.device_id = ptr, size, device_id


class UnownedMemory(BaseMemory):
    def __init__(self, ptr, size, owner, device_id=-1):
        if device_id < 0:
            raise RuntimeError("this stand-in cannot ask the driver for a pointer's device")
        super().__init__(ptr, size, device_id)
        self._owner = owner


class MemoryPointer:
    def __init__(self, mem, offset):
        if not isinstance(mem, BaseMemory):
            raise TypeError("mem is no BaseMemory")
        assert mem.ptr != 0 or offset == 0
        self.mem, self.ptr, self.device_id = mem, mem.ptr + offset, mem.device_id


class OutOfMemoryError(MemoryError):
    def __init__(self, size, total, limit=0):
        super().__init__(f"Out of memory allocating {size:,} bytes (allocated so far: {total:,} bytes)")


class PinnedMemoryPointer:
    def __init__(self, mem, offset):
        self.mem, self.ptr = mem, mem.ptr + offset

    def size(self):
        return self.mem.size - (self.ptr - self.mem.ptr)


class MemoryPool:
    """CuPy's own pool: here only what a program had before."""

    def malloc(self, size):
        return MemoryPointer(UnownedMemory(0x1000, size, None, 0), 0)


class PinnedMemoryPool:
    def malloc(self, size):
        return PinnedMemoryPointer(types.SimpleNamespace(ptr=0x2000, size=size), 0)


class MemoryAsyncPool:
    """Keeps the handle of a driver's pool for each device, as CuPy does."""

    def __init__(self, pool_handles="current"):
        self.handles = pool_handles

    def malloc(self, size):
        raise AssertionError("the stand-in calls no cudaMallocAsync")


class Fake:
    """One CuPy: install() makes it importable, remove() takes it away again."""

    def __init__(self):
        self.current = threading.local()
        self.device = 0
        self.runtime = None  # a weir.Runtime: where streams come from
        self.destroyed = []  # handles, in order
        self.pool, self.pinned_pool = MemoryPool(), PinnedMemoryPool()
        self.allocator, self.pinned_allocator = self.pool.malloc, self.pinned_pool.malloc
        fake = self

        class Stream:
            """Destroyed with the object, as CuPy's; the current stream of a thread is kept alive."""

            null = None

            def __init__(self, null=False):
                self.weir_stream = None if null else weir.Stream(fake.runtime.device(fake.device))
                self.ptr = 0 if null else self.weir_stream.handle
                self.device_id = fake.device

            def __del__(self):
                if self.weir_stream is not None:
                    fake.destroyed.append(self.ptr)
                    self.weir_stream.close()

            def __enter__(self):
                fake.stack().append(self)
                return self

            def __exit__(self, *_):
                fake.stack().pop()

            def synchronize(self):
                self.weir_stream.synchronize()

        Stream.null = Stream(null=True)
        self.Stream = Stream

    def stack(self):
        if not hasattr(self.current, "streams"):
            self.current.streams = [self.Stream.null]
        return self.current.streams

    def empty(self, nbytes):
        """An array, as far as memory is concerned: goes through the allocator that is set."""
        return self.allocator(nbytes)

    def empty_pinned(self, nbytes):
        return self.pinned_allocator(nbytes)

    def install(self):
        cupy, cuda = types.ModuleType("cupy"), types.ModuleType("cupy.cuda")
        memory, runtime = types.ModuleType("cupy.cuda.memory"), types.ModuleType("cupy.cuda.runtime")
        cupy.__version__ = "14.2.0"
        cupy.cuda = cuda
        cupy.get_default_memory_pool = lambda: self.pool
        cupy.get_default_pinned_memory_pool = lambda: self.pinned_pool
        cuda.memory, cuda.runtime = memory, runtime
        memory.OutOfMemoryError = OutOfMemoryError
        runtime.getDevice = lambda: self.device
        runtime.getDeviceCount = lambda: self.runtime.device_count
        cuda.UnownedMemory, cuda.MemoryPointer = UnownedMemory, MemoryPointer
        cuda.PinnedMemoryPointer, cuda.MemoryAsyncPool = PinnedMemoryPointer, MemoryAsyncPool
        cuda.Stream = self.Stream
        cuda.get_current_stream = lambda device_id=-1: self.stack()[-1]
        cuda.get_allocator = lambda: self.allocator
        cuda.set_allocator = lambda allocator=None: setattr(self, "allocator", allocator)
        cuda.set_pinned_memory_allocator = (
            lambda allocator=None: setattr(self, "pinned_allocator", allocator))
        sys.modules.update({"cupy": cupy, "cupy.cuda": cuda, "cupy.cuda.memory": memory,
                            "cupy.cuda.runtime": runtime})
        return cupy

    def remove(self):
        for name in [name for name in sys.modules if name.split(".")[0] == "cupy"]:
            del sys.modules[name]
