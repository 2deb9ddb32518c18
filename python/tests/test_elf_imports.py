#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What wheels import, and the tag that follows: small libraries that name versions of their own choice."""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python/backend"))

import elf_imports  # noqa: E402
from elf_imports import NotPortable, glibc_of, platform, read  # noqa: E402


@unittest.skipUnless(shutil.which("cc"), "a C compiler is needed")
class Imports(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def library(self, **imports):
        """A library that imports one function of each version of each library: libm_so_6=["GLIBC_2.30"]."""
        users, files = [], []
        for number, (soname, versions) in enumerate(imports.items()):
            soname = soname.replace("_so_", ".so.").replace("stdcxx", "stdc++")
            functions = [f"f{number}_{index}" for index in range(len(versions) or 1)]
            source, script = self.folder / f"{number}.c", self.folder / f"{number}.map"
            source.write_text("".join(f"void {each}(void) {{}}\n" for each in functions))
            script.write_text("".join(f"{version} {{ global: {each}; }};\n" for version, each in zip(versions, functions)))
            files.append(self.compile(source, f"lib{number}.so", f"-Wl,-soname,{soname}",
                                      *([f"-Wl,--version-script={script}"] if versions else [])))
            users += functions
        source = self.folder / "user.c"
        source.write_text("".join(f"void {each}(void);\n" for each in users) +
                          "void user(void) {\n" + "".join(f"  {each}();\n" for each in users) + "}\n")
        return self.compile(source, "user.so", "-Wl,--no-as-needed", *map(str, files)).read_bytes()

    def compile(self, source, name, *words):
        target = self.folder / name
        subprocess.run(["cc", "-shared", "-fPIC", "-nostdlib", str(source), "-o", str(target), *words], check=True)
        return target

    def test_all_that_a_file_imports_is_read(self):
        found = read(self.library(libc_so_6=["GLIBC_2.17", "GLIBC_2.34"], libgcc_s_so_1=["GCC_3.0"], libdl_so_2=[]))
        self.assertEqual(found, (os.uname().machine, ["libc.so.6", "libgcc_s.so.1", "libdl.so.2"],
                                 {"libc.so.6": {"GLIBC_2.17", "GLIBC_2.34"}, "libgcc_s.so.1": {"GCC_3.0"}}))
        self.assertEqual(read(self.library()).needed, [])

    def test_the_newest_version_decides(self):
        for imports, glibc in (({"libc_so_6": ["GLIBC_2.2.5"]}, 17),
                               ({"libc_so_6": ["GLIBC_2.17", "GLIBC_2.28"], "libm_so_6": ["GLIBC_2.27"]}, 28),
                               ({"libpthread_so_0": ["GLIBC_2.9", "GLIBC_2.30"]}, 30),
                               ({"libstdcxx_so_6": ["GLIBCXX_3.4", "GLIBCXX_3.4.22", "CXXABI_1.3.8"]}, 17),
                               ({"libstdcxx_so_6": ["GLIBCXX_3.4.29"]}, 34),
                               ({"libstdcxx_so_6": ["GLIBCXX_3.4.30"], "libc_so_6": ["GLIBC_2.34"]}, 35),
                               ({"libstdcxx_so_6": ["CXXABI_1.3.13"]}, 34),
                               ({"libgcc_s_so_1": ["GCC_3.4", "GCC_4.2.0"]}, 17),
                               ({"libgcc_s_so_1": ["GCC_12.0.0"]}, 35)):
            with self.subTest(imports):
                self.assertEqual(glibc_of(read(self.library(**imports))), glibc)

    def test_what_not_every_system_has_is_refused(self):
        for imports, said in (({"libzstd_so_1": [], "libc_so_6": []}, "needs libzstd.so.1, which not every system has"),
                              ({"libc_so_6": ["GLIBC_PRIVATE"]}, "version GLIBC_PRIVATE, about which no system promises"),
                              ({"libc_so_6": ["GLIBC_ABI_DT_RELR"]}, "version GLIBC_ABI_DT_RELR"),
                              ({"libstdcxx_so_6": ["GLIBCXX_3.4.99"]}, "GLIBCXX_3.4.99, which is later than those")):
            with self.subTest(imports):
                self.assertRaisesRegex(NotPortable, said, glibc_of, read(self.library(**imports)))

    def test_a_tag_covers_all_files(self):
        old, new = self.library(libc_so_6=["GLIBC_2.17"]), self.library(libc_so_6=["GLIBC_2.31"])
        machine = os.uname().machine
        self.assertEqual(platform([("a", old)]), f"manylinux_2_17_{machine}")
        self.assertEqual(platform([("a", old), ("b", new), ("c", old)]), f"manylinux_2_31_{machine}")
        other = bytearray(new)
        other[18:20] = (183 if machine == "x86_64" else 62).to_bytes(2, "little")
        self.assertRaisesRegex(NotPortable, "expected files for one machine, got aarch64, x86_64", platform,
                               [("a", old), ("b", bytes(other))])
        self.assertRaisesRegex(NotPortable, "got no file", platform, [])

    def test_the_file_is_named(self):
        foreign = self.library(libz_so_1=[])
        self.assertRaisesRegex(NotPortable, "^weir/bin/weir needs libz.so.1", platform, [("weir/bin/weir", foreign)])
        self.assertRaisesRegex(NotPortable, "^x expected a 64-bit", platform, [("x", b"\x7fELF\x01\x01")])
        wrong = bytearray(foreign)
        wrong[18:20] = b"\x08\x00"
        self.assertRaisesRegex(NotPortable, "^x is for machine 8", platform, [("x", bytes(wrong))])

    def test_the_program_prints_and_fails(self):
        script = Path(elf_imports.__file__)
        for imports, code in (({"libc_so_6": ["GLIBC_2.30"]}, 0), ({"libz_so_1": []}, 1)):
            file = self.folder / "it.so"
            file.write_bytes(self.library(**imports))
            ran = subprocess.run([sys.executable, script, file], capture_output=True, text=True, check=False)
            self.assertEqual(ran.returncode, code)
            self.assertEqual(ran.stdout.splitlines()[-1:] if code == 0 else ran.stderr.splitlines(),
                             [f"manylinux_2_30_{os.uname().machine}"] if code == 0 else
                             ["needs libz.so.1, which not every system has"])


if __name__ == "__main__":
    unittest.main()
