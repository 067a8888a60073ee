// See segment_setup.h.
#include "comm/shared/memory/segment_setup.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <climits>
#include <cstring>
#include <fstream>
#include <functional>
#include <optional>
#include <system_error>
#include <thread>

#include "comm/store/store_all_gather.h"
#include "hasten/core/error.h"

namespace hasten::comm::shared {
namespace {

using Clock = std::chrono::steady_clock;

// It may close the connection before or after it has heard who calls.
constexpr const char* kNotHandedOver =
    "the first rank did not hand the shared memory over: it ended, is stopped, or this process is another "
    "user's";

class Descriptor {
 public:
  explicit Descriptor(int value) : value_(value) {
    if (value < 0)
      throw std::system_error(errno, std::generic_category(), "the ranks could not meet (Unix socket)");
  }
  ~Descriptor() { close(value_); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const noexcept { return value_; }

 private:
  int value_;
};

// A socket's name (of the abstract kind, which needs no file) and what a caller has to know.
struct Door {
  std::string name;
  std::string secret;
};

struct Hello {
  std::array<char, 32> secret;
  int32_t rank;
};

// An abstract name begins with a zero byte and ends with the address's length.
std::pair<sockaddr_un, socklen_t> address_of(const std::string& name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  return {address, static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size())};
}

std::optional<ucred> peer_of(int socket) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return std::nullopt;
  return peer;
}

// With a limit, a signal interrupts the socket's calls whatever its handler says.
void limit_waiting(int socket) {
  const timeval five_seconds{5, 0};
  setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &five_seconds, sizeof(five_seconds));
  setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &five_seconds, sizeof(five_seconds));
}

// The control part of a message that carries one descriptor.
union Control {
  cmsghdr align;
  char bytes[CMSG_SPACE(sizeof(int))];
};

msghdr message_of(iovec& part, Control& control) {
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes;
  message.msg_controllen = sizeof(control.bytes);
  return message;
}

bool send_descriptor(int socket, int descriptor) {
  char byte = 0;
  iovec part{&byte, 1};
  Control control{};
  msghdr message = message_of(part, control);
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &descriptor, sizeof(int));
  return TEMP_FAILURE_RETRY(sendmsg(socket, &message, MSG_NOSIGNAL)) == 1;
}

// -1 if none came.
int receive_descriptor(int socket) {
  char byte = 0;
  iovec part{&byte, 1};
  Control control{};
  msghdr message = message_of(part, control);
  const auto size = TEMP_FAILURE_RETRY(recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_WAITALL));
  if (size != 1) return -1;
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  int descriptor = -1;
  if (header != nullptr && header->cmsg_type == SCM_RIGHTS) {
    std::memcpy(&descriptor, CMSG_DATA(header), sizeof(int));
  }
  return descriptor;
}

// Hands the segment to one caller, if it may have it; whether it did.
bool serve_one(int caller, const Door& door, const std::shared_ptr<Segment>& segment) {
  limit_waiting(caller);
  const auto peer = peer_of(caller);
  Hello hello{};
  if (!peer || peer->uid != geteuid() ||
      TEMP_FAILURE_RETRY(recv(caller, &hello, sizeof(hello), MSG_WAITALL)) != sizeof(hello) ||
      std::memcmp(hello.secret.data(), door.secret.data(), hello.secret.size()) != 0) {
    return false;
  }
  return send_descriptor(caller, segment->descriptor());
}

void serve_all(int listener, const Door& door, const std::shared_ptr<Segment>& segment,
               Clock::time_point deadline, const std::function<bool()>& given_up) {
  for (int served = 1; served < segment->layout().world_size && !given_up();) {
    if (Clock::now() > deadline) throw std::runtime_error("a rank did not ask for the shared memory in time");
    pollfd waiting{listener, POLLIN, 0};
    if (poll(&waiting, 1, 50) <= 0) continue;
    const int caller = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    if (caller < 0) continue;
    const Descriptor connection(caller);
    if (serve_one(caller, door, segment)) ++served;
  }
}

std::shared_ptr<Segment> ask_for(const Door& door, int rank, const Layout& layout) {
  const Descriptor connection(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  limit_waiting(connection.get());
  const auto [address, size] = address_of(door.name);
  const auto* const to = reinterpret_cast<const sockaddr*>(&address);
  if (TEMP_FAILURE_RETRY(connect(connection.get(), to, size)) != 0) {
    throw std::system_error(errno, std::generic_category(), "the first rank's socket is out of reach");
  }
  Hello hello{};
  std::memcpy(hello.secret.data(), door.secret.data(), hello.secret.size());
  hello.rank = rank;
  if (TEMP_FAILURE_RETRY(send(connection.get(), &hello, sizeof(hello), MSG_NOSIGNAL)) != sizeof(hello))
    throw std::runtime_error(kNotHandedOver);
  const int descriptor = receive_descriptor(connection.get());
  if (descriptor < 0) throw std::runtime_error(kNotHandedOver);
  return Segment::attach(layout, descriptor);
}

}  // namespace

std::string this_host() {
  std::string boot_id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot_id;
  std::array<char, PATH_MAX> network{};
  const auto size = readlink("/proc/self/ns/net", network.data(), network.size() - 1);
  return boot_id.empty() || size <= 0 ? "" : boot_id + '/' + network.data();
}

std::shared_ptr<Segment> share_segment(const Store& store, int rank, const Layout& layout,
                                       std::chrono::milliseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  const auto refused = [&] { return store.get("refused"); };
  std::shared_ptr<Segment> segment;
  try {
    if (rank == 0) {
      segment = Segment::create(layout);
      const Door door{"hasten-" + random_hex(16), random_hex(16)};
      const Descriptor listener(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
      const auto [address, size] = address_of(door.name);
      if (bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0 ||
          listen(listener.get(), layout.world_size) != 0) {
        throw std::system_error(errno, std::generic_category(), "the ranks could not meet (Unix socket)");
      }
      store.set("door", door.name + ' ' + door.secret);
      serve_all(listener.get(), door, segment, deadline, [&] { return refused().has_value(); });
    } else {
      std::optional<std::string> answer;
      const bool told = poll_until(deadline, [&] { return (answer = store.get("door")) || refused(); });
      if (!told) throw std::runtime_error("the first rank did not make the shared memory in time");
      if (answer) {
        Door door;
        std::istringstream(*answer) >> door.name >> door.secret;
        segment = ask_for(door, rank, layout);
      }
    }
    if (segment && !refused()) {
      segment->take_place(rank);
      store.add("attached", 1);
    }
  } catch (const std::exception& error) {
    store.set_once("refused", text("rank ", rank, ": ", error.what()));
  }
  std::optional<std::string> reason;
  const bool ended = poll_until(deadline, [&] {
    return store.add("attached", 0) == layout.world_size || (reason = refused()).has_value();
  });
  if (reason || !ended) throw NotShared(reason.value_or("not every rank has attached in time"));
  return segment;
}

}  // namespace hasten::comm::shared
