// TCP sockets that never wait, for the rendezvous; socket.h has those that may.
#pragma once

#include <string>

#include "socket.h"

namespace hasten::launcher {

struct Endpoint {
  std::string host = {};
  int port = 0;

  bool operator==(const Endpoint&) const = default;
};

/// "h:1", "[::1]:1"; without a port `default_port`. Throws: UsageError if the port is none.
Endpoint parse_endpoint(const std::string& word, int default_port);
/// "h:1".
std::string shown(const Endpoint& endpoint);

/// Listens at `where` (port 0: any). No socket (handle -1), and why in `reason` (errno), if that address is
/// in use or not this machine's. A name that other machines know never stands for a loopback address. Throws:
/// UsageError if the name is unknown.
Socket listen_at(const Endpoint& where, int& reason);
/// A connection that is being made: writable once it is there or has failed (connect_error). Handle -1 if it
/// fails at once. `from`: the local address to use, "" for the system's choice.
Socket connect_to(const Endpoint& where, const std::string& from = "");
/// errno of a connection that was being made, 0 if it is there.
int connect_error(const Socket& socket);

/// The address of this machine from which `where` is reached, "" if there is no way.
std::string address_towards(const Endpoint& where);

/// Both ends as they are known to this machine.
Endpoint local_end(const Socket& socket);
Endpoint remote_end(const Socket& socket);

}  // namespace hasten::launcher
