# SPDX-License-Identifier: Apache-2.0
"""How the tests of the command run it: nothing of the caller's own settings reaches it."""

import atexit
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

# Live pages of the tests: those of others, whole or garbled, are not seen.
PAGES = Path(tempfile.mkdtemp(prefix="weir_pages_", dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
atexit.register(shutil.rmtree, PAGES, ignore_errors=True)


def clean_environment(**more):
    """The caller's, without its settings of weir; which planted fault is awake (./dev mutate) is none."""
    clean = {name: text for name, text in os.environ.items()
             if not name.startswith("WEIR_") or name.startswith("WEIR_MUTANT")}
    # LeakSanitizer takes seconds a run, and the drivers here look for what was left behind themselves.
    clean["ASAN_OPTIONS"] = clean.get("ASAN_OPTIONS", "") + ":detect_leaks=0"
    return {**clean, "LC_ALL": "C", "WEIR_LIVE_FOLDER": str(PAGES), **more}


def run(program, words, environment=None, **how):
    """Runs it to its end; `how` is for subprocess.run. Its output is text unless `how` says otherwise."""
    ran = subprocess.run([program, *words], **{"capture_output": True, "text": True, "timeout": 100, **how},
                         env=clean_environment(**(environment or {})), check=False)
    if isinstance(ran.stderr, str):  # a build with counters (./dev coverage) says when it cannot write them
        ran.stderr = "".join(line for line in ran.stderr.splitlines(keepends=True)
                             if not line.startswith("libgcov profiling error:"))
    return ran


def kibibytes(size):
    """A size of some KiB as the command writes it: two decimals at most, halves up, no zeros behind."""
    hundredths = (size * 200 + 1024) // 2048
    return f"{hundredths // 100}.{hundredths % 100:02}".rstrip("0").rstrip(".") + " KiB"


def events_of(weir, trace):
    """How many allocations and frees a trace has, as the command exports them."""
    ran = run(weir, ["export", str(trace), "--format", "csv", "-o", "-"])
    if ran.returncode != 0:
        raise RuntimeError(ran.stderr)
    kinds = [line.split(",")[0] for line in ran.stdout.splitlines()[1:]]
    return kinds.count("a"), kinds.count("r")
