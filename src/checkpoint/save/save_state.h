// A Save's shared state: filled by the writer thread, read by handles.
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <string>

#include "hasten/checkpoint/options.h"

namespace hasten::checkpoint {

struct Save::State {
  std::string path;
  mutable std::mutex mutex;
  mutable std::condition_variable changed;
  bool done = false;
  /// Empty if it went well.
  std::string error;
  /// An error has been thrown to the program.
  bool reported = false;
  /// The error is the end of a rank that is replaced.
  bool cut_off = false;
  /// This rank has left the meeting that the save began in.
  std::atomic<bool> left = false;

  void finish(const std::string& words, bool is_cut_off = false) {
    {
      const std::lock_guard lock(mutex);
      done = true;
      error = words;
      cut_off = is_cut_off;
    }
    changed.notify_all();
  }
};

}  // namespace hasten::checkpoint
