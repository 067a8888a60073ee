// Replaces pread and pwrite of the test program, to see in which order a library reads and writes a file, and to hold
// requests back. To be included by one source of a program. Without a FileTransfers nothing changes.
#pragma once

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace hasten::testing {

/// The requests to files below one folder. A part is what is written by one request before begin().
class FileTransfers {
 public:
  explicit FileTransfers(std::string folder) : folder_(std::move(folder)) { current() = this; }
  ~FileTransfers() { current() = nullptr; }
  FileTransfers(const FileTransfers&) = delete;
  FileTransfers& operator=(const FileTransfers&) = delete;

  static std::atomic<FileTransfers*>& current() {
    static std::atomic<FileTransfers*> current{nullptr};
    return current;
  }

  /// Parts are numbered in the order of their offsets. The record begins.
  void begin() {
    const std::lock_guard lock(mutex_);
    parts_.assign(first_offsets_.begin(), first_offsets_.end());
    began_ = true;
  }
  size_t num_parts() {
    const std::lock_guard lock(mutex_);
    return parts_.size();
  }

  /// Waits until a part's reading or writing has begun. False after `limit`.
  bool has_begun(bool writes, size_t part, std::chrono::milliseconds limit = std::chrono::seconds(20)) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, limit, [&] { return begun_.contains({writes, part}); });
  }
  /// Forgets what has begun, for another pass over the parts.
  void forget() {
    const std::lock_guard lock(mutex_);
    begun_.clear();
  }

  /// Writing of a part waits until it is allowed, at most for 20 s.
  void hold_writes() {
    const std::lock_guard lock(mutex_);
    allowed_.clear();
    holds_ = true;
  }
  void allow_write(size_t part) {
    const std::lock_guard lock(mutex_);
    allowed_.insert(part);
    changed_.notify_all();
  }
  void allow_all() {
    const std::lock_guard lock(mutex_);
    holds_ = false;
    changed_.notify_all();
  }
  /// Whether a held write has waited in vain.
  bool waited_in_vain() {
    const std::lock_guard lock(mutex_);
    return in_vain_;
  }
  /// The most parts that were between the beginning of their reading and the end of their writing.
  size_t most_in_memory() {
    const std::lock_guard lock(mutex_);
    return most_;
  }
  bool is_of_folder(int file) const {
    char target[512];
    const std::string link = "/proc/self/fd/" + std::to_string(file);
    const ssize_t length = readlink(link.c_str(), target, sizeof target);
    return length > 0 && std::string(target, static_cast<size_t>(length)).starts_with(folder_);
  }

  ssize_t transfer(bool writes, int64_t offset, const std::function<ssize_t()>& call) {
    std::unique_lock lock(mutex_);
    if (!began_) {
      if (writes) first_offsets_.insert(offset);
      lock.unlock();
      return call();
    }
    size_t part = parts_.size();
    while (part > 0 && parts_[part - 1] > offset) --part;
    part = part > 0 ? part - 1 : 0;
    begun_.insert({writes, part});
    if (!writes) note_in_memory(part);
    if (writes) ++writing_[part];
    changed_.notify_all();
    const bool goes = !writes || changed_.wait_for(lock, std::chrono::seconds(20),
                                                   [&] { return !holds_ || allowed_.contains(part); });
    in_vain_ = in_vain_ || !goes;
    lock.unlock();
    const ssize_t done = call();
    lock.lock();
    if (writes && --writing_[part] == 0) in_memory_.erase(part);
    return done;
  }

 private:
  void note_in_memory(size_t part) {
    in_memory_.insert(part);
    most_ = std::max(most_, in_memory_.size());
  }

  std::string folder_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool began_ = false, holds_ = false, in_vain_ = false;
  std::set<int64_t> first_offsets_;
  std::vector<int64_t> parts_;
  std::set<std::pair<bool, size_t>> begun_;
  std::set<size_t> allowed_, in_memory_;
  std::map<size_t, int> writing_;
  size_t most_ = 0;
};

}  // namespace hasten::testing

// This program's functions, in the place of the C library's.
extern "C" {

ssize_t pread(int file, void* memory, size_t count, off_t offset) {
  const auto call = [&] { return static_cast<ssize_t>(syscall(SYS_pread64, file, memory, count, offset)); };
  auto* transfers = hasten::testing::FileTransfers::current().load();
  return transfers != nullptr && transfers->is_of_folder(file) ? transfers->transfer(false, offset, call) : call();
}

ssize_t pwrite(int file, const void* memory, size_t count, off_t offset) {
  const auto call = [&] { return static_cast<ssize_t>(syscall(SYS_pwrite64, file, memory, count, offset)); };
  auto* transfers = hasten::testing::FileTransfers::current().load();
  return transfers != nullptr && transfers->is_of_folder(file) ? transfers->transfer(true, offset, call) : call();
}

}  // extern "C"
