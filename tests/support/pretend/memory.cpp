// See memory.h.
//
// Freed memory is filled with NaN at once, unless a stream that uses it has work left. It goes back to the system when
// no work waits any more, so that work that reads or writes it by mistake shows as NaN and not as a crash.
#include "support/pretend/memory.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <set>
#include <vector>

#include "support/pretend/streams.h"

namespace hasten::testing::pretend {
namespace {

constexpr int kPoison = 0xFF;  // NaN in every floating dtype
constexpr int64_t kUnlimited = int64_t{64} << 30;

struct Block {
  size_t bytes;
  c10::DeviceIndex device;
  std::set<c10::StreamId> streams;  // that made it, and that were recorded
};

struct Memory {
  std::recursive_mutex mutex;
  std::map<const char*, Block> blocks;
  std::map<const char*, size_t> pinned;
  std::vector<void*> freed;
};

// Never destroyed: tensors may outlive static objects.
Memory& all() {
  static auto* const memory = new Memory;
  return *memory;
}

void* allocate_poisoned(size_t bytes, size_t alignment) {
  void* memory = nullptr;
  if (posix_memalign(&memory, alignment, bytes) != 0) throw std::bad_alloc();
  std::memset(memory, kPoison, bytes);
  return memory;
}

void give_back(void* memory, size_t bytes) {
  const std::lock_guard lock(all().mutex);
  std::memset(memory, kPoison, bytes);
  all().freed.push_back(memory);
  if (!all_idle()) return;
  for (void* each : all().freed) std::free(each);
  all().freed.clear();
}

void free_device(void* memory) {
  if (memory == nullptr) return;
  const std::lock_guard lock(all().mutex);
  const auto found = all().blocks.find(static_cast<const char*>(memory));
  const Block block = found->second;
  all().blocks.erase(found);
  counted().bytes.at(static_cast<size_t>(block.device)) -= static_cast<int64_t>(block.bytes);
  const auto num_waiting = std::make_shared<int>(0);
  for (const auto id : block.streams) {
    const auto stream = stream_of(block.device, id);
    if (is_done(mark_of(stream))) continue;
    ++*num_waiting;
    submit(stream, [num_waiting, memory, bytes = block.bytes] {
      const std::lock_guard lock(all().mutex);
      if (--*num_waiting == 0) give_back(memory, bytes);
    });
  }
  if (*num_waiting > 0) {
    ++counted().deferred_frees;
  } else {
    give_back(memory, block.bytes);
  }
}

void free_pinned(void* memory) {
  if (memory == nullptr) return;
  const std::lock_guard lock(all().mutex);
  const auto found = all().pinned.find(static_cast<const char*>(memory));
  const size_t bytes = found->second;
  all().pinned.erase(found);
  give_back(memory, bytes);
}

class DeviceMemory final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const c10::Device where(kType, current_device());
    const auto index = static_cast<size_t>(where.index());
    if (bytes == 0) return {nullptr, nullptr, &free_device, where};
    const std::lock_guard lock(all().mutex);
    Counts& counts = counted();
    const auto wanted = counts.bytes.at(index) + static_cast<int64_t>(bytes);
    TORCH_CHECK_WITH(OutOfMemoryError, counts.limit_bytes == 0 || wanted <= counts.limit_bytes,
                     "CUDA out of memory. Tried to allocate ", bytes, " bytes of ", counts.limit_bytes,
                     " on the pretend device");
    void* memory = allocate_poisoned(bytes, 512);
    all().blocks.emplace(static_cast<const char*>(memory),
                         Block{bytes, where.index(), {current_stream(where.index()).id()}});
    counts.bytes[index] = wanted;
    counts.peak_bytes.at(index) = std::max(counts.peak_bytes.at(index), wanted);
    return {memory, memory, &free_device, where};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_device; }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr& memory, c10::Stream stream) override { record_use(memory.get(), stream); }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    c10::CachingDeviceAllocator::DeviceStats stats;
    auto& allocated = stats.allocated_bytes[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
    allocated.current = counted().bytes.at(static_cast<size_t>(device));
    allocated.peak = counted().peak_bytes.at(static_cast<size_t>(device));
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex device) override {
    const auto index = static_cast<size_t>(device);
    counted().peak_bytes.at(index) = counted().bytes.at(index);
  }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    const int64_t total = counted().limit_bytes == 0 ? kUnlimited : counted().limit_bytes;
    const int64_t free = total - counted().bytes.at(static_cast<size_t>(device));
    return {static_cast<size_t>(std::max<int64_t>(free, 0)), static_cast<size_t>(total)};
  }
};

class PinnedMemory final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return {nullptr, nullptr, &free_pinned, c10::DeviceType::CPU};
    const std::lock_guard lock(all().mutex);
    void* memory = allocate_poisoned(bytes, 64);
    all().pinned.emplace(static_cast<const char*>(memory), bytes);
    return {memory, memory, &free_pinned, c10::DeviceType::CPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_pinned; }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }
};

}  // namespace

c10::DeviceAllocator& device_allocator() {
  static auto* const allocator = new DeviceMemory;
  return *allocator;
}

c10::Allocator& pinned_allocator() {
  static auto* const allocator = new PinnedMemory;
  return *allocator;
}

void record_use(const void* memory, const c10::Stream& stream) {
  const std::lock_guard lock(all().mutex);
  const auto found = all().blocks.find(static_cast<const char*>(memory));
  if (found != all().blocks.end()) found->second.streams.insert(stream.id());
}

bool is_pinned(const void* pointer) {
  const std::lock_guard lock(all().mutex);
  const auto* address = static_cast<const char*>(pointer);
  auto found = all().pinned.upper_bound(address);
  return found != all().pinned.begin() && address < (--found)->first + found->second;
}

std::optional<c10::DeviceIndex> device_of(const void* pointer) {
  const std::lock_guard lock(all().mutex);
  const auto* address = static_cast<const char*>(pointer);
  auto found = all().blocks.upper_bound(address);
  if (found == all().blocks.begin() || address >= (--found)->first + found->second.bytes) return std::nullopt;
  return found->second.device;
}

// What the CUDA runtime has for memory of a program's own.
extern "C" int cudaHostRegister(void* memory, size_t bytes, unsigned /*flags*/) {
  constexpr int kAlreadyRegistered = 712;
  const std::lock_guard lock(all().mutex);
  const auto* begin = static_cast<const char*>(memory);
  const auto next = all().pinned.lower_bound(begin);
  if (is_pinned(memory) || (next != all().pinned.end() && next->first < begin + bytes)) return kAlreadyRegistered;
  all().pinned.emplace(begin, bytes);
  return 0;
}

extern "C" int cudaHostUnregister(void* memory) {
  constexpr int kNotRegistered = 713;
  const std::lock_guard lock(all().mutex);
  return all().pinned.erase(static_cast<const char*>(memory)) == 1 ? 0 : kNotRegistered;
}

}  // namespace hasten::testing::pretend
