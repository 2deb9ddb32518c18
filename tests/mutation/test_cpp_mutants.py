#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Faults are planted where they should be, sleep until they are woken, and change what they say they change."""

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE)]
try:
    from clang import cindex
except ImportError:
    print("skipped: python3 has no clang.cindex (python3-clang-14)")
    sys.exit(77)
import cpp_mutants  # noqa: E402

RIGHT = "20 1010 013; 5 green 16 4"
# Fault by fault, in the order of the text: what the sample prints when it is awake.
EXPECTED = (HERE / "sample.txt").read_text()


class Planted(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        source = HERE / "sample.cpp"
        unit = cindex.Index.create().parse(str(source), args=["-std=c++20"])
        cls.text = source.read_bytes()
        cls.every = cpp_mutants.Finder(source, source.name, unit).find()
        cls.every.sort(key=lambda each: (each.edits[0].begin, each.operator, each.after))
        edits, cls.chosen = [], []
        for mutant in cls.every:
            if cpp_mutants.fits(mutant, edits):
                edits += mutant.edits
                cls.chosen.append(mutant)
        cls.folder = tempfile.TemporaryDirectory()
        cls.program = Path(cls.folder.name) / "sample"
        planted = cls.program.with_suffix(".cpp")
        planted.write_bytes(cpp_mutants.plant(cls.text, cls.chosen))
        subprocess.run(["c++", "-std=c++20", "-O0", "-w", "-include", HERE / "switch.hpp", "-o", cls.program, planted],
                       check=True)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def run_sample(self, **variables):
        return subprocess.run([self.program], env={**os.environ, **variables}, capture_output=True, text=True,
                              check=False, timeout=10).stdout.strip()

    def test_sleeping_faults_change_nothing(self):
        self.assertEqual(self.run_sample(), RIGHT)

    def test_no_line_moves(self):
        planted = cpp_mutants.plant(self.text, self.chosen)
        self.assertEqual(planted.count(b"\n"), self.text.count(b"\n"))

    def test_an_id_outlives_edits_elsewhere(self):
        self.assertEqual(len({each.id for each in self.every}), len(self.every))
        self.assertFalse([each.id for each in self.every if str(each.line) in each.id.split("|")])

    def test_each_fault_does_what_it_says(self):
        lines = []
        for mutant in self.chosen:
            try:
                said = self.run_sample(WEIR_MUTANT=str(mutant.number))
            except subprocess.TimeoutExpired:
                said = "too long"
            lines.append(f"{mutant.line} {mutant.operator}: {mutant.before} => {mutant.after or 'nothing'}: "
                         f"{'no difference' if said == RIGHT else said}")
        if os.environ.get("WEIR_WRITE_EXPECTED"):
            (HERE / "sample.txt").write_text("\n".join(lines) + "\n")
        self.assertEqual("\n".join(lines) + "\n", EXPECTED)

    def test_what_a_run_comes_by_is_told(self):
        reached = Path(self.folder.name) / "reached"
        reached.write_bytes(bytes(1 << 20))
        self.run_sample(WEIR_MUTANTS_REACHED=str(reached))
        numbers = {number for number, byte in enumerate(reached.read_bytes()) if byte}
        self.assertLess(numbers, {each.number for each in self.chosen})
        # Constants are worked out by the compiler, and come by nothing.
        self.assertEqual({each.line for each in self.chosen if each.number not in numbers}, {40, 48})


if __name__ == "__main__":
    unittest.main()
