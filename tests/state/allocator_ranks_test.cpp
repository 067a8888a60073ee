// In processes of their own, since an allocator's settings are the process's.
#include "hasten/state/allocator.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <torch/types.h>

#include <fstream>
#include <iostream>

#include "support/processes.h"

namespace hasten::state {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

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
  const auto setting = keep_freed_memory(Environment::of({}));
  // A sanitizer brings a malloc of its own, which has to be recognised.
  if (setting == AllocatorSetting::kForeign) return kSanitized ? 0 : 2;
  const int64_t after = faults_of_steps(), kept = resident_bytes();
  give_back_freed_memory();
  const int64_t given_back = kept - resident_bytes();
  std::cout << describe(setting) << ": " << before << " faults before, " << after << " after, " << given_back
            << " bytes given back" << std::endl;
  return after * 10 < before && given_back > kBytes / 2 ? 0 : 1;
}

HASTEN_PROCESS_CASE(allocator_left_alone) {
  const int64_t before = faults_of_steps();
  for (const auto& environment : {Environment::of({{"HASTEN_TUNE_ALLOCATOR", "0"}}),
                                  Environment::of({{"MALLOC_TRIM_THRESHOLD_", "1000000"}}),
                                  Environment::of({{"GLIBC_TUNABLES", "glibc.malloc.arena_max=1"}})}) {
    if (keep_freed_memory(environment) == AllocatorSetting::kKeeps) return 2;
  }
  if (keep_freed_memory(Environment::of({}), false) != AllocatorSetting::kOff) return 2;
  const int64_t after = faults_of_steps();
  std::cout << before << " faults before, " << after << " after" << std::endl;
  return kSanitized || after * 2 > before ? 0 : 1;
}

TEST(AllocatorRanks, FreedMemoryStaysInTheProcessAndGoesBackWhenAsked) {
  const auto result = testing::run_processes(1, "allocator_keeps")[0];

  EXPECT_EQ(result.exit_code, 0) << result.output;
}

TEST(AllocatorRanks, IsLeftAloneWhereAskedOrChosenByOthers) {
  const auto result = testing::run_processes(1, "allocator_left_alone")[0];

  EXPECT_EQ(result.exit_code, 0) << result.output;
}

}  // namespace
}  // namespace hasten::state
