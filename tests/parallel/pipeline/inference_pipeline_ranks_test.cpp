// Inference over stages against one process.
#include "hasten/parallel/pipeline/inference_pipeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "support/parallel_models.h"
#include "support/ranks.h"

namespace hasten::parallel {
namespace {

using namespace hasten::testing;

struct TwoInputsImpl : torch::nn::Module {
  TwoInputsImpl() {
    register_module("first", first);
    register_module("second", second);
  }
  at::Tensor forward(const at::Tensor& x, const at::Tensor& y) { return second(first(x).relu() + y); }
  torch::nn::Linear first{3, 4}, second{4, 2};
};
TORCH_MODULE(TwoInputs);

// A holder a rank, and one for the expected output.
std::vector<TwoInputs> two_input_nets() {
  std::vector<TwoInputs> nets;
  for (int i = 0; i < 3; ++i) {
    torch::manual_seed(0);
    nets.emplace_back();
  }
  return nets;
}

TEST(InferencePipeline, GivesOutputsOfOneProcessForAnyNumberOfSamples) {
  auto nets = two_input_nets();
  const at::NoGradGuard no_grad;
  run_ranks(2, [&](process::Process& process) {
    const auto model = prepare_inference_pipeline(nets[static_cast<size_t>(process.rank())], process.group(),
                                                  {.split_points = {"second"}, .num_chunks = 3, .gather_output = true});
    const at::NoGradGuard own_no_grad;
    for (const int64_t samples : {7, 3, 1}) {
      const at::Tensor x = at::arange(samples * 3, at::TensorOptions(at::kFloat)).view({samples, 3}) / 10;
      const at::Tensor y = at::ones({samples, 4});
      EXPECT_TRUE(at::allclose(model(x, y), nets[2]->forward(x, y), 1e-5, 1e-6));
    }
    EXPECT_FALSE(nets[static_cast<size_t>(process.rank())]->is_training());
  });
}

TEST(InferencePipeline, LeavesOutputsOnTheLastRankUnlessTheyAreGathered) {
  auto nets = two_input_nets();
  run_ranks(2, [&](process::Process& process) {
    const auto model = prepare_inference_pipeline(nets[static_cast<size_t>(process.rank())], process.group());
    const at::Tensor output = model(at::ones({4, 3}), at::ones({4, 4}));
    EXPECT_EQ(output.defined(), process.rank() == 1);
    if (output.defined()) {
      EXPECT_EQ(output.sizes(), (std::vector<int64_t>{4, 2}));
    }
  });
}

}  // namespace
}  // namespace hasten::parallel
