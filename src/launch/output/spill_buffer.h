// Output that its reader has not taken yet: bytes in, the same bytes out. They are in memory up to a bound and in a
// file without a name beyond it.
//
// A terminal that is stopped (Ctrl-S, a connection that hangs) must not stop a training run, and nothing may be lost.
// So waiting output goes to disk. Not for several threads at once; output_writer.h has the lock.
#pragma once

#include <sys/types.h>

#include <deque>
#include <string>
#include <string_view>

namespace hasten::launcher {

class SpillBuffer {
 public:
  /// `folder` is where the file is made when it is first needed.
  explicit SpillBuffer(std::string folder, size_t memory_bytes = 1 << 20)
      : folder_(std::move(folder)), memory_bytes_(memory_bytes) {}
  ~SpillBuffer();
  SpillBuffer(const SpillBuffer&) = delete;
  SpillBuffer& operator=(const SpillBuffer&) = delete;

  /// Takes `bytes`, or as much of their beginning as memory and disk have room for. Returns the number taken.
  size_t push(std::string_view bytes);

  /// Returns the oldest bytes, not more than fit into a buffer; "" if there are none.
  std::string pop();

  /// Returns the same, to the end of a line if more follows. A line that has come whole is given whole, unless it is
  /// longer than a buffer.
  std::string pop_lines();

  bool empty() const { return in_memory_ == 0 && read_at_ == written_to_; }

 private:
  size_t spill(std::string_view bytes);
  std::string pop_spilled();

  std::string folder_;
  size_t memory_bytes_;
  std::string begun_line_;          // a line whose end is still in here
  std::deque<std::string> chunks_;  // older than what is in the file
  size_t in_memory_ = 0;
  int file_ = -1;
  off_t read_at_ = 0;
  off_t written_to_ = 0;
};

}  // namespace hasten::launcher
