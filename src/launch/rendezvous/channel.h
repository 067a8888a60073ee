// A connection between two launchers of a run. Both prove that they have the run's key, and every message after that is
// authenticated.
//
//   server → client   "hasten 1" and a nonce Ns
//   client → server   a nonce Nc, HMAC(key, "client" Ns Nc)
//   server → client   HMAC(key, "server" Ns Nc), or 32 zeros: the client's proof is wrong
//   then, both ways   length (4 bytes, most significant first), HMAC(session key, number of the message,
//                     length, text), text
//
// The session keys, one for each direction, are HMAC(key, "from client" Ns Nc) and HMAC(key, "from server" Ns Nc). So a
// message can be replayed neither later, nor in another connection, nor back to its sender. Nothing is encrypted:
// messages have the addresses of nodes and the ends of workers. docs/formats/rendezvous.md has the whole of it.
#pragma once

#include <poll.h>

#include <string>
#include <vector>

#include "hasten/core/hmac.h"
#include "launch/base/endpoint.h"

namespace hasten::launcher {

class Channel {
 public:
  enum class Side { kClient, kServer };

  /// Takes over a connection, which may still be on its way (connect_to).
  Channel(Socket socket, Side side, Bytes run_key);

  /// Returns true if the other side has proved the key.
  bool ready() const { return phase_ == Phase::kReady; }
  bool closed() const { return phase_ == Phase::kClosed; }
  /// Why, for the user: "its connection was closed".
  const std::string& why_closed() const { return why_closed_; }
  /// Returns true if the other side did not prove the key, or reported that this one has not. A side that ends in the
  /// middle of the handshake, because it was killed, has not refused the other.
  bool refused() const { return refused_; }

  /// Sends the text once the other side is known; never waits.
  void send(const std::string& text);

  void add_source(std::vector<pollfd>& sources) const;
  /// Reads and writes what can be; returns the texts that have arrived. To be called when its source is
  /// ready.
  std::vector<std::string> pump();
  /// Writes what can be.
  void flush();

  void close(const std::string& why);
  int handle() const { return socket_.handle(); }
  Endpoint local() const { return local_end(socket_); }
  const Endpoint& remote() const { return remote_; }
  bool flushed() const { return outgoing_.empty(); }

  static constexpr size_t kMaxTextBytes = 256 * 1024;

 private:
  enum class Phase { kConnecting, kHello, kProof, kReady, kClosed };

  void read_some();
  void greet();
  void take_hello();
  void take_proof();
  void become_ready();
  bool take_frame(std::string& text);
  void write_frame(const std::string& text);
  Bytes proof(const char* of) const { return hmac(run_key_, of + nonces_); }

  Socket socket_;
  Side side_;
  Bytes run_key_;
  Phase phase_ = Phase::kHello;
  std::string nonces_;  // the server's, then the client's
  Bytes key_in_, key_out_;
  uint64_t num_in_ = 0, num_out_ = 0;
  std::string incoming_, outgoing_;
  std::vector<std::string> waiting_;  // to be sent when ready
  Endpoint remote_;
  std::string why_closed_;
  bool refused_ = false;
};

}  // namespace hasten::launcher
