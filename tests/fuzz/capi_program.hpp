// SPDX-License-Identifier: Apache-2.0
// Bytes as calls of weir.h with any arguments: handles that are closed, of another kind or from
// nowhere, sizes of any size, structures of other versions; checked call by call.
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "fuzz_input.hpp"
#include "weir.h"

namespace weir::fuzz {

#define WEIR_FUZZ_HANDLES(X) \
  X(runtime)                 \
  X(stream)                  \
  X(event)                   \
  X(allocator)               \
  X(pool)                    \
  X(callback)                \
  X(capture)                 \
  X(capture_guard)           \
  X(snapshot)                \
  X(recorder)                \
  X(growable)                \
  X(growable_hold)           \
  X(growable_plan)           \
  X(stream_pool) X(block_pool) X(buffer) X(buffer_pool) X(imported) X(shared) X(link) X(offer)

enum class handle_type {
#define X(name) name,
  WEIR_FUZZ_HANDLES(X)
#undef X
      count
};

template <class T>
inline constexpr auto type_of = handle_type::count;
#define X(name) \
  template <>   \
  inline constexpr auto type_of<weir_##name> = handle_type::name;
WEIR_FUZZ_HANDLES(X)
#undef X

template <class T>
concept is_handle = type_of<T>
!= handle_type::count;
template <class T>
concept has_version = requires(T structure) {
  structure.struct_size;
};

/// One call: what it was given and what came of it.
struct c_call {
  std::string_view function;
  weir_error code = weir_ok;
  bool is_refused = false;  // an argument that no call may accept
  std::vector<void*> handles{};
  std::vector<std::uint64_t> numbers{};
  std::vector<void*> pointers{};
  void* memory = nullptr;  // handed out
  void* opened = nullptr;  // a handle
};

/// One input's program. Stops the process at the first thing that is wrong.
class c_program {
 public:
  c_program(fuzz_input input, std::string scratch_path);
  ~c_program();
  c_program(const c_program&) = delete;
  c_program& operator=(const c_program&) = delete;

  void run();

  // --- For arguments -----------------------------------------------------------------------------

  [[nodiscard]] fuzz_input& input() noexcept { return input_; }
  /// Mostly one that is open; null, closed, of another type or from nowhere.
  [[nodiscard]] void* any_handle(handle_type type, c_call& call);
  /// What a size, a count, a number or flags may be.
  [[nodiscard]] std::uint64_t any_number();
  /// Memory of a device that is or was allocated, a stream of the driver, or nothing of the kind.
  [[nodiscard]] void* any_pointer();
  [[nodiscard]] const char* any_text();
  [[nodiscard]] std::array<std::uint8_t, 64>& exported_pointer() noexcept { return exported_; }
  void opened(handle_type type, void* handle, c_call& call);
  /// What holds for every call, and what follows from it.
  void finish(const c_call& call);

 private:
  struct block {
    std::uint64_t size = 0;
    void* owner = nullptr;
  };
  using custom_call = void (c_program::*)(c_call&);

  void step();
  void prepare();
  template <class Handle, class Create, class... Arguments>
  Handle* make(Create* create, Arguments... arguments);
  // Calls whose arguments belong together.
  void open_runtime(c_call& call);
  void set_error_handler(c_call& call);
  void start_recorder(c_call& call);
  void get_option(c_call& call);
  void explain(c_call& call);
  void describe_address(c_call& call);
  void get_stats_by_tag(c_call& call);
  void get_blocks(c_call& call);
  void get_physical(c_call& call);
  void get_block_streams(c_call& call);
  void export_block(c_call& call);
  void import_pieces(c_call& call);
  void create_sockets(c_call& call);
  void open_link(c_call& call);
  void revoke(c_call& call);
  void receive(c_call& call);
  void send_note(c_call& call);
  void get_note(c_call& call);
  void import_pool(c_call& call);
  void export_pool(c_call& call);
  [[nodiscard]] std::vector<weir_byte_range> any_ranges();
  void commit_pages(c_call& call);
  void decommit_pages(c_call& call);
  void prepare_pages(c_call& call);
  void copy_managed(c_call& call);
  void copy(c_call& call);
  void fill(c_call& call);

  template <class Info, class Function>
  void get_array(c_call& call, const Function& function);
  template <class Function>
  void get_text(const Function& function);
  [[nodiscard]] void* any_memory(std::uint64_t size);
  void connect();
  void add_block(void* pointer, std::uint64_t size, void* owner);
  void remove_block(const c_call& call);
  void remove_blocks_of(const void* owner);
  [[nodiscard]] std::vector<void*>& open(handle_type type) {
    return open_[static_cast<std::size_t>(type)];
  }
  template <class Handle>
  [[nodiscard]] Handle* any(c_call& call) {
    return static_cast<Handle*>(any_handle(type_of<Handle>, call));
  }
  [[nodiscard]] void* root_of(void* handle) const;
  void closed(const c_call& call);
  [[nodiscard]] bool is_open(void* handle) const { return types_.contains(handle); }
  [[nodiscard]] bool is_permanent(void* handle) const;
  void check_allocators();
  void free_all();
  void close_all();
  [[nodiscard]] static weir_error close(handle_type type, void* handle);

  static const std::map<std::string_view, custom_call>& customs();

  fuzz_input input_;
  std::string scratch_path_;
  std::array<std::vector<void*>, static_cast<std::size_t>(handle_type::count)> open_;
  std::vector<void*> closed_;
  std::map<void*, handle_type> types_;
  std::map<void*, void*> roots_;  // pools of an allocator: the allocator
  std::map<std::uintptr_t, block> live_;
  std::vector<void*> dead_;
  std::vector<int> descriptors_;
  std::vector<std::pair<int, std::uint64_t>> pieces_;  // exported: descriptor and size
  std::vector<void*> permanent_;
  std::uint64_t steps_ = 0;
  std::array<std::uint8_t, 64> exported_{};
  std::vector<std::unique_ptr<char[]>> texts_;
  std::vector<std::unique_ptr<std::byte[]>> host_;  // copies may read it later
  bool has_hidden_ = false;  // blocks without a pointer: of buffers, of what is shared
  bool is_muddled_ = false;  // one of them was freed by its address
};

// --- Arguments ----------------------------------------------------------------------------------

/// What a call gets for a parameter of that type, and what must be there afterwards.
template <class T>
class argument;

template <is_handle Handle>
class argument<Handle*> {
 public:
  argument(c_program& program, c_call& call)
      : value_{static_cast<Handle*>(program.any_handle(type_of<Handle>, call))} {}
  [[nodiscard]] Handle* get() noexcept { return value_; }
  void check(c_program&, c_call&) {}

 private:
  Handle* value_;
};

/// A place for a result, which a call that fails leaves alone.
template <class T>
class place {
 public:
  place(c_program& program, T before)
      : is_null_{program.input().chance(16)}, before_{before}, value_{before, before} {}
  [[nodiscard]] T* get() noexcept { return is_null_ ? nullptr : value_.data(); }
  [[nodiscard]] bool is_null() const noexcept { return is_null_; }
  [[nodiscard]] const T& value() const noexcept { return value_[0]; }
  [[nodiscard]] bool is_untouched() const noexcept {
    return value_[0] == before_ && value_[1] == before_;
  }

 private:
  bool is_null_;
  T before_;
  std::array<T, 2> value_;
};

template <is_handle Handle>
class argument<Handle**> {
 public:
  argument(c_program& program, c_call&) : place_{program, nowhere()} {}
  [[nodiscard]] Handle** get() noexcept { return place_.get(); }
  void check(c_program& program, c_call& call) {
    if (call.code != weir_ok) return require(place_.is_untouched(), "a failed call wrote a handle");
    require(!place_.is_null(), "a handle for nobody");
    require(!place_.is_untouched() && place_.value() != nullptr, "no handle");
    program.opened(type_of<Handle>, place_.value(), call);
  }

 private:
  static Handle* nowhere() { return reinterpret_cast<Handle*>(std::uintptr_t{0x7777}); }
  place<Handle*> place_;
};

template <class T>
requires std::is_arithmetic_v<T>
class argument<T> {
 public:
  argument(c_program& program, c_call& call) : value_{any(program)} {
    call.numbers.push_back(static_cast<std::uint64_t>(value_));
  }
  [[nodiscard]] T get() noexcept { return value_; }
  void check(c_program&, c_call&) {}

 private:
  static T any(c_program& program) {
    // Devices, flags and places are small more often than not.
    if (sizeof(T) < 8 && !program.input().chance(4))
      return static_cast<T>(program.input().below(4));
    return static_cast<T>(program.any_number());
  }
  T value_;
};

template <>
class argument<double> {
 public:
  argument(c_program& program, c_call&) : value_{program.input().one_of(fractions)} {}
  [[nodiscard]] double get() noexcept { return value_; }
  void check(c_program&, c_call&) {}

 private:
  static constexpr double fractions[] = {
      0.5, 1.0, 0.0, -0.5, 1.5, 1e-300, 1e300, 1e-9, __builtin_nan(""), __builtin_inf()};
  double value_;
};

template <class T>
requires(std::is_arithmetic_v<T> && !std::is_const_v<T> && sizeof(T) > 1) class argument<T*> {
 public:
  argument(c_program& program, c_call&) : place_{program, static_cast<T>(77)} {}
  [[nodiscard]] T* get() noexcept { return place_.get(); }
  void check(c_program&, c_call& call) {
    if (call.code != weir_ok) require(place_.is_untouched(), "a failed call wrote a number");
  }

 private:
  place<T> place_;
};

template <>
class argument<void**> {
 public:
  argument(c_program& program, c_call&) : place_{program, nowhere()} {}
  [[nodiscard]] void** get() noexcept { return place_.get(); }
  void check(c_program&, c_call& call) {
    if (call.code == weir_ok) {
      require(!place_.is_null() && place_.value() != nowhere(), "no pointer");
      call.memory = place_.value();
    } else {
      require(place_.is_untouched() || place_.value() == nullptr, "a failed call wrote a pointer");
    }
  }

 private:
  static void* nowhere() { return reinterpret_cast<void*>(std::uintptr_t{0x7777}); }
  place<void*> place_;
};

template <class T>
requires std::is_void_v<T>
class argument<T*> {
 public:
  argument(c_program& program, c_call& call) : value_{program.any_pointer()} {
    call.pointers.push_back(value_);
  }
  [[nodiscard]] T* get() noexcept { return value_; }
  void check(c_program&, c_call&) {}

 private:
  void* value_;
};

template <>
class argument<const char*> {
 public:
  argument(c_program& program, c_call&) : value_{program.any_text()} {}
  [[nodiscard]] const char* get() noexcept { return value_; }
  void check(c_program&, c_call&) {}

 private:
  const char* value_;
};

/// The driver's 64 bytes for a pointer.
template <class T>
requires std::same_as<std::remove_const_t<T>, std::uint8_t>
class argument<T*> {
 public:
  argument(c_program& program, c_call&)
      : value_{program.input().chance(16) ? nullptr : program.exported_pointer().data()} {
    if (std::is_const_v<T> && program.input().chance(4))
      program.exported_pointer()[program.input().below(64)] ^= program.input().next();
  }
  [[nodiscard]] T* get() noexcept { return value_; }
  void check(c_program&, c_call& call) {
    require(call.code != weir_ok || value_ != nullptr, "bytes for nobody");
  }

 private:
  std::uint8_t* value_;
};

/// A structure of the size that a version of weir.h may have given it: no byte more is there. Or
/// its size was never set: it is larger than any version's, and what is there is what this version
/// has.
template <has_version Info>
class structure {
 public:
  structure(c_program& program, std::uint8_t filling) {
    fuzz_input& input = program.input();
    is_null_ = input.chance(16);
    constexpr auto known = static_cast<std::uint32_t>(sizeof(Info));
    const std::uint32_t sizes[] = {known,       known,      known,     known, known + 8,
                                   known + 1,   known + 64, known - 1, 4,     0,
                                   largest + 1, 0xa5a5a5a5, UINT32_MAX};
    size_ = input.one_of(sizes);
    bytes_ = std::make_unique<std::byte[]>(room());
    std::memset(bytes_.get(), filling, room());
    std::memcpy(bytes_.get(), &size_, sizeof(size_));
  }
  [[nodiscard]] Info* get() noexcept {
    return is_null_ ? nullptr : reinterpret_cast<Info*>(bytes_.get());
  }
  [[nodiscard]] std::byte* bytes() noexcept { return bytes_.get(); }
  [[nodiscard]] std::size_t room() const noexcept {
    return size_ > largest ? sizeof(Info) : std::max<std::size_t>(size_, 4);
  }
  [[nodiscard]] std::uint32_t size() const noexcept { return size_; }
  [[nodiscard]] bool is_null() const noexcept { return is_null_; }
  [[nodiscard]] bool has_wrong_size() const noexcept {
    return size_ < sizeof(Info) || size_ > largest;
  }

 private:
  static constexpr std::uint32_t largest = 65536;  // of all structures, in any version
  bool is_null_ = false;
  std::uint32_t size_ = 0;
  std::unique_ptr<std::byte[]> bytes_;
};

template <has_version Info>
requires(!std::is_const_v<Info>) class argument<Info*> {
 public:
  argument(c_program& program, c_call&) : value_{program, filling} {}
  [[nodiscard]] Info* get() noexcept { return value_.get(); }
  void check(c_program&, c_call& call) {
    const std::byte* const bytes = value_.bytes();
    if (call.code != weir_ok) {
      for (std::size_t i = 4; i < value_.room(); ++i)
        require(bytes[i] == std::byte{filling}, "a failed call wrote a structure");
      return;
    }
    if (value_.is_null()) {
      require(may_be_null, "a structure that is not there was taken");
      return;
    }
    require(!value_.has_wrong_size(), "a structure of a size that none can have was taken");
    std::uint32_t size = 0;
    std::memcpy(&size, bytes, sizeof(size));
    require(size == sizeof(Info), "a structure of another size than weir knows");
    for (std::size_t i = sizeof(Info); i < value_.room(); ++i)
      require(bytes[i] == std::byte{}, "what weir does not know is not zero");
  }

 private:
  static constexpr std::uint8_t filling = 0xa5;
  /// Outcomes are for whoever cares.
  static constexpr bool may_be_null =
      std::is_same_v<Info, weir_suspend_outcome> || std::is_same_v<Info, weir_resume_outcome>;
  structure<Info> value_;
};

template <has_version Info>
class argument<const Info*> {
 public:
  argument(c_program& program, c_call& call) : value_{program, 0} {
    fuzz_input& input = program.input();
    for (std::size_t i = 4; i < value_.room(); i += 4) {
      if (!input.chance(4)) continue;
      const std::uint64_t number = program.any_number();
      std::memcpy(value_.bytes() + i, &number, std::min<std::size_t>(8, value_.room() - i));
    }
    if (!value_.has_wrong_size()) set_pointers(program, call);
    bool is_newer = false;
    for (std::size_t i = sizeof(Info); i < value_.room(); ++i)
      is_newer = is_newer || value_.bytes()[i] != std::byte{};
    call.is_refused =
        call.is_refused || (!value_.is_null() && (value_.has_wrong_size() || is_newer));
  }
  [[nodiscard]] const Info* get() noexcept { return value_.get(); }
  void check(c_program&, c_call&) {}

 private:
  /// Whatever else is in it, its pointers are null or point to something.
  void set_pointers(c_program& program, c_call& call) {
    auto* const known = reinterpret_cast<Info*>(value_.bytes());
    if constexpr (requires { known->progress; }) {
      known->progress = nullptr;
      if (program.input().chance(2))
        known->progress = [](void*, std::uint64_t done, std::uint64_t total) {
          require(done <= total, "more is done than there is");
        };
    }
    if constexpr (requires { known->eviction; }) {
      const auto eviction = std::make_shared<argument<const weir_suspend_options*>>(program, call);
      known->eviction = eviction->get();
      pointed_to_ = eviction;
    }
  }

  structure<Info> value_;
  std::shared_ptr<void> pointed_to_;
};

/// Null, or one that says a few times that it has freed something.
inline int promises = 0;
template <class R, class... Parameters>
class argument<R (*)(Parameters...)> {
 public:
  argument(c_program& program, c_call&)
      : value_{program.input().chance(4) ? nullptr : +[](Parameters...) { return R(answer()); }} {}
  [[nodiscard]] auto get() noexcept { return value_; }
  void check(c_program&, c_call&) {}

 private:
  static int answer() { return promises > 0 ? promises-- : 0; }
  R (*value_)(Parameters...);
};

/// Calls with parameters that belong together are made elsewhere.
template <class T>
requires(std::same_as<T, char> || std::same_as<T, const weir_byte_range>) class argument<T*> {
 public:
  argument(c_program&, c_call&) {}
  [[nodiscard]] T* get() noexcept { return nullptr; }
  void check(c_program&, c_call&) {}
};

// --- Calls --------------------------------------------------------------------------------------

template <auto Function>
struct any_call;

template <class... Parameters, weir_error (*Function)(Parameters...)>
struct any_call<Function> {
  static void make(c_program& program, c_call& call) {
    std::tuple<argument<Parameters>...> arguments{argument<Parameters>{program, call}...};
    call.code = std::apply([](auto&... each) { return Function(each.get()...); }, arguments);
    std::apply([&](auto&... each) { (each.check(program, call), ...); }, arguments);
  }
};

/// A function that cannot fail.
template <class R, class... Parameters, R (*Function)(Parameters...)>
requires(!std::same_as<R, weir_error>) struct any_call<Function> {
  static void make(c_program& program, c_call& call) {
    std::tuple<argument<Parameters>...> arguments{argument<Parameters>{program, call}...};
    if constexpr (std::is_void_v<R>) {
      std::apply([](auto&... each) { Function(each.get()...); }, arguments);
    } else {
      const R answer = std::apply([](auto&... each) { return Function(each.get()...); }, arguments);
      if constexpr (std::is_pointer_v<R>)
        require(answer == nullptr || std::strlen(answer) < 4096, "a text without an end");
    }
  }
};

struct c_function {
  std::string_view name;
  void (*call)(c_program&, c_call&);
};

/// All functions of weir.h.
[[nodiscard]] std::span<const c_function> c_functions();

}  // namespace weir::fuzz
