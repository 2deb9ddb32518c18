// SPDX-License-Identifier: Apache-2.0
// Using unified buffers and device vectors beside everything else.
#include "unified_memory.hpp"

#include <utility>

#include "weir/buffer/device_vector.hpp"

namespace weir::programs_test {

void unified_memory::step() {
  rng& random = world_.random();
  if (buffers_.size() < 3 && random.one_in(3)) return create();
  if (buffers_.empty()) return;
  const std::size_t index = random.below(buffers_.size());
  switch (random.below(4)) {
    case 0:
    case 1:
      return write(buffers_[index]);
    case 2:
      return view(buffers_[index]);
    default:
      world_.log("destroy a unified buffer");
      std::swap(buffers_[index], buffers_.back());
      buffers_.pop_back();
  }
}

void unified_memory::create() {
  const std::size_t device = world_.random().below(device_count);
  const lane_index on = lanes_.any(device);
  // Another thread cannot wait for this thread's default stream.
  if (on == no_lane || lanes_.kind(on) == lane_kind::per_thread) return;
  world_.log("create a unified buffer on " + lanes_.text(on));
  const stream_ref stream = lanes_.ref(on);
  auto made = faults_.call("unified_buffer::zeroed", [&] {
    return unified_buffer<std::uint64_t>::zeroed(64 * 1024, stream);
  });
  if (!faults_.accept(made, "unified_buffer::zeroed", {errc::out_of_memory})) return;
  buffers_.push_back({*std::move(made), device, on, 0});
}

/// A kernel writes one value all over the buffer, always on the same stream.
void unified_memory::write(held& buffer) {
  if (!lanes_.is_usable(buffer.on)) return;
  const stream_ref stream = lanes_.ref(buffer.on);
  world_.log("write a unified buffer on " + lanes_.text(buffer.on));
  const auto elements = faults_.call("use_on", [&] { return buffer.memory.use_on(stream); });
  if (!faults_.accept(elements, "use_on")) return;
  buffer.value = ++values_;
  std::uint64_t* const data = elements->data();
  const std::size_t count = elements->size();
  const context_scope bound{stream.device()};
  world_.expect_ok(
      world_.machine().launch(
          stream.handle(), "write unified",
          {sim::writes(reinterpret_cast<driver::CUdeviceptr>(data), count * sizeof *data)},
          [data, count, value = buffer.value] { data[0] = data[count - 1] = value; }),
      "launch");
  static_cast<void>(lanes_.queue(buffer.on));
}

void unified_memory::view(held& buffer) {
  world_.log("view a unified buffer");
  const auto seen = faults_.call("view", [&] { return buffer.memory.view(); });
  const bool captured = lanes_.is_captured(buffer.on);
  if (!seen && seen.code() == errc::capture_forbidden && captured) return;
  const bool legacy_blocked =
      lanes_.kind(buffer.on) == lane_kind::legacy && lanes_.blocks_legacy(buffer.device);
  if (!seen && seen.code() == errc::capture_forbidden && legacy_blocked) return;
  if (!faults_.accept(seen, "view")) return;
  world_.machine().host_read(seen->data(), seen->size() * sizeof(std::uint64_t));
  if ((*seen)[0] != buffer.value || (*seen)[seen->size() - 1] != buffer.value)
    world_.fail("a unified buffer has wrong contents");
}

void unified_memory::use_vector(heap_supplier& heap) {
  const lane_index on = lanes_.any(heap.device());
  if (on == no_lane || heap.away) return;
  world_.log("use a device_vector of " + heap.name() + " on " + lanes_.text(on));
  const stream_ref stream = lanes_.ref(on);
  any_resource resource{heap.memory()};
  auto made = faults_.call("device_vector::zeroed", [&] {
    return device_vector<std::uint32_t>::zeroed(std::move(resource), 100'000, stream);
  });
  if (!faults_.accept(made, "device_vector::zeroed", {errc::out_of_memory})) return;
  const auto filled = faults_.call("fill", [&] { return made->fill(7); });
  static_cast<void>(faults_.accept(filled, "fill"));
  const auto resized = faults_.call("resize", [&] { return made->resize(300'000); });
  static_cast<void>(faults_.accept(resized, "resize", {errc::out_of_memory}));
  static_cast<void>(lanes_.queue(on));
}

}  // namespace weir::programs_test
