#!/usr/bin/env python3
"""weir doctor as its users run it: exit codes, text and JSON, with every kind of driver."""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

arguments = None
MISSING = "/nonexistent/libcuda.so.1"


def weir(*words, **environment):
    """Runs the command; nothing of the caller's own settings reaches it."""
    clean = {name: text for name, text in os.environ.items() if not name.startswith("WEIR_")}
    # LeakSanitizer takes seconds a run, and the drivers here look for what was left behind themselves.
    clean["ASAN_OPTIONS"] = clean.get("ASAN_OPTIONS", "") + ":detect_leaks=0"
    return subprocess.run([arguments.weir, *words], capture_output=True, text=True, timeout=60,
                          env={**clean, "LC_ALL": "C", **environment}, check=False)


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

    # --- No driver ---------------------------------------------------------------------------------

    def test_without_a_driver_it_shows_the_simulated_machine(self):
        ran = weir("doctor", "--driver", MISSING)
        self.assertEqual(ran.returncode, 2)
        self.maxDiff = None
        self.assertEqual(ran.stdout, arguments.golden.read_text(),
                         "if this is meant: docs/doctor.md shows the same text")

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
        self.assertEqual(report["driver"]["problem"]["code"], "driver_unavailable")

    def test_a_path_with_bytes_that_are_no_text_still_gives_json(self):
        ran = subprocess.run([arguments.weir, "doctor", "--json", "--driver", b"/no/\xff\"\\\n.so"],
                             capture_output=True, timeout=60, check=False)
        self.assertEqual(ran.returncode, 2)
        self.assertEqual(json.loads(ran.stdout.decode())["driver"]["asked"], "/no/\ufffd\"\\\n.so")

    def test_an_old_driver_is_unusable(self):
        report = self.examine(arguments.driver, 3, FAKE_VERSION="11010")
        self.assertEqual(report["driver"]["problem"]["code"], "driver_too_old")
        self.assertIn("11.1", report["driver"]["problem"]["message"])
        self.assertIn("11.2", report["driver"]["problem"]["advice"])

    def test_an_incomplete_driver_is_unusable_and_the_call_is_named(self):
        report = self.examine(arguments.driver, 3, FAKE_LACKS="cuMemCreate")
        self.assertEqual(report["driver"]["problem"]["code"], "symbol_missing")
        self.assertIn("cuMemCreate", report["driver"]["problem"]["message"])

    def test_a_driver_without_a_device_is_unusable(self):
        report = self.examine(arguments.driver, 3, FAKE_DEVICES="0")
        self.assertEqual(report["driver"]["problem"]["code"], "no_device")

    def test_a_driver_that_does_not_start_is_unusable(self):
        report = self.examine(arguments.driver, 3, FAKE_REFUSES="cuInit")
        self.assertEqual(report["driver"]["problem"]["call"], "cuInit")
        self.assertEqual(report["driver"]["problem"]["native"], 800)

    # --- A driver that works -------------------------------------------------------------------------

    def test_a_whole_driver_is_ready(self):
        report = self.examine(arguments.driver, 0)
        self.assertTrue(report["driver"]["usable"])
        self.assertIsNone(report["driver"]["problem"])
        self.assertFalse(report["machine"]["simulated"])
        self.assertEqual(report["machine"]["driver"], arguments.driver)
        self.assertEqual(report["machine"]["driver_version"], 13000)
        self.assertEqual(report["machine"]["missing_calls"], [])
        self.assertEqual(set(self.features(report).values()), {"yes"})

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
        text = weir("doctor", "--driver", arguments.driver, FAKE_VERSION="11020").stdout
        self.assertIn("cuStreamGetId (CUDA 12.0)", " ".join(text.split()))

    def test_a_plain_device_has_limits_that_are_named(self):
        report = self.examine(arguments.driver, 1, FAKE_PLAIN="1")
        features = self.features(report)
        for name in ("caching_allocator", "stream_pools", "unified_memory", "sharing_by_descriptor"):
            self.assertEqual(features[name], "no", name)
        self.assertEqual(features["pinned_memory"], "yes")
        self.assertEqual(report["devices"][0]["granularity"], 0)

    def test_a_feature_counts_only_if_it_worked(self):
        report = self.examine(arguments.driver, 1, FAKE_REFUSES="cuMemAllocAsync")
        self.assertEqual(self.features(report)["stream_pools"], "no")
        why = {each["name"]: each["why"] for each in report["devices"][0]["features"]}
        self.assertIn("cuMemAllocAsync = 800", why["stream_pools"])

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
