#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""weir.cuda_core under a stand-in for the documented interface of cuda.core, on a simulated GPU."""

import abc
import sys
import types
import unittest
import unittest.mock

from support import MIB, Case

import weir


class MemoryResource(abc.ABC):
    @abc.abstractmethod
    def allocate(self, size, *, stream): ...

    @abc.abstractmethod
    def deallocate(self, ptr, size, *, stream): ...

    is_device_accessible = is_host_accessible = device_id = abc.abstractmethod(lambda self: None)


class Buffer:
    """Gives its memory back to its resource when it goes, on the stream it is closed with."""

    @classmethod
    def from_handle(cls, ptr, size, mr=None, owner=None, *, stream=None):
        buffer = cls()
        buffer.handle, buffer.size, buffer.resource = ptr, size, mr
        return buffer

    def close(self, stream=None):
        if self.resource is not None:
            self.resource.deallocate(self.handle, self.size, stream=stream)
            self.resource = None

    def __del__(self):
        self.close()


core = types.ModuleType("cuda.core")
core.Buffer, core.MemoryResource = Buffer, MemoryResource
sys.modules.update({"cuda": types.ModuleType("cuda"), "cuda.core": core})

import weir.cuda_core  # noqa: E402  (the stand-in must be there first)


class CudaCore(Case):
    def test_buffers_are_weirs(self):
        stream = weir.Stream(weir.Runtime.default().device(0))
        resource = weir.cuda_core.MemoryResource(types.SimpleNamespace(device_id=0), policy="compact")
        self.assertEqual((resource.device_id, resource.is_device_accessible, resource.is_host_accessible,
                          resource.is_managed), (0, True, False, False))
        buffer = resource.allocate(MIB, stream=stream)
        self.assertEqual(resource.allocator.find_block(buffer.handle).stream, stream.id)
        second = resource.allocate(MIB, stream=stream)
        self.assertEqual(resource.allocator.stats().blocks.current, 2)
        self.assertEqual((buffer.size, resource.allocator.size_of(buffer.handle)), (MIB, MIB))
        buffer.close(stream)
        self.assertEqual(resource.allocator.stats().blocks.current, 1)
        del second
        self.assertEqual(resource.allocator.stats().blocks.current, 0)
        self.assertIs(weir.cuda_core.MemoryResource(0, policy="compact").allocator, resource.allocator)

    def test_every_call_keeps_its_stream(self):
        stream = weir.Stream(weir.Runtime.default().device(0))
        resource = weir.cuda_core.MemoryResource()
        self.assertEqual(resource.device_id, 0)
        with unittest.mock.patch.object(resource, "_memory") as memory:
            memory.allocate.return_value.ptr = 0x1000
            buffer = resource.allocate(MIB, stream=stream)
            self.assertEqual((buffer.handle, buffer.size, buffer.resource), (0x1000, MIB, resource))
            resource.deallocate(0x1000, MIB)
            resource.deallocate(0x1000, MIB, stream=stream)
            resource.release_stream(stream)
            buffer.resource = None
        call = unittest.mock.call
        self.assertEqual(memory.mock_calls, [
            call.allocate(MIB, stream.handle), call.allocate().release(), call.deallocate(0x1000),
            call.deallocate(0x1000, stream.handle), call.release_stream(stream.handle)])

    def test_out_of_memory_is_a_memory_error(self):
        resource = weir.cuda_core.MemoryResource(0, options="heap_limit=16MiB")
        self.assertRaises(MemoryError, resource.allocate, 64 * MIB, stream=None)


if __name__ == "__main__":
    unittest.main()
