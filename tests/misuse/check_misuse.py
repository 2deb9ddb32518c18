# SPDX-License-Identifier: Apache-2.0
"""Misuse is visible: what the programs misuse.cpp and misuse.c write to standard error.

    check_misuse.py CPP_WITH_NDEBUG CPP_WITHOUT C_WITH_NDEBUG C_WITHOUT CPP_STATIC [COMMAND]
"""

import os
import re
import subprocess
import sys
import unittest

RELEASE, DEBUG, C_RELEASE, C_DEBUG, STATIC = sys.argv[1:6]
COMMAND = sys.argv[6:7]
LEAK = r"weir: still_live: [^\n]*\(4 KiB\): an allocator was closed with 1 live blocks? of 4 KiB\n  0x[0-9a-f]+, 4 KiB[^\n]*\n"
DOUBLE_FREE = r"weir: double_free: [^\n]*: 0x[0-9a-f]+[^\n]*\n"
FOREIGN = r"weir: foreign_pointer: [^\n]*: 0x[0-9a-f]+ is not memory of this allocator\n"


def run(program, *words, **variables):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WEIR_")}
    done = subprocess.run([program, *words], env={**environment, "WEIR_RUNTIME": "sim", **variables}, text=True,
                          capture_output=True, timeout=60, check=True)
    return done.stdout, done.stderr


class Misuse(unittest.TestCase):
    def expect(self, pattern, program, *words, **variables):
        _, errors = run(program, *words, **variables)
        self.assertTrue(re.fullmatch(pattern, errors), f"expected {pattern!r}, got:\n{errors}")

    def test_a_program_without_ndebug_is_told(self):
        self.expect(DOUBLE_FREE, DEBUG, "double_free")
        self.expect(FOREIGN, DEBUG, "foreign_pointer")
        self.expect(LEAK, DEBUG, "leak")
        self.expect(LEAK, C_DEBUG, "leak")

    def test_a_program_with_ndebug_is_told_if_it_asks(self):
        for program, words in ((RELEASE, "double_free"), (RELEASE, "foreign_pointer"), (RELEASE, "leak"), (C_RELEASE, "leak")):
            self.expect("", program, words)
        for switch in ("on", "1"):
            self.expect(DOUBLE_FREE, RELEASE, "double_free", WEIR_PRINT_ERRORS=switch)
            self.expect(FOREIGN, RELEASE, "foreign_pointer", WEIR_PRINT_ERRORS=switch)
            self.expect(LEAK, RELEASE, "leak", WEIR_PRINT_ERRORS=switch)
            self.expect(LEAK, C_RELEASE, "leak", WEIR_PRINT_ERRORS=switch)

    def test_a_handler_or_the_switch_silences_it(self):
        for program in (DEBUG, C_DEBUG):
            self.expect("", program, "handler", "leak")
            self.expect("", program, "leak", WEIR_PRINT_ERRORS="off")
            self.expect(LEAK, program, "handler", "leak", WEIR_PRINT_ERRORS="on")

    def test_a_program_without_misuse_writes_nothing(self):
        for program in (RELEASE, DEBUG, C_RELEASE, C_DEBUG):
            self.expect("", program, "limit", WEIR_PRINT_ERRORS="on")


class Stacks(unittest.TestCase):
    """Stacks begin with the user's call, whether weir is a library of its own or part of the program."""

    FRAME = r"    main\+0x[0-9a-f]+ at %s\+0x[0-9a-f]+ \(build [0-9a-f]{12}\)\n"

    def report(self, program):
        return run(program, "leak", WEIR_PRINT_ERRORS="on", WEIR_HEAP_DEBUG_STACKS="on")[1]

    def test_the_first_call_is_the_users(self):
        for program in (RELEASE, C_RELEASE, STATIC):
            name = re.escape(os.path.realpath(program))
            self.assertRegex(self.report(program), r"\n  allocated on stream [^\n]*\n" + self.FRAME % name)

    def test_the_command_names_file_and_line(self):
        if not COMMAND:
            self.skipTest("the command is not built")
        for program, source in ((RELEASE, "misuse.cpp"), (STATIC, "misuse.cpp"), (C_RELEASE, "misuse.c")):
            text = self.report(program)
            done = subprocess.run([*COMMAND, "symbolize"], input=text, text=True, capture_output=True, timeout=60)
            if done.returncode == 2 and "libdw" in done.stderr:
                self.skipTest("the command was built without libdw")
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assertRegex(done.stdout, r"\n    main at [^\n]*/%s:[0-9]+\n" % re.escape(source))
            self.assertEqual(done.stdout.splitlines()[0], text.splitlines()[0])


class Environment(unittest.TestCase):
    """Variables mean the same for programs in C++ and in C, which set no options."""

    def test_options_of_the_environment_count(self):
        for program in (RELEASE, C_RELEASE):
            output, errors = run(program, "limit", WEIR_HEAP_LIMIT="77MiB")
            self.assertEqual((int(output), errors), (77 << 20, ""))

    def test_what_cannot_be_read_is_named_once_and_counts_as_unset(self):
        for program in (RELEASE, C_RELEASE):
            unset, _ = run(program, "limit")
            output, errors = run(program, "limit", WEIR_HEAP_LIMIT="much")
            self.assertEqual(output, unset)
            self.assertRegex(errors, r'\Aweir: bad_option: [^\n]*WEIR_HEAP_LIMIT: heap_limit: expected a size[^\n]*, got "much"[^\n]*\n\Z')

    def test_a_mistyped_variable_is_named_once(self):
        for program in (RELEASE, C_RELEASE):
            _, errors = run(program, "limit", WEIR_HEAP_LIMT="77MiB")
            self.assertRegex(errors, r"\Aweir: bad_option: [^\n]*WEIR_HEAP_LIMT is unknown and ignored; did you mean WEIR_HEAP_LIMIT\?\n\Z")
            _, errors = run(program, "limit", WEIR_HEAP_LIMT="77MiB", WEIR_PRINT_ERRORS="off")
            self.assertEqual(errors, "")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
