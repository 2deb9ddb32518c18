// The counters: one lock, a stack of sections.
#include "weir/resource/statistics_resource.hpp"

#include <algorithm>
#include <mutex>
#include <vector>

#include "resources/adaptor.hpp"
#include "resources/live_table.hpp"

namespace weir::inline v0 {
namespace {

void add(running_count& to, std::int64_t amount) {
  to.current += amount;
  to.total += amount;
  to.peak = std::max(to.peak, to.current);
}

/// What happened in a section, seen from the one around it.
void add_section(running_count& to, const running_count& section) {
  to.peak = std::max(to.peak, to.current + section.peak);
  to.current += section.current;
  to.total += section.total;
}

}  // namespace

struct statistics_resource::state {
  struct record {
    bytes size{};
  };

  explicit state(any_resource under) : upstream{std::move(under)} {}

  void allocated(bytes size) {
    const std::lock_guard lock{mutex};
    add(sections.back().bytes, static_cast<std::int64_t>(size.count()));
    add(sections.back().allocations, 1);
  }
  void freed(bytes size) {
    const std::lock_guard lock{mutex};
    sections.back().bytes.current -= static_cast<std::int64_t>(size.count());
    --sections.back().allocations.current;
  }

  const any_resource upstream;
  resources::live_table<record> live;
  std::mutex mutex;
  std::vector<resource_statistics> sections{1};
};

result<statistics_resource> statistics_resource::create(any_resource upstream) {
  WEIR_TRY(resources::check_upstream(upstream));
  return statistics_resource{std::make_shared<state>(std::move(upstream))};
}

result<void*> statistics_resource::try_allocate(bytes size, const stream_ref& stream,
                                                bytes alignment) {
  state& my = *inside_;
  auto made = my.upstream.try_allocate(size, stream, alignment);
  if (!made || *made == nullptr) return made;
  if (auto entered = my.live.put(*made, {size}); !entered) {
    my.upstream.deallocate(*made, size, stream);
    return std::move(entered).error();
  }
  my.allocated(size);
  return made;
}

result<void> statistics_resource::try_deallocate(void* pointer, bytes size,
                                                 const stream_ref& stream) {
  state& my = *inside_;
  return resources::give_back(my.live, pointer, size,
                              [&](const state::record& what) -> result<void> {
                                WEIR_TRY(my.upstream.try_deallocate(pointer, what.size, stream));
                                my.freed(what.size);
                                return {};
                              });
}

resource_statistics statistics_resource::counters() const {
  const std::lock_guard lock{inside_->mutex};
  return inside_->sections.back();
}

resource_statistics statistics_resource::push() {
  const std::lock_guard lock{inside_->mutex};
  const resource_statistics around = inside_->sections.back();
  inside_->sections.emplace_back();
  return around;
}

result<resource_statistics> statistics_resource::pop() {
  const std::lock_guard lock{inside_->mutex};
  auto& sections = inside_->sections;
  if (sections.size() == 1)
    return error{.code = errc::invalid_argument, .detail = "no section was pushed"};
  const resource_statistics section = sections.back();
  sections.pop_back();
  add_section(sections.back().bytes, section.bytes);
  add_section(sections.back().allocations, section.allocations);
  return section;
}

any_resource statistics_resource::upstream() const { return inside_->upstream; }
weir::device statistics_resource::device() const { return inside_->upstream.device(); }
memory_kind statistics_resource::kind() const noexcept { return inside_->upstream.kind(); }

}  // namespace weir::inline v0
