// See weight_streamer.h.
#include "hasten/offload/units/weight_streamer.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>

#include "hasten/interception/interceptor.h"
#include "hasten/offload/units/named_memory.h"
#include "hasten/plan/memory_limits.h"
#include "offload/units/read_ahead.h"

namespace hasten::offload {
namespace {

template <class Visit>
void visit_argument(const c10::IValue& value, const Visit& visit) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) visit(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) {
      if (tensor.defined()) visit(tensor);
    }
  }
}

bool keeps_cache(const std::vector<StreamUnit>& units, PageCache page_cache) {
  if (page_cache != PageCache::kAuto) return page_cache == PageCache::kKeep;
  int64_t bytes = 0;
  for (const StreamUnit& unit : units) bytes += unit.streamed ? unit.bytes() : 0;
  return bytes <= plan::available_memory_bytes();
}

// Represents a thread while it runs; its units in use end with it.
std::shared_ptr<const char> this_thread() {
  thread_local const std::shared_ptr<const char> token = std::make_shared<const char>('t');
  return token;
}

}  // namespace

int64_t StreamUnit::bytes() const noexcept {
  int64_t sum = 0;
  for (const StreamPiece& piece : pieces) sum += static_cast<int64_t>(piece.bytes);
  return sum;
}

class WeightStreamer::Engine : public interception::Interceptor {
 public:
  Engine(std::vector<StreamUnit> units, PageCache page_cache)
      : units_(std::move(units)),
        keeps_cache_(keeps_cache(units_, page_cache)),
        reader_(units_.size(), [this](size_t unit) { read(unit); }) {
    successors_.resize(units_.size());
    for (size_t i = 0; i < units_.size(); ++i) {
      successors_[i] = (i + 1) % units_.size();
      for (const at::Tensor& tensor : units_[i].tensors) by_storage_[tensor.storage().unsafeGetStorageImpl()] = i;
      if (!units_[i].streamed) continue;
      for (size_t k = 0; k < units_[i].pieces.size(); ++k) protect(units_[i], k);
    }
  }

  interception::Level level() const override { return interception::Level::kEveryOperator; }

  bool intercept(const c10::OperatorHandle& op, interception::Stack& stack) override {
    const auto& arguments = op.schema().arguments();
    const size_t base = stack.size() - arguments.size();
    std::vector<size_t> used;
    for (size_t i = 0; i < arguments.size(); ++i) {
      const bool is_write = arguments[i].alias_info() != nullptr && arguments[i].alias_info()->isWrite();
      visit_argument(stack[base + i], [&](const at::Tensor& tensor) {
        const auto unit = unit_of(tensor);
        if (!unit) return;
        if (is_write) make_resident(*unit);
        if (std::find(used.begin(), used.end(), *unit) == used.end()) used.push_back(*unit);
      });
    }
    if (!used.empty()) use(used);
    return false;
  }

  const std::vector<StreamUnit>& units() const { return units_; }

  StreamCounts counts() const {
    const std::lock_guard lock(mutex_);
    return counts_;
  }

  // Reads the tensor's unit and keeps it until unpin; nothing for a tensor of no unit.
  std::optional<size_t> pin(const at::Tensor& tensor, bool writable) {
    const auto unit = unit_of(tensor);
    if (!unit) return std::nullopt;
    {
      const std::lock_guard lock(mutex_);
      pins_.insert(*unit);
    }
    if (writable) make_resident(*unit);
    try {
      reader_.wait(*unit);
    } catch (...) {
      unpin(*unit);
      throw;
    }
    return unit;
  }

  void unpin(size_t unit) {
    const std::lock_guard lock(mutex_);
    pins_.erase(pins_.find(unit));
    if (!is_in_use(unit)) drop(unit);
  }

  void release_all() {
    const std::lock_guard lock(mutex_);
    for (const StreamUnit& unit : units_) set_writable(unit);
    names_.clear();
  }

 private:
  std::optional<size_t> unit_of(const at::Tensor& tensor) const {
    if (!tensor.has_storage()) return std::nullopt;
    const auto found = by_storage_.find(tensor.storage().unsafeGetStorageImpl());
    if (found == by_storage_.end()) return std::nullopt;
    return found->second;
  }

  // A kernel that writes past the operator's schema ends by a fault that names the parameter, and never loses a value.
  void protect(const StreamUnit& unit, size_t index) {
    const StreamPiece& piece = unit.pieces[index];
    names_.emplace_back(unit.tensors[index].const_data_ptr(), piece.bytes, unit.tensor_names[index]);
    piece.region->set_writable(piece.offset, piece.bytes, false);
  }

  static void set_writable(const StreamUnit& unit) {
    for (const StreamPiece& piece : unit.pieces) piece.region->set_writable(piece.offset, piece.bytes, true);
  }

  void read(size_t index) {
    for (const StreamPiece& piece : units_[index].pieces) {
      piece.region->require_unchanged();
      if (keeps_cache_ && piece.region->map_if_cached(piece.offset, piece.bytes)) continue;
      piece.region->read_into_cache(piece.offset, piece.bytes);
    }
    const std::lock_guard lock(mutex_);
    ++counts_.reads;
  }

  void make_resident(size_t index) {
    const std::lock_guard lock(mutex_);
    StreamUnit& unit = units_[index];
    if (!unit.streamed) return;
    unit.streamed = false;
    counts_.resident_bytes += unit.bytes();
    set_writable(unit);
  }

  struct Active {
    std::weak_ptr<const char> thread;
    std::vector<size_t> units;
  };

  // The units that this thread's last operator used. Those of ended threads are forgotten.
  Active& active_of_this_thread() {
    std::erase_if(active_, [](const Active& active) { return active.thread.expired(); });
    const auto thread = this_thread();
    for (Active& active : active_) {
      if (active.thread.lock() == thread) return active;
    }
    return active_.emplace_back(Active{thread, {}});
  }

  bool is_in_use(size_t unit) const {
    return pins_.count(unit) > 0 || std::any_of(active_.begin(), active_.end(), [&](const Active& active) {
             return std::find(active.units.begin(), active.units.end(), unit) != active.units.end();
           });
  }

  // Drops units that the thread's operator before used and that no operator uses now. Then it requests the next one.
  void use(const std::vector<size_t>& used) {
    {
      const std::lock_guard lock(mutex_);
      Active& active = active_of_this_thread();
      if (used == active.units) return;
      if (!active.units.empty() && active.units.back() != used.front()) successors_[active.units.back()] = used.front();
      const auto before = std::exchange(active.units, used);
      for (const size_t unit : before) {
        if (!is_in_use(unit)) drop(unit);
      }
    }
    for (const size_t unit : used) reader_.wait(unit);
    reader_.request(next_after(used.back()));
  }

  void drop(size_t index) {
    const StreamUnit& unit = units_[index];
    if (!unit.streamed) return;
    for (const StreamPiece& piece : unit.pieces) piece.region->drop(piece.offset, piece.bytes, keeps_cache_);
    reader_.forget(index);
    ++counts_.drops;
  }

  size_t next_after(size_t unit) const {
    const std::lock_guard lock(mutex_);
    return successors_[unit];
  }

  mutable std::mutex mutex_;
  std::vector<StreamUnit> units_;
  const bool keeps_cache_;
  std::unordered_map<const c10::StorageImpl*, size_t> by_storage_;
  std::vector<size_t> successors_;
  std::vector<Active> active_;
  std::multiset<size_t> pins_;
  std::vector<NamedMemory> names_;
  StreamCounts counts_;
  ReadAhead reader_;  // last: its thread ends first
};

struct WeightPin::Impl {
  std::vector<std::pair<std::shared_ptr<WeightStreamer::Engine>, size_t>> pinned = {};
  ~Impl() {
    for (const auto& [engine, unit] : pinned) engine->unpin(unit);
  }
};

WeightPin::WeightPin(const std::vector<at::Tensor>& tensors, bool writable) : impl_(std::make_unique<Impl>()) {
  for (const at::Tensor& tensor : tensors) {
    const auto engine = interception::find_interceptor<WeightStreamer::Engine>(tensor);
    if (!engine) continue;
    if (const auto unit = engine->pin(tensor, writable)) impl_->pinned.emplace_back(engine, *unit);
  }
}

WeightPin::~WeightPin() = default;

WeightStreamer::WeightStreamer(std::vector<StreamUnit> units, PageCache page_cache)
    : engine_(std::make_shared<Engine>(std::move(units), page_cache)) {
  for (const StreamUnit& unit : engine_->units()) {
    for (const at::Tensor& tensor : unit.tensors) interception::add_interceptor(tensor, engine_);
  }
}

WeightStreamer::~WeightStreamer() {
  if (engine_) stop();
}

const std::vector<StreamUnit>& WeightStreamer::units() const {
  return engine_->units();
}

StreamCounts WeightStreamer::counts() const {
  return engine_->counts();
}

void WeightStreamer::require_unchanged() const {
  for (const StreamUnit& unit : engine_->units()) {
    for (const StreamPiece& piece : unit.pieces) piece.region->require_unchanged();
  }
}

void WeightStreamer::stop() {
  for (const StreamUnit& unit : engine_->units()) {
    for (const at::Tensor& tensor : unit.tensors) interception::remove_interceptor(tensor, engine_.get());
  }
  engine_->release_all();
}

}  // namespace hasten::offload
