// Writes to the launcher's terminal, pipe or file from a thread of its own. So a caller never waits for a slow reader.
//
// A thread, because a descriptor that was inherited cannot be made non-blocking without doing so for all its users (the
// user's shell among them). It is started by the first byte.
#pragma once

#include <condition_variable>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

#include "launch/output/output_lock.h"
#include "launch/output/spill_buffer.h"

namespace hasten::launcher {

class OutputWriter {
 public:
  struct Options {
    int destination = -1;  ///< stays open as long as the process
    int progress = -1;     ///< an eventfd that is raised whenever bytes were written
    std::string spill_folder = "/tmp";
    OutputLock* turns = nullptr;  ///< taken for each piece that is written, which ends with a line's end
                                  ///< if it can
  };

  explicit OutputWriter(const Options& options)
      : destination_(options.destination),
        progress_(options.progress),
        turns_(options.turns),
        buffer_(options.spill_folder) {}
  /// Must not run while bytes wait for a reader that does not read: the process ends by _exit instead.
  ~OutputWriter();
  OutputWriter(const OutputWriter&) = delete;
  OutputWriter& operator=(const OutputWriter&) = delete;

  int destination() const { return destination_; }

  /// Takes the bytes, or as much of their beginning as there is room for. Returns the number taken. Blocks: no, unless
  /// the system allows no further thread.
  size_t push(std::string_view bytes);

  /// Returns true if everything was written, or the reader is gone.
  bool idle();

 private:
  bool has_thread();
  void run();
  void write_some(std::unique_lock<std::mutex>& lock);
  bool write_all(std::string_view bytes) const;

  int destination_;
  int progress_;
  OutputLock* turns_;
  std::mutex mutex_;
  std::condition_variable wake_;
  SpillBuffer buffer_;
  bool writing_ = false;
  bool broken_ = false;  // the reader has gone
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace hasten::launcher
