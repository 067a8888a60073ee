// A file that a worker's output goes to. If the disk is full, further output is lost in it. That is reported once, and
// the worker does not notice.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace hasten::launcher {

class LogFile {
 public:
  using Notice = std::function<void(const std::string& line)>;

  /// No file.
  LogFile() = default;
  /// Opens `path` to append to it; it may be shared. If that fails, `notice` is called.
  LogFile(std::string path, const Notice& notice);

  /// Blocks: no, but for the disk.
  void write(std::string_view bytes, const Notice& notice);

  /// -1 if there is none.
  int descriptor() const { return descriptor_; }
  void close();

 private:
  std::string path_;
  int descriptor_ = -1;
  bool failed_ = false;
};

}  // namespace hasten::launcher
