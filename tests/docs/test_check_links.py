# SPDX-License-Identifier: Apache-2.0
"""check_links.py names each link, anchor and path that leads nowhere, and accepts those that do not."""

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SCRIPT = Path(__file__).resolve().parent / "check_links.py"
DECISION = "# 0001: A\n\n**Status.** Accepted.\n"


class Links(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        self.write("README.md", "See [docs](docs/README.md#a-map) and `src/a/{b,c}.cpp`.\n")
        self.write("docs/README.md", "# A map\n\n[why](decisions/README.md)\n")
        self.write("docs/decisions/README.md", "[0001](0001-a.md)\n")
        self.write("docs/decisions/0001-a.md", DECISION)
        self.write("src/a/b.cpp", "")
        self.write("src/a/c.cpp", "")

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def expect(self, *parts):
        done = subprocess.run([sys.executable, SCRIPT, self.root], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 1 if parts else 0, done.stdout + done.stderr)
        for part in parts:
            self.assertIn(part, done.stdout)
        self.assertIn(f" {len(parts)} wrong", done.stdout)

    def test_fine(self):
        self.expect()

    def test_missing_file(self):
        self.write("README.md", "\n[docs](docs/none.md)\n")
        self.expect("README.md:2: no such file: docs/none.md")

    def test_missing_heading(self):
        self.write("README.md", "[docs](docs/README.md#the-map)\n")
        self.expect("README.md:1: no such heading: docs/README.md#the-map")

    def test_missing_path(self):
        self.write("README.md", "`src/a/{b,d}.cpp`, `src/a/*.hpp`, `other/src/x.cpp`\n")
        self.expect("no such path: src/a/d.cpp", "no such path: src/a/*.hpp")

    def test_blocks_of_code_and_the_web_are_left_alone(self):
        self.write("README.md", "```\n[a](b.md)\n`src/none`\n```\n[c](https://example.org/d)\n")
        self.expect()

    def test_page_that_no_page_links(self):
        self.write("docs/alone.md", "# Alone\n")
        self.expect("docs/alone.md:1: cannot be reached from docs/README.md")

    def test_decision_without_status_and_outside_the_index(self):
        self.write("docs/decisions/0002-b.md", DECISION)
        self.write("docs/decisions/0001-a.md", "# 0001: A\n\n[b](0002-b.md)\n")
        self.expect("0001-a.md:1: has no status", "0002-b.md:1: is not in docs/decisions/README.md")


if __name__ == "__main__":
    unittest.main()
