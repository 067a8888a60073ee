// See spill_buffer.h.
#include "launch/output/spill_buffer.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

namespace hasten::launcher {
namespace {

constexpr size_t kChunkBytes = 64 * 1024;

// Makes a file that no other process can open and that vanishes with its last descriptor; -1 if that fails.
int nameless_file(const std::string& folder) {
  std::string name = folder + "/backlog_XXXXXX";
  const int file = mkostemp(name.data(), O_CLOEXEC);
  if (file >= 0) unlink(name.c_str());
  return file;
}

}  // namespace

SpillBuffer::~SpillBuffer() {
  if (file_ >= 0) close(file_);
}

size_t SpillBuffer::push(std::string_view bytes) {
  const bool file_empty = read_at_ == written_to_;
  const size_t room = file_empty ? memory_bytes_ - std::min(memory_bytes_, in_memory_) : 0;
  const size_t kept = std::min(room, bytes.size());
  for (size_t at = 0; at < kept; at += kChunkBytes) {
    chunks_.emplace_back(bytes.substr(at, std::min(kChunkBytes, kept - at)));
  }
  in_memory_ += kept;
  return kept == bytes.size() ? kept : kept + spill(bytes.substr(kept));
}

std::string SpillBuffer::pop() {
  if (chunks_.empty()) return pop_spilled();
  const std::string oldest = std::move(chunks_.front());
  chunks_.pop_front();
  in_memory_ -= oldest.size();
  return oldest;
}

std::string SpillBuffer::pop_lines() {
  std::string piece = std::exchange(begun_line_, {});
  while (true) {
    piece += pop();
    if (empty()) return piece;
    const size_t end = piece.find_last_of("\r\n");
    if (end != std::string::npos) {
      begun_line_ = piece.substr(end + 1);
      piece.resize(end + 1);
      return piece;
    }
    // Where memory ends and the file begins a chunk may be shorter than a line.
    if (piece.size() >= kChunkBytes) return piece;
  }
}

size_t SpillBuffer::spill(std::string_view bytes) {
  if (file_ < 0) file_ = nameless_file(folder_);
  if (file_ < 0) return 0;
  size_t taken = 0;
  while (taken < bytes.size()) {
    const ssize_t size = pwrite(file_, bytes.data() + taken, bytes.size() - taken, written_to_);
    if (size <= 0) break;
    taken += static_cast<size_t>(size);
    written_to_ += size;
  }
  return taken;
}

std::string SpillBuffer::pop_spilled() {
  if (read_at_ == written_to_) return "";
  std::string bytes(std::min(kChunkBytes, static_cast<size_t>(written_to_ - read_at_)), '\0');
  const ssize_t size = pread(file_, bytes.data(), bytes.size(), read_at_);
  bytes.resize(static_cast<size_t>(std::max<ssize_t>(size, 0)));
  read_at_ += size > 0 ? size : written_to_ - read_at_;  // a disk that cannot be read: nothing will come
  if (read_at_ == written_to_) {
    read_at_ = written_to_ = 0;
    // Fails only for lack of what it gives back.
    static_cast<void>(ftruncate(file_, 0) == 0);
  } else {
    fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, read_at_);
  }
  return bytes;
}

}  // namespace hasten::launcher
