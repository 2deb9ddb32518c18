#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`pip install .` without a network: what is installed works from where it lies, on a simulated GPU.

The library is the one that WEIR_LIBRARY names, so that none is built here.
"""

import base64
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest
import unittest.mock
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python/backend"))

import weir_backend  # noqa: E402

LIBRARY = os.environ.get("WEIR_LIBRARY", "")
WORKS = """
import weir
machine = weir.Runtime(runtime="sim")
memory = weir.Allocator(machine.device(0))
with memory.allocate(1 << 20) as block:
    print(memory.stats().requested.current, weir.__version__)
print(weir.__file__)
print(weir.library_path())
"""


@unittest.skipUnless(LIBRARY, "WEIR_LIBRARY names no library")
class Package(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(os.path.realpath(folder.name))

    def python(self, *words, **environment):
        # Nothing of this tree, of the user's own packages or of pip's settings may help.
        clean = {name: value for name, value in os.environ.items()
                 if not name.startswith(("PIP_", "WEIR_")) and name != "PYTHONPATH"}
        ran = subprocess.run([sys.executable, *words], cwd=self.folder, text=True, capture_output=True,
                             check=False, timeout=100, env={**clean, "PYTHONNOUSERSITE": "1",
                                                            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
                                                            "PIP_CONFIG_FILE": os.devnull, **environment})
        self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)
        return ran.stdout

    def test_pip_installs_without_a_network(self):
        site = self.folder / "site"
        self.python("-m", "pip", "install", "--no-index", "--no-deps", "--no-compile",
                    "--root-user-action=ignore", "--target", str(site), str(ROOT), WEIR_LIBRARY=LIBRARY)
        output = self.python("-c", WORKS, PYTHONPATH=str(site)).splitlines()
        self.assertEqual(output, [f"{1 << 20} {weir_backend.version()}", str(site / "weir/__init__.py"),
                                  str(site / "weir/lib" / weir_backend.soname())])
        for needed in ("include/weir.h", "include/weir/base/errc.def", "include/weir/allocator/caching_allocator.hpp",
                       "cupy.py", "numba.py", "py.typed"):
            self.assertTrue((site / "weir" / needed).is_file(), needed)
        self.assertFalse(list((site / "weir").rglob("test_*")))

    def test_the_wheel_is_the_same_each_time_and_lists_itself(self):
        os.environ["WEIR_LIBRARY"] = LIBRARY
        for folder in ("first", "second"):
            (self.folder / folder).mkdir()
            name = weir_backend.build_wheel(self.folder / folder)
        first, second = (self.folder / "first" / name), (self.folder / "second" / name)
        self.assertEqual(first.read_bytes(), second.read_bytes())
        with zipfile.ZipFile(first) as wheel:
            listed = [line.split(",")[0] for line in
                      wheel.read(f"{weir_backend.dist_info()}/RECORD").decode().splitlines()]
            self.assertEqual(sorted(listed), sorted(wheel.namelist()))
            plugins = {name for name in listed if name.startswith("weir/plugins/")}
            sources = [path for path in (ROOT / "plugins/torch").rglob("*") if path.suffix in (".cpp", ".hpp")]
            self.assertLessEqual({f"weir/plugins/{path.relative_to(ROOT / 'plugins')}"
                                  for path in sources if "tests" not in path.parts}, plugins)

    def test_the_wheel_holds_what_it_says(self):
        name = weir_backend.build_wheel(self.folder)
        info = weir_backend.dist_info()
        self.assertRegex(name, rf"^weir-{weir_backend.version()}-py3-none-manylinux_2_\d\d_{os.uname().machine}\.whl$")
        with zipfile.ZipFile(self.folder / name) as wheel:
            files = {each.filename: (each, wheel.read(each)) for each in wheel.infolist()}
        library = f"weir/lib/{weir_backend.soname()}"
        self.assertEqual(files[library][1], Path(LIBRARY).read_bytes())
        for path in (ROOT / "python/weir").rglob("*.py"):
            self.assertEqual(files[f"weir/{path.relative_to(ROOT / 'python/weir')}"][1], path.read_bytes())
        for folder, to, kinds in (("include", "weir/include", (".h", ".hpp", ".def")),
                                  ("plugins/torch", "weir/plugins/torch", None)):
            wanted = {f"{to}/{path.relative_to(ROOT / folder).as_posix()}" for path in (ROOT / folder).rglob("*")
                      if path.is_file() and not {"tests", "__pycache__"} & set(path.relative_to(ROOT / folder).parts)
                      and (kinds is None or path.suffix in kinds)}
            self.assertEqual({each for each in files if each.startswith(to + "/")}, wanted)
        for each, (entry, content) in files.items():
            self.assertEqual((entry.date_time, entry.compress_type), ((2020, 1, 1, 0, 0, 0), zipfile.ZIP_DEFLATED))
            self.assertEqual(entry.external_attr >> 16, 0o100755 if each == library else 0o100644, each)
        self.assertIn(f"\nTag: py3-none-{name[:-4].rpartition('-')[2]}\n", files[f"{info}/WHEEL"][1].decode())
        rows = files.pop(f"{info}/RECORD")[1].decode().splitlines()
        digests = {each: base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
                   for each, (_, content) in files.items()}
        self.assertEqual(sorted(rows), sorted([*(f"{each},sha256={digests[each]},{len(content)}"
                                                 for each, (_, content) in files.items()), f"{info}/RECORD,,"]))
        self.check_metadata({each[len(info) + 1:]: content for each, (_, content) in files.items()
                             if each.startswith(info)})

    def check_metadata(self, files):
        """What every form of the package says of itself."""
        self.assertEqual(set(files), {"METADATA", "WHEEL", "LICENSE", "entry_points.txt", "top_level.txt"})
        about = files["METADATA"].decode()
        self.assertTrue(about.startswith(f"Metadata-Version: 2.1\nName: weir\nVersion: {weir_backend.version()}\n"))
        self.assertTrue(about.endswith("\n\n" + (ROOT / "README.md").read_text()))
        head = about.partition("\n\n")[0].splitlines()
        for line in ("License: Apache-2.0", "Requires-Python: >=3.9", "Classifier: Typing :: Typed",
                     "Classifier: Operating System :: POSIX :: Linux", "Classifier: Environment :: GPU :: NVIDIA CUDA",
                     "Description-Content-Type: text/markdown"):
            self.assertIn(line, head)
        self.assertEqual(files["entry_points.txt"], b"[console_scripts]\nweir = weir._command:main\n")
        self.assertEqual((files["LICENSE"], files["top_level.txt"]), ((ROOT / "LICENSE").read_bytes(), b"weir\n"))

    def test_metadata_can_be_had_alone(self):
        for prepare in (weir_backend.prepare_metadata_for_build_wheel, weir_backend.prepare_metadata_for_build_editable):
            folder = self.folder / prepare.__name__ / "deep"
            name = prepare(folder)
            self.assertEqual(name, weir_backend.dist_info())
            self.check_metadata({path.name: path.read_bytes() for path in (folder / name).iterdir()})
            shutil.rmtree(folder.parent)
        for requires in (weir_backend.get_requires_for_build_wheel, weir_backend.get_requires_for_build_sdist,
                         weir_backend.get_requires_for_build_editable):
            self.assertEqual(requires(), [])

    def test_a_library_that_is_named_must_be_there(self):
        for build in (weir_backend.build_wheel, weir_backend.build_editable):
            with unittest.mock.patch.dict(os.environ, WEIR_LIBRARY=str(self.folder / "missing.so")):
                self.assertRaisesRegex(SystemExit, "WEIR_LIBRARY names no file", build, self.folder)

    def built(self, tools, fails=(), command=False, **environment):
        """The commands by which the library is built where none is named, with these tools; those with the words in
        `fails` fail."""
        commands = []

        def run(words, check, stdout):
            commands.append((words, check, stdout))
            if any(each in words for each in fails):
                raise subprocess.CalledProcessError(1, words)

        with unittest.mock.patch.dict(os.environ, environment), \
                unittest.mock.patch.object(weir_backend, "ROOT", self.folder), \
                unittest.mock.patch.object(shutil, "which", lambda name: tools.get(name)), \
                unittest.mock.patch.object(subprocess, "run", run), \
                unittest.mock.patch("sys.stderr") as said:
            os.environ.pop("WEIR_LIBRARY", None)
            if command is False:
                self.assertEqual(weir_backend.library(), self.folder / "build/python/src/libweir.so")
            else:
                self.assertEqual(weir_backend.make(["all"], command), self.folder / "build/python")
        self.assertEqual({(check, stdout) for _, check, stdout in commands}, {(True, said)})
        self.told = "".join(call.args[0] for call in said.write.mock_calls)  # each before it runs
        for words, _, _ in commands:
            self.assertIn(f"weir: {' '.join(words)}\n", self.told)
        return [words for words, _, _ in commands]

    def test_a_library_that_is_not_named_is_built(self):
        build = self.folder / "build/python"
        configure = ["/bin/cmake", "-S", str(self.folder), "-B", str(build), "-DCMAKE_BUILD_TYPE=Release",
                     "-DCMAKE_INSTALL_LIBDIR=lib", "-DWEIR_DEVELOPER=OFF", "-DWEIR_WERROR=OFF", "-DWEIR_INSTALL=ON",
                     "-DWEIR_LIBRARIES=shared", "-DWEIR_STATIC_COMMAND=ON", "-DWEIR_LIBDW=OFF",
                     "-DWEIR_PRELOAD=ON", "-DWEIR_SIM_DRIVER=ON"]
        off, on = "-DWEIR_COMMAND=OFF", "-DWEIR_COMMAND=ON"
        make = ["/bin/cmake", "--build", str(build), "--target", "weir_shared", "-j", "3"]
        tools = {"cmake": "/bin/cmake"}
        self.assertEqual(self.built(tools, WEIR_JOBS="3"), [[*configure, off], make])
        ninja = {**tools, "ninja": "/bin/ninja"}
        self.assertEqual(self.built(ninja, WEIR_JOBS="3"), [[*configure, "-G", "Ninja", off], make])
        build.mkdir(parents=True)
        (build / "CMakeCache.txt").touch()  # of another time, with the generator it had then
        self.assertEqual(self.built(ninja, WEIR_JOBS="3"), [[*configure, off], make])
        with unittest.mock.patch.object(os, "cpu_count", lambda: 5):
            self.assertEqual(self.built(tools, WEIR_JOBS="")[1][-1], "5")
        with unittest.mock.patch.object(os, "cpu_count", lambda: None):
            self.assertEqual(self.built(tools, WEIR_JOBS="")[1][-1], "1")
        self.assertRaisesRegex(SystemExit, "there is no cmake", self.built, {})

        # The command: where that can be built, on demand, or not at all.
        everything = [*make[:4], "all", "-j", "3"]
        self.assertEqual(self.built(tools, command=None, WEIR_JOBS="3"), [[*configure, on], everything])
        self.assertEqual(self.built(tools, fails=[on], command=None, WEIR_JOBS="3"),
                         [[*configure, on], [*configure, off], everything])
        self.assertIn("the command weir is left out: it needs fmt", self.told)
        self.assertEqual(self.built(tools, command=True, WEIR_JOBS="3"), [[*configure, on], everything])
        self.assertRaises(subprocess.CalledProcessError, self.built, tools, fails=[on], command=True)

    def test_what_cmake_makes_has_its_place(self):
        installed = {"lib/libweir.so.0.1.2": b"\x7fELF library", "bin/weir": b"\x7fELF command",
                     "lib/weir/libweir_preload.so": b"\x7fELF preload", "share/man/man1/weir.1": b".TH"}

        def run(words):
            prefix = Path(words[words.index("--prefix") + 1])
            for name, content in installed.items():
                (prefix / name).parent.mkdir(parents=True, exist_ok=True)
                (prefix / name).write_bytes(content)
                (prefix / "lib/libweir.so.0.1").unlink(missing_ok=True)
                (prefix / "lib/libweir.so.0.1").symlink_to("libweir.so.0.1.2")

        for wanted, command in (("on", True), ("OFF", False), ("", None)):
            with unittest.mock.patch.object(weir_backend, "version", lambda: "0.1.2"), \
                    unittest.mock.patch.object(weir_backend, "run", run), \
                    unittest.mock.patch.object(weir_backend, "make", return_value=self.folder) as make, \
                    unittest.mock.patch.dict(os.environ, WEIR_LIBRARY="", WEIR_WHEEL_COMMAND=wanted):
                files = weir_backend.native_files()
            make.assert_called_once_with(["all"], command=command)
            self.assertEqual(files, {"weir/lib/libweir.so.0.1": b"\x7fELF library", "weir/bin/weir": b"\x7fELF command",
                                     "weir/lib/weir/libweir_preload.so": b"\x7fELF preload",
                                     "weir-0.1.2.data/data/share/man/man1/weir.1": b".TH"})

    def test_what_is_not_portable_is_for_this_machine_only(self):
        with unittest.mock.patch("sys.stderr") as said:
            self.assertEqual(weir_backend.tag({"weir/lib/x.so": b"\x7fELF\x01\x01"}), f"py3-none-linux_{os.uname().machine}")
        self.assertIn("this wheel is for this machine only: weir/lib/x.so expected a 64-bit",
                      "".join(call.args[0] for call in said.write.mock_calls))

    def test_extensions_that_were_built_ahead_are_packed(self):
        fits = f"weir{weir_backend.version()}-torch2.11.0-cuda13-cxx11-cpython-312-x86_64-linux-gnu-0123456789ab.so"
        for folder, name in (("one", fits), ("one", "weir0.0.9-torch2.11.0.so"), ("two", fits), ("two", "notes.txt")):
            (self.folder / folder).mkdir(exist_ok=True)
            (self.folder / folder / name).write_text(folder)
        with unittest.mock.patch.dict(os.environ, WEIR_TORCH_EXTENSIONS=f"{self.folder / 'one'}::{self.folder / 'two'}"):
            packed = {name: path for name, path in weir_backend.package_files().items() if "torch_extensions" in name}
        self.assertEqual(packed, {f"torch_extensions/{fits}": self.folder / "one" / fits})

    def test_an_editable_package_is_this_tree(self):
        os.environ["WEIR_LIBRARY"] = LIBRARY
        name = weir_backend.build_editable(self.folder)
        with zipfile.ZipFile(self.folder / name) as wheel:
            self.assertEqual(wheel.read("weir.pth").decode().strip(), str(ROOT / "python"))

    def test_a_source_distribution_can_build_itself(self):
        name = weir_backend.build_sdist(self.folder)
        with tarfile.open(self.folder / name) as archive:
            names = {entry.partition("/")[2] for entry in archive.getnames()}
            base = f"weir-{weir_backend.version()}"
            self.assertEqual({entry.partition("/")[0] for entry in archive.getnames()}, {base})
            about = archive.getmember(f"{base}/PKG-INFO")
            self.assertEqual(archive.extractfile(about).read(), weir_backend.metadata_files()["METADATA"])
            self.assertAlmostEqual(about.mtime, time.time(), delta=1000)
        self.assertEqual(name, f"{base}.tar.gz")
        for needed in ("pyproject.toml", "CMakeLists.txt", "src/CMakeLists.txt", "include/weir.h",
                       "cmake/weir_component.cmake", "python/backend/weir_backend.py", "python/weir/_abi.py",
                       "LICENSE", "README.md", "PKG-INFO", "python/backend/elf_imports.py", "python/weir/torch/build.py",
                       "tools/weir/main.cpp", "viewer/page.html", "docs/man/weir.1", "plugins/preload/preload.map"):
            self.assertIn(needed, names)
        self.assertFalse([each for each in names if "__pycache__" in each or "tests" in each.split("/")
                          or each.startswith("build")])


if __name__ == "__main__":
    unittest.main()
