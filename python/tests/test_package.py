#!/usr/bin/env python3
"""`pip install .` without a network: what is installed works from where it lies, on a simulated GPU.

The library is the one that WEIR_LIBRARY names, so that none is built here.
"""

import os
import subprocess
import sys
import tarfile
import tempfile
import unittest
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
            sources = [path for path in (ROOT / "plugins").rglob("*") if path.suffix in (".cpp", ".hpp")]
            self.assertLessEqual({f"weir/plugins/{path.relative_to(ROOT / 'plugins')}"
                                  for path in sources if "tests" not in path.parts}, plugins)

    def test_an_editable_package_is_this_tree(self):
        os.environ["WEIR_LIBRARY"] = LIBRARY
        name = weir_backend.build_editable(self.folder)
        with zipfile.ZipFile(self.folder / name) as wheel:
            self.assertEqual(wheel.read("weir.pth").decode().strip(), str(ROOT / "python"))

    def test_a_source_distribution_can_build_itself(self):
        name = weir_backend.build_sdist(self.folder)
        with tarfile.open(self.folder / name) as archive:
            names = {entry.partition("/")[2] for entry in archive.getnames()}
        for needed in ("pyproject.toml", "CMakeLists.txt", "src/CMakeLists.txt", "include/weir.h",
                       "cmake/weir_room.cmake", "python/backend/weir_backend.py", "python/weir/_abi.py",
                       "LICENSE", "README.md", "PKG-INFO"):
            self.assertIn(needed, names)
        self.assertFalse([each for each in names if "__pycache__" in each or each.startswith("build")])


if __name__ == "__main__":
    unittest.main()
