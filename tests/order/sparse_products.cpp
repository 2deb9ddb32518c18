// SPDX-License-Identifier: Apache-2.0
// The kernels of a sparse product, and the memory between them.
#include "sparse_products.hpp"

#include <algorithm>
#include <string>
#include <thread>

#include "heap/central_heap.hpp"
#include "support/sizes.hpp"

namespace weir::order_test {
namespace {

using testing_support::kib;
using testing_support::mib;
constexpr std::uint64_t context_size = 32 * mib;

/// A token in every 64 KiB: enough to notice a stranger.
constexpr std::size_t stride = 64 * kib / sizeof(std::uint64_t);

constexpr std::size_t words(const tensor_view& view) { return view.size / sizeof(std::uint64_t); }

sim::machine_options choose_card(rng& random, std::uint64_t seed, std::uint64_t capacity) {
  sim::machine_options chosen;
  chosen.seed = seed;
  chosen.mode = random.one_in(2) ? sim::progress::manual : sim::progress::seeded;
  chosen.devices.front().capacity = bytes{capacity};
  chosen.devices.front().context_overhead = bytes{context_size};
  return chosen;
}

}  // namespace

// --- The fixture ---------------------------------------------------------------------------------

stress_fixture::stress_fixture(std::uint64_t seed, std::size_t threads)
    : capacity_{threads * 100 * mib + context_size} {
  rng random{seed};
  machine_ = sim::machine::create(choose_card(random, seed, capacity_)).value();
  machine_->on_hazard([failure = failure_](const sim::hazard& hazard) {
    failure->report("hazard: " + hazard.message());
  });
  runtime_ = runtime::open_simulated(machine_).value();
  gpu_ = runtime_->device(device_id{0}).value();
  using enum placement_policy;
  allocator_options settings;
  settings.policy =
      random.any_of({balanced, balanced, compact, throughput, classic, classic_expandable});
  memory_ = caching_allocator::create(*gpu_, settings).value();
}

void stress_fixture::free(void* block) {
  if (frees_.fetch_add(1, std::memory_order_relaxed) % 3 != 0) {
    memory_->deallocate(block);
    return;
  }
  const std::lock_guard lock{mutex_};
  deferred_frees_.push_back(block);
}

void stress_fixture::free_deferred() {
  std::vector<void*> blocks;
  {
    const std::lock_guard lock{mutex_};
    blocks.swap(deferred_frees_);
  }
  for (void* const each : blocks) memory_->deallocate(each);
}

void stress_fixture::check_end() {
  machine_->clear_faults();
  machine_->set_capacity(device_id{0}, bytes{capacity_});
  machine_->run_until_idle();
  free_deferred();
  if (failure_->occurred()) return;
  const std::string violation = heap::central_heap::of(*memory_).inspection().check();
  if (!violation.empty()) failure_->report(violation);
  if (const auto emptied = memory_->empty_cache(); !emptied)
    failure_->report("empty_cache: " + emptied.error().message());
  if (memory_->stats().reserved.current != bytes{})
    failure_->report("all is freed, but memory stays reserved");
}

// --- Tensors -------------------------------------------------------------------------------------

sim::access tensor_view::read() const {
  return sim::reads(reinterpret_cast<device_address>(data), size);
}

sim::access tensor_view::written() const {
  return sim::writes(reinterpret_cast<device_address>(data), size);
}

void tensor_view::put(std::uint64_t token) const {
  for (std::size_t at = 0; at < words(*this); at += stride) data[at] = token;
  data[words(*this) - 1] = token;
}

bool tensor_view::has(std::uint64_t token) const {
  for (std::size_t at = 0; at < words(*this); at += stride)
    if (data[at] != token) return false;
  return data[words(*this) - 1] == token;
}

// --- Products ------------------------------------------------------------------------------------

tensor multiplier::take(std::uint64_t size) {
  constexpr int most_attempts = 50;
  for (int attempts = 0; attempts < most_attempts && !fixture_.failure()->occurred(); ++attempts) {
    const auto allocation = fixture_.memory().try_allocate(bytes{size}, on_);
    if (allocation) return {fixture_, {static_cast<std::uint64_t*>(*allocation), size}};
    if (allocation.code() != errc::out_of_memory)
      fixture_.failure()->report("allocate: " + allocation.error().message());
    ++counts_.shortages;
    std::this_thread::yield();
  }
  throw out_of_attempts{};
}

void multiplier::launch(const char* name, std::vector<sim::access> touched,
                        std::function<bool()> inputs_are_right) {
  auto body = [failure = fixture_.failure(), run = std::move(inputs_are_right), name] {
    if (failure->occurred()) return;  // the memory may be gone
    if (!run()) failure->report(std::string{"wrong input: "} + name);
  };
  const context_scope bound{fixture_.gpu()};
  const auto queued =
      fixture_.machine().launch(on_.handle(), name, std::move(touched), std::move(body),
                                sim::duration{5'000 + random_.below(200'000)});
  if (!queued) fixture_.failure()->report("launch: " + queued.error().message());
}

void multiplier::fill(const tensor_view& tensor, std::uint64_t token) {
  launch("fill", {tensor.written()}, [=] {
    tensor.put(token);
    return true;
  });
}

void multiplier::verify(const tensor_view& tensor, std::uint64_t token) {
  launch("verify", {tensor.read()}, [=] { return tensor.has(token); });
}

void multiplier::synchronize() {
  const auto done = on_.synchronize();
  if (!done) fixture_.failure()->report("synchronize: " + done.error().message());
}

tensor multiplier::multiply(const tensor_view& weight, const tensor_view& in,
                            std::uint64_t in_token, std::uint64_t out_token) {
  token_ += 16;
  const std::uint64_t token = token_;
  const coalesced from = coalesce(weight, token);
  const tensor rows = take(4 * mib);
  const tensor columns = take(4 * mib);
  const tensor offsets = take(4 * kib + 4);
  launch("to csr",
         {from.indices.view().read(), rows.view().written(), columns.view().written(),
          offsets.view().written()},
         [indices = from.indices.view(), row = rows.view(), column = columns.view(),
          offset = offsets.view(), token] {
           row.put(token + 7);
           column.put(token + 8);
           offset.put(token + 9);
           return indices.has(token + 6);
         });
  tensor out = take(matrix_size);
  const tensor scratch = take(512 + random_.below(20 * kib));
  launch("multiply",
         {offsets.view().read(), columns.view().read(), from.values.view().read(), in.read(),
          out.view().written(), scratch.view().written()},
         [offset = offsets.view(), column = columns.view(), values = from.values.view(), in,
          into = out.view(), token, in_token, out_token] {
           into.put(out_token);
           return offset.has(token + 9) && column.has(token + 8) && values.has(token + 5) &&
                  in.has(in_token);
         });
  ++counts_.products;
  return out;
}

multiplier::coalesced multiplier::coalesce(const tensor_view& weight, std::uint64_t token) {
  const tensor keys = take(8 * mib);
  const tensor origins = take(8 * mib);
  const tensor offsets = take(8 * mib);
  launch("flatten", {weight.read(), keys.view().written()}, [weight, into = keys.view(), token] {
    into.put(token);
    return weight.has(weight_token);
  });
  fill(origins.view(), token + 1);
  fill(offsets.view(), token + 2);
  run_with_scratch("sort", 16 * mib + 3 * kib, {{keys.view(), token}, {origins.view(), token + 1}},
                   token + 3);
  run_with_scratch("unique", 16 * kib + 388 + random_.below(4 * kib), {{offsets.view(), token + 2}},
                   token + 4);
  tensor values = take(4 * mib);
  launch("coalesce", {origins.view().read(), weight.read(), values.view().written()},
         [from = origins.view(), into = values.view(), token] {
           into.put(token + 5);
           return from.has(token + 1);
         });
  tensor indices = take(16 * mib);
  launch("unflatten", {keys.view().read(), indices.view().written()},
         [from = keys.view(), into = indices.view(), token] {
           into.put(token + 6);
           return from.has(token);
         });
  return {std::move(values), std::move(indices)};
}

/// As thrust works: two kernels, temporary memory between them that goes while they may still run,
/// and most times a wait for the stream.
void multiplier::run_with_scratch(const char* name, std::uint64_t size,
                                  const std::vector<input>& inputs, std::uint64_t token) {
  const tensor scratch = take(size);
  std::vector<sim::access> touched{scratch.view().written()};
  for (const input& each : inputs) touched.push_back(each.view.written());  // in place
  launch(name, touched, [inputs, into = scratch.view(), token] {
    into.put(token);
    return std::all_of(inputs.begin(), inputs.end(),
                       [](const input& each) { return each.view.has(each.token); });
  });
  verify(scratch.view(), token);
  if (!random_.one_in(4)) synchronize();
}

}  // namespace weir::order_test
