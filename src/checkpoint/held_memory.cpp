// Memory by mmap, grown and never shrunk; see held_memory.h.
#include "checkpoint/held_memory.h"

#include <ATen/Functions.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <new>

#include "hasten/process/device.h"

namespace hasten::checkpoint {
namespace {
constexpr size_t kPage = 4096;
constexpr int kNiceness = 10;
size_t rounded(size_t bytes) {
  return (bytes + kPage - 1) / kPage * kPage;
}
}  // namespace

HeldMemory::~HeldMemory() {
  stop();
  if (data_ != nullptr && !pinned_.defined()) ::munmap(data_, capacity_);
}

void HeldMemory::stop() noexcept {
  stopped_ = true;
  if (toucher_.joinable()) toucher_.join();
}

// Pages that are there stay.
void HeldMemory::grow(size_t bytes) {
  if (bytes <= capacity_) return;
  void* larger = data_ == nullptr
                     ? ::mmap(nullptr, rounded(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
                     : ::mremap(data_, capacity_, rounded(bytes), MREMAP_MAYMOVE);
  if (larger == MAP_FAILED) throw std::bad_alloc();
  data_ = static_cast<char*>(larger);
  capacity_ = rounded(bytes);
  ::madvise(data_, capacity_, MADV_HUGEPAGE);
}

void HeldMemory::pin(size_t bytes) {
  if (pinned_.defined() && bytes <= capacity_) return;
  if (data_ != nullptr && !pinned_.defined()) ::munmap(data_, capacity_);
  data_ = nullptr;
  pinned_ = at::empty({static_cast<int64_t>(rounded(bytes) + kPage)},
                      at::TensorOptions().dtype(at::kByte).pinned_memory(true));
  const auto begin = reinterpret_cast<uintptr_t>(pinned_.mutable_data_ptr());
  data_ = reinterpret_cast<char*>(rounded(begin));
  capacity_ = rounded(bytes);
}

std::vector<char*> HeldMemory::buffers(const std::vector<size_t>& sizes, bool pinned) {
  size_t total = 0;
  for (const size_t size : sizes) total += rounded(size);
  stop();
  if (pinned || pinned_.defined()) {
    pin(total);
  } else {
    grow(total);
  }
  std::vector<char*> out;
  size_t at = 0;
  for (const size_t size : sizes) {
    out.push_back(data_ + at);
    at += rounded(size);
  }
  return out;
}

void HeldMemory::prepare(size_t bytes, bool pinned) noexcept {
  if (toucher_.joinable() || pinned_.defined()) return;
  try {
    if (pinned) {
      toucher_ = std::thread([this, bytes, set_device = process::device_for_threads()] {
        try {
          set_device();
          pin(bytes);
          touched_ = capacity_;
        } catch (const std::exception&) {
          // The first snapshot pins its memory itself, and is slower.
        }
      });
      return;
    }
    grow(bytes);
    stopped_ = false;
    toucher_ = std::thread([this] {
      ::setpriority(PRIO_PROCESS, static_cast<id_t>(::syscall(SYS_gettid)), kNiceness);
      for (size_t at = 0; at < capacity_ && !stopped_; at += kPage) {
        *static_cast<volatile char*>(data_ + at) = 0;
        touched_ = at + kPage;
      }
    });
  } catch (const std::exception&) {
    // The first snapshot finds fresh pages, and is slower.
  }
}

}  // namespace hasten::checkpoint
