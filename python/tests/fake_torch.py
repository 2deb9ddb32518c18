# SPDX-License-Identifier: Apache-2.0
"""A stand-in for PyTorch, for machines that have none: what weir.torch reads of it, a builder that fails, and an
extension that writes down what it is asked.
"""

import contextlib
import sys
import types

NAMES = ("torch", "torch.cuda", "torch.version", "torch.utils", "torch.utils.cpp_extension", "torch.multiprocessing",
         "torch.multiprocessing.reductions")


class Fake:
    """install() makes it `import torch`, remove() takes it and weir.torch away again."""

    def __init__(self, version="2.11.0+cu130", cuda="13.0", cxx11_abi=True):
        self.modules = {name: types.ModuleType(name) for name in NAMES}
        self.torch = self.modules["torch"]
        self.torch.__version__ = version
        self.torch.__file__ = __file__
        self.torch.compiled_with_cxx11_abi = lambda: cxx11_abi
        self.torch.version = self.modules["torch.version"]
        self.torch.version.cuda = cuda
        self.torch.cuda = self.modules["torch.cuda"]
        self.torch.cuda.Stream = type("Stream", (), {"device_index": 0, "stream_id": 35})
        self.torch.utils = self.modules["torch.utils"]
        self.torch.utils.cpp_extension = self.modules["torch.utils.cpp_extension"]
        self.torch.utils.cpp_extension.CUDA_HOME = None
        self.torch.utils.cpp_extension.load = self.load
        self.torch.multiprocessing = self.modules["torch.multiprocessing"]
        self.torch.multiprocessing.reductions = self.modules["torch.multiprocessing.reductions"]
        self.torch.multiprocessing.reductions.reduce_tensor = lambda tensor: (self.rebuild, (tensor,))
        self.torch.multiprocessing.reductions.rebuild_cuda_tensor = self.rebuild
        self.torch.Tensor = type("Tensor", (), {})
        self.torch.dtype = type("dtype", (), {})
        self.torch.device = Device
        self.torch.cuda.current_device = lambda: 1
        self.torch.cuda.OutOfMemoryError = type("OutOfMemoryError", (RuntimeError,), {})
        self.torch.cuda.MemPool = MemPool
        self.torch.cuda.memory = types.SimpleNamespace(CUDAPluggableAllocator=PluggableAllocator,
                                                       change_current_allocator=self.set_allocator)
        self.allocator = None
        self.builds = []

    @staticmethod
    def rebuild(*arguments):
        return ("torch's own", *arguments)

    def set_allocator(self, allocator):
        self.allocator = allocator

    def load(self, **arguments):
        self.builds.append(arguments)
        raise RuntimeError("Error building extension '_weir_torch'")

    def install(self):
        self.remove()
        sys.modules.update(self.modules)
        import weir.torch
        return weir.torch

    @staticmethod
    def remove():
        for name in (*NAMES, "weir.torch", "weir._torch_sharing", "weir._torch_suspend"):
            sys.modules.pop(name, None)
            package, _, part = name.rpartition(".")
            if package == "weir" and hasattr(sys.modules.get(package), part):
                delattr(sys.modules[package], part)  # `from . import` would find it there


class Device:
    """torch.device: "cuda" or "cuda:2", or the two parts."""

    def __init__(self, name, index=None):
        kind, _, number = name.partition(":")
        self.type, self.index = kind, int(number) if number else index

    def __eq__(self, other):
        return (self.type, self.index) == (other.type, other.index)


class MemPool:
    id = (1, 7)

    def __init__(self, *allocator, **arguments):
        self.allocator, self.arguments = allocator, arguments


class PluggableAllocator:
    """CUDAPluggableAllocator, whose allocator() is itself."""

    def __init__(self, *made_of):
        self.made_of = made_of
        self.hooks = {}

    def allocator(self):
        return self

    def __getattr__(self, name):
        if not name.startswith("set_"):
            raise AttributeError(name)
        return lambda address: self.hooks.update({name: address})


class Extension:
    """What the built extension would be: every call is written down in `calls`, `answers` holds what some return."""

    def __init__(self):
        self.installs = []
        self.used_streams = []
        self.calls = []
        self.answers = {}

    def install(self, options, exportable):
        self.installs.append((options, exportable))

    def installed(self):
        return bool(self.installs)

    def mark_stream_used(self, device, stream):
        self.used_streams.append((device, stream))

    def Tagged(self, name):  # noqa: N802  (a class there)
        return types.SimpleNamespace(enter=lambda: self.calls.append(("enter", name)),
                                     leave=lambda: self.calls.append(("leave", name)))

    def __getattr__(self, name):
        if name not in ("stats", "describe", "trim", "record", "stop_recording", "mark", "watch_stream",
                        "release_stream", "OpenedMemory", "needs_weir", "declare_suspendable",
                        "make_pool_suspendable", "suspend", "suspend_async", "resume", "resume_async",
                        "is_suspended", "suspend_stats", "reserve_backup", "trim_backup"):
            raise AttributeError(name)

        def call(*arguments):
            self.calls.append((name, *arguments))
            return self.answers.get(name)
        return call


class Received:
    """What rebuilding a tensor that another process sent needs of torch; `story` tells what was done, in order."""

    def __init__(self, torch):
        self.story = []
        torch.cuda._lazy_init = lambda: self.story.append("init")
        torch.cuda.device = self.device
        torch.cuda.Event = types.SimpleNamespace(from_ipc_handle=self.event)
        torch.as_tensor = self.as_tensor
        torch.UntypedStorage = types.SimpleNamespace(
            _release_ipc_counter=lambda *counter: self.story.append(("released", *counter)))
        torch._utils = types.SimpleNamespace(_rebuild_tensor=self.rebuild_tensor)
        torch.storage = types.SimpleNamespace(TypedStorage=lambda **arguments: arguments)
        self.parameter = type("Parameter", (), {"__init__": self.make_parameter})
        torch.nn = types.SimpleNamespace(parameter=types.SimpleNamespace(Parameter=self.parameter))
        reductions = torch.multiprocessing.reductions
        reductions.shared_cache = {}
        reductions.storage_from_cache = lambda kind, key: reductions.shared_cache.get(key)
        reductions.StorageWeakRef = lambda storage: ("weak", storage.bytes)

    @contextlib.contextmanager
    def device(self, device):
        self.story.append(("device", device.type, device.index))
        yield

    def event(self, device, handle):
        return types.SimpleNamespace(wait=lambda: self.story.append(("wait", device.index, handle)))

    @staticmethod
    def as_tensor(array, device):
        storage = types.SimpleNamespace(bytes=array.__cuda_array_interface__, keeps=array, device=device.index)
        return types.SimpleNamespace(untyped_storage=lambda: storage)

    @staticmethod
    def rebuild_tensor(storage, offset, size, stride):
        return types.SimpleNamespace(storage=storage, offset=offset, size=size, stride=stride)

    @staticmethod
    def make_parameter(made, tensor, requires_grad):
        made.tensor, made.requires_grad = tensor, requires_grad
