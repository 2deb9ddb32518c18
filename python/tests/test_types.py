#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The package's types are right (mypy --strict), and everything public says what it is."""

import inspect
import shutil
import subprocess
import unittest

from support import PYTHON

import weir


class Types(unittest.TestCase):
    @unittest.skipUnless(shutil.which("mypy"), "mypy is not installed")
    def test_mypy_finds_nothing(self):
        done = subprocess.run(["mypy", "--cache-dir=/dev/null"], cwd=PYTHON, capture_output=True, text=True,
                              check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_everything_public_has_a_docstring(self):
        silent = []
        for name in weir.__all__:
            thing = getattr(weir, name)
            if not (inspect.isclass(thing) or inspect.isfunction(thing)):
                continue
            if not inspect.getdoc(thing):
                silent.append(name)
            if not inspect.isclass(thing):
                continue
            for member, value in vars(thing).items():
                value = getattr(value, "__func__", value)
                if not member.startswith("_") and (inspect.isfunction(value) or isinstance(value, property)):
                    if not inspect.getdoc(value):
                        silent.append(f"{name}.{member}")
        self.assertEqual(silent, [])


if __name__ == "__main__":
    unittest.main()
