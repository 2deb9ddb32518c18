# SPDX-License-Identifier: Apache-2.0
"""What every test file here uses: the allocator under test, and a unittest runner that leaves a record.

WEIR_TORCH_ALLOCATOR chooses weir or native. With WEIR_TORCH_RECORD a line of JSON is appended to that
file whenever a test begins or ends, so that run.py knows what a process that died was doing;
WEIR_TORCH_LEAVE_OUT names tests that are not to be run.
"""

import faulthandler
import gc
import json
import os
import subprocess
import sys
import textwrap
import time
import traceback
import unittest
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent.parent
WEIR = os.environ.get("WEIR_TORCH_ALLOCATOR", "weir") == "weir"
GPU = torch.device("cuda")
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

sys.path.insert(0, str(ROOT / "python"))


def enable():
    """Makes the allocator under test the one of this process; native needs nothing."""
    if WEIR:
        import weir.torch

        weir.torch.enable(policy=os.environ.get("WEIR_TORCH_POLICY", "balanced"))


def allocated():
    return torch.cuda.memory_allocated()


def reserved():
    return torch.cuda.memory_reserved()


def stat(name):
    return torch.cuda.memory_stats()[name]


def block(size):
    """A tensor of so many bytes."""
    return torch.empty(size, dtype=torch.uint8, device=GPU)


def busy(milliseconds=50):
    """Keeps the current stream busy for about so long."""
    torch.cuda._sleep(int(milliseconds * 1_500_000))


def run_program(text, seconds=120, allocator=None, before="", environment=None):
    """Runs a Python program in a process of its own under the allocator, which is enabled behind `before`,
    with these variables added to the environment; its exit status and output."""
    chosen = allocator or ("weir" if WEIR else "native")
    program = "import sys\nsys.path.insert(0, {!r})\nimport support\n{}\nsupport.enable()\n{}".format(
        str(Path(__file__).resolve().parent), textwrap.dedent(before), textwrap.dedent(text))
    variables = os.environ | {"WEIR_TORCH_ALLOCATOR": chosen} | (environment or {})
    variables.pop("WEIR_TORCH_RECORD", None)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True,
                          timeout=seconds, env=variables)
    return done.returncode, done.stdout, done.stderr


class AllocatorTest(unittest.TestCase):
    """Begins and ends with nothing cached."""

    def setUp(self):
        self.settle()

    def tearDown(self):
        self.settle()

    def settle(self):
        gc.collect()
        torch.cuda.synchronize()
        torch._C._cuda_clearCublasWorkspaces()  # torch keeps them for good otherwise
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()

    def assert_ran(self, done):
        """The process that run_program() ran ended well."""
        status, _, errors = done
        self.assertEqual(status, 0, errors[-3000:])


class Record(unittest.TestResult):
    """Writes down what begins and how it ends, when it does."""

    def __init__(self, file):
        super().__init__()
        self.file = file
        self.begun = 0.0
        self.problem = None

    def write(self, **entry):
        if self.file:
            with open(self.file, "a") as out:
                out.write(json.dumps(entry) + "\n")
        elif entry["state"] in ("passed", "failed", "skipped"):
            print(entry["state"], entry["test"], entry["why"], flush=True)

    def startTest(self, test):
        super().startTest(test)
        self.begun, self.problem = time.monotonic(), None
        self.write(state="begun", test=name_of(test))

    def stopTest(self, test):
        state, why = self.problem or ("passed", "")
        self.write(state=state, test=name_of(test), why=why,
                   seconds=round(time.monotonic() - self.begun, 3))
        super().stopTest(test)
        if self.file and state == "failed" and ("CUDA error" in why or "AcceleratorError" in why):
            os._exit(70)  # no call works in this process any more; run.py starts another

    def failed(self, error):
        text = "".join(traceback.format_exception(*error)).strip()
        if self.problem is None or self.problem[0] != "failed":
            self.problem = "failed", text[-3000:]

    def addError(self, test, err):
        super().addError(test, err)
        self.failed(err)
        if not isinstance(test, unittest.TestCase):  # setUpClass or the module's
            self.write(state="failed", test=str(test), why=self.problem[1], seconds=0)

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.failed(err)

    def addSubTest(self, test, subtest, err):
        super().addSubTest(test, subtest, err)
        if err is not None:
            self.failed(err)

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.problem = "skipped", reason

    def addUnexpectedSuccess(self, test):
        super().addUnexpectedSuccess(test)
        self.problem = "failed", "passed, but was expected to fail"


def name_of(test):
    return test.id().removeprefix("__main__.")


def each_test(suite):
    for item in suite:
        if isinstance(item, unittest.TestSuite):
            yield from each_test(item)
        else:
            yield item


def main():
    """Runs the tests of the file that calls it."""
    faulthandler.enable()
    enable()
    record = Record(os.environ.get("WEIR_TORCH_RECORD"))
    left_out = set(filter(None, os.environ.get("WEIR_TORCH_LEAVE_OUT", "").split(",")))
    patterns = sys.argv[1:]
    tests = [test for test in each_test(unittest.defaultTestLoader.loadTestsFromModule(
        sys.modules["__main__"]))
        if name_of(test) not in left_out
        and (not patterns or any(pattern in test.id() for pattern in patterns))]
    record.write(state="planned", tests=[name_of(test) for test in tests])
    unittest.TestSuite(tests).run(record)
    record.write(state="over")
    sys.exit(0 if record.wasSuccessful() else 1)
