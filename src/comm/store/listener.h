// Whether a process listens at an address, and what to do where none does: private to the room.
//
// A connection that is refused comes too early. One that has no way there stays without, if the address is this
// machine's own.
#pragma once

#include <netdb.h>

#include <chrono>
#include <string>

namespace hasten::comm {

/// Returns 0 if a process listens at the address, else the error of the system: ECONNREFUSED if none does.
int error_of_connection(const addrinfo& address);

/// Returns true for errors that mean that there is no way to the address: ENETUNREACH, EHOSTUNREACH, EADDRNOTAVAIL.
bool is_no_way(int error) noexcept;

/// Returns true for a loopback address, and for one of this machine's interfaces.
bool is_own_address(const sockaddr& address);

/// The answers of all addresses of the store together.
struct ListenerAnswer {
  bool listens = false;      ///< or libtorch may find out more
  bool no_way = false;       ///< to any of the addresses
  bool no_way_here = false;  ///< the same, and all of them are this machine's own
  int error = 0;             ///< of the last one without a way
};
ListenerAnswer ask_listener(const addrinfo* addresses);

/// Returns the words for an address of this machine's own to which there is no way.
std::string words_of_no_way(int error, bool is_own);

}  // namespace hasten::comm
