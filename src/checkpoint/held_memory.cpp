// Memory by mmap, grown and never shrunk; see held_memory.h.
#include "checkpoint/held_memory.h"

#include <sys/mman.h>

#include <new>

namespace hasten::checkpoint {
namespace {
constexpr size_t kPage = 4096;
size_t rounded(size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }
}  // namespace

HeldMemory::~HeldMemory() {
  if (data_ != nullptr) ::munmap(data_, capacity_);
}

void HeldMemory::grow(size_t bytes) {
  if (bytes <= capacity_) return;
  if (data_ != nullptr) ::munmap(data_, capacity_);
  data_ = nullptr;
  capacity_ = 0;
  void* fresh = ::mmap(nullptr, rounded(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (fresh == MAP_FAILED) throw std::bad_alloc();
  data_ = static_cast<char*>(fresh);
  capacity_ = rounded(bytes);
  ::madvise(data_, capacity_, MADV_HUGEPAGE);
}

std::vector<char*> HeldMemory::buffers(const std::vector<size_t>& sizes) {
  size_t total = 0;
  for (const size_t size : sizes) total += rounded(size);
  grow(total);
  std::vector<char*> out;
  size_t at = 0;
  for (const size_t size : sizes) {
    out.push_back(data_ + at);
    at += rounded(size);
  }
  return out;
}

void HeldMemory::prepare(size_t bytes) {
  grow(bytes);
  for (size_t at = 0; at < capacity_; at += kPage) *static_cast<volatile char*>(data_ + at) = 0;
}

}  // namespace hasten::checkpoint
