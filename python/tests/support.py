# SPDX-License-Identifier: Apache-2.0
"""What the tests share: a simulated machine, and programs of their own to run."""

import os
import subprocess
import sys
import unittest
from pathlib import Path

PYTHON = Path(__file__).resolve().parents[1]
if str(PYTHON) not in sys.path:
    sys.path.insert(0, str(PYTHON))
os.environ.setdefault("WEIR_RUNTIME", "sim")

MIB = 1 << 20
GIB = 1 << 30


def run(program, **environment):
    """Runs a Python program that can import weir and the stand-ins; returns what it printed."""
    path = os.pathsep.join([str(PYTHON), str(PYTHON / "tests")])
    return subprocess.run([sys.executable, "-X", "dev", "-W", "error", "-c", program], text=True,
                          capture_output=True, timeout=60, check=False,
                          env={**os.environ, "PYTHONPATH": path, **environment})


class Case(unittest.TestCase):
    """With a simulated machine of its own; nothing may be reported behind its back."""

    options = {}

    def setUp(self):
        import weir
        self.reported = weir.reported_errors()
        self.machine = weir.Runtime(runtime="sim", **self.options)
        self.device = self.machine.device(0)

    def tearDown(self):
        import weir
        self.assertEqual(weir.reported_errors(), self.reported)

    def expect_silence(self, ran, output=""):
        self.assertEqual((ran.returncode, ran.stdout, ran.stderr), (0, output, ""))
