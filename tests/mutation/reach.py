"""Which lines of the package each test reaches, in its own process and in those it starts.

python_mutants.py puts this into its copy of the package as sitecustomize.py, which every Python imports
before anything else. REACH_FOLDER: where to write, one file a process; REACH_TEST: the test that started
this process. Every line is written when it is first reached: a process may end in any way.
"""

import os
import sys
import threading
import time

IMPORT = "import"  # in place of a test's name: what happens when modules are imported, for whoever needs them
PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep


def follow():
    out = os.open(os.path.join(os.environ["REACH_FOLDER"], str(os.getpid())),
                  os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    write, package, seen = os.write, PACKAGE, set()  # at the end of the process modules may be empty
    test = [os.environ.get("REACH_TEST", IMPORT)]

    def is_import(frame):
        while frame is not None:
            if frame.f_code.co_name == "<module>" and frame.f_code.co_filename.startswith(package + "weir"):
                return True
            frame = frame.f_back
        return False

    def enter(frame, event, _):
        file = frame.f_code.co_filename
        if not file.startswith(package):
            return None
        name = IMPORT if is_import(frame) else test[0]

        def pass_by(frame, event, _):
            key = (name, file, frame.f_lineno)
            if event == "line" and key not in seen:
                seen.add(key)
                write(out, f"{name}\t{file[len(package):]}\t{frame.f_lineno}\n".encode())
            return pass_by

        return pass_by

    def follow_tests():
        import unittest
        run = unittest.TestCase.run

        def followed(self, result=None):
            test[0] = os.environ["REACH_TEST"] = self.id().partition(".")[2]  # less "__main__"
            begin = time.perf_counter()
            try:
                return run(self, result)
            finally:
                write(out, f"{test[0]}\t\t{time.perf_counter() - begin:.3f}\n".encode())
                test[0] = IMPORT
                del os.environ["REACH_TEST"]

        unittest.TestCase.run = followed

    if "REACH_TEST" not in os.environ:
        follow_tests()
    threading.settrace(enter)
    sys.settrace(enter)


if "REACH_FOLDER" in os.environ:
    follow()
