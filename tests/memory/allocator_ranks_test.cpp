// In processes of their own, since an allocator's settings are the process's.
#include "hasten/memory/allocator.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <torch/types.h>

#include <fstream>
#include <iostream>
#include <limits>

#include "hasten/memory/batch_size.h"
#include "support/processes.h"
#include "support/sanitizers.h"

namespace hasten::memory {
namespace {

using testing::kSanitized;

// Above the size (32 MB) up to which glibc learns by itself to keep blocks.
constexpr int64_t kElements = 16 << 20;
constexpr int64_t kBytes = kElements * 4;

int64_t resident_bytes() {
  int64_t total = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> total >> resident;
  return resident * 4096;
}

// As training steps do: memory is taken, written and given back, again and again.
int64_t faults_of_steps() {
  const auto page_faults = [] {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_minflt;
  };
  // The first ones find the places.
  for (int step = 0; step < 8; ++step) torch::ones({kElements});
  const int64_t before = page_faults();
  for (int step = 0; step < 8; ++step) torch::ones({kElements});
  return page_faults() - before;
}

HASTEN_PROCESS_CASE(allocator_keeps) {
  const int64_t before = faults_of_steps();
  const auto setting = tune_malloc(Environment::of({}));
  // A sanitizer brings a malloc of its own, which has to be recognised.
  if (setting == AllocatorSetting::kForeign) return kSanitized ? 0 : 2;
  const int64_t after = faults_of_steps(), kept = resident_bytes();
  give_back_freed_memory();
  const int64_t given_back = kept - resident_bytes();
  std::cout << describe(setting) << ": " << before << " faults before, " << after << " after, " << given_back
            << " bytes given back" << std::endl;
  // Steps of one block need one block.
  return after * 10 < before && given_back > kBytes / 2 && given_back < kBytes * 3 / 2 ? 0 : 1;
}

// An allocator that is none of libtorch's own.
class ProgramsAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override { return c10::GetDefaultCPUAllocator()->allocate(bytes); }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }
};

// What libtorch's profiler hears of, on the thread that it watches.
class Reports : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device) override { in_use += bytes; }
  bool memoryProfilingEnabled() const override { return true; }
  int64_t in_use = 0;
};

// Blocks are aligned, hold what is asked for, are the profiler's, too, and are simple (their context is their
// data), which copies on write need.
HASTEN_PROCESS_CASE(allocator_gives_blocks) {
  if (tune_malloc(Environment::of({})) != AllocatorSetting::kKeeps) return kSanitized ? 0 : 2;
  if (tune_malloc(Environment::of({})) != AllocatorSetting::kKeeps) return 3;  // again
  const auto reports = std::make_shared<Reports>();
  const c10::DebugInfoGuard watched(c10::DebugInfoKind::PROFILER_STATE, reports);
  std::vector<torch::Tensor> blocks;
  int64_t asked = 0;
  for (int64_t bytes : {0, 1, 15, 16, 63, 64, 65, 4095, 4097, 1 << 20, (3 << 20) + 7}) {
    blocks.push_back(torch::full({bytes}, 7, torch::kByte));
    asked += bytes;
    const auto& data = blocks.back().storage().data_ptr();
    if (reinterpret_cast<uintptr_t>(data.get()) % 64 != 0 || data.get() != data.get_context()) return 4;
    if ((bytes == 0) != (data.get() == nullptr)) return 5;
  }
  if (reports->in_use < asked) return 6;
  blocks[3].resize_({1 << 16}).fill_(8);
  for (const auto& block : blocks) {
    if (block.numel() > 0 && block.min().item<int>() != block.max().item<int>()) return 7;
  }
  blocks.clear();
  return reports->in_use == 0 ? 0 : 8;
}

HASTEN_PROCESS_CASE(allocator_is_asked_for_too_much) {
  if (tune_malloc(Environment::of({})) != AllocatorSetting::kKeeps) return kSanitized ? 0 : 2;
  for (const int64_t bytes : {int64_t{1} << 50, std::numeric_limits<int64_t>::max() - 8}) {
    try {
      c10::GetCPUAllocator()->allocate(static_cast<size_t>(bytes));
      return 3;
    } catch (...) {
      if (!is_out_of_memory(std::current_exception())) return 4;
    }
  }
  return 0;
}

HASTEN_PROCESS_CASE(allocator_of_the_program) {
  static c10::Allocator* const own = new ProgramsAllocator();
  c10::SetCPUAllocator(own);
  const auto setting = tune_malloc(Environment::of({}));
  return setting == AllocatorSetting::kForeign && c10::GetCPUAllocator() == own ? 0 : 1;
}

HASTEN_PROCESS_CASE(allocator_left_alone) {
  const int64_t before = faults_of_steps();
  for (const auto& environment :
       {Environment::of({{"HASTEN_TUNE_ALLOCATOR", "0"}}), Environment::of({{"MALLOC_TRIM_THRESHOLD_", "1000000"}}),
        Environment::of({{"THP_MEM_ALLOC_ENABLE", "1"}}),
        Environment::of({{"GLIBC_TUNABLES", "glibc.malloc.arena_max=1"}})}) {
    if (tune_malloc(environment) == AllocatorSetting::kKeeps) return 2;
  }
  if (tune_malloc(Environment::of({}), false) != AllocatorSetting::kOff) return 2;
  const int64_t after = faults_of_steps();
  std::cout << before << " faults before, " << after << " after" << std::endl;
  return kSanitized || after * 2 > before ? 0 : 1;
}

TEST(AllocatorRanks, FreedMemoryStaysInTheProcessAndGoesBackWhenAsked) {
  const auto result = testing::run_processes(1, "allocator_keeps")[0];

  EXPECT_EQ(result.exit_code, 0) << result.output;
}

TEST(AllocatorRanks, BlocksAreAlignedAndReported) {
  const auto result = testing::run_processes(1, "allocator_gives_blocks")[0];

  EXPECT_EQ(result.exit_code, 0) << result.output;
}

TEST(AllocatorRanks, MoreThanThereIsIsOutOfMemory) {
  const auto result = testing::run_processes(1, "allocator_is_asked_for_too_much")[0];

  EXPECT_EQ(result.exit_code, 0) << result.output;
}

TEST(AllocatorRanks, AProgramsOwnAllocatorStays) {
  const auto result = testing::run_processes(1, "allocator_of_the_program")[0];

  EXPECT_EQ(result.exit_code, 0) << result.output;
}

TEST(AllocatorRanks, IsLeftAloneWhereAskedOrChosenByOthers) {
  const auto result = testing::run_processes(1, "allocator_left_alone")[0];

  EXPECT_EQ(result.exit_code, 0) << result.output;
}

}  // namespace
}  // namespace hasten::memory
