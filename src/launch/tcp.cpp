// Thin wrappers of the system's calls; see tcp.h.
#include "tcp.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>

#include "hasten/core/error.h"

namespace hasten::launcher {
namespace {

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

AddressList look_up(const Endpoint& where, int flags) {
  addrinfo wanted = {};
  wanted.ai_family = AF_UNSPEC;
  wanted.ai_socktype = SOCK_STREAM;
  wanted.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(where.host.c_str(), std::to_string(where.port).c_str(), &wanted, &found);
  if (error != 0) {
    throw UsageError({"launch"}, "the address '", where.host, "' is unknown: ", gai_strerror(error),
                     ". Correct it, or give a number.");
  }
  return {found, freeaddrinfo};
}

int socket_for(const addrinfo& address) {
  return socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

Endpoint from_sockaddr(const sockaddr_storage& address, socklen_t size) {
  char host[NI_MAXHOST], port[NI_MAXSERV];
  const auto* generic = reinterpret_cast<const sockaddr*>(&address);
  if (getnameinfo(generic, size, host, sizeof host, port, sizeof port, NI_NUMERICHOST | NI_NUMERICSERV) != 0)
    return {};
  return {host, std::atoi(port)};
}

}  // namespace

Endpoint parse_endpoint(const std::string& word, int default_port) {
  const size_t bracket = word.rfind(']');
  const size_t colon = word.rfind(':');
  const bool has_port = colon != std::string::npos && (bracket == std::string::npos || colon > bracket);
  Endpoint endpoint{has_port ? word.substr(0, colon) : word, default_port};
  if (endpoint.host.starts_with('[') && endpoint.host.ends_with(']'))
    endpoint.host = endpoint.host.substr(1, endpoint.host.size() - 2);
  if (!has_port) return endpoint;
  const char* const end = word.data() + word.size();
  const auto [stop, error] = std::from_chars(word.data() + colon + 1, end, endpoint.port);
  if (error != std::errc() || stop != end || endpoint.port < 0 || endpoint.port > 65535) {
    throw UsageError({"launch"}, "--rdzv_endpoint: '", word,
                     "' has no port between 0 and 65535 behind the colon.");
  }
  return endpoint;
}

std::string shown(const Endpoint& endpoint) {
  const bool six = endpoint.host.find(':') != std::string::npos;
  return text(six ? "[" : "", endpoint.host, six ? "]:" : ":", endpoint.port);
}

Socket listen_at(const Endpoint& where, int& reason) {
  const AddressList addresses = look_up(where, AI_PASSIVE);
  reason = EADDRNOTAVAIL;
  for (const addrinfo* address = addresses.get(); address != nullptr; address = address->ai_next) {
    sockaddr_storage numeric = {};
    std::memcpy(&numeric, address->ai_addr, address->ai_addrlen);
    if (is_loopback(from_sockaddr(numeric, address->ai_addrlen).host) && !is_loopback(where.host)) continue;
    Socket listener(socket_for(*address));
    const int yes = 1;
    setsockopt(listener.handle(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (bind(listener.handle(), address->ai_addr, address->ai_addrlen) == 0 &&
        listen(listener.handle(), SOMAXCONN) == 0)
      return listener;
    reason = errno;
  }
  return Socket();
}

Socket connect_to(const Endpoint& where, const std::string& from) {
  const AddressList addresses = look_up(where, 0);
  for (const addrinfo* address = addresses.get(); address != nullptr; address = address->ai_next) {
    Socket socket(socket_for(*address));
    const int yes = 1;
    setsockopt(socket.handle(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    if (!from.empty()) {
      const AddressList local = look_up({from, 0}, 0);
      if (bind(socket.handle(), local->ai_addr, local->ai_addrlen) != 0) continue;
    }
    const int result = connect(socket.handle(), address->ai_addr, address->ai_addrlen);
    if (result == 0 || errno == EINPROGRESS) return socket;
  }
  return Socket();
}

int connect_error(const Socket& socket) {
  int error = 0;
  socklen_t size = sizeof error;
  getsockopt(socket.handle(), SOL_SOCKET, SO_ERROR, &error, &size);
  return error;
}

std::string address_towards(const Endpoint& where) {
  const AddressList addresses = look_up(where, 0);
  for (const addrinfo* address = addresses.get(); address != nullptr; address = address->ai_next) {
    // Connecting a datagram socket sends nothing.
    const Socket socket(::socket(address->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    if (connect(socket.handle(), address->ai_addr, address->ai_addrlen) == 0) return local_end(socket).host;
  }
  return "";
}

Endpoint local_end(const Socket& socket) {
  sockaddr_storage address = {};
  socklen_t size = sizeof address;
  getsockname(socket.handle(), reinterpret_cast<sockaddr*>(&address), &size);
  return from_sockaddr(address, size);
}

Endpoint remote_end(const Socket& socket) {
  sockaddr_storage address = {};
  socklen_t size = sizeof address;
  getpeername(socket.handle(), reinterpret_cast<sockaddr*>(&address), &size);
  return from_sockaddr(address, size);
}

}  // namespace hasten::launcher
