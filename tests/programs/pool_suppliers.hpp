// SPDX-License-Identifier: Apache-2.0
// The pools of a mixed program: bin pools, pinned pools and stream pools.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "supplier.hpp"
#include "weir/pool/bin_pool.hpp"
#include "weir/pool/pinned_pool.hpp"
#include "weir/pool/stream_pool.hpp"

namespace weir::programs_test {

/// A pool that can release memory while it is used.
class pool_supplier : public supplier {
 public:
  using supplier::supplier;
  virtual result<bytes> trim() = 0;
  virtual result<bytes> empty_cache() = 0;
  virtual result<void> close() = 0;
};

/// A bin_pool or a pinned_pool.
template <class Pool>
class block_pool_supplier final : public pool_supplier {
 public:
  block_pool_supplier(std::string name, std::size_t device, Pool pool)
      : pool_supplier{std::move(name), device}, pool_{std::move(pool)} {}

  [[nodiscard]] result<supplied_block> allocate(bytes size, const stream_ref& stream) override {
    auto taken = pool_.try_allocate(size, stream);
    if (!taken) return std::move(taken).error();
    return supplied_block{*taken};
  }
  result<void> free(void* memory, const std::optional<stream_ref>& stream) override {
    return stream ? pool_.try_deallocate(memory, *stream) : pool_.try_deallocate(memory);
  }
  /// The pool does not remember the id of a per-thread stream, and cannot ask for it then.
  [[nodiscard]] bool frees_in_capture(lane_kind kind) const override {
    return kind != lane_kind::per_thread;
  }
  [[nodiscard]] bool holds(void*) const override { return true; }
  [[nodiscard]] bool records_streams() const override { return true; }
  result<void> record_stream(void* memory, const stream_ref& stream) override {
    return pool_.record_stream(memory, stream);
  }
  result<bytes> trim() override { return pool_.trim(); }
  result<bytes> empty_cache() override { return pool_.empty_cache(); }
  result<void> close() override { return pool_.close(); }

 private:
  Pool pool_;
};

/// A stream_pool. It knows no further streams: the stream of a free must come behind all uses.
class stream_pool_supplier final : public pool_supplier {
 public:
  stream_pool_supplier(std::string name, std::size_t device, stream_pool pool)
      : pool_supplier{std::move(name), device}, pool_{std::move(pool)} {}

  [[nodiscard]] result<supplied_block> allocate(bytes size, const stream_ref& stream) override {
    auto taken = pool_.try_allocate(size, stream);
    if (!taken) return std::move(taken).error();
    return supplied_block{*taken};
  }
  result<void> free(void* memory, const std::optional<stream_ref>& stream) override {
    if (!stream) return errc::invalid_argument;
    return pool_.try_deallocate(memory, *stream);
  }
  [[nodiscard]] bool frees_without_stream() const override { return false; }
  [[nodiscard]] bool frees_in_capture(lane_kind) const override { return false; }
  [[nodiscard]] bool holds(void*) const override { return true; }
  result<bytes> trim() override { return pool_.trim(); }
  result<bytes> empty_cache() override { return pool_.trim(); }
  result<void> close() override {
    auto closed = pool_.close();
    if (!closed) return std::move(closed).error();
    return {};
  }

 private:
  stream_pool pool_;
};

}  // namespace weir::programs_test
