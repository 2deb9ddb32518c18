#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The recipes and the release tool, as far as they can be tested without the tools that use them: the recipes can be parsed, every
CMake option that they set exists, and what the release tool writes is consistent."""

import contextlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
import types
import unittest
import unittest.mock
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGING = ROOT / "packaging"
sys.path.insert(0, str(PACKAGING))
sys.dont_write_bytecode = True

import release  # noqa: E402

OPTIONS = set(re.findall(r"(?:option|set)\((WEIR_\w+)", (ROOT / "CMakeLists.txt").read_text()))


class Recipes(unittest.TestCase):
    def test_the_options_that_they_set_exist(self):
        recipes = [*PACKAGING.glob("*/*.py"), *PACKAGING.glob("conda/*"), *PACKAGING.glob("vcpkg/*"), PACKAGING / "debian/rules"]
        used = {name for path in recipes for name in re.findall(r"\bWEIR_[A-Z]+(?:_[A-Z]+)*\b", path.read_text())}
        spack = set(re.findall(r'"(COMMAND|PRELOAD|SIM_DRIVER)"', (PACKAGING / "spack/package.py").read_text()))
        self.assertEqual(spack, {"COMMAND", "PRELOAD", "SIM_DRIVER"})
        used -= {"WEIR_RUNTIME", "WEIR_LIBRARY", "WEIR_"}  # of the environment
        self.assertGreaterEqual(used, {"WEIR_DEVELOPER", "WEIR_INSTALL", "WEIR_LIBRARIES", "WEIR_COMMAND", "WEIR_LIBDW"})
        self.assertLessEqual(used, OPTIONS)

    def test_what_they_build_is_installed_without_tests(self):
        """Every recipe switches the developer's part off and the installation on."""
        for name in ("conan/conanfile.py", "spack/package.py", "conda/recipe.yaml", "vcpkg/portfile.cmake", "debian/rules"):
            text = (PACKAGING / name).read_text()
            self.assertRegex(text, r'WEIR_DEVELOPER(=OFF|": False|", False)', name)
            self.assertRegex(text, r'WEIR_INSTALL(=ON|": True|", True)', name)

    def test_the_debian_packages_are_those_of_the_soname(self):
        control = (PACKAGING / "debian/control").read_text()
        packages = re.findall(r"^Package: (.+)$", control, re.M)
        major, minor, _ = release.version(ROOT)
        number = f"0.{minor}" if major == "0" else major
        self.assertEqual(packages, [f"libweir{number}", "libweir-dev", "weir-tools", "python3-weir"])
        self.assertEqual({path.stem for path in (PACKAGING / "debian").glob("*.install")}, set(packages))


VALUES = {"@VERSION@": "1.2.3", "@URL@": "https://example.invalid/weir-1.2.3.tar.gz", "@SHA256@": "ab" * 32, "@SHA512@": "cd" * 64,
          "@HOMEPAGE@": ""}


def recipe(name, homepage=""):
    return release.filled((PACKAGING / name).read_text(), {**VALUES, "@HOMEPAGE@": homepage})


class Everything:
    """What a recipe imports of its tool: calls are written down as (name, arguments, keywords)."""

    def __init__(self, calls, name):
        self.calls, self.name = calls, name

    def __call__(self, *arguments, **keywords):
        self.calls.append((self.name, arguments, keywords))
        return self


class Run(unittest.TestCase):
    """Each recipe runs, with stand-ins for what its tool provides."""

    def tearDown(self):
        for name in [each for each in sys.modules if each.partition(".")[0] in ("conan", "spack")]:
            del sys.modules[name]

    def module(self, name, **members):
        made = types.ModuleType(name)
        vars(made).update(members)
        sys.modules[name] = made

    def load_conan(self, calls):
        class ConanFile:
            pass

        class Toolchain:
            def __init__(self, recipe_):
                self.cache_variables = recipe_.variables = {}
                self.generate = Everything(calls, "toolchain")

        self.module("conan", ConanFile=ConanFile)
        self.module("conan.errors", ConanInvalidConfiguration=type("ConanInvalidConfiguration", (Exception,), {}))
        self.module("conan.tools")
        self.module("conan.tools.build", check_min_cppstd=Everything(calls, "check_min_cppstd"))
        cmake = Everything(calls, "CMake")
        for name in ("configure", "build", "install", "generate"):
            setattr(cmake, name, Everything(calls, f"cmake.{name}"))
        self.module("conan.tools.cmake", CMake=lambda recipe_: cmake, CMakeDeps=lambda recipe_: cmake, CMakeToolchain=Toolchain,
                    cmake_layout=Everything(calls, "cmake_layout"))
        self.module("conan.tools.files", copy=Everything(calls, "copy"), get=Everything(calls, "get"), rmdir=Everything(calls, "rmdir"))
        names = {}
        exec(compile(recipe("conan/conanfile.py"), "conanfile.py", "exec"), names)  # pylint: disable=exec-used
        return names["WeirConan"], sys.modules["conan.errors"].ConanInvalidConfiguration

    def test_conan(self):
        for shared, tools in ((True, True), (False, False)):
            calls = []
            kind, invalid = self.load_conan(calls)
            self.assertEqual((kind.name, kind.version, hasattr(kind, "homepage")), ("weir", "1.2.3", False))
            made = kind()
            made.options = types.SimpleNamespace(shared=shared, tools=tools)
            made.settings = types.SimpleNamespace(os="Linux", arch="armv8")
            made.cpp_info = types.SimpleNamespace(set_property=Everything(calls, "set_property"))
            made.conan_data = {"sources": {"1.2.3": {"url": "u", "sha256": "s"}}}
            made.source_folder, made.package_folder = "/source", "/package"
            made.requires, made.tool_requires = Everything(calls, "requires"), Everything(calls, "tool_requires")
            for step in ("layout", "requirements", "build_requirements", "validate", "source", "generate", "build", "package", "package_info"):
                getattr(made, step)()
            self.assertEqual(made.variables, {
                "WEIR_DEVELOPER": False, "WEIR_INSTALL": True, "WEIR_LIBRARIES": "shared" if shared else "static", "WEIR_COMMAND": tools,
                "WEIR_PRELOAD": tools, "WEIR_SIM_DRIVER": tools, "WEIR_LIBDW": False})
            said = {name: (arguments, keywords) for name, arguments, keywords in calls}
            self.assertEqual(said["get"], ((made,), {"url": "u", "sha256": "s", "strip_root": True}))
            self.assertEqual(said["check_min_cppstd"][0], (made, 20))
            self.assertEqual([each[1][0] for each in calls if each[0] == "requires"] != [], tools)
            self.assertEqual([each[1] for each in calls if each[0] == "set_property"],
                             [("cmake_file_name", "weir"), ("cmake_target_name", "weir::weir"), ("pkg_config_name", "weir")])
            self.assertEqual((made.cpp_info.libs, hasattr(made.cpp_info, "system_libs")), (["weir"], not shared))
            for settings in ({"os": "Windows", "arch": "x86_64"}, {"os": "Linux", "arch": "riscv64"}):
                made.settings = types.SimpleNamespace(**settings)
                self.assertRaises(invalid, made.validate)
        self.assertIn('homepage = "https://h.invalid"', recipe("conan/conanfile.py", "https://h.invalid"))

    def test_spack(self):
        calls = []
        conditions = []

        @contextlib.contextmanager
        def when(condition):
            conditions.append(condition)
            yield

        class CMakePackage:
            def define(self, name, value):
                return f"-D{name}={value}"

            def define_from_variant(self, name, variant):
                return f"-D{name}=from {variant}"

        self.module("spack")
        self.module("spack.package", CMakePackage=CMakePackage, when=when,
                    **{name: Everything(calls, name) for name in ("version", "variant", "depends_on", "conflicts", "license")})
        names = {}
        exec(compile(recipe("spack/package.py"), "package.py", "exec"), names)  # pylint: disable=exec-used
        kind = names["Weir"]
        self.assertEqual((kind.url, hasattr(kind, "homepage")), (VALUES["@URL@"], False))
        self.assertIn(("version", ("1.2.3",), {"sha256": "ab" * 32}), calls)
        self.assertEqual([each[1][0] for each in calls if each[0] == "variant"], ["shared", "tools"])
        self.assertEqual(conditions, ["+tools"])
        made = kind()
        for shared in (True, False):
            made.spec = types.SimpleNamespace(satisfies=lambda text, is_shared=shared: text == "+shared" and is_shared)
            self.assertEqual(made.cmake_args(), [
                "-DWEIR_DEVELOPER=False", "-DWEIR_INSTALL=True", f"-DWEIR_LIBRARIES={'shared' if shared else 'static'}", "-DWEIR_LIBDW=False",
                "-DWEIR_COMMAND=from tools", "-DWEIR_PRELOAD=from tools", "-DWEIR_SIM_DRIVER=from tools"])
        self.assertIn('homepage = "https://h.invalid"', recipe("spack/package.py", "https://h.invalid"))

    @unittest.skipUnless(shutil.which("cmake"), "CMake is needed")
    def test_vcpkg(self):
        manifest = json.loads(recipe("vcpkg/vcpkg.json"))
        self.assertEqual((manifest["name"], manifest["version"], "homepage" in manifest), ("weir", "1.2.3", False))
        self.assertEqual(json.loads(recipe("vcpkg/vcpkg.json", "https://h.invalid"))["homepage"], "https://h.invalid")
        stand_ins = """
            function(vcpkg_download_distfile out)
              message(NOTICE "download ${ARGN}")
              set(${out} /archive PARENT_SCOPE)
            endfunction()
            function(vcpkg_extract_source_archive out)
              message(NOTICE "extract ${ARGN}")
              set(${out} /source PARENT_SCOPE)
            endfunction()
            function(vcpkg_check_features)
              cmake_parse_arguments(PARSE_ARGV 0 given "" "OUT_FEATURE_OPTIONS" "FEATURES")
              message(NOTICE "features ${given_FEATURES}|${given_UNPARSED_ARGUMENTS}")
              set(${given_OUT_FEATURE_OPTIONS} -DWEIR_COMMAND=ON PARENT_SCOPE)
            endfunction()
            """ + "".join(f'function({each})\nmessage(NOTICE "{each} ${{ARGN}}")\nendfunction()\n' for each in (
            "vcpkg_cmake_configure", "vcpkg_cmake_install", "vcpkg_cmake_config_fixup", "vcpkg_fixup_pkgconfig", "vcpkg_copy_tools",
            "vcpkg_install_copyright"))
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "packages/debug/include").mkdir(parents=True)
            (folder / "portfile.cmake").write_text(recipe("vcpkg/portfile.cmake"))
            for linkage, libraries in (("dynamic", "shared"), ("static", "static")):
                (folder / "run.cmake").write_text(
                    f'cmake_minimum_required(VERSION 3.25)\nset(CURRENT_PACKAGES_DIR "{folder}/packages")\nset(VCPKG_LIBRARY_LINKAGE {linkage})\nset(FEATURES core tools)\n'
                    f"{stand_ins}\ninclude({folder}/portfile.cmake)\n")
                ran = subprocess.run(["cmake", "-P", folder / "run.cmake"], capture_output=True, text=True, check=False)
                self.assertEqual(ran.returncode, 0, ran.stderr)
                said = ran.stderr.splitlines()
                self.assertEqual(said[0], f"download URLS;{VALUES['@URL@']};FILENAME;weir-1.2.3.tar.gz;SHA512;{VALUES['@SHA512@']}")
                self.assertEqual(said[1], "extract ARCHIVE;/archive")
                self.assertEqual(said[2], "features tools;WEIR_COMMAND;tools;WEIR_PRELOAD;tools;WEIR_SIM_DRIVER|")
                self.assertEqual(said[3], "vcpkg_cmake_configure SOURCE_PATH;/source;OPTIONS;-DWEIR_COMMAND=ON;-DWEIR_DEVELOPER=OFF;"
                                          f"-DWEIR_INSTALL=ON;-DWEIR_LIBDW=OFF;-DWEIR_LIBRARIES={libraries};MAYBE_UNUSED_VARIABLES;WEIR_LIBDW")
                self.assertIn("vcpkg_copy_tools TOOL_NAMES;weir;AUTO_CLEAN", said)
                self.assertIn("vcpkg_install_copyright FILE_LIST;/source/LICENSE", said)
            self.assertFalse((folder / "packages/debug/include").exists())

    def test_conda(self):
        try:
            import yaml
        except ImportError:
            self.skipTest("PyYAML (python3-yaml) is needed")
        made = yaml.safe_load(recipe("conda/recipe.yaml"))
        self.assertEqual((made["context"]["version"], made["source"]), ("1.2.3", {"url": VALUES["@URL@"], "sha256": VALUES["@SHA256@"]}))
        self.assertNotIn("homepage", made["about"])
        self.assertEqual(yaml.safe_load(recipe("conda/recipe.yaml", "https://h.invalid"))["about"]["homepage"], "https://h.invalid")
        self.assertEqual([each["package"]["name"] for each in made["outputs"]], ["libweir", "weir"])
        for output in made["outputs"]:
            self.assertEqual(set(output) - {"package", "build", "requirements", "tests"}, set())
            for line in output["build"]["script"]:
                subprocess.run(["sh", "-n", "-c", line], check=True)
        install = made["outputs"][1]["build"]["script"][0].split()
        self.assertEqual(install[0], "python")
        with tempfile.TemporaryDirectory() as folder:
            words = [word.replace("${SP_DIR}", folder) for word in install[1:]]
            subprocess.run([sys.executable, *words], cwd=ROOT, check=True, capture_output=True)
            self.assertTrue(Path(folder, "weir/__init__.py").is_file())
            self.assertTrue(list(Path(folder).glob("weir-*.dist-info/METADATA")))


class Release(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.tree = Path(folder.name, "tree")
        for name in {release.HEADER, "CHANGELOG.md", "CMakeLists.txt", *(file for file, _, _ in release.PLACES)}:
            target = self.tree / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text((ROOT / name).read_text())
        for kind in ("conda", "vcpkg", "conan", "spack"):
            (self.tree / "packaging" / kind).mkdir(parents=True, exist_ok=True)
            for path in (PACKAGING / kind).iterdir():
                if path.is_file():
                    (self.tree / "packaging" / kind / path.name).write_text(path.read_text())
        self.git("init", "-q")
        self.git("add", "-A")
        self.git("-c", "user.name=n", "-c", "user.email=e@x.invalid", "commit", "-q", "-m", "all")

    def git(self, *words):
        subprocess.run(["git", "-C", self.tree, *words], check=True, capture_output=True)

    def run_tool(self, *words):
        done = subprocess.run([sys.executable, PACKAGING / "release.py", *map(str, words)], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def test_this_tree_states_one_version(self):
        stated = [line for line in release.problems(ROOT) if "states version" in line]
        self.assertEqual(stated, [])

    def test_a_version_is_written_everywhere(self):
        said = self.run_tool("version", self.tree, "3.14.15")
        self.assertEqual(release.version(self.tree), ("3", "14", "15"))
        self.assertEqual([line for line in release.problems(self.tree) if "states" in line], [])
        self.assertIn('CHANGELOG.md has no section "## [3.14.15] - YYYY-MM-DD"', said)
        self.assertIn("SPOKEN = (3, 14)", (self.tree / "python/weir/_native.py").read_text())
        header = self.tree / "include/weir.h"
        header.write_text(header.read_text().replace("WEIR_VERSION_PATCH 15", "WEIR_VERSION_PATCH 16"))
        self.assertIn("include/weir.h states version 16, include/weir/base/version.hpp 15", release.problems(self.tree))

    def test_the_files_of_a_release(self):
        folder = self.tree.parent / "files"
        name = ".".join(release.version(self.tree))
        self.run_tool("archive", self.tree, folder)
        first = (folder / f"weir-{name}.tar.gz").read_bytes()
        self.run_tool("archive", self.tree, folder)
        self.assertEqual(first, (folder / f"weir-{name}.tar.gz").read_bytes())  # the same commit, the same archive
        (folder / "weir.whl").write_text("a wheel")
        self.assertIn("recipes for conda, vcpkg, Conan and Spack are left out", self.run_tool("finish", self.tree, folder))
        self.assertFalse((folder / "recipes").exists())
        self.run_tool("finish", self.tree, folder, "https://example.invalid/files/")
        subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=folder, check=True)
        self.assertEqual({line.split("  ")[1] for line in (folder / "SHA256SUMS").read_text().splitlines()},
                         {f"weir-{name}.tar.gz", "weir.whl", f"weir-{name}.spdx.json"})
        bill = json.loads((folder / f"weir-{name}.spdx.json").read_text())
        self.assertEqual(bill["spdxVersion"], "SPDX-2.3")
        self.assertEqual([each["name"] for each in bill["packages"]], ["weir", *(each[0] for each in release.CONTAINED)])
        identities = {each["SPDXID"] for each in [*bill["packages"], *bill["files"], bill]}
        for relation in bill["relationships"]:
            self.assertLessEqual({relation["spdxElementId"], relation["relatedSpdxElement"]}, identities)
        for recipe in (folder / "recipes").rglob("*"):
            if recipe.is_file():
                self.assertNotRegex(recipe.read_text(), r"@[A-Z0-9]+@|homepage", recipe)
        self.assertIn(f"https://example.invalid/files/weir-{name}.tar.gz", (folder / "recipes/spack/package.py").read_text())
        # The home page stands in one place.
        cmake = self.tree / "CMakeLists.txt"
        cmake.write_text(cmake.read_text().replace("project(weir ", 'project(weir HOMEPAGE_URL "https://weir.invalid" '))
        self.run_tool("finish", self.tree, folder, "https://example.invalid/files")
        for name in ("spack/package.py", "conan/conanfile.py", "vcpkg/vcpkg.json", "conda/recipe.yaml"):
            self.assertIn("https://weir.invalid", (folder / "recipes" / name).read_text())


if __name__ == "__main__":
    unittest.main()
