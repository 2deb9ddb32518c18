// Serves the descriptors of shared blocks to other processes.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "ipc_handle.hpp"
#include "weir/base/result.hpp"
#include "weir/device/virtual_memory.hpp"
#include "weir/share/channel.hpp"

namespace weir_torch {

/// Serves the descriptors that this process offers, on a thread of its own.
///
/// A Unix socket rather than pidfd_getfd(): it needs no right to trace the other process, which
/// containers and hardened kernels withhold. Only processes of the same user are served, and only
/// who knows a token. A descriptor keeps its memory alive, so an offer is withdrawn when its block
/// is freed.
///
/// Never destroyed: the thread serves until the process ends. The socket's file goes at exit. In a
/// forked child there is no thread, and no offer is made. Any thread.
class ipc_server {
 public:
  /// system, not_permitted: the socket cannot be created.
  [[nodiscard]] static weir::result<ipc_server*> open();

  /// Offers descriptors under a name of the caller's; an offer of that name is returned as it is.
  [[nodiscard]] weir::result<ipc_handle> offer(std::uint64_t name,
                                               std::vector<weir::descriptor> descriptors,
                                               std::vector<std::uint64_t> sizes);
  /// The handle of the offer of that name, if there is one.
  [[nodiscard]] std::optional<ipc_handle> find(std::uint64_t name) const;
  /// Whether there was such an offer.
  bool withdraw(std::uint64_t name) noexcept;

 private:
  struct offered_block {
    std::shared_ptr<const std::vector<weir::descriptor>> descriptors;
    ipc_handle handle;
  };

  explicit ipc_server(weir::share_listener socket) : socket_{std::move(socket)} {}
  void serve() noexcept;
  void answer(const weir::share_channel& client) const;

  const weir::share_listener socket_;
  mutable std::mutex mutex_;
  std::map<std::uint64_t, offered_block> offers_;
};

/// The descriptors that another process offers. not_found, peer_closed, not_ready: it has ended or
/// does not answer; not_permitted: it does not know the token, so the memory was freed.
[[nodiscard]] weir::result<std::vector<weir::descriptor>> fetch_descriptors(
    const ipc_handle& handle);

}  // namespace weir_torch
