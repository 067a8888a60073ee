#include "hasten/offload/units/state_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <filesystem>

#include "hasten/core/error.h"
#include "support/folder.h"

namespace hasten::offload {
namespace {

using StateFileTest = testing::InFolder;

TEST_F(StateFileTest, ATensorKeepsItsValuesThroughReleaseAndWrites) {
  StateFile file(path("state"));
  const at::Tensor values = torch::arange(5000, at::kFloat);

  const at::Tensor stored = file.store(values);
  file.release(stored);
  EXPECT_TRUE(at::equal(stored, values));
  stored.mul_(2);
  file.release(stored);
  file.fetch(stored);

  EXPECT_TRUE(at::equal(stored, values * 2));
  EXPECT_TRUE(file.holds(stored));
  EXPECT_FALSE(file.holds(values));
  EXPECT_EQ(file.num_bytes(), 20000);
}

TEST_F(StateFileTest, NoFileIsLeftBehind) {
  StateFile file(path("state"));
  const at::Tensor stored = file.store(torch::ones({100}));

  EXPECT_TRUE(std::filesystem::is_empty(path("state")));
}

TEST_F(StateFileTest, ATensorOutlivesTheObject) {
  at::Tensor stored;
  {
    StateFile file(path("state"));
    stored = file.store(torch::ones({3}));
  }

  EXPECT_EQ(stored.sum().item<float>(), 3);
}

TEST(StateFile, AFolderThatCannotBeMadeIsNamed) {
  const auto words = testing::words_of<DataError>([] { StateFile file("/proc/no/such"); });

  EXPECT_THAT(words, ::testing::HasSubstr("/proc/no/such"));
}

}  // namespace
}  // namespace hasten::offload
