// Handshake: how both ends of a connection prove that they have the run's key, as a pure state machine.
//
// Three messages: hello (connector), challenge (acceptor), proof (connector), with HMAC-SHA256 over all earlier
// messages. It also finds out whether each side can read the other's memory: a side sends the address of its nonce, the
// other compares.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "hasten/core/hmac.h"

namespace hasten::comm {

class Handshake {
 public:
  /// Returns true if the peer's memory at `address` can be read and holds `expected`.
  using Probe = std::function<bool(uint64_t address, std::string_view expected)>;

  /// Returns the side that connects; `peer` is the rank it wants to reach.
  static Handshake connector(Bytes key, int rank, int peer, Probe probe);
  /// Returns the side that accepts a connection from any rank of the world.
  static Handshake acceptor(Bytes key, int rank, int world_size, Probe probe);

  /// Returns the first bytes to send; "" for the acceptor.
  std::string start();
  /// Returns the number of bytes of the message that is awaited.
  size_t num_expected() const;
  /// Takes that message and returns the answer, which may be empty. Throws: DataError if the peer is refused.
  std::string take(std::string_view message);

  bool done() const { return state_ == State::kDone; }
  /// Returns the peer's rank; -1 until it is known.
  int peer() const { return peer_; }
  /// Returns true if the peer can read this process's memory. Known when done.
  bool peer_can_pull() const { return peer_can_pull_; }

 private:
  enum class State { kHello, kChallenge, kProof, kDone };
  Handshake(State state, Bytes key, int rank, int peer, int world_size, Probe probe);
  std::string take_hello(std::string_view message);
  std::string take_challenge(std::string_view message);
  void take_proof(std::string_view message);

  State state_;
  Bytes key_;
  int rank_, peer_, world_size_;
  Probe probe_;
  Bytes nonce_ = random_bytes();
  std::string transcript_;  // all messages so far
  bool peer_can_pull_ = false;
};

}  // namespace hasten::comm
