// SPDX-License-Identifier: Apache-2.0
// Many copies in one driver call.
#include <algorithm>
#include <new>
#include <string>
#include <vector>

#include "base/host_memory.hpp"
#include "buffers/interval.hpp"
#include "pools/queueable.hpp"
#include "weir/buffer/copy.hpp"

namespace weir { inline namespace v0 {

using buffers::address_of;
using buffers::interval;
using buffers::interval_of;
using driver::call;
using driver::check;

namespace {

/// The items that copy something, in the driver's form.
struct batch {
  std::vector<driver::CUdeviceptr> to;
  std::vector<driver::CUdeviceptr> from;
  std::vector<std::size_t> sizes;
  std::vector<std::size_t> items;  ///< the index of each in the caller's items
};

error about_item(error reason, std::size_t item) {
  reason.set_detail("item " + std::to_string(item) +
                    (reason.detail().empty() ? std::string{} : ": " + reason.detail()));
  return reason;
}

/// Items happen in any order: no destination may be touched by another item.
result<void> check_apart(std::vector<interval> targets, std::vector<interval> sources) {
  const auto by_address = [](const interval& a, const interval& b) { return a.first < b.first; };
  std::sort(targets.begin(), targets.end(), by_address);
  const auto overlap = [](const interval& a, const interval& b) { return a.overlaps(b); };
  if (std::adjacent_find(targets.begin(), targets.end(), overlap) != targets.end()) {
    return error{
        {.code = errc::invalid_argument, .detail = "two destinations of the batch overlap"}};
  }
  // Targets are apart, so their ends are in order, too: the first that ends behind a source's
  // beginning is the only one that can meet it first.
  for (const interval& source : sources) {
    const auto next = std::upper_bound(
        targets.begin(), targets.end(), source.first,
        [](std::uint64_t first, const interval& each) { return first < each.end; });
    if (next != targets.end() && next->overlaps(source)) return buffers::overlap_error({});
  }
  return {};
}

result<batch> prepare(std::span<const copy_item> items) {
  batch copies;
  std::vector<interval> targets;
  std::vector<interval> sources;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const copy_item& item = items[i];
    if (item.size == bytes{}) continue;
    auto target = interval_of(item.to, item.size);
    if (!target) return about_item(std::move(target).error(), i);
    auto source = interval_of(item.from, item.size);
    if (!source) return about_item(std::move(source).error(), i);
    targets.push_back(*target);
    sources.push_back(*source);
    copies.to.push_back(target->first);
    copies.from.push_back(source->first);
    copies.sizes.push_back(item.size.count());
    copies.items.push_back(i);
  }
  WEIR_TRY(check_apart(std::move(targets), std::move(sources)));
  return copies;
}

result<void> queue_batch(const context_scope& bound, batch& copies, driver::CUstream stream) {
  driver::CUmemcpyAttributes attributes{};
  attributes.srcAccessOrder = driver::CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  std::size_t first = 0;
  std::size_t failed = ~std::size_t{0};
  auto queued = check(call::memcpy_batch_async,
                      bound.driver().memcpy_batch_async(copies.to.data(), copies.from.data(),
                                                        copies.sizes.data(), copies.sizes.size(),
                                                        &attributes, &first, 1, &failed, stream));
  if (queued || failed >= copies.items.size()) return queued;
  return about_item(std::move(queued).error(), copies.items[failed]);
}

result<void> queue_each(const context_scope& bound, const batch& copies, driver::CUstream stream) {
  for (std::size_t i = 0; i < copies.sizes.size(); ++i) {
    auto queued =
        check(call::memcpy_async,
              bound.driver().memcpy_async(copies.to[i], copies.from[i], copies.sizes[i], stream),
              bytes{copies.sizes[i]});
    if (!queued) return about_item(std::move(queued).error(), copies.items[i]);
  }
  return {};
}

}  // namespace

result<void> copy_batch(std::span<const copy_item> items, const stream_ref& stream) try {
  WEIR_TRY_VALUE(copies, prepare(items));
  if (copies.sizes.empty()) return {};
  const context_scope bound{stream.device()};
  WEIR_TRY(pools::check_queueable(stream, bound));
  if (bound.driver().memcpy_batch_async != nullptr && !stream.is_legacy()) {
    WEIR_TRY_VALUE(captured, stream.is_capturing(bound));
    if (!captured) return queue_batch(bound, copies, stream.handle());
  }
  return queue_each(bound, copies, stream.handle());
} catch (const std::bad_alloc&) {
  return detail::no_host_memory();
}

}}  // namespace weir::v0
