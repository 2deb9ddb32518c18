# SPDX-License-Identifier: Apache-2.0
"""Runs a Python test and writes down which functions of python/weir it called.

    python3 python_calls.py FOLDER SCRIPT [ARGUMENT...]
"""

import atexit
import json
import os
import runpy
import sys
import threading

folder, script = sys.argv[1:3]
root = os.path.realpath(os.path.join(os.path.dirname(__file__), "../.."))
package = os.path.join(root, "python/weir/")
called = set()


def note(frame, event, _argument):
    if event == "call" and frame.f_code.co_filename.startswith(package):
        code = frame.f_code
        called.add((os.path.relpath(code.co_filename, root), code.co_firstlineno))


@atexit.register
def write():
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, f"{os.getpid()}.json"), "w") as out:
        json.dump(sorted(called), out)


threading.setprofile(note)
sys.setprofile(note)
sys.argv = sys.argv[2:]
sys.path[0] = os.path.dirname(os.path.abspath(script))
runpy.run_path(script, run_name="__main__")
