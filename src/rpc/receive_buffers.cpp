// See receive_buffers.h.
#include "rpc/receive_buffers.h"

#include <c10/core/CPUAllocator.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <memory>
#include <new>

namespace hasten::rpc {
namespace {

constexpr size_t kGranuleBytes = size_t{64} << 10;

}  // namespace

ReceiveBuffers& ReceiveBuffers::get() {
  static auto* const buffers = new ReceiveBuffers;
  return *buffers;
}

c10::DataPtr ReceiveBuffers::allocate(size_t num_bytes) {
  if (num_bytes < kSmallestBytes) return c10::GetCPUAllocator()->allocate(num_bytes);
  auto block = std::make_unique<Block>();
  {
    const std::lock_guard lock(mutex_);
    const auto fits = std::find_if(kept_.begin(), kept_.end(), [&](const Block& one) {
      return one.num_bytes >= num_bytes && one.num_bytes <= num_bytes + num_bytes / 4;
    });
    if (fits != kept_.end()) {
      *block = *fits;
      kept_bytes_ -= fits->num_bytes;
      kept_.erase(fits);
    }
  }
  if (block->memory == nullptr) {
    block->num_bytes = (num_bytes + kGranuleBytes - 1) / kGranuleBytes * kGranuleBytes;
    block->memory = mmap(nullptr, block->num_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (block->memory == MAP_FAILED) throw std::bad_alloc();
    madvise(block->memory, block->num_bytes, MADV_HUGEPAGE);
  }
  void* const memory = block->memory;
  return {memory, block.release(), &ReceiveBuffers::give_back, c10::Device(c10::kCPU)};
}

void ReceiveBuffers::give_back(void* block) {
  const std::unique_ptr<Block> owned(static_cast<Block*>(block));
  get().keep(*owned);
}

void ReceiveBuffers::keep(const Block& block) {
  std::list<Block> dropped;
  if (block.num_bytes > kMostKeptBytes) {
    dropped.push_back(block);
  } else {
    madvise(block.memory, block.num_bytes, MADV_FREE);
    const std::lock_guard lock(mutex_);
    kept_.push_front(block);
    kept_bytes_ += block.num_bytes;
    while (kept_bytes_ > kMostKeptBytes) {
      kept_bytes_ -= kept_.back().num_bytes;
      dropped.splice(dropped.begin(), kept_, std::prev(kept_.end()));
    }
  }
  for (const Block& one : dropped) munmap(one.memory, one.num_bytes);
}

void ReceiveBuffers::copy_data(void* to, const void* from, size_t num_bytes) const {
  std::memcpy(to, from, num_bytes);
}

size_t ReceiveBuffers::kept_bytes() const {
  const std::lock_guard lock(mutex_);
  return kept_bytes_;
}

}  // namespace hasten::rpc
