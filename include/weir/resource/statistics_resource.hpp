// An adaptor that counts: how much is allocated, how much it was at most, how much in all.
#pragma once

#include <cstdint>
#include <memory>

#include "weir/base/export.hpp"
#include "weir/resource/resource.hpp"

namespace weir::inline v0 {

/// A number that goes up and down. Signed: within a pushed section more may be given back than was
/// allocated in it.
struct running_count {
  std::int64_t current = 0;
  std::int64_t peak = 0;   ///< the most that current was, at least 0
  std::int64_t total = 0;  ///< all that was ever added

  friend bool operator==(const running_count&, const running_count&) = default;
};

/// Of successful allocations, in the sizes that were asked for; zero bytes count for nothing.
struct resource_statistics {
  running_count bytes;
  running_count allocations;

  friend bool operator==(const resource_statistics&, const resource_statistics&) = default;
};

/// Counts what goes through to another resource. Sections of a program can be counted apart: see
/// push().
///
/// Always: all numbers are of one moment. A shared handle, never empty; keeps the upstream alive.
/// Any thread. Costs two short locks. Bad input: as said in resources.hpp.
class WEIR_API statistics_resource {
 public:
  /// invalid_argument: the upstream is empty.
  [[nodiscard]] static result<statistics_resource> create(any_resource upstream);
  statistics_resource(const statistics_resource&) = default;
  statistics_resource& operator=(const statistics_resource&) = default;

  [[nodiscard]] result<void*> try_allocate(bytes size, const stream_ref& stream,
                                           bytes alignment = bytes{256});
  result<void> try_deallocate(void* pointer, bytes size, const stream_ref& stream);

  /// Of the section that is being counted: since the latest push() that was not popped.
  [[nodiscard]] resource_statistics counters() const;
  /// Begins a section with all counters at zero; returns those of the section around it. Sections
  /// are the resource's, not the thread's.
  resource_statistics push();
  /// Ends the section, adds what happened in it to the one around it and returns its counters.
  /// invalid_argument: there was no push().
  result<resource_statistics> pop();

  [[nodiscard]] any_resource upstream() const;
  [[nodiscard]] weir::device device() const;
  [[nodiscard]] memory_kind kind() const noexcept;
  friend bool operator==(const statistics_resource&, const statistics_resource&) noexcept = default;

 private:
  struct state;
  explicit statistics_resource(std::shared_ptr<state> inside) noexcept
      : inside_{std::move(inside)} {}

  std::shared_ptr<state> inside_;
};

static_assert(stream_resource<statistics_resource>);

}  // namespace weir::inline v0
