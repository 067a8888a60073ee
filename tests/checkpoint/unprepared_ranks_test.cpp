// Saves and loads of a program that has prepared nothing, and numbers of checkpoints that make no sense.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "hasten/accelerator.h"
#include "hasten/data/dataset/tensor_dataset.h"
#include "support/folder.h"
#include "support/models.h"
#include "support/ranks.h"

namespace hasten {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class Unprepared : public testing::InFolder {};

TEST_F(Unprepared, ALoadBeforePrepareIsRefusedOnAllRanksUnlessItIsNotStrict) {
  testing::run_ranks(2, [&](auto& process) {
    const Accelerator accelerator(process, {.tune_allocator = false});
    testing::Mlp net;
    torch::optim::SGD sgd(net->parameters(), 0.1);
    const auto prepared = accelerator.prepare(net, sgd);
    accelerator.save_state(path("run"));
  });

  const auto load = [&](bool strict) {
    return testing::run_ranks_collecting(2, [&](auto& process) {
      const Accelerator accelerator(process, {.tune_allocator = false});
      accelerator.load_state(path("run"), {.strict = strict});
    });
  };

  EXPECT_THAT(load(true), Each(HasSubstr("holds a model, and none is prepared here")));
  EXPECT_THAT(load(false), Each(IsEmpty()));
}

// What two saves write to standard error.
template <class Prepare>
std::string said_by_saves(const std::string& folder, const Prepare& prepare) {
  ::testing::internal::CaptureStderr();
  testing::run_ranks(2, [&](auto& process) {
    const Accelerator accelerator(process, {.tune_allocator = false});
    [[maybe_unused]] const auto prepared = prepare(accelerator);
    accelerator.save_state(folder);
    accelerator.save_state(folder);
  });
  return ::testing::internal::GetCapturedStderr();
}

TEST_F(Unprepared, ASaveBeforePrepareSaysOnceThatItHoldsNoModel) {
  const std::string words = "saves the state of random numbers alone";

  const auto said = said_by_saves(path("none"), [](const Accelerator&) { return 0; });
  const auto of_loader = said_by_saves(path("loader"), [](const Accelerator& accelerator) {
    return accelerator.data_loader<torch::data::samplers::SequentialSampler>(
        data::TensorDataset(torch::ones({8, 2}), torch::ones({8, 1})), 2);
  });

  EXPECT_THAT(said, HasSubstr(words));
  EXPECT_EQ(said.find(words), said.rfind(words)) << said;
  EXPECT_THAT(of_loader, Not(HasSubstr(words)));
}

TEST_F(Unprepared, TheFirstCheckpointHasANumber) {
  const auto words = [&](int64_t iteration) {
    return testing::words_of<UsageError>([&] {
      const Accelerator accelerator(process::Process(process::RankInfo{}, comm::Group()),
                                    {.project = {.project_dir = path("run"), .iteration = iteration}});
    });
  };

  EXPECT_THAT(words(-1), HasSubstr("iteration = -1; expected the number of the first checkpoint, 0 or more"));
  EXPECT_EQ(words(0), "no error");
}

}  // namespace
}  // namespace hasten
