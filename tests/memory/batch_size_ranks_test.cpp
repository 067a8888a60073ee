#include "hasten/memory/batch_size.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <new>

#include "hasten/core/error.h"
#include "support/ranks.h"

namespace hasten::memory {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::exception_ptr thrown_by(const std::function<void()>& fn) {
  try {
    fn();
  } catch (...) {
    return std::current_exception();
  }
  return nullptr;
}

// More than any machine has, in bytes that libtorch can count.
void allocate_too_much() {
  torch::empty({int64_t{1} << 60}, at::kByte);
}

TEST(OutOfMemory, IsRecognisedWhoeverSaysIt) {
  EXPECT_TRUE(is_out_of_memory(thrown_by(allocate_too_much))) << "libtorch's CPU allocator";
  EXPECT_TRUE(is_out_of_memory(thrown_by([] { throw std::bad_alloc(); })));
  EXPECT_TRUE(is_out_of_memory(thrown_by([] { TORCH_CHECK_WITH(OutOfMemoryError, false, "full"); })));
  EXPECT_TRUE(is_out_of_memory(thrown_by([] { TORCH_CHECK(false, "cuDNN: CUDNN_STATUS_NOT_SUPPORTED."); })));
  EXPECT_FALSE(is_out_of_memory(thrown_by([] { TORCH_CHECK(false, "sizes differ"); })));
  EXPECT_FALSE(is_out_of_memory(thrown_by([] { throw 1; })));
}

TEST(FindExecutableBatchSize, HalvesUntilItFitsAndGivesTheValue) {
  std::vector<int64_t> tried;

  const std::string value = find_executable_batch_size(comm::Group(), 100, [&](int64_t batch_size) {
    tried.push_back(batch_size);
    if (batch_size > 20) allocate_too_much();
    return text("fits: ", batch_size);
  });

  EXPECT_EQ(value, "fits: 12");
  EXPECT_THAT(tried, ElementsAre(100, 50, 25, 12));
}

TEST(FindExecutableBatchSize, WhatAFailedCallMadeIsGoneBeforeTheNext) {
  const auto resource = std::make_shared<int>(1);

  find_executable_batch_size(comm::Group(), 4, [&](int64_t batch_size) {
    EXPECT_EQ(resource.use_count(), 1);
    const auto held = resource;
    if (batch_size > 1) throw std::bad_alloc();
  });
}

TEST(FindExecutableBatchSizeRanks, AllGoOnWithTheSizeThatFitsEverywhere) {
  for (const int world_size : {2, 3}) {
    testing::run_ranks(world_size, [](process::Process& process) {
      std::vector<int64_t> tried;
      const int64_t fits_here = process.rank() == 1 ? 10 : 64;

      const int64_t size = find_executable_batch_size(process.group(), 64, [&](int64_t batch_size) {
        tried.push_back(batch_size);
        if (batch_size > fits_here) throw std::bad_alloc();
        return batch_size;
      });

      EXPECT_EQ(size, 8);
      EXPECT_THAT(tried, ElementsAre(64, 32, 16, 8));
    });
  }
}

TEST(FindExecutableBatchSizeRanks, NotEvenOneIsAnErrorOnAllRanks) {
  const auto words = testing::run_ranks_collecting(2, [](process::Process& process) {
    find_executable_batch_size(process.group(), 2, [&](int64_t) {
      if (process.rank() == 0) throw std::bad_alloc();
    });
  });

  EXPECT_THAT(words, Each(HasSubstr("not even a batch of 1 fits into memory (tried from 2 on)")));
}

TEST(FindExecutableBatchSizeRanks, AnotherErrorEndsTheSearchOnAllRanks) {
  const auto words = testing::run_ranks_collecting(2, [](process::Process& process) {
    find_executable_batch_size(process.group(), 2, [&](int64_t) {
      if (process.rank() == 1) throw std::runtime_error("no data");
    });
  });

  EXPECT_THAT(words[0], HasSubstr("the function on rank 1 threw: no data"));
  EXPECT_THAT(words[1], StartsWith("no data"));
}

TEST(FindExecutableBatchSize, AStartBelowOneIsRefused) {
  EXPECT_THROW(find_executable_batch_size(comm::Group(), 0, [](int64_t) {}), UsageError);
}

}  // namespace
}  // namespace hasten::memory
