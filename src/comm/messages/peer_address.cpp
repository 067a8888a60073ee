// See peer_address.h.
#include "comm/messages/peer_address.h"

#include <sys/socket.h>
#include <torch/types.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <system_error>

#include "hasten/core/error.h"
#include "hasten/core/number.h"

namespace hasten::comm {

std::vector<std::string> gather_text(const Group& group, const std::string& mine) {
  const auto bytes = torch::empty({static_cast<int64_t>(mine.size())}, at::kByte);
  std::memcpy(bytes.mutable_data_ptr(), mine.data(), mine.size());
  std::vector<std::string> all;
  for (const auto& one : group.all_gather(bytes))
    all.emplace_back(static_cast<const char*>(one.const_data_ptr()), static_cast<size_t>(one.numel()));
  return all;
}

std::string packed(const PeerAddress& address) {
  return text(address.host, '\n', address.unix_name, '\n', address.tcp_host, '\n', address.tcp_port, '\n', address.pid,
              '\n', address.about);
}

PeerAddress unpacked(const std::string& line) {
  std::array<std::string, 5> fields;
  size_t begin = 0;
  for (std::string& field : fields) {
    const size_t end = line.find('\n', begin);
    field = line.substr(begin, end - begin);
    begin = end + 1;
  }
  return {fields[0],         fields[1], fields[2], core::whole_number<int>(fields[3]).value_or(0),
          core::whole_number<int>(fields[4]).value_or(0), line.substr(begin)};
}

std::pair<sockaddr_un, socklen_t> abstract_address(const std::string& name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  return {address, static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size())};
}

net::Socket unix_socket(bool waits) {
  return net::Socket(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | (waits ? 0 : SOCK_NONBLOCK), 0));
}

net::Socket listen_at_name(const std::string& name) {
  net::Socket listener = unix_socket(false);
  const auto [address, size] = abstract_address(name);
  if (listener.handle() < 0 || bind(listener.handle(), reinterpret_cast<const sockaddr*>(&address), size) != 0 ||
      listen(listener.handle(), SOMAXCONN) != 0)
    throw std::system_error(errno, std::generic_category(), "no Unix socket to listen at");
  return listener;
}

net::Socket listen_for_hosts(const std::string& address, const std::string& interface) {
  const std::string host = !address.empty()     ? address
                           : !interface.empty() ? net::address_of_interface(interface)
                                                : net::host_name();
  auto [listener, problem] = net::listen_at({host, 0});
  if (listener.handle() < 0) {
    throw UsageError({"messages"}, "cannot listen on '", host, "': ", problem,
                     ". Name the interface that the other hosts reach by GLOO_SOCKET_IFNAME.");
  }
  return std::move(listener);
}

pid_t process_behind(int socket) {
  ucred peer{};
  socklen_t size = sizeof peer;
  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 ? peer.pid : 0;
}

bool is_of_this_user(int socket) {
  ucred peer{};
  socklen_t size = sizeof peer;
  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == geteuid();
}

// Copies from another process's memory, piece by piece where it is much.
bool read_memory(pid_t process, std::vector<iovec> here, std::vector<iovec> there) {
  size_t i = 0, j = 0;
  while (i < here.size() && j < there.size()) {
    const auto num_here = std::min<size_t>(here.size() - i, IOV_MAX),
               num_there = std::min<size_t>(there.size() - j, IOV_MAX);
    auto size = process_vm_readv(process, &here[i], num_here, &there[j], num_there, 0);
    if (size <= 0) return false;
    const auto forward = [](std::vector<iovec>& parts, size_t& at, size_t n) {
      while (at < parts.size() && n >= parts[at].iov_len) n -= parts[at++].iov_len;
      if (n == 0) return;
      parts[at].iov_base = static_cast<char*>(parts[at].iov_base) + n;
      parts[at].iov_len -= n;
    };
    forward(here, i, static_cast<size_t>(size));
    forward(there, j, static_cast<size_t>(size));
  }
  return true;
}

bool holds(pid_t process, uint64_t address, std::string_view expected) {
  std::string found(expected.size(), '\0');
  return process > 0 &&
         read_memory(process, {{found.data(), found.size()}}, {{reinterpret_cast<void*>(address), found.size()}}) &&
         found == expected;
}

// "pid (name) state ppid pgrp session tty_nr tpgid flags …". A process closes its files before its state says so.
char letter_of(pid_t process) {
  constexpr unsigned kExiting = 0x4;  // the kernel's PF_EXITING
  std::ifstream file(text("/proc/", process, "/stat"));
  std::string line;
  if (!std::getline(file, line)) return 0;
  const size_t name_end = line.rfind(')');
  if (name_end == std::string::npos) return 0;
  std::istringstream fields(line.substr(name_end + 1));
  char state = 0;
  int64_t skipped = 0;
  unsigned flags = 0;
  fields >> state;
  for (int i = 0; i < 5; ++i) fields >> skipped;
  return fields >> flags && (flags & kExiting) != 0 ? 'X' : state;
}

}  // namespace hasten::comm
