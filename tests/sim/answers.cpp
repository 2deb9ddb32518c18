#include "sim/answers.hpp"

#include <algorithm>
#include <bit>
#include <cctype>
#include <sstream>
#include <utility>

namespace weir::sim_tests::answers {

namespace {

std::uint64_t seed_of(const std::string& name) {
  testing_support::digest seed;
  seed.add(name);
  return seed.value();
}

/// A hazard's message without the addresses in it.
std::string without_addresses(const std::string& message) {
  std::string kept;
  for (std::size_t i = 0; i < message.size(); ++i) {
    if (message.compare(i, 2, "0x") != 0) {
      kept += message[i];
      continue;
    }
    i += 2;
    while (i < message.size() && std::isxdigit(static_cast<unsigned char>(message[i])) != 0) ++i;
    --i;
  }
  return kept;
}

}  // namespace

program::program(setting chosen) : dice{seed_of(chosen.name)}, setting_{std::move(chosen)} {}

program::~program() { stop(); }

void program::stop() {
  if (!machine) return;
  machine->on_hazard({});
  // Queues that wait for each other keep each other alive. Of a lost device nothing is waited for.
  for (int each = 0; each < 2; ++each) machine->lose_device(device_id{each});
  for (int each = 0; each < 2; ++each) cuda->device_primary_ctx_release(each);
  machine.reset();
}

void program::add(std::uint64_t weight, std::function<void()> kind) {
  kinds_.push_back({weight, std::move(kind)});
  weights_ += weight;
}

void program::start() {
  broken_ = false;
  places_.clear();
  handles_.clear();
  streams.clear();
  events.clear();
  host.fill(0);
  stop();
  called = 0;
  sim::device_spec spec;
  spec.capacity = bytes{setting_.capacity};
  spec.context_overhead = bytes{8 * mib};
  sim::machine_options options{.devices = {spec, spec}, .mode = setting_.mode, .lag = setting_.lag};
  options.devices[1].name = "the other one";
  options.devices[1].concurrent_managed_access = setting_.shares_pages;
  machine = sim::machine::create(options).value();
  cuda = &machine->driver();
  machine->on_hazard([this](const sim::hazard& found) { hear(found); });
  said("init", cuda->init(0));
  for (int each = 0; each < 2; ++each) {
    said("retain",
         cuda->device_primary_ctx_retain(&contexts[static_cast<std::size_t>(each)], each));
  }
  device = 0;
  said("set current", cuda->ctx_set_current(contexts[0]));
  prepare();
}

std::vector<std::string> program::play() {
  std::vector<std::string> lines;
  stories_.assign(1, "");
  start();
  for (std::uint64_t number = 1; number <= setting_.steps; ++number) {
    stories_.back() += "\n" + std::to_string(number) + ":";
    std::uint64_t choice = dice.below(weights_);
    for (const kind& each : kinds_) {
      if (choice < each.weight) {
        each.play();
        break;
      }
      choice -= each.weight;
    }
    look();
    if (broken_) start();
    if (number % stretch_length != 0) continue;
    look_closely();
    std::ostringstream line;
    line << setting_.name << " " << number << " " << std::hex << digest_.value();
    lines.push_back(line.str());
    stories_.emplace_back();
  }
  return lines;
}

// --- Answers -------------------------------------------------------------------------------------

bool program::said(std::string_view call, CUresult answer) {
  digest_.add(static_cast<std::uint64_t>(answer));
  stories_.back() += "\n  ";
  stories_.back() += call;
  stories_.back() += " -> " + std::to_string(static_cast<int>(answer));
  if (answer == CUDA_ERROR_ILLEGAL_ADDRESS || answer == CUDA_ERROR_LAUNCH_FAILED) broken_ = true;
  return answer == CUDA_SUCCESS;
}

void program::note(std::uint64_t value) {
  digest_.add(value);
  std::ostringstream out;
  out << " " << std::hex << value;
  stories_.back() += out.str();
}

void program::text(std::string_view told) {
  digest_.add(told);
  stories_.back() += " \"";
  stories_.back() += told;
  stories_.back() += "\"";
}

void program::contents(CUdeviceptr at, std::uint64_t size) {
  std::vector<unsigned char> bytes(size, 0xee);
  if (!said("read", cuda->memcpy_dtoh(bytes.data(), at, size))) return;
  testing_support::digest read;
  for (const unsigned char each : bytes) read.add(each);
  note(read.value());
}

void program::ask_attribute(CUpointer_attribute attribute, CUdeviceptr address) {
  std::array<std::uint64_t, 2> value{untouched, untouched};
  said("attribute", cuda->pointer_get_attribute(value.data(), attribute, address));
  attribute_value(attribute, value[0]);
}

void program::attribute_value(CUpointer_attribute attribute, std::uint64_t value) {
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      return values(known(value));
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
      return values(place(value));
    default:
      return values(value);
  }
}

std::uint64_t program::place(CUdeviceptr address) const {
  if (address == 0 || address == untouched) return address;
  const auto next = places_.upper_bound(address);
  if (next == places_.begin()) return ~std::uint64_t{0};
  const auto& [base, found] = *std::prev(next);
  if (address - base >= found.size) return ~std::uint64_t{0};
  return found.number << 40 | (address - base);
}

std::uint64_t program::known_number(std::uint64_t handle) {
  if (handle == 0 || handle == untouched) return handle;
  return handles_.emplace(handle, handles_.size() + 1).first->second;
}

void program::appear(CUdeviceptr at, std::uint64_t size, std::uint64_t chunk) {
  if (place(at) != ~std::uint64_t{0}) {  // small memory, in a chunk that is known
    ++std::prev(places_.upper_bound(at))->second.users;
    return;
  }
  const CUdeviceptr from = at / chunk * chunk;
  places_[from] = {(at + size + chunk - 1) / chunk * chunk - from, next_place_++, 1};
}

void program::vanish(CUdeviceptr at) {
  if (place(at) == ~std::uint64_t{0}) return;
  const auto found = std::prev(places_.upper_bound(at));
  if (--found->second.users == 0) places_.erase(found);
}

void program::hear(const sim::hazard& found) {
  stories_.back() += "\n  hazard";
  text(without_addresses(found.message()));
  values(static_cast<int>(found.kind), place(found.shared.address), found.shared.size);
  for (const sim::party* side : {&found.first, &found.second}) {
    text(side->label);
    values(side->stream.number(), side->order, side->extent.size, side->writes,
           side->queued.count());
  }
}

void program::look() {
  stories_.back() += "\n  machine";
  values(machine->now().count(), machine->driver_time().count(), machine->calls());
  for (int each = 0; each < 2; ++each) values(machine->used(device_id{each}).count());
}

void program::look_closely() {
  values(machine->hazards().size());
  machine->clear_hazards();
  for (std::size_t i = 0; i < driver::call_count; ++i) {
    const auto call = static_cast<driver::call>(i);
    values(machine->calls(call), machine->driver_time(call).count());
  }
  for (int each = 0; each < 2; ++each) {
    text(to_string(machine->migrations(device_id{each})));
  }
}

// --- Choices -------------------------------------------------------------------------------------

CUstream program::any_stream() {
  switch (dice.below(16)) {
    case 0:
      return nullptr;
    case 1:
      return dice.one_in(4) ? legacy_stream() : per_thread_stream();
    case 2:
      if (dice.one_in(4)) return reinterpret_cast<CUstream>(std::uintptr_t{0x77});
      [[fallthrough]];
    default:
      return streams.empty() ? nullptr : any(streams);
  }
}

piece program::any_part(const piece& of, std::uint64_t most) {
  const std::uint64_t from = dice.one_in(3) ? 0 : dice.below(of.size);
  std::uint64_t size = dice.magnitude(std::min(most, of.size - from));
  if (dice.one_in(5)) size = std::min(most, of.size - from);
  const bool beyond = reaches_beyond && (of.at + of.size) % unit != 0 && dice.one_in(40);
  return {of.at + from, beyond ? of.size - from + 1 : size, of.device};
}

// --- Steps that many programs have ---------------------------------------------------------------

void program::make_stream() {
  if (streams.size() >= 6) return destroy_stream();
  auto made = reinterpret_cast<CUstream>(untouched);
  const unsigned flags = wrong() ? 2 : static_cast<unsigned>(dice.below(2));
  const int priority = static_cast<int>(dice.below(10)) - 7;
  if (said("stream_create", cuda->stream_create_with_priority(&made, flags, priority))) {
    streams.push_back(made);
    int found = 99;
    said("priority", cuda->stream_get_priority(made, &found));
    values(found);
  }
  values(known(made));
}

void program::destroy_stream() {
  if (streams.empty() || wrong()) {
    said("stream_destroy", cuda->stream_destroy(dice.any_of({CUstream{}, legacy_stream()})));
    return;
  }
  const CUstream gone = take(streams);
  said("stream_destroy", cuda->stream_destroy(gone));
  if (wrong()) said("again", cuda->stream_destroy(gone));
}

void program::make_event() {
  if (events.size() >= 8) {
    const CUevent gone = take(events);
    said("event_destroy", cuda->event_destroy(gone));
    if (wrong()) said("again", cuda->event_destroy(gone));
    return;
  }
  auto made = reinterpret_cast<CUevent>(untouched);
  const unsigned flags = wrong() ? dice.any_of({4U, 8U}) : static_cast<unsigned>(dice.below(4));
  if (said("event_create", cuda->event_create(&made, flags))) events.push_back(made);
  values(known(made));
}

void program::record() {
  const CUevent event = events.empty() || dice.one_in(20) ? nullptr : any(events);
  const unsigned flags = wrong() ? static_cast<unsigned>(dice.below(3)) : 0;
  said("event_record", cuda->event_record_with_flags(event, any_stream(), flags));
}

void program::wait() {
  const CUevent event = events.empty() || dice.one_in(20) ? nullptr : any(events);
  const unsigned flags = wrong() ? static_cast<unsigned>(dice.below(3)) : 0;
  said("stream_wait_event", cuda->stream_wait_event(any_stream(), event, flags));
}

void program::ask() {
  if (dice.one_in(2) || events.empty()) {
    said("stream_query", cuda->stream_query(any_stream()));
    return;
  }
  said("event_query", cuda->event_query(any(events)));
  float between = -1;
  const CUevent from = any(events);
  said("elapsed", cuda->event_elapsed_time(&between, from, any(events)));
  values(std::bit_cast<std::uint32_t>(between));
}

void program::synchronize() {
  switch (dice.below(3)) {
    case 0:
      said("stream_synchronize", cuda->stream_synchronize(any_stream()));
      return;
    case 1:
      said("event_synchronize", cuda->event_synchronize(events.empty() ? nullptr : any(events)));
      return;
    default:
      said("ctx_synchronize", cuda->ctx_synchronize());
  }
}

void program::switch_device() {
  device = static_cast<int>(dice.below(2));
  said("ctx_set_current", cuda->ctx_set_current(contexts[static_cast<std::size_t>(device)]));
  int found = 99;
  said("ctx_get_device", cuda->ctx_get_device(&found));
  values(found);
}

void program::pass_time() {
  switch (dice.below(4)) {
    case 0:
      machine->advance(sim::duration{static_cast<std::int64_t>(dice.magnitude(100'000))});
      return;
    case 1:
      machine->run_until_idle();
      return;
    case 2:
      machine->set_time(machine->now() + sim::duration{static_cast<std::int64_t>(dice.below(900))});
      return;
    default:
      values(machine->step());
  }
}

void program::work(std::vector<piece>& pieces) {
  std::vector<sim::access> accesses;
  for (std::uint64_t count = pieces.empty() ? 0 : dice.below(3) + 1; count > 0; --count) {
    const piece part = any_part(any(pieces));
    accesses.push_back({{part.at, part.size}, dice.one_in(2)});
  }
  const auto takes = sim::duration{static_cast<std::int64_t>(dice.magnitude(40'000))};
  const auto queued = machine->launch(any_stream(), "work", accesses, {}, takes);
  said("work", queued ? CUDA_SUCCESS : static_cast<CUresult>(queued.error().native));
}

}  // namespace weir::sim_tests::answers
