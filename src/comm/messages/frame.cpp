// See frame.h.
#include "comm/messages/frame.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "hasten/core/error.h"

namespace hasten::comm {
namespace {

static_assert(std::endian::native == std::endian::little, "frames are little endian");

constexpr size_t kFrameBufferBytes = 64 * 1024;
// A part of a body with at least this many bytes to come is read straight into its place.
constexpr size_t kReadInPlaceBytes = 8 * 1024;

[[noreturn]] void refuse_frame(const std::string& what) {
  throw DataError(Origin{"messages"}, "frame", what);
}

template <class T>
T read_number(const char* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

template <class T>
void append_number(std::string& bytes, T value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

struct PullTable {
  std::string_view head;
  uint64_t token = 0;
  std::vector<RemotePart> parts = {};
};

PullTable read_pull_table(std::string_view head, uint64_t body_bytes) {
  if (head.size() < 12) refuse_frame("a pull without its table");
  const auto num_parts = read_number<uint32_t>(head.data() + head.size() - 4);
  const uint64_t table_bytes = 12 + uint64_t{num_parts} * sizeof(RemotePart);
  if (table_bytes > head.size())
    refuse_frame(text("a pull of ", num_parts, " parts in a head of ", head.size(), " bytes"));
  PullTable table{head.substr(0, head.size() - table_bytes)};
  const char* next = head.data() + table.head.size();
  table.token = read_number<uint64_t>(next);
  table.parts.resize(num_parts);
  std::memcpy(table.parts.data(), next + 8, num_parts * sizeof(RemotePart));
  uint64_t sum = 0;
  for (const RemotePart& part : table.parts) {
    if (part.num_bytes > body_bytes - sum) refuse_frame("a pull whose parts are larger than its body");
    sum += part.num_bytes;
  }
  if (sum != body_bytes) refuse_frame(text("a pull with parts of ", sum, " bytes for a body of ", body_bytes));
  return table;
}

}  // namespace

void write_prefix(char* bytes, FrameKind kind, uint32_t head_bytes, uint64_t value) {
  std::memset(bytes, 0, 4);
  bytes[0] = static_cast<char>(kind);
  std::memcpy(bytes + 4, &head_bytes, 4);
  std::memcpy(bytes + 8, &value, 8);
}

std::string control_frame(FrameKind kind, uint64_t value) {
  std::string frame(kFramePrefixBytes, '\0');
  write_prefix(frame.data(), kind, 0, value);
  return frame;
}

void append_pull_table(std::string& head, uint64_t token, const std::vector<std::span<const std::byte>>& parts) {
  append_number(head, token);
  for (const auto& part : parts) {
    append_number(head, static_cast<uint64_t>(reinterpret_cast<uintptr_t>(part.data())));
    append_number(head, static_cast<uint64_t>(part.size()));
  }
  append_number(head, static_cast<uint32_t>(parts.size()));
}

FrameReader::FrameReader(Actions actions, int64_t max_message_bytes)
    : actions_(std::move(actions)), max_message_bytes_(max_message_bytes), buffer_(kFrameBufferBytes) {}

std::span<std::byte> FrameReader::room() {
  if (state_ == State::kBody && buffered() == 0) {
    const auto& part = message_->body[part_];
    if (part.size() - part_offset_ >= kReadInPlaceBytes) return part.subspan(part_offset_);
  }
  if (begin_ == end_) begin_ = end_ = 0;
  if (buffer_.size() - end_ < kFramePrefixBytes || begin_ > buffer_.size() / 2) {
    std::memmove(buffer_.data(), buffer_.data() + begin_, buffered());
    end_ -= begin_;
    begin_ = 0;
  }
  return std::span(buffer_).subspan(end_);
}

void FrameReader::advance(size_t num_bytes) {
  const bool in_place =
      state_ == State::kBody && buffered() == 0 && message_->body[part_].size() - part_offset_ >= kReadInPlaceBytes;
  if (in_place) {
    part_offset_ += num_bytes;
    finish_parts();
  } else {
    end_ += num_bytes;
  }
  while (step()) {
  }
}

bool FrameReader::step() {
  switch (state_) {
    case State::kPrefix:
      return step_prefix();
    case State::kHead:
      return step_head();
    case State::kBody:
      return step_body();
  }
  return false;
}

bool FrameReader::step_prefix() {
  if (buffered() < kFramePrefixBytes) return false;
  const char* bytes = reinterpret_cast<const char*>(buffer_.data() + begin_);
  const auto kind = static_cast<uint8_t>(bytes[0]);
  if (kind < 1 || kind > 5 || bytes[1] != 0 || bytes[2] != 0 || bytes[3] != 0)
    refuse_frame(text("a frame of the unknown kind ", int{kind}));
  kind_ = static_cast<FrameKind>(kind);
  head_bytes_ = read_number<uint32_t>(bytes + 4);
  value_ = read_number<uint64_t>(bytes + 8);
  begin_ += kFramePrefixBytes;
  if (kind_ != FrameKind::kMessage && kind_ != FrameKind::kPull) {
    if (head_bytes_ != 0) refuse_frame("a control frame with a head");
    actions_.control(kind_, value_);
    return true;
  }
  const auto limit = static_cast<uint64_t>(max_message_bytes_);
  if (head_bytes_ > kMaxHeadBytes || head_bytes_ > limit || value_ > limit - head_bytes_) {
    refuse_frame(text("a message with a head of ", head_bytes_, " and a body of ", value_, " bytes; at most ",
                      max_message_bytes_, " are allowed (max_message_bytes)"));
  }
  state_ = State::kHead;
  head_.clear();
  return true;
}

bool FrameReader::step_head() {
  const char* bytes = reinterpret_cast<const char*>(buffer_.data() + begin_);
  if (head_.empty() && buffered() >= head_bytes_) {
    begin_ += head_bytes_;
    take_head({bytes, head_bytes_});
    return true;
  }
  if (head_.empty() && head_bytes_ <= buffer_.size() / 2) return false;  // it comes whole
  const size_t size = std::min(buffered(), head_bytes_ - head_.size());
  if (size == 0) return false;
  head_.append(bytes, size);
  begin_ += size;
  if (head_.size() < head_bytes_) return true;
  const std::string head = std::exchange(head_, {});
  take_head(head);
  return true;
}

void FrameReader::take_head(std::string_view head) {
  PullTable table{head};
  if (kind_ == FrameKind::kPull) table = read_pull_table(head, value_);
  message_ = actions_.begin(table.head, static_cast<int64_t>(value_));
  uint64_t room = 0;
  for (const auto& part : message_->body) room += part.size();
  if (room != value_) refuse_frame(text("a body of ", value_, " bytes for a message that has ", room));
  if (kind_ == FrameKind::kPull) {
    actions_.pull(table.token, table.parts, *message_);
    part_ = message_->body.size();
  } else {
    part_ = part_offset_ = 0;
  }
  state_ = State::kBody;
  finish_parts();
}

// Goes on to the next part that is not full; completes the message after the last.
void FrameReader::finish_parts() {
  while (part_ < message_->body.size() && part_offset_ == message_->body[part_].size()) {
    ++part_;
    part_offset_ = 0;
  }
  if (part_ < message_->body.size()) return;
  state_ = State::kPrefix;
  const auto message = std::move(message_);
  message->complete();
}

bool FrameReader::step_body() {
  if (buffered() == 0) return false;
  const auto& part = message_->body[part_];
  const size_t size = std::min(buffered(), part.size() - part_offset_);
  std::memcpy(part.data() + part_offset_, buffer_.data() + begin_, size);
  begin_ += size;
  part_offset_ += size;
  finish_parts();
  return true;
}

}  // namespace hasten::comm
