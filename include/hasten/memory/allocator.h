// Allocator: keeps the memory of freed tensors in the process, instead of giving it back after every step.
//
// A training step on the CPU frees its activations and allocates them again. By default glibc gives blocks of such
// sizes back to the system at once. The kernel then hands them out page by page, zeroed. On the demo's CNN that is 1.5
// million page faults an epoch of 100 batches, about a quarter of the time (docs/benchmarks.md). Two settings of
// glibc's malloc end that. libtorch takes its memory from malloc in whole blocks, so that the heap does not grow. An
// Accelerator on the CPU makes both changes. They hold for the whole process.
#pragma once

#include <c10/core/Allocator.h>

#include <optional>
#include <string>

#include "hasten/core/env.h"

namespace hasten::memory {

enum class AllocatorSetting {
  kKeeps,    ///< freed memory stays in the process from now on
  kOff,      ///< left alone: by request
  kChosen,   ///< left alone: MALLOC_…, GLIBC_TUNABLES or THP_MEM_ALLOC_ENABLE chooses already
  kForeign,  ///< left alone: malloc is not glibc's (tcmalloc, jemalloc, a sanitizer), or the program gave
             ///< libtorch an allocator of its own
};

/// An allocator of the CPU that hasten gives libtorch, over libtorch's own or another of these.
class OwnAllocator : public c10::Allocator {};

/// Returns true if it is libtorch's own of the CPU or one of hasten's, not the program's.
bool is_libtorchs_or_ours(const c10::Allocator* allocator) noexcept;

/// Sets glibc's malloc so that it keeps freed memory, and libtorch's allocator of the CPU so that a freed
/// block is whole again. Tensors that are there already stay as they are. `requested`: false leaves it alone;
/// unset: HASTEN_TUNE_ALLOCATOR, else true. Throws: UsageError for a variable
/// that is no flag.
AllocatorSetting tune_malloc(const Environment& environment, std::optional<bool> requested = {});

/// "freed memory stays in the process (…)", for the log.
std::string describe(AllocatorSetting setting);

/// Gives memory that is free back to the system: of the CPU under glibc's allocator only, of an accelerator's
/// caching allocator.
void give_back_freed_memory() noexcept;

}  // namespace hasten::memory
