// See gradient_allocator.h.
#include "parallel/ddp/gradient_allocator.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/GradMode.h>

#include <cstdint>
#include <mutex>
#include <unordered_map>

#include "hasten/memory/allocator.h"

namespace hasten::parallel {
namespace {

thread_local bool is_open = false;
thread_local std::weak_ptr<GradientAllocator> opened;

/// Memory of slots that is held as memory of its own, by address.
class ActiveAllocations {
 public:
  struct ActiveAllocation {
    c10::Storage memory;
    std::shared_ptr<std::atomic<bool>> in_use;
  };

  void put(void* memory, ActiveAllocation allocation) {
    const std::lock_guard lock(mutex_);
    active_.insert_or_assign(memory, std::move(allocation));
    num_active_ = active_.size();
  }
  /// Returns true if it is in use.
  bool end(void* memory) {
    if (num_active_ == 0) return false;
    ActiveAllocation allocation;
    {
      const std::lock_guard lock(mutex_);
      const auto found = active_.find(memory);
      if (found == active_.end()) return false;
      allocation = std::move(found->second);
      active_.erase(found);
      num_active_ = active_.size();
    }
    *allocation.in_use = false;
    return true;
  }

 private:
  std::mutex mutex_;
  std::unordered_map<void*, ActiveAllocation> active_;
  std::atomic<size_t> num_active_ = 0;
};

// Never destroyed: tensors may be freed after everything else.
ActiveAllocations& active_allocations() {
  static auto* all = new ActiveAllocations;
  return *all;
}

}  // namespace

class BucketAllocator : public memory::OwnAllocator {
 public:
  /// Wraps libtorch's allocator, or that of an Accelerator, from the first call on. nullptr if the program has another
  /// in use.
  static BucketAllocator* installed() {
    static BucketAllocator* const allocator = [] {
      c10::Allocator* own = c10::GetCPUAllocator();
      if (!memory::is_libtorchs_or_ours(own) || own->raw_deleter() == nullptr) {
        return static_cast<BucketAllocator*>(nullptr);
      }
      auto* wrapped = new BucketAllocator(*own);
      c10::SetCPUAllocator(wrapped);
      return wrapped;
    }();
    return c10::GetCPUAllocator() == allocator ? allocator : nullptr;
  }

  c10::DataPtr allocate(size_t num_bytes) override {
    if (is_open && num_bytes > 0 && !c10::GradMode::is_enabled()) {
      const auto places = opened.lock();
      if (places && static_cast<int64_t>(num_bytes) >= places->least_bytes()) {
        return allocate(num_bytes, *places);
      }
    }
    return plain(num_bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free; }
  void copy_data(void* to, const void* from, size_t num_bytes) const override {
    default_copy_data(to, from, num_bytes);
  }

 private:
  explicit BucketAllocator(c10::Allocator& own) : own_(own) { own_free = own.raw_deleter(); }

  c10::DataPtr allocate(size_t num_bytes, GradientAllocator& places) {
    GradientAllocator::Place* place = places.next(num_bytes);
    if (place == nullptr) {
      c10::DataPtr memory = plain(num_bytes);
      places.note(num_bytes, memory.get());
      return memory;
    }
    void* memory = place->slot.data_ptr();
    place->in_use->store(true);
    active_allocations().put(memory, {place->slot.storage(), place->in_use});
    return {memory, memory, &free, c10::Device(c10::kCPU)};
  }

  // Memory that is not a slot gets this class's deleter, too: raw_deleter() has to fit all.
  c10::DataPtr plain(size_t num_bytes) {
    c10::DataPtr memory = own_.allocate(num_bytes);
    static_cast<void>(memory.compare_exchange_deleter(own_free, &free));
    return memory;
  }

  static void free(void* memory) {
    if (!active_allocations().end(memory)) own_free(memory);
  }

  c10::Allocator& own_;
  static inline c10::DeleterFnPtr own_free = nullptr;
};

std::shared_ptr<GradientAllocator> GradientAllocator::make(std::optional<int64_t> least_bytes) {
  if (!least_bytes || BucketAllocator::installed() == nullptr) return nullptr;
  return std::shared_ptr<GradientAllocator>(new GradientAllocator(*least_bytes));
}

size_t GradientAllocator::add(const at::Tensor& parameter, const at::Tensor& slot) {
  const bool aligned = reinterpret_cast<uintptr_t>(slot.data_ptr()) % kAlign == 0;
  const bool large = static_cast<int64_t>(slot.nbytes()) >= least_bytes_;
  places_.push_back({.parameter = parameter, .slot = slot, .trusted = aligned && large});
  return places_.size() - 1;
}

void GradientAllocator::move(size_t place, const at::Tensor& slot) {
  places_[place].slot = slot;
  places_[place].in_use = std::make_shared<std::atomic<bool>>(false);
}

void GradientAllocator::open() {
  num_allocations_.clear();
  allocations_.clear();
  opened = weak_from_this();
  is_open = true;
}

void GradientAllocator::close() {
  if (opened.lock().get() == this) is_open = false;
}

GradientAllocator::Place* GradientAllocator::next(size_t num_bytes) {
  const int allocation_index = ++num_allocations_[num_bytes];
  for (Place& place : places_) {
    const bool its_turn = place.allocation_index == allocation_index && place.slot.nbytes() == num_bytes;
    if (its_turn && place.trusted && !*place.in_use && !place.parameter.grad().defined()) return &place;
  }
  return nullptr;
}

void GradientAllocator::note(size_t num_bytes, const void* memory) {
  // A backward that an exception has ended leaves the thread open: then what follows is noted, too.
  constexpr size_t kMost = 1 << 16;
  if (allocations_.size() < kMost) allocations_.push_back({num_bytes, num_allocations_[num_bytes], memory});
}

void GradientAllocator::record(size_t place, const at::Tensor& gradient) {
  Place& its = places_[place];
  if (!its.trusted || !gradient.has_storage() || gradient.data_ptr() == its.slot.data_ptr()) return;
  its.allocation_index = 0;
  for (const Allocation& allocation : allocations_) {
    if (allocation.memory == gradient.data_ptr() && allocation.num_bytes == its.slot.nbytes()) {
      its.allocation_index = allocation.allocation_index;
    }
  }
}

}  // namespace hasten::parallel
