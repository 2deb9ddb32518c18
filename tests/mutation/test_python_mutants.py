#!/usr/bin/env python3
"""Faults are planted in Python exactly where they belong, and chosen in the same way each time."""

import ast
import sys
import unittest
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from python_mutants import all_mutants, choose  # noqa: E402
from python_operators import mutants_of  # noqa: E402

SAMPLE = '''\
"""A sample: 1 + 1 in a text is nobody's fault."""

MOST = 8  # äöü: bytes are not characters


class Box:
    open = True

    def __init__(self, size: int, *, deep: bool = False, limit: Optional[int] = None) -> None:
        self.size = size  # kept
        self.used = 0

    def put(self, first, second, count=2):
        if not self.open and (count or first.name):
            raise ValueError("closed")
        if count >= self.size:
            return second, first
        self.used += count * 3
        notify(first, second.name,
               count)
        return f"{1 + 2}" + "text"
'''


def planted(operator, line):
    """What one kind of fault makes of a line of the sample."""
    source = SAMPLE.encode()
    out = []
    for mutant in mutants_of("box.py", source):
        if mutant.operator == operator and mutant.line == line:
            changed = mutant.plant(source).decode()
            ast.parse(changed)
            before, after = SAMPLE.splitlines(), changed.splitlines()
            same = [row for row in range(len(before)) if row != line - 1 and before[row:row + 1] == after[row:row + 1]]
            out.append((after[line - 1].strip(), len(before) - len(same) - 1))
    return out


class Planting(unittest.TestCase):
    def expect(self, operator, line, *texts):
        """The line as each fault leaves it; nothing else changes."""
        self.assertEqual(planted(operator, line), [(text, 0) for text in texts])

    def test_conditions(self):
        self.expect("negate", 14, "if (not (not self.open and (count or first.name))):")
        self.expect("drop_operand", 14, "if (count or first.name):", "if (not self.open):",
                    "if not self.open and (first.name):", "if not self.open and (count):")
        self.expect("negate", 16, "if (not (count >= self.size)):")
        self.expect("boundary", 16, "if count > self.size:")

    def test_equalities_are_turned_once(self):
        mutants = mutants_of("f.py", b"if a == b: pass\nif a is not b: pass\nif a not in b: pass\n")
        self.assertEqual([(each.operator, each.after) for each in mutants],
                         [("equality", "a != b"), ("equality", "a is b"), ("equality", "a in b")])

    def test_numbers(self):
        self.expect("constant", 3, "MOST = 9  # äöü: bytes are not characters",
                    "MOST = 7  # äöü: bytes are not characters")
        self.expect("constant", 11, "self.used = 1", "self.used = (-1)")
        self.expect("arithmetic", 18, "self.used -= count * 3", "self.used += count // 3")
        self.expect("boolean", 7, "open = False")

    def test_defaults(self):
        head = "def __init__(self, size: int, *, deep: bool = {}, limit: Optional[int] = {}) -> None:"
        self.expect("default", 9, head.format("True", "None"), head.format("False", "0"))
        self.expect("default", 13, "def put(self, first, second, count=3):")
        self.expect("constant", 13)
        self.expect("boolean", 9)

    def test_statements(self):
        self.expect("drop_statement", 10, "pass  # kept")
        self.expect("drop_statement", 18, "pass")
        self.expect("ignore_error", 15, "pass")
        [dropped] = [each for each in mutants_of("box.py", SAMPLE.encode())
                     if (each.operator, each.line) == ("drop_statement", 19)]
        self.assertEqual((dropped.before.count("\n"), dropped.after), (1, "pass"))
        self.assertEqual(sorted(dropped.lines), [19, 20])

    def test_order(self):
        self.expect("swap_returned", 17, "return first, second")
        swaps = [each.after for each in mutants_of("box.py", SAMPLE.encode()) if each.operator == "swap_arguments"]
        self.assertEqual(swaps, ["notify(second.name, first,\n               count)",
                                 "notify(first, count,\n               second.name)"])

    def test_fields(self):
        self.expect("wrong_field", 16, "if count >= self.used:")
        self.expect("wrong_field", 14)  # `open` is none that the class sets
        self.expect("wrong_field", 18)  # a target is a statement of its own

    def test_texts_are_left_alone(self):
        self.assertEqual([each for each in mutants_of("box.py", SAMPLE.encode()) if each.line in (1, 21)], [])


class Names(unittest.TestCase):
    def test_a_name_survives_edits_elsewhere(self):
        before = {each.id for each in mutants_of("box.py", SAMPLE.encode())}
        edited = "import os\n\n\ndef other():\n    os.close(1)\n" + SAMPLE.replace("# kept", "# kept here")
        self.assertEqual(before - {each.id for each in mutants_of("box.py", edited.encode())}, set())
        self.assertIn("box.py:Box.put:constant:3 -> 4:0", before)

    def test_each_name_is_of_one_fault(self):
        mutants = all_mutants()
        self.assertEqual([name for name, count in Counter(each.id for each in mutants).items() if count > 1], [])
        self.assertGreater(len(mutants), 1000)

    def test_a_seed_chooses_the_same_of_each_file_its_share(self):
        mutants = mutants_of("a.py", b"x = 1\n" * 30) + mutants_of("b.py", b"x = 1\n" * 10)
        chosen = choose(mutants, 20, seed=7)
        self.assertEqual(Counter(each.file for each in chosen), {"a.py": 15, "b.py": 5})
        self.assertEqual(choose(list(reversed(mutants)), 20, seed=7), chosen)
        self.assertNotEqual(choose(mutants, 20, seed=8), chosen)
        self.assertEqual(len(choose(mutants, 1000, seed=7)), 80)


if __name__ == "__main__":
    unittest.main()
