// The addresses that ranks exchange, and the system's facts about other processes.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>
#include <sys/un.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hasten/comm/group/group.h"
#include "hasten/core/socket.h"

namespace hasten::comm {

/// Where a rank listens. `about` is that of MessagesOptions::about.
struct PeerAddress {
  std::string host, unix_name, tcp_host;
  int tcp_port = 0;
  pid_t pid = 0;
  std::string about;
};

/// Fields in lines; `about` comes last and may hold anything.
std::string packed(const PeerAddress& address);
PeerAddress unpacked(const std::string& lines);

/// Each rank's `mine`. Collective: yes. Blocks: yes. Throws: CommError.
std::vector<std::string> gather_text(const Group& group, const std::string& mine);

std::pair<sockaddr_un, socklen_t> abstract_address(const std::string& name);
net::Socket unix_socket(bool waits);
net::Socket listen_at_name(const std::string& name);
/// Listens at the address that other hosts reach. Empty: that of the interface, else of the host's name. Throws:
/// UsageError.
net::Socket listen_for_hosts(const std::string& address, const std::string& interface);

/// Returns the process at the other end of a Unix socket, and whether it is this user's.
pid_t process_behind(int socket);
bool is_of_this_user(int socket);
/// Copies from another process's memory, piece by piece where it is much. Returns false if the system refuses.
bool read_memory(pid_t process, std::vector<iovec> here, std::vector<iovec> there);
bool holds(pid_t process, uint64_t address, std::string_view expected);
/// Returns the state letter of /proc/PID/stat: 'X' from the beginning of its end on, 0 if there is no such process.
char letter_of(pid_t process);

}  // namespace hasten::comm
