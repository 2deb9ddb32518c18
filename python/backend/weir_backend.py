# SPDX-License-Identifier: Apache-2.0
"""How pip turns this tree into a package (PEP 517 and 660): the Python files, the shared library that
CMake makes, and what the PyTorch plug-in is compiled from. Needs Python alone.

WEIR_LIBRARY names a libweir.so to pack instead of building one.
"""

import base64
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import time
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# What a source distribution must hold for the library and the package to be built from it.
SOURCES = ["CMakeLists.txt", "LICENSE", "README.md", "pyproject.toml", "cmake", "include", "plugins",
           "python", "src"]
LEFT_OUT = {"__pycache__", "tests"}  # folders

# --- What pip asks for ------------------------------------------------------------------------------


def get_requires_for_build_wheel(config_settings=None):
    return []


get_requires_for_build_sdist = get_requires_for_build_editable = get_requires_for_build_wheel


def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    folder = Path(metadata_directory) / dist_info()
    folder.mkdir(parents=True)
    for name, content in metadata_files().items():
        (folder / name).write_bytes(content)
    return folder.name


prepare_metadata_for_build_editable = prepare_metadata_for_build_wheel


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    files = {f"weir/{name}": path.read_bytes() for name, path in package_files().items()}
    # By its soname, the name under which whoever links it will look for it; a wheel has no links.
    files[f"weir/lib/{soname()}"] = library().read_bytes()
    return write_wheel(Path(wheel_directory), files)


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    library()  # the package looks for it in build/python
    return write_wheel(Path(wheel_directory), {"weir.pth": f"{ROOT / 'python'}\n".encode()})


def build_sdist(sdist_directory, config_settings=None):
    base = f"weir-{version()}"
    target = Path(sdist_directory) / f"{base}.tar.gz"

    def kept(entry):
        return None if LEFT_OUT & set(Path(entry.name).parts) else entry

    with tarfile.open(target, "w:gz", format=tarfile.PAX_FORMAT) as archive:
        for name in SOURCES:
            if (ROOT / name).exists():
                archive.add(ROOT / name, f"{base}/{name}", filter=kept)
        about = metadata_files()["METADATA"]
        entry = tarfile.TarInfo(f"{base}/PKG-INFO")
        entry.size, entry.mtime = len(about), int(time.time())
        archive.addfile(entry, io.BytesIO(about))
    return target.name


# --- Names and metadata -----------------------------------------------------------------------------


def version():
    """From the one place where it stands."""
    text = (ROOT / "include/weir/base/version.hpp").read_text()
    return ".".join(re.search(rf"#define WEIR_VERSION_{part} (\d+)", text).group(1)
                    for part in ("MAJOR", "MINOR", "PATCH"))


def soname():
    return f"libweir.so.{version().split('.')[0]}"


def dist_info():
    return f"weir-{version()}.dist-info"


def tag():
    """Any Python 3, this kind of machine: the library is called through ctypes."""
    return "py3-none-" + re.sub(r"[-.]", "_", sysconfig.get_platform())


def metadata_files():
    about = f"""\
Metadata-Version: 2.1
Name: weir
Version: {version()}
Summary: GPU memory: a caching allocator for CUDA, for Python, CuPy, Numba and PyTorch
License: Apache-2.0
Requires-Python: >=3.9
Description-Content-Type: text/markdown

{(ROOT / "README.md").read_text()}"""
    wheel = f"Wheel-Version: 1.0\nGenerator: weir_backend\nRoot-Is-Purelib: false\nTag: {tag()}\n"
    return {"METADATA": about.encode(), "WHEEL": wheel.encode(),
            "LICENSE": (ROOT / "LICENSE").read_bytes(), "top_level.txt": b"weir\n"}


# --- The parts --------------------------------------------------------------------------------------


def below(folder, *patterns):
    """The files below `folder` by their names relative to it."""
    paths = {path for pattern in patterns for path in folder.rglob(pattern) if path.is_file()}
    return {path.relative_to(folder).as_posix(): path for path in sorted(paths)
            if not LEFT_OUT & set(path.relative_to(folder).parts)}


def package_files():
    files = below(ROOT / "python/weir", "*.py", "py.typed")
    for name, path in below(ROOT / "include", "*.h", "*.hpp", "*.def").items():
        files[f"include/{name}"] = path
    for name, path in below(ROOT / "plugins/torch", "*").items():  # compiled where it is used
        files[f"plugins/torch/{name}"] = path
    return files


def library():
    """The path of the shared library, which is built where none was named."""
    named = os.environ.get("WEIR_LIBRARY")
    if named:
        if not Path(named).is_file():
            raise SystemExit(f"weir: WEIR_LIBRARY names no file: {named}")
        return Path(named)
    cmake = shutil.which("cmake")
    if cmake is None:
        raise SystemExit("weir: CMake 3.25 or later and a C++20 compiler are needed to build the "
                         "library, and there is no cmake (apt install cmake g++ ninja-build); or name "
                         "a built libweir.so in WEIR_LIBRARY")
    build = ROOT / "build/python"
    configure = [cmake, "-S", str(ROOT), "-B", str(build), "-DCMAKE_BUILD_TYPE=Release",
                 "-DWEIR_DEVELOPER=OFF", "-DWEIR_WERROR=OFF", "-DWEIR_INSTALL=OFF"]
    if not (build / "CMakeCache.txt").exists() and shutil.which("ninja"):
        configure += ["-G", "Ninja"]
    jobs = os.environ.get("WEIR_JOBS") or str(os.cpu_count() or 1)
    for command in (configure, [cmake, "--build", str(build), "--target", "weir_shared", "-j", jobs]):
        print("weir:", " ".join(command), file=sys.stderr, flush=True)
        subprocess.run(command, check=True, stdout=sys.stderr)
    return build / "src/libweir.so"


# --- The wheel --------------------------------------------------------------------------------------


def write_wheel(folder, files):
    files = {**files, **{f"{dist_info()}/{name}": content
                         for name, content in metadata_files().items()}}
    record = f"{dist_info()}/RECORD"
    rows = [f"{name},sha256={digest(content)},{len(content)}" for name, content in files.items()]
    files[record] = "\n".join([*rows, f"{record},,", ""]).encode()
    target = folder / f"weir-{version()}-{tag()}.whl"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, content in files.items():
            entry = zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0))  # the same input, the same wheel
            entry.external_attr = (0o100755 if ".so" in name else 0o100644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            wheel.writestr(entry, content)
    return target.name


def digest(content):
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
