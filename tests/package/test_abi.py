#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The check of the C ABI (packaging/abi.py) against headers that changed in known ways."""

import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@unittest.skipUnless(shutil.which("abidw") and shutil.which("cc"), "abidw (abigail-tools) and a C compiler are needed")
class Changes(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.tree, cls.record = Path(folder.name, "tree"), Path(folder.name, "record")
        shutil.copytree(ROOT / "include", cls.tree / "include")
        cls.record.mkdir()
        cls.run_check(cls, "--update")

    def run_check(self, *words):
        return subprocess.run([sys.executable, ROOT / "packaging/abi.py", self.tree, "--record", self.record, *words],
                              capture_output=True, text=True, check=False)

    def check(self, *changes, file="weir.h"):
        """What the check says of a header in which each (pattern, replacement) is made once."""
        header = self.tree / "include" / file
        before = text = header.read_text()
        for pattern, replacement in changes:
            text, count = re.subn(pattern, replacement, text, count=1, flags=re.S)
            self.assertEqual(count, 1, pattern)
        header.write_text(text)
        try:
            done = self.run_check()
        finally:
            header.write_text(before)
        return done.returncode, done.stdout + done.stderr

    def refused(self, said, *changes, **where):
        code, output = self.check(*changes, **where)
        self.assertEqual(code, 1, output)
        self.assertRegex(output, said)

    def accepted(self, *changes, **where):
        code, output = self.check(*changes, **where)
        self.assertEqual(code, 0, output)

    def test_nothing(self):
        self.accepted()

    def test_additions(self):
        self.accepted((r"(WEIR_C_API int32_t weir_version\(void\);)", r"\1\nWEIR_C_API int weir_added(struct weir_new* one);"))
        self.accepted((r"(typedef struct weir_option_info \{.*?)(\} weir_option_info;)", r"\1  uint64_t added;\n\2"))
        self.accepted((r"enum \{\n  weir_ok = 0,", "enum {\n  weir_ok = 0,\n  weir_added = 999,"))

    def test_functions(self):
        self.refused("weir_version_text", (r"WEIR_C_API const char\* weir_version_text\(void\);", ""))
        self.refused("weir_error_name", (r"weir_error_name\(weir_error code\)", "weir_error_name(uint64_t code)"))
        self.refused("weir_version", (r"WEIR_C_API int32_t weir_version\(", "WEIR_C_API int64_t weir_version("))
        self.refused("weir_torch_free", (r"WEIR_C_API void weir_torch_free\(void\* pointer, size_t size,",
                                         "WEIR_C_API void weir_torch_free(void* pointer,"), file="weir_plugins.h")

    def test_structures(self):
        self.refused("weir_option_info", (r"(typedef struct weir_option_info \{\n  uint32_t struct_size;[^\n]*\n)",
                                          r"\1  uint64_t added;\n"))
        self.refused("weir_option_info.reserved was uint32_t at 4, is uint64_t at 8", (
            r"(typedef struct weir_option_info \{\n)(  uint32_t struct_size;[^\n]*\n  uint32_t reserved;[^\n]*\n)",
                                          r"\1  uint32_t struct_size;\n  uint64_t reserved;\n"))

    def test_numbers(self):
        self.refused("weir_offer_event was 5, is 6", (r"weir_offer_event = 5", "weir_offer_event = 6"))
        self.refused("weir_error_out_of_memory was 4, is gone", (r"WEIR_ERRC\(out_of_memory", "WEIR_ERRC(no_memory"),
                     file="weir/base/errc.def")

    def test_another_minor_version_needs_a_record_of_its_own(self):
        number = r"(#define WEIR_VERSION_MINOR) 1"
        self.refused("libweir.so.0.2.abi is not recorded; ./dev abi --update", (number, r"\1 2"), file="weir/base/version.hpp")

    def test_a_deprecated_function_warns_and_stays_compatible(self):
        mark = (r"WEIR_C_API (int32_t weir_version\(void\))", r'WEIR_C_DEPRECATED("use another") WEIR_C_API \1')
        self.accepted(mark)
        header = self.tree / "include/weir.h"
        before = header.read_text()
        self.addCleanup(header.write_text, before)
        header.write_text(re.sub(*mark, before))
        for words, code in (([], 1), (["-DWEIR_NO_DEPRECATION_WARNINGS"], 0)):
            done = subprocess.run(["cc", "-std=c11", "-Werror", "-fsyntax-only", "-I", self.tree / "include", *words, "-x", "c", "-"],
                                  input='#include "weir.h"\nint main(void) { return weir_version(); }\n', text=True,
                                  capture_output=True, check=False)
            self.assertEqual(done.returncode, code, done.stderr)
            self.assertEqual("use another" in done.stderr, bool(code))

    def test_a_library_is_held_to_the_headers(self):
        source = self.record / "it.c"
        source.write_text("__attribute__((visibility(\"default\"))) int weir_version(void) { return 0; }\n"
                          "__attribute__((visibility(\"default\"))) int weir_secret(void) { return 0; }\n")
        library = self.record / "it.so"
        subprocess.run(["cc", "-shared", "-fPIC", "-Wl,-soname,libweir.so.0", source, "-o", library], check=True)
        said = self.run_check("--library", str(library)).stdout
        self.assertIn("has the soname libweir.so.0, expected libweir.so.0.1", said)
        self.assertIn("does not export weir_version_text", said)
        self.assertIn("exports weir_secret, which no header declares", said)
        self.assertNotRegex(said, r"does not export weir_version\n")


if __name__ == "__main__":
    unittest.main()
