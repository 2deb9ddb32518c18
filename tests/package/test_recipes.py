#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The recipes and the release tool, as far as they can be tested without the tools that use them: the recipes can be parsed, every
CMake option that they set exists, and what the release tool writes is consistent."""

import ast
import json
import re
import subprocess
import sys
import tempfile
import unittest
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

    def test_they_can_be_parsed(self):
        for path in (PACKAGING / "conan/conanfile.py", PACKAGING / "spack/package.py"):
            classes = [node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef)]
            self.assertIn(classes, (["WeirConan"], ["Weir"]))
        manifest = json.loads((PACKAGING / "vcpkg/vcpkg.json").read_text())
        self.assertEqual((manifest["name"], manifest["version"]), ("weir", "@VERSION@"))
        try:
            import yaml
        except ImportError:
            return
        recipe = yaml.safe_load((PACKAGING / "conda/recipe.yaml").read_text())
        self.assertEqual([each["package"]["name"] for each in recipe["outputs"]], ["libweir", "weir"])

    def test_the_debian_packages_are_those_of_the_soname(self):
        control = (PACKAGING / "debian/control").read_text()
        packages = re.findall(r"^Package: (.+)$", control, re.M)
        major, minor, _ = release.version(ROOT)
        number = f"0.{minor}" if major == "0" else major
        self.assertEqual(packages, [f"libweir{number}", "libweir-dev", "weir-tools", "python3-weir"])
        self.assertEqual({path.stem for path in (PACKAGING / "debian").glob("*.install")}, set(packages))


class Release(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.tree = Path(folder.name, "tree")
        for name in {release.HEADER, "CHANGELOG.md", *(file for file, _, _ in release.PLACES)}:
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
                self.assertNotRegex(recipe.read_text(), r"@[A-Z0-9]+@", recipe)
        self.assertIn(f"https://example.invalid/files/weir-{name}.tar.gz", (folder / "recipes/spack/package.py").read_text())


if __name__ == "__main__":
    unittest.main()
