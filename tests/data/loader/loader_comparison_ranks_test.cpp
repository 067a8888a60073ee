#include "hasten/data/loader/loader_comparison.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/ranks.h"

namespace hasten::data {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

TEST(LoaderComparisonRanks, LoadersThatDifferAreRefusedOnAllRanksWithBothSides) {
  const auto words = [](auto describe) {
    return testing::run_ranks_collecting(
        3, [&](process::Process& process) { check_same_loader(process, describe(process.rank())); });
  };

  EXPECT_THAT(words([](int) { return LoaderDescription{.num_samples = 5, .batch_size = 2}; }), Each(IsEmpty()));
  EXPECT_THAT(words([](int rank) { return LoaderDescription{.num_samples = 5, .batch_size = rank == 2 ? 4u : 2u}; }),
              Each(AllOf(HasSubstr("rank 0's has 5 samples in batches of 2, rank 2's 5 samples in batches of 4"),
                         HasSubstr("Make the same loader on every rank"))));
  EXPECT_THAT(words([](int rank) {
                return LoaderDescription{.num_samples = rank == 1 ? std::optional<size_t>() : 5, .batch_size = 2};
              }),
              Each(HasSubstr("rank 1's an unknown number of samples")));
  EXPECT_THAT(
      words([](int rank) { return LoaderDescription{.num_samples = 5, .batch_size = 2, .drop_last = rank == 1}; }),
      Each(HasSubstr("the last short one left out")));
}

TEST(LoaderComparison, ALoaderWithoutSamplesIsSaidWithItsDatasetsType) {
  const auto said = [](std::optional<size_t> num_samples) {
    ::testing::internal::CaptureStderr();
    warn_if_empty(process::Process(), {.dataset = "Images", .num_samples = num_samples});
    return ::testing::internal::GetCapturedStderr();
  };

  EXPECT_THAT(said(0), HasSubstr("a loader over a Images has no samples"));
  EXPECT_THAT(said(1), IsEmpty());
  EXPECT_THAT(said({}), IsEmpty());
}

TEST(LoaderComparison, ADatasetSmallerThanAStepThatDropLastLeavesOutIsSaid) {
  const auto said = [](size_t num_samples, bool drop_last) {
    ::testing::internal::CaptureStderr();
    warn_if_empty(process::Process(),
                  {.dataset = "Images", .num_samples = num_samples, .drop_last = drop_last, .step_samples = 8});
    return ::testing::internal::GetCapturedStderr();
  };

  EXPECT_THAT(said(7, true), HasSubstr("it has 7 samples, a step on all ranks takes 8"));
  EXPECT_THAT(said(8, true), IsEmpty());
  EXPECT_THAT(said(7, false), IsEmpty());
}

}  // namespace
}  // namespace hasten::data
