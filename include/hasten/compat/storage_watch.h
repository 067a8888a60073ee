// Storage watch: listeners that are called before a tensor's memory is written to.
//
// libtorch 2.13 takes one callback a storage (a materializer). It runs the callback before the first mutable pointer
// leaves the storage, clears it afterwards, and asserts on a second. So this file alone sets it and keeps a list of
// listeners for each storage. Before 2.13 a copy-on-write pointer protects the memory, and check() calls the listeners
// after the write. Reads, set_data, set_, resize_ and earlier pointers call nothing: users compare StorageImpl and
// address for these.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

namespace hasten::compat {

namespace detail {
struct WatchEntry;
}

class StorageListener {
 public:
  virtual ~StorageListener() = default;
  /// The storage is about to be written to. A listener may give it other memory here (set_data_ptr_noswap). The old
  /// memory must outlive other threads' reads. If it throws, the write does not happen and the watch stays armed. Runs
  /// in the writing thread, under the watch's lock.
  virtual void before_write(c10::StorageImpl& storage) = 0;
  /// The bytes that the storage shows have other values now, written by their owner past the storage (a step on
  /// slices of shared memory). Called by notify_changed.
  virtual void on_changed(c10::StorageImpl&) {}
};

/// Notifies the storage's listeners that its bytes have changed without a write through it.
/// Throws: the exceptions of the listeners.
void notify_changed(const at::Tensor& tensor);

/// Returns true if listeners are called before a write (libtorch 2.13 and later), or by check().
bool listeners_run_before_writes() noexcept;

/// Registration of a listener at a storage. Its end takes the listener off.
class StorageWatch {
 public:
  StorageWatch() = default;
  /// Watches the memory of `tensor` for the listener, which it keeps alive.
  /// Throws: UsageError for a tensor without storage.
  StorageWatch(const at::Tensor& tensor, std::shared_ptr<StorageListener> listener);
  ~StorageWatch();
  StorageWatch(StorageWatch&&) noexcept;
  StorageWatch& operator=(StorageWatch&&) noexcept;

  /// Arms the watch again after a write; without effect while it is armed. The memory that the storage has now
  /// is protected. Not to be called from before_write.
  void rearm();
  /// Calls the listeners if the storage was written to and they have not been called (before libtorch 2.13).
  void check();
  /// Disarms the callback while no listener may be called, for operators that take a mutable pointer but only read.
  /// rearm() ends it.
  void disarm();

 private:
  std::shared_ptr<detail::WatchEntry> entry_;
  std::shared_ptr<StorageListener> listener_;
};

}  // namespace hasten::compat
