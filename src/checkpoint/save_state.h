// A Save's shared state: filled by the writer thread, read by handles.
#pragma once

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

  void finish(const std::string& words) {
    {
      const std::lock_guard lock(mutex);
      done = true;
      error = words;
    }
    changed.notify_all();
  }
};

}  // namespace hasten::checkpoint
