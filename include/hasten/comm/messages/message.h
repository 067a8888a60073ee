// A message on its way out and in, and the receiver of messages; messages.h carries them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace hasten::comm {

/// A message to send. `head` has kPrefixBytes reserved bytes at its front, which Messages fills in.
struct OutgoingMessage {
  static constexpr size_t kPrefixBytes = 16;
  std::string head = std::string(kPrefixBytes, '\0');
  /// Memory that is sent after the head. It is neither copied nor changed until `sent` is called.
  std::vector<std::span<const std::byte>> body = {};
  /// Called once, in any thread, when `body` is no longer needed. Keeps the memory alive; must not throw or block.
  std::function<void()> sent = {};
};

/// A message of which the head has come: returns the place of its body and takes it in.
class IncomingMessage {
 public:
  virtual ~IncomingMessage() = default;
  /// Memory for the body, as many bytes as were announced.
  std::vector<std::span<std::byte>> body = {};
  /// Called in the reading thread once the body is there. Messages of one rank complete in their order.
  virtual void complete() = 0;
};

/// The receiver of messages. All functions are called by the reading thread and must not wait.
class MessageSink {
 public:
  virtual ~MessageSink() = default;
  /// `head` is valid during the call only. If it throws, the connection is closed with the error's text.
  virtual std::unique_ptr<IncomingMessage> begin(int from, std::string_view head, int64_t body_bytes) = 0;
  /// A rank has joined later (Messages::join) and its messages follow.
  virtual void joined(int /*rank*/) {}
  /// No more messages come from `rank`. `left`: it has announced it; otherwise it was lost, and `reason` names the
  /// cause.
  virtual void gone(int rank, bool left, const std::string& reason) = 0;
  /// The time given to set_timer() has come.
  virtual void timer() = 0;
};

}  // namespace hasten::comm
