// TCP sockets as the launchers of several machines need them: by name or address, IPv4 or IPv6.
#pragma once

#include <chrono>
#include <string>
#include <utility>

namespace hasten::launcher {

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

/// Listens there, at no other address. Throws: UsageError if it cannot.
Socket listen_at(const std::string& address, int port);

/// The next connection and where it comes from; handle -1 if there is none.
std::pair<Socket, std::string> accept_from(const Socket& listener);

/// A connection, or handle -1 and why there is none. Blocks: at most `patience` for each of its addresses.
std::pair<Socket, std::string> connect_to(const std::string& address, int port,
                                          std::chrono::milliseconds patience);

/// This machine's name, "" if it has none.
std::string host_name();

/// The network interface through which this machine reaches `address`, "" if there is no way.
std::string interface_towards(const std::string& address);

/// Whether a name or address is one of this machine's.
bool is_this_machine(const std::string& name);

/// Whether an address reaches this machine only: localhost, 127.…, ::1.
bool is_loopback(const std::string& address);

}  // namespace hasten::launcher
