# SPDX-License-Identifier: Apache-2.0
"""weir run inside Python: weir is enabled when torch, cupy or numba.cuda is imported.

`weir run` puts this folder in front of PYTHONPATH, so the interpreter imports this file when it starts. A
sitecustomize of the installation's own, which this one hides, is run as well.
"""

import importlib.machinery
import importlib.util
import os
import sys

_FOLDER = os.path.dirname(os.path.abspath(__file__))

# The module whose import is waited for: what enables weir in it.
_FRAMEWORKS = {"torch": "weir.torch", "cupy": "weir.cupy", "numba.cuda": "weir.numba"}


def _say(text):
    if not os.environ.get("WEIR_RUN_QUIET"):
        print(f"weir run: {text}", file=sys.stderr, flush=True)


def _enable(framework):
    """Never fails: a program whose framework cannot have weir runs as it is."""
    plugin = _FRAMEWORKS[framework]
    try:
        __import__(plugin)
        sys.modules[plugin].enable()
    except ImportError as reason:
        _say(f"{framework} keeps its own allocator: this Python cannot import {plugin} ({reason})")
    except Exception as reason:  # pylint: disable=broad-except
        _say(f"{framework} keeps its own allocator: {reason}")


class _Loader:
    """In front of a framework's own loader, which other modules may have as well and stays as it is. Gone before the
    framework's code runs: that sees its own loader, resources and all."""

    def __init__(self, loader, name):
        self._loader = loader
        self._name = name

    def __getattr__(self, attribute):
        return getattr(self._loader, attribute)

    def create_module(self, spec):
        create = getattr(self._loader, "create_module", None)
        return create(spec) if create else None

    def exec_module(self, module):
        module.__spec__.loader = self._loader
        if getattr(module, "__loader__", None) is self:
            module.__loader__ = self._loader
        self._loader.exec_module(module)
        _enable(self._name)


class _Finder:
    """Finds what the other finders find, and has weir enabled once it is imported. Each framework once."""

    def __init__(self):
        self._awaited = set(_FRAMEWORKS)

    def find_spec(self, name, path=None, target=None):
        if name not in self._awaited:
            return None
        self._awaited.discard(name)
        for finder in sys.meta_path:
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find else None
            if spec is not None:
                self._enable_after(name, spec)
                return spec
        self._awaited.add(name)
        return None

    @staticmethod
    def _enable_after(name, spec):
        if hasattr(spec.loader, "exec_module"):
            spec.loader = _Loader(spec.loader, name)


def _hide_from_children():
    kept = [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each and each != _FOLDER]
    if kept:
        os.environ["PYTHONPATH"] = os.pathsep.join(kept)
    else:
        os.environ.pop("PYTHONPATH", None)
    for name in ("WEIR_RUN_PYTHON", "WEIR_RUN_CHILDREN"):
        os.environ.pop(name, None)


def _run_hidden():
    """The sitecustomize that would have been imported without this one."""
    others = [each for each in sys.path if os.path.abspath(each) != _FOLDER]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


sys.meta_path.insert(0, _Finder())
if os.environ.get("WEIR_RUN_CHILDREN") == "off":
    _hide_from_children()
_run_hidden()
