// See allocator.h.
#include "hasten/state/allocator.h"

#include <ATen/DeviceAccelerator.h>
#include <dlfcn.h>
#include <malloc.h>

#include <cstdlib>
#include <cstring>

namespace hasten::state {
namespace {

bool is_glibc_malloc() {
  Dl_info info{};
  void* malloc_in_use = dlsym(RTLD_DEFAULT, "malloc");
  if (malloc_in_use == nullptr || dladdr(malloc_in_use, &info) == 0 || info.dli_fname == nullptr)
    return false;
  const char* slash = std::strrchr(info.dli_fname, '/');
  const std::string file = slash != nullptr ? slash + 1 : info.dli_fname;
  return file.rfind("libc.so", 0) == 0 || file.rfind("libc-", 0) == 0;
}

bool chosen_by(const Environment& environment) {
  if (environment.has("MALLOC_MMAP_THRESHOLD_") || environment.has("MALLOC_MMAP_MAX_") ||
      environment.has("MALLOC_TRIM_THRESHOLD_")) {
    return true;
  }
  return environment.text("GLIBC_TUNABLES").value_or("").find("glibc.malloc.") != std::string::npos;
}

}  // namespace

AllocatorSetting keep_freed_memory(const Environment& environment, std::optional<bool> wanted) {
  if (!wanted) wanted = environment.flag("HASTEN_TUNE_ALLOCATOR");
  if (!wanted.value_or(true)) return AllocatorSetting::kOff;
  if (chosen_by(environment)) return AllocatorSetting::kChosen;
  if (!is_glibc_malloc()) return AllocatorSetting::kForeign;
  // No block gets pages of its own, which would go with it; and the heap's end stays where it is (-1: never
  // trimmed).
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, -1);
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
      return "malloc is left alone: it is not glibc's";
  }
  return "";
}

void give_back_freed_memory() noexcept {
  if (is_glibc_malloc()) malloc_trim(0);
  try {
    if (at::accelerator::getAccelerator()) at::accelerator::emptyCache();
  } catch (...) {  // a device that nobody has used yet keeps nothing
  }
}

}  // namespace hasten::state
