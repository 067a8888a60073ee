// Memory by mmap, grown and never shrunk; see held_memory.h.
#include "checkpoint/save/held_memory.h"

#include <ATen/Functions.h>
#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <new>
#include <utility>

#include "checkpoint/save/background_thread.h"
#include "hasten/process/device.h"

namespace hasten::checkpoint {
namespace {
constexpr size_t kPage = 4096;
size_t rounded(size_t bytes) {
  return (bytes + kPage - 1) / kPage * kPage;
}

// Functions of the CUDA runtime that libtorch has loaded. Looked up, not linked: one build serves libtorch with and
// without CUDA. libtorch's own allocator of pinned memory rounds up to a power of two, twice as much at worst.
struct Runtime {
  using Register = int (*)(void* memory, size_t bytes, unsigned flags);
  using Unregister = int (*)(void* memory);
  using LastError = int (*)();
  Register add = reinterpret_cast<Register>(dlsym(RTLD_DEFAULT, "cudaHostRegister"));
  Unregister remove = reinterpret_cast<Unregister>(dlsym(RTLD_DEFAULT, "cudaHostUnregister"));
  LastError take_error = reinterpret_cast<LastError>(dlsym(RTLD_DEFAULT, "cudaGetLastError"));
};
constexpr unsigned kPortable = 1;  // for all devices
}  // namespace

HeldMemory::~HeldMemory() {
  stop();
  unregister_pages();
  if (data_ != nullptr && !pinned_.defined()) ::munmap(data_, capacity_);
}

bool HeldMemory::register_pages() {
  const Runtime runtime;
  if (runtime.add == nullptr || runtime.remove == nullptr) return false;
  if (runtime.add(data_, capacity_, kPortable) == 0) return registered_ = true;
  if (runtime.take_error != nullptr) runtime.take_error();  // else the next kernel's check would find it
  return false;
}

void HeldMemory::unregister_pages() noexcept {
  if (std::exchange(registered_, false)) Runtime().remove(data_);
}

void HeldMemory::stop() noexcept {
  stopped_ = true;
  if (toucher_.joinable()) toucher_.join();
}

// Pages that are there stay.
void HeldMemory::grow(size_t bytes) {
  if (bytes <= capacity_) return;
  unregister_pages();
  void* larger = data_ == nullptr
                     ? ::mmap(nullptr, rounded(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
                     : ::mremap(data_, capacity_, rounded(bytes), MREMAP_MAYMOVE);
  if (larger == MAP_FAILED) throw std::bad_alloc();
  data_ = static_cast<char*>(larger);
  capacity_ = rounded(bytes);
  ::madvise(data_, capacity_, MADV_HUGEPAGE);
}

void HeldMemory::pin(size_t bytes) {
  if (bytes == 0 || (pinned_.defined() && bytes <= capacity_)) return;
  if (!pinned_.defined()) {
    grow(bytes);
    if (registered_ || register_pages()) return;
    ::munmap(data_, capacity_);
  }
  data_ = nullptr;
  capacity_ = 0;
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
  is_in_use_ = true;
  if (pinned || registered_ || pinned_.defined()) {
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
  if (is_in_use_ || toucher_.joinable() || registered_ || pinned_.defined()) return;
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
      lower_priority();
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
