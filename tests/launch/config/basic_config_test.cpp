#include "hasten/launch/config/basic_config.h"

#include <gtest/gtest.h>

#include "hasten/core/error.h"
#include "hasten/launch/config/config_file.h"
#include "support/folder.h"

namespace hasten {
namespace {

using BasicConfig = testing::InFolder;

TEST_F(BasicConfig, IsWrittenOnceAndReadAsAnyOther) {
  const auto environment = Environment::of({{"HF_HOME", folder_.string()}, {"CUDA_VISIBLE_DEVICES", ""}});

  const auto written = write_basic_config({.mixed_precision = "bf16"}, environment);
  const auto again = write_basic_config({.mixed_precision = "fp16"}, environment);

  ASSERT_TRUE(written.has_value());
  EXPECT_EQ(*written, launcher::default_config_path(environment));
  EXPECT_FALSE(again.has_value());
  const auto config = launcher::load_config(*written);
  EXPECT_EQ(config.values.at("mixed_precision"), "bf16");
  EXPECT_EQ(config.values.at("use_cpu"), true);
  EXPECT_THROW(write_basic_config({.mixed_precision = "fp9", .path = folder_ / "other.json"}, environment), UsageError);
}

}  // namespace
}  // namespace hasten
