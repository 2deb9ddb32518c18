# SPDX-License-Identifier: Apache-2.0
"""weir for Spack. ./dev release fills in the address and the checksum of the sources."""

from spack.package import *


class Weir(CMakePackage):
    """GPU memory for C++: a caching allocator for CUDA that needs no toolkit and simulates a GPU."""

    homepage = "@HOMEPAGE@"
    url = "@URL@"

    license("Apache-2.0")

    version("@VERSION@", sha256="@SHA256@")

    variant("shared", default=True, description="Build the shared library, else the static one")
    variant("tools", default=True, description="Build the command, what weir run preloads, and the simulated driver")

    depends_on("c", type="build")
    depends_on("cxx", type="build")
    depends_on("cmake@3.25:", type="build")
    with when("+tools"):
        depends_on("cli11")
        depends_on("fmt")
        depends_on("nlohmann-json@3.7:")
        depends_on("zlib-api")
        depends_on("zstd")

    conflicts("platform=darwin", msg="weir works on Linux")
    conflicts("platform=windows", msg="weir works on Linux")
    conflicts("%gcc@:11", msg="weir needs g++ 12 or later")
    conflicts("%clang@:13", msg="weir needs clang 14 or later")

    def cmake_args(self):
        return [
            self.define("WEIR_DEVELOPER", False),
            self.define("WEIR_INSTALL", True),
            self.define("WEIR_LIBRARIES", "shared" if self.spec.satisfies("+shared") else "static"),
            self.define("WEIR_LIBDW", False),
            *(self.define_from_variant(f"WEIR_{part}", "tools") for part in ("COMMAND", "PRELOAD", "SIM_DRIVER")),
        ]
