#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Where the library is looked for, what it must be, and how C is turned into Python."""

import ctypes
import os
import tempfile
import unittest
import unittest.mock
from pathlib import Path

from support import Case, run

import weir
from weir import _abi, _native

# A library that is not quite the right one: `wrong` says what to do with a name.
OTHER = """
import ctypes
class Other(ctypes.CDLL):
    def __getattr__(self, name):
        found = super().__getattr__(name)
        {wrong}
        setattr(self, name, found)
        return found
ctypes.CDLL = Other
try:
    import weir
except ImportError as problem:
    print(problem)
"""


class Search(Case):
    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(os.path.realpath(folder.name))
        self.package = self.root / "python/weir"
        self.package.mkdir(parents=True)
        for patch in (unittest.mock.patch.object(_native, "PACKAGE", self.package),
                      unittest.mock.patch.dict(os.environ)):
            patch.start()
            self.addCleanup(patch.stop)
        os.environ.pop("WEIR_LIBRARY", None)

    def put(self, *names):
        paths = [self.root / name for name in names]
        for path in paths:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        return [str(path) for path in paths]

    def test_a_library_that_is_named_is_the_only_one(self):
        self.put("python/weir/lib/libweir.so.0.1", "include/weir.h", "build/release/src/libweir.so")
        os.environ["WEIR_LIBRARY"] = "/no/such/libweir.so"
        self.assertEqual(_native.candidates(), ["/no/such/libweir.so"])

    def test_then_the_packages_own_then_the_build_trees_then_the_systems(self):
        self.assertEqual(_native.candidates(), ["libweir.so.0.1", "libweir.so"])
        trees = self.put(*(f"build/{tree}src/libweir.so" for tree in ("release/", "gpu/", "python/", "debug/", "")))
        self.put("build/asan/src/libweir.so")  # a sanitizer cannot be loaded into Python
        self.assertEqual(_native.candidates(), ["libweir.so.0.1", "libweir.so"])  # no source tree
        self.put("include/weir.h")
        self.assertEqual(_native.candidates(), [*trees, "libweir.so.0.1", "libweir.so"])
        own = self.put("python/weir/lib/libweir.so.0.1")
        self.assertEqual(_native.candidates(), [*own, *trees, "libweir.so.0.1", "libweir.so"])

    def test_the_first_that_can_be_loaded_is_taken(self):
        broken, missing = self.put("broken.so")[0], str(self.root / "missing.so")
        good = weir.library_path()
        with unittest.mock.patch.object(_native, "candidates", lambda: [broken, missing, good, "never.so"]):
            self.assertEqual(_native._load()._name, good)
        with unittest.mock.patch.object(_native, "candidates", lambda: [broken, missing]):
            with self.assertRaises(ImportError) as caught:
                _native._load()
        said = str(caught.exception)
        self.assertTrue(said.startswith("weir: libweir.so could not be loaded"), said)
        self.assertLess(said.index("broken.so"), said.index("missing.so"))


class Fit(Case):
    def test_another_version_is_refused(self):
        for version, fits in ((100, True), (199, True), (200, False), (0, False), (10100, False)):
            ran = run(OTHER.format(wrong=f"if name == 'weir_version': found = lambda: {version}"))
            self.assertEqual((ran.returncode, ran.stderr), (0, ""))
            if fits:
                self.assertEqual(ran.stdout, "")
            else:
                self.assertRegex(ran.stdout, r"^weir: .*libweir\.so.* is version .*, this package needs 0\.1\n$")

    def test_an_older_library_is_refused(self):
        ran = run(OTHER.format(wrong="if name == 'weir_tag_named': raise AttributeError(name)"))
        self.assertEqual((ran.returncode, ran.stderr), (0, ""))
        self.assertRegex(ran.stdout, r"^weir: .*libweir\.so.* is older than this package: weir_tag_named\n$")

    def test_the_loaded_file_is_found_again(self):
        self.assertEqual(weir.library_path(), os.path.realpath(_native.lib._name))
        maps = "7f00-7f01 r-xp 0 0:0 0 /usr/lib/libweird.so\n7f02-7f03 rw-p 0 0:0 0\n"
        with self.maps(maps):
            self.assertIsNone(weir.library_path())
        with self.maps(maps + "7f04-7f05 r--p 0 0:0 0 /opt/my weir/libweir.so.0.1\n"):
            self.assertEqual(weir.library_path(), "/opt/my weir/libweir.so.0.1")
        with unittest.mock.patch("builtins.open", side_effect=OSError):
            self.assertIsNone(weir.library_path())

    def maps(self, text):
        return unittest.mock.patch("builtins.open", unittest.mock.mock_open(read_data=text))


class Declarations(unittest.TestCase):
    def test_declarations_are_read_as_c_reads_them(self):
        self.assertEqual([_native.split(text) for text in ("  const char* name", "char name[16]", "weir_stream** stream ")],
                         [("const char*", "name", 0), ("char", "name", 16), ("weir_stream**", "stream", 0)])
        self.assertRaisesRegex(ValueError, "no declaration: x", _native.split, "x")

    def test_types_are_those_of_c(self):
        of = _native.types.of
        self.assertIs(of("void"), None)
        self.assertIs(of("weir_error"), ctypes.c_int32)
        self.assertIs(of("const char*"), ctypes.c_char_p)
        self.assertIs(of("uint64_t*"), ctypes.POINTER(ctypes.c_uint64))
        for address in ("void*", "const void*", "weir_stream*"):
            self.assertIs(of(address), ctypes.c_void_p)
        for handle in ("void**", "weir_stream**"):
            self.assertIs(of(handle), ctypes.POINTER(ctypes.c_void_p))
        self.assertIs(of("const weir_gauge*"), ctypes.POINTER(_native.structure("weir_gauge")))
        self.assertRaises(KeyError, of, "weir_unknown")
        self.assertIs(_native._parameter("uint8_t bytes[64]"), ctypes.POINTER(ctypes.c_uint8))
        self.assertIs(_native._parameter("int32_t device").kind, ctypes.c_int32)

    def test_callbacks_have_their_types(self):
        called = _native.types.known["weir_out_of_memory_handler"]
        self.assertEqual((called._restype_, called._argtypes_),
                         (ctypes.c_int32, (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int32)))

    def test_structures_have_their_members(self):
        kind = _native.structure("weir_device_info")
        self.assertEqual(kind.name.size, 100)
        self.assertEqual((kind.total_memory.offset, kind.total_memory.size), (8, 8))
        self.assertEqual(kind().struct_size, ctypes.sizeof(kind))
        gauge = _native.structure("weir_gauge")(3, 4)
        self.assertEqual((gauge.current, gauge.peak), (3, 4))  # it has no size to know
        self.assertEqual([name for name, _ in gauge._fields_], ["current", "peak"])
        self.assertEqual(len(_native.types.known) - len(_native._PLAIN),
                         _abi.STRUCTURES.count("struct weir_") - _abi.STRUCTURES.count("  struct ")
                         + _abi.CALLBACKS.count("typedef"))

    def test_functions_have_their_types(self):
        lib = _native.lib
        self.assertEqual((lib.weir_version.restype, lib.weir_version.argtypes), (ctypes.c_int32, []))
        self.assertEqual((lib.weir_tag_name.restype, [each.kind for each in lib.weir_tag_name.argtypes]),
                         (ctypes.c_char_p, [ctypes.c_uint32]))
        self.assertEqual([each.kind for each in lib.weir_fill.argtypes],
                         [ctypes.c_void_p, ctypes.c_uint8, ctypes.c_uint64, ctypes.c_void_p])
        self.assertEqual(lib.weir_reported_errors.restype, ctypes.c_uint64)
        quiet = _native.quiet("weir_fill")
        self.assertEqual((quiet.restype, quiet.argtypes), (ctypes.c_int32, lib.weir_fill.argtypes))
        self.assertNotEqual(quiet(None, 0, 1, None), 0)  # says so and raises nothing
        self.assertRaises(weir.Error, lib.weir_fill, None, 0, 1, None)

    def test_texts_are_texts(self):
        self.assertEqual(_native.text("grün"), "grün".encode())
        self.assertRaisesRegex(ValueError, "null character", _native.text, "a\0b")

        def hand_out(prefix, space, capacity, length):
            whole = prefix + b"\xc3\xbcn"
            length._obj.value = len(whole)
            if space is not None:
                self.assertEqual((capacity, len(space)), (len(whole) + 1, len(whole) + 1))
                space.value = whole

        self.assertEqual(_native.read_text(hand_out, b"gr"), "grün")

    def test_results_are_numbers(self):
        def write(value):
            return lambda *arguments: setattr(arguments[-1]._obj, "value", value)

        self.assertEqual((_native.number(write(7)), _native.number(write(0)), _native.new(write(None))), (7, 0, 0))
        self.assertEqual(_native.new(write(2**63)), 2**63)
        self.assertEqual(_native.number(write(-3), kind=ctypes.c_int32), -3)


if __name__ == "__main__":
    unittest.main()
