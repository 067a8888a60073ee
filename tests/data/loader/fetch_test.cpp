#include "hasten/data/loader/detail/fetch.h"

#include <gtest/gtest.h>

#include <string>

#include "support/samples.h"

namespace hasten::data {
namespace {

constexpr Origin kSecondOfTwo{"data", 1, 2};

TEST(Fetch, GivesTheDatasetsBatch) {
  testing::Range dataset(9);

  EXPECT_EQ(fetch(dataset, {3, 1}, kSecondOfTwo), (std::vector<size_t>{3, 1}));
}

TEST(Fetch, FindsTheSampleThatIsToBlame) {
  testing::Broken dataset(4, 9);

  try {
    fetch(dataset, {3, 4, 5}, kSecondOfTwo);
    FAIL() << "the exception was lost";
  } catch (const DataError& error) {
    EXPECT_STREQ(error.what(), "[data] rank 1/2: the dataset failed on sample 4 of 9: a hole in the disk");
    EXPECT_THROW(std::rethrow_if_nested(error), std::runtime_error);
  }
}

/// Fails on batches of two and more only, and not with a std::exception.
struct BatchesOnly {
  using BatchType = int;
  int get_batch(const Indices& indices) {
    if (indices.size() > 1) throw 7;
    return 0;
  }
  std::optional<size_t> size() const { return std::nullopt; }
};

TEST(Fetch, NamesTheWholeBatchWhereNoSingleSampleFails) {
  BatchesOnly dataset;

  try {
    fetch(dataset, {9, 8, 7, 6, 5, 4, 3, 2, 1, 0}, Origin{"data"});
    FAIL() << "the exception was lost";
  } catch (const DataError& error) {
    EXPECT_STREQ(error.what(),
                 "[data] the dataset failed on samples 9, 8, 7, 6, 5, 4, 3, 2 and 2 more of this batch: an exception "
                 "that is no std::exception");
  }
}

/// A dataset of files, which throws DataErrors itself.
struct Files {
  using BatchType = int;
  int get_batch(const Indices&) { throw DataError(Origin{"data"}, "a.png", "'a.png' is damaged."); }
  std::optional<size_t> size() const { return 2; }
};

TEST(Fetch, KeepsThePathOfTheDatasetsOwnError) {
  Files dataset;

  try {
    fetch(dataset, {1}, Origin{"data"});
    FAIL() << "the exception was lost";
  } catch (const DataError& error) {
    EXPECT_EQ(error.path(), "a.png");
  }
}

}  // namespace
}  // namespace hasten::data
