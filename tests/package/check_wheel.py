#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Installs a wheel into a fresh environment where no compiler is on PATH, and uses everything in it on the simulated GPU.

    check_wheel.py WHEEL

Prints what each step took. Fails where a file needs a library that not every system has (elf_imports.py), where the tag of
the wheel promises more than its files keep, or where something does not work.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python/backend"))

import elf_imports  # noqa: E402

LIBRARY = """
import sys, time
started = time.perf_counter()
import weir
memory = weir.Allocator(weir.Runtime().device(0))
stream = weir.Stream(memory.device)
with memory.allocate(1 << 20, stream) as block:
    stream.fill(block.ptr, 7, block.nbytes)
    stream.synchronize()
    assert memory.stats().requested.current == 1 << 20
assert weir.library_path().startswith(sys.prefix), weir.library_path()
print(f"{time.perf_counter() - started:.2f} s from import to a freed block")
"""

# A program of the driver, as others are written: it knows nothing of weir.
PROGRAM = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
def call(name, *arguments):
    code = getattr(cuda, name)(*arguments)
    assert code == 0, (name, code)
device, context, pointer = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
call("cuInit", 0)
call("cuDeviceGet", ctypes.byref(device), 0)
call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
call("cuCtxSetCurrent", context)
call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(1 << 20))
data, back = ctypes.create_string_buffer(b"x" * 4096, 4096), ctypes.create_string_buffer(4096)
call("cuMemcpyHtoD_v2", pointer, data, ctypes.c_size_t(4096))
call("cuMemcpyDtoH_v2", back, pointer, ctypes.c_size_t(4096))
assert back.raw == data.raw
call("cuMemFree_v2", pointer)
maps = open("/proc/self/maps").read()
print("preloaded" if "libweir_preload" in maps else "alone")
"""


def main():
    wheel = Path(sys.argv[1]).resolve()
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        elf = {name: archive.read(name) for name in names if archive.read(name)[:4] == b"\x7fELF" and "torch_extensions" not in name}
    for name, content in elf.items():
        imports = elf_imports.read(content)
        print(f"{name}: {len(content) >> 10} KiB, needs {', '.join(imports.needed)}, glibc 2.{elf_imports.glibc_of(imports)}")
    tag = wheel.stem.rpartition("-")[2]
    if tag != elf_imports.platform(elf.items()):
        sys.exit(f"the tag is {tag}, the files need {elf_imports.platform(elf.items())}")
    print(f"{wheel.name}: {wheel.stat().st_size >> 10} KiB, {len(names)} files")

    with tempfile.TemporaryDirectory() as name:
        folder = Path(os.path.realpath(name))
        venv.create(folder / "env", with_pip=True, symlinks=True)
        tools = folder / "tools"
        tools.mkdir()
        for tool in ("sh", "env", "true"):
            (tools / tool).symlink_to(shutil.which(tool))
        # Nothing else: no compiler, no ninja, no weir of this machine.
        environment = {"PATH": f"{folder / 'env/bin'}:{tools}", "HOME": str(folder), "WEIR_RUNTIME": "sim", "LC_ALL": "C.UTF-8",
                       "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_CONFIG_FILE": os.devnull}

        def run(*command, code=0, **more):
            done = subprocess.run([str(word) for word in command], cwd=folder, text=True, capture_output=True, check=False,
                                  timeout=300, env={**environment, **more})
            if done.returncode != code:
                sys.exit(f"{' '.join(map(str, command))} returned {done.returncode}:\n{done.stdout}{done.stderr}")
            return done.stdout

        python = folder / "env/bin/python"
        started = time.monotonic()
        run(python, "-m", "pip", "install", "--no-index", wheel)
        print(f"installed in {time.monotonic() - started:.1f} s")
        for compiler in ("c++", "g++", "clang++", "cc", "ninja", "cmake"):
            if shutil.which(compiler, path=environment["PATH"]):
                sys.exit(f"{compiler} is on PATH")
        print(run(python, "-c", LIBRARY).strip())
        said = run(python, "-m", "pip", "show", "weir")
        if "License: Apache-2.0" not in said:
            sys.exit(f"pip shows no license:\n{said}")
        version = re.search(r"^Version: (\S+)", said, re.M)[1]

        if "weir/bin/weir" not in names:
            print("the wheel has no command")
            return
        for command in (["weir", "--version"], [python, "-m", "weir", "--version"]):
            if version not in run(*command):
                sys.exit(f"{command} does not say {version}")
        run("weir", "--help")
        simulated = next((folder / "env").rglob("weir/lib/weir/simulated/libcuda.so.1")).parent
        (folder / "program.py").write_text(PROGRAM)
        for words, wanted in (([], "alone"), (["weir", "run", "--python", "off", "--"], "preloaded")):
            said = run(*words, python, folder / "program.py", LD_LIBRARY_PATH=str(simulated))
            if said.strip() != wanted:
                sys.exit(f"expected {wanted!r}, got {said!r}")
        trace = folder / "program.weirtrace"
        run("weir", "run", "--python", "off", "--record", trace, "--", python, folder / "program.py", LD_LIBRARY_PATH=str(simulated))
        said = run("weir", "replay", trace, "--policy", "balanced")
        if not re.search(r"^program +balanced +0\.001 ", said, re.M):  # GiB
            sys.exit(f"weir replay does not show the 1 MiB of the program:\n{said}")
        for file in ("share/man/man1/weir.1", "share/bash-completion/completions/weir"):
            if not (folder / "env" / file).is_file():
                sys.exit(f"{file} was not installed")
        print("import, allocation, command, weir run on the simulated driver, recording and replay: all work")


if __name__ == "__main__":
    main()
