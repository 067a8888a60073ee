// TCP sockets between processes on several machines, by name or address, IPv4 or IPv6. Also the names under which
// others reach this machine. None of the sockets waits when it is read or written.
#pragma once

#include <chrono>
#include <string>
#include <utility>

namespace hasten::net {

/// Owns a socket, or none (handle -1).
class Socket {
 public:
  explicit Socket(int handle = -1) : handle_(handle) {}
  ~Socket();
  Socket(Socket&& other) noexcept : handle_(std::exchange(other.handle_, -1)) {}
  Socket& operator=(Socket&& other) noexcept;
  int handle() const { return handle_; }

 private:
  int handle_;
};

struct Endpoint {
  std::string host = {};
  int port = 0;

  bool operator==(const Endpoint&) const = default;
};

/// "h:1", "[::1]:1".
std::string shown(const Endpoint& endpoint);

/// Listens at `where` (port 0: any), at no other address. No socket (handle -1) and why, if it cannot. A name for other
/// machines never means a loopback address.
std::pair<Socket, std::string> listen_at(const Endpoint& where);

/// Returns the next connection and where it comes from; handle -1 if there is none.
std::pair<Socket, std::string> accept_from(const Socket& listener);

/// Returns a connection that is being made: writable once it is there or has failed (connect_error). Handle -1 if it
/// fails at once. `from`: the local address to use, "" for the system's choice. Throws: UsageError if the name is
/// unknown.
Socket connect_to(const Endpoint& where, const std::string& from = "");
/// errno of a connection that was being made, 0 if it is there.
int connect_error(const Socket& socket);

/// Returns true if the socket becomes ready for poll's `events` within `timeout`, whatever signals come meanwhile.
bool is_ready_within(const Socket& socket, short events, std::chrono::milliseconds timeout);

/// Returns a connection, or handle -1 and why there is none. Blocks: at most `timeout` for each of its addresses.
std::pair<Socket, std::string> connect_within(const Endpoint& where, std::chrono::milliseconds timeout);

/// Both ends as they are known to this machine.
Endpoint local_end(const Socket& socket);
Endpoint remote_end(const Socket& socket);

/// Returns the address of this machine from which `where` is reached, "" if there is no way. Throws: UsageError if the
/// name is unknown.
std::string address_towards(const Endpoint& where);
/// Returns an address of a network interface ("eth0"), "" if it has none.
std::string address_of_interface(const std::string& name);
/// Returns the network interface through which this machine reaches `address`, "" if there is no way.
std::string interface_towards(const std::string& address);

/// Returns this machine's name, "" if it has none.
std::string host_name();

/// Returns true if a name or address is one of this machine's.
bool is_this_machine(const std::string& name);

/// Returns true if an address reaches this machine only: localhost, 127.…, ::1.
bool is_loopback(const std::string& address);

}  // namespace hasten::net
