#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that every include keeps the order of the components in src/CMakeLists.txt.

The build already hides headers of components that a component may not use. This finds what the build cannot: a
path with "..", a header or folder that no component owns, a component that names one below it in the list, and
a driver header of the CUDA toolkit, which weir does without. It also finds waits that invalidate stream
captures: components above `device` wait by src/device/finished_work.hpp. In the components that hand out
memory it finds calls that wait for the device, or for an event, outside the functions that are known to hold no
lock: who waits with a lock stops threads that the device may be waiting for. And it finds getenv(), which set-uid
programs must not use: sources call secure_getenv().
"""

import re
import sys
from pathlib import Path

COMPONENT = re.compile(r"weir_component\((.*?)\)", re.S)
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"]+)[>"]', re.M)
# Waits of the driver's that break captures, and who may use them: the components below, the C functions that
# are these waits, and classes that wait for streams of their own, which nobody can capture.
WAIT = re.compile(r"\b(ctx_synchronize|stream_synchronize|stream_query|ctx_record_event)\(|"
                  r"\b(device_?|stream_?|ref)\.synchronize\(")
# Calls that wait for the device or for an event, and the functions that make them. None of these holds a lock that
# the end of a stream takes, nor does anybody who calls it: read that before you add one.
BLOCKING = re.compile(r"\b(?:mem_free|mem_free_host|free_plain|detail::wait_for_all_work)\(|(?:\.|->)synchronize\(")
# Where these are looked for: the end of a stream takes the locks of heaps, pools and buffers, and calls of sharing have
# deadlines.
BLOCKING_COMPONENTS = ("order", "placement", "host", "heap", "pools", "resources", "buffers", "sharing")
BLOCKING_FUNCTIONS = {
    "src/order/all_work_wait.cpp": ("wait",),
    "src/order/awaited_marks.cpp": ("wait",),
    "src/placement/torch_segments_memory.cpp": ("free_without_lock",),
    "src/host/pinned_memory.cpp": ("release_memory",),
    "src/heap/backup.cpp": ("return_segment", "finish", "drain"),
    "src/heap/central_heap.cpp": ("wait_before_release",),
    "src/heap/checked_frees.cpp": ("wait_for",),
    "src/heap/residency_suspend.cpp": ("wait_for_users",),
    "src/pools/all_devices.cpp": ("wait_for_other_devices",),
    "src/pools/block_cache_end.cpp": ("wait_for_all_users",),
    "src/pools/block_source.cpp": ("plain_memory", "pinned_memory"),
    "src/pools/foreign_use.cpp": ("wait",),
    "src/pools/recorded_uses.cpp": ("wait_for_devices",),
    "src/pools/stream_pool_memory.cpp": ("allocate", "release_surplus"),
    "src/pools/stream_uses.cpp": ("wait", "queue_before"),
    "src/resources/driver_memory.cpp": ("allocate", "deallocate", "~driver_memory"),
    "src/buffers/device_buffer.cpp": ("hand_over", "read"),
    "src/buffers/host_memory.cpp": ("close",),
    "src/buffers/managed_state.cpp": ("begin_view", "wait_for_users", "free"),
    "src/buffers/staging.cpp": ("wait_for",),
    "src/sharing/device_idle.cpp": ("wait_until_idle",),
}
FUNCTION = re.compile(r"^[A-Za-z].*?([\w~]+)\(")  # the head of a definition, at the beginning of a line
ENVIRONMENT = re.compile(r"\bgetenv\(")
WAITING_COMPONENTS = ("driver", "sim", "device", "capi", "replay")
WAITING_FILES = ("src/placement/guarded_store_memory.cpp", "src/heap/backup.cpp")
KEYWORDS = ("PUBLIC_HEADERS", "DEPENDS", "LIBRARIES")


class Component:
    def __init__(self, name):
        self.name = name
        self.headers = []
        self.sees = {name}  # itself and every component it may use, directly or through another


def read_components(root, problems):
    """The components by name, in order, from the calls of weir_component()."""
    text = re.sub(r"#.*", "", (root / "src/CMakeLists.txt").read_text())
    components = {}
    for call in COMPONENT.findall(text):
        words = call.split()
        component = Component(words[0])
        keyword = None
        for word in words[1:]:
            if word in KEYWORDS:
                keyword = word
            elif keyword == "PUBLIC_HEADERS":
                component.headers.append(word)
            elif keyword == "DEPENDS":
                if word not in components:
                    problems.append(f"src/CMakeLists.txt: component {component.name} depends on {word}, "
                                    "which does not stand above it")
                else:
                    component.sees |= components[word].sees
        components[component.name] = component
    return components


def check_includes(file, where, component, components, owner, public, problems):
    """Every include of one file that belongs to `component`."""
    text = file.read_text(errors="replace")
    for match in INCLUDE.finditer(text):
        path = match.group(2)
        place = f"{where}:{text.count(chr(10), 0, match.start(2)) + 1}"
        folder = path.split("/")[0]
        if ".." in path.split("/"):
            problems.append(f"{place}: {path} leaves its folder")
        elif re.fullmatch(r"(cuda|cuda_runtime|cuda_runtime_api|cudaTypedefs|driver_types)\.h", path):
            problems.append(f"{place}: {path} belongs to the CUDA toolkit")
        elif path in owner:
            if owner[path] not in component.sees:
                problems.append(f"{place}: component {component.name} may not use {path} of {owner[path]}")
        elif folder == "weir":
            problems.append(f"{place}: {path} belongs to no component")
        elif folder in components and "/" in path:
            if public:
                problems.append(f"{place}: a public header may not use the private {path}")
            elif folder not in component.sees:
                problems.append(f"{place}: component {component.name} may not use {path} of {folder}")
        elif match.group(1) == '"':
            problems.append(f'{place}: write "{component.name}/{path}" or "weir/...", not "{path}"')


def check_environment(file, where, problems):
    for number, line in enumerate(file.read_text(errors="replace").splitlines(), 1):
        if ENVIRONMENT.search(line.split("//")[0]):
            problems.append(f"{where}:{number}: set-uid programs must ignore the environment; use secure_getenv()")


def check_waits(file, where, component, problems):
    if component.name in WAITING_COMPONENTS or where in WAITING_FILES:
        return
    for number, line in enumerate(file.read_text(errors="replace").splitlines(), 1):
        if WAIT.search(line.split("//")[0]):
            problems.append(f"{where}:{number}: this wait can invalidate a capture; use "
                            "device/finished_work.hpp")


def check_blocking(file, where, component, problems):
    if component.name not in BLOCKING_COMPONENTS:
        return
    function = ""
    for number, line in enumerate(file.read_text(errors="replace").splitlines(), 1):
        head = FUNCTION.match(line)
        if head:
            function = head.group(1)
        if BLOCKING.search(line.split("//")[0]) and function not in BLOCKING_FUNCTIONS.get(where, ()):
            problems.append(f"{where}:{number}: this waits for the device; make the call in a function that holds no "
                            "lock, and name that in BLOCKING_FUNCTIONS of cmake/check_layers.py")


def check(root):
    problems = []
    components = read_components(root, problems)
    owner = {}
    for component in components.values():
        for header in component.headers:
            if header in owner:
                problems.append(f"include/{header}: belongs to {owner[header]} and {component.name}")
            owner[header] = component.name

    include = root / "include"
    for file in sorted(path for path in include.rglob("*") if path.is_file()):
        header = file.relative_to(include).as_posix()
        if header not in owner:
            problems.append(f"include/{header}: belongs to no component of src/CMakeLists.txt")
            continue
        check_includes(file, f"include/{header}", components[owner[header]], components, owner, True, problems)

    for folder in sorted(path for path in (root / "src").iterdir() if path.is_dir()):
        if folder.name not in components:
            problems.append(f"src/{folder.name}: is not a component of src/CMakeLists.txt")
            continue
        for file in sorted(folder.rglob("*")):
            if file.suffix in (".cpp", ".hpp", ".h", ".def", ".inc"):
                where = file.relative_to(root).as_posix()
                check_includes(file, where, components[folder.name], components, owner, False, problems)
                check_waits(file, where, components[folder.name], problems)
                check_blocking(file, where, components[folder.name], problems)
                check_environment(file, where, problems)
    for file in sorted((root / "plugins").rglob("*.cpp")):
        check_environment(file, file.relative_to(root).as_posix(), problems)
    return problems


def main():
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent
    problems = check(root)
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
