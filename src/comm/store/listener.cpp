// See listener.h.
#include "comm/store/listener.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "hasten/core/text.h"

namespace hasten::comm {
namespace {

// Returns true if a socket has reached itself. On a free port the kernel may choose that very port as the client's own,
// and TCP lets both ends be one socket.
bool is_its_own_peer(int fd) {
  sockaddr_storage own{}, peer{};
  socklen_t own_size = sizeof own, peer_size = sizeof peer;
  return getsockname(fd, reinterpret_cast<sockaddr*>(&own), &own_size) == 0 &&
         getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &peer_size) == 0 && own_size == peer_size &&
         std::memcmp(&own, &peer, own_size) == 0;
}

bool is_same_host(const sockaddr& a, const sockaddr& b) {
  if (a.sa_family != b.sa_family) return false;
  if (a.sa_family == AF_INET) {
    return reinterpret_cast<const sockaddr_in&>(a).sin_addr.s_addr ==
           reinterpret_cast<const sockaddr_in&>(b).sin_addr.s_addr;
  }
  return a.sa_family == AF_INET6 && std::memcmp(&reinterpret_cast<const sockaddr_in6&>(a).sin6_addr,
                                                &reinterpret_cast<const sockaddr_in6&>(b).sin6_addr, 16) == 0;
}

bool is_loopback_address(const sockaddr& address) {
  if (address.sa_family == AF_INET)
    return (ntohl(reinterpret_cast<const sockaddr_in&>(address).sin_addr.s_addr) >> 24) == 127;
  return address.sa_family == AF_INET6 &&
         IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr) != 0;
}

}  // namespace

// SO_REUSEADDR, so that a server can take the port while this socket holds it as its own.
int error_of_connection(const addrinfo& address) {
  const int fd = socket(address.ai_family, address.ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, address.ai_protocol);
  if (fd < 0) return errno;
  const int yes = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  int error = connect(fd, address.ai_addr, address.ai_addrlen) == 0 ? 0 : errno;
  pollfd answer = {fd, POLLOUT, 0};
  socklen_t size = sizeof error;
  if (error == EINPROGRESS && poll(&answer, 1, 1000) == 1) getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
  if (error == 0 && is_its_own_peer(fd)) error = ECONNREFUSED;
  close(fd);
  return error;
}

bool is_no_way(int error) noexcept {
  return error == ENETUNREACH || error == EHOSTUNREACH || error == EADDRNOTAVAIL;
}

bool is_own_address(const sockaddr& address) {
  if (is_loopback_address(address)) return true;
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) return false;
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> all(first, freeifaddrs);
  for (const ifaddrs* one = first; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr != nullptr && is_same_host(*one->ifa_addr, address)) return true;
  }
  return false;
}

ListenerAnswer ask_listener(const addrinfo* addresses) {
  ListenerAnswer answer{.no_way = addresses != nullptr, .no_way_here = addresses != nullptr};
  for (const addrinfo* address = addresses; address != nullptr; address = address->ai_next) {
    const int error = error_of_connection(*address);
    answer.listens = answer.listens || (error != ECONNREFUSED && !is_no_way(error));
    answer.no_way = answer.no_way && is_no_way(error);
    answer.no_way_here = answer.no_way_here && is_no_way(error) && is_own_address(*address->ai_addr);
    if (is_no_way(error)) answer.error = error;
  }
  return answer;
}

std::string words_of_no_way(int error, bool is_own) {
  return text("there is no way to the address: ", std::strerror(error),
              is_own ? ". It is this machine's own, so its interface is down; bring it up (ip link set lo up), or name "
                       "another address (MASTER_ADDR)"
                     : ". Check MASTER_ADDR, the routes of this machine and its firewall");
}

}  // namespace hasten::comm
