// SPDX-License-Identifier: Apache-2.0
// What the bytes of an input call, and what must hold after each call.
#include "capi_program.hpp"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "sharing/packet.hpp"
#include "sharing/session.hpp"

namespace weir::fuzz {
namespace {

constexpr const char* machine = "runtime=sim,sim_devices=2,sim_capacity=1GiB";

bool is_ok(weir_error code) { return code == weir_ok; }

void succeed(weir_error code, const char* operation) {
  require(is_ok(code), std::string{operation} + ": " + weir_last_error_message());
}

template <std::size_t Count>
bool is_one_of(std::string_view name, const std::string_view (&names)[Count]) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

bool allocates(std::string_view name) {
  constexpr std::string_view names[] = {
      "weir_allocator_allocate",        "weir_allocator_allocate_aligned",
      "weir_allocator_allocate_native", "weir_pool_allocate",
      "weir_stream_pool_allocate",      "weir_block_pool_allocate"};
  return is_one_of(name, names);
}

bool deallocates(std::string_view name) {
  constexpr std::string_view names[] = {
      "weir_allocator_deallocate",        "weir_allocator_deallocate_sized",
      "weir_allocator_deallocate_native", "weir_allocator_free",
      "weir_stream_pool_deallocate",      "weir_stream_pool_deallocate_sized",
      "weir_block_pool_deallocate",       "weir_block_pool_free"};
  return is_one_of(name, names);
}

/// Makes blocks whose addresses the program does not know.
bool hides_blocks(std::string_view name) {
  constexpr std::string_view names[] = {
      "weir_buffer_create",    "weir_growable_commit", "weir_growable_commit_ahead",
      "weir_growable_prepare", "weir_shared_allocate", "weir_stream_pool_import_pointer"};
  return is_one_of(name, names);
}

bool closes_handle(std::string_view name) {
  constexpr std::string_view names[] = {"weir_buffer_pool_free", "weir_growable_plan_commit",
                                        "weir_growable_plan_abort"};
  return name.ends_with("_close") || is_one_of(name, names);
}

/// Both of one moment: memory may be on its way on a thread of its own.
std::pair<weir_memory_stats, std::uint64_t> stats_of(weir_allocator* allocator) {
  weir_suspend_stats suspended{};
  suspended.struct_size = sizeof(suspended);
  succeed(weir_allocator_get_suspend_stats(allocator, &suspended), "stats of suspended memory");
  for (;;) {
    weir_memory_stats stats{};
    stats.struct_size = sizeof(stats);
    succeed(weir_allocator_get_stats(allocator, &stats), "stats");
    const std::uint64_t before = suspended.suspended;
    succeed(weir_allocator_get_suspend_stats(allocator, &suspended), "stats of suspended memory");
    if (suspended.suspended == before) return {stats, before};
  }
}

}  // namespace

c_program::c_program(fuzz_input input, std::string scratch_path)
    : input_{input}, scratch_path_{std::move(scratch_path)} {
  promises = 3;
  prepare();
}

c_program::~c_program() { close_all(); }

void c_program::run() {
  while (!input_.at_end()) {
    step();
    if (++steps_ % 4 == 0) check_allocators();
  }
  check_allocators();
}

void c_program::step() {
  const auto all = c_functions();
  const std::size_t number = input_.next() | std::size_t{input_.next()} << 8;
  const c_function& chosen = all[number % all.size()];
  c_call call{.function = chosen.name};
  if (const auto custom = customs().find(chosen.name); custom != customs().end()) {
    (this->*custom->second)(call);
  } else {
    chosen.call(*this, call);
  }
  finish(call);
}

template <class Handle, class Create, class... Arguments>
Handle* c_program::make(Create* create, Arguments... arguments) {
  Handle* handle = nullptr;
  succeed(create(arguments..., &handle), "something to begin with");
  c_call call{.function = "weir_create"};
  opened(type_of<Handle>, handle, call);
  return handle;
}

/// Something of most kinds, so that calls find something.
void c_program::prepare() {
  const unsigned wanted = input_.next();
  const auto wants = [&](unsigned bit) { return (wanted >> bit & 1) != 0; };
  auto* const runtime = make<weir_runtime>(weir_runtime_open, machine);
  auto* const allocator = make<weir_allocator>(weir_allocator_create, runtime, 0,
                                               wants(0) ? "heap_policy=compact" : nullptr);
  make<weir_stream>(weir_stream_create, runtime, 0, 0U, 0);
  if (wants(1)) roots_[make<weir_pool>(weir_pool_create, allocator, "p", 1U)] = allocator;
  if (wants(2)) make<weir_stream_pool>(weir_stream_pool_create, runtime, 0, nullptr);
  if (wants(3)) make<weir_block_pool>(weir_bin_pool_create, runtime, 0, nullptr);
  if (wants(4)) make<weir_buffer>(weir_buffer_create_managed, runtime, 0, 65536, 0U, 0, nullptr);
  if (wants(5)) make<weir_buffer_pool>(weir_buffer_pool_create, nullptr);
  if (wants(6)) make<weir_event>(weir_event_create, runtime, 0, 2U);
  if (wants(7)) {
    make<weir_shared>(weir_shared_create, runtime, 0, 1U << 20, 0);
    connect();
  }
}

// --- Arguments ----------------------------------------------------------------------------------

void* c_program::any_handle(handle_type type, c_call& call) {
  const unsigned form = input_.next();
  void* handle = nullptr;
  bool is_bad = false;
  if (form < 216) {
    const auto& open_ones = open(type);
    if (!open_ones.empty()) handle = open_ones[form % open_ones.size()];
  } else if (form < 224) {
    handle = nullptr;
  } else if (form < 236) {
    if (!closed_.empty()) handle = closed_[input_.below(closed_.size())];
    is_bad = handle != nullptr;
  } else if (form < 248) {
    const auto& others = open_[input_.below(open_.size())];
    if (!others.empty()) handle = others[input_.below(others.size())];
    is_bad = handle != nullptr && types_.at(handle) != type;
  } else {
    handle = reinterpret_cast<void*>(static_cast<std::uintptr_t>(input_.word()));
    is_bad = handle != nullptr && !is_open(handle);
  }
  call.handles.push_back(handle);
  call.is_refused = call.is_refused || is_bad;
  return handle;
}

std::uint64_t c_program::any_number() {
  const unsigned form = input_.next();
  if (form < 100) return form;
  if (form < 200) return (std::uint64_t{1} << (form % 25)) + input_.below(3) - 1;
  if (form < 232) return (std::uint64_t{1} << (47 + form % 17)) + input_.below(3) - 1;
  if (form < 248) return UINT64_MAX - input_.next();
  return input_.word() | std::uint64_t{1} << 48;
}

void* c_program::any_pointer() {
  const auto live = [&]() -> std::uintptr_t {
    if (live_.empty()) return 0;
    return std::next(live_.begin(), static_cast<std::ptrdiff_t>(input_.below(live_.size())))->first;
  };
  switch (const std::size_t form = input_.below(16)) {
    case 0:
      return nullptr;
    case 1:
      return reinterpret_cast<void*>(live() + input_.next());
    case 2:
      return dead_.empty() ? nullptr : dead_[input_.below(dead_.size())];
    case 3:
      return reinterpret_cast<void*>(std::uintptr_t{input_.below(4)});
    case 4:
      return reinterpret_cast<void*>(static_cast<std::uintptr_t>(input_.word()));
    case 5:
    case 6: {
      void* native = nullptr;
      auto& streams = open(handle_type::stream);
      if (!streams.empty())
        static_cast<void>(weir_stream_get_native(
            static_cast<weir_stream*>(streams[form % streams.size()]), &native));
      return native;
    }
    default:
      return reinterpret_cast<void*>(live());
  }
}

const char* c_program::any_text() {
  constexpr const char* known[] = {
      nullptr,
      "",
      "heap_policy=compact,heap_thread_cache=0",
      "heap_policy=classic",
      "heap_policy=never_move,heap_debug_unmap=on",
      "heap_exportable=on",
      "heap_limit=16MiB",
      "heap_crossing=declared_uses,heap_queued_waits=off",
      "heap_limit=-1",
      "no_such_option=1",
      "weights",
  };
  const std::size_t form = input_.below(std::size(known) + 2);
  if (form < std::size(known)) return known[form];
  std::string text =
      form == std::size(known) ? std::string(input_.number() % 2000, 'n') : input_.text(40);
  std::erase(text, '=');  // no option by chance: one names a file
  auto& kept = texts_.emplace_back(std::make_unique<char[]>(text.size() + 1));
  std::memcpy(kept.get(), text.c_str(), text.size() + 1);
  return kept.get();
}

/// `size` bytes of a block, or of the host.
void* c_program::any_memory(std::uint64_t size) {
  if (input_.chance(8)) return nullptr;
  for (const auto& [address, known] : live_)
    if (known.size >= size && input_.chance(2)) return reinterpret_cast<void*>(address);
  return host_.emplace_back(std::make_unique<std::byte[]>(size)).get();
}

// --- Handles ------------------------------------------------------------------------------------

void c_program::opened(handle_type type, void* handle, c_call& call) {
  call.opened = handle;
  const bool is_default = call.function.starts_with("weir_default_");
  if (is_default && is_open(handle)) return;
  require(!is_open(handle), "a handle that is open was handed out again");
  require(std::find(closed_.begin(), closed_.end(), handle) == closed_.end(),
          "a handle that was closed was handed out again");
  if (is_default) permanent_.push_back(handle);
  open(type).push_back(handle);
  types_[handle] = type;
  roots_[handle] = handle;
  if (type == handle_type::pool && !call.handles.empty()) roots_[handle] = root_of(call.handles[0]);
  if (type == handle_type::capture) roots_[handle] = root_of(call.handles[0]);
}

void* c_program::root_of(void* handle) const {
  const auto known = roots_.find(handle);
  return known == roots_.end() ? nullptr : known->second;
}

bool c_program::is_permanent(void* handle) const {
  return std::find(permanent_.begin(), permanent_.end(), handle) != permanent_.end();
}

void c_program::closed(const c_call& call) {
  void* const handle = call.function == "weir_buffer_pool_free" ? call.handles[1] : call.handles[0];
  if (handle == nullptr || call.is_refused) return;
  const bool is_free = call.function == "weir_buffer_pool_free";
  const bool stays = call.code == weir_error_not_permitted ||
                     call.code == weir_error_capture_forbidden ||
                     (call.function == "weir_growable_close" &&
                      (call.code == weir_error_not_ready || call.code == weir_error_still_live)) ||
                     (is_free && !is_ok(call.code));
  if (stays) return;
  const handle_type type = types_.at(handle);
  std::erase(open(type), handle);
  types_.erase(handle);
  closed_.push_back(handle);
  if (type == handle_type::allocator || type == handle_type::block_pool ||
      type == handle_type::stream_pool)
    remove_blocks_of(handle);
}

// --- What must hold -----------------------------------------------------------------------------

namespace {

/// WEIR_FUZZ_SHOW in the environment: every call of an input, to understand a find.
void show(const c_call& call) {
  static const bool is_wanted = std::getenv("WEIR_FUZZ_SHOW") != nullptr;
  if (!is_wanted) return;
  std::fprintf(stderr, "%.*s(", static_cast<int>(call.function.size()), call.function.data());
  for (void* const each : call.handles) std::fprintf(stderr, " %p", each);
  for (const std::uint64_t each : call.numbers)
    std::fprintf(stderr, " %llu", static_cast<unsigned long long>(each));
  for (void* const each : call.pointers) std::fprintf(stderr, " at %p", each);
  std::fprintf(stderr, " ) = %s", weir_error_name(call.code));
  if (call.memory != nullptr) std::fprintf(stderr, ", %p", call.memory);
  if (call.opened != nullptr) std::fprintf(stderr, ", %p", call.opened);
  std::fprintf(stderr, "\n");
}

}  // namespace

void c_program::finish(const c_call& call) {
  show(call);
  if (call.function == "weir_version" || call.function == "weir_last_error_native") return;
  const auto what = [&](const char* text) { return std::string{call.function} + ": " + text; };
  if (is_ok(call.code)) {
    require(!call.is_refused, what("took a handle or a structure that it must refuse"));
  } else {
    const std::string_view name = weir_error_name(call.code);
    require(name != "unknown" && call.code != weir_error_internal, what(weir_last_error_message()));
    require(std::string_view{weir_last_error_message()}.starts_with(name),
            what("a message of another error"));
  }
  if (hides_blocks(call.function) && is_ok(call.code)) has_hidden_ = true;
  if (allocates(call.function) && is_ok(call.code)) {
    require((call.memory == nullptr) == (call.numbers.at(0) == 0), what("null, or not"));
    if (call.memory != nullptr)
      add_block(call.memory, call.numbers[0], root_of(call.handles.at(0)));
  }
  if (call.function == "weir_pool_allocate_at" && is_ok(call.code) && call.numbers.at(0) != 0)
    add_block(call.pointers.at(0), call.numbers[0], root_of(call.handles.at(0)));
  if (deallocates(call.function)) remove_block(call);
  if (closes_handle(call.function)) closed(call);
}

void c_program::add_block(void* pointer, std::uint64_t size, void* owner) {
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  if (!is_muddled_) {
    const auto above = live_.lower_bound(address);
    require(above == live_.end() || above->first >= address + size, "two live blocks overlap");
    require(above == live_.begin() ||
                std::prev(above)->first + std::prev(above)->second.size <= address,
            "two live blocks overlap");
  }
  std::erase(dead_, pointer);
  live_[address] = {size, owner};
}

void c_program::remove_block(const c_call& call) {
  void* const pointer = call.pointers.at(0);
  const auto freed = live_.find(reinterpret_cast<std::uintptr_t>(pointer));
  const bool is_sized = call.function.ends_with("_sized");
  if (freed == live_.end()) {
    if (!is_ok(call.code) || pointer == nullptr) return;
    require(has_hidden_, "memory that is not allocated was freed");
    is_muddled_ = true;
    return;
  }
  void* const owner = root_of(call.handles.at(0));
  // A wrong size is an error, and the block is freed all the same.
  const bool is_wrong_size = is_sized && call.code == weir_error_invalid_argument &&
                             !call.is_refused && owner == freed->second.owner &&
                             call.numbers.at(0) != freed->second.size;
  if (!is_ok(call.code) && !is_wrong_size) {
    const bool denied =
        call.code == weir_error_foreign_pointer || call.code == weir_error_double_free;
    require(is_muddled_ || !denied || owner != freed->second.owner,
            "a live block is unknown to its owner");
    return;
  }
  const bool is_own = owner == freed->second.owner;
  require(is_own || call.function.starts_with("weir_stream_pool_"),
          "a block was freed by another allocator");
  live_.erase(freed);
  dead_.push_back(pointer);
}

void c_program::remove_blocks_of(const void* owner) {
  std::erase_if(live_, [&](const auto& each) { return each.second.owner == owner; });
}

void c_program::check_allocators() {
  for (void* const each : open(handle_type::allocator)) {
    auto* const allocator = static_cast<weir_allocator*>(each);
    const auto [now, suspended] = stats_of(allocator);
    require(now.requested.current <= now.allocated.current &&
                now.allocated.current <= now.active.current &&
                now.active.current <= now.reserved.current + suspended,
            "stats out of order");
    require(suspended != 0 ? now.cached <= now.reserved.current
                           : now.cached == now.reserved.current - now.active.current,
            "cached");
    require(now.pending == now.active.current - now.allocated.current, "pending");
    require(now.allocations - now.frees == now.blocks.current, "counts of blocks");
    for (const weir_gauge& gauge :
         {now.requested, now.allocated, now.active, now.reserved, now.blocks})
      require(gauge.current <= gauge.peak, "a peak below what is");
    std::uint64_t blocks = 0;
    std::uint64_t requested = 0;
    for (const auto& [address, known] : live_) {
      if (known.owner != each) continue;
      ++blocks;
      requested += known.size;
      std::uint64_t size = 0;
      if (is_muddled_) continue;
      succeed(weir_allocator_size_of(allocator, reinterpret_cast<void*>(address), &size),
              "size of");
      require(size == known.size, "a block of another size");
    }
    if (has_hidden_ || is_muddled_ || is_permanent(each)) continue;
    require(now.blocks.current == blocks && now.requested.current == requested,
            "other blocks than were allocated");
  }
}

// --- The end ------------------------------------------------------------------------------------

void c_program::free_all() {
  for (const auto& [address, known] : std::exchange(live_, {})) {
    if (!is_open(known.owner)) continue;
    void* const pointer = reinterpret_cast<void*>(address);
    weir_error code = weir_ok;
    switch (types_.at(known.owner)) {
      case handle_type::allocator:
        code = weir_allocator_free(static_cast<weir_allocator*>(known.owner), pointer);
        break;
      case handle_type::block_pool:
        code = weir_block_pool_free(static_cast<weir_block_pool*>(known.owner), pointer);
        break;
      default:
        static_cast<void>(weir_stream_pool_deallocate(static_cast<weir_stream_pool*>(known.owner),
                                                      pointer, nullptr));
    }
    if (!is_muddled_) succeed(code, "free a live block");
  }
}

weir_error c_program::close(handle_type type, void* handle) {
  switch (type) {
#define X(name)           \
  case handle_type::name: \
    return WEIR_FUZZ_CLOSE_##name(static_cast<weir_##name*>(handle));
#define WEIR_FUZZ_CLOSE_runtime weir_runtime_close
#define WEIR_FUZZ_CLOSE_stream weir_stream_close
#define WEIR_FUZZ_CLOSE_event weir_event_close
#define WEIR_FUZZ_CLOSE_allocator weir_allocator_close
#define WEIR_FUZZ_CLOSE_pool weir_pool_close
#define WEIR_FUZZ_CLOSE_callback weir_callback_close
#define WEIR_FUZZ_CLOSE_capture weir_capture_close
#define WEIR_FUZZ_CLOSE_capture_guard weir_capture_guard_close
#define WEIR_FUZZ_CLOSE_snapshot weir_snapshot_close
#define WEIR_FUZZ_CLOSE_recorder weir_recorder_close
#define WEIR_FUZZ_CLOSE_growable weir_growable_close
#define WEIR_FUZZ_CLOSE_growable_hold weir_growable_hold_close
#define WEIR_FUZZ_CLOSE_growable_plan weir_growable_plan_abort
#define WEIR_FUZZ_CLOSE_stream_pool(handle) weir_stream_pool_close(handle, nullptr)
#define WEIR_FUZZ_CLOSE_block_pool weir_block_pool_close
#define WEIR_FUZZ_CLOSE_buffer weir_buffer_close
#define WEIR_FUZZ_CLOSE_buffer_pool weir_buffer_pool_close
#define WEIR_FUZZ_CLOSE_imported weir_imported_close
#define WEIR_FUZZ_CLOSE_shared weir_shared_close
#define WEIR_FUZZ_CLOSE_link weir_link_close
#define WEIR_FUZZ_CLOSE_offer weir_offer_close
    WEIR_FUZZ_HANDLES(X)
#undef X
    case handle_type::count:
      break;
  }
  return weir_error_internal;
}

void c_program::close_all() {
  while (is_ok(weir_pool_leave())) {
  }
  succeed(weir_tag_set_current(0, nullptr), "no tag");
  const bool frees_first = input_.chance(2);
  if (frees_first) free_all();
  for (void* const plan : std::exchange(open(handle_type::growable_plan), {})) {
    succeed(close(handle_type::growable_plan, plan), "the end of a plan");  // others wait for it
    types_.erase(plan);
  }
  // Kinds in any order.
  const std::size_t first = steps_ % open_.size();
  for (std::size_t i = 0; i < open_.size(); ++i) {
    const auto type = static_cast<handle_type>((first + i) % open_.size());
    if (type == handle_type::allocator || type == handle_type::block_pool) free_all();
    for (void* const handle : std::exchange(open(type), {})) {
      const weir_error code = close(type, handle);
      types_.erase(handle);
      if (is_permanent(handle)) {
        require(code == weir_error_not_permitted, "the process's own was closed");
        continue;
      }
      require(code != weir_error_internal && code != weir_error_invalid_argument,
              weir_last_error_message());
      require(close(type, handle) == weir_error_closed, "closed, and not");
    }
  }
  for (const int each : descriptors_) ::close(each);
}

// --- Calls whose arguments belong together ------------------------------------------------------

const std::map<std::string_view, c_program::custom_call>& c_program::customs() {
  using self = c_program;
  static const std::map<std::string_view, custom_call> all = {
      {"weir_runtime_open", &self::open_runtime},
      {"weir_runtime_open_from_environment", &self::open_runtime},
      {"weir_set_error_handler", &self::set_error_handler},
      {"weir_recorder_start", &self::start_recorder},
      {"weir_option_get_value", &self::get_option},
      {"weir_allocator_explain", &self::explain},
      {"weir_allocator_describe_address", &self::describe_address},
      {"weir_allocator_get_stats_by_tag", &self::get_stats_by_tag},
      {"weir_snapshot_get_blocks", &self::get_blocks},
      {"weir_snapshot_get_physical", &self::get_physical},
      {"weir_allocator_get_block_streams", &self::get_block_streams},
      {"weir_allocator_export_block", &self::export_block},
      {"weir_import_pieces", &self::import_pieces},
      {"weir_link_create_sockets", &self::create_sockets},
      {"weir_link_open", &self::open_link},
      {"weir_link_revoke", &self::revoke},
      {"weir_link_receive", &self::receive},
      {"weir_link_send_note", &self::send_note},
      {"weir_offer_get_note", &self::get_note},
      {"weir_stream_pool_import", &self::import_pool},
      {"weir_stream_pool_export", &self::export_pool},
      {"weir_growable_commit", &self::commit_pages},
      {"weir_growable_decommit", &self::decommit_pages},
      {"weir_growable_prepare", &self::prepare_pages},
      {"weir_buffer_create_managed_copy", &self::copy_managed},
      {"weir_copy", &self::copy},
      {"weir_fill", &self::fill},
  };
  return all;
}

/// No more machines than a process can have.
void c_program::open_runtime(c_call& call) {
  if (open(handle_type::runtime).size() >= 3) return;
  weir_runtime* opened_one = nullptr;
  call.code = call.function == "weir_runtime_open"
                  ? weir_runtime_open(machine, &opened_one)
                  : weir_runtime_open_from_environment(machine, &opened_one);
  if (is_ok(call.code)) opened(handle_type::runtime, opened_one, call);
}

/// Handlers are kept for good: few.
void c_program::set_error_handler(c_call&) {
  weir_set_error_handler(
      input_.chance(2) ? nullptr
                       : [](void*, weir_error code, const char* message) {
                           require(std::string_view{message}.starts_with(weir_error_name(code)),
                                   "a report of another error");
                         },
      nullptr);
}

void c_program::start_recorder(c_call& call) {
  if (open(handle_type::recorder).size() >= 2) return;
  weir_recorder_options settings{};
  settings.struct_size = input_.chance(8) ? 4 : sizeof(settings);
  if (input_.chance(2)) settings.flags = static_cast<std::uint32_t>(input_.below(16));
  settings.ring_events = static_cast<std::uint32_t>(any_number());
  if (settings.ring_events > 1 << 16 && settings.ring_events <= 1 << 24) settings.ring_events = 16;
  settings.level = input_.chance(2) ? static_cast<std::int32_t>(any_number()) : 1;
  settings.program = any_text();
  weir_recorder* started = nullptr;
  const std::string path = input_.chance(4) ? "/no/such/folder/x" : scratch_path_;
  auto* const observed = any<weir_allocator>(call);
  call.code = weir_recorder_start(observed, input_.chance(16) ? nullptr : path.c_str(), &settings,
                                  &started);
  if (is_ok(call.code)) opened(handle_type::recorder, started, call);
}

/// `function(text, capacity, length)`: never more than `capacity` is written, and always an end.
template <class Function>
void c_program::get_text(const Function& function) {
  const std::uint64_t capacity = input_.chance(4) ? 0 : input_.next();
  const auto text = std::make_unique<char[]>(capacity);
  std::memset(text.get(), 'x', capacity);
  std::uint64_t length = 0;
  const bool is_null = capacity == 0 || input_.chance(16);
  const weir_error code = function(is_null ? nullptr : text.get(), capacity, &length);
  if (!is_ok(code) || capacity == 0) return;
  require(!is_null, "a text for nobody");
  const std::uint64_t copied = std::min(length, capacity - 1);
  require(text[copied] == '\0', "a text without an end");
  require(std::strlen(text.get()) == copied, "a text of another length");
}

void c_program::get_option(c_call& call) {
  const char* const list = any_text();
  weir_option_info info{};
  info.struct_size = sizeof(info);
  succeed(
      weir_option_get_info(static_cast<std::uint32_t>(input_.next() % weir_option_count()), &info),
      "an option");
  const char* const name = input_.chance(4) ? any_text() : info.name;
  get_text([&](char* text, std::uint64_t capacity, std::uint64_t* length) {
    return call.code = weir_option_get_value(list, name, text, capacity, length);
  });
}

void c_program::explain(c_call& call) {
  auto* const allocator = any<weir_allocator>(call);
  auto* const stream = any<weir_stream>(call);
  const std::uint64_t size = any_number();
  get_text([&](char* text, std::uint64_t capacity, std::uint64_t* length) {
    return call.code = weir_allocator_explain(allocator, size, stream, text, capacity, length);
  });
}

void c_program::describe_address(c_call& call) {
  auto* const allocator = any<weir_allocator>(call);
  const auto address = reinterpret_cast<const void*>(any_number());
  get_text([&](char* text, std::uint64_t capacity, std::uint64_t* length) {
    return call.code = weir_allocator_describe_address(allocator, address, text, capacity, length);
  });
}

/// `function(array, capacity, count)`: elements of any version, of which no more is there.
template <class Info, class Function>
void c_program::get_array(c_call& call, const Function& function) {
  constexpr auto known = static_cast<std::uint32_t>(sizeof(Info));
  const std::uint32_t sizes[] = {known, known, known + 8, known + 40, known - 1, 0};
  const std::uint32_t stride = input_.one_of(sizes);
  const std::uint64_t capacity = input_.below(5);
  const std::size_t room = std::max<std::size_t>(4, capacity * stride);
  const auto raw = std::make_unique<std::byte[]>(room);
  std::memset(raw.get(), 0xa5, room);
  std::memcpy(raw.get(), &stride, sizeof(stride));
  std::uint64_t count = 77;
  const bool is_null = input_.chance(8);
  call.code = function(is_null ? nullptr : reinterpret_cast<Info*>(raw.get()), capacity, &count);
  if (!is_ok(call.code)) return;
  require(capacity == 0 || (!is_null && stride >= known), "an array that is none");
  for (std::uint64_t i = 0; i < std::min(count, capacity); ++i) {
    std::uint32_t size = 0;
    std::memcpy(&size, raw.get() + i * stride, sizeof(size));
    require(size == known, "an element of another size");
  }
}

void c_program::get_stats_by_tag(c_call& call) {
  auto* const allocator = any<weir_allocator>(call);
  get_array<weir_tag_stats>(call, [&](auto* tags, std::uint64_t capacity, std::uint64_t* count) {
    return weir_allocator_get_stats_by_tag(allocator, tags, capacity, count);
  });
}

void c_program::get_blocks(c_call& call) {
  auto* const snapshot = any<weir_snapshot>(call);
  const std::uint64_t pool = input_.chance(4) ? any_number() : 0;
  const std::uint64_t first = any_number();
  get_array<weir_block_info>(call, [&](auto* blocks, std::uint64_t capacity, std::uint64_t* count) {
    return weir_snapshot_get_blocks(snapshot, pool, first, blocks, capacity, count);
  });
}

void c_program::get_block_streams(c_call& call) {
  auto* const allocator = any<weir_allocator>(call);
  void* const address = any_pointer();
  std::array<std::uint64_t, 4> streams{};
  const std::uint64_t capacity = input_.below(streams.size() + 1);
  constexpr std::uint64_t untouched = 77;
  std::uint64_t count = untouched;
  call.code = weir_allocator_get_block_streams(allocator, address, streams.data(), capacity,
                                               input_.chance(16) ? nullptr : &count);
  if (!is_ok(call.code)) require(count == untouched, "a failed call wrote a number");
}

void c_program::get_physical(c_call& call) {
  auto* const snapshot = any<weir_snapshot>(call);
  const std::uint64_t pool = input_.chance(4) ? any_number() : 0;
  const std::uint64_t first = any_number();
  get_array<weir_physical_info>(
      call, [&](auto* physical, std::uint64_t capacity, std::uint64_t* count) {
        return weir_snapshot_get_physical(snapshot, pool, first, physical, capacity, count);
      });
}

// --- Sharing ------------------------------------------------------------------------------------

void c_program::export_block(c_call& call) {
  auto* const allocator = any<weir_allocator>(call);
  const void* const pointer = any_pointer();
  get_array<weir_shared_piece>(
      call, [&](weir_shared_piece* pieces, std::uint64_t capacity, std::uint64_t* count) {
        std::uint64_t offset = 0;
        const weir_error code =
            weir_allocator_export_block(allocator, pointer, pieces, capacity, count, &offset);
        if (!is_ok(code)) return code;
        require(*count <= capacity, "more pieces than there is room for");
        const auto* raw = reinterpret_cast<const std::byte*>(pieces);
        std::uint32_t stride = 0;  // is overwritten with what weir knows; the caller's was as large
        std::memcpy(&stride, raw, sizeof(stride));
        weir_shared_piece first{};
        if (*count != 0) std::memcpy(&first, raw, sizeof(first));
        if (*count != 0) {
          descriptors_.push_back(first.descriptor);
          pieces_.emplace_back(first.descriptor, first.size);
        }
        return code;
      });
}

void c_program::import_pieces(c_call& call) {
  constexpr auto known = static_cast<std::uint32_t>(sizeof(weir_shared_piece));
  const std::uint32_t sizes[] = {known, known, known + 8, known - 1};
  const std::uint32_t stride = input_.one_of(sizes);
  const std::uint64_t count = input_.below(3);
  const std::size_t room = std::max<std::size_t>(4, count * std::max(stride, known));
  const auto raw = std::make_unique<std::byte[]>(room);
  for (std::uint64_t i = 0; i < count; ++i) {
    weir_shared_piece piece{.struct_size = stride, .descriptor = -1, .size = any_number()};
    if (!pieces_.empty()) {
      const auto& [descriptor, size] = pieces_[input_.below(pieces_.size())];
      piece.descriptor = descriptor;
      if (!input_.chance(4)) piece.size = size;
    }
    std::memcpy(raw.get() + i * stride, &piece, std::min<std::size_t>(stride, known));
  }
  auto* const runtime = any<weir_runtime>(call);
  weir_imported* imported = nullptr;
  const std::uint64_t size = any_number();
  call.code = weir_import_pieces(runtime, static_cast<std::int32_t>(input_.below(3)),
                                 reinterpret_cast<weir_shared_piece*>(raw.get()), count,
                                 input_.chance(2) ? any_number() : 0, size,
                                 static_cast<std::int32_t>(input_.below(4)), &imported);
  if (is_ok(call.code)) opened(handle_type::imported, imported, call);
}

void c_program::create_sockets(c_call& call) {
  if (descriptors_.size() > 16) return;
  std::int32_t ends[2] = {-1, -1};
  call.code = weir_link_create_sockets(input_.chance(8) ? nullptr : ends);
  if (ends[0] < 0) return;
  descriptors_.push_back(ends[0]);
  descriptors_.push_back(ends[1]);
}

/// Both ends of a link. What the second has to say is there before the first listens.
void c_program::connect() {
  std::int32_t ends[2] = {-1, -1};
  succeed(weir_link_create_sockets(ends), "sockets");
  const auto greeting = sharing::encode_number(sharing::packet_kind::hello, sharing::own_number());
  require(
      ::send(ends[1], greeting.data(), greeting.size(), 0) == static_cast<ssize_t>(greeting.size()),
      "no greeting");
  auto* const runtime = static_cast<weir_runtime*>(open(handle_type::runtime).front());
  for (const std::int32_t end : ends) {
    weir_link* link = nullptr;
    c_call call{.function = "weir_link_open"};
    succeed(weir_link_open(runtime, end, 0, &link), "open a link");
    opened(handle_type::link, link, call);
  }
}

void c_program::open_link(c_call& call) {
  if (open(handle_type::link).size() < 4 && !open(handle_type::runtime).empty() && input_.chance(4))
    return connect();
  auto* const runtime = any<weir_runtime>(call);
  weir_link* link = nullptr;
  int end = input_.chance(2) ? -1 : ::open("/dev/null", O_RDWR | O_CLOEXEC);
  if (!descriptors_.empty() && input_.chance(2)) {
    end = descriptors_.back();  // becomes the link's, whatever it is
    std::erase_if(pieces_, [&](const auto& each) { return each.first == end; });
    descriptors_.pop_back();
  }
  call.code = weir_link_open(runtime, end, 0, input_.chance(8) ? nullptr : &link);
  if (is_ok(call.code)) opened(handle_type::link, link, call);
}

void c_program::revoke(c_call& call) {
  auto* const link = any<weir_link>(call);
  call.code = weir_link_revoke(link, any_number(), 0);
}

void c_program::receive(c_call& call) {
  auto* const link = any<weir_link>(call);
  weir_offer* offer = nullptr;
  call.code = weir_link_receive(link, 0, input_.chance(16) ? nullptr : &offer);
  if (is_ok(call.code)) opened(handle_type::offer, offer, call);
}

void c_program::send_note(c_call& call) {
  auto* const link = any<weir_link>(call);
  const std::uint64_t size = input_.number() % 1100;
  const auto note = std::make_unique<std::byte[]>(size);
  call.code = weir_link_send_note(link, input_.chance(16) ? nullptr : note.get(), size);
  if (is_ok(call.code)) require(size <= 1024, "a note that is too long");
}

void c_program::get_note(c_call& call) {
  auto* const offer = any<weir_offer>(call);
  const std::uint64_t capacity = input_.next();
  const auto note = std::make_unique<std::byte[]>(capacity);
  call.code = weir_offer_get_note(offer, input_.chance(16) ? nullptr : note.get(), capacity);
}

void c_program::import_pool(c_call& call) {
  auto* const runtime = any<weir_runtime>(call);
  weir_stream_pool* pool = nullptr;
  const int descriptor =
      descriptors_.empty() ? -1 : descriptors_[input_.below(descriptors_.size())];
  call.code = weir_stream_pool_import(runtime, static_cast<std::int32_t>(input_.below(3)),
                                      descriptor, &pool);
  if (is_ok(call.code)) opened(handle_type::stream_pool, pool, call);
}

void c_program::export_pool(c_call& call) {
  if (descriptors_.size() > 16) return;
  auto* const pool = any<weir_stream_pool>(call);
  std::int32_t descriptor = -1;
  call.code = weir_stream_pool_export(pool, &descriptor);
  if (!is_ok(call.code)) return require(descriptor == -1, "a failed call wrote a number");
  descriptors_.push_back(descriptor);
}

// --- Growable memory ----------------------------------------------------------------------------

/// A few pages, or anything.
std::vector<weir_byte_range> c_program::any_ranges() {
  constexpr std::uint64_t mib = std::uint64_t{1} << 20;
  std::vector<weir_byte_range> ranges(input_.below(4));
  for (weir_byte_range& each : ranges) {
    const bool is_odd = input_.chance(8);
    each.offset = is_odd ? any_number() : input_.below(8) * 2 * mib;
    each.size = is_odd ? any_number() : input_.below(4) * 2 * mib;
  }
  return ranges;
}

void c_program::commit_pages(c_call& call) {
  auto* const growable = any<weir_growable>(call);
  auto* const stream = any<weir_stream>(call);
  const auto ranges = any_ranges();
  call.code = weir_growable_commit(growable, ranges.data(), ranges.size(), stream);
}

void c_program::decommit_pages(c_call& call) {
  auto* const growable = any<weir_growable>(call);
  auto* const stream = any<weir_stream>(call);
  const auto ranges = any_ranges();
  call.code = weir_growable_decommit(growable, ranges.data(), ranges.size(), stream);
}

void c_program::prepare_pages(c_call& call) {
  auto* const growable = any<weir_growable>(call);
  auto* const stream = any<weir_stream>(call);
  const auto commits = any_ranges();
  const auto decommits = any_ranges();
  weir_growable_plan* plan = nullptr;
  call.code = weir_growable_prepare(growable, commits.data(), commits.size(), decommits.data(),
                                    decommits.size(), stream, &plan);
  if (is_ok(call.code)) opened(handle_type::growable_plan, plan, call);
}

// --- Memory of the host -------------------------------------------------------------------------

void c_program::copy_managed(c_call& call) {
  auto* const runtime = any<weir_runtime>(call);
  auto* const stream = any<weir_stream>(call);
  const std::uint64_t size = input_.number() % 5000;
  const auto data = std::make_unique<std::byte[]>(size);
  weir_buffer* buffer = nullptr;
  call.code = weir_buffer_create_managed_copy(
      runtime, static_cast<std::int32_t>(input_.below(3)), input_.chance(16) ? nullptr : data.get(),
      size, static_cast<std::int32_t>(input_.below(4)), stream, &buffer);
  if (is_ok(call.code)) opened(handle_type::buffer, buffer, call);
}

void c_program::copy(c_call& call) {
  auto* const stream = any<weir_stream>(call);
  const std::uint64_t size = input_.number() % 5000;
  void* const to = any_memory(size);
  call.code = weir_copy(to, any_memory(size), size, stream);
}

void c_program::fill(c_call& call) {
  auto* const stream = any<weir_stream>(call);
  const std::uint64_t size = input_.number() % 5000;
  call.code = weir_fill(any_memory(size), input_.next(), size, stream);
}

}  // namespace weir::fuzz
