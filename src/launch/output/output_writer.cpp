// See output_writer.h.
#include "launch/output/output_writer.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

namespace hasten::launcher {

OutputWriter::~OutputWriter() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  wake_.notify_one();
  if (thread_.joinable()) thread_.join();
}

size_t OutputWriter::push(std::string_view bytes) {
  std::unique_lock lock(mutex_);
  if (broken_) return bytes.size();
  const size_t taken = buffer_.push(bytes);
  if (has_thread()) {
    wake_.notify_one();
  } else {
    while (!buffer_.empty() && !broken_) write_some(lock);
  }
  return taken;
}

// If no further thread may be started (ulimit -u), the pushing thread writes and waits.
bool OutputWriter::has_thread() {
  if (thread_.joinable()) return true;
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error&) {
    return false;
  }
  return true;
}

bool OutputWriter::idle() {
  const std::lock_guard lock(mutex_);
  return broken_ || (buffer_.empty() && !writing_);
}

void OutputWriter::run() {
  std::unique_lock lock(mutex_);
  while (!broken_) {
    wake_.wait(lock, [this] { return ending_ || !buffer_.empty(); });
    if (buffer_.empty()) return;
    write_some(lock);
  }
}

// The next lines, without the lock.
void OutputWriter::write_some(std::unique_lock<std::mutex>& lock) {
  const std::string bytes = buffer_.pop_lines();
  writing_ = true;
  lock.unlock();
  if (turns_ != nullptr) turns_->lock();
  const bool written = write_all(bytes);
  if (turns_ != nullptr) turns_->unlock();
  lock.lock();
  writing_ = false;
  broken_ = !written;
  eventfd_write(progress_, 1);
}

// False if the reader has gone: then nothing that follows can arrive.
bool OutputWriter::write_all(std::string_view bytes) const {
  while (!bytes.empty()) {
    const ssize_t size = write(destination_, bytes.data(), bytes.size());
    if (size >= 0) {
      bytes.remove_prefix(static_cast<size_t>(size));
    } else if (errno == EAGAIN) {  // another user of the descriptor made it non-blocking
      pollfd room = {destination_, POLLOUT, 0};
      poll(&room, 1, -1);
    } else if (errno == ENOSPC) {  // a file on a full disk loses these bytes; later ones may have room
      return true;
    } else if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

}  // namespace hasten::launcher
