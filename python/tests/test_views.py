#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Typed views of memory, and what C and Python have of the allocator's smaller calls."""

import copy
import ctypes
import gc
import pickle
import unittest

from support import MIB, Case

import weir
from weir import _views


class Views(Case):
    def setUp(self):
        super().setUp()
        self.memory = weir.Allocator(self.device)
        self.stream = weir.Stream(self.device)

    def test_blocks_are_typed_arrays(self):
        block = self.memory.allocate(4096, self.stream)
        view = block.view("float32", (32, 32))
        self.assertEqual((view.shape, view.dtype, view.nbytes, view.ptr), ((32, 32), "<f4", 4096, block.ptr))
        interface = view.__cuda_array_interface__
        self.assertEqual((interface["shape"], interface["typestr"], interface["data"], interface["stream"]),
                         ((32, 32), "<f4", (block.ptr, False), self.stream.handle))
        self.assertEqual(block.view("int64").shape, (512,))
        self.assertEqual(block.view("u1").dtype, "|u1")
        self.assertEqual(block.view("<c8", 3).nbytes, 24)
        self.assertRaises(TypeError, block.view, "text")
        self.assertRaises(ValueError, block.view, "float32", 1025)
        self.assertRaises(ValueError, block.view, "float32", (-1,))
        self.assertRaises(ValueError, self.memory.allocate(10).view, "float32")
        self.assertRaises(TypeError, view.host)
        self.assertRaises(TypeError, copy.copy, view)
        self.assertRaises(TypeError, pickle.dumps, view)
        block.free()
        self.assertRaises(ValueError, block.view)

    def test_dlpack_keeps_the_block_until_the_consumer_gives_it_back(self):
        block = self.memory.allocate(4096, self.stream)
        ptr = block.ptr
        self.assertEqual(block.__dlpack_device__(), (_views.CUDA, 0))
        capsule = block.view("float32", (8, 4)).__dlpack__(stream=None)
        address = _views._api.PyCapsule_GetPointer(id(capsule), b"dltensor")
        managed = _views._Managed.from_address(address)
        tensor = managed.tensor
        self.assertEqual((tensor.data, tensor.device_type, tensor.ndim, tensor.code, tensor.bits, tensor.lanes),
                         (ptr, _views.CUDA, 2, 2, 32, 1))
        self.assertEqual((tensor.shape[0], tensor.shape[1], tensor.byte_offset), (8, 4, 0))
        rename = ctypes.pythonapi.PyCapsule_SetName
        rename.argtypes = [ctypes.py_object, ctypes.c_char_p]
        rename(capsule, b"used_dltensor")
        del block, capsule
        gc.collect()
        self.assertEqual(self.memory.stats().blocks.current, 1, "the consumer has it")
        managed.deleter(ctypes.pointer(managed))
        gc.collect()
        self.assertEqual(self.memory.stats().blocks.current, 0)

    def test_a_capsule_that_nobody_consumed_lets_go(self):
        self.memory.allocate(4096, self.stream).__dlpack__()
        gc.collect()
        self.assertEqual((self.memory.stats().blocks.current, len(_views._lent)), (0, 0))

    def test_pinned_memory_is_a_buffer_of_python(self):
        pool = weir.PinnedPool(self.device, threshold="1 MiB", declared_uses=True)
        self.assertEqual((pool.threshold, pool.rounded_size(100000)), (MIB, 106496))
        block = pool.allocate(64, self.stream)
        numbers = block.view("int32", (4, 4)).host()
        numbers[1, 2] = 7
        self.assertEqual((numbers.shape, numbers.format, numbers[1, 2]), ((4, 4), "i", 7))
        self.assertEqual(block.__dlpack_device__(), (_views.CUDA_HOST, 0))
        self.assertRaises(AttributeError, lambda: block.view().__cuda_array_interface__)
        block.free()

    def test_unified_memory_is_an_array_for_devices(self):
        field = weir.UnifiedBuffer(self.device, 4096, self.stream)
        field.use_on(self.stream)
        array = field.array("float64", (8, 8, 8))
        self.assertEqual((array.__dlpack_device__(), array.ptr), ((_views.CUDA_MANAGED, 0), field.ptr))
        field.close()


class Allocators(Case):
    def setUp(self):
        super().setUp()
        self.memory = weir.Allocator(self.device)
        self.stream = weir.Stream(self.device)

    def read(self, block):
        pool = weir.PinnedPool(self.device)
        host = pool.allocate(block.nbytes, self.stream)
        self.stream.copy(host.ptr, block.ptr, block.nbytes)
        self.stream.synchronize()
        return bytes(host.view().host())

    def test_only_cached_memory(self):
        self.assertIsNone(self.memory.allocate_cached(MIB, self.stream))
        address = self.memory.allocate(MIB, self.stream).ptr
        gc.collect()
        block = self.memory.allocate_cached("1 MiB", self.stream)
        self.assertEqual((block.ptr, block.nbytes), (address, MIB))

    def test_zeros_and_copies(self):
        self.assertEqual(self.read(self.memory.zeros(8, self.stream)), bytes(8))
        self.assertEqual(self.read(self.memory.copy_of(b"weirweir", self.stream)), b"weirweir")
        self.assertEqual(self.read(self.memory.copy_of(memoryview(b"weirweir"))), b"weirweir")
        self.assertEqual(self.memory.zeros(0).nbytes, 0)

    def test_figures(self):
        self.assertEqual(self.memory.rounded_size(1000), 1024)
        block = self.memory.allocate(1000, self.stream)
        other = weir.Stream(self.device)
        self.assertEqual(self.memory.streams_of(block), [])
        block.record_stream(other)
        self.assertEqual(self.memory.streams_of(block), [other.id])
        self.assertEqual(self.memory.stats().allocations, 1)
        self.memory.reset_counters()
        self.assertEqual((self.memory.stats().allocations, self.memory.stats().blocks.current), (0, 1))

    def test_arguments_of_other_types_are_named(self):
        for call in (weir.Stream, weir.Event, weir.StreamPool, weir.BinPool, weir.PinnedPool):
            self.assertRaisesRegex(TypeError, "device: expected a weir.Device", call, 0)
        self.assertRaisesRegex(TypeError, "device: expected a weir.Device", weir.UnifiedBuffer, 0, 64)
        self.assertRaisesRegex(TypeError, "stream must be a weir.Stream or None, got int",
                               weir.BinPool(self.device).allocate, 64, 7)
        self.assertRaisesRegex(TypeError, "dtype must name a type", self.memory.allocate(64).view, 7)


if __name__ == "__main__":
    unittest.main()
