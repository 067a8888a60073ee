// An uncaught exception of a program with a Learner and no Accelerator ends it with one line, as one with an
// Accelerator ends.
#include <gtest/gtest.h>

#include <stdexcept>
#include <thread>

#include "hasten/learner/learner.h"
#include "learner/small_tasks.h"

namespace hasten::learner {
namespace {

TEST(LearnerDeathTest, AnUncaughtErrorEndsAProgramWithoutAnAcceleratorWithItsMessage) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto fails = [] {
    auto options = quiet();
    options.loss = Loss([](const at::Tensor&, const at::Tensor&) -> at::Tensor { throw std::runtime_error("torn"); });
    const Learner learn(data_of(), net(), options);
    std::thread([&] { learn.fit(1, 0.01); }).join();  // where googletest does not catch it
  };

  EXPECT_EXIT(fails(), ::testing::ExitedWithCode(1), "hasten: .*torn");
}

}  // namespace
}  // namespace hasten::learner
