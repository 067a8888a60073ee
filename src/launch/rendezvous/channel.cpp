// The handshake and the frames of channel.h.
#include "launch/rendezvous/channel.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace hasten::launcher {
namespace {

const std::string kGreeting = "hasten 1";
const Bytes kRefusal(kHashBytes, '\0');  // in place of the server's proof
constexpr size_t kLengthBytes = 4;
// A side that reads so slowly is as good as lost.
constexpr size_t kMaxOutgoingBytes = 8 * 1024 * 1024;

std::string big_endian(uint64_t number, size_t num_bytes) {
  std::string bytes;
  for (size_t i = num_bytes; i-- > 0;) bytes += static_cast<char>(number >> (8 * i));
  return bytes;
}

}  // namespace

Channel::Channel(Socket socket, Side side, Bytes run_key)
    : socket_(std::move(socket)), side_(side), run_key_(std::move(run_key)) {
  if (socket_.handle() < 0) {
    close("it cannot be reached");
  } else if (side == Side::kClient) {
    phase_ = Phase::kConnecting;
  } else {
    remote_ = remote_end(socket_);
    greet();
  }
}

void Channel::add_source(std::vector<pollfd>& sources) const {
  if (closed()) return;
  const bool writes = phase_ == Phase::kConnecting || !outgoing_.empty();
  sources.push_back({socket_.handle(), static_cast<short>(POLLIN | (writes ? POLLOUT : 0)), 0});
}

void Channel::close(const std::string& why) {
  if (closed()) return;
  phase_ = Phase::kClosed;
  why_closed_ = why;
  socket_ = Socket();
}

void Channel::greet() {
  nonces_ = random_bytes();
  outgoing_ += kGreeting + nonces_;
  flush();
}

std::vector<std::string> Channel::pump() {
  std::vector<std::string> texts;
  if (closed()) return texts;
  if (phase_ == Phase::kConnecting) {
    if (const int error = connect_error(socket_)) {
      close(std::strerror(error));
      return texts;
    }
    remote_ = remote_end(socket_);
    if (remote_.host.empty()) return texts;  // still on its way
    phase_ = Phase::kHello;
  }
  read_some();
  if (phase_ == Phase::kHello) take_hello();
  if (phase_ == Phase::kProof) take_proof();
  for (std::string text; phase_ == Phase::kReady && take_frame(text);) texts.push_back(std::move(text));
  if (!closed()) flush();
  if (!closed() && why_closed_ == "end") close("its connection was closed");
  return texts;
}

void Channel::read_some() {
  char buffer[16 * 1024];
  while (incoming_.size() <= kMaxTextBytes + kLengthBytes + kHashBytes) {
    const ssize_t size = recv(socket_.handle(), buffer, sizeof buffer, 0);
    if (size > 0) {
      incoming_.append(buffer, static_cast<size_t>(size));
    } else if (size < 0 && (errno == EAGAIN || errno == EINTR)) {
      return;
    } else {
      why_closed_ = "end";  // arrived bytes are read first
      return;
    }
  }
}

// The server waits for the client's nonce and proof, the client for the greeting and the server's nonce.
void Channel::take_hello() {
  const bool is_server = side_ == Side::kServer;
  const size_t size = is_server ? 2 * kHashBytes : kGreeting.size() + kHashBytes;
  const std::string start = incoming_.substr(0, kGreeting.size());
  if (!is_server && kGreeting.compare(0, start.size(), start) != 0) {
    refused_ = true;
    return close("what listens there is no hasten of this version");
  }
  if (incoming_.size() < size) return;
  if (is_server) {
    nonces_ += incoming_.substr(0, kHashBytes);
    refused_ = !same_hash(incoming_.substr(kHashBytes, kHashBytes), proof("client"));
    if (refused_) {
      outgoing_ += kRefusal;
      flush();
      return close("it does not know the run's secret");
    }
    outgoing_ += proof("server");
    incoming_.erase(0, size);
    return become_ready();
  }
  const std::string own = random_bytes();
  nonces_ = incoming_.substr(kGreeting.size(), kHashBytes) + own;
  incoming_.erase(0, size);
  outgoing_ += own + proof("client");
  phase_ = Phase::kProof;
}

void Channel::take_proof() {
  if (incoming_.size() < kHashBytes) return;
  const Bytes answer = incoming_.substr(0, kHashBytes);
  refused_ = !same_hash(answer, proof("server"));
  if (answer == kRefusal) return close("it refused this node: the run's secret differs");
  if (refused_) return close("it does not know the run's secret");
  incoming_.erase(0, kHashBytes);
  become_ready();
}

void Channel::become_ready() {
  phase_ = Phase::kReady;
  const bool is_server = side_ == Side::kServer;
  key_in_ = proof(is_server ? "from client" : "from server");
  key_out_ = proof(is_server ? "from server" : "from client");
  for (const std::string& text : std::exchange(waiting_, {})) write_frame(text);
}

bool Channel::take_frame(std::string& text) {
  if (incoming_.size() < kLengthBytes + kHashBytes) return false;
  size_t length = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) length = length << 8 | static_cast<unsigned char>(incoming_[i]);
  if (length > kMaxTextBytes) {
    close("it sent a message that is too long");
    return false;
  }
  if (incoming_.size() < kLengthBytes + kHashBytes + length) return false;
  text = incoming_.substr(kLengthBytes + kHashBytes, length);
  const Bytes expected = hmac(key_in_, big_endian(num_in_, 8) + big_endian(length, kLengthBytes) + text);
  if (!same_hash(incoming_.substr(kLengthBytes, kHashBytes), expected)) {
    close("it sent a message that is not authentic");
    return false;
  }
  ++num_in_;
  incoming_.erase(0, kLengthBytes + kHashBytes + length);
  return true;
}

void Channel::send(const std::string& text) {
  if (closed()) return;
  if (!ready()) return waiting_.push_back(text);
  write_frame(text);
  flush();
}

void Channel::write_frame(const std::string& text) {
  const std::string length = big_endian(text.size(), kLengthBytes);
  outgoing_ += length + hmac(key_out_, big_endian(num_out_++, 8) + length + text) + text;
}

void Channel::flush() {
  while (!outgoing_.empty() && phase_ != Phase::kConnecting && !closed()) {
    const ssize_t size = ::send(socket_.handle(), outgoing_.data(), outgoing_.size(), MSG_NOSIGNAL);
    if (size > 0) {
      outgoing_.erase(0, static_cast<size_t>(size));
    } else if (errno == EAGAIN) {
      if (outgoing_.size() > kMaxOutgoingBytes) close("it does not read what it is sent");
      return;
    } else if (errno != EINTR) {
      return close("its connection was closed");
    }
  }
}

}  // namespace hasten::launcher
