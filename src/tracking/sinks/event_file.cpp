// See event_file.h.
#include "tracking/sinks/event_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "hasten/core/error.h"
#include "tracking/sinks/summary.h"

namespace hasten::tracking {
namespace {

constexpr size_t kBufferedBytes = 256 << 10;

[[noreturn]] void file_error(const std::filesystem::path& path, const char* what) {
  const int error = errno;
  throw DataError(Origin{"tracking"}, path, path, " cannot be ", what, ": ", std::strerror(error),
                  ". Make room, or choose another logging_dir.");
}

}  // namespace

EventFile::EventFile(std::filesystem::path path, int64_t length, double time_s) : path_(std::move(path)) {
  std::error_code failed;
  std::filesystem::create_directories(path_.parent_path(), failed);
  file_ = open(path_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
  if (file_ < 0) file_error(path_, "made");
  const off_t size = lseek(file_, 0, SEEK_END);
  if (size < length) length = 0;  // not the file that was left: write it anew
  if (ftruncate(file_, length) != 0 || lseek(file_, length, SEEK_SET) < 0) file_error(path_, "cut");
  length_ = length;
  if (length == 0) append(summary::version_event(time_s));
}

EventFile::~EventFile() {
  if (file_ >= 0) close(file_);
}

EventFile::EventFile(EventFile&& other) noexcept
    : path_(std::move(other.path_)),
      file_(std::exchange(other.file_, -1)),
      length_(other.length_),
      buffer_(std::move(other.buffer_)) {}

void EventFile::append(std::string_view event) {
  buffer_ += summary::record(event);
  if (buffer_.size() >= kBufferedBytes) flush();
}

void EventFile::append_scalar(double time_s, int64_t step, std::string_view tag, float value) {
  summary::append_scalar_record(buffer_, time_s, step, tag, value);
  if (buffer_.size() >= kBufferedBytes) flush();
}

void EventFile::flush() {
  size_t written = 0;
  while (written < buffer_.size()) {
    const ssize_t n = write(file_, buffer_.data() + written, buffer_.size() - written);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      if (n == 0) errno = ENOSPC;
      buffer_.erase(0, written);
      file_error(path_, "written");
    }
    written += static_cast<size_t>(n);
    length_ += n;
  }
  buffer_.clear();
}

std::string event_file_name(double time_s, const std::string& host, int64_t pid, int counter,
                            const std::string& suffix) {
  std::string seconds = text(static_cast<int64_t>(time_s));
  if (seconds.size() < 10) seconds.insert(0, 10 - seconds.size(), '0');
  return text("events.out.tfevents.", seconds, '.', host, '.', pid, '.', counter, suffix);
}

}  // namespace hasten::tracking
