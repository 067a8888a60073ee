// Frames: how messages lie on a connection, and a reader that takes them apart as the bytes come.
//
// The reader is pure: it returns the place of the next bytes, and takes their number. So it is fuzzed without sockets.
// Memory grows with the bytes that have come, never with what a length claims. docs/formats/rpc.md is the
// specification.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hasten/comm/messages/message.h"

namespace hasten::comm {

enum class FrameKind : uint8_t {
  kMessage = 1,    ///< head, then body
  kPull = 2,       ///< head and a table of the body's addresses in the sender's memory
  kPulled = 3,     ///< the body of the pull `value` has been copied
  kHeartbeat = 4,  ///< sent every second between hosts
  kBye = 5,        ///< the sender leaves by intention
};

/// A part of another process's memory.
struct RemotePart {
  uint64_t address;
  uint64_t num_bytes;
};

constexpr size_t kFramePrefixBytes = OutgoingMessage::kPrefixBytes;
constexpr uint32_t kMaxHeadBytes = 256u << 20;

/// The 16 bytes before every head: u8 kind, 3 zero bytes, u32 head bytes, u64 value, little endian. The value is the
/// number of body bytes, or a control frame's number.
void write_prefix(char* bytes, FrameKind kind, uint32_t head_bytes, uint64_t value);
std::string control_frame(FrameKind kind, uint64_t value = 0);
/// Appends the table of a pull to a head: u64 token, parts, u32 number of parts.
void append_pull_table(std::string& head, uint64_t token, const std::vector<std::span<const std::byte>>& parts);

class FrameReader {
 public:
  /// The actions on frames. Each may throw, which ends the connection.
  struct Actions {
    std::function<std::unique_ptr<IncomingMessage>(std::string_view head, int64_t body_bytes)> begin;
    std::function<void(uint64_t token, const std::vector<RemotePart>& from, IncomingMessage& into)> pull;
    std::function<void(FrameKind kind, uint64_t value)> control;
  };

  FrameReader(Actions actions, int64_t max_message_bytes);
  /// Where the next bytes are to be written; never empty.
  std::span<std::byte> room();
  /// `num_bytes` have been written there. Throws: DataError for bytes that are no frame; the exceptions of the actions.
  void advance(size_t num_bytes);

 private:
  enum class State { kPrefix, kHead, kBody };
  bool step();
  bool step_prefix();
  bool step_head();
  bool step_body();
  void take_head(std::string_view head);
  void finish_parts();
  size_t buffered() const { return end_ - begin_; }

  Actions actions_;
  const int64_t max_message_bytes_;
  std::vector<std::byte> buffer_;
  size_t begin_ = 0, end_ = 0;
  State state_ = State::kPrefix;
  FrameKind kind_ = FrameKind::kMessage;
  size_t head_bytes_ = 0;
  uint64_t value_ = 0;
  std::string head_;  // the part that has come of a head larger than the buffer
  std::unique_ptr<IncomingMessage> message_;
  size_t part_ = 0, part_offset_ = 0;
};

}  // namespace hasten::comm
