// SPDX-License-Identifier: Apache-2.0
// Holds, and the user objects that tell when a graph is gone.
#include "growable/holds.hpp"

#include <algorithm>

namespace weir { inline namespace v0 { namespace growable {
namespace {

constexpr unsigned no_destructor_sync = 1;  // CU_USER_OBJECT_NO_DESTRUCTOR_SYNC, the only flag
constexpr unsigned move_reference = 1;      // CU_GRAPH_USER_OBJECT_MOVE

/// Runs on a thread of the driver.
void graph_ended(void* pointer) {
  const std::unique_ptr<std::shared_ptr<hold_record>> record{
      static_cast<std::shared_ptr<hold_record>*>(pointer)};
  (*record)->ended.store(true, std::memory_order_release);
}

}  // namespace

std::shared_ptr<hold_record> holds::add(page_table& pages) {
  auto record = std::make_shared<hold_record>();
  record->pages.reserve(pages.count_of(page_state::committed));
  for (page_number page = 0; page < pages.committed_end(); ++page)
    if (pages[page] == page_state::committed) record->pages.push_back(page);
  all_.push_back(record);
  for (const page_number page : record->pages) pages.add_hold(page);
  return record;
}

std::vector<page_number> holds::sweep(page_table& pages) {
  std::vector<page_number> left;
  std::size_t room = 0;
  const auto has_ended = [](const auto& each) {
    return each->ended.load(std::memory_order_acquire);
  };
  std::vector<std::shared_ptr<hold_record>> ended;
  for (const auto& each : all_) {
    if (!has_ended(each)) continue;
    ended.push_back(each);
    room += each->pages.size();
  }
  left.reserve(room);
  // From here on nothing is thrown.
  for (const auto& each : ended) {
    for (const page_number page : each->pages) {
      pages.drop_hold(page);
      if (pages.holds(page) == 0 && pages[page] == page_state::held) left.push_back(page);
    }
    std::erase(all_, each);
  }
  return left;
}

result<void> tie_record(const std::shared_ptr<hold_record>& record, driver::CUgraph graph,
                        const context_scope& bound) {
  if (!bound) return bound.error();
  const auto& calls = bound.driver();
  if (calls.user_object_create == nullptr || calls.graph_retain_user_object == nullptr ||
      calls.user_object_release == nullptr) {
    return error{{.code = errc::not_supported,
                  .detail = "graph user objects need CUDA 11.3 or later; use hold()"}};
  }
  auto kept = std::make_unique<std::shared_ptr<hold_record>>(record);
  driver::CUuserObject object = nullptr;
  WEIR_TRY(driver::check(
      driver::call::user_object_create,
      calls.user_object_create(&object, kept.get(), &graph_ended, 1, no_destructor_sync)));
  static_cast<void>(kept.release());  // the driver's from now on
  auto retained = driver::check(driver::call::graph_retain_user_object,
                                calls.graph_retain_user_object(graph, object, 1, move_reference));
  // The last reference goes, and with it the driver calls graph_ended().
  if (!retained) static_cast<void>(calls.user_object_release(object, 1));
  return retained;
}

}}}  // namespace weir::v0::growable
