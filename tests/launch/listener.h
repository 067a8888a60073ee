// A server on the loopback address that accepts nobody: it makes a port busy for a test.
#pragma once

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

namespace hasten::test {

class Listener {
 public:
  /// `port` 0: the kernel's choice.
  explicit Listener(int port = 0) : handle_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<uint16_t>(port));
    socklen_t size = sizeof address;
    auto* const generic = reinterpret_cast<sockaddr*>(&address);
    listening_ = bind(handle_, generic, size) == 0 && listen(handle_, 1) == 0;
    getsockname(handle_, generic, &size);
    port_ = ntohs(address.sin_port);
  }
  ~Listener() { close(handle_); }
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  bool listening() const { return listening_; }
  int port() const { return port_; }

 private:
  int handle_;
  bool listening_ = false;
  int port_ = 0;
};

}  // namespace hasten::test
