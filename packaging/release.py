#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The files of a release: ./dev release runs this.

    release.py check ROOT                 versions agree, the changelog is dated, the C ABI is the recorded one
    release.py version ROOT X.Y.Z         writes a version to every place that states it
    release.py archive ROOT FOLDER        the sources of the last commit as weir-X.Y.Z.tar.gz
    release.py finish ROOT FOLDER [URL]   the list of components (SPDX), SHA256SUMS, and with a URL recipes for that archive

URL is the folder from which the files will be downloaded. The home page of the project is HOMEPAGE_URL of project() in CMakeLists.txt; where
that has none, packages and recipes state none. Files are the same for the same commit and tools.
"""

import gzip
import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path

# Where the version stands beside include/weir/base/version.hpp, which is the one that counts: (file, pattern, how it is
# written there).
PLACES = [
    ("include/weir.h", r"(?P<before>#define WEIR_VERSION_MAJOR )(?P<value>\d+)", "{0}"),
    ("include/weir.h", r"(?P<before>#define WEIR_VERSION_MINOR )(?P<value>\d+)", "{1}"),
    ("include/weir.h", r"(?P<before>#define WEIR_VERSION_PATCH )(?P<value>\d+)", "{2}"),
    ("python/weir/_native.py", r"(?P<before>\nSPOKEN = )(?P<value>\(\d+, \d+\))", "({0}, {1})"),
    ("packaging/debian/changelog", r"^(?P<before>weir \()(?P<value>[\d.]+)", "{0}.{1}.{2}"),
]
HEADER = "include/weir/base/version.hpp"
PARTS = ("MAJOR", "MINOR", "PATCH")

# What the command contains: name, license, the Debian package that it comes from here, and where it is from.
CONTAINED = [
    ("fmt", "MIT", "libfmt-dev", "https://fmt.dev"),
    ("CLI11", "BSD-3-Clause", "libcli11-dev", "https://github.com/CLIUtils/CLI11"),
    ("nlohmann_json", "MIT", "nlohmann-json3-dev", "https://json.nlohmann.me"),
    ("zlib", "Zlib", "zlib1g-dev", "https://zlib.net"),
    ("zstd", "BSD-3-Clause", "libzstd-dev", "https://facebook.github.io/zstd"),
    ("libstdc++", "GPL-3.0-or-later WITH GCC-exception-3.1", "libstdc++-12-dev", "https://gcc.gnu.org"),
]


def run(*command, **more):
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, check=True, **more).stdout


def version(root):
    text = (root / HEADER).read_text()
    return tuple(re.search(rf"#define WEIR_VERSION_{part} (\d+)", text).group(1) for part in PARTS)


def homepage(root):
    found = re.search(r'HOMEPAGE_URL "([^"]+)"', (root / "CMakeLists.txt").read_text())
    return found.group(1) if found else ""


def problems(root):
    parts = version(root)
    found = []
    for file, pattern, written in PLACES:
        stated = re.search(pattern, (root / file).read_text(), re.M)
        wanted = written.format(*parts)
        if stated is None or stated["value"] != wanted:
            found.append(f"{file} states version {stated['value'] if stated else '(none)'}, {HEADER} {wanted}")
    name = ".".join(parts)
    if not re.search(rf"^## \[{re.escape(name)}\] - \d{{4}}-\d\d-\d\d$", (root / "CHANGELOG.md").read_text(), re.M):
        found.append(f"CHANGELOG.md has no section \"## [{name}] - YYYY-MM-DD\"")
    if not re.search(r"^## \[Unreleased\]$", (root / "CHANGELOG.md").read_text(), re.M):
        found.append("CHANGELOG.md has no section \"## [Unreleased]\"")
    return found


def check(root):
    found = problems(root)
    changed = run("git", "-C", root, "status", "--porcelain")
    if changed:
        found.append("files differ from the last commit:\n" + changed)
    done = subprocess.run([sys.executable, root / "packaging/abi.py", root], capture_output=True, text=True, check=False)
    if done.returncode:
        found.append(done.stdout + done.stderr)
    if found:
        sys.exit("\n".join(found))
    print(f"version {'.'.join(version(root))}: stated the same everywhere, dated, with the recorded C ABI")


def set_version(root, text):
    parts = text.split(".")
    if len(parts) != 3 or not all(part.isdigit() for part in parts):
        sys.exit(f"expected a version X.Y.Z, got {text!r}")
    header = (root / HEADER).read_text()
    for part, value in zip(PARTS, parts):
        header = re.sub(rf"(#define WEIR_VERSION_{part} )\d+", rf"\g<1>{value}", header)
    (root / HEADER).write_text(header)
    for file, pattern, written in PLACES:
        stated = (root / file).read_text()
        (root / file).write_text(re.sub(pattern, lambda found, form=written: found["before"] + form.format(*parts), stated,
                                        count=1, flags=re.M))
    print(*problems(root), sep="\n")


def archive(root, folder):
    name = f"weir-{'.'.join(version(root))}"
    folder.mkdir(parents=True, exist_ok=True)
    tar = subprocess.run(["git", "-C", root, "archive", "--format=tar", f"--prefix={name}/", "HEAD"], capture_output=True,
                         check=True).stdout
    target = folder / f"{name}.tar.gz"
    target.write_bytes(gzip.compress(tar, 9, mtime=0))
    print(target)


def digest(path, kind):
    return hashlib.new(kind, path.read_bytes()).hexdigest()


def installed_version(package):
    done = subprocess.run(["dpkg-query", "-W", "-f", "${Version}", package], capture_output=True, text=True, check=False)
    return done.stdout.strip() or "NOASSERTION"


def bill(root, files):
    """The list of components in the format of SPDX 2.3."""
    name = ".".join(version(root))
    commit = run("git", "-C", root, "rev-parse", "HEAD").strip()
    date = run("git", "-C", root, "log", "-1", "--format=%cd", "--date=format-local:%Y-%m-%dT%H:%M:%SZ", env={"TZ": "UTC0", "PATH": "/usr/bin:/bin"}).strip()
    packages = [{"SPDXID": "SPDXRef-weir", "name": "weir", "versionInfo": name, "licenseDeclared": "Apache-2.0",
                 "licenseConcluded": "Apache-2.0", "copyrightText": "NOASSERTION", "downloadLocation": "NOASSERTION",
                 "filesAnalyzed": False, "sourceInfo": f"git commit {commit}"}]
    relations = [{"spdxElementId": "SPDXRef-DOCUMENT", "relationshipType": "DESCRIBES", "relatedSpdxElement": "SPDXRef-weir"}]
    for component, license_name, package, home in CONTAINED:
        identity = "SPDXRef-" + re.sub(r"[^A-Za-z0-9.-]", "-", component)
        packages.append({"SPDXID": identity, "name": component, "versionInfo": installed_version(package), "homepage": home,
                         "licenseDeclared": license_name, "licenseConcluded": license_name, "copyrightText": "NOASSERTION",
                         "downloadLocation": "NOASSERTION", "filesAnalyzed": False,
                         "comment": "linked statically into the command of the wheel, and libstdc++ into what is preloaded and the "
                                    "simulated driver; the library libweir contains none of them"})
        relations.append({"spdxElementId": "SPDXRef-weir", "relationshipType": "CONTAINS", "relatedSpdxElement": identity})
    entries = [{"SPDXID": f"SPDXRef-file-{number}", "fileName": f"./{path.name}", "copyrightText": "NOASSERTION",
                "licenseConcluded": "Apache-2.0", "checksums": [{"algorithm": kind.upper(), "checksumValue": digest(path, kind)}
                                                               for kind in ("sha1", "sha256")]}
               for number, path in enumerate(files)]
    return {"spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT", "name": f"weir-{name}",
            "documentNamespace": f"https://spdx.org/spdxdocs/weir-{name}-{commit}",
            "creationInfo": {"created": date, "creators": ["Tool: weir packaging/release.py"]},
            "packages": packages, "files": entries, "relationships": relations}


def filled(text, values):
    """A recipe with its marks replaced. A line with a mark that has no value is left out."""
    lines = [line for line in text.splitlines(keepends=True) if not any(mark in line for mark, value in values.items() if not value)]
    text = "".join(lines)
    for mark, value in values.items():
        text = text.replace(mark, value)
    return text


def recipes(root, folder, url):
    """The recipes of packaging/, for the archive in the folder."""
    name = ".".join(version(root))
    source = folder / f"weir-{name}.tar.gz"
    values = {"@VERSION@": name, "@URL@": f"{url}/{source.name}", "@SHA256@": digest(source, "sha256"),
              "@SHA512@": digest(source, "sha512"), "@HOMEPAGE@": homepage(root)}
    for kind in ("conda", "vcpkg", "conan", "spack"):
        for path in sorted((root / "packaging" / kind).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                target = folder / "recipes" / kind / path.relative_to(root / "packaging" / kind)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(filled(path.read_text(), values))
    (folder / "recipes/conan/conandata.yml").write_text(
        f'sources:\n  "{name}":\n    url: "{values["@URL@"]}"\n    sha256: "{values["@SHA256@"]}"\n')


def finish(root, folder, url):
    if url:
        recipes(root, folder, url)
    else:
        print("recipes for conda, vcpkg, Conan and Spack are left out: they state where the sources are downloaded from (./dev release URL)")
    name = ".".join(version(root))
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.suffix in (".gz", ".whl", ".deb"))
    (folder / f"weir-{name}.spdx.json").write_text(json.dumps(bill(root, files), indent=1) + "\n")
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.suffix in (".gz", ".whl", ".deb", ".json"))
    (folder / "SHA256SUMS").write_text("".join(f"{digest(path, 'sha256')}  {path.name}\n" for path in files))
    for path in files:
        print(f"{path.stat().st_size:>10}  {path.name}")


def main():
    words = sys.argv[1:]
    if len(words) < 2:
        sys.exit(__doc__)
    root = Path(words[1]).resolve()
    if words[0] == "check" and len(words) == 2:
        check(root)
    elif words[0] == "version" and len(words) == 3:
        set_version(root, words[2])
    elif words[0] == "archive" and len(words) == 3:
        archive(root, Path(words[2]))
    elif words[0] == "finish" and len(words) in (3, 4):
        finish(root, Path(words[2]), "".join(words[3:]).rstrip("/"))
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
