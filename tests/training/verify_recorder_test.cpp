// Buffers of the shares of one window, and the options of the recorder.
#include "hasten/training/verify_recorder.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "hasten/core/error.h"

namespace hasten::training {
namespace {

TEST(VerifyOptionsOf, ReadsWhatTheCommandWritesAndRefusesOtherTexts) {
  const auto options = VerifyOptions::of(
      Environment::of({{"HASTEN_VERIFY", R"({"path":"/tmp/x","steps":5,"shares":2,"whole":true,"seed":7})"}}));

  ASSERT_TRUE(options);
  EXPECT_EQ(options->path, "/tmp/x");
  EXPECT_EQ(options->num_shares, 2);
  EXPECT_TRUE(options->whole);
  EXPECT_FALSE(VerifyOptions::of(Environment::of({})));
  EXPECT_THROW(VerifyOptions::of(Environment::of({{"HASTEN_VERIFY", "1"}})), UsageError);
}

TEST(ShareBuffers, EachShareGoesOnFromItsOwnAndShareZeroRemains) {
  at::Tensor mean = at::zeros({1});
  const auto read = [&] { return std::vector<VerifyTensor>{{"mean", mean}}; };
  ShareBuffers buffers;
  const auto forward = [&](int share, double add) {
    buffers.enter(share, read);
    const double before = mean.item<double>();
    mean.add_(add);
    return before;
  };

  EXPECT_EQ(forward(0, 1), 0);
  EXPECT_EQ(forward(1, 10), 0);
  EXPECT_EQ(forward(0, 1), 1);
  EXPECT_EQ(forward(1, 10), 10);
  buffers.end_window(read);
  EXPECT_EQ(mean.item<double>(), 2);
  EXPECT_EQ(forward(0, 1), 2);
  EXPECT_EQ(forward(1, 10), 2);
}

}  // namespace
}  // namespace hasten::training
