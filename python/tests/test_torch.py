#!/usr/bin/env python3
"""Which builds of torch weir.torch.enable() takes, under a stand-in (fake_torch.py). tests/torch has the
real one."""

import os
import tempfile
import unittest
import unittest.mock
import warnings
from pathlib import Path

import support  # noqa: F401  (finds the package)

import fake_torch


class Versions(unittest.TestCase):
    def make(self, version, **arguments):
        """weir.torch under a torch of that version, with an extension that is built already."""
        self.fake = fake_torch.Fake(version, **arguments)
        module = self.fake.install()
        self.addCleanup(self.fake.remove)
        self.extension = fake_torch.Extension()

        def load(_verbose=False):
            module._extension = self.extension
            return self.extension

        module._load = load
        return module

    def refusal(self, version, any_version=False, **arguments):
        module = self.make(version, **arguments)
        with self.assertRaises(RuntimeError) as caught:
            module.enable(any_version=any_version)
        self.assertEqual(self.extension.installs, [])
        self.assertFalse(module.is_enabled())
        return str(caught.exception)

    def test_covered_ones_are_taken_without_a_word(self):
        for version in ("2.6.0+cu126", "2.7.1", "2.9.0.dev20250801+cu128", "2.10.0", "2.11.0+cu130", "2.14.1",
                        "2.14.0a0+git93e9d17"):
            with self.subTest(version), warnings.catch_warnings():
                warnings.simplefilter("error")
                module = self.make(version)
                module.enable(policy="compact", exportable=False)
                self.assertEqual(self.extension.installs, [("heap_policy=compact", False)])
                self.assertTrue(module.is_enabled())
                module.enable()  # the second time does nothing
                self.assertEqual(len(self.extension.installs), 1)

    def test_later_ones_are_tried_with_a_warning(self):
        for version in ("2.15.0a0+gitec30410", "2.20.0", "3.0.0"):
            with self.subTest(version):
                module = self.make(version)
                with self.assertWarnsRegex(RuntimeWarning, f"not tested with torch {version[:4]}.*2.6 to 2.14"):
                    module.enable()
                self.assertEqual(self.extension.installs, [("", True)])

    def test_whoever_asks_for_any_version_is_not_warned(self):
        for version in ("2.5.1", "2.15.0"):
            with self.subTest(version), warnings.catch_warnings():
                warnings.simplefilter("error")
                self.make(version).enable(any_version=True)
                self.assertEqual(self.extension.installs, [("", True)])

    def test_older_ones_are_refused(self):
        self.assertRegex(self.refusal("2.5.1+cu121"), "torch 2.6 to 2.14, this is 2.5.1\\+cu121.*pluggable")
        self.assertRegex(self.refusal("1.13.1"), "covers torch 2.6 to 2.14, this is 1.13.1")

    def test_a_version_that_is_none_is_refused(self):
        self.assertRegex(self.refusal("unknown"), "'unknown' is no version")

    def test_the_old_abi_is_refused_whoever_asks(self):
        for any_version in (False, True):
            text = self.refusal("2.6.0+cu124", any_version=any_version, cxx11_abi=False)
            self.assertRegex(text, "torch 2.6.0\\+cu124 was built with the C\\+\\+ ABI from before 2011")
            self.assertRegex(text, "wheel for CUDA 12.6.*pluggable")

    def test_one_without_cuda_is_refused(self):
        self.assertRegex(self.refusal("2.11.0+cpu", any_version=True, cuda=None), "without CUDA")


class Builds(unittest.TestCase):
    def failure(self, version):
        """The error of a build that the compiler ends."""
        fake = fake_torch.Fake(version)
        module = fake.install()
        self.addCleanup(fake.remove)
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "include").mkdir()
            (Path(folder) / "include" / "cuda_runtime_api.h").touch()
            with unittest.mock.patch.dict(os.environ, {"WEIR_CACHE": folder, "CUDA_HOME": folder}), \
                    unittest.mock.patch.object(module, "_loaded", str), \
                    self.assertRaises(RuntimeError) as caught:
                module.enable()
            self.assertEqual(list(Path(folder, "torch").iterdir()), [])  # nothing is left of it
        self.assertIn("-std=c++20", fake.builds[0]["extra_cflags"])
        self.assertIn("module.cpp", {Path(source).name for source in fake.builds[0]["sources"]})
        self.assertRegex(str(caught.exception.__cause__), "Error building extension")
        return str(caught.exception)

    def test_a_failure_names_the_version_and_what_to_do(self):
        text = self.failure("2.9.1+cu128")
        self.assertRegex(text, "extension for torch 2.9.1\\+cu128 could not be built. A C\\+\\+20 compiler")
        self.assertRegex(text, "verbose=True.*pluggable")

    def test_a_failure_with_a_later_one_says_that_the_interface_may_have_changed(self):
        text = self.failure("2.16.0")
        self.assertRegex(text, "torch 2.16.0 could not be built. enable\\(\\) covers torch 2.6 to 2.14")
        self.assertRegex(text, "may have changed.*newer weir.*pluggable")


if __name__ == "__main__":
    unittest.main()
