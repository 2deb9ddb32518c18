// An adaptor that lets no more than so many bytes be allocated at a time.
#pragma once

#include <memory>

#include "weir/base/export.hpp"
#include "weir/resource/resource.hpp"

namespace weir::inline v0 {

/// A budget over another resource.
///
/// Always: the sizes asked for and not given back sum up to at most the limit. A request takes its
/// share of the budget and is checked in one step, so two threads cannot pass together where only
/// one fits; a request that is refused, here or by the upstream, leaves the budget as it was and
/// never makes another one fail. What is counted is what was asked for; the upstream may round.
///
/// A shared handle, never empty; keeps the upstream alive. Any thread. Costs an atomic exchange and
/// a look-up under a lock of its own. Bad input: as said in resources.hpp.
class WEIR_API limiting_resource {
 public:
  /// invalid_argument: the upstream is empty.
  [[nodiscard]] static result<limiting_resource> create(any_resource upstream, bytes limit);
  limiting_resource(const limiting_resource&) = default;
  limiting_resource& operator=(const limiting_resource&) = default;

  /// limit_exceeded: the budget has no room; the upstream was not asked.
  [[nodiscard]] result<void*> try_allocate(bytes size, const stream_ref& stream,
                                           bytes alignment = bytes{256});
  result<void> try_deallocate(void* pointer, bytes size, const stream_ref& stream);

  [[nodiscard]] bytes used() const noexcept;
  [[nodiscard]] bytes limit() const noexcept;
  /// For requests from now on; what is over it stays until it is given back.
  void set_limit(bytes most) noexcept;

  [[nodiscard]] any_resource upstream() const;
  [[nodiscard]] weir::device device() const;
  [[nodiscard]] memory_kind kind() const noexcept;
  friend bool operator==(const limiting_resource&, const limiting_resource&) noexcept = default;

 private:
  struct state;
  explicit limiting_resource(std::shared_ptr<state> inside) noexcept : inside_{std::move(inside)} {}

  std::shared_ptr<state> inside_;
};

static_assert(stream_resource<limiting_resource>);

}  // namespace weir::inline v0
