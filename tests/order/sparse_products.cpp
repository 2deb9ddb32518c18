// The kernels of a sparse product, and the memory between them.
#include "sparse_products.hpp"

#include <algorithm>
#include <string>
#include <thread>

#include "heap/allocator_state.hpp"

namespace weir::order_test {
namespace {

constexpr std::uint64_t kib = std::uint64_t{1} << 10;
constexpr std::uint64_t mib = std::uint64_t{1} << 20;
constexpr std::uint64_t overhead = 32 * mib;

/// A token in every 64 KiB: enough to notice a stranger.
constexpr std::size_t stride = 64 * kib / sizeof(std::uint64_t);

constexpr std::size_t words(const tensor_view& of) { return of.size / sizeof(std::uint64_t); }

sim::machine_options choose_machine(chance& random, std::uint64_t seed, std::uint64_t capacity) {
  sim::machine_options chosen;
  chosen.seed = seed;
  chosen.mode = random.one_in(2) ? sim::progress::manual : sim::progress::seeded;
  chosen.devices.front().capacity = bytes{capacity};
  chosen.devices.front().context_overhead = bytes{overhead};
  return chosen;
}

}  // namespace

// --- The scene -----------------------------------------------------------------------------------

scene::scene(std::uint64_t seed, std::size_t threads) : capacity_{threads * 100 * mib + overhead} {
  chance random{seed};
  machine_ = sim::machine::create(choose_machine(random, seed, capacity_)).value();
  machine_->on_hazard(
      [faults = faults_](const sim::hazard& found) { faults->report("hazard: " + found.story()); });
  runtime_ = runtime::open_simulated(machine_).value();
  gpu_ = runtime_->device(device_id{0}).value();
  using enum placement_policy;
  options settings;
  settings.heap_policy =
      random.any_of({balanced, balanced, compact, throughput, classic, classic_expandable});
  memory_ = caching_allocator::create(*gpu_, settings).value();
}

void scene::free(void* block) {
  if (frees_.fetch_add(1, std::memory_order_relaxed) % 3 != 0) {
    memory_->deallocate(block);
    return;
  }
  const std::lock_guard lock{mutex_};
  left_.push_back(block);
}

void scene::free_left() {
  std::vector<void*> all;
  {
    const std::lock_guard lock{mutex_};
    all.swap(left_);
  }
  for (void* const each : all) memory_->deallocate(each);
}

void scene::check_end() {
  machine_->clear_faults();
  machine_->set_capacity(device_id{0}, bytes{capacity_});
  machine_->run_until_idle();
  free_left();
  if (faults_->found()) return;
  const std::string wrong = heap::allocator_state::of(*memory_).check();
  if (!wrong.empty()) faults_->report(wrong);
  if (const auto emptied = memory_->empty_cache(); !emptied)
    faults_->report("empty_cache: " + emptied.error().message());
  if (memory_->stats().reserved.current != 0)
    faults_->report("all is freed, but memory stays reserved");
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
  for (int attempts = 0; attempts < most_attempts && !in_.faults()->found(); ++attempts) {
    const auto made = in_.memory().try_allocate(bytes{size}, on_);
    if (made) return {in_, {static_cast<std::uint64_t*>(*made), size}};
    if (made.code() != errc::out_of_memory)
      in_.faults()->report("allocate: " + made.error().message());
    ++all_.shortages;
    std::this_thread::yield();
  }
  throw no_room{};
}

void multiplier::launch(const char* name, std::vector<sim::access> touched,
                        std::function<bool()> inputs_are_right) {
  auto body = [faults = in_.faults(), run = std::move(inputs_are_right), name] {
    if (faults->found()) return;  // the memory may be gone
    if (!run()) faults->report(std::string{"wrong input: "} + name);
  };
  const context_scope bound{in_.gpu()};
  const auto queued = in_.machine().launch(on_.handle(), name, std::move(touched), std::move(body),
                                           sim::duration{5'000 + random_.below(200'000)});
  if (!queued) in_.faults()->report("launch: " + queued.error().message());
}

void multiplier::fill(const tensor_view& what, std::uint64_t token) {
  launch("fill", {what.written()}, [=] {
    what.put(token);
    return true;
  });
}

void multiplier::look_at(const tensor_view& what, std::uint64_t token) {
  launch("look", {what.read()}, [=] { return what.has(token); });
}

void multiplier::synchronize() {
  const auto done = on_.synchronize();
  if (!done) in_.faults()->report("synchronize: " + done.error().message());
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
         {from.indices.where().read(), rows.where().written(), columns.where().written(),
          offsets.where().written()},
         [indices = from.indices.where(), row = rows.where(), column = columns.where(),
          offset = offsets.where(), token] {
           row.put(token + 7);
           column.put(token + 8);
           offset.put(token + 9);
           return indices.has(token + 6);
         });
  tensor out = take(matrix_size);
  const tensor scratch = take(512 + random_.below(20 * kib));
  launch("multiply",
         {offsets.where().read(), columns.where().read(), from.values.where().read(), in.read(),
          out.where().written(), scratch.where().written()},
         [offset = offsets.where(), column = columns.where(), values = from.values.where(), in,
          into = out.where(), token, in_token, out_token] {
           into.put(out_token);
           return offset.has(token + 9) && column.has(token + 8) && values.has(token + 5) &&
                  in.has(in_token);
         });
  ++all_.products;
  return out;
}

multiplier::coalesced multiplier::coalesce(const tensor_view& weight, std::uint64_t token) {
  const tensor keys = take(8 * mib);
  const tensor origins = take(8 * mib);
  const tensor offsets = take(8 * mib);
  launch("flatten", {weight.read(), keys.where().written()}, [weight, into = keys.where(), token] {
    into.put(token);
    return weight.has(weight_token);
  });
  fill(origins.where(), token + 1);
  fill(offsets.where(), token + 2);
  run_with_scratch("sort", 16 * mib + 3 * kib,
                   {{keys.where(), token}, {origins.where(), token + 1}}, token + 3);
  run_with_scratch("unique", 16 * kib + 388 + random_.below(4 * kib),
                   {{offsets.where(), token + 2}}, token + 4);
  tensor values = take(4 * mib);
  launch("coalesce", {origins.where().read(), weight.read(), values.where().written()},
         [from = origins.where(), into = values.where(), token] {
           into.put(token + 5);
           return from.has(token + 1);
         });
  tensor indices = take(16 * mib);
  launch("unflatten", {keys.where().read(), indices.where().written()},
         [from = keys.where(), into = indices.where(), token] {
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
  std::vector<sim::access> touched{scratch.where().written()};
  for (const input& each : inputs) touched.push_back(each.what.written());  // in place
  launch(name, touched, [inputs, into = scratch.where(), token] {
    into.put(token);
    return std::all_of(inputs.begin(), inputs.end(),
                       [](const input& each) { return each.what.has(each.token); });
  });
  look_at(scratch.where(), token);
  if (!random_.one_in(4)) synchronize();
}

}  // namespace weir::order_test
