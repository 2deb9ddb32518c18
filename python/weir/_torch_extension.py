# SPDX-License-Identifier: Apache-2.0
"""The extension for PyTorch as a file: for which torch it is, where built ones are looked for, how one is compiled.

Nothing here imports torch. `python -m weir.torch_build` compiles against an installed torch or against its headers
alone; weir.torch.enable() chooses among what was built.

A built extension fits one release of torch, one major version of CUDA, one C++ ABI, one Python ABI and one state of
weir's sources. Its file name says all of them.
"""

import concurrent.futures
import functools
import hashlib
import importlib.machinery
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import List, NamedTuple, Optional, Tuple

from . import _native

MODULE = "_weir_torch"
# What a compilation was measured to take.
DURATION = "about 40 s with 16 cores"


class Torch(NamedTuple):
    """What of a torch an extension depends on."""

    version: str     # torch.__version__
    cuda: str        # torch.version.cuda
    cxx11_abi: bool  # torch.compiled_with_cxx11_abi()

    def text(self) -> str:
        return f"torch {self.version} (CUDA {self.cuda}, {python_abi()})"


class Installation(NamedTuple):
    """A torch to compile for: its headers, its libraries if they are there, and what it is."""

    torch: Torch
    headers: Path
    libraries: Optional[Path]
    flags: Tuple[str, ...]  # what torch itself passes to extensions


def python_abi() -> str:
    """"cpython-312-x86_64-linux-gnu": of the interpreter that runs."""
    return str(sysconfig.get_config_var("EXT_SUFFIX")).strip(".").rpartition(".")[0]


def sources() -> Path:
    """The folder with plugins/torch and include: the package, or the source tree that it is part of."""
    for root in (_native.PACKAGE, _native.PACKAGE.parents[1]):
        if (root / "plugins" / "torch" / "module.cpp").exists():
            return root
    raise RuntimeError("weir.torch: the sources of the torch plug-in are not in the package")


@functools.lru_cache(maxsize=None)
def _digest(root: Path) -> str:
    digest = hashlib.sha256()
    for folder in (root / "plugins" / "torch", root / "include"):
        for path in sorted(folder.rglob("*")):
            if path.suffix in (".cpp", ".hpp", ".h", ".def"):
                digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


def file_name(torch: Torch) -> str:
    """The name of a built extension for this torch.

    Builds of one release for several minor versions of CUDA share a name: "2.11.0+cu126" and "2.11.0+cu128". A
    development version fits itself only.
    """
    release = re.fullmatch(r"(\d+\.\d+\.\d+)(\+cu\d+)?", torch.version)
    version = release.group(1) if release else re.sub(r"[^\w.+]", "_", torch.version)
    abi = "cxx11" if torch.cxx11_abi else "precxx11"
    weir = _native.lib.weir_version_text().decode()
    return (f"weir{weir}-torch{version}-cuda{torch.cuda.split('.')[0]}-{abi}-{python_abi()}-"
            f"{_digest(sources())}.so")


# --- Finding one ------------------------------------------------------------------------------------


def folders() -> List[Path]:
    """Where built extensions are looked for, first come first served: the folders that WEIR_TORCH_EXTENSIONS names
    (separated by colons), then torch_extensions in the package."""
    named = os.environ.get("WEIR_TORCH_EXTENSIONS", "").split(":")
    return [*(Path(folder) for folder in named if folder), _native.PACKAGE / "torch_extensions"]


def find(torch: Torch) -> Optional[Path]:
    """The built extension for this torch, or None."""
    name = file_name(torch)
    return next((folder / name for folder in folders() if (folder / name).is_file()), None)


def others() -> List[str]:
    """The names of the built extensions there are, for messages."""
    return sorted({path.name for folder in folders() if folder.is_dir() for path in folder.glob("weir*-torch*.so")})


def missing_tools() -> List[str]:
    """What torch needs to compile an extension and this machine lacks."""
    compiler = os.environ.get("CXX", "c++").split()[0]
    return [what for what, there in ((f"a C++ compiler ({compiler})", shutil.which(compiler)),
                                     ("ninja", shutil.which("ninja"))) if not there]


def advice() -> str:
    """What to do where no extension fits and none can be compiled."""
    return ("Either install a C++20 compiler and ninja; or run `python -m weir.torch_build --output FOLDER DIR` on a machine "
            "that has a compiler, with the same Python and this torch in DIR, and name the FOLDER in WEIR_TORCH_EXTENSIONS; "
            "or use weir.torch.pluggable(), which needs no extension and does less.")


# What a name says, in the order of its parts.
_NAME = re.compile(r"weir(?P<weir>.+?)-torch(?P<torch>.+?)-cuda(?P<cuda>\d+)-(?P<cxx>cxx11|precxx11)-(?P<python>.+)-"
                   r"(?P<sources>[0-9a-f]{12})\.so")
_CXX = {"cxx11": "the C++11 ABI", "precxx11": "the C++ ABI before C++11"}


def differences(wanted: str, name: str) -> List[str]:
    """What the extension of this name is for, where that differs from the wanted one: ["torch 2.10.0", "CUDA 12"]."""
    this, other = _NAME.fullmatch(wanted), _NAME.fullmatch(name)
    if this is None or other is None:
        return ["something else"]
    texts = {"weir": f"weir {other['weir']}", "torch": f"torch {other['torch']}", "cuda": f"CUDA {other['cuda']}",
             "cxx": _CXX[other["cxx"]], "python": other["python"], "sources": "another state of weir's sources"}
    return [text for part, text in texts.items() if other[part] != this[part]]


def mismatch(torch: Torch) -> str:
    """Why no built extension is used: what was looked for and where, and the nearest of what was found."""
    wanted = file_name(torch)
    text = f"no built extension fits {torch.text()}: looked for {wanted} in {', '.join(map(str, folders()))}, and"
    there = sorted(((differences(wanted, name), name) for name in others()), key=lambda each: (len(each[0]), each[1]))
    if not there:
        return f"{text} no extension was found"
    found = [f"{name} (for {', '.join(parts)})" for parts, name in there[:3]]
    more = f" and {len(there) - 3} more" if len(there) > 3 else ""
    return f"{text} found {', '.join(found)}{more}"


# --- Looking at a torch -----------------------------------------------------------------------------


_ASK = """
import json, torch
flags = [f'-DPYBIND11_{part}="{getattr(torch._C, "_PYBIND11_" + part)}"'
         for part in ("COMPILER_TYPE", "STDLIB", "BUILD_ABI") if getattr(torch._C, "_PYBIND11_" + part, None)]
print(json.dumps([torch.__version__, torch.version.cuda, torch.compiled_with_cxx11_abi(), flags]))
"""


def look(folder: Path, cuda: Optional[str] = None) -> Installation:
    """The torch in a folder: a site-packages with torch in it, the package torch, or its include folder alone.

    cuda  the version of CUDA, for headers that do not say for which they are
    """
    folder = folder.resolve()
    package = next((each for each in (folder / "torch", folder) if (each / "include" / "c10").is_dir()), None)
    if package is None and (folder / "c10").is_dir():
        return Installation(_of_headers(folder, None, cuda), folder, None, ())
    if package is None:
        raise RuntimeError(f"weir.torch: no torch in {folder}: expected c10 in torch/include, in include or in it")
    headers = package / "include"
    libraries = package / "lib" if list((package / "lib").glob("libc10.so*")) else None
    if list(package.glob(f"_C.{python_abi()}.so")):
        asked = subprocess.run([sys.executable, "-c", _ASK], capture_output=True, text=True, check=False,
                               env={**os.environ, "PYTHONPATH": str(package.parent)})
        if asked.returncode == 0:
            version, of_cuda, cxx11_abi, flags = json.loads(asked.stdout.splitlines()[-1])
            if not of_cuda:
                raise RuntimeError(f"weir.torch: the torch {version} in {folder} was built without CUDA")
            return Installation(Torch(version, of_cuda, cxx11_abi), headers, libraries, tuple(flags))
    return Installation(_of_headers(headers, package, cuda), headers, libraries, ())


def _of_headers(headers: Path, package: Optional[Path], cuda: Optional[str]) -> Torch:
    version = ""
    said = (package / "version.py").read_text() if package and (package / "version.py").exists() else ""
    found = re.search(r"__version__ = '([^']+)'", said)
    if found:
        version = found.group(1)
    for path in ("torch/headeronly/version.h", "torch/csrc/api/include/torch/version.h", "torch/version.h"):
        if not version and (headers / path).exists():
            text = (headers / path).read_text()
            parts = [re.search(rf"#define TORCH_VERSION_{part} (\d+)", text) for part in ("MAJOR", "MINOR", "PATCH")]
            version = ".".join(part.group(1) for part in parts if part)
    if not version:
        raise RuntimeError(f"weir.torch: {headers} has no torch/version.h with the version of torch")
    found = re.search(r"cuda(?:: Optional\[str\])? = '([^']+)'", said)
    of_cuda = cuda or (found.group(1) if found else "")
    if not of_cuda:
        raise RuntimeError(f"weir.torch: {headers} does not name its CUDA version; pass it, for example --cuda 13.0")
    core = package / "lib" / "libc10.so" if package else None
    return Torch(version, of_cuda, core is None or not core.exists() or b"__cxx11" in core.read_bytes())


# --- Compiling one ----------------------------------------------------------------------------------


def cuda_headers(packages: Path, home: Optional[str] = None, last: Optional[str] = None) -> Path:
    """The folder with cuda_runtime_api.h: of the toolkit that CUDA_HOME or `home` names, of the packages that torch was
    installed with, which are in the folder `packages`, or of the toolkit `last`."""
    places = [Path(each) / "include" for each in (os.environ.get("CUDA_HOME"), home) if each]
    places += sorted((packages / "nvidia").glob("*/include"))
    places += [Path(last) / "include"] if last else []
    for place in places:
        if (place / "cuda_runtime_api.h").exists():
            return place
    raise RuntimeError("weir.torch: cuda_runtime_api.h was not found; set CUDA_HOME to the CUDA toolkit")


def _check_cuda(headers: Path, torch: Torch) -> None:
    """Raises a RuntimeError for headers of another major version than torch's, which has other functions."""
    found = re.search(r"#define\s+CUDART_VERSION\s+(\d+)", (headers / "cuda_runtime_api.h").read_text())
    major = torch.cuda.split(".")[0]
    if found and str(int(found.group(1)) // 1000) != major:
        raise RuntimeError(f"weir.torch: {headers} belongs to CUDA {int(found.group(1)) // 1000}, and torch {torch.version} was "
                           f"built with CUDA {torch.cuda}; set CUDA_HOME to a toolkit of CUDA {major}")


# What an extension is linked with. Where the libraries of torch are not there, empty ones of these names stand in: the
# loader needs their names, and finds the real ones in the process.
_LIBRARIES = ("c10", "c10_cuda", "torch", "torch_cpu", "torch_python")


def _run(command: List[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "LC_ALL": "C"})
    if done.returncode != 0:
        raise RuntimeError(f"weir.torch: this command failed:\n  {' '.join(command)}\n{done.stderr[-4000:]}")


def _compile(source: Path, target: Path, chosen: Installation, compiler: List[str], cuda: Path) -> Path:
    root = sources()
    _run([*compiler, "-O2", "-std=c++20", "-fPIC", "-fvisibility=hidden", "-fno-plt", f"-DTORCH_EXTENSION_NAME={MODULE}",
          "-DNDEBUG", "-DTORCH_API_INCLUDE_EXTENSION_H", f"-D_GLIBCXX_USE_CXX11_ABI={int(chosen.torch.cxx11_abi)}", *chosen.flags,
          "-I", str(root / "include"), "-I", str(cuda), "-isystem", str(chosen.headers),
          "-isystem", str(chosen.headers / "torch/csrc/api/include"), "-isystem", sysconfig.get_paths()["include"],
          "-c", str(source), "-o", str(target)])
    return target


def _link(objects: List[Path], target: Path, chosen: Installation, compiler: List[str], folder: Path) -> None:
    stand_ins = folder / "lib"
    stand_ins.mkdir()
    for name in _LIBRARIES:
        real = chosen.libraries / f"lib{name}.so" if chosen.libraries else None
        if real is None or not real.exists():
            empty = stand_ins / "empty.c"
            empty.write_text("")
            _run([*compiler, "-x", "c", "-shared", "-nostdlib", f"-Wl,-soname,lib{name}.so", str(empty),
                  "-o", str(stand_ins / f"lib{name}.so")])
    library = _native.library_path()
    if library is None:
        raise RuntimeError("weir.torch: the file of the loaded libweir.so cannot be found")
    where = [f"-L{chosen.libraries}"] if chosen.libraries else []
    # No path of libweir.so is kept: the process that loads the extension has loaded it, and the loader knows it by its soname.
    _run([*compiler, "-shared", "-Wl,-z,now", "-Wl,--no-as-needed", *map(str, objects), library, *where, f"-L{stand_ins}",
          *(f"-l{name}" for name in _LIBRARIES), "-o", str(target)])


def build(chosen: Installation, output: Path, jobs: int = 0) -> Path:
    """Compiles the extension for a torch into the folder `output`; returns its path. Raises RuntimeError with what the
    compiler said. An extension that is there already is compiled again."""
    compiler = os.environ.get("CXX", "c++").split()
    if not shutil.which(compiler[0]):
        raise RuntimeError(f"weir.torch: the C++ compiler {compiler[0]} was not found; set CXX to another one")
    cuda = cuda_headers(chosen.headers.parents[1], last="/usr/local/cuda")
    _check_cuda(cuda, chosen.torch)
    output.mkdir(parents=True, exist_ok=True)
    target = output / file_name(chosen.torch)
    # In a folder of its own, and moved when it is whole: one that is killed leaves no half of an extension.
    with tempfile.TemporaryDirectory(prefix="build-", dir=output) as name:
        folder = Path(name)
        parts = sorted((sources() / "plugins" / "torch").glob("*.cpp"))
        with concurrent.futures.ThreadPoolExecutor(jobs or os.cpu_count() or 1) as pool:
            objects = list(pool.map(lambda part: _compile(part, folder / f"{part.stem}.o", chosen, compiler, cuda), parts))
        _link(objects, folder / target.name, chosen, compiler, folder)
        shutil.move(str(folder / target.name), str(target))
    return target
