// What this process has sent over TCP: the bytes of a test's ranks on the wire, if they are its threads.
#pragma once

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <filesystem>
#include <string>

namespace hasten::testing {

/// Payload bytes that all TCP connections open now have sent so far, each once: on a busy machine some are
/// sent again.
inline int64_t bytes_sent() {
  int64_t sum = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    tcp_info info = {};
    socklen_t size = sizeof info;
    const int descriptor = std::stoi(entry.path().filename());
    if (getsockopt(descriptor, IPPROTO_TCP, TCP_INFO, &info, &size) == 0) {
      sum += static_cast<int64_t>(info.tcpi_bytes_sent - info.tcpi_bytes_retrans);
    }
  }
  return sum;
}

}  // namespace hasten::testing
