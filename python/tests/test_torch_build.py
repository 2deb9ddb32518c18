#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Extensions that are built ahead: `python -m weir.torch_build` compiles a small one against headers that look like
torch's, and enable() of a stand-in for that torch (fake_torch.py) finds it, loads it and compiles nothing."""

import contextlib
import ctypes
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import unittest.mock
from pathlib import Path

import support

import fake_torch
from weir import _native, _torch_extension, torch_build
from weir._torch_extension import Torch

# What the extension would be: it says which headers it saw, and that it is installed.
MODULE = r"""
#include <Python.h>
#include <c10/macros/Macros.h>
#include <cuda_runtime_api.h>
#include <weir.h>
static int installed = 0;
static PyObject* install(PyObject*, PyObject*) { installed = 1; Py_RETURN_NONE; }
static PyObject* is_installed(PyObject*, PyObject*) { return PyBool_FromLong(installed); }
static PyObject* stats(PyObject*, PyObject*) {
  return Py_BuildValue("{s:i,s:i,s:i,s:i}", "torch", C10_FAKE, "cuda", CUDART_VERSION, "weir", weir_version(),
                       "abi", _GLIBCXX_USE_CXX11_ABI);
}
static PyMethodDef methods[] = {{"install", install, METH_VARARGS, ""}, {"installed", is_installed, METH_NOARGS, ""},
                                {"stats", stats, METH_VARARGS, ""}, {nullptr, nullptr, 0, nullptr}};
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_weir_torch", "", -1, methods, nullptr, nullptr, nullptr, nullptr};
#define INIT2(name) PyInit_##name
#define INIT(name) INIT2(name)
PyMODINIT_FUNC __attribute__((visibility("default"))) INIT(TORCH_EXTENSION_NAME)() { return PyModule_Create(&definition); }
"""
PYTHON_HEADERS = Path(__import__("sysconfig").get_paths()["include"], "Python.h")


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(os.path.realpath(folder.name))
        root = self.folder / "root"
        (root / "plugins/torch").mkdir(parents=True)
        (root / "plugins/torch/module.cpp").write_text(MODULE)
        (root / "include").symlink_to(Path(_native.PACKAGE).parents[1] / "include")
        self.extensions = self.folder / "extensions"
        for patch in (unittest.mock.patch.object(_torch_extension, "sources", lambda: root),
                      unittest.mock.patch.dict(os.environ, {"WEIR_CACHE": str(self.folder / "cache")})):
            patch.start()
            self.addCleanup(patch.stop)
        for name in ("WEIR_TORCH_EXTENSIONS", "CUDA_HOME"):
            os.environ.pop(name, None)
        _torch_extension._digest.cache_clear()
        self.addCleanup(_torch_extension._digest.cache_clear)

    def site(self, name, version, cuda="13.0", toolkit=13000):
        """A folder with what a wheel of torch would unpack to, and the headers of CUDA beside it."""
        site = self.folder / name
        include = site / "torch/include"
        (include / "c10/macros").mkdir(parents=True)
        (include / "c10/macros/Macros.h").write_text(f"#define C10_FAKE {int(version.split('.')[1])}\n")
        (include / "torch").mkdir()
        major, minor, patch = re.match(r"(\d+)\.(\d+)\.(\d+)", version).groups()
        (include / "torch/version.h").write_text(f"#define TORCH_VERSION_MAJOR {major}\n#define TORCH_VERSION_MINOR {minor}\n"
                                                 f"#define TORCH_VERSION_PATCH {patch}\n")
        (site / "torch/version.py").write_text(f"__version__ = '{version}'\ndebug = False\ncuda: Optional[str] = '{cuda}'\n")
        runtime = site / "nvidia/cuda_runtime/include"
        runtime.mkdir(parents=True)
        (runtime / "cuda_runtime_api.h").write_text(f"#define CUDART_VERSION  {toolkit}\n")
        return site

    def enable(self, version="2.11.0+cu130", cuda="13.0", path=os.environ["PATH"], **environment):
        """weir.torch after enable() under a stand-in for that torch."""
        fake = fake_torch.Fake(version, cuda=cuda)
        module = fake.install()
        self.addCleanup(fake.remove)
        self.fake = fake
        with unittest.mock.patch.dict(os.environ, {"PATH": path, **environment}), \
                unittest.mock.patch.object(module, "_loaded", str):
            module.enable()
        return module

    def build(self, *words):
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = torch_build.main(list(map(str, words)))
        return code, out.getvalue(), err.getvalue()


class Names(Case):
    def test_a_name_says_what_the_extension_fits(self):
        names = [_torch_extension.file_name(Torch(*each)) for each in (
            ("2.11.0+cu130", "13.0", True), ("2.11.0", "13.1", True), ("2.11.0+cu126", "12.6", True),
            ("2.11.1+cu130", "13.0", True), ("2.11.0+cu130", "13.0", False), ("2.14.0a0+git93e9d17", "13.0", True))]
        self.assertEqual(names[0], names[1])  # minor versions of CUDA
        self.assertEqual(len(set(names)), 5)
        version, abi = _native.lib.weir_version_text().decode(), re.escape(_torch_extension.python_abi())
        self.assertRegex(names[0], rf"^weir{version}-torch2\.11\.0-cuda13-cxx11-{abi}-[0-9a-f]{{12}}\.so$")
        self.assertIn("-precxx11-", names[4])
        self.assertIn("torch2.14.0a0+git93e9d17-", names[5])

    def test_another_state_of_the_sources_is_another_name(self):
        torch = Torch("2.11.0", "13.0", True)
        before = _torch_extension.file_name(torch)
        with open(_torch_extension.sources() / "plugins/torch/module.cpp", "a", encoding="utf-8") as file:
            file.write("// more\n")
        _torch_extension._digest.cache_clear()
        self.assertNotEqual(before, _torch_extension.file_name(torch))

    def test_named_folders_come_before_the_package(self):
        package = _native.PACKAGE / "torch_extensions"
        self.assertEqual(_torch_extension.folders(), [package])
        with unittest.mock.patch.dict(os.environ, WEIR_TORCH_EXTENSIONS="/a::/b"):
            self.assertEqual(_torch_extension.folders(), [Path("/a"), Path("/b"), package])


class Looking(Case):
    def test_a_wheel_that_was_unpacked(self):
        site = self.site("site", "2.11.0+cu130")
        for folder in (site, site / "torch"):
            found = _torch_extension.look(folder)
            self.assertEqual(found.torch, Torch("2.11.0+cu130", "13.0", True))
            self.assertEqual((found.headers, found.libraries, found.flags), (site / "torch/include", None, ()))

    def test_headers_alone(self):
        headers = self.site("site", "2.9.1+cu128") / "torch/include"
        self.assertRaisesRegex(RuntimeError, "does not name its CUDA version; pass it", _torch_extension.look, headers)
        self.assertEqual(_torch_extension.look(headers, "12.8").torch, Torch("2.9.1", "12.8", True))

    def test_the_abi_is_that_of_the_library(self):
        site = self.site("site", "2.6.0+cu124", "12.4")
        (site / "torch/lib").mkdir()
        for symbols, is_new in ((b"_ZNSs4swapERSs", False), (b"_ZNSt7__cxx1112basic_string", True)):
            (site / "torch/lib/libc10.so").write_bytes(symbols)
            found = _torch_extension.look(site)
            self.assertEqual((found.torch.cxx11_abi, found.libraries), (is_new, site / "torch/lib"))

    def test_what_is_no_torch(self):
        self.assertRaisesRegex(RuntimeError, "no torch in /", _torch_extension.look, self.folder / "root")
        headers = self.site("site", "2.9.1+cu128") / "torch/include"
        (headers / "torch/version.h").unlink()
        self.assertRaisesRegex(RuntimeError, "with the version of torch", _torch_extension.look, headers, "12.8")


@unittest.skipUnless(shutil.which("c++") and PYTHON_HEADERS.exists(), "a C++ compiler and Python's headers are needed")
class Building(Case):
    @classmethod
    def setUpClass(cls):
        """Libraries with the names of torch's in this process, where the loader finds them as it finds torch's."""
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        (Path(folder.name) / "empty.c").touch()
        for name in _torch_extension._LIBRARIES:
            library = Path(folder.name, f"lib{name}.so")
            subprocess.run(["cc", "-shared", "-nostdlib", f"-Wl,-soname,lib{name}.so", Path(folder.name, "empty.c"), "-o", library],
                           check=True)
            ctypes.CDLL(str(library))

    def setUp(self):
        super().setUp()
        self.fake = fake_torch.Fake()
        self.fake.install()
        self.addCleanup(self.fake.remove)

    def test_what_was_built_ahead_is_loaded_and_nothing_is_compiled(self):
        sites = [self.site("one", "2.11.0+cu130"), self.site("two", "2.10.0+cu126", "12.6", 12060)]
        code, said, errors = self.build("--all", "--output", self.extensions, *sites)
        self.assertEqual((code, errors), (0, ""))
        self.assertEqual(len(list(self.extensions.iterdir())), 2)
        self.assertRegex(said, r"torch2\.11\.0-.*: for torch 2\.11\.0\+cu130 \(CUDA 13\.0, .*\), \d+ KiB, \d+ s\n")
        self.assertRegex(said, r"torch2\.10\.0-.*: for torch 2\.10\.0\+cu126 \(CUDA 12\.6, ")
        weir = _native.lib.weir_version()
        for version, cuda, saw in (("2.11.0+cu130", "13.0", {"torch": 11, "cuda": 13000}),
                                   ("2.10.0+cu128", "12.8", {"torch": 10, "cuda": 12060})):
            # Without a compiler and ninja.
            module = self.enable(version, cuda, path="/nowhere", WEIR_TORCH_EXTENSIONS=f"/none:{self.extensions}")
            self.assertTrue(module.is_enabled())
            self.assertEqual(module.stats(0), {**saw, "weir": weir, "abi": 1})
            self.assertEqual(self.fake.builds, [])
        self.assertFalse((self.folder / "cache").exists())

    def test_its_libraries_are_those_of_the_process(self):
        self.build("--output", self.extensions, self.site("one", "2.11.0+cu130"))
        (path,) = self.extensions.iterdir()
        dynamic = subprocess.run(["readelf", "--dynamic", "--wide", path], capture_output=True, text=True, check=True).stdout
        needed = re.findall(r"\(NEEDED\).*\[(.+)\]", dynamic)
        for name in ("libc10.so", "libc10_cuda.so", "libtorch_python.so", _native.SONAME):
            self.assertIn(name, needed)
        self.assertNotRegex(dynamic, "RPATH|RUNPATH")

    def test_what_fails_is_said_and_the_others_are_built(self):
        wrong = self.site("wrong", "2.12.0+cu130", toolkit=12060)
        broken = self.site("broken", "2.8.0+cu130")
        (broken / "torch/include/c10/macros/Macros.h").write_text("#error no such macro\n")
        code, said, errors = self.build("--output", self.extensions, wrong, self.site("right", "2.11.0+cu130"), broken)
        self.assertEqual(code, 1)
        self.assertEqual([path.name.split("-")[1] for path in self.extensions.iterdir()], ["torch2.11.0"])
        self.assertEqual(len(said.splitlines()), 1)
        self.assertRegex(errors, r"wrong: .* belongs to CUDA 12, and torch 2\.12\.0\+cu130 was built with CUDA 13\.0; set CUDA_HOME")
        self.assertRegex(errors, r"(?s)broken: .*this command failed:.*no such macro")

    def test_nothing_to_build_for(self):
        empty = self.folder / "empty"
        empty.mkdir()
        self.assertEqual(self.build("--all", empty), (1, "", f"weir.torch: found no torch below {empty}\n"))

    def test_one_that_cannot_be_loaded_is_compiled_anew(self):
        self.extensions.mkdir()
        name = _torch_extension.file_name(Torch("2.11.0+cu130", "13.0", True))
        (self.extensions / name).write_bytes(b"not a library")
        with self.assertLogs("weir.torch", "WARNING") as logged, self.assertRaisesRegex(RuntimeError, "could not be built"):
            self.enable(WEIR_TORCH_EXTENSIONS=str(self.extensions), CUDA_HOME=str(self.cuda()))
        self.assertIn(f"{self.extensions / name} was built for this torch and cannot be loaded (", logged.output[0])
        self.assertRegex(logged.output[0], r"\)\. An extension is compiled now, once, ")
        self.assertEqual(len(self.fake.builds), 1)

    def cuda(self):
        (self.folder / "cuda/include").mkdir(parents=True)
        (self.folder / "cuda/include/cuda_runtime_api.h").touch()
        return self.folder / "cuda"


class Choosing(Case):
    """Which of many built extensions is taken: empty files with the names of extensions for other torches, CUDAs, C++ ABIs,
    Pythons and weirs."""

    THIS = Torch("2.11.0+cu130", "13.0", True)

    def setUp(self):
        super().setUp()
        self.extensions.mkdir()
        patch = unittest.mock.patch.dict(os.environ, WEIR_TORCH_EXTENSIONS=str(self.extensions))
        patch.start()
        self.addCleanup(patch.stop)
        self.right = _torch_extension.file_name(self.THIS)
        version, abi = _native.lib.weir_version_text().decode(), _torch_extension.python_abi()
        self.wrong = {  # what each is for, as messages say it
            "torch 2.10.0": _torch_extension.file_name(Torch("2.10.0", "13.0", True)),
            "torch 2.11.1": _torch_extension.file_name(Torch("2.11.1+cu130", "13.0", True)),
            "torch 2.11.0a0_git1": _torch_extension.file_name(Torch("2.11.0a0:git1", "13.0", True)),
            "CUDA 12": _torch_extension.file_name(Torch("2.11.0+cu128", "12.8", True)),
            "the C++ ABI before C++11": _torch_extension.file_name(Torch("2.11.0+cu130", "13.0", False)),
            "cpython-39-riscv64-linux-gnu": self.right.replace(abi, "cpython-39-riscv64-linux-gnu"),
            "weir 9.8.7": self.right.replace(f"weir{version}", "weir9.8.7"),
            "another state of weir's sources": re.sub("[0-9a-f]{12}", "0123456789ab", self.right),
        }

    def put(self, name, folder=None):
        target = (folder or self.extensions) / name
        target.parent.mkdir(exist_ok=True)
        target.write_text(f"not a library: {name}")
        return target

    def test_each_part_of_the_name_decides(self):
        self.assertEqual(len(set(self.wrong.values()) | {self.right}), len(self.wrong) + 1)
        for text, name in self.wrong.items():
            self.put(name)
            self.assertEqual(_torch_extension.differences(self.right, name), [text])
        self.assertIsNone(_torch_extension.find(self.THIS))
        right = self.put(self.right)
        self.assertEqual(_torch_extension.find(self.THIS), right)
        self.assertEqual(_torch_extension.find(Torch("2.11.0", "13.1", True)), right)  # another minor version of CUDA
        for torch, part in ((Torch("2.10.0+cu130", "13.0", True), "torch 2.10.0"), (Torch("2.11.0", "12.6", True), "CUDA 12"),
                            (Torch("2.11.0", "13.0", False), "the C++ ABI before C++11")):
            self.assertEqual(_torch_extension.find(torch), self.extensions / self.wrong[part])

    def test_another_python_takes_its_own(self):
        mine, other = self.put(self.right), self.put(self.wrong["cpython-39-riscv64-linux-gnu"])
        self.assertEqual(_torch_extension.find(self.THIS), mine)
        with unittest.mock.patch.object(_torch_extension, "python_abi", lambda: "cpython-39-riscv64-linux-gnu"):
            self.assertEqual(_torch_extension.find(self.THIS), other)

    def test_the_first_folder_wins_and_the_package_comes_last(self):
        package = self.folder / "package"
        package.mkdir()
        last = self.put(self.right, package / "torch_extensions")
        with unittest.mock.patch.object(_native, "PACKAGE", package):
            self.assertEqual(_torch_extension.find(self.THIS), last)
            second = self.put(self.right, self.folder / "second")
            with unittest.mock.patch.dict(os.environ, WEIR_TORCH_EXTENSIONS=f"{self.folder / 'none'}:{second.parent}"):
                self.assertEqual(_torch_extension.find(self.THIS), second)
                first = self.put(self.right)
                with unittest.mock.patch.dict(os.environ, WEIR_TORCH_EXTENSIONS=f"{self.extensions}:{second.parent}"):
                    self.assertEqual(_torch_extension.find(self.THIS), first)

    def test_the_error_names_what_the_found_ones_are_for(self):
        self.assertRegex(_torch_extension.mismatch(self.THIS), rf"looked for {re.escape(self.right)} in "
                         rf"{re.escape(str(self.extensions))}, .*torch_extensions, and no extension was found$")
        for text, name in self.wrong.items():
            path = self.put(name)
            self.assertTrue(_torch_extension.mismatch(self.THIS).endswith(f", and found {name} (for {text})"), text)
            path.unlink()
        both = _torch_extension.file_name(Torch("2.9.1", "12.8", False))
        self.put(both)
        self.assertIn(f"found {both} (for torch 2.9.1, CUDA 12, the C++ ABI before C++11)", _torch_extension.mismatch(self.THIS))
        self.put("weir-torch-of-somebody.so")
        for name in self.wrong.values():
            self.put(name)
        said = _torch_extension.mismatch(self.THIS)
        self.assertTrue(said.endswith(" and 7 more"), said)
        self.assertNotIn(both, said)  # the nearest are named
        self.assertEqual(said.count(".so (for "), 3)


class Refusals(Case):
    def test_without_a_fitting_one_and_without_a_compiler_the_error_says_what_to_do(self):
        self.extensions.mkdir()
        other = _torch_extension.file_name(Torch("2.10.0", "12.6", True))
        (self.extensions / other).touch()
        with self.assertRaises(RuntimeError) as caught:
            self.enable(path="/nowhere", WEIR_TORCH_EXTENSIONS=str(self.extensions))
        wanted = _torch_extension.file_name(Torch("2.11.0+cu130", "13.0", True))
        self.assertTrue(str(caught.exception).startswith(
            f"weir.torch: no built extension fits torch 2.11.0+cu130 (CUDA 13.0, {_torch_extension.python_abi()}): looked for {wanted} "
            f"in {self.extensions}, "), caught.exception)
        self.assertIn(f", and found {other} (for torch 2.10.0, CUDA 12); and an extension cannot be compiled here without a C++ compiler (c++) and "
                      "ninja. Either install", str(caught.exception))
        self.assertRegex(str(caught.exception), "WEIR_TORCH_EXTENSIONS; or use weir.torch.pluggable")
        self.assertEqual(self.fake.builds, [])

    def test_one_that_cannot_be_loaded_without_a_compiler(self):
        self.extensions.mkdir()
        name = _torch_extension.file_name(Torch("2.11.0+cu130", "13.0", True))
        (self.extensions / name).write_bytes(b"not a library")
        with self.assertRaises(RuntimeError) as caught:
            self.enable(path="/nowhere", WEIR_TORCH_EXTENSIONS=str(self.extensions))
        self.assertRegex(str(caught.exception), rf"^weir\.torch: {re.escape(str(self.extensions / name))} was built for this torch and cannot "
                         r"be loaded \(.*\); and an extension cannot be compiled here without a C\+\+ compiler \(c\+\+\) and ninja\. Either install")
        self.assertEqual(self.fake.builds, [])

    def test_the_old_abi_is_refused_also_where_an_extension_was_built_for_it(self):
        self.extensions.mkdir()
        (self.extensions / _torch_extension.file_name(Torch("2.6.0+cu124", "12.4", False))).write_bytes(b"not a library")
        fake = fake_torch.Fake("2.6.0+cu124", cuda="12.4", cxx11_abi=False)
        module = fake.install()
        self.addCleanup(fake.remove)
        with unittest.mock.patch.dict(os.environ, WEIR_TORCH_EXTENSIONS=str(self.extensions)), \
                self.assertRaisesRegex(RuntimeError, "C\\+\\+ ABI from before 2011"):
            module.enable()

    def test_the_builder_runs_without_torch_and_nothing_else_does(self):
        support_path = {"PYTHONPATH": str(support.PYTHON)}
        clean = {name: value for name, value in os.environ.items() if name != "WEIR_TORCH_EXTENSIONS"}
        for words, code, said in ((["-m", "weir.torch_build", "--help"], 0, "Compiles weir's extension"),
                                  (["-m", "weir.torch_build", str(self.folder)], 1, "no torch in /"),
                                  (["-m", "weir.torch.build"], 1, "No module named 'torch'"),
                                  (["-c", "import weir.torch"], 1, "No module named 'torch'")):
            ran = subprocess.run([sys.executable, "-S", *words], capture_output=True, text=True, check=False,
                                 env={**clean, **support_path})
            self.assertEqual(ran.returncode, code, ran.stderr)
            self.assertIn(said, ran.stdout + ran.stderr)


if __name__ == "__main__":
    unittest.main()
