#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""_abi.py says what weir.h says. `test_abi.py --write` makes it so."""

import re
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ABI = ROOT / "python/weir/_abi.py"
PARTS = ("CALLBACKS", "STRUCTURES", "FUNCTIONS")


def header():
    """weir.h without comments and directives."""
    text = (ROOT / "include/weir.h").read_text()
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    return re.sub(r"^#(?:.*\\\n)*.*$", "", text, flags=re.M)


def one_line(declaration):
    return re.sub(r"\s+", " ", declaration).strip()


def parts():
    """What _abi.py should hold, from weir.h."""
    text = header()
    callbacks = [one_line(declaration) for declaration in re.findall(r"typedef \w+ \(\*\w+\)\(.*?\);", text, re.S)]
    structures = []
    for name, members in re.findall(r"typedef struct (\w+) \{(.*?)\} \1;", text, re.S):
        lines = [f"  {one_line(member)};" for member in members.split(";") if member.strip()]
        structures.append("\n".join([f"struct {name} {{", *lines, "};"]))
    functions = [one_line(declaration) for declaration in re.findall(r"WEIR_C_API (.*?;)", text, re.S)]
    return {"CALLBACKS": "\n".join(callbacks), "STRUCTURES": "\n".join(structures),
            "FUNCTIONS": "\n".join(functions)}


def write():
    lines = ["# SPDX-License-Identifier: Apache-2.0",
             '"""weir.h in its own words, without the prose. Made by tests/test_abi.py --write."""']
    for name in PARTS:
        lines += ["", f'{name} = """', parts()[name], '"""']
    ABI.write_text("\n".join(lines) + "\n")


class Abi(unittest.TestCase):
    def test_every_declaration_is_that_of_the_header(self):
        from weir import _abi
        for name, text in parts().items():
            self.assertEqual(getattr(_abi, name).strip(), text,
                             "weir.h changed: python/tests/test_abi.py --write, then look what it means")

    def test_nothing_in_the_header_is_overlooked(self):
        text = header()
        names = set(re.findall(r"\b(weir_\w+)\(", text))
        declared = {re.search(r"(\w+)\(", line)[1] for line in parts()["FUNCTIONS"].splitlines()}
        self.assertEqual(names, declared)
        self.assertGreater(len(names), 100)
        self.assertEqual(len(re.findall(r"typedef struct \w+ \{", text)),
                         len(re.findall(r"^struct ", parts()["STRUCTURES"], re.M)))

    def test_every_function_has_its_types(self):
        from weir import _native
        for line in parts()["FUNCTIONS"].splitlines():
            name, parameters = re.search(r"(\w+)\((.*)\)", line).groups()
            count = 0 if parameters == "void" else parameters.count(",") + 1
            self.assertEqual(len(getattr(_native.lib, name).argtypes), count, line)

    def test_numbers_and_flags_are_those_of_the_header(self):
        import weir
        values = {}
        for body in re.findall(r"enum \{(.*?)\}", header(), re.S):
            for name, value in re.findall(r"(weir_\w+)\s*=\s*([\d <]+)", body):
                values[name] = eval(value)  # "1 << 3"
        for kind, prefix in ((weir.BlockState, "weir_block_"), (weir.DeviceFeature, "weir_device_"),
                             (weir.CaptureStatus, "weir_capture_"), (weir.Attachment, "weir_attach_")):
            for name, member in kind.__members__.items():  # second names for a number, too
                self.assertEqual(values[prefix + name.lower()], member.value)
            self.assertEqual(len(kind), sum(name.startswith(prefix) and not name.startswith("weir_block_pool_")
                                            for name in values))
        from weir import _suspend
        for prefix, words in (("weir_contents_", _suspend.CONTENTS), ("weir_backup_", _suspend.KINDS),
                              ("weir_requests_", _suspend.REQUESTS), ("weir_streams_", _suspend.STREAMS)):
            self.assertEqual({name: value for name, value in values.items() if name.startswith(prefix)},
                             {prefix + word: number for number, word in enumerate(words)})
        for name, member in weir.StreamPoolAttribute.__members__.items():
            self.assertEqual(values["weir_stream_pool_" + name.lower()], member.value)
        self.assertEqual((values["weir_read"], values["weir_read_write"], 0),
                         (weir.AccessRights.READ, weir.AccessRights.READ_WRITE, weir.AccessRights.NONE))
        self.assertEqual((values["weir_buffer_zeroed"], values["weir_buffer_pool_declared_uses"]),
                         (weir._buffers._ZEROED, weir._buffers._DECLARED_USES))

    def test_error_numbers_are_those_of_the_library(self):
        from weir import _buffers, _errors
        from weir._native import lib
        meant = {1: "invalid_argument", 2: "size_overflow", 3: "bad_alignment", 4: "out_of_memory",
                 5: "limit_exceeded", 6: "foreign_pointer", 7: "double_free", 8: "already_freed",
                 13: "driver_unavailable", 16: "driver_gone", 19: "not_supported", 25: "bad_option",
                 32: "closed", 33: "moved_from", 34: "no_host_memory", 35: "suspended",
                 36: "memory_damaged"}
        self.assertEqual(set(meant), set(_errors._CLASSES))
        for code, name in meant.items():
            self.assertEqual(lib.weir_error_name(code).decode(), name)
        self.assertEqual(lib.weir_error_name(_buffers._NOT_FOUND), b"not_found")


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        write()
    else:
        sys.path.insert(0, str(ROOT / "python"))
        unittest.main()
