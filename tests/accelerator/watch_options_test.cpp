// Steps of an Accelerator as they stand in the page of its rank: phases, values that are not finite, profiles.
#include "hasten/accelerator/watch_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <filesystem>
#include <limits>

#include "hasten/accelerator.h"
#include "hasten/flight/pages.h"
#include "hasten/flight/recorder.h"
#include "support/processes.h"

namespace hasten::testing {
namespace {

using ::testing::HasSubstr;

const double kNan = std::numeric_limits<double>::quiet_NaN();

flight::RankState own_page() {
  return flight::PageView(flight::process_recorder()->descriptor()).read();
}

/// Steps of a small model. `change` gets the step's number and its loss, and gives the loss to go back through.
template <class Change>
void train(const Accelerator& accelerator, int num_steps, const Change& change) {
  torch::nn::Linear net(4, 2);
  torch::optim::SGD sgd(net->parameters(), 0.1);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  for (int step = 1; step <= num_steps; ++step) {
    optimizer.zero_grad();
    accelerator.backward(change(step, model(torch::ones({3, 4})).pow(2).mean()));
    optimizer.step();
  }
}

HASTEN_PROCESS_CASE(watch_phases) {
  const Accelerator accelerator({.cpu = true});
  train(accelerator, 3, [](int, const at::Tensor& loss) { return loss; });

  const auto times = own_page().phase_times_s;
  const bool all = times.contains("forward") && times.contains("backward") && times.contains("optimizer");
  return all && own_page().phase.empty() && own_page().step == 3 ? 0 : 3;
}

TEST(WatchOptions, ForwardBackwardAndOptimizerArePhases) {
  for (const ProcessResult& result : run_processes(2, "watch_phases")) EXPECT_EQ(result.exit_code, 0) << result.output;
}

HASTEN_PROCESS_CASE(watch_bad_gradient) {
  const Accelerator accelerator({.cpu = true, .watch = {.check_gradients_every = 1}});
  const bool is_bad = accelerator.rank() == 1;
  train(accelerator, 2, [&](int step, const at::Tensor& loss) {
    if (is_bad && step == 2) loss.register_hook([](const at::Tensor& gradient) { return gradient * kNan; });
    return loss;
  });

  const flight::RankState page = own_page();
  if (!is_bad) return page.bad_step == 0 ? 0 : 3;
  return page.bad_step == 2 && page.bad_value.starts_with("gradient of ") ? 0 : 3;
}

TEST(WatchOptions, OnlyTheRankWhoseBackwardMadeABadGradientHasIt) {
  for (const ProcessResult& result : run_processes(2, "watch_bad_gradient")) {
    EXPECT_EQ(result.exit_code, 0) << result.output;
  }
}

HASTEN_PROCESS_CASE(watch_bad_loss) {
  const Accelerator accelerator({.cpu = true, .watch = {.stop_on_nonfinite = true}});
  train(accelerator, 5, [&](int step, const at::Tensor& loss) {
    return accelerator.rank() == 1 && step == 3 ? loss * kNan : loss;
  });
  return 0;
}

TEST(WatchOptions, ABadLossEndsAllRanksWithItsWordsWhereThatIsWanted) {
  const auto results = run_processes(2, "watch_bad_loss");

  EXPECT_EQ(results[1].exit_code, 2);
  EXPECT_THAT(results[1].output, HasSubstr("the loss is nan in step 3"));
  EXPECT_NE(results[0].exit_code, 0);
  EXPECT_THAT(results[0].output, HasSubstr("the loss is nan in step 3")) << "rank 0 is told";
}

HASTEN_PROCESS_CASE(watch_profile) {
  const Accelerator accelerator({.cpu = true});
  const flight::PageView page(flight::process_recorder()->descriptor());
  const auto folder = std::filesystem::temp_directory_path();
  page.wish({.steps = 1, .folder = folder.string()});
  train(accelerator, 4, [](int, const at::Tensor& loss) { return loss; });
  const auto answer = page.wish_answer();
  std::filesystem::remove(answer.words);
  if (answer.state != flight::WishState::kWritten) return 3;

  int64_t cycles = 0;
  accelerator.profile({.schedule = watch::ProfileSchedule{.warmup = 1, .active = 1, .repeat = 1},
                       .on_trace_ready = [&](watch::Profiler& profiler) { cycles += profiler.events().empty() ? 0 : 1; }},
                      [](watch::Profiler& profiler) {
                        for (int i = 0; i < 3; ++i) torch::ones({2, 2}).mm(torch::ones({2, 2})), profiler.step();
                      });
  return cycles == 1 ? 0 : 4;
}

TEST(WatchOptions, AProfileIsMadeForAWishAndForTheProgram) {
  for (const ProcessResult& result : run_processes(2, "watch_profile")) EXPECT_EQ(result.exit_code, 0) << result.output;
}

}  // namespace
}  // namespace hasten::testing
