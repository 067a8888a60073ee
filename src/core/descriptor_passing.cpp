// See descriptor_passing.h.
#include "hasten/core/descriptor_passing.h"

#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <system_error>

namespace hasten {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kNameSize = 32, kSecretSize = 32;

// The other side may close the connection before or after it has read the caller's identity.
constexpr const char* kNotHandedOver =
    "a descriptor was not handed over: its owner ended, is stopped, or is another user's process";

class Socket {
 public:
  explicit Socket(int value) : value_(value) {
    if (value < 0) throw std::system_error(errno, std::generic_category(), "no Unix socket could be made");
  }
  ~Socket() { close(value_); }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  int get() const noexcept { return value_; }

 private:
  int value_;
};

std::string random_hex(size_t size) {
  std::string bytes(size / 2, '\0'), hex;
  if (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    throw std::system_error(errno, std::generic_category(), "getrandom");
  }
  for (const char byte : bytes) {
    hex += "0123456789abcdef"[static_cast<unsigned char>(byte) >> 4];
    hex += "0123456789abcdef"[static_cast<unsigned char>(byte) & 15];
  }
  return hex;
}

// An abstract name begins with a zero byte and ends with the address's length.
std::pair<sockaddr_un, socklen_t> address_of(const std::string& name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  return {address, static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size())};
}

bool is_of_this_user(int socket) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == geteuid();
}

// With a limit, a signal interrupts the socket's calls, with any handler.
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
  if (TEMP_FAILURE_RETRY(recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_WAITALL)) != 1) return -1;
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  int descriptor = -1;
  if (header != nullptr && header->cmsg_type == SCM_RIGHTS) {
    std::memcpy(&descriptor, CMSG_DATA(header), sizeof(int));
  }
  return descriptor;
}

// Returns true if the caller had the secret and got the descriptor.
bool serve_one(int caller, const std::string& secret, int descriptor) {
  limit_waiting(caller);
  std::array<char, kSecretSize> received{};
  if (!is_of_this_user(caller)) return false;
  if (TEMP_FAILURE_RETRY(recv(caller, received.data(), received.size(), MSG_WAITALL)) != ssize_t{kSecretSize}) {
    return false;
  }
  return std::memcmp(received.data(), secret.data(), received.size()) == 0 && send_descriptor(caller, descriptor);
}

}  // namespace

DescriptorOffer::DescriptorOffer() : ticket_(random_hex(kNameSize) + '/' + random_hex(kSecretSize)) {
  listener_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const auto [address, size] = address_of(ticket_.substr(0, kNameSize));
  if (listener_ < 0 || bind(listener_, reinterpret_cast<const sockaddr*>(&address), size) != 0 ||
      listen(listener_, SOMAXCONN) != 0) {
    const int error = errno;
    if (listener_ >= 0) close(listener_);
    throw std::system_error(error, std::generic_category(), "a descriptor could not be offered (Unix socket)");
  }
}

DescriptorOffer::~DescriptorOffer() {
  close(listener_);
}

void DescriptorOffer::serve(int descriptor, int num_callers, std::chrono::milliseconds timeout,
                            const std::function<bool()>& given_up) {
  const auto deadline = Clock::now() + timeout;
  const std::string secret = ticket_.substr(kNameSize + 1);
  for (int served = 0; served < num_callers && !(given_up && given_up());) {
    if (Clock::now() > deadline) {
      throw std::runtime_error("a process did not ask for the shared memory in time");
    }
    pollfd waiting{listener_, POLLIN, 0};
    if (poll(&waiting, 1, 50) <= 0) continue;
    const int caller = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (caller < 0) continue;
    const Socket connection(caller);
    if (serve_one(caller, secret, descriptor)) ++served;
  }
}

int fetch_descriptor(const std::string& ticket) {
  if (ticket.size() != kNameSize + 1 + kSecretSize) throw std::runtime_error("no descriptor was offered");
  const Socket connection(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  limit_waiting(connection.get());
  const auto [address, size] = address_of(ticket.substr(0, kNameSize));
  if (TEMP_FAILURE_RETRY(connect(connection.get(), reinterpret_cast<const sockaddr*>(&address), size)) != 0) {
    throw std::system_error(errno, std::generic_category(), "the owner of shared memory is out of reach");
  }
  if (TEMP_FAILURE_RETRY(send(connection.get(), ticket.data() + kNameSize + 1, kSecretSize, MSG_NOSIGNAL)) !=
      ssize_t{kSecretSize}) {
    throw std::runtime_error(kNotHandedOver);
  }
  const int descriptor = receive_descriptor(connection.get());
  if (descriptor < 0) throw std::runtime_error(kNotHandedOver);
  return descriptor;
}

}  // namespace hasten
