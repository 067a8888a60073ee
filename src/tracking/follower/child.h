// Child: a process that this one starts, in a session of its own, with pipes to its standard input and from its output.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "hasten/core/env.h"

namespace hasten::tracking {

struct ChildOptions {
  std::vector<std::string> arguments = {};  ///< the first is the program's path
  Environment environment = {};
  /// Takes standard error (appended to); empty: /dev/null.
  std::filesystem::path error_file = {};
};

class Child {
 public:
  /// Starts it. Throws: UsageError if it cannot be started.
  explicit Child(const ChildOptions& options);
  /// Closes the pipes and leaves the process alone.
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  pid_t pid() const noexcept { return pid_; }
  /// Closes its standard input, which announces that this process sends nothing more.
  void close_input();
  /// Returns the lines that have come on its standard output. Waits for the first one at most `timeout`.
  std::vector<std::string> read_lines(std::chrono::milliseconds timeout = {});
  /// Returns true once its standard output has been closed and read.
  bool output_ended() const noexcept { return output_ < 0; }
  /// Returns its exit code (128 + signal if killed) once it has ended, waiting for that at most `timeout`.
  std::optional<int> wait(std::chrono::milliseconds timeout = {});
  void kill() noexcept;

 private:
  pid_t pid_ = -1;
  int input_ = -1, output_ = -1;
  std::string rest_;
  std::optional<int> exit_code_;
};

}  // namespace hasten::tracking
