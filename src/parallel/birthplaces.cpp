// See birthplaces.h.
#include "parallel/birthplaces.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/GradMode.h>

#include <cstdint>
#include <mutex>
#include <unordered_map>

#include "hasten/state/allocator.h"

namespace hasten::parallel {
namespace {

thread_local bool is_open = false;
thread_local std::weak_ptr<Birthplaces> opened;

/// Memory of slots that is held as memory of its own, by address.
class Loans {
 public:
  struct Loan {
    c10::Storage memory;
    std::shared_ptr<std::atomic<bool>> lent;
  };

  void put(void* memory, Loan loan) {
    const std::lock_guard lock(mutex_);
    loans_.insert_or_assign(memory, std::move(loan));
    num_loans_ = loans_.size();
  }
  /// Whether it was lent.
  bool end(void* memory) {
    if (num_loans_ == 0) return false;
    Loan loan;
    {
      const std::lock_guard lock(mutex_);
      const auto found = loans_.find(memory);
      if (found == loans_.end()) return false;
      loan = std::move(found->second);
      loans_.erase(found);
      num_loans_ = loans_.size();
    }
    *loan.lent = false;
    return true;
  }

 private:
  std::mutex mutex_;
  std::unordered_map<void*, Loan> loans_;
  std::atomic<size_t> num_loans_ = 0;
};

// Never destroyed: tensors may be freed after everything else.
Loans& loans() {
  static auto* all = new Loans;
  return *all;
}

}  // namespace

class LendingAllocator : public state::OwnAllocator {
 public:
  /// Over libtorch's own, or what an Accelerator put in its place, from the first call on; nullptr where the
  /// program has another in use.
  static LendingAllocator* installed() {
    static LendingAllocator* const allocator = [] {
      c10::Allocator* own = c10::GetCPUAllocator();
      if (!state::is_libtorchs_or_ours(own) || own->raw_deleter() == nullptr) {
        return static_cast<LendingAllocator*>(nullptr);
      }
      auto* wrapped = new LendingAllocator(*own);
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
  explicit LendingAllocator(c10::Allocator& own) : own_(own) { own_free = own.raw_deleter(); }

  c10::DataPtr allocate(size_t num_bytes, Birthplaces& places) {
    Birthplaces::Place* place = places.next(num_bytes);
    if (place == nullptr) {
      c10::DataPtr memory = plain(num_bytes);
      places.note(num_bytes, memory.get());
      return memory;
    }
    void* memory = place->slot.data_ptr();
    place->lent->store(true);
    loans().put(memory, {place->slot.storage(), place->lent});
    return {memory, memory, &free, c10::Device(c10::kCPU)};
  }

  // Also what is not lent gets this class's deleter: raw_deleter() has to fit all.
  c10::DataPtr plain(size_t num_bytes) {
    c10::DataPtr memory = own_.allocate(num_bytes);
    static_cast<void>(memory.compare_exchange_deleter(own_free, &free));
    return memory;
  }

  static void free(void* memory) {
    if (!loans().end(memory)) own_free(memory);
  }

  c10::Allocator& own_;
  static inline c10::DeleterFnPtr own_free = nullptr;
};

std::shared_ptr<Birthplaces> Birthplaces::make(std::optional<int64_t> least_bytes) {
  if (!least_bytes || LendingAllocator::installed() == nullptr) return nullptr;
  return std::shared_ptr<Birthplaces>(new Birthplaces(*least_bytes));
}

size_t Birthplaces::add(const at::Tensor& parameter, const at::Tensor& slot) {
  const bool aligned = reinterpret_cast<uintptr_t>(slot.data_ptr()) % kAlign == 0;
  const bool large = static_cast<int64_t>(slot.nbytes()) >= least_bytes_;
  places_.push_back({.parameter = parameter, .slot = slot, .trusted = aligned && large});
  return places_.size() - 1;
}

void Birthplaces::move(size_t place, const at::Tensor& slot) {
  places_[place].slot = slot;
  places_[place].lent = std::make_shared<std::atomic<bool>>(false);
}

void Birthplaces::open() {
  turns_.clear();
  allocations_.clear();
  opened = weak_from_this();
  is_open = true;
}

void Birthplaces::close() {
  if (opened.lock().get() == this) is_open = false;
}

Birthplaces::Place* Birthplaces::next(size_t num_bytes) {
  const int turn = ++turns_[num_bytes];
  for (Place& place : places_) {
    const bool its_turn = place.turn == turn && place.slot.nbytes() == num_bytes;
    if (its_turn && place.trusted && !*place.lent && !place.parameter.grad().defined()) return &place;
  }
  return nullptr;
}

void Birthplaces::note(size_t num_bytes, const void* memory) {
  // A backward that an exception has ended leaves the thread open: then what follows is noted, too.
  constexpr size_t kMost = 1 << 16;
  if (allocations_.size() < kMost) allocations_.push_back({num_bytes, turns_[num_bytes], memory});
}

void Birthplaces::arrived(size_t place, const at::Tensor& gradient) {
  Place& its = places_[place];
  if (!its.trusted || !gradient.has_storage() || gradient.data_ptr() == its.slot.data_ptr()) return;
  its.turn = 0;
  for (const Allocation& allocation : allocations_) {
    if (allocation.memory == gradient.data_ptr() && allocation.num_bytes == its.slot.nbytes()) {
      its.turn = allocation.turn;
    }
  }
}

}  // namespace hasten::parallel
