// SPDX-License-Identifier: Apache-2.0
// What test_cpp_mutants.py plants faults in: for every operator a line or two, and a print of what
// it gave.
#include <cstdio>
#include <string>

namespace {

enum class colour { red, green, blue };

struct box {
  int width = 3;
  int height = 7;
};

int area_left(const box& outer, int used) { return outer.width * outer.height - used; }

bool fits(const box& inner, const box& outer, bool turned) {
  if (turned && inner.width > outer.width) return false;
  return inner.height <= outer.height;
}

void count_to(int limit, std::string& text) {
  for (int i = 0; i < limit; ++i) {
    if (i == 2) continue;
    text += std::to_string(i);
  }
  text += ';';
}

int difference(int a, int b) { return a - b; }

const char* name(colour c) { return c == colour::green ? "green" : "other"; }

template <class T>
T twice(T value) {
  return value + value;
}

constexpr int size = 2 + 2;
static_assert(size == 4);  // constant expressions stay as they are

}  // namespace

int main() {
  const box small{2, 5};
  const box large;
  const int a = 9, b = 4;
  std::string text;
  count_to(4, text);
  std::printf("%d %d%d%d%d %s %d %s %d %d\n", area_left(large, 1), fits(small, large, true),
              fits(large, small, true), fits(large, box{3, 7}, false), fits({4, 1}, large, true),
              text.c_str(), difference(a, b), name(colour::green), twice(8), size);
  return 0;
}
