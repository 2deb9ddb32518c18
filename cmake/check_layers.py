#!/usr/bin/env python3
"""Checks that every include keeps the order of the rooms in src/CMakeLists.txt.

The build already hides headers of rooms that a room may not use. This finds what the build cannot: a
path with "..", a header or folder that no room owns, a room that names one below it in the list, and
a driver header of the CUDA toolkit, which weir does without. It also finds waits that invalidate stream
captures: rooms above `device` wait by src/device/finished_work.hpp. And it finds getenv(), which set-uid
programs must not use: sources call secure_getenv().
"""

import re
import sys
from pathlib import Path

ROOM = re.compile(r"weir_room\((.*?)\)", re.S)
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"]+)[>"]', re.M)
# Waits of the driver's that break captures, and who may use them: the rooms below, the C functions that
# are these waits, and classes that wait for streams of their own, which nobody can capture.
WAIT = re.compile(r"\b(ctx_synchronize|stream_synchronize|stream_query|ctx_record_event)\(|"
                  r"\b(device_?|stream_?|ref)\.synchronize\(")
ENVIRONMENT = re.compile(r"\bgetenv\(")
WAITING_ROOMS = ("driver", "sim", "device", "capi", "replay")
WAITING_FILES = ("src/placement/guarded_store_memory.cpp", "src/heap/backup.cpp")
KEYWORDS = ("PUBLIC_HEADERS", "DEPENDS", "LIBRARIES")


class Room:
    def __init__(self, name):
        self.name = name
        self.headers = []
        self.sees = {name}  # itself and every room it may use, directly or through another


def read_rooms(root, problems):
    """The rooms by name, in order, from the calls of weir_room()."""
    text = re.sub(r"#.*", "", (root / "src/CMakeLists.txt").read_text())
    rooms = {}
    for call in ROOM.findall(text):
        words = call.split()
        room = Room(words[0])
        keyword = None
        for word in words[1:]:
            if word in KEYWORDS:
                keyword = word
            elif keyword == "PUBLIC_HEADERS":
                room.headers.append(word)
            elif keyword == "DEPENDS":
                if word not in rooms:
                    problems.append(f"src/CMakeLists.txt: room {room.name} depends on {word}, "
                                    "which does not stand above it")
                else:
                    room.sees |= rooms[word].sees
        rooms[room.name] = room
    return rooms


def check_includes(file, where, room, rooms, owner, public, problems):
    """Every include of one file that belongs to `room`."""
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
            if owner[path] not in room.sees:
                problems.append(f"{place}: room {room.name} may not use {path} of {owner[path]}")
        elif folder == "weir":
            problems.append(f"{place}: {path} belongs to no room")
        elif folder in rooms and "/" in path:
            if public:
                problems.append(f"{place}: a public header may not use the private {path}")
            elif folder not in room.sees:
                problems.append(f"{place}: room {room.name} may not use {path} of {folder}")
        elif match.group(1) == '"':
            problems.append(f'{place}: write "{room.name}/{path}" or "weir/...", not "{path}"')


def check_environment(file, where, problems):
    for number, line in enumerate(file.read_text(errors="replace").splitlines(), 1):
        if ENVIRONMENT.search(line.split("//")[0]):
            problems.append(f"{where}:{number}: set-uid programs must ignore the environment; use secure_getenv()")


def check_waits(file, where, room, problems):
    if room.name in WAITING_ROOMS or where in WAITING_FILES:
        return
    for number, line in enumerate(file.read_text(errors="replace").splitlines(), 1):
        if WAIT.search(line.split("//")[0]):
            problems.append(f"{where}:{number}: this wait can invalidate a capture; use "
                            "device/finished_work.hpp")


def check(root):
    problems = []
    rooms = read_rooms(root, problems)
    owner = {}
    for room in rooms.values():
        for header in room.headers:
            if header in owner:
                problems.append(f"include/{header}: belongs to {owner[header]} and {room.name}")
            owner[header] = room.name

    include = root / "include"
    for file in sorted(path for path in include.rglob("*") if path.is_file()):
        header = file.relative_to(include).as_posix()
        if header not in owner:
            problems.append(f"include/{header}: belongs to no room of src/CMakeLists.txt")
            continue
        check_includes(file, f"include/{header}", rooms[owner[header]], rooms, owner, True, problems)

    for folder in sorted(path for path in (root / "src").iterdir() if path.is_dir()):
        if folder.name not in rooms:
            problems.append(f"src/{folder.name}: is no room of src/CMakeLists.txt")
            continue
        for file in sorted(folder.rglob("*")):
            if file.suffix in (".cpp", ".hpp", ".h", ".def", ".inc"):
                where = file.relative_to(root).as_posix()
                check_includes(file, where, rooms[folder.name], rooms, owner, False, problems)
                check_waits(file, where, rooms[folder.name], problems)
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
