// See answer_limit.h. The client's socket is private, so it is found among the process's by the port that it reached.
#include "comm/store/answer_limit.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <filesystem>
#include <string>
#include <system_error>

namespace hasten::comm {
namespace {

// Returns the port at the other end of a connection; 0 for anything else.
int peer_port(int descriptor) {
  sockaddr_storage peer{};
  socklen_t size = sizeof peer;
  if (getpeername(descriptor, reinterpret_cast<sockaddr*>(&peer), &size) != 0) return 0;
  if (peer.ss_family == AF_INET) return ntohs(reinterpret_cast<const sockaddr_in&>(peer).sin_port);
  if (peer.ss_family == AF_INET6) return ntohs(reinterpret_cast<const sockaddr_in6&>(peer).sin6_port);
  return 0;
}

template <class Fn>
void for_each_connection(int port, const Fn& fn) noexcept {
  if (port == 0) return;
  std::error_code failed;
  for (auto each = std::filesystem::directory_iterator("/proc/self/fd", failed);
       !failed && each != std::filesystem::directory_iterator(); each.increment(failed)) {
    const std::string name = each->path().filename().string();
    int descriptor = -1;
    std::from_chars(name.data(), name.data() + name.size(), descriptor);
    if (descriptor >= 0 && peer_port(descriptor) == port) fn(descriptor);
  }
}

}  // namespace

void limit_answers(int port, std::chrono::milliseconds limit) noexcept {
  const auto ms = std::max<int64_t>(limit.count(), 1);
  const timeval time{.tv_sec = ms / 1000, .tv_usec = ms % 1000 * 1000};
  for_each_connection(
      port, [&](int descriptor) { setsockopt(descriptor, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time); });
}

void cut_connections(int port) noexcept {
  for_each_connection(port, [](int descriptor) { shutdown(descriptor, SHUT_RDWR); });
}

}  // namespace hasten::comm
