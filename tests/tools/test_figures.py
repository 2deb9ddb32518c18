# SPDX-License-Identifier: Apache-2.0
"""Every figure that replay, report, diff, plan and export print, computed again from random traces.

The traces are CSV traces, PyTorch snapshots with whole histories and with histories that begin in the middle, and
what export makes of them. The figures are computed here from the program that the trace is about, not from the trace.
"""

import argparse
import base64
import json
import pathlib
import pickle
import random
import re
import resource
import tempfile
import unittest
import zlib

import running

POLICIES = ["torch-default", "balanced", "compact"]
MIB = 1 << 20
arguments = argparse.Namespace()


def weir(*words):
    ran = running.run(arguments.weir, [str(word) for word in words])
    if ran.returncode != 0:
        raise AssertionError(f"{words}: {ran.returncode}\n{ran.stderr}")
    return ran.stdout


class Truth:
    """What a program did, event by event: the figures of everything that can be asked about it."""

    def __init__(self):
        self.live = {}  # size and tag, by block
        self.busy = {}  # size of what is live or not yet reusable, by block
        self.reserved = 0
        self.live_peak = self.busy_peak = self.reserved_peak = 0
        self.at_peak = {}
        self.allocs = self.allocated = 0
        self.streams = set()
        self.steps = []  # (block, size or None for its end)

    def allocate(self, block, size, stream, tag=""):
        self.live[block] = (size, tag)
        self.busy[block] = size
        self.allocs += 1
        self.allocated += size
        self.streams.add(stream)
        self.steps.append((block, size))
        self.busy_peak = max(self.busy_peak, sum(self.busy.values()))
        total = sum(size for size, _ in self.live.values())
        if total > self.live_peak:
            self.live_peak = total
            self.at_peak = dict(self.live)

    def free(self, block):
        del self.live[block]

    def reusable(self, block, stream):
        del self.busy[block]
        self.streams.add(stream)
        self.steps.append((block, None))

    def change_reserved(self, by):
        self.reserved += by
        self.reserved_peak = max(self.reserved_peak, self.reserved)

    def bound(self):
        """The most that is in use, in units of 512 bytes: no plan can be lower."""
        now = most = 0
        sizes = {}
        for block, size in self.steps:
            if size is None:
                now -= sizes.pop(block)
            else:
                sizes[block] = -(-size // 512) * 512
                now += sizes[block]
            most = max(most, now)
        return most

    def by_tag(self):
        groups = {}
        for size, tag in self.at_peak.values():
            held = groups.setdefault(tag or "(no tag)", [0, 0])
            held[0] += size
            held[1] += 1
        return groups


# --- Programs ---------------------------------------------------------------------------------------------------

def csv_trace(rng):
    """Text and truth. Some blocks have f, some not; ids come again; streams free each other's blocks."""
    truth = Truth()
    lines = ["op,id,bytes,stream,t_us"]
    live, waiting, ids = {}, [], iter(range(10**6))
    time = rng.choice([0, 10_000_000, 1_700_000_000_000_000])
    says = rng.random()  # how many blocks say when they are reusable
    free_ids = []
    for _ in range(rng.randrange(5, 120)):
        time += rng.choice([0, 0, 1, 7, 3000])
        stream = rng.randrange(3)
        choice = rng.random()
        if choice < 0.5 or not live:
            name = free_ids.pop() if free_ids and rng.random() < 0.5 else next(ids)
            size = rng.choice([0, 1, 511, 512, 5000, MIB, 3 * MIB + 17, rng.randrange(1, 40 * MIB)])
            block = (name, len(lines))
            live[name] = (block, size, stream)
            truth.allocate(block, size, stream)
            lines.append(f"a,{name},{size},{stream},{time}")
        elif choice < 0.6 and waiting:
            name, block, own = waiting.pop(rng.randrange(len(waiting)))
            truth.reusable(block, own)
            free_ids.append(name)
            lines.append(f"f,{name},,{own},{time}")
        else:
            name = rng.choice(list(live))
            block, size, own = live.pop(name)
            truth.free(block)
            lines.append(f"r,{name},,{stream},{time}")
            if rng.random() < says:
                waiting.append((name, block, own))
            else:
                truth.reusable(block, stream)  # free where the program freed it
                free_ids.append(name)
    for name, block, own in waiting:
        truth.reusable(block, own)
        lines.append(f"f,{name},,{own},{time + 1}")
    return "\n".join(lines) + "\n", truth


class TorchProgram:
    """A program under a small caching allocator, which writes what PyTorch's would."""

    def __init__(self, rng):
        self.rng = rng
        self.time = 1_000
        self.next_address = 0x7F0000000000
        self.segments = {}  # address: [size, stream, pool, free parts, blocks]
        self.live, self.pending = {}, {}
        self.history = []

    def entry(self, action, address, size, stream, pool, tag=""):
        self.history.append({"action": action, "addr": address, "size": size, "stream": stream, "time_us": self.time,
                             "frames": [], "user_metadata": tag, "pool_id": pool, "compile_context": "N/A"})

    def step(self):
        self.time += self.rng.choice([0, 1, 20])
        choice = self.rng.random()
        if choice < 0.5 or not self.live:
            self.allocate()
        elif choice < 0.62 and self.pending:
            self.complete(self.rng.choice(list(self.pending)))
        elif choice < 0.7:
            self.release()
        else:
            self.free(self.rng.choice(list(self.live)))

    def allocate(self):
        requested = self.rng.randrange(1, 12 * MIB)
        size = -(-requested // 512) * 512
        stream, pool = self.rng.choice([0, 0, 7]), self.rng.choice([(0, 0), (0, 0), (0, 1)])
        home = next((at for at, each in self.segments.items()
                     if each["key"] == (stream, pool) and each["free"] >= size), None)
        if home is None:
            total = -(-size // (20 * MIB)) * 20 * MIB
            home = self.next_address
            self.next_address += 2 * total
            self.segments[home] = {"size": total, "key": (stream, pool), "used": 0, "free": total, "blocks": {}}
            self.entry("segment_alloc", home, total, stream, pool)
        segment = self.segments[home]
        address = home + segment["used"]
        segment["used"] += size
        segment["free"] -= size
        tag = self.rng.choice(["", "weights", "cache"])
        block = {"size": size, "requested": requested, "stream": stream, "pool": pool, "home": home, "tag": tag}
        segment["blocks"][address] = block
        self.live[address] = block
        self.entry("alloc", address, requested, stream, pool, tag)

    def free(self, address):
        block = self.live.pop(address)
        self.pending[address] = block
        self.entry("free_requested", address, block["requested"], block["stream"], block["pool"], block["tag"])
        if self.rng.random() < 0.7:
            self.complete(address)

    def complete(self, address):
        block = self.pending.pop(address)
        del self.segments[block["home"]]["blocks"][address]
        self.entry("free_completed", address, block["requested"], block["stream"], block["pool"], block["tag"])

    def release(self):
        for home, segment in list(self.segments.items()):
            if not segment["blocks"]:
                self.entry("segment_free", home, segment["size"], *segment["key"])
                del self.segments[home]
                return

    def snapshot_segments(self, device):
        out = []
        for home, segment in self.segments.items():
            blocks, position = [], home
            for address, block in sorted(segment["blocks"].items()):
                if address > position:
                    blocks.append({"address": position, "size": address - position, "requested_size": 0,
                                   "state": "inactive", "frames": []})
                state = "active_allocated" if address in self.live else "active_pending_free"
                blocks.append({"address": address, "size": block["size"], "requested_size": block["requested"],
                               "state": state, "frames": []})
                position = address + block["size"]
            end = home + segment["size"]
            if position < end:
                blocks.append({"address": position, "size": end - position, "requested_size": 0, "state": "inactive",
                               "frames": []})
            stream, pool = segment["key"]
            out.append({"device": device, "address": home, "total_size": segment["size"], "stream": stream,
                        "segment_type": "large", "segment_pool_id": pool, "is_expandable": False, "frames": [],
                        "blocks": blocks})
        return out


def torch_snapshot(rng, begins_late):
    """A snapshot and the truth from where its history begins."""
    program = TorchProgram(rng)
    if begins_late:
        for _ in range(rng.randrange(5, 60)):
            program.step()
    truth = Truth()
    truth.change_reserved(sum(each["size"] for each in program.segments.values()))
    for address in sorted(program.live):
        block = program.live[address]
        truth.allocate((address, 0), block["requested"], block["stream"])
    program.history.clear()
    for _ in range(rng.randrange(5, 80)):
        program.step()
    follow(program.history, truth)
    other = [{"action": "segment_alloc", "addr": 512, "size": 512, "stream": 0, "time_us": i, "frames": []}
             for i in range(rng.choice([0, 300]))]  # another device: more events, fewer bytes
    traces = [program.history, other] if rng.random() < 0.5 else [program.history]
    return {"segments": program.snapshot_segments(0), "device_traces": traces, "allocator_settings": {},
            "external_annotations": []}, truth


def follow(history, truth):
    known = {block[0]: block for block in truth.live}
    says = any(entry["action"] == "free_completed" for entry in history)
    waiting = {}
    for number, entry in enumerate(history):
        action, address, size, stream = (entry[key] for key in ("action", "addr", "size", "stream"))
        if action == "segment_alloc":
            truth.change_reserved(size)
        elif action == "segment_free":
            truth.change_reserved(-size)
        elif action == "alloc":
            known[address] = (address, number + 1)
            truth.allocate(known[address], size, stream, entry["user_metadata"])
        elif action == "free_requested":
            truth.free(known[address])
            if says:
                waiting[address] = (known[address], stream)
            else:
                truth.reusable(known[address], stream)
        elif action == "free_completed" and address in waiting:
            truth.reusable(*waiting.pop(address))
    for block, stream in waiting.values():
        truth.reusable(block, stream)


# --- What the command says --------------------------------------------------------------------------------------

def replays(path):
    rows = weir("replay", path, "--policy", ",".join(POLICIES), "--format", "csv").splitlines()
    keys = rows[0].split(",")
    return [dict(zip(keys, row.split(","))) for row in rows[1:]]


def page_figures(path, folder):
    page = folder / "page.html"
    weir("report", path, "-o", page, "--policy", "none", "--force")
    packed = re.search(r'id="index">([^<]*)<', page.read_text()).group(1)
    data = zlib.decompress(base64.b64decode(packed), -15)
    position = 0

    def number():
        nonlocal position
        value = shift = 0
        while True:
            byte = data[position]
            position += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    def text():
        nonlocal position
        length = number()
        position += length
        return data[position - length:position].decode()

    figures = {"version": number()}
    for name in ("weir", "file", "program", "device"):
        figures[name] = text()
    for name in ("capacity", "dropped", "real"):
        figures[name] = number()
    figures["placed"] = text()
    assert number() == 0, "damaged"
    for name in ("events", "duration", "blocks", "peak", "live", "in_use", "rounded", "knows_reserved", "reserved"):
        figures[name] = number()
    return figures


class Figures(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)

    def write_snapshot(self, snapshot, name="trace.pickle"):
        path = self.folder / name
        path.write_bytes(pickle.dumps(snapshot, protocol=rng_protocol(snapshot)))
        return path

    def check_replay(self, path, truth):
        rows = replays(path)
        for row in rows:
            self.assertEqual(int(row["requested_peak"]), truth.busy_peak)
            self.assertEqual(int(row["allocs"]), truth.allocs)
            self.assertEqual(int(row["streams"]), len(truth.streams))
            self.assertEqual(int(row["ooms"]), 0)
            self.assertGreaterEqual(int(row["reserved_peak"]), truth.busy_peak)
        return [{key: row[key] for key in ("policy", "streams", "allocs", "requested_peak", "reserved_peak", "waits")}
                for row in rows]

    def check_diff(self, path, truth, reserved):
        empty = self.folder / "empty.csv"
        empty.write_text("op,id,bytes,stream,t_us\n")
        found = json.loads(weir("diff", empty, path, "--json"))
        self.assertEqual(found["requested_peak"]["after"], truth.live_peak)
        self.assertEqual(found["blocks_at_peak"]["after"], len(truth.at_peak))
        self.assertEqual(found["reserved_peak"]["after"], reserved)
        self.assertEqual(found["allocs"]["after"], truth.allocs)
        self.assertEqual(found["allocated_bytes"]["after"], truth.allocated)
        self.assertEqual({group["name"]: [group["bytes_after"], group["blocks_after"]] for group in found["by_tag"]},
                         truth.by_tag())
        self.assertEqual(sum(group["bytes_after"] for group in found["by_size"]), truth.live_peak)

    def check_plan(self, path, truth):
        places = self.folder / "places.csv"
        found = json.loads(weir("plan", path, "--seconds", "0.01", "--json", "-o", places, "--force"))
        self.assertEqual(found["lower_bound"], truth.bound())
        blocks = [tuple(map(int, line.split(","))) for line in places.read_text().splitlines()[1:]]
        self.assertEqual(found["blocks"], len(blocks))
        self.assertEqual(found["height"], max((offset + size for offset, size, _, _ in blocks), default=0))
        for i, (offset, size, begin, end) in enumerate(blocks):
            for other, length, first, last in blocks[:i]:
                self.assertTrue(offset + size <= other or other + length <= offset or end <= first or last <= begin)

    def check_report(self, path, truth, reserved):
        found = page_figures(path, self.folder)
        self.assertEqual(found["live"], truth.live_peak)
        self.assertEqual(found["in_use"], truth.busy_peak)
        self.assertEqual(found["blocks"], truth.allocs)
        if reserved is not None:
            self.assertEqual(found["reserved"], reserved)

    def check_chrome(self, path, truth, reserved):
        out = self.folder / "chrome.json"
        weir("export", path, "--format", "chrome", "-o", out, "--force")
        counters = [item["args"] for item in json.loads(out.read_text())["traceEvents"]
                    if item["ph"] == "C" and item["name"] == "memory"]
        self.assertEqual(max((each["live"] for each in counters), default=0), truth.live_peak)
        self.assertEqual(counters[-1]["live"], sum(size for size, _ in truth.live.values()))
        if reserved is not None:
            self.assertEqual(max(each["reserved"] for each in counters), reserved)

    def check_exports(self, path, truth, replayed):
        """What is exported is replayed as the trace is, and has its figures."""
        for form, name in (("csv", "again.csv"), ("torch", "again.pickle"), ("weirtrace", "again.weirtrace")):
            if form == "csv" and path.suffix == ".pickle":
                continue  # which has no pools
            out = self.folder / name
            said = weir("export", path, "--format", form, "-o", out, "--force")
            live = sum(size for size, _ in truth.live.values())
            self.assertIn(f"at the end {live} bytes live in ", said)
            self.assertEqual(self.check_replay(out, truth), replayed, form)
            if form == "torch":
                with out.open("rb") as file:
                    segments = pickle.load(file)["segments"]
                self.assertEqual(sum(block["requested_size"] for each in segments for block in each["blocks"]
                                     if block["state"] == "active_allocated"), live)

    def check_all(self, path, truth, reserved):
        replayed = self.check_replay(path, truth)
        self.check_diff(path, truth, reserved or 0)
        self.check_plan(path, truth)
        self.check_report(path, truth, reserved)
        self.check_chrome(path, truth, reserved)
        self.check_exports(path, truth, replayed)

    def test_csv_traces(self):
        for seed in range(10):
            with self.subTest(seed=seed):
                text, truth = csv_trace(random.Random(seed))
                path = self.folder / "trace.csv"
                path.write_text(text)
                self.check_all(path, truth, None)

    def test_snapshots(self):
        for seed in range(6):
            with self.subTest(seed=seed):
                snapshot, truth = torch_snapshot(random.Random(1000 + seed), begins_late=False)
                self.check_all(self.write_snapshot(snapshot), truth, truth.reserved_peak)

    def test_snapshots_that_begin_in_the_middle(self):
        for seed in range(10):
            with self.subTest(seed=seed):
                snapshot, truth = torch_snapshot(random.Random(2000 + seed), begins_late=True)
                self.check_all(self.write_snapshot(snapshot), truth, truth.reserved_peak)


class Remarks(unittest.TestCase):
    """What is said where a file or the machine is not as it seems."""

    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)

    def run_weir(self, *words, **how):
        return running.run(arguments.weir, [str(word) for word in words], **how)

    def two_devices(self):
        def history(size, count):
            return [{"action": action, "addr": 4096, "size": size, "stream": 0, "time_us": i, "frames": []}
                    for i in range(count) for action in ("alloc", "free_requested", "free_completed")]

        path = self.folder / "two.pickle"
        path.write_bytes(pickle.dumps({"segments": [], "device_traces": [history(8 * MIB, 1), history(MIB, 9)]}))
        return path

    def test_of_several_devices_one_is_read_and_named(self):
        path = self.two_devices()
        page, out = self.folder / "page.html", self.folder / "out.csv"
        commands = {"replay": ["replay", path], "diff": ["diff", path, path, "--json"],
                    "plan": ["plan", path, "--json", "--seconds", "0"],
                    "export": ["export", path, "--format", "csv", "-o", out, "-f"],
                    "report": ["report", path, "-o", page, "-f"]}
        for command, words in commands.items():
            with self.subTest(command=command):
                ran = self.run_weir(*words)
                self.assertEqual(ran.returncode, 0)
                self.assertIn(f"weir {command}: {path}: the snapshot has cuda:0 (at most 8 MiB), cuda:1 (at most 1 MiB); "
                              "reading cuda:0; --device N chooses another\n", ran.stderr)
                chosen = self.run_weir(*words, "--device", "1")
                self.assertEqual((chosen.returncode, chosen.stderr), (0, ""))
                missing = self.run_weir(*words, "--device", "2")
                self.assertEqual(missing.returncode, 2)
                self.assertIn("has no device 2; it has cuda:0", missing.stderr)
        figures = self.run_weir("replay", path, "--snapshot-device", "1", "--format", "csv").stdout.splitlines()[1]
        self.assertEqual(figures.split(",")[3:5], ["9", str(MIB)])

    def test_names_of_files_do_not_reach_the_terminal_as_they_are(self):
        path, empty = self.folder / "evil.pickle", self.folder / "empty.csv"
        empty.write_text("op,id,bytes,stream,t_us\n")
        history = [{"action": "alloc", "addr": 4096, "size": 512, "stream": 0, "time_us": 0, "frames": [],
                    "user_metadata": "\x1b]0;x\x07 gr\u00f6\u00dfe \x9b"}]
        path.write_bytes(pickle.dumps({"segments": [], "device_traces": [history]}))
        said = self.run_weir("diff", empty, path).stdout
        self.assertIn("?]0;x? gr\u00f6\u00dfe ?\n", said)
        self.assertNotIn("\x1b", said)
        history[0]["size"] = 2 << 30
        history.append({**history[0], "addr": 1 << 40})
        path.write_bytes(pickle.dumps({"segments": [], "device_traces": [history]}))
        said = self.run_weir("report", path, "-o", self.folder / "page.html", "--capacity", "3GiB").stdout
        self.assertIn("by tag: ?]0;x? gr\u00f6\u00dfe ?: 2 GiB in 1 block\n", said)
        self.assertNotIn("\x1b", said)

    def test_too_few_addresses_are_an_error_of_the_host(self):
        if "asan" in str(arguments.weir):
            self.skipTest("sanitizers need the addresses themselves")
        path = self.folder / "one.csv"
        path.write_text("a,1,1048576,0,0\n")
        few = 6 << 30
        for jobs in ("1", "2"):
            ran = self.run_weir("replay", path, "--policy", "balanced,compact", "--jobs", jobs,
                                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (few, few)))
            self.assertEqual(ran.returncode, 2, ran.stderr)
            for policy in ("balanced", "compact"):
                self.assertRegex(ran.stderr, f"one, {policy}: .*the process has too few addresses for the simulated device")
            self.assertNotIn("out of memory at", ran.stderr)


def rng_protocol(snapshot):
    """Python writes pickles in several ways; which is no matter, so it varies with the length."""
    return 2 + len(snapshot["device_traces"][0]) % 4


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--weir", required=True)
    arguments, rest = parser.parse_known_args()
    unittest.main(argv=["test_figures.py", *rest])
