// See allocator.h.
#include "hasten/memory/allocator.h"

#include <ATen/DeviceAccelerator.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/alignment.h>
#include <dlfcn.h>
#include <malloc.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>

namespace hasten::memory {
namespace {

// Aligned memory out of whole blocks of malloc. libtorch's own allocator has posix_memalign cut it out of larger ones.
// glibc then keeps the cut-off ends for small requests, seven of each size. A block without its ends is too small for
// the next tensor of that size. So the heap grows to several times its use (docs/decisions/0025).
class AlignedMallocAllocator final : public OwnAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    void* const data = bytes == 0 ? nullptr : taken(bytes);
    c10::profiledCPUMemoryReporter().New(data, bytes);
    return {data, data, &give_back, c10::DeviceType::CPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &give_back; }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }

 private:
  // malloc aligns to 16 bytes, so that there is always room for the block's address before the data.
  static void* taken(size_t bytes) {
    constexpr size_t kMost = std::numeric_limits<ptrdiff_t>::max() - c10::gAlignment;
    void* block = bytes <= kMost ? std::malloc(bytes + c10::gAlignment) : nullptr;
    if (block == nullptr) {
      // libtorch reports a shortage in its own words, or there is enough by now.
      c10::GetDefaultCPUAllocator()->allocate(bytes);
      block = std::malloc(bytes + c10::gAlignment);
      if (block == nullptr) throw std::bad_alloc();
    }
    const uintptr_t address = (reinterpret_cast<uintptr_t>(block) / c10::gAlignment + 1) * c10::gAlignment;
    void** const data = reinterpret_cast<void**>(address);
    data[-1] = block;
    return data;
  }

  static void give_back(void* data) {
    if (data == nullptr) return;
    c10::profiledCPUMemoryReporter().Delete(data);
    std::free(static_cast<void**>(data)[-1]);
  }
};

// Never destroyed: tensors may outlive everything.
c10::Allocator& whole_blocks() {
  static auto* const allocator = new AlignedMallocAllocator();
  return *allocator;
}

bool is_glibc_malloc() {
  Dl_info info{};
  void* malloc_in_use = dlsym(RTLD_DEFAULT, "malloc");
  if (malloc_in_use == nullptr || dladdr(malloc_in_use, &info) == 0 || info.dli_fname == nullptr) return false;
  const char* slash = std::strrchr(info.dli_fname, '/');
  const std::string file = slash != nullptr ? slash + 1 : info.dli_fname;
  return file.rfind("libc.so", 0) == 0 || file.rfind("libc-", 0) == 0;
}

bool chosen_by(const Environment& environment) {
  if (environment.has("MALLOC_MMAP_THRESHOLD_") || environment.has("MALLOC_MMAP_MAX_") ||
      environment.has("MALLOC_TRIM_THRESHOLD_") || environment.has("THP_MEM_ALLOC_ENABLE")) {
    return true;
  }
  return environment.text("GLIBC_TUNABLES").value_or("").find("glibc.malloc.") != std::string::npos;
}

}  // namespace

bool is_libtorchs_or_ours(const c10::Allocator* allocator) noexcept {
  return allocator == c10::GetDefaultCPUAllocator() || dynamic_cast<const OwnAllocator*>(allocator) != nullptr;
}

AllocatorSetting tune_malloc(const Environment& environment, std::optional<bool> requested) {
  if (!requested) requested = environment.flag("HASTEN_TUNE_ALLOCATOR");
  if (!requested.value_or(true)) return AllocatorSetting::kOff;
  if (chosen_by(environment)) return AllocatorSetting::kChosen;
  if (!is_glibc_malloc() || !is_libtorchs_or_ours(c10::GetCPUAllocator())) return AllocatorSetting::kForeign;
  // No block gets pages of its own, which would go with it. The heap's end stays where it is (-1: never trimmed).
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, -1);
  if (c10::GetCPUAllocator() == c10::GetDefaultCPUAllocator()) c10::SetCPUAllocator(&whole_blocks());
  return AllocatorSetting::kKeeps;
}

std::string describe(AllocatorSetting setting) {
  switch (setting) {
    case AllocatorSetting::kKeeps:
      return "freed memory stays in the process, which saves a page fault for each page of each step "
             "(HASTEN_TUNE_ALLOCATOR=0 leaves malloc alone; free_memory gives memory back)";
    case AllocatorSetting::kOff:
      return "malloc is left alone, as asked";
    case AllocatorSetting::kChosen:
      return "malloc is left alone: the environment chooses its settings";
    case AllocatorSetting::kForeign:
      return "malloc is left alone: it is not glibc's, or libtorch has another allocator for the CPU";
  }
  return "";
}

void give_back_freed_memory() noexcept {
  if (is_glibc_malloc()) malloc_trim(0);
  try {
    if (at::accelerator::getAccelerator()) at::accelerator::emptyCache();
  } catch (...) {  // a device that was not used yet holds nothing
  }
}

}  // namespace hasten::memory
