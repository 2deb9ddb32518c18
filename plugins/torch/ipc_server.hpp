// SPDX-License-Identifier: Apache-2.0
// Serves the descriptors of shared blocks to other processes.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "ipc_handle.hpp"
#include "weir/base/result.hpp"
#include "weir/device/virtual_memory.hpp"
#include "weir/share/channel.hpp"

namespace weir_torch {

/// Offers the physical memory under blocks of this process, and serves its descriptors on a thread
/// of its own.
///
/// Blocks over the same handles have one offer, so that who opens many small blocks maps their
/// memory once. An offer ends with the last of its blocks.
///
/// Descriptors are made while a client fetches, and closed when it has them. Only where the handle
/// string names them, for processes without weir, they are open as long as the offer, and a handle
/// has one, whatever it is offered with. That is done for a quarter of the descriptors that this
/// process may have open; offers beyond that need weir to be opened.
///
/// A Unix socket beside pidfd_getfd(): it needs no right to trace the other process, which
/// containers and hardened kernels withhold, and says clearly when the memory is gone. Only
/// processes of the same user are served, and only who knows a token. A client that says nothing,
/// or does not read, keeps no other client waiting.
///
/// Never destroyed: the thread serves until the process ends. The socket's file goes at exit. In a
/// forked child there is no thread, and no offer is made. Any thread.
class ipc_server {
 public:
  /// Called by any thread, as long as what it exports is offered.
  using exporter = std::function<weir::result<weir::descriptor>(const weir::vmm::physical&)>;

  /// Its handle strings are of torch's `format`. Raises the process's soft limit of open
  /// descriptors (RLIMIT_NOFILE) to the hard one. system, not_permitted: the socket cannot be
  /// created.
  [[nodiscard]] static weir::result<ipc_server*> open(torch_format format);

  /// Offers what lies under a block, until the block is withdrawn; the handle string.
  [[nodiscard]] weir::result<std::string> offer(std::uint64_t block,
                                                std::span<const weir::vmm::physical> handles,
                                                const exporter& export_descriptor);
  /// The handle string of a block that is offered.
  [[nodiscard]] std::optional<std::string> find(std::uint64_t block) const;
  /// Whether the block was offered.
  bool withdraw(std::uint64_t block) noexcept;

 private:
  /// What clients fetch; those that are being served keep it, whatever becomes of the offer.
  struct offered_handles {
    std::vector<weir::vmm::physical> handles;
    exporter export_descriptor;
    /// Of each handle, where the string names them; else empty.
    std::vector<std::shared_ptr<const weir::descriptor>> named;
    bool withdrawn = false;  // the handles may be other memory's by now; guarded by mutex_
  };
  struct offered_memory {
    std::array<std::uint8_t, 16> token{};
    std::shared_ptr<offered_handles> memory;
    std::string handle;
    std::size_t blocks = 0;
  };
  /// By the driver's names of the physical handles.
  using offer_map = std::map<std::vector<std::uint64_t>, offered_memory>;
  /// A physical handle's descriptor. Forgotten with the last offer that has it, even if a client is
  /// being served: the driver may give the handle's name to other memory then.
  struct exported_handle {
    std::shared_ptr<const weir::descriptor> descriptor;
    std::size_t offers = 0;
  };

  /// Has connected, and not said what it wants.
  struct waiting_client {
    weir::share_channel channel;
    std::chrono::steady_clock::time_point deadline;
  };

  ipc_server(weir::share_listener socket, torch_format format)
      : socket_{std::move(socket)}, format_{format} {}
  void serve() noexcept;
  /// Whether it was answered, or its time is over. Waits for nobody.
  [[nodiscard]] bool is_done_with(waiting_client& client) const;
  void answer(weir::share_channel& client, std::span<const std::byte> token) const;
  void send_all(const weir::share_channel& client, const offered_handles& offered,
                std::chrono::milliseconds limit) const;
  /// One that is closed after it was sent, or one that stays. not_found: the offer was withdrawn.
  [[nodiscard]] weir::result<std::shared_ptr<const weir::descriptor>> descriptor_at(
      const offered_handles& offered, std::size_t index) const;
  [[nodiscard]] weir::result<offered_memory> make_offer(
      std::span<const weir::vmm::physical> handles, const exporter& export_descriptor);
  [[nodiscard]] weir::result<std::shared_ptr<const weir::descriptor>> descriptor_of(
      const weir::vmm::physical& handle, const exporter& export_descriptor);

  const weir::share_listener socket_;
  const torch_format format_;
  mutable std::mutex mutex_;
  offer_map offers_;
  std::unordered_map<std::uint64_t, offer_map::iterator> blocks_;
  std::unordered_map<std::uint64_t, exported_handle> exported_;
};

/// Fetches the descriptors that another process offers, and passes them on a few at a time, in
/// order, so that few are open. not_found, peer_closed, not_ready: it has ended or does not answer;
/// not_permitted: it does not know the token, so the memory was freed; system: there or here no
/// more descriptors can be opened. An error of `take` ends it.
using descriptor_taker = std::function<weir::result<void>(std::span<const weir::descriptor>)>;
[[nodiscard]] weir::result<void> fetch_descriptors(const memory_offer& offer,
                                                   const descriptor_taker& take);

}  // namespace weir_torch
