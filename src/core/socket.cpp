// Thin wrappers of the system's calls; see socket.h.
#include "hasten/core/socket.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <memory>

#include "hasten/core/error.h"
#include "hasten/core/number.h"

namespace hasten::net {
namespace {

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

// All addresses of the name; none and the reason if it has none.
std::pair<AddressList, std::string> resolve(const Endpoint& where, int kind = SOCK_STREAM, int flags = 0) {
  addrinfo requested = {};
  requested.ai_family = AF_UNSPEC;
  requested.ai_socktype = kind;
  requested.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int failed = getaddrinfo(where.host.c_str(), std::to_string(where.port).c_str(), &requested, &found);
  return {AddressList(failed == 0 ? found : nullptr, freeaddrinfo), failed == 0 ? "" : gai_strerror(failed)};
}

// The same for a name that must have an address.
AddressList look_up(const Endpoint& where, int kind = SOCK_STREAM) {
  auto [addresses, problem] = resolve(where, kind);
  if (!problem.empty()) {
    throw UsageError({"network"}, "the address '", where.host, "' is unknown: ", problem,
                     ". Correct it, or give a number.");
  }
  return std::move(addresses);
}

Socket socket_for(const addrinfo& address) {
  return Socket(socket(address.ai_family, address.ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

bool connects(const Socket& socket, const addrinfo& address) {
  return connect(socket.handle(), address.ai_addr, address.ai_addrlen) == 0;
}

Endpoint endpoint_of(const sockaddr* address, socklen_t size) {
  char host[NI_MAXHOST], port[NI_MAXSERV];
  if (getnameinfo(address, size, host, sizeof host, port, sizeof port, NI_NUMERICHOST | NI_NUMERICSERV) != 0) return {};
  return {host, core::whole_number<int>(port).value_or(0)};
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

using Interfaces = std::unique_ptr<ifaddrs, decltype(&freeifaddrs)>;

// A list of all of this machine's; none if they are unknown.
Interfaces interfaces() {
  ifaddrs* first = nullptr;
  return Interfaces(getifaddrs(&first) == 0 ? first : nullptr, freeifaddrs);
}

std::string interface_of(const sockaddr* address) {
  const Interfaces all = interfaces();
  for (const ifaddrs* one = all.get(); one != nullptr; one = one->ifa_next) {
    if (same_address(one->ifa_addr, address)) return one->ifa_name;
  }
  return "";
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

std::string shown(const Endpoint& endpoint) {
  const bool six = endpoint.host.find(':') != std::string::npos;
  return text(six ? "[" : "", endpoint.host, six ? "]:" : ":", endpoint.port);
}

std::pair<Socket, std::string> listen_at(const Endpoint& where) {
  const auto [addresses, problem] = resolve(where, SOCK_STREAM, AI_PASSIVE);
  std::string why = problem;
  for (const addrinfo* one = addresses.get(); one != nullptr; one = one->ai_next) {
    const std::string number = endpoint_of(one->ai_addr, one->ai_addrlen).host;
    if (is_loopback(number) && !is_loopback(where.host)) {
      why = text("on this machine the name stands for ", number, ", which no other machine can reach");
      continue;
    }
    Socket listener = socket_for(*one);
    const int yes = 1;
    if (listener.handle() >= 0 && setsockopt(listener.handle(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) == 0 &&
        bind(listener.handle(), one->ai_addr, one->ai_addrlen) == 0 && listen(listener.handle(), SOMAXCONN) == 0)
      return {std::move(listener), ""};
    why = std::strerror(errno);
  }
  return {Socket(), why};
}

std::pair<Socket, std::string> accept_from(const Socket& listener) {
  sockaddr_storage address = {};
  socklen_t size = sizeof address;
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  Socket socket(accept4(listener.handle(), generic, &size, SOCK_CLOEXEC | SOCK_NONBLOCK));
  const std::string from = socket.handle() < 0 ? "" : endpoint_of(generic, size).host;
  return {std::move(socket), from};
}

Socket connect_to(const Endpoint& where, const std::string& from) {
  const AddressList addresses = look_up(where);
  for (const addrinfo* one = addresses.get(); one != nullptr; one = one->ai_next) {
    Socket socket = socket_for(*one);
    const int yes = 1;
    setsockopt(socket.handle(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    if (!from.empty()) {
      const AddressList local = look_up({from, 0});
      if (bind(socket.handle(), local->ai_addr, local->ai_addrlen) != 0) continue;
    }
    if (connects(socket, *one) || errno == EINPROGRESS) return socket;
  }
  return Socket();
}

int connect_error(const Socket& socket) {
  int error = 0;
  socklen_t size = sizeof error;
  getsockopt(socket.handle(), SOL_SOCKET, SO_ERROR, &error, &size);
  return error;
}

bool is_ready_within(const Socket& socket, short events, std::chrono::milliseconds timeout) {
  using Clock = std::chrono::steady_clock;
  constexpr int64_t kLongest = INT_MAX / 2;
  const auto end = Clock::now() + std::min(timeout, std::chrono::milliseconds(kLongest));
  pollfd source = {socket.handle(), events, 0};
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now()).count();
    const int found = poll(&source, 1, static_cast<int>(std::max<int64_t>(left, 0)));
    if (found >= 0 || errno != EINTR) return found > 0;
  }
}

std::pair<Socket, std::string> connect_within(const Endpoint& where, std::chrono::milliseconds timeout) {
  const auto [addresses, problem] = resolve(where);
  std::string why = problem;
  for (const addrinfo* one = addresses.get(); one != nullptr; one = one->ai_next) {
    Socket socket = socket_for(*one);
    if (connects(socket, *one)) return {std::move(socket), ""};
    int reason = errno;
    if (reason == EINPROGRESS) reason = is_ready_within(socket, POLLOUT, timeout) ? connect_error(socket) : ETIMEDOUT;
    if (reason == 0) return {std::move(socket), ""};
    why = std::strerror(reason);
  }
  return {Socket(), why};
}

Endpoint local_end(const Socket& socket) {
  sockaddr_storage address = {};
  socklen_t size = sizeof address;
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  return getsockname(socket.handle(), generic, &size) == 0 ? endpoint_of(generic, size) : Endpoint();
}

Endpoint remote_end(const Socket& socket) {
  sockaddr_storage address = {};
  socklen_t size = sizeof address;
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  return getpeername(socket.handle(), generic, &size) == 0 ? endpoint_of(generic, size) : Endpoint();
}

std::string address_towards(const Endpoint& where) {
  const AddressList addresses = look_up(where, SOCK_DGRAM);
  for (const addrinfo* one = addresses.get(); one != nullptr; one = one->ai_next) {
    // Connecting a datagram socket sends nothing: it only makes the kernel choose the route.
    const Socket socket = socket_for(*one);
    if (connects(socket, *one)) return local_end(socket).host;
  }
  return "";
}

std::string address_of_interface(const std::string& name) {
  const Interfaces all = interfaces();
  for (const int family : {AF_INET, AF_INET6}) {
    const socklen_t size = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    for (const ifaddrs* one = all.get(); one != nullptr; one = one->ifa_next) {
      const bool fits = one->ifa_addr != nullptr && one->ifa_addr->sa_family == family && name == one->ifa_name;
      if (fits) return endpoint_of(one->ifa_addr, size).host;
    }
  }
  return "";
}

std::string interface_towards(const std::string& address) {
  const auto [addresses, problem] = resolve({address, 9}, SOCK_DGRAM);
  for (const addrinfo* one = addresses.get(); one != nullptr; one = one->ai_next) {
    const Socket socket = socket_for(*one);
    sockaddr_storage mine = {};
    socklen_t size = sizeof mine;
    auto* const generic = reinterpret_cast<sockaddr*>(&mine);
    if (!connects(socket, *one) || getsockname(socket.handle(), generic, &size) != 0) continue;
    // The route to an address of this machine leads through lo. The interface is the one that has the address.
    if (const std::string name = interface_of(generic); !name.empty()) return name;
  }
  return "";
}

std::string host_name() {
  char name[256] = {};
  return gethostname(name, sizeof name - 1) == 0 ? name : "";
}

bool is_this_machine(const std::string& name) {
  if (name == host_name()) return true;
  const auto [addresses, problem] = resolve({name, 0});
  for (const addrinfo* one = addresses.get(); one != nullptr; one = one->ai_next) {
    // Only an address of this machine can be bound.
    if (bind(socket_for(*one).handle(), one->ai_addr, one->ai_addrlen) == 0) return true;
  }
  return false;
}

bool is_loopback(const std::string& address) {
  return address == "localhost" || address == "::1" || address.starts_with("127.");
}

}  // namespace hasten::net
