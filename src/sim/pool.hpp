// SPDX-License-Identifier: Apache-2.0
// One stream-ordered memory pool, with the driver's rules of reuse, growth and release.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "sim/memory.hpp"
#include "sim/pool_blocks.hpp"
#include "sim/timeline.hpp"
#include "weir/driver/table.hpp"

namespace weir { inline namespace v0 { namespace sim {

class state;

/// A pool as the driver of an H200 keeps it (measured; the figures are in pool_blocks.hpp).
///
/// It owns a run of addresses. Memory is put behind them in pages of 32 MiB when an allocation
/// needs it; a page that nothing lives in can be put elsewhere or released. A freed block belongs
/// to the stream that freed it until the pool learns that the free is complete; then it is settled:
/// free for any stream, and one with its settled neighbours. An allocation takes, in this order,
///
///   1. the best fit of what its own stream freed;
///   2. the best fit of what is settled (complete frees settle first, if the pool may query) and
///      of what other streams freed before an event its own stream waits for;
///   3. where no memory can be had for that: what another stream freed, behind a wait for the free.
///
/// Always: blocks cover the addresses; an allocated block and one that a stream owns is wholly
/// backed by pages; page.busy is the number of its bytes in such blocks. Needs the machine's lock
/// held. An allocation that finds its size among its stream's own frees makes no heap call here.
class pool {
 public:
  pool(state& machine, const driver::CUmemPoolProps& properties, bool is_default);
  ~pool();
  pool(const pool&) = delete;
  pool& operator=(const pool&) = delete;

  // --- Allocations -------------------------------------------------------------------------------

  /// `bytes` is not 0; `stream` must not be capturing.
  driver::CUresult allocate(std::uint64_t bytes, const std::shared_ptr<stream_state>& stream,
                            driver::CUdeviceptr* address);
  /// Whether `address` is one of the pool's, allocated or not.
  [[nodiscard]] bool contains(std::uint64_t address) const noexcept {
    return address - base_ < address_space_;
  }
  /// The allocation that contains `address`; null if there is none.
  [[nodiscard]] block* find(std::uint64_t address) const noexcept;
  void free(block& freed, const std::shared_ptr<stream_state>& stream);
  /// Frees at once, for every stream; that the work on it is done is the caller's word.
  void free_now(block& freed);

  // --- Settling and releasing --------------------------------------------------------------------

  /// The host has synchronised: frees it knows of settle, and what is above the threshold goes.
  void after_synchronize();
  /// Releases pages while at least `keep` bytes stay reserved.
  void trim(std::uint64_t keep);
  /// Releases all that is unused, when the device has no room for something else.
  void release_unused();
  /// The context is reset: allocations and frees are forgotten, all pages are released.
  void clear();
  /// The handle is gone. The pool lives on until its last allocation is freed and settled.
  void retire();
  [[nodiscard]] bool is_finished() const noexcept { return retired_ && reserved_ == 0; }

  // --- Attributes --------------------------------------------------------------------------------

  driver::CUresult get(driver::CUmemPool_attribute attribute, void* value) const;
  driver::CUresult set(driver::CUmemPool_attribute attribute, const void* value);
  void grant(int to, driver::CUmemAccess_flags flags);
  [[nodiscard]] driver::CUmemAccess_flags granted(int to) const;

  [[nodiscard]] int device() const noexcept { return device_; }  ///< -1: a pool of host memory
  [[nodiscard]] bool is_default() const noexcept { return is_default_; }
  [[nodiscard]] int handle_types() const noexcept { return handle_types_; }
  bool exported = false;  ///< other processes may know it
  /// The file behind all addresses and where they begin; created by the first call. Null if the
  /// system has no room for it.
  [[nodiscard]] physical* store();
  [[nodiscard]] std::uint64_t base() const noexcept { return base_; }
  [[nodiscard]] std::uint64_t nonce() const noexcept { return nonce_; }

  driver::CUmemoryPool handle = nullptr;

  /// Empty if everything that is always true is true, else what is not.
  [[nodiscard]] std::string inconsistency() const;

 private:
  /// What one stream freed and nobody has seen complete. Neighbours are joined: the later free of
  /// the two stands for both, since a stream does one thing after the other.
  struct stream_frees {
    std::shared_ptr<stream_state> stream;
    fit_index runs{};
    std::uint64_t oldest = 0;  // no run was freed before this operation of the stream
  };
  struct page {
    bool backed = false;
    std::uint64_t busy = 0;
  };
  struct gauge {
    std::uint64_t current = 0;
    std::uint64_t peak = 0;
    void add(std::uint64_t bytes) noexcept {
      current += bytes;
      if (current > peak) peak = current;
    }
  };

  moment next_moment(const std::shared_ptr<stream_state>& stream, access_kind kind);

  // The rungs of allocate(), in order. Each returns a block of `size`, in no index, or null.
  block* own_free(std::uint64_t size, const stream_state& stream);
  block* settled_or_followed(std::uint64_t size, const stream_state& stream);
  block* behind_a_wait(std::uint64_t size, const std::shared_ptr<stream_state>& stream);

  stream_frees& frees_of(const std::shared_ptr<stream_state>& stream);
  [[nodiscard]] block* followed(std::uint64_t size, const stream_state& stream) const;
  block* take_freed(block& run, std::uint64_t size);
  block* take_settled(block& run, std::uint64_t size);
  void put_into(fit_index& index, block& freed);
  void settle(block& run);
  void settle_completed();
  void settle_known();

  // Pages.
  bool prepare();
  [[nodiscard]] bool backed(std::uint64_t address, std::uint64_t size) const;
  bool back(std::uint64_t address, std::uint64_t size);
  bool acquire_page();
  bool map_page(std::size_t index);
  void unmap_page(std::size_t index);
  void release_page(std::size_t index);
  void release_above(std::uint64_t limit);
  [[nodiscard]] std::size_t idle_page() const;
  template <class Visit>
  void each_page(std::uint64_t address, std::uint64_t size, Visit&& visit);
  void count_busy(std::uint64_t address, std::uint64_t size, bool more);

  // For the hazard check.
  void record_lifetime(access_kind kind, block& target, const moment& when,
                       const stream_state* stream, std::uint64_t order);
  void record_host_ownership(std::uint64_t address, std::uint64_t size, const char* label);

  state& machine_;
  int device_;
  bool is_default_;
  int handle_types_;
  std::uint64_t limit_;  // 0: what the device has
  std::uint64_t nonce_;
  std::vector<driver::CUmemAccess_flags> rights_;

  bool follow_events_ = true;
  bool opportunistic_ = true;
  bool internal_waits_ = true;
  std::uint64_t threshold_ = 0;
  bool retired_ = false;

  std::uint64_t base_ = 0;  // 0 until the first allocation or export
  std::uint64_t address_space_ = 0;
  std::shared_ptr<physical> store_;
  std::unique_ptr<block_map> blocks_;
  fit_index settled_;
  std::vector<std::unique_ptr<stream_frees>> frees_;  // by stream id
  stream_frees* last_frees_ = nullptr;                // most frees repeat the stream
  std::uint64_t next_order_ = 1;
  std::vector<page> pages_;  // as far as ever used
  std::uint64_t allocations_ = 0;
  std::uint64_t reserved_ = 0;
  std::uint64_t reserved_peak_ = 0;
  gauge used_;
};

}}}  // namespace weir::v0::sim
