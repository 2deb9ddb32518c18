// The desk where other processes fetch descriptors.
#include "descriptor_desk.hpp"

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

/// Below what the kernel takes with one message.
constexpr std::size_t at_a_time = 128;
constexpr auto patience = 5000ms;

weir::result<void> fill_randomly(std::span<std::uint8_t> what) {
  if (::getrandom(what.data(), what.size(), 0) == static_cast<ssize_t>(what.size())) return {};
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

weir::result<descriptor_desk*> descriptor_desk::open() {
  std::array<std::uint8_t, 4> chance{};
  WEIR_TRY(fill_randomly(chance));
  std::uint32_t number = 0;
  std::memcpy(&number, chance.data(), sizeof number);
  WEIR_TRY_VALUE(socket, weir::share_listener::listen(socket_path(number)));
  static std::string listening;  // what the exit must remove; the last desk's
  static pid_t owner = 0;
  listening = socket.path();
  owner = ::getpid();
  static const int registered = std::atexit([] {
    if (::getpid() == owner) static_cast<void>(::unlink(listening.c_str()));
  });
  static_cast<void>(registered);
  auto* const desk = new descriptor_desk{std::move(socket)};
  try {
    std::thread{[desk] { desk->serve(); }}.detach();
  } catch (const std::system_error& refused) {
    delete desk;
    return weir::error{.code = weir::errc::system, .detail = refused.what()};
  }
  return desk;
}

weir::result<ipc_handle> descriptor_desk::offer(std::uint64_t name,
                                                std::vector<weir::descriptor> descriptors,
                                                std::vector<std::uint64_t> sizes) {
  const std::lock_guard lock{mutex_};
  if (const auto found = offers_.find(name); found != offers_.end()) return found->second.handle;
  given made;
  WEIR_TRY(fill_randomly(made.handle.ticket));
  made.handle.socket = socket_.path();
  made.handle.pieces = std::move(sizes);
  made.descriptors = std::make_shared<const std::vector<weir::descriptor>>(std::move(descriptors));
  ipc_handle handle = made.handle;
  offers_.emplace(name, std::move(made));
  return handle;
}

bool descriptor_desk::offered(std::uint64_t name, ipc_handle& what) const {
  const std::lock_guard lock{mutex_};
  const auto found = offers_.find(name);
  if (found == offers_.end()) return false;
  what = found->second.handle;
  return true;
}

bool descriptor_desk::withdraw(std::uint64_t name) noexcept {
  const std::lock_guard lock{mutex_};
  return offers_.erase(name) != 0;
}

std::size_t descriptor_desk::offers() const {
  const std::lock_guard lock{mutex_};
  return offers_.size();
}

void descriptor_desk::serve() noexcept {
  for (;;) {
    try {
      const auto caller = socket_.accept(1h);
      if (caller) answer(*caller);
    } catch (...) {
      // Whoever asked gets no answer and says so; the next one is served.
    }
  }
}

void descriptor_desk::answer(const weir::share_channel& to) const {
  const auto asked = to.receive(patience);
  if (!asked || asked->from.user != ::geteuid()) return;
  std::shared_ptr<const std::vector<weir::descriptor>> wanted;
  {
    const std::lock_guard lock{mutex_};
    for (const auto& [name, each] : offers_) {
      if (asked->content.size() == each.handle.ticket.size() &&
          std::memcmp(asked->content.data(), each.handle.ticket.data(),
                      each.handle.ticket.size()) == 0)
        wanted = each.descriptors;
    }
  }
  if (wanted == nullptr) {
    constexpr std::byte no{0};
    static_cast<void>(to.send({&no, 1}, {}, patience));
    return;
  }
  constexpr std::byte yes{1};
  std::vector<int> numbers;
  for (const weir::descriptor& each : *wanted) {
    numbers.push_back(each.get());
    if (numbers.size() < at_a_time && &each != &wanted->back()) continue;
    if (!to.send({&yes, 1}, numbers, patience)) return;
    numbers.clear();
  }
}

weir::result<std::vector<weir::descriptor>> descriptor_desk::fetch(const ipc_handle& what) {
  WEIR_TRY_VALUE(desk, weir::share_channel::connect(what.socket, patience));
  WEIR_TRY(desk.send(std::as_bytes(std::span{what.ticket}), {}, patience));
  std::vector<weir::descriptor> out;
  while (out.size() < what.pieces.size()) {
    WEIR_TRY_VALUE(message, desk.receive(patience));
    if (message.from.user != ::geteuid() || message.content != std::vector{std::byte{1}} ||
        message.descriptors.empty()) {
      return weir::error{.code = weir::errc::not_permitted,
                         .detail = "the process that shared the memory has freed it"};
    }
    for (weir::descriptor& each : message.descriptors) out.push_back(std::move(each));
  }
  if (out.size() != what.pieces.size()) {
    return weir::error{.code = weir::errc::invalid_argument,
                       .detail = "more descriptors came than the handle names"};
  }
  return out;
}

}  // namespace weir_torch
