// What this process sends over TCP: the bytes of a test's ranks on the wire, if they are its threads.
#pragma once

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

namespace hasten::testing {

/// Payload bytes that each TCP connection open now has sent so far, each once, by the socket's inode.
using Wire = std::map<ino_t, int64_t>;

inline Wire wire() {
  Wire sent;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    tcp_info info = {};
    socklen_t size = sizeof info;
    struct stat status = {};
    const int descriptor = std::stoi(entry.path().filename());
    if (getsockopt(descriptor, IPPROTO_TCP, TCP_INFO, &info, &size) == 0 && fstat(descriptor, &status) == 0) {
      sent[status.st_ino] = static_cast<int64_t>(info.tcpi_bytes_sent - info.tcpi_bytes_retrans);
    }
  }
  return sent;
}

/// Bytes sent between two looks. Connections of groups that ended before, which Gloo closes when it gets to
/// it, do not count.
inline int64_t bytes_between(const Wire& before, const Wire& after) {
  int64_t sum = 0;
  for (const auto& [socket, bytes] : after) {
    const auto known = before.find(socket);
    sum += bytes - (known == before.end() ? 0 : known->second);
  }
  return sum;
}

}  // namespace hasten::testing
