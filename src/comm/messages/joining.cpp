// How the ranks of Messages find each other: all at once over a group, or one by one over a store.
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>

#include "comm/messages/messages_impl.h"
#include "comm/shared/memory/segment_setup.h"
#include "hasten/core/error.h"
#include "hasten/core/socket.h"

namespace hasten::comm {

void Messages::Impl::listen(const Group& group) {
  if (world_size == 1) {
    key = options.run_key.empty() ? random_bytes() : options.run_key;
    has_key = !options.run_key.empty();
    peers[0].address.about = options.about;
    return;
  }
  const std::string& named = group.options().host;
  const std::string host = named.empty() ? shared::this_host() : named;
  const std::string drawn = hex(random_bytes());
  const auto first = gather_text(group, text(options.run_key.empty() ? 0 : 1, drawn, host));
  has_key = std::all_of(first.begin(), first.end(), [](const std::string& entry) { return entry[0] == '1'; });
  key = has_key ? options.run_key : first[0].substr(1, 2 * kHashBytes);
  const bool one_host = std::all_of(first.begin(), first.end(), [&](const std::string& entry) {
    return !host.empty() && entry.substr(1 + 2 * kHashBytes) == host;
  });
  const PeerAddress mine = listen_at(host, group.options(), !one_host);
  const auto all = gather_text(group, packed(mine));
  for (size_t other = 0; other < all.size(); ++other) peers[other].address = unpacked(all[other]);
}

PeerAddress Messages::Impl::listen_at(const std::string& host, const GroupOptions& where, bool across) {
  PeerAddress mine;
  mine.host = host;
  mine.unix_name = "hasten-" + hex(random_bytes()).substr(0, 32);
  mine.pid = getpid();
  mine.about = options.about;
  unix_listener = listen_at_name(mine.unix_name);
  watch(unix_listener.handle(), kUnixListener, EPOLLIN, true);
  if (across) {
    tcp_listener = listen_for_hosts(where.address, where.network_interface);
    const auto end = net::local_end(tcp_listener);
    mine.tcp_host = end.host;
    mine.tcp_port = end.port;
    watch(tcp_listener.handle(), kTcpListener, EPOLLIN, true);
    tick_timer = MessageClock::now() + kHeartbeat;
    arm_timer();
  }
  return mine;
}

// The addresses of ranks that have left are not known, and are not needed.
void Messages::Impl::join(const GroupOptions& where) {
  key = directory->agree_on_key(options.run_key, has_key);
  const std::string host = where.host.empty() ? shared::this_host() : where.host;
  const bool one_machine = where.address == "127.0.0.1" || where.address == "localhost";
  const PeerAddress mine = listen_at(host, where, !one_machine);
  directory->publish(packed(mine));
  for (int other = 0; other < rank; ++other) {
    const auto lines = directory->find(other);
    if (lines) {
      peers[static_cast<size_t>(other)].address = unpacked(*lines);
    } else {
      peers[static_cast<size_t>(other)].left = true;
    }
  }
  peers[static_cast<size_t>(rank)].address = mine;
}

// Before a later rank's first message is read.
void Messages::Impl::know(int other) {
  {
    const std::lock_guard lock(mutex);
    if (other < world_size && !peers[static_cast<size_t>(other)].address.unix_name.empty()) return;
  }
  const auto lines = directory->find(other);
  if (!lines) throw DataError(Origin{"messages"}, "handshake", text("rank ", other, " is not at the store"));
  {
    const std::lock_guard lock(mutex);
    while (peers.size() <= static_cast<size_t>(other)) peers.emplace_back();
    peers[static_cast<size_t>(other)].address = unpacked(*lines);
    world_size = std::max(world_size.load(), other + 1);
  }
  sink.joined(other);
}

}  // namespace hasten::comm
