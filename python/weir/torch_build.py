# SPDX-License-Identifier: Apache-2.0
"""Compiles weir's extension for PyTorch ahead of time, so that weir.torch.enable() needs no compiler.

    python -m weir.torch_build [--output FOLDER] [--cuda VERSION] [--jobs N] [--all] [DIR...]

A DIR is a site-packages with torch in it, the package torch, or a folder with torch's headers alone (an unpacked
wheel); without a DIR it is the torch that this Python imports. --all takes every torch below the DIRs. The extensions
are for the Python that runs this command, and need the headers of CUDA: those that torch was installed with, or
CUDA_HOME. enable() looks for them in the folders that WEIR_TORCH_EXTENSIONS names and in torch_extensions of the
package, which is the default of --output.
"""

import argparse
import importlib.util
import sys
import time
from pathlib import Path
from typing import List, Optional, Sequence

from . import _native, _torch_extension


def installed() -> Path:
    """The package torch that this Python imports."""
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        raise RuntimeError("weir.torch: torch is not installed for this Python; pass the folder of one")
    return Path(found.origin).parent


def below(folder: Path) -> List[Path]:
    """Every torch below a folder: each package torch, and each folder of headers that no package has."""
    headers = {path.parents[1] for path in folder.rglob("c10/macros") if path.is_dir()}
    return sorted(each.parent if each.name == "include" else each for each in headers)


def main(words: Optional[Sequence[str]] = None) -> int:
    """The command. Returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m weir.torch_build", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", metavar="DIR", type=Path)
    parser.add_argument("--all", action="store_true", help="every torch below the folders")
    parser.add_argument("--output", type=Path, default=_native.PACKAGE / "torch_extensions", metavar="FOLDER")
    parser.add_argument("--cuda", metavar="VERSION", help="for headers that do not say it: 13.0")
    parser.add_argument("--jobs", type=int, default=0, metavar="N")
    chosen = parser.parse_args(words)
    failed = 0
    try:
        folders = [each for folder in chosen.folders for each in (below(folder) if chosen.all else [folder])]
        if not folders and chosen.folders:
            raise RuntimeError(f"weir.torch: found no torch below {', '.join(map(str, chosen.folders))}")
        folders = folders or [installed()]
    except RuntimeError as problem:
        print(problem, file=sys.stderr)
        return 1
    for folder in folders:
        started = time.monotonic()
        try:
            installation = _torch_extension.look(folder, chosen.cuda)
            path = _torch_extension.build(installation, chosen.output, chosen.jobs)
        except (OSError, RuntimeError) as problem:
            failed += 1
            print(f"{folder}: {problem}", file=sys.stderr)
            continue
        print(f"{path}: for {installation.torch.text()}, {path.stat().st_size >> 10} KiB, "
              f"{time.monotonic() - started:.0f} s", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
