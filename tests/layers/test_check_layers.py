# SPDX-License-Identifier: Apache-2.0
"""cmake/check_layers.py finds each kind of mistake, and nothing in a tree without one."""

import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "cmake"))
import check_layers  # noqa: E402

COMPONENTS = """
weir_component(low PUBLIC_HEADERS weir/low/low.hpp weir/low/low.def)  # weir_component(not_this)
weir_component(high
  PUBLIC_HEADERS weir/high/high.hpp weir.h
  DEPENDS low
  LIBRARIES dl)
"""


class CheckLayers(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        self.write("src/CMakeLists.txt", COMPONENTS)
        self.write("include/weir/low/low.hpp", "#pragma once\n#include <vector>\n")
        self.write("include/weir/low/low.def", "WEIR_LOW(a)\n")
        self.write("include/weir/high/high.hpp", '#include "weir/low/low.hpp"\n')
        self.write("include/weir.h", "#include <stdint.h>\n")
        self.write("src/low/a.cpp", '#include "low/a.hpp"\n#include "weir/low/low.def"\n')
        self.write("src/low/a.hpp", '#include "weir/low/low.hpp"\n')
        self.write("src/high/b.cpp", '#include "low/a.hpp"\n#include "weir.h"\n#include <sys/mman.h>\n')

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def expect(self, *parts):
        """Exactly one problem, which says all of these."""
        problems = check_layers.check(self.root)
        self.assertEqual(len(problems), 1, problems)
        for part in parts:
            self.assertIn(part, problems[0])

    def test_a_tree_in_order_has_no_problem(self):
        self.assertEqual(check_layers.check(self.root), [])

    def test_public_header_of_a_higher_component(self):
        self.write("src/low/a.cpp", '#include "low/a.hpp"\n\n#  include <weir/high/high.hpp>\n')
        self.expect("src/low/a.cpp:3", "component low may not use weir/high/high.hpp of high")

    def test_c_header_of_a_higher_component(self):
        self.write("src/low/a.cpp", '#include "weir.h"\n')
        self.expect("src/low/a.cpp:1", "weir.h of high")

    def test_private_header_of_a_higher_component(self):
        self.write("src/low/a.cpp", '#include "high/b.hpp"\n')
        self.expect("src/low/a.cpp:1", "may not use high/b.hpp")

    def test_public_header_with_a_private_one(self):
        self.write("include/weir/high/high.hpp", '#include "low/a.hpp"\n')
        self.expect("include/weir/high/high.hpp:1", "private low/a.hpp")

    def test_public_header_of_a_lower_component_with_a_higher_one(self):
        self.write("include/weir/low/low.hpp", '#include "weir/high/high.hpp"\n')
        self.expect("include/weir/low/low.hpp:1", "component low may not use weir/high/high.hpp")

    def test_waits_that_invalidate_captures(self):
        for wait in ("driver.ctx_synchronize()", "driver().stream_query(handle)", "device_.synchronize()",
                     "bound.driver().ctx_record_event(a, b)", "stream.synchronize()"):
            self.write("src/high/b.cpp", f"// {wait}\n  WEIR_TRY({wait});  // {wait}\n")
            self.expect("src/high/b.cpp:2", "can invalidate a capture")
        self.write("src/high/b.cpp", "  WEIR_TRY(behind->synchronize());\n")
        self.assertEqual(check_layers.check(self.root), [])

    def test_waits_for_the_device_where_a_lock_may_be_held(self):
        self.write("src/CMakeLists.txt", COMPONENTS + "weir_component(heap DEPENDS low)\n")
        for wait in ("bound.driver().mem_free(base)", "free_plain(bound, base)", "driver.mem_free_host(base)",
                     "behind->synchronize()", "mark.synchronize()", "detail::wait_for_all_work(bound)"):
            self.write("src/heap/trim.cpp", f"result<void> heap::trim() {{\n  // {wait}\n  WEIR_TRY({wait});\n}}\n")
            self.expect("src/heap/trim.cpp:3", "waits for the device")
        self.write("src/heap/trim.cpp", "void heap::trim() {\n  driver.mem_free_async(base, stream);\n}\n")
        self.assertEqual(check_layers.check(self.root), [])
        known = "result<void> backup::return_segment() {\n  return driver.mem_free_host(base);\n}\n"
        self.write("src/heap/backup.cpp", known)
        self.assertEqual(check_layers.check(self.root), [])
        self.write("src/heap/backup.cpp", known + "\nvoid backup::trim() {\n  driver.mem_free_host(base);\n}\n")
        self.expect("src/heap/backup.cpp:6", "waits for the device")

    def test_waits_for_the_device_in_every_component_that_the_end_of_a_stream_waits_for(self):
        components = ("order", "placement", "heap", "pools", "resources", "buffers", "sharing")
        self.write("src/CMakeLists.txt",
                   COMPONENTS + "".join(f"weir_component({each} DEPENDS low)\n" for each in components))
        for each in components:
            waiting = self.root / f"src/{each}/trim.cpp"
            self.write(f"src/{each}/trim.cpp", "void trim() {\n  WEIR_TRY(detail::wait_for_all_work(bound));\n}\n")
            self.expect(f"src/{each}/trim.cpp:2", "waits for the device")
            waiting.unlink()

    def test_path_that_leaves_its_folder(self):
        self.write("src/low/a.cpp", '#include "../high/b.hpp"\n')
        self.expect("src/low/a.cpp:1", "leaves its folder")

    def test_header_without_its_component(self):
        self.write("src/low/a.cpp", '#include "a.hpp"\n')
        self.expect("src/low/a.cpp:1", '"low/a.hpp"')

    def test_header_that_no_component_owns(self):
        self.write("include/weir/low/stray.hpp", "")
        self.expect("include/weir/low/stray.hpp", "no component")

    def test_header_outside_a_folder(self):
        self.write("include/weir/stray.hpp", "")
        self.expect("include/weir/stray.hpp", "no component")

    def test_header_that_does_not_exist_in_that_folder(self):
        self.write("include/weir/high/high.hpp", '#include "weir/low.hpp"\n')
        self.expect("include/weir/high/high.hpp:1", "weir/low.hpp belongs to no component")

    def test_header_that_two_components_own(self):
        self.write("src/CMakeLists.txt", COMPONENTS.replace("weir.h", "weir.h weir/low/low.hpp"))
        self.assertIn("include/weir/low/low.hpp: belongs to low and high",
                      check_layers.check(self.root))

    def test_folder_that_is_no_component(self):
        self.write("src/attic/c.cpp", "")
        self.expect("src/attic", "not a component")

    def test_component_that_depends_on_one_below(self):
        self.write("src/CMakeLists.txt", COMPONENTS.replace("low PUBLIC", "low DEPENDS high PUBLIC"))
        self.expect("component low depends on high")

    def test_header_of_the_toolkit(self):
        self.write("src/high/b.cpp", "#include <cuda.h>\n")
        self.expect("src/high/b.cpp:1", "CUDA toolkit")

    def test_environment_that_set_uid_programs_would_read(self):
        for place in ("src/high/b.cpp", "plugins/any/b.cpp"):
            self.write(place, 'secure_getenv("X");\nstd::getenv("X");\n')
            self.expect(f"{place}:2", "secure_getenv()")
            self.write(place, "")


if __name__ == "__main__":
    unittest.main()
