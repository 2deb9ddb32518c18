# SPDX-License-Identifier: Apache-2.0
"""snippets.py finds each kind of example and names the place of those that do not compile.

    test_snippets.py [C++ compiler [C compiler]]
"""

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SCRIPT = Path(__file__).resolve().parent / "snippets.py"
COMPILERS = sys.argv[1:3] if len(sys.argv) > 2 else ["c++", "cc"]

HEADER = """\
// weir::thing: what it is.
//
//   auto thing = weir::thing::create();
//
//   launch(thing);
//
// And so on.
#pragma once

namespace weir {

/// What a thing is.
///
///   Number,Name
///   1,first
class thing {
 public:
  [[nodiscard]] static thing create();
};

}  // namespace weir
"""

DOCUMENT = """\
# Things

```cpp
auto thing = weir::thing::create();
```

- In a list:

  ```c
  int number = count();
  launch_c(number);
  ```

```python
this is not C
```
"""

PRELUDE = """\
#include "weir/thing.hpp"
namespace snippets {
template <class T> void launch(const T&);
}
"""

PRELUDE_C = """\
int count(void);
void launch_c(int);
"""


class Snippets(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        self.write("include/weir/thing.hpp", HEADER)
        self.write("README.md", DOCUMENT)
        self.write("docs/things.md", "Nothing here.\n")
        self.write("prelude/prelude.hpp", PRELUDE)
        self.write("prelude/prelude.h", PRELUDE_C)

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def run_script(self):
        command = [sys.executable, SCRIPT, "--root", self.root, "--cxx", COMPILERS[0], "--cc", COMPILERS[1],
                   "--scratch", self.root / "scratch", "--prelude", self.root / "prelude"]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def expect_fine(self, examples):
        done = self.run_script()
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn(f"{examples} examples, 0 wrong", done.stdout)

    def expect_wrong(self, *parts, wrong=1):
        done = self.run_script()
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        for part in parts:
            self.assertIn(part, done.stdout)
        if wrong:
            self.assertIn(f" {wrong} wrong", done.stdout)

    def test_examples_of_headers_and_documents(self):
        self.expect_fine(3)  # the format of a file in the class comment is none

    def test_header_example_that_does_not_compile(self):
        self.write("include/weir/thing.hpp", HEADER.replace("launch(thing)", "launch(thin)"))
        self.expect_wrong("include/weir/thing.hpp:3: the example does not compile", "include/weir/thing.hpp:5:")

    def test_header_example_with_a_warning(self):
        self.write("include/weir/thing.hpp", HEADER.replace("//   launch(thing);", "//   weir::thing::create();"))
        self.expect_wrong("include/weir/thing.hpp:5:", "nodiscard")

    def test_example_of_a_class(self):
        example = HEADER.replace("///   1,first", "///   1,first\n/// and\n///   launch(thing::create());")
        self.write("include/weir/thing.hpp", example)
        self.expect_wrong("include/weir/thing.hpp:17: the example does not compile")  # needs weir::
        self.write("include/weir/thing.hpp", example.replace("launch(thing::", "launch(weir::thing::"))
        self.expect_fine(4)

    def test_block_of_a_document_that_does_not_compile(self):
        self.write("README.md", DOCUMENT.replace("auto thing", "int thing"))
        self.expect_wrong("README.md:4: the example does not compile", "README.md:4:")

    def test_c_block_that_does_not_compile(self):
        self.write("docs/things.md", DOCUMENT.replace("count()", "count(1)"))
        self.expect_wrong("docs/things.md:10: the example does not compile")

    def test_only_the_example_that_is_wrong_is_named(self):
        self.write("docs/things.md", DOCUMENT.replace("auto thing = ", "{ auto thing = "))
        done = self.run_script()
        self.assertEqual(done.returncode, 1)
        self.assertIn("docs/things.md:4: the example does not compile", done.stdout)
        self.assertIn("5 examples, 1 wrong", done.stdout)

    def test_program(self):
        program = '```cpp\n#include <cstdio>\nint main() {\n  std::puts("x");\n}\n```\n'
        self.write("docs/things.md", program)
        self.expect_fine(4)
        self.write("docs/things.md", program.replace("std::puts", "std::put"))
        self.expect_wrong("docs/things.md:2: the example does not compile", "docs/things.md:4:")

    def test_fragment_that_is_exempt(self):
        self.write("docs/things.md", "```cpp no-compile\nvoid* allocate(...);\n...\n```\n")
        self.expect_fine(3)

    def test_fence_with_an_unknown_word(self):
        self.write("docs/things.md", "\n```cpp nocompile\nint i = 0;\n```\n")
        self.expect_wrong("docs/things.md:2: unknown words after ```cpp: nocompile", wrong=0)

    def test_fence_that_does_not_end(self):
        self.write("docs/things.md", "```cpp\nint i = 0;\n")
        self.expect_wrong("docs/things.md:1: the block does not end", wrong=0)

    def test_tree_without_examples(self):
        self.write("include/weir/thing.hpp", "#pragma once\n")
        self.write("README.md", "Nothing.\n")
        self.expect_wrong("has no examples", wrong=0)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
