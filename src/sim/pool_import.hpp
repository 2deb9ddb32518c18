// SPDX-License-Identifier: Apache-2.0
// A pool of another process, seen from here.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "sim/memory.hpp"
#include "sim/timeline.hpp"
#include "weir/driver/table.hpp"

namespace weir { inline namespace v0 { namespace sim {

class state;

/// An exported allocation, as the 64 opaque bytes say it.
struct pool_pointer {
  std::uint64_t nonce = 0;  ///< of the pool
  std::uint64_t offset = 0;
  std::uint64_t size = 0;

  [[nodiscard]] driver::CUmemPoolPtrExportData encode() const;
  /// False if the bytes are not those of an exported pointer.
  static bool decode(const driver::CUmemPoolPtrExportData& data, pool_pointer& decoded);
};

/// What travels with a pool's descriptor.
struct pool_note {
  std::uint64_t nonce = 0;
  int device = 0;

  [[nodiscard]] std::string encode() const;
  static bool decode(std::string_view note, pool_note& decoded);
};

/// Another process's pool. Its memory lies here at the same distances as there. Only what was
/// exported by pointer can be reached; nothing can be allocated. Needs the machine's lock held.
class imported_pool {
 public:
  /// Null if there are no addresses left. Takes `pages` over.
  static std::shared_ptr<imported_pool> create(state& machine, const pool_note& note,
                                               std::shared_ptr<physical> pages);
  ~imported_pool();
  imported_pool(const imported_pool&) = delete;
  imported_pool& operator=(const imported_pool&) = delete;

  driver::CUresult import(const pool_pointer& pointer, driver::CUdeviceptr* address);
  [[nodiscard]] bool contains(std::uint64_t address) const noexcept {
    return address - base_ < pages_->size();
  }
  /// The imported allocation that contains `address`; null if none.
  [[nodiscard]] const region* find(std::uint64_t address) const;
  [[nodiscard]] bool has_pointers() const noexcept { return !live_.empty(); }
  /// Lets an imported allocation go, at once or when `stream` comes to it; false if none starts
  /// there.
  bool free_now(std::uint64_t address);
  bool free(std::uint64_t address, const std::shared_ptr<stream_state>& stream);

  /// Whether work that was queued before a free may still reach an allocation: the pool's memory
  /// must stay that long, even without a handle.
  [[nodiscard]] bool in_use() const;

  /// The context is reset: nothing can be reached any more, what was freed included.
  void clear();

  void grant(int to, driver::CUmemAccess_flags flags);
  [[nodiscard]] driver::CUmemAccess_flags granted(int to) const;
  [[nodiscard]] std::uint64_t nonce() const noexcept { return nonce_; }
  [[nodiscard]] int device() const noexcept { return device_; }

  driver::CUmemoryPool handle = nullptr;
  unsigned references = 1;

 private:
  imported_pool(state& machine, const pool_note& note, std::shared_ptr<physical> pages,
                std::uint64_t base);

  state& machine_;
  std::uint64_t nonce_;
  int device_;
  std::shared_ptr<physical> pages_;
  std::uint64_t base_;
  std::vector<driver::CUmemAccess_flags> rights_;
  std::map<std::uint64_t, std::uint64_t> live_;  // address -> id of its region
};

}}}  // namespace weir::v0::sim
