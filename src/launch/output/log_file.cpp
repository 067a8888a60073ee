// See log_file.h.
#include "launch/output/log_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "hasten/core/text.h"

namespace hasten::launcher {

LogFile::LogFile(std::string path, const Notice& notice)
    : path_(std::move(path)), descriptor_(open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666)) {
  if (descriptor_ >= 0) return;
  notice(text("cannot open ", path_, ": ", std::strerror(errno), "; this output is not kept"));
}

void LogFile::write(std::string_view bytes, const Notice& notice) {
  while (descriptor_ >= 0 && !bytes.empty()) {
    const ssize_t size = ::write(descriptor_, bytes.data(), bytes.size());
    if (size >= 0) {
      bytes.remove_prefix(static_cast<size_t>(size));
    } else if (errno != EINTR) {
      if (!failed_) {
        notice(text("cannot write to ", path_, ": ", std::strerror(errno),
                    "; output is missing there from here on, the worker goes on"));
      }
      failed_ = true;
      return;
    }
  }
}

void LogFile::close() {
  if (descriptor_ >= 0) ::close(descriptor_);
  descriptor_ = -1;
}

}  // namespace hasten::launcher
