// SPDX-License-Identifier: Apache-2.0
// Serves the descriptors of shared blocks to other processes.
#include "ipc_server.hpp"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <new>
#include <system_error>
#include <thread>
#include <utility>

#include "process_descriptors.hpp"

namespace weir_torch {
namespace {

using namespace std::chrono_literals;

/// Below the kernel's limit for one message.
constexpr std::size_t max_descriptors = 128;
constexpr auto timeout = 5000ms;
/// Clients that have connected and said nothing. Of more, the oldest is dropped.
constexpr std::size_t max_clients = 64;
constexpr auto idle_wait = std::chrono::milliseconds{1h};
constexpr auto client_interval = 1ms;
constexpr auto retry_interval = 50ms;

/// Blocks signals while threads are started that must not take the program's.
class signals_blocked {
 public:
  signals_blocked() noexcept {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before_);
  }
  ~signals_blocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  signals_blocked(const signals_blocked&) = delete;
  signals_blocked& operator=(const signals_blocked&) = delete;

 private:
  sigset_t before_;
};

weir::result<void> fill_randomly(std::span<std::uint8_t> buffer) {
  if (::getrandom(buffer.data(), buffer.size(), 0) == static_cast<ssize_t>(buffer.size()))
    return {};
  return weir::error{{.code = weir::errc::system, .detail = "getrandom failed"}};
}

std::string socket_path(std::uint64_t number) {
  const char* folder = secure_getenv("WEIR_SOCKET_FOLDER");
  if (folder == nullptr || *folder == '\0') folder = secure_getenv("XDG_RUNTIME_DIR");
  if (folder == nullptr || *folder == '\0' || ::access(folder, W_OK) != 0 ||
      std::strlen(folder) > 60)
    folder = "/tmp";
  return std::string{folder} + "/weir-torch-" + std::to_string(::getpid()) + "-" +
         std::to_string(number);
}

constexpr std::byte answer_freed{0};
constexpr std::byte answer_descriptors{1};
constexpr std::byte answer_no_descriptors{2};

rlimit descriptor_limit() noexcept {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) limit.rlim_cur = limit.rlim_max = 1024;
  return limit;
}

/// Shared memory takes a descriptor for each handle, and the soft limit is 1024 on most systems,
/// for the sake of programs that call select().
void raise_descriptor_limit() noexcept {
  rlimit limit = descriptor_limit();
  if (limit.rlim_cur >= limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  static_cast<void>(::setrlimit(RLIMIT_NOFILE, &limit));
}

bool has_descriptors_left() noexcept {
  const weir::descriptor probe{::open("/dev/null", O_RDONLY | O_CLOEXEC)};
  return static_cast<bool>(probe) || errno != EMFILE;
}

/// Why an export failed: drivers call a lack of descriptors a lack of memory.
weir::error export_failure(weir::error reason) {
  if (has_descriptors_left()) return reason;
  return {{.code = weir::errc::system,
           .detail = "no descriptors left to share memory with: this process may have " +
                     std::to_string(descriptor_limit().rlim_cur) +
                     " open (RLIMIT_NOFILE); raise the limit (ulimit -n)"}};
}

}  // namespace

weir::result<ipc_server*> ipc_server::open(torch_format format) {
  raise_descriptor_limit();
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
  auto* const server = new ipc_server{std::move(socket), format};
  const signals_blocked quiet;
  try {
    std::thread{[server] { server->serve(); }}.detach();
  } catch (const std::system_error& refused) {
    delete server;
    return weir::error{{.code = weir::errc::system, .detail = refused.what()}};
  }
  return server;
}

weir::result<std::shared_ptr<const weir::descriptor>> ipc_server::descriptor_of(
    const weir::vmm::physical& handle, const exporter& export_descriptor) {
  const auto known = exported_.find(handle.handle);
  if (known != exported_.end()) return known->second.descriptor;
  auto exported = export_descriptor(handle);
  if (!exported) return export_failure(std::move(exported).error());
  return std::make_shared<const weir::descriptor>(*std::move(exported));
}

weir::result<ipc_server::offered_memory> ipc_server::make_offer(
    std::span<const weir::vmm::physical> handles, const exporter& export_descriptor) {
  memory_offer offer;
  WEIR_TRY(fill_randomly(offer.token));
  offer.socket = socket_.path();
  process_descriptors by_number{
      .process = ::getpid(), .size = handles.front().size.count(), .numbers = {}};
  bool is_uniform = true;
  for (const weir::vmm::physical& each : handles) {
    offer.sizes.push_back(each.size.count());
    is_uniform = is_uniform && each.size == handles.front().size;
  }
  auto memory = std::make_shared<offered_handles>();
  memory->handles.assign(handles.begin(), handles.end());
  memory->export_descriptor = export_descriptor;
  const bool is_named =
      is_uniform && exported_.size() + handles.size() <= descriptor_limit().rlim_cur / 4;
  if (is_named) {
    for (const weir::vmm::physical& each : handles) {
      WEIR_TRY_VALUE(descriptor, descriptor_of(each, export_descriptor));
      by_number.numbers.push_back(descriptor->get());
      memory->named.push_back(std::move(descriptor));
    }
  } else {
    // Memory that cannot be exported is not offered.
    WEIR_TRY(descriptor_of(handles.front(), export_descriptor));
  }
  offer.opens_without_weir = is_named && can_be_copied_from();
  ipc_handle handle;
  if (is_named) handle.descriptors = std::move(by_number);
  handle.offer = std::move(offer);
  return offered_memory{.token = handle.offer->token,
                        .memory = std::move(memory),
                        .handle = handle.serialize(format_),
                        .blocks = 0};
}

weir::result<std::string> ipc_server::offer(std::uint64_t block,
                                            std::span<const weir::vmm::physical> handles,
                                            const exporter& export_descriptor) {
  if (handles.empty() || handles.size() > ipc_handle::max_handles)
    return weir::error{{.code = weir::errc::invalid_argument,
                        .detail = "the block has no physical handles, or too many to share"}};
  const std::lock_guard lock{mutex_};
  if (const auto known = blocks_.find(block); known != blocks_.end())
    return known->second->second.handle;
  std::vector<std::uint64_t> names;
  names.reserve(handles.size());
  for (const weir::vmm::physical& each : handles) names.push_back(each.handle);
  auto entry = offers_.find(names);
  if (entry == offers_.end()) {
    WEIR_TRY_VALUE(made, make_offer(handles, export_descriptor));
    for (std::size_t i = 0; i < made.memory->named.size(); ++i) {
      exported_handle& exported = exported_[names[i]];
      exported.descriptor = made.memory->named[i];
      ++exported.offers;
    }
    entry = offers_.emplace(std::move(names), std::move(made)).first;
  }
  blocks_.emplace(block, entry);
  ++entry->second.blocks;
  return entry->second.handle;
}

std::optional<std::string> ipc_server::find(std::uint64_t block) const {
  const std::lock_guard lock{mutex_};
  const auto entry = blocks_.find(block);
  if (entry == blocks_.end()) return std::nullopt;
  return entry->second->second.handle;
}

bool ipc_server::withdraw(std::uint64_t block) noexcept {
  const std::lock_guard lock{mutex_};
  const auto entry = blocks_.find(block);
  if (entry == blocks_.end()) return false;
  const auto offer = entry->second;
  blocks_.erase(entry);
  if (--offer->second.blocks != 0) return true;
  offered_handles& memory = *offer->second.memory;
  memory.withdrawn = true;
  for (std::size_t i = 0; i < memory.named.size(); ++i) {
    const auto exported = exported_.find(offer->first[i]);
    if (--exported->second.offers == 0) exported_.erase(exported);
  }
  offers_.erase(offer);
  return true;
}

void ipc_server::serve() noexcept {
  std::deque<waiting_client> clients;
  for (;;) {
    try {
      // Clients that have said nothing yet are asked again every millisecond, until their deadline.
      auto accepted = socket_.accept(clients.empty() ? idle_wait : client_interval);
      if (accepted) {
        if (clients.size() == max_clients) clients.pop_front();
        clients.push_back({*std::move(accepted), std::chrono::steady_clock::now() + timeout});
      } else if (accepted.code() != weir::errc::not_ready) {
        std::this_thread::sleep_for(retry_interval);  // no descriptors: clients wait in the backlog
      }
      std::erase_if(clients, [&](waiting_client& each) { return is_done_with(each); });
    } catch (...) {
      // A client gets no answer and reports that; the next one is served.
    }
  }
}

bool ipc_server::is_done_with(waiting_client& client) const {
  const auto request = client.channel.receive(0ms);
  if (!request && request.code() == weir::errc::not_ready)
    return std::chrono::steady_clock::now() >= client.deadline;
  if (request && request->from.user == ::geteuid()) answer(client.channel, request->content);
  return true;
}

void ipc_server::answer(weir::share_channel& client, std::span<const std::byte> token) const {
  std::shared_ptr<const offered_handles> offered;
  {
    const std::lock_guard lock{mutex_};
    for (const auto& [names, memory] : offers_) {
      if (token.size() == memory.token.size() &&
          std::memcmp(token.data(), memory.token.data(), memory.token.size()) == 0)
        offered = memory.memory;
    }
  }
  if (offered == nullptr) {
    static_cast<void>(client.send({&answer_freed, 1}, {}, 0ms));
  } else if (offered->handles.size() <= max_descriptors) {
    send_all(client, *offered, 0ms);  // there is room for one message
  } else {
    // A client that does not read must not keep others waiting.
    std::thread{[this, channel = std::move(client), offered] {
      send_all(channel, *offered, timeout);
    }}.detach();
  }
}

weir::result<std::shared_ptr<const weir::descriptor>> ipc_server::descriptor_at(
    const offered_handles& offered, std::size_t index) const {
  if (!offered.named.empty()) return offered.named[index];
  // Locked for one at a time: a free of the memory waits for the lock.
  const std::lock_guard lock{mutex_};
  if (offered.withdrawn) return weir::errc::not_found;
  WEIR_TRY_VALUE(made, offered.export_descriptor(offered.handles[index]));
  return std::make_shared<const weir::descriptor>(std::move(made));
}

void ipc_server::send_all(const weir::share_channel& client, const offered_handles& offered,
                          std::chrono::milliseconds limit) const try {
  std::vector<std::shared_ptr<const weir::descriptor>> batch;
  std::vector<int> numbers;
  const std::size_t count = offered.handles.size();
  for (std::size_t i = 0; i < count; ++i) {
    auto next = descriptor_at(offered, i);
    if (!next) {
      const bool is_freed = next.code() == weir::errc::not_found;
      const std::byte refused = is_freed ? answer_freed : answer_no_descriptors;
      static_cast<void>(client.send({&refused, 1}, {}, limit));
      return;
    }
    numbers.push_back((*next)->get());
    batch.push_back(*std::move(next));
    if (numbers.size() < max_descriptors && i + 1 < count) continue;
    if (!client.send({&answer_descriptors, 1}, numbers, limit)) return;
    numbers.clear();
    batch.clear();
  }
} catch (const std::bad_alloc&) {
  // The client gets no more, and reports that.
}

weir::result<void> fetch_descriptors(const memory_offer& offer, const descriptor_taker& take) {
  raise_descriptor_limit();
  WEIR_TRY_VALUE(server, weir::share_channel::connect(offer.socket, timeout));
  WEIR_TRY(server.send(std::as_bytes(std::span{offer.token}), {}, timeout));
  for (std::size_t fetched = 0; fetched < offer.sizes.size();) {
    WEIR_TRY_VALUE(message, server.receive(timeout));
    if (message.from.user == ::geteuid() && message.content == std::vector{answer_no_descriptors}) {
      return weir::error{{.code = weir::errc::system,
                          .detail =
                              "the process that shared the memory cannot export it: it has no "
                              "descriptors left (ulimit -n there), or its GPU failed"}};
    }
    if (message.from.user != ::geteuid() || message.content != std::vector{answer_descriptors} ||
        message.descriptors.empty()) {
      return weir::error{{.code = weir::errc::not_permitted,
                          .detail = "the process that shared the memory has freed it"}};
    }
    fetched += message.descriptors.size();
    if (fetched > offer.sizes.size()) {
      return weir::error{
          {.code = weir::errc::invalid_argument,
           .detail = "the other process sent more descriptors than the handle names"}};
    }
    WEIR_TRY(take(message.descriptors));
  }
  return {};
}

}  // namespace weir_torch
