// See handshake.h.
#include "comm/messages/handshake.h"

#include <cstring>
#include <utility>

#include "hasten/core/error.h"

namespace hasten::comm {
namespace {

constexpr std::string_view kMagic = "HSTNMSG1";

// Layouts as in docs/formats/rpc.md.
struct HelloMessage {
  char magic[8];
  uint32_t rank, to;
  char nonce[kHashBytes];
  uint64_t nonce_address;
};
struct ChallengeMessage {
  char nonce[kHashBytes];
  uint64_t nonce_address;
  uint64_t can_pull;
  char mac[kHashBytes];
};
struct ProofMessage {
  uint64_t can_pull;
  char mac[kHashBytes];
};

template <class T>
std::string handshake_bytes(const T& message) {
  return {reinterpret_cast<const char*>(&message), sizeof message};
}

template <class T>
T handshake_of(std::string_view bytes) {
  T message;
  if (bytes.size() != sizeof message) throw InternalError({"messages"}, "a handshake of ", bytes.size(), " bytes");
  std::memcpy(&message, bytes.data(), sizeof message);
  return message;
}

template <class T>
std::string without_mac(const T& message) {
  return handshake_bytes(message).substr(0, offsetof(T, mac));
}

[[noreturn]] void refuse_peer(const std::string& why) {
  throw DataError(Origin{"messages"}, "handshake", why);
}

}  // namespace

Handshake::Handshake(State state, Bytes key, int rank, int peer, int world_size, Probe probe)
    : state_(state),
      key_(std::move(key)),
      rank_(rank),
      peer_(peer),
      world_size_(world_size),
      probe_(std::move(probe)) {}

Handshake Handshake::connector(Bytes key, int rank, int peer, Probe probe) {
  return Handshake(State::kChallenge, std::move(key), rank, peer, peer + 1, std::move(probe));
}

Handshake Handshake::acceptor(Bytes key, int rank, int world_size, Probe probe) {
  return Handshake(State::kHello, std::move(key), rank, -1, world_size, std::move(probe));
}

std::string Handshake::start() {
  if (state_ != State::kChallenge) return "";
  HelloMessage hello{};
  std::memcpy(hello.magic, kMagic.data(), kMagic.size());
  hello.rank = static_cast<uint32_t>(rank_);
  hello.to = static_cast<uint32_t>(peer_);
  std::memcpy(hello.nonce, nonce_.data(), kHashBytes);
  hello.nonce_address = reinterpret_cast<uintptr_t>(nonce_.data());
  return transcript_ = handshake_bytes(hello);
}

size_t Handshake::num_expected() const {
  switch (state_) {
    case State::kHello:
      return sizeof(HelloMessage);
    case State::kChallenge:
      return sizeof(ChallengeMessage);
    case State::kProof:
      return sizeof(ProofMessage);
    case State::kDone:
      return 0;
  }
  return 0;
}

std::string Handshake::take(std::string_view message) {
  switch (state_) {
    case State::kHello:
      return take_hello(message);
    case State::kChallenge:
      return take_challenge(message);
    case State::kProof:
      take_proof(message);
      return "";
    case State::kDone:
      break;
  }
  throw InternalError({"messages"}, "a message after the handshake's end");
}

std::string Handshake::take_hello(std::string_view message) {
  const auto hello = handshake_of<HelloMessage>(message);
  if (std::string_view(hello.magic, sizeof hello.magic) != kMagic) refuse_peer("its first bytes are no hello");
  const bool is_rank = hello.rank < static_cast<uint32_t>(world_size_) && hello.rank != static_cast<uint32_t>(rank_);
  if (!is_rank || hello.to != static_cast<uint32_t>(rank_))
    refuse_peer(text("it says to be rank ", hello.rank, " that calls rank ", hello.to));
  peer_ = static_cast<int>(hello.rank);
  transcript_ = message;
  ChallengeMessage challenge{};
  std::memcpy(challenge.nonce, nonce_.data(), kHashBytes);
  challenge.nonce_address = reinterpret_cast<uintptr_t>(nonce_.data());
  challenge.can_pull = probe_(hello.nonce_address, {hello.nonce, kHashBytes});
  transcript_ += without_mac(challenge);
  std::memcpy(challenge.mac, hmac(key_, "server" + transcript_).data(), kHashBytes);
  state_ = State::kProof;
  return handshake_bytes(challenge);
}

std::string Handshake::take_challenge(std::string_view message) {
  const auto challenge = handshake_of<ChallengeMessage>(message);
  transcript_ += without_mac(challenge);
  if (!same_hash(hmac(key_, "server" + transcript_), {challenge.mac, kHashBytes}))
    refuse_peer("it does not know the key of this run");
  peer_can_pull_ = challenge.can_pull != 0;
  ProofMessage proof{};
  proof.can_pull = probe_(challenge.nonce_address, {challenge.nonce, kHashBytes});
  transcript_ += without_mac(proof);
  std::memcpy(proof.mac, hmac(key_, "client" + transcript_).data(), kHashBytes);
  state_ = State::kDone;
  return handshake_bytes(proof);
}

void Handshake::take_proof(std::string_view message) {
  const auto proof = handshake_of<ProofMessage>(message);
  transcript_ += without_mac(proof);
  if (!same_hash(hmac(key_, "client" + transcript_), {proof.mac, kHashBytes}))
    refuse_peer("it does not know the key of this run");
  peer_can_pull_ = proof.can_pull != 0;
  state_ = State::kDone;
}

}  // namespace hasten::comm
