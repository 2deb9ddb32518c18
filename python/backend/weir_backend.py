# SPDX-License-Identifier: Apache-2.0
"""How pip turns this tree into a package (PEP 517 and 660): the Python files, what CMake makes, and what the PyTorch
plug-in is compiled from. Needs Python alone.

CMake makes the shared library, and, where the libraries for it are installed, the command `weir` with the library that
`weir run` preloads. The simulated driver belongs to both. All are linked so that they run on other systems; the tag of the
wheel says on which (elf_imports.py).

WEIR_LIBRARY            a libweir.so to pack instead of building anything
WEIR_WHEEL_COMMAND      on: the command is required, off: it is left out; otherwise it is built where that is possible
WEIR_TORCH_EXTENSIONS   folders with extensions for PyTorch that were built ahead; those for this weir are packed
WEIR_JOBS               how many compilers run at a time
"""

import base64
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path

import elf_imports

ROOT = Path(__file__).resolve().parents[2]

# What a source distribution must hold for the library and the package to be built from it.
SOURCES = ["CHANGELOG.md", "CMakeLists.txt", "LICENSE", "README.md", "pyproject.toml", "cmake", "docs/man", "include", "plugins",
           "python", "src", "tools", "viewer"]
LEFT_OUT = {"__pycache__", "node_modules", "tests"}  # folders

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
    native = native_files()
    files.update(native)
    return write_wheel(Path(wheel_directory), files, tag(native))


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    library()  # the package looks for it in build/python
    return write_wheel(Path(wheel_directory), {"weir.pth": f"{ROOT / 'python'}\n".encode()}, tag({}))


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
    """As src/CMakeLists.txt has it: before 1.0 each minor version has a name of its own."""
    major, minor, _ = version().split(".")
    return f"libweir.so.{major}.{minor}" if major == "0" else f"libweir.so.{major}"


def dist_info():
    return f"weir-{version()}.dist-info"


def tag(native):
    """Any Python 3, as the library is called through ctypes; and the systems on which these files load."""
    if not native:  # an editable package, for this machine only
        return f"py3-none-linux_{os.uname().machine}"
    try:
        # What stands between them is loaded by torch, into a process that has what it needs.
        return "py3-none-" + elf_imports.platform((name, content) for name, content in native.items()
                                                  if content.startswith(b"\x7fELF") and "/torch_extensions/" not in name)
    except elf_imports.NotPortable as problem:
        # As from a compiler that is newer than elf_imports.py. Good enough to install here; ./dev wheel refuses it.
        print(f"weir: this wheel is for this machine only: {problem}", file=sys.stderr, flush=True)
        return tag({})


URLS = {"Homepage": "", "Documentation": "/tree/main/docs", "Source": "", "Changelog": "/blob/main/CHANGELOG.md",
        "Issues": "/issues"}
CLASSIFIERS = [
    "Development Status :: 4 - Beta",
    "Environment :: GPU :: NVIDIA CUDA",
    "Intended Audience :: Developers",
    "Intended Audience :: Science/Research",
    "License :: OSI Approved :: Apache Software License",
    "Operating System :: POSIX :: Linux",
    "Programming Language :: C++",
    "Programming Language :: Python :: 3",
    "Programming Language :: Python :: 3 :: Only",
    "Topic :: Scientific/Engineering :: Artificial Intelligence",
    "Topic :: Software Development :: Libraries",
    "Topic :: System :: Hardware",
    "Typing :: Typed",
]


def metadata_files(wheel_tag=None):
    project = re.search(r"HOMEPAGE_URL \"([^\"]+)\"", (ROOT / "CMakeLists.txt").read_text())
    lines = [
        "Metadata-Version: 2.1",
        "Name: weir",
        f"Version: {version()}",
        "Summary: GPU memory: a caching allocator for CUDA, for Python, CuPy, Numba and PyTorch",
        "Keywords: CUDA,GPU,memory,allocator,PyTorch,CuPy,Numba",
        "Author: The weir authors",
        "License: Apache-2.0",
        "License-File: LICENSE",
        "Requires-Python: >=3.9",
        *(f"Project-URL: {name}, {project.group(1)}{path}" for name, path in URLS.items() if project),
        *(f"Classifier: {each}" for each in CLASSIFIERS),
        "Description-Content-Type: text/markdown",
    ]
    about = "\n".join(lines) + "\n\n" + (ROOT / "README.md").read_text()
    wheel = f"Wheel-Version: 1.0\nGenerator: weir_backend\nRoot-Is-Purelib: false\nTag: {wheel_tag or tag({})}\n"
    return {"METADATA": about.encode(), "WHEEL": wheel.encode(), "LICENSE": (ROOT / "LICENSE").read_bytes(),
            "entry_points.txt": b"[console_scripts]\nweir = weir._command:main\n", "top_level.txt": b"weir\n"}


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
    for folder in filter(None, os.environ.get("WEIR_TORCH_EXTENSIONS", "").split(":")):
        for path in sorted(Path(folder).glob(f"weir{version()}-torch*.so")):
            files.setdefault(f"torch_extensions/{path.name}", path)
    return files


def named_library():
    named = os.environ.get("WEIR_LIBRARY")
    if named and not Path(named).is_file():
        raise SystemExit(f"weir: WEIR_LIBRARY names no file: {named}")
    return Path(named) if named else None


def library():
    """The path of the shared library, which is built where none was named."""
    return named_library() or make(["weir_shared"], command=False) / "src/libweir.so"


def native_files():
    """What CMake makes, by its names in the wheel; or the library that was named, alone."""
    named = named_library()
    if named:
        # By its soname, the name under which whoever links it will look for it; a wheel has no links.
        return {f"weir/lib/{soname()}": named.read_bytes()}
    wanted = os.environ.get("WEIR_WHEEL_COMMAND", "auto").lower()
    build = make(["all"], command={"on": True, "off": False}.get(wanted))
    prefix = build / "wheel"
    shutil.rmtree(prefix, ignore_errors=True)
    for component in ("weir_runtime", "weir_tools"):
        run([shutil.which("cmake"), "--install", str(build), "--component", component, "--prefix", str(prefix), "--strip"])
    files = {}
    for name, path in below(prefix, "*").items():
        if name.startswith("share/"):  # man page and completions, where the environment looks for them
            files[f"weir-{version()}.data/data/{name}"] = path.read_bytes()
        elif not path.is_symlink():
            name = name.replace(f"lib/libweir.so.{version()}", f"lib/{soname()}")
            files[f"weir/{name}"] = path.read_bytes()
    return files


def run(command):
    print("weir:", " ".join(command), file=sys.stderr, flush=True)
    subprocess.run(command, check=True, stdout=sys.stderr)


def make(targets, command):
    """Builds in build/python, and returns that folder. command: with the command, without it (False), or where it can
    be built (None)."""
    cmake = shutil.which("cmake")
    if cmake is None:
        raise SystemExit("weir: CMake 3.25 or later and a C++20 compiler are needed to build the "
                         "library, and there is no cmake (apt install cmake g++ ninja-build); or name "
                         "a built libweir.so in WEIR_LIBRARY")
    build = ROOT / "build/python"
    configure = [cmake, "-S", str(ROOT), "-B", str(build), "-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_INSTALL_LIBDIR=lib",
                 "-DWEIR_DEVELOPER=OFF", "-DWEIR_WERROR=OFF", "-DWEIR_INSTALL=ON", "-DWEIR_LIBRARIES=shared",
                 "-DWEIR_STATIC_COMMAND=ON", "-DWEIR_LIBDW=OFF", "-DWEIR_PRELOAD=ON",
                 "-DWEIR_SIM_DRIVER=ON"]
    if not (build / "CMakeCache.txt").exists() and shutil.which("ninja"):
        configure += ["-G", "Ninja"]
    try:
        run([*configure, f"-DWEIR_COMMAND={'OFF' if command is False else 'ON'}"])
    except subprocess.CalledProcessError:
        if command is not None:
            raise
        print("weir: the command weir is left out: it needs fmt, CLI11, nlohmann_json, and libz.a and libzstd.a (apt install "
              "libfmt-dev libcli11-dev nlohmann-json3-dev zlib1g-dev libzstd-dev)", file=sys.stderr, flush=True)
        run([*configure, "-DWEIR_COMMAND=OFF"])
    jobs = os.environ.get("WEIR_JOBS") or str(os.cpu_count() or 1)
    run([cmake, "--build", str(build), "--target", *targets, "-j", jobs])
    return build


# --- The wheel --------------------------------------------------------------------------------------


def write_wheel(folder, files, wheel_tag):
    files = {**files, **{f"{dist_info()}/{name}": content
                         for name, content in metadata_files(wheel_tag).items()}}
    record = f"{dist_info()}/RECORD"
    rows = [f"{name},sha256={digest(content)},{len(content)}" for name, content in files.items()]
    files[record] = "\n".join([*rows, f"{record},,", ""]).encode()
    target = folder / f"weir-{version()}-{wheel_tag}.whl"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, content in files.items():
            entry = zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0))  # the same input, the same wheel
            entry.external_attr = (0o100755 if content.startswith(b"\x7fELF") else 0o100644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            wheel.writestr(entry, content)
    return target.name


def digest(content):
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
