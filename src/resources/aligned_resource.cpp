// Aligning: by the upstream if it can, by padding if it cannot.
#include "weir/resource/aligned_resource.hpp"

#include <algorithm>

#include "resources/adaptor.hpp"
#include "resources/live_table.hpp"
#include "weir/base/checked.hpp"

namespace weir::inline v0 {
namespace {

/// What every resource can do.
constexpr bytes common_alignment{256};

}  // namespace

struct aligned_resource::state {
  /// What was asked for here, and what the upstream handed out for it.
  struct record {
    bytes size{};
    void* origin = nullptr;
    bytes origin_size{};
  };

  state(any_resource under, bytes least) : upstream{std::move(under)}, alignment{least} {}

  /// Through the upstream's own alignment, or padded.
  [[nodiscard]] result<record> find(bytes size, const stream_ref& stream, bytes wanted) const {
    auto straight = upstream.try_allocate(size, stream, wanted);
    if (straight) return record{size, *straight, size};
    if (straight.code() != errc::bad_alignment || wanted <= common_alignment)
      return std::move(straight).error();
    const auto padded = checked_add(size, wanted - common_alignment);
    if (!padded) return error{.code = errc::size_overflow, .requested = size};
    WEIR_TRY_VALUE(origin, upstream.try_allocate(*padded, stream, common_alignment));
    return record{size, origin, *padded};
  }

  const any_resource upstream;
  const bytes alignment;
  resources::live_table<record> live;
};

result<aligned_resource> aligned_resource::create(any_resource upstream, bytes alignment) {
  WEIR_TRY(resources::check_upstream(upstream));
  if (!is_power_of_two(alignment.count())) return errc::bad_alignment;
  return aligned_resource{std::make_shared<state>(std::move(upstream), alignment)};
}

result<void*> aligned_resource::try_allocate(bytes size, const stream_ref& stream,
                                             bytes alignment) {
  state& my = *inside_;
  if (!is_power_of_two(alignment.count())) return errc::bad_alignment;
  if (size == bytes{}) return my.upstream.try_allocate(size, stream, common_alignment);
  const bytes wanted = std::max(alignment, my.alignment);
  WEIR_TRY_VALUE(found, my.find(size, stream, wanted));
  const auto base = reinterpret_cast<std::uintptr_t>(found.origin);
  const std::uint64_t skipped = (wanted.count() - base % wanted.count()) % wanted.count();
  void* const pointer = static_cast<char*>(found.origin) + skipped;
  if (auto entered = my.live.put(pointer, found); !entered) {
    my.upstream.deallocate(found.origin, found.origin_size, stream);
    return std::move(entered).error();
  }
  return pointer;
}

result<void> aligned_resource::try_deallocate(void* pointer, bytes size, const stream_ref& stream) {
  state& my = *inside_;
  return resources::give_back(my.live, pointer, size, [&](const state::record& what) {
    return my.upstream.try_deallocate(what.origin, what.origin_size, stream);
  });
}

bytes aligned_resource::alignment() const noexcept { return inside_->alignment; }
any_resource aligned_resource::upstream() const { return inside_->upstream; }
weir::device aligned_resource::device() const { return inside_->upstream.device(); }
memory_kind aligned_resource::kind() const noexcept { return inside_->upstream.kind(); }

}  // namespace weir::inline v0
