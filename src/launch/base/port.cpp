// Lets the kernel choose by binding; see port.h. Nothing listens here, so nothing can connect.
#include "hasten/launch/base/port.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "hasten/core/error.h"

namespace hasten::launcher {
namespace {

// Binds `port` (0 = the kernel's choice) on every address, because Python's rank 0 listens on every address. Returns
// the port, or 0 if it is in use.
int bind_once(int port) {
  const int handle = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (handle < 0) throw InternalError({"launch"}, "cannot make a socket: ", std::strerror(errno), ".");
  // A port that only waits for its last packets (TIME_WAIT) is free for a server.
  const int yes = 1;
  if (port != 0) setsockopt(handle, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  socklen_t size = sizeof address;
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  const bool bound = bind(handle, generic, size) == 0 && getsockname(handle, generic, &size) == 0;
  close(handle);
  return bound ? ntohs(address.sin_port) : 0;
}

}  // namespace

int free_port() {
  const int port = bind_once(0);
  if (port == 0) throw InternalError({"launch"}, "this machine has no free port left. Give one with --master_port.");
  return port;
}

bool port_is_free(int port) {
  return bind_once(port) != 0;
}

}  // namespace hasten::launcher
