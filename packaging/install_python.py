#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Installs the Python package without its libraries, for distributions that have those in packages of their own.

    install_python.py FOLDER     the site-packages or dist-packages to install into
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "python/backend"))
sys.dont_write_bytecode = True

import weir_backend  # noqa: E402


def main():
    folder = Path(sys.argv[1])
    files = {f"weir/{name}": path.read_bytes() for name, path in weir_backend.package_files().items()}
    about = weir_backend.metadata_files()
    files.update({f"{weir_backend.dist_info()}/{name}": about[name] for name in ("METADATA", "top_level.txt")})
    files[f"{weir_backend.dist_info()}/INSTALLER"] = b"distribution\n"
    for name, content in files.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    print(f"{len(files)} files in {folder}")


if __name__ == "__main__":
    main()
