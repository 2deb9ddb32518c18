#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""CMake refuses systems, processors and compilers that weir does not work with, and says which it does.

    test_platform.py CMAKE
"""

import subprocess
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CMAKE = sys.argv[1] if len(sys.argv) > 1 else "cmake"


def outcome(system="Linux", processor="x86_64", compiler="GNU", version="12.2.0"):
    settings = {"CMAKE_SYSTEM_NAME": system, "CMAKE_SYSTEM_PROCESSOR": processor, "CMAKE_CXX_COMPILER_ID": compiler,
                "CMAKE_CXX_COMPILER_VERSION": version}
    done = subprocess.run([CMAKE, *(f"-D{name}={value}" for name, value in settings.items()), "-P",
                           ROOT / "cmake/weir_platform.cmake"], capture_output=True, text=True, check=False)
    return done.returncode, " ".join(done.stderr.split())


class Platform(unittest.TestCase):
    def test_what_works_is_accepted(self):
        for processor in ("x86_64", "aarch64"):
            for compiler, version in (("GNU", "12.2.0"), ("GNU", "14.1"), ("Clang", "14.0.6"), ("Other", "1.0")):
                self.assertEqual(outcome(processor=processor, compiler=compiler, version=version), (0, ""))

    def test_other_systems_are_refused(self):
        for system, processor in (("Darwin", "arm64"), ("Windows", "AMD64"), ("Linux", "riscv64"), ("Linux", "i686")):
            code, said = outcome(system, processor)
            self.assertNotEqual(code, 0)
            self.assertIn(f"weir works on Linux, on x86-64 and aarch64; this is {system} on {processor}", said)

    def test_old_compilers_are_refused(self):
        for compiler, version in (("GNU", "11.4.0"), ("Clang", "13.0.1")):
            code, said = outcome(compiler=compiler, version=version)
            self.assertNotEqual(code, 0)
            self.assertIn(f"weir needs g++ 12 or clang 14; this is {compiler} {version}", said)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
