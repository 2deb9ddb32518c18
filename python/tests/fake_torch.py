"""A stand-in for PyTorch, for machines that have none: what weir.torch reads of it before it builds its
extension, and a builder that fails.
"""

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
        self.builds = []

    @staticmethod
    def rebuild(tensor):
        return tensor

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
        for name in (*NAMES, "weir.torch", "weir._torch_sharing"):
            sys.modules.pop(name, None)


class Extension:
    """What the built extension would be."""

    def __init__(self):
        self.installs = []
        self.used_streams = []

    def install(self, options, exportable):
        self.installs.append((options, exportable))

    def installed(self):
        return bool(self.installs)

    def mark_stream_used(self, device, stream):
        self.used_streams.append((device, stream))
