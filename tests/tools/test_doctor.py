#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""weir doctor as its users run it: exit codes, text and JSON, with every kind of driver."""

import argparse
import json
import re
import resource
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import running

arguments = None
MISSING = "/nonexistent/libcuda.so.1"
# The features, in their order, and why each works.
FEATURES = {
    "caching_allocator": "virtual memory, mapped in handles of 2 MiB",
    "stream_pools": "the driver's stream-ordered memory pools",
    "unified_memory": "managed memory, for host and device at once",
    "pinned_memory": "host memory that the device reaches directly",
    "sharing_by_descriptor": "handles and pools travel to other processes",
    "legacy_sharing": "plain allocations travel as cuIpc handles",
    "graph_capture": "captures can be distinguished and own memory",
    "stream_identity": "a stream's number is never used twice",
    "suspended_memory": "contents are saved to the host and restored; copy engines: 3",
}
DEVICE = {
    "number": 0, "name": "weir simulated H200", "pci_bus_id": "0000:01:00.0",
    "uuid": "776569722d73696d0000000000000000", "memory_total": 150109880320,
    "memory_free": 150109880320 - 554500096, "compute_major": 9, "compute_minor": 0, "multiprocessors": 132,
    "granularity": 2 << 20, "recommended_granularity": 2 << 20, "reaches_devices": [],
    "capabilities": {
        "unified_addressing": True, "stream_priorities": True, "stream_memory_operations": False,
        "host_register": True, "rdma": True, "rdma_with_virtual_memory": True, "dma_buf": True,
        "fabric_handles": True, "multicast": False, "host_memory_pools": True, "host_numa_memory_pools": True,
        "host_numa_virtual_memory": True, "pageable_memory_access": False, "integrated": False},
    "features": [{"name": key, "works": "yes", "why": why} for key, why in FEATURES.items()],
    "network_cards": {"works": "yes", "why": "mapped memory can be registered (GPUDirect RDMA)"},
}


def weir(*words, **environment):
    return running.run(arguments.weir, words, environment)


def same_host(text):
    """The text with the host of the document."""
    golden = arguments.golden.read_text()
    host = re.search(r"^host      .*\n          .*\n", golden, re.M).group()
    return re.sub(r"^host      [\d.]+ [KMGT]iB of memory, [\d.]+ [KMGT]iB available\n"
                  r"          a process may lock (all of it|[\d.]+ ([KMGT]i)?B)\n", host, text, flags=re.M)


class Doctor(unittest.TestCase):
    def examine(self, path, code, *words, **environment):
        """The findings as JSON, after a look at the exit code, which both outputs must agree on."""
        ran = weir("doctor", "--driver", path, "--json", *words, **environment)
        self.assertEqual(ran.returncode, code, ran.stdout + ran.stderr)
        self.assertEqual(ran.stderr, "")  # the drivers complain of memory that was left behind
        check = subprocess.run([sys.executable, "-m", "json.tool"], input=ran.stdout, text=True,
                               capture_output=True, check=False)
        self.assertEqual(check.returncode, 0, check.stderr)
        report = json.loads(ran.stdout)
        self.assertEqual(report["exit_code"], code)
        verdicts = {0: "ready", 1: "limited", 2: "no_driver", 3: "unusable"}
        self.assertEqual(report["verdict"], verdicts[code])

        plain = weir("doctor", "--driver", path, *words, **environment)
        self.assertEqual(plain.returncode, code, plain.stdout + plain.stderr)
        self.assertIn(f"(exit code {code})", plain.stdout.splitlines()[-1])
        for line in plain.stdout.splitlines():
            # A path is one word: it cannot be broken.
            self.assertTrue(len(line) <= 80 or "/" in line, line)
            self.assertEqual(line, line.rstrip())
        return report

    @staticmethod
    def features(report, device=0):
        return {each["name"]: each["works"] for each in report["devices"][device]["features"]}

    @staticmethod
    def reasons(report, device=0):
        return {each["name"]: each["why"] for each in report["devices"][device]["features"]}

    def limits(self, report):
        """What does not work, and why; what works says why, too."""
        found = report["devices"][0]["features"]
        self.assertEqual([each["name"] for each in found], list(FEATURES))
        for each in found:
            if each["works"] == "yes":
                self.assertEqual(each["why"], FEATURES[each["name"]])
        return {each["name"]: (each["works"], each["why"]) for each in found if each["works"] != "yes"}

    # --- No driver ---------------------------------------------------------------------------------

    def test_without_a_driver_it_shows_the_simulated_machine(self):
        ran = weir("doctor", "--driver", MISSING)
        self.assertEqual(ran.returncode, 2)
        self.maxDiff = None
        self.assertEqual(same_host(ran.stdout), arguments.golden.read_text(),
                         "if this is meant: docs/doctor.md shows the same text")

    def test_every_member_about_the_simulated_machine(self):
        report = self.examine(MISSING, 2)
        self.maxDiff = None
        problem = ("driver_unavailable: no usable driver was found on this machine: " + MISSING +
                   ": cannot open shared object file: No such file or directory")
        version = weir("--version").stdout.split()[1]
        self.assertEqual(report, {
            "weir": version, "verdict": "no_driver", "exit_code": 2,
            "driver": {"asked": MISSING, "usable": False, "oldest_version": 11020,
                       "problem": {"code": "driver_unavailable", "native": 0, "call": "", "message": problem,
                                   "advice": "No NVIDIA driver is installed here, or it is out of sight: a "
                                             "container must be started with access to GPUs."}},
            "machine": {"simulated": True, "driver": report["machine"]["driver"], "driver_version": 13000,
                        "device_count": 1, "missing_calls": []},
            "host": report["host"], "devices": [DEVICE]})
        self.assertEqual(list(report["devices"][0]), list(DEVICE))

    def test_the_host_is_what_the_system_says(self):
        host = self.examine(MISSING, 2)["host"]
        lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        self.assertEqual(host["memory_total"], int(lines["MemTotal"].split()[0]) * 1024)
        self.assertTrue(0 < host["memory_available"] <= host["memory_total"])
        soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
        self.assertEqual(host["lock_limit"], None if soft == resource.RLIM_INFINITY else soft)
        try:
            resource.setrlimit(resource.RLIMIT_MEMLOCK, (3 << 20, hard))
            self.assertEqual(self.examine(MISSING, 2)["host"]["lock_limit"], 3 << 20)
            self.assertIn("\n          a process may lock 3 MiB\n", weir("doctor", "--driver", MISSING).stdout)
        finally:
            resource.setrlimit(resource.RLIMIT_MEMLOCK, (soft, hard))

    def test_a_missing_library_is_no_driver(self):
        report = self.examine(MISSING, 2)
        self.assertEqual(report["driver"]["problem"]["code"], "driver_unavailable")
        self.assertIn(MISSING, report["driver"]["problem"]["message"])
        self.assertFalse(report["driver"]["usable"])
        self.assertTrue(report["machine"]["simulated"])
        self.assertEqual(set(self.features(report).values()), {"yes"})
        device = report["devices"][0]
        self.assertEqual(device["memory_total"], 150109880320)
        self.assertEqual(device["memory_free"], 150109880320 - 554500096)
        self.assertEqual(device["granularity"], 2 << 20)

    def test_a_bare_name_that_nobody_has_is_no_driver(self):
        self.examine("libweir-has-no-such-driver.so.1", 2)

    def test_the_environment_names_the_driver_and_shapes_the_simulated_machine(self):
        ran = weir("doctor", "--json", WEIR_DRIVER=MISSING, WEIR_SIM_DEVICES="3")
        self.assertEqual(ran.returncode, 2)
        report = json.loads(ran.stdout)
        self.assertEqual(report["driver"]["asked"], MISSING)
        self.assertEqual([each["number"] for each in report["devices"]], [0, 1, 2])

    # --- A driver that is of no use ------------------------------------------------------------------

    def test_a_file_that_is_no_library_is_unusable(self):
        with tempfile.NamedTemporaryFile(suffix=".so") as file:
            file.write(b"this is no library\n")
            file.flush()
            report = self.examine(file.name, 3)
            text = weir("doctor", "--driver", file.name).stdout.splitlines()
        self.assertEqual(report["driver"]["problem"]["code"], "driver_unavailable")
        self.assertEqual(report["driver"]["problem"]["advice"],
                         "The library was found, but it is not a working driver.")
        self.assertEqual(text[2], f"driver    {file.name} cannot be used")
        self.assertEqual(text[-1],
                         "verdict   the driver cannot be used; the simulated machine can (exit code 3)")

    def test_a_path_with_bytes_that_are_no_text_still_gives_json(self):
        ran = running.run(arguments.weir, ["doctor", "--json", "--driver", b"/no/\xff\"\\\n.so"], text=False)
        self.assertEqual(ran.returncode, 2)
        self.assertEqual(json.loads(ran.stdout.decode())["driver"]["asked"], "/no/\ufffd\"\\\n.so")

    def test_an_old_driver_is_unusable(self):
        report = self.examine(arguments.driver, 3, FAKE_VERSION="11010")
        self.assertEqual(report["driver"]["problem"]["code"], "driver_too_old")
        self.assertIn("11.1", report["driver"]["problem"]["message"])
        self.assertEqual(report["driver"]["problem"]["advice"], "Install a driver for CUDA 11.2 or later.")

    def test_an_incomplete_driver_is_unusable_and_the_call_is_named(self):
        report = self.examine(arguments.driver, 3, FAKE_LACKS="cuMemCreate")
        self.assertEqual(report["driver"]["problem"]["code"], "symbol_missing")
        self.assertIn("cuMemCreate", report["driver"]["problem"]["message"])
        self.assertEqual(report["driver"]["problem"]["advice"], "The library is not a complete driver.")

    def test_a_driver_that_the_loader_finds_by_its_name_is_there(self):
        folder, name = str(Path(arguments.driver).resolve().parent), Path(arguments.driver).name
        for code, driver in ((0, {}), (3, {"FAKE_VERSION": "11010"}), (3, {"FAKE_LACKS": "cuMemCreate"}),
                             (3, {"FAKE_DEVICES": "0"}), (3, {"FAKE_REFUSES": "cuInit"})):
            self.examine(name, code, LD_LIBRARY_PATH=folder, **driver)

    def test_a_driver_without_a_device_is_unusable(self):
        report = self.examine(arguments.driver, 3, FAKE_DEVICES="0")
        self.assertEqual(report["driver"]["problem"]["code"], "no_device")
        self.assertEqual(report["driver"]["problem"]["advice"],
                         "The driver works but shows no device: see whether the GPU is visible to this process "
                         "(CUDA_VISIBLE_DEVICES, container settings).")

    def test_a_driver_that_does_not_start_is_unusable(self):
        report = self.examine(arguments.driver, 3, FAKE_REFUSES="cuInit")
        self.assertEqual(report["driver"]["problem"]["call"], "cuInit")
        self.assertEqual(report["driver"]["problem"]["native"], 800)
        self.assertEqual(report["driver"]["problem"]["advice"],
                         "The driver is there but fails; its own tools (nvidia-smi) may tell more.")
        # Of a driver that is there nobody says that it could not be loaded, whatever went wrong.
        report = self.examine(arguments.driver, 3, FAKE_REFUSES="cuDriverGetVersion")
        self.assertEqual(report["driver"]["problem"]["call"], "cuDriverGetVersion")

    # --- A driver that works -------------------------------------------------------------------------

    def test_a_whole_driver_is_ready(self):
        report = self.examine(arguments.driver, 0)
        self.maxDiff = None
        self.assertEqual(report["driver"], {"asked": arguments.driver, "usable": True, "oldest_version": 11020,
                                            "problem": None})
        self.assertEqual(report["machine"], {"simulated": False, "driver": arguments.driver,
                                             "driver_version": 13000, "device_count": 1, "missing_calls": []})
        self.assertEqual(report["devices"], [DEVICE])

    def test_every_line_about_a_whole_driver(self):
        ran = weir("doctor", "--driver", arguments.driver)
        self.maxDiff = None
        golden = arguments.golden.read_text()
        device = golden[golden.index("          all "):golden.index("verdict")]
        head = golden.splitlines()[0]
        self.assertEqual(same_host(ran.stdout), f"{head}\n\ndriver    {arguments.driver}\n"
                                     "          CUDA 13.0; weir needs 11.2 or later\n" + device +
                                     "verdict   everything that weir needs works here (exit code 0)\n")

    def test_every_line_about_several_devices(self):
        lines = weir("doctor", "--driver", arguments.driver, FAKE_DEVICES="3").stdout.splitlines()
        golden = arguments.golden.read_text().splitlines()
        first = golden.index("device 0  weir simulated H200")
        device = golden[first:golden.index("", golden.index("  what weir can build on there"))]
        for number, peers in ((0, "1, 2"), (1, "0, 2"), (2, "0, 1")):
            begin = lines.index(f"device {number}  weir simulated H200")
            self.assertEqual(lines[begin - 1], "")
            expected = [f"device {number}  weir simulated H200", *device[1:4],
                        f"  PCI bus              0000:0{number + 1}:00.0", f"  reaches devices      {peers}",
                        *device[5:]]
            self.assertEqual(lines[begin:begin + len(expected)], expected)
        alone = weir("doctor", "--driver", arguments.driver, "--device", "2", FAKE_DEVICES="3").stdout
        self.assertNotIn("device 0 ", alone)
        self.assertIn("  reaches devices      0, 1\n", alone)

    def test_devices_say_whom_they_reach_and_can_be_chosen(self):
        report = self.examine(arguments.driver, 0, FAKE_DEVICES="2")
        self.assertEqual([each["reaches_devices"] for each in report["devices"]], [[1], [0]])
        one = self.examine(arguments.driver, 0, "--device", "1", FAKE_DEVICES="2")
        self.assertEqual([each["number"] for each in one["devices"]], [1])
        self.assertEqual(one["machine"]["device_count"], 2)

    def test_the_oldest_driver_has_limits_that_are_named(self):
        report = self.examine(arguments.driver, 1, FAKE_VERSION="11020")
        missing = {each["name"]: each["since"] for each in report["machine"]["missing_calls"]}
        self.assertEqual(missing["cuStreamGetId"], 12000)
        self.assertEqual(missing["cuStreamGetCaptureInfo"], 11030)
        self.assertEqual(missing["cuMemPrefetchAsync"], 12020)  # its older form is there
        features = self.features(report)
        self.assertEqual(features["caching_allocator"], "yes")
        self.assertEqual(features["stream_identity"], "partly")
        self.assertEqual(features["graph_capture"], "no")
        names = ("cuStreamGetCaptureInfo (CUDA 11.3), cuStreamUpdateCaptureDependencies (CUDA 11.3), "
                 "cuGraphInstantiateWithFlags (CUDA 11.4), cuUserObjectCreate (CUDA 11.3), "
                 "cuUserObjectRetain (CUDA 11.3), cuUserObjectRelease (CUDA 11.3), "
                 "cuGraphRetainUserObject (CUDA 11.3), cuGraphReleaseUserObject (CUDA 11.3)")
        self.assertEqual(self.reasons(report)["graph_capture"], f"the driver lacks {names}")
        self.assertEqual(self.reasons(report)["stream_identity"],
                         "numbered by weir: the driver lacks cuStreamGetId (CUDA 12.0); a stream that others destroyed can be mistaken for its successor")
        text = weir("doctor", "--driver", arguments.driver, FAKE_VERSION="11020").stdout
        lacks = ", ".join(f"{each['name']} (CUDA {each['since'] // 1000}.{each['since'] % 1000 // 10})"
                          for each in report["machine"]["missing_calls"])
        self.assertEqual(len(report["machine"]["missing_calls"]), 21)
        self.assertIn(f"CUDA 11.2; weir needs 11.2 or later optional calls that it lacks: {lacks} host ",
                      " ".join(text.split()))
        self.assertIn("\n          cuCtxRecordEvent (CUDA 12.5), cuStreamGetId (CUDA 12.0),\n", text)
        self.assertIn("\n  stream identity      partly  numbered by weir: the driver lacks cuStreamGetId\n"
                      "                               (CUDA 12.0); a stream that others destroyed can\n", text)
        self.assertEqual(text.splitlines()[-1],
                         "verdict   weir works here, within the limits named above (exit code 1)")

    def test_one_call_that_is_missing_is_a_limit(self):
        for call, since, feature, works, why in (
                ("cuStreamUpdateCaptureDependencies", "11.3", "graph_capture", "no", "the driver lacks {}"),
                ("cuGraphReleaseUserObject", "11.3", "graph_capture", "no", "the driver lacks {}"),
                ("cuStreamGetId", "12.0", "stream_identity", "partly",
                 "numbered by weir: the driver lacks {}; a stream that others destroyed can be mistaken for its "
                 "successor"),
                ("cuMemcpyBatchAsync", "12.8", None, None, None)):
            report = self.examine(arguments.driver, 1, FAKE_LACKS=call)
            self.assertEqual([each["name"] for each in report["machine"]["missing_calls"]], [call])
            limits = {} if feature is None else {feature: (works, why.format(f"{call} (CUDA {since})"))}
            self.assertEqual(self.limits(report), limits)

    def test_a_plain_device_has_limits_that_are_named(self):
        report = self.examine(arguments.driver, 1, FAKE_PLAIN="1")
        features = self.features(report)
        for name in ("caching_allocator", "stream_pools", "unified_memory", "sharing_by_descriptor"):
            self.assertEqual(features[name], "no", name)
        self.assertEqual(features["pinned_memory"], "yes")
        self.assertEqual(report["devices"][0]["granularity"], 0)
        self.assertEqual(self.limits(report), {
            "caching_allocator": ("no", "the device does not support virtual memory"),
            "stream_pools": ("no", "the device does not support memory pools"),
            "unified_memory": ("no", "the device does not support managed memory"),
            "suspended_memory": ("no", "the device does not support virtual memory"),
            "sharing_by_descriptor": ("no", "the device does not support virtual memory")})
        text = weir("doctor", "--driver", arguments.driver, FAKE_PLAIN="1").stdout
        self.assertIn("\n  handle granularity   none: no virtual memory\n", text)
        self.assertIn("\n  sharing, descriptor  no      the device does not support virtual memory\n", text)

    def test_an_ability_that_a_device_lacks_is_a_limit(self):
        for attribute, feature, works, why in (
                (89, "unified_memory", "partly",
                 "managed memory that the host must not touch while the device works"),
                (103, "sharing_by_descriptor", "no", "handles cannot become descriptors"),
                (115, "stream_pools", "no", "the device does not support memory pools"),
                (119, "sharing_by_descriptor", "partly",
                 "handles travel to other processes, memory pools do not")):
            report = self.examine(arguments.driver, 1, FAKE_ATTRIBUTE=str(attribute))
            self.assertEqual(self.limits(report), {feature: (works, why)})

    def test_network_cards_are_tried_and_no_limit(self):
        report = self.examine(arguments.driver, 0, FAKE_ATTRIBUTE="110")
        self.assertEqual(report["devices"][0]["network_cards"],
                         {"works": "no", "why": "the device does not support RDMA with virtual memory"})
        text = weir("doctor", "--driver", arguments.driver, FAKE_ATTRIBUTE="110").stdout
        self.assertIn("\n  network cards        no: the device does not support RDMA with virtual memory\n", text)
        report = self.examine(arguments.driver, 1, FAKE_PLAIN="1")
        self.assertEqual(report["devices"][0]["network_cards"],
                         {"works": "no", "why": "the device does not support virtual memory"})

    def test_a_feature_counts_only_if_it_worked(self):
        for feature, calls in {
                "caching_allocator": ["cuMemAddressReserve, 2 MiB", "cuMemCreate, 2 MiB", "cuMemMap, 2 MiB",
                                      "cuMemSetAccess, 2 MiB", "cuMemUnmap, 2 MiB", "cuMemRelease, 2 MiB",
                                      "cuMemAddressFree, 2 MiB"],
                "stream_pools": ["cuMemAllocAsync, 4 KiB", "cuMemFreeAsync", "cuStreamSynchronize"],
                "unified_memory": ["cuMemAllocManaged, 4 KiB", "cuMemFree"],
                "pinned_memory": ["cuMemHostAlloc, 4 KiB", "cuMemFreeHost"],
                "sharing_by_descriptor": ["cuMemExportToShareableHandle, 2 MiB"],
                "legacy_sharing": ["cuMemAlloc, 4 KiB", "cuIpcGetMemHandle"],
                "graph_capture": ["cuStreamBeginCapture", "cuStreamGetCaptureInfo", "cuStreamEndCapture",
                                  "cuGraphDestroy"]}.items():
            for call in calls:
                name, _, size = call.partition(", ")
                ran = weir("doctor", "--driver", arguments.driver, "--json", FAKE_REFUSES=name)
                self.assertEqual(ran.returncode, 1, call)
                why = f"not_permitted: the operation is not permitted ({name} = 800{size and ', ' + size})"
                self.assertEqual(self.limits(json.loads(ran.stdout)), {feature: ("no", why)})
                if "Unmap" not in name and "Release" not in name:  # which then keep what they hold
                    self.assertEqual(ran.stderr, "", call)

    def test_free_memory_that_a_device_does_not_tell_is_a_limit(self):
        report = self.examine(arguments.driver, 1, FAKE_REFUSES="cuMemGetInfo")
        self.assertIsNone(report["devices"][0]["memory_free"])
        self.assertEqual(self.limits(report), {})
        text = weir("doctor", "--driver", arguments.driver, FAKE_REFUSES="cuMemGetInfo").stdout
        self.assertIn(" memory 139.8 GiB, free unknown: not_permitted: the operation is not permitted "
                      "(cuMemGetInfo = 800) compute capability", " ".join(text.split()))

    # --- Usage -----------------------------------------------------------------------------------

    def test_bad_usage_is_64_and_says_why(self):
        for words in (["doctor", "--no-such-option"], ["doctor", "--device", "-1"], ["surgeon"], [],
                      ["doctor", "--driver", ""], ["doctor", "--device", "x"]):
            ran = weir(*words)
            self.assertEqual(ran.returncode, 64, words)
            self.assertNotEqual(ran.stderr, "", words)
        ran = weir("doctor", "--driver", MISSING, "--device", "7")
        self.assertEqual(ran.returncode, 64)
        self.assertIn("device 7 of 1", ran.stderr)
        ran = weir("doctor", WEIR_SIM_DEVICES="many")
        self.assertEqual(ran.returncode, 64)
        self.assertIn("WEIR_SIM_DEVICES", ran.stderr)

    def test_what_nobody_expected_is_70_and_says_what_it_was(self):
        ran = weir("doctor", "--driver", arguments.driver, FAKE_THROWS="out of the blue")
        self.assertEqual((ran.returncode, ran.stdout, ran.stderr), (70, "", "weir: out of the blue\n"))

    def test_help_and_version(self):
        ran = weir("--version")
        self.assertEqual(ran.returncode, 0)
        self.assertRegex(ran.stdout, r"^weir \d+\.\d+\.\d+\n$")
        ran = weir("doctor", "--help")
        self.assertEqual(ran.returncode, 0)
        for code in ("0", "1", "2", "3", "64"):
            self.assertRegex(ran.stdout, rf"(?m)^  {code} +\w")


class Gpu(unittest.TestCase):
    """On a machine with a GPU, with the driver it has."""

    def test_the_real_driver_is_usable(self):
        ran = weir("doctor", "--json")
        print(ran.stdout)
        self.assertIn(ran.returncode, (0, 1), ran.stderr)
        report = json.loads(ran.stdout)
        self.assertFalse(report["machine"]["simulated"])
        self.assertGreaterEqual(len(report["devices"]), 1)
        for device in range(len(report["devices"])):
            features = Doctor.features(report, device)
            self.assertEqual(features["caching_allocator"], "yes")
            self.assertEqual(features["stream_pools"], "yes")
        # Only a limit that is named makes the verdict worse.
        named = report["machine"]["missing_calls"] or any(
            each["works"] != "yes" for one in report["devices"] for each in one["features"])
        self.assertEqual(ran.returncode, 1 if named else 0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--weir", required=True)
    parser.add_argument("--driver")
    parser.add_argument("--golden", type=Path)
    parser.add_argument("--gpu", action="store_true")
    arguments, rest = parser.parse_known_args()
    unittest.main(argv=[sys.argv[0], *rest], defaultTest="Gpu" if arguments.gpu else "Doctor")
