// Serves the descriptors of shared blocks to other processes.
#include "ipc_server.hpp"

#include <sys/random.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <span>
#include <system_error>
#include <thread>
#include <utility>

namespace weir_torch {
namespace {

using namespace std::chrono_literals;

/// Below the kernel's limit for one message.
constexpr std::size_t max_descriptors = 128;
constexpr auto timeout = 5000ms;

weir::result<void> fill_randomly(std::span<std::uint8_t> buffer) {
  if (::getrandom(buffer.data(), buffer.size(), 0) == static_cast<ssize_t>(buffer.size()))
    return {};
  return weir::error{.code = weir::errc::system, .detail = "getrandom failed"};
}

std::string socket_path(std::uint64_t number) {
  const char* folder = secure_getenv("XDG_RUNTIME_DIR");
  if (folder == nullptr || *folder == '\0' || ::access(folder, W_OK) != 0 ||
      std::strlen(folder) > 60)
    folder = "/tmp";
  return std::string{folder} + "/weir-torch-" + std::to_string(::getpid()) + "-" +
         std::to_string(number);
}

}  // namespace

weir::result<ipc_server*> ipc_server::open() {
  std::array<std::uint8_t, 4> seed{};
  WEIR_TRY(fill_randomly(seed));
  std::uint32_t number = 0;
  std::memcpy(&number, seed.data(), sizeof number);
  WEIR_TRY_VALUE(socket, weir::share_listener::listen(socket_path(number)));
  static std::string path;  // of the last server's socket, removed at exit
  static pid_t owner = 0;
  path = socket.path();
  owner = ::getpid();
  static const int registered = std::atexit([] {
    if (::getpid() == owner) static_cast<void>(::unlink(path.c_str()));
  });
  static_cast<void>(registered);
  auto* const server = new ipc_server{std::move(socket)};
  try {
    std::thread{[server] { server->serve(); }}.detach();
  } catch (const std::system_error& refused) {
    delete server;
    return weir::error{.code = weir::errc::system, .detail = refused.what()};
  }
  return server;
}

weir::result<ipc_handle> ipc_server::offer(std::uint64_t name,
                                           std::vector<weir::descriptor> descriptors,
                                           std::vector<std::uint64_t> sizes) {
  const std::lock_guard lock{mutex_};
  if (const auto entry = offers_.find(name); entry != offers_.end()) return entry->second.handle;
  offered_block block;
  WEIR_TRY(fill_randomly(block.handle.token));
  block.handle.socket = socket_.path();
  block.handle.sizes = std::move(sizes);
  block.descriptors = std::make_shared<const std::vector<weir::descriptor>>(std::move(descriptors));
  ipc_handle handle = block.handle;
  offers_.emplace(name, std::move(block));
  return handle;
}

std::optional<ipc_handle> ipc_server::find(std::uint64_t name) const {
  const std::lock_guard lock{mutex_};
  const auto entry = offers_.find(name);
  if (entry == offers_.end()) return std::nullopt;
  return entry->second.handle;
}

bool ipc_server::withdraw(std::uint64_t name) noexcept {
  const std::lock_guard lock{mutex_};
  return offers_.erase(name) != 0;
}

void ipc_server::serve() noexcept {
  for (;;) {
    try {
      const auto client = socket_.accept(1h);
      if (client) answer(*client);
    } catch (...) {
      // This client gets no answer and reports that; the next one is served.
    }
  }
}

void ipc_server::answer(const weir::share_channel& client) const {
  const auto request = client.receive(timeout);
  if (!request || request->from.user != ::geteuid()) return;
  std::shared_ptr<const std::vector<weir::descriptor>> descriptors;
  {
    const std::lock_guard lock{mutex_};
    for (const auto& [name, block] : offers_) {
      const auto& token = block.handle.token;
      if (request->content.size() == token.size() &&
          std::memcmp(request->content.data(), token.data(), token.size()) == 0)
        descriptors = block.descriptors;
    }
  }
  if (descriptors == nullptr) {
    constexpr std::byte no{0};
    static_cast<void>(client.send({&no, 1}, {}, timeout));
    return;
  }
  constexpr std::byte yes{1};
  std::vector<int> numbers;
  for (const weir::descriptor& each : *descriptors) {
    numbers.push_back(each.get());
    if (numbers.size() < max_descriptors && &each != &descriptors->back()) continue;
    if (!client.send({&yes, 1}, numbers, timeout)) return;
    numbers.clear();
  }
}

weir::result<std::vector<weir::descriptor>> fetch_descriptors(const ipc_handle& handle) {
  WEIR_TRY_VALUE(server, weir::share_channel::connect(handle.socket, timeout));
  WEIR_TRY(server.send(std::as_bytes(std::span{handle.token}), {}, timeout));
  std::vector<weir::descriptor> descriptors;
  while (descriptors.size() < handle.sizes.size()) {
    WEIR_TRY_VALUE(message, server.receive(timeout));
    if (message.from.user != ::geteuid() || message.content != std::vector{std::byte{1}} ||
        message.descriptors.empty()) {
      return weir::error{.code = weir::errc::not_permitted,
                         .detail = "the process that shared the memory has freed it"};
    }
    for (weir::descriptor& each : message.descriptors) descriptors.push_back(std::move(each));
  }
  if (descriptors.size() != handle.sizes.size()) {
    return weir::error{.code = weir::errc::invalid_argument,
                       .detail = "more descriptors came than the handle names"};
  }
  return descriptors;
}

}  // namespace weir_torch
