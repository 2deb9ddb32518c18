# SPDX-License-Identifier: Apache-2.0
"""What ELF files import, and the wheel tag that follows from it.

    python3 python/backend/elf_imports.py FILE...

prints for each file the libraries that it needs and the newest version of each that it names, and the tag of a wheel that
holds them all. It fails where a file needs a library that not every Linux with glibc has.

A tag manylinux_2_NN promises that the files load on every system with glibc 2.NN or later (PEP 600). glibc states what a
file needs by the versions of the symbols that it imports.
"""

import re
import struct
import sys
from pathlib import Path
from typing import Dict, Iterable, List, NamedTuple, Set, Tuple

MACHINES = {62: "x86_64", 183: "aarch64"}

# Libraries that belong to glibc, whose version is the tag; and the one of the compiler that unwinds the stack.
GLIBC = {"libc.so.6", "libdl.so.2", "libpthread.so.0", "libm.so.6", "librt.so.1", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}
COMPILER = {"libgcc_s.so.1", "libstdc++.so.6"}

# The oldest glibc of the distributions that have a version of the compiler's libraries: (name of the version, glibc).
# PEP 600 tags are about whole systems: g++ 8 came with glibc 2.28, g++ 11 with 2.34, g++ 12 with 2.35.
COMPILER_VERSIONS = [
    ({"GLIBCXX_3.4": 24, "CXXABI_1.3": 11, "GCC_": 7}, 28),
    ({"GLIBCXX_3.4": 28, "CXXABI_1.3": 12, "GCC_": 10}, 31),
    ({"GLIBCXX_3.4": 29, "CXXABI_1.3": 13, "GCC_": 11}, 34),
    ({"GLIBCXX_3.4": 30, "CXXABI_1.3": 13, "GCC_": 12}, 35),
    ({"GLIBCXX_3.4": 32, "CXXABI_1.3": 14, "GCC_": 13}, 38),
    ({"GLIBCXX_3.4": 33, "CXXABI_1.3": 15, "GCC_": 14}, 39),
]
OLDEST = 17  # manylinux2014, the oldest tag that installers still look for


class Imports(NamedTuple):
    machine: str                   # "x86_64"
    needed: List[str]              # libraries, as they stand in the file
    versions: Dict[str, Set[str]]  # of each library, the versions of the symbols that are imported


class NotPortable(Exception):
    """A file that needs more than every system has."""


# --- Reading ----------------------------------------------------------------------------------------

_DYNAMIC, _LOAD = 2, 1
_NEEDED, _STRTAB, _VERNEED, _VERNEEDNUM = 1, 5, 0x6FFFFFFE, 0x6FFFFFFF


def read(content: bytes) -> Imports:
    """The imports of a 64-bit little-endian ELF file."""
    if content[:6] != b"\x7fELF\x02\x01":
        raise NotPortable("expected a 64-bit little-endian ELF file")
    machine = struct.unpack_from("<H", content, 18)[0]
    if machine not in MACHINES:
        raise NotPortable(f"is for machine {machine} of ELF; expected x86-64 or aarch64")
    headers, = struct.unpack_from("<Q", content, 32)
    size, count = struct.unpack_from("<HH", content, 54)
    segments = [struct.unpack_from("<IIQQQQ", content, headers + each * size) for each in range(count)]
    dynamic: List[Tuple[int, int]] = []
    for kind, _, offset, _, _, length in segments:
        if kind == _DYNAMIC:
            dynamic = [struct.unpack_from("<QQ", content, offset + at) for at in range(0, length, 16)]
    values = dict(dynamic)

    def at(address: int) -> int:
        """Where in the file an address of the loaded image is."""
        for kind, _, offset, start, _, length in segments:
            if kind == _LOAD and start <= address < start + length:
                return offset + address - start
        raise NotPortable(f"address {address:#x} is in no segment")

    if _STRTAB not in values:
        return Imports(MACHINES[machine], [], {})  # a static program
    names = at(values[_STRTAB])

    def text(offset: int) -> str:
        return content[names + offset:content.index(b"\0", names + offset)].decode()

    versions: Dict[str, Set[str]] = {}
    here = at(values[_VERNEED]) if _VERNEED in values else 0
    for _ in range(values.get(_VERNEEDNUM, 0)):
        _, entries, file, first, following = struct.unpack_from("<HHIII", content, here)
        entry = here + first
        for _ in range(entries):
            _, _, _, name, step = struct.unpack_from("<IHHII", content, entry)
            versions.setdefault(text(file), set()).add(text(name))
            entry += step
        here += following
    return Imports(MACHINES[machine], [text(value) for tag, value in dynamic if tag == _NEEDED], versions)


# --- Judging ----------------------------------------------------------------------------------------


def glibc_of(imports: Imports) -> int:
    """NN of the oldest glibc 2.NN with which the file loads. Raises NotPortable if it needs anything else."""
    foreign = sorted(set(imports.needed) - GLIBC - COMPILER)
    if foreign:
        raise NotPortable(f"needs {', '.join(foreign)}, which not every system has")
    oldest = OLDEST
    for version in sorted(set().union(*imports.versions.values())):
        of_glibc = re.fullmatch(r"GLIBC_2\.(\d+)(\.\d+)?", version)
        if of_glibc:
            oldest = max(oldest, int(of_glibc.group(1)))
            continue
        of_compiler = re.fullmatch(r"(GLIBCXX_3\.4|CXXABI_1\.3|GCC_)\.?(\d+)?[\d.]*", version)
        if of_compiler is None:
            raise NotPortable(f"imports a symbol of version {version}, about which no system promises anything")
        family, number = of_compiler.group(1), int(of_compiler.group(2) or 0)
        later = [glibc for newest, glibc in COMPILER_VERSIONS if number <= newest[family]]
        if not later:
            raise NotPortable(f"imports a symbol of version {version}, which is later than those that are known here")
        if later[0] > COMPILER_VERSIONS[0][1]:
            oldest = max(oldest, later[0])
    return oldest


def platform(files: Iterable[Tuple[str, bytes]]) -> str:
    """"manylinux_2_34_x86_64": of a wheel with these files, each a name and its content."""
    machines, glibc = set(), OLDEST
    for name, content in files:
        try:
            imports = read(content)
            glibc = max(glibc, glibc_of(imports))
        except NotPortable as problem:
            raise NotPortable(f"{name} {problem}") from None
        machines.add(imports.machine)
    if len(machines) != 1:
        raise NotPortable(f"expected files for one machine, got {', '.join(sorted(machines)) or 'no file'}")
    return f"manylinux_2_{glibc}_{machines.pop()}"


def newest(versions: Set[str]) -> str:
    return max(versions, key=lambda name: [int(part) for part in re.findall(r"\d+", name)])


def main() -> int:
    files = [(name, Path(name).read_bytes()) for name in sys.argv[1:]]
    try:
        for name, content in files:
            imports = read(content)
            named = [f"{library} ({newest(imports.versions[library])})" if library in imports.versions else library
                     for library in imports.needed]
            print(f"{name}: {', '.join(named) or 'no libraries'}; glibc 2.{glibc_of(imports)}")
        print(platform(files))
    except NotPortable as problem:
        print(f"{problem}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
