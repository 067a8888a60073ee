// See storage_watch.h.
#include "hasten/compat/storage_watch.h"

#include <c10/core/StorageImpl.h>
#include <c10/core/impl/COW.h>
#include <c10/core/impl/COWDeleter.h>

#include <algorithm>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "hasten/core/error.h"

namespace hasten::compat {
namespace {

void on_write(c10::StorageImpl* storage);

// A template over S, so that the other branch is discarded where libtorch lacks it.
template <class S>
constexpr bool kHasMaterializer = requires(S& storage) { storage.set_materializer(&on_write); };

template <class S>
void set_callback(S& storage) {
  if constexpr (kHasMaterializer<S>) {
    // Another's callback (copy-on-write) runs first: the memory becomes the storage's own.
    if (storage.has_materializer()) storage.mutable_data();
    storage.set_materializer(&on_write);
  }
}

template <class S>
void clear_callback(S& storage) {
  if constexpr (kHasMaterializer<S>) storage.clear_materializer();
}

template <class S>
bool has_callback(const S& storage) {
  if constexpr (kHasMaterializer<S>) return storage.has_materializer();
  return false;
}

// Makes the storage's pointer one of two references to its memory, so that a write copies it first.
[[maybe_unused]] c10::impl::cow::COWDeleterContext* protect(c10::StorageImpl& storage) {
  if (c10::impl::cow::is_cow_data_ptr(storage.data_ptr())) storage.mutable_data();
  auto& pointer = const_cast<at::DataPtr&>(storage.data_ptr());
  void* const data = pointer.get();
  const auto device = pointer.device();
  auto* context = new c10::impl::cow::COWDeleterContext(pointer.move_context());
  context->increment_refcount();
  storage.set_data_ptr_noswap(at::DataPtr(data, context, &c10::impl::cow::cow_deleter, device));
  return context;
}

}  // namespace

struct detail::WatchEntry {
  explicit WatchEntry(c10::weak_intrusive_ptr<c10::StorageImpl> watched) : storage(std::move(watched)) {}
  WatchEntry(const WatchEntry&) = delete;
  WatchEntry& operator=(const WatchEntry&) = delete;
  ~WatchEntry() { release(); }

  // The weak reference keeps the address from being used again.
  c10::weak_intrusive_ptr<c10::StorageImpl> storage;
  std::vector<std::shared_ptr<StorageListener>> listeners = {};
  bool armed = false;
  const void* memory = nullptr;
  c10::impl::cow::COWDeleterContext* reference = nullptr;

  void release() {
    if (reference != nullptr) (void)std::exchange(reference, nullptr)->decrement_refcount();
  }
  void arm(c10::StorageImpl& impl) {
    if (armed) return;
    if constexpr (kHasMaterializer<c10::StorageImpl>) {
      set_callback(impl);
    } else {
      release();
      reference = protect(impl);
    }
    memory = impl.data();
    armed = true;
  }
  void call(c10::StorageImpl& impl) {
    for (const auto& listener : listeners) listener->before_write(impl);
    armed = false;
  }
};

namespace {

// libtorch's callback gets a storage and nothing else, so the entries are found by a table of the process.
struct Table {
  std::recursive_mutex mutex;
  std::unordered_map<c10::StorageImpl*, std::weak_ptr<detail::WatchEntry>> entries;

  // Drops what has ended, each time the table has doubled.
  void sweep() {
    if (entries.size() < sweep_at) return;
    std::erase_if(entries, [](const auto& item) { return item.second.expired(); });
    sweep_at = 2 * entries.size() + 64;
  }
  size_t sweep_at = 64;

  static Table& instance() {
    static Table* const table = new Table;  // storages may outlive static objects
    return *table;
  }
};

// The second of two writers at once waits here and finds the entry disarmed.
void on_write(c10::StorageImpl* storage) {
  Table& table = Table::instance();
  const std::lock_guard lock(table.mutex);
  const auto found = table.entries.find(storage);
  const auto entry = found == table.entries.end() ? nullptr : found->second.lock();
  if (entry && entry->armed) entry->call(*storage);
}

}  // namespace

void notify_changed(const at::Tensor& tensor) {
  Table& table = Table::instance();
  const std::lock_guard lock(table.mutex);
  const auto found = table.entries.find(tensor.storage().unsafeGetStorageImpl());
  const auto entry = found == table.entries.end() ? nullptr : found->second.lock();
  if (!entry) return;
  for (const auto& listener : entry->listeners) listener->on_changed(*tensor.storage().unsafeGetStorageImpl());
}

bool listeners_run_before_writes() noexcept {
  return kHasMaterializer<c10::StorageImpl>;
}

StorageWatch::StorageWatch(const at::Tensor& tensor, std::shared_ptr<StorageListener> listener)
    : listener_(std::move(listener)) {
  if (!tensor.defined() || !tensor.has_storage()) {
    throw UsageError(Origin{"compat"}, "a tensor without storage cannot be watched. Pass a dense one.");
  }
  c10::StorageImpl* const impl = tensor.storage().unsafeGetStorageImpl();
  Table& table = Table::instance();
  const std::lock_guard lock(table.mutex);
  table.sweep();
  auto& known = table.entries[impl];
  entry_ = known.lock();
  if (!entry_) {
    entry_ = std::make_shared<detail::WatchEntry>(tensor.storage().getWeakStorageImpl());
    known = entry_;
  }
  entry_->listeners.push_back(listener_);
  entry_->arm(*impl);
}

StorageWatch::~StorageWatch() {
  if (!entry_) return;
  Table& table = Table::instance();
  const std::lock_guard lock(table.mutex);
  auto& all = entry_->listeners;
  if (const auto mine = std::find(all.begin(), all.end(), listener_); mine != all.end()) all.erase(mine);
  if (!all.empty()) return;
  if (const auto impl = entry_->storage.lock(); impl && entry_->armed) clear_callback(*impl);
  entry_->armed = false;
  entry_.reset();
}

StorageWatch::StorageWatch(StorageWatch&& other) noexcept
    : entry_(std::exchange(other.entry_, nullptr)), listener_(std::exchange(other.listener_, nullptr)) {}

StorageWatch& StorageWatch::operator=(StorageWatch&& other) noexcept {
  std::swap(entry_, other.entry_);
  std::swap(listener_, other.listener_);
  return *this;
}

void StorageWatch::rearm() {
  if (!entry_) return;
  const std::lock_guard lock(Table::instance().mutex);
  const auto impl = entry_->storage.lock();
  if (!impl) return;
  // set_data_ptr_noswap and a write through another owner leave a storage whose callback has gone.
  if (kHasMaterializer<c10::StorageImpl> && !has_callback(*impl)) entry_->armed = false;
  if (!kHasMaterializer<c10::StorageImpl> && impl->data() != entry_->memory) entry_->armed = false;
  entry_->arm(*impl);
}

void StorageWatch::check() {
  if (!entry_ || listeners_run_before_writes()) return;
  const std::lock_guard lock(Table::instance().mutex);
  const auto impl = entry_->storage.lock();
  if (impl && entry_->armed && impl->data() != entry_->memory) entry_->call(*impl);
}

void StorageWatch::disarm() {
  if (!entry_ || !listeners_run_before_writes()) return;
  const std::lock_guard lock(Table::instance().mutex);
  if (!entry_->armed) return;
  if (const auto impl = entry_->storage.lock()) clear_callback(*impl);
  entry_->armed = false;
}

}  // namespace hasten::compat
