#include "parallel/ddp/gradient_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <limits>

#include "hasten/flight/page_notes.h"
#include "hasten/flight/pages.h"

namespace hasten::parallel {
namespace {

using ::testing::HasSubstr;

const double kNan = std::numeric_limits<double>::quiet_NaN();

class GradientChecks : public ::testing::Test {
 protected:
  /// A step with these gradients of "first", "second", …
  void step(const std::vector<at::Tensor>& gradients) {
    check.begin();
    const std::vector<std::string> names = {"first", "second", "third"};
    for (size_t i = 0; i < gradients.size(); ++i) check.take(names[i], gradients[i]);
    recorder->step(1);
  }
  flight::RankState state() const { return flight::PageView(recorder->descriptor()).read(); }

  const std::shared_ptr<flight::Recorder> recorder = std::make_shared<flight::Recorder>(flight::PageIdentity{});
  GradientCheck check{recorder, {"ddp", 1, 2}};
};

TEST_F(GradientChecks, TheFirstBadParameterIsNamedInEachTenthStep) {
  recorder->set_value_checks({.gradients_every = 10});
  for (int i = 0; i < 9; ++i) step({torch::full({4}, i == 3 ? kNan : 1.0)});
  EXPECT_EQ(state().bad_step, 0) << "steps 2 to 10 are not looked at";
  step({torch::ones({4})});

  step({torch::ones({4}), torch::tensor({1.0, -std::numeric_limits<double>::infinity()}), torch::full({2}, kNan)});

  EXPECT_EQ(state().bad_step, 11);
  EXPECT_EQ(state().bad_value, "gradient of second");

  for (int i = 0; i < 11; ++i) step({torch::ones({4})});
  EXPECT_EQ(state().bad_step, 0) << "step 21 is finite again";
}

TEST_F(GradientChecks, SumsBeyondTheRangeAreNoBadGradients) {
  recorder->set_value_checks({.gradients_every = 1});

  step({torch::full({8}, 3e38, at::kFloat), torch::full({4096}, 60000.0, at::kHalf), torch::ones({2, 3}).to_sparse(),
        torch::ones({3}, at::kComplexFloat), at::Tensor()});

  EXPECT_EQ(state().bad_step, 0);
}

TEST_F(GradientChecks, SparseAndHalfGradientsAreLookedAt) {
  recorder->set_value_checks({.gradients_every = 1});
  step({torch::full({2, 3}, kNan).to_sparse()});
  EXPECT_EQ(state().bad_value, "gradient of first");
  flight::note_value_reported(flight::PageView(recorder->descriptor()).page());  // it stays until a report has it
  recorder->clear_bad(flight::BadValue::kGradient);

  step({torch::ones({3}), torch::full({3}, kNan, at::kBFloat16)});

  EXPECT_EQ(state().bad_value, "gradient of second");
}

TEST_F(GradientChecks, ABadGradientThrowsWhereItIsToEndTheRun) {
  recorder->set_value_checks({.gradients_every = 1, .stop = true});

  try {
    step({torch::full({3}, kNan)});
    ADD_FAILURE() << "nothing was thrown";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("rank 1/2: the gradient of 'first' is not finite in step 1"));
  }
}

TEST_F(GradientChecks, NothingIsLookedAtWithoutAnInterval) {
  recorder->set_value_checks({.gradients_every = 0, .stop = true});

  step({torch::full({3}, kNan)});

  EXPECT_EQ(state().bad_step, 0);
}

}  // namespace
}  // namespace hasten::parallel
