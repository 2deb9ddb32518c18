# SPDX-License-Identifier: Apache-2.0
"""weir for Conan 2. ./dev release writes conandata.yml with the address and the checksum of the sources."""

from conan import ConanFile
from conan.errors import ConanInvalidConfiguration
from conan.tools.build import check_min_cppstd
from conan.tools.cmake import CMake, CMakeDeps, CMakeToolchain, cmake_layout
from conan.tools.files import copy, get, rmdir


class WeirConan(ConanFile):
    name = "weir"
    version = "@VERSION@"
    description = "GPU memory for C++: a caching allocator for CUDA that needs no toolkit and simulates a GPU"
    license = "Apache-2.0"
    homepage = "@HOMEPAGE@"
    topics = ("cuda", "gpu", "memory", "allocator")
    package_type = "library"
    settings = "os", "arch", "compiler", "build_type"
    options = {"shared": [True, False], "tools": [True, False]}
    default_options = {"shared": False, "tools": False}

    def layout(self):
        cmake_layout(self, src_folder="src")

    def requirements(self):
        if self.options.tools:
            for each in ("cli11/2.4.2", "fmt/10.2.1", "nlohmann_json/3.11.3", "zlib/1.3.1", "zstd/1.5.6"):
                self.requires(each)

    def build_requirements(self):
        self.tool_requires("cmake/[>=3.25]")

    def validate(self):
        if self.settings.os != "Linux" or self.settings.arch not in ("x86_64", "armv8"):
            raise ConanInvalidConfiguration("weir works on Linux, on x86-64 and aarch64")
        check_min_cppstd(self, 20)

    def source(self):
        get(self, **self.conan_data["sources"][self.version], strip_root=True)

    def generate(self):
        toolchain = CMakeToolchain(self)
        toolchain.cache_variables.update({
            "WEIR_DEVELOPER": False, "WEIR_INSTALL": True, "WEIR_LIBRARIES": "shared" if self.options.shared else "static",
            "WEIR_COMMAND": bool(self.options.tools), "WEIR_PRELOAD": bool(self.options.tools),
            "WEIR_SIM_DRIVER": bool(self.options.tools), "WEIR_LIBDW": False})
        toolchain.generate()
        CMakeDeps(self).generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

    def package(self):
        CMake(self).install()
        copy(self, "LICENSE", self.source_folder, f"{self.package_folder}/licenses")
        for folder in ("cmake", "pkgconfig"):
            rmdir(self, f"{self.package_folder}/lib/{folder}")

    def package_info(self):
        self.cpp_info.libs = ["weir"]
        self.cpp_info.set_property("cmake_file_name", "weir")
        self.cpp_info.set_property("cmake_target_name", "weir::weir")
        self.cpp_info.set_property("pkg_config_name", "weir")
        if not self.options.shared:
            self.cpp_info.system_libs = ["dl", "pthread"]
