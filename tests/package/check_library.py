# SPDX-License-Identifier: Apache-2.0
"""The shared library needs nothing but the C and C++ run time, and shows nothing but weir."""

import re
import subprocess
import sys

NEEDED = re.compile(r"(libc|libdl|libpthread|libm|libstdc\+\+|libgcc_s|ld-linux[-\w]*)\.so(\.\d+)?")
# "typeinfo for weir::v0::failure", "vtable for ...", "weir::v0::name(weir::v0::errc)"
CXX = re.compile(r"(typeinfo for |typeinfo name for |vtable for |VTT for |guard variable for |"
                 r"non-virtual thunk to |virtual thunk to )?weir::")


def output(*command, **more):
    return subprocess.run(command, capture_output=True, text=True, check=True, **more).stdout


def main():
    library = sys.argv[1]
    wrong = []

    dynamic = output("readelf", "--dynamic", "--wide", library)
    needed = re.findall(r"\(NEEDED\).*\[(.+)\]", dynamic)
    wrong += [f"needs {name}" for name in needed if not NEEDED.fullmatch(name)]
    if not re.search(r"\(SONAME\).*\[libweir\.so\.(0\.\d+|[1-9]\d*)\]", dynamic):
        wrong.append("has no versioned soname")

    if "_ZNSt18condition_variable4wait" in output("nm", "--dynamic", "--undefined-only", library):
        wrong.append("imports std::condition_variable::wait, which systems with glibc 2.34 lack (src/base/condition.hpp)")

    # What is loaded while a program runs, by Python for instance, shares 512 bytes of such storage
    # with everything else that is: the fast paths reach theirs by a fixed offset.
    segment = re.search(r"^\s*TLS(?:\s+0x[0-9a-f]+){4}\s+0x([0-9a-f]+)",
                        output("readelf", "--segments", "--wide", library), re.M)
    if segment and int(segment[1], 16) > 384:
        wrong.append(f"has {int(segment[1], 16)} bytes of thread-local storage")

    shown = {"WEIR_0": 0, "WEIR_CXX_0": 0}
    for line in output("nm", "--dynamic", "--defined-only", "--with-symbol-versions",
                       library).splitlines():
        _, kind, name = line.split(maxsplit=2)
        symbol, _, version = name.replace("@@", "@").partition("@")
        if kind == "A" and symbol in shown:
            continue  # the version itself
        plain = output("c++filt", symbol).strip()
        expected = "WEIR_0" if symbol.startswith("weir_") else "WEIR_CXX_0"
        if expected == "WEIR_CXX_0" and not CXX.match(plain):
            wrong.append(f"shows {plain}")
        elif version != expected:
            wrong.append(f"shows {plain} under version {version or 'none'}, not {expected}")
        else:
            shown[expected] += 1
    wrong += [f"shows nothing under {version}" for version, count in shown.items() if not count]

    for line in wrong:
        print(f"{library} {line}")
    print(f"needs {', '.join(needed)}; shows {shown['WEIR_0']} C and {shown['WEIR_CXX_0']} C++ symbols")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
