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
/// memory once; a handle has one descriptor, whatever it is offered with. A descriptor keeps its
/// memory alive, so an offer ends with the last of its blocks.
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
  using exporter = std::function<weir::result<weir::descriptor>(const weir::vmm::physical&)>;

  /// Its handle strings are of torch's `format`. system, not_permitted: the socket cannot be
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
  using descriptors = std::vector<std::shared_ptr<const weir::descriptor>>;
  struct offered_memory {
    std::array<std::uint8_t, 16> token{};
    std::shared_ptr<const ipc_server::descriptors> descriptors;
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
  static void send_all(const weir::share_channel& client, const descriptors& offered,
                       std::chrono::milliseconds limit);
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

/// The descriptors that another process offers. not_found, peer_closed, not_ready: it has ended or
/// does not answer; not_permitted: it does not know the token, so the memory was freed.
[[nodiscard]] weir::result<std::vector<weir::descriptor>> fetch_descriptors(
    const memory_offer& offer);

}  // namespace weir_torch
