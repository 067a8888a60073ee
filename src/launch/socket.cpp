// See socket.h.
#include "socket.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "hasten/core/error.h"

namespace hasten::launcher {
namespace {

using Addresses = std::unique_ptr<addrinfo, void (*)(addrinfo*)>;

// All that the name stands for; none and the reason if it stands for nothing.
std::pair<Addresses, std::string> resolve(const std::string& name, int port, int kind = SOCK_STREAM) {
  addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = kind;
  addrinfo* found = nullptr;
  const int failed = getaddrinfo(name.c_str(), std::to_string(port).c_str(), &hints, &found);
  return {Addresses(failed == 0 ? found : nullptr, freeaddrinfo), failed == 0 ? "" : gai_strerror(failed)};
}

std::string text_of(const sockaddr* address, socklen_t size) {
  char name[NI_MAXHOST] = {};
  getnameinfo(address, size, name, sizeof name, nullptr, 0, NI_NUMERICHOST);
  return name;
}

[[noreturn]] void cannot_listen(const std::string& address, int port, const std::string& why) {
  throw UsageError({"launch"}, "machine 0 cannot listen on ", address, ':', port, ": ", why,
                   ". The address must be one of this machine's (--master_addr, the same on all), and the "
                   "port free there (--master_port); other machines need their own --node_rank.");
}

bool same_address(const sockaddr* a, const sockaddr* b) {
  if (a == nullptr || a->sa_family != b->sa_family) return false;
  if (a->sa_family == AF_INET) {
    return reinterpret_cast<const sockaddr_in*>(a)->sin_addr.s_addr ==
           reinterpret_cast<const sockaddr_in*>(b)->sin_addr.s_addr;
  }
  return a->sa_family == AF_INET6 &&
         std::memcmp(&reinterpret_cast<const sockaddr_in6*>(a)->sin6_addr,
                     &reinterpret_cast<const sockaddr_in6*>(b)->sin6_addr, sizeof(in6_addr)) == 0;
}

std::string interface_of(const sockaddr* address) {
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) return "";
  std::string name;
  for (const ifaddrs* one = first; one != nullptr && name.empty(); one = one->ifa_next) {
    if (same_address(one->ifa_addr, address)) name = one->ifa_name;
  }
  freeifaddrs(first);
  return name;
}

}  // namespace

Socket::~Socket() {
  if (handle_ >= 0) close(handle_);
}

Socket& Socket::operator=(Socket&& other) noexcept {
  if (handle_ >= 0) close(handle_);
  handle_ = std::exchange(other.handle_, -1);
  return *this;
}

Socket listen_at(const std::string& address, int port) {
  const auto [addresses, problem] = resolve(address, port);
  std::string why = problem;
  for (const addrinfo* one = addresses.get(); one != nullptr; one = one->ai_next) {
    Socket socket(::socket(one->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const int yes = 1;
    if (socket.handle() >= 0 &&
        setsockopt(socket.handle(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) == 0 &&
        bind(socket.handle(), one->ai_addr, one->ai_addrlen) == 0 &&
        listen(socket.handle(), SOMAXCONN) == 0) {
      if (is_loopback(text_of(one->ai_addr, one->ai_addrlen)) && !is_loopback(address)) {
        cannot_listen(address, port,
                      text("on this machine the name stands for ", text_of(one->ai_addr, one->ai_addrlen),
                           ", which no other machine can reach"));
      }
      return socket;
    }
    why = std::strerror(errno);
  }
  cannot_listen(address, port, why);
}

std::pair<Socket, std::string> accept_from(const Socket& listener) {
  sockaddr_storage address = {};
  socklen_t size = sizeof address;
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  Socket socket(accept4(listener.handle(), generic, &size, SOCK_CLOEXEC | SOCK_NONBLOCK));
  const std::string from = socket.handle() < 0 ? "" : text_of(generic, size);
  return {std::move(socket), from};
}

std::pair<Socket, std::string> connect_to(const std::string& address, int port,
                                          std::chrono::milliseconds patience) {
  const auto [addresses, problem] = resolve(address, port);
  std::string why = problem;
  for (const addrinfo* one = addresses.get(); one != nullptr; one = one->ai_next) {
    Socket socket(::socket(one->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    int reason = 0;
    socklen_t size = sizeof reason;
    if (connect(socket.handle(), one->ai_addr, one->ai_addrlen) == 0) return {std::move(socket), ""};
    reason = errno;
    pollfd source = {socket.handle(), POLLOUT, 0};
    if (reason == EINPROGRESS) {
      reason = poll(&source, 1, static_cast<int>(patience.count())) > 0 ? 0 : ETIMEDOUT;
      if (reason == 0) getsockopt(socket.handle(), SOL_SOCKET, SO_ERROR, &reason, &size);
    }
    if (reason == 0) return {std::move(socket), ""};
    why = std::strerror(reason);
  }
  return {Socket(), why};
}

std::string host_name() {
  char name[256] = {};
  return gethostname(name, sizeof name - 1) == 0 ? name : "";
}

std::string interface_towards(const std::string& address) {
  const auto [addresses, problem] = resolve(address, 9, SOCK_DGRAM);
  for (const addrinfo* one = addresses.get(); one != nullptr; one = one->ai_next) {
    // Connecting a datagram socket sends nothing: it only asks the kernel for the way.
    const Socket socket(::socket(one->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_storage mine = {};
    socklen_t size = sizeof mine;
    auto* const generic = reinterpret_cast<sockaddr*>(&mine);
    if (connect(socket.handle(), one->ai_addr, one->ai_addrlen) != 0) continue;
    if (getsockname(socket.handle(), generic, &size) != 0) continue;
    // The way to an address of this machine leads through lo; the interface is the one that has it.
    if (const std::string name = interface_of(generic); !name.empty()) return name;
  }
  return "";
}

bool is_this_machine(const std::string& name) {
  if (name == host_name()) return true;
  const auto [addresses, problem] = resolve(name, 0);
  for (const addrinfo* one = addresses.get(); one != nullptr; one = one->ai_next) {
    // Only an address of this machine can be bound.
    const Socket socket(::socket(one->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (bind(socket.handle(), one->ai_addr, one->ai_addrlen) == 0) return true;
  }
  return false;
}

bool is_loopback(const std::string& address) {
  return address == "localhost" || address == "::1" || address.starts_with("127.");
}

}  // namespace hasten::launcher
