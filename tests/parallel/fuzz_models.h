// Random small models for the fuzz of data parallelism: graphs of layers with shared, unused, frozen and
// conditional ones, trained on several ranks and on one.
#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <iostream>
#include <random>

#include "hasten/parallel/ddp/backward.h"
#include "hasten/parallel/ddp/no_sync.h"
#include "support/models.h"
#include "support/ranks.h"

namespace hasten::parallel::fuzzing {

constexpr int64_t kWidth = 6;

/// What one case does; drawn from a seed, the same on every rank.
struct FuzzCase {
  enum class When { kAlways, kEvenSteps, kSomeRows, kNever };
  struct Layer {
    size_t input;               ///< an earlier layer's output, 0 is the model's input
    size_t weights;             ///< which linear layer; two of one share it
    When when = When::kAlways;  ///< else the input passes by
  };
  std::vector<Layer> layers;
  std::vector<int64_t> frozen_until;  ///< by weights: the step from which it is trained
  int64_t num_weights = 0;
  DdpOptions options;
  std::vector<int64_t> batches;  ///< samples of each batch of a window, over all ranks
  bool weighted = false, set_to_none = true, clips = false, zero_grad_every_second = false;

  static FuzzCase draw(uint64_t seed) {
    std::mt19937_64 random(seed);
    const auto below = [&](uint64_t n) { return random() % n; };
    FuzzCase one;
    one.num_weights = static_cast<int64_t>(1 + below(5));
    const size_t num_layers = 1 + below(6);
    for (size_t i = 0; i < num_layers; ++i) {
      const auto when = below(10);
      one.layers.push_back({below(i + 1), below(one.num_weights),
                            when == 0   ? When::kNever
                            : when <= 2 ? When::kEvenSteps
                            : when <= 4 ? When::kSomeRows
                                        : When::kAlways});
    }
    for (int64_t i = 0; i < one.num_weights; ++i) one.frozen_until.push_back(below(5) == 0 ? below(6) : 0);
    one.options.buckets = {.first_bytes = static_cast<int64_t>(1 + below(400)),
                           .bytes = static_cast<int64_t>(1 + below(800))};
    one.options.delay_allreduce = below(5) == 0;
    one.options.check_parameters_every = below(2) == 0 ? 1 : 0;
    if (below(4) == 0) one.options.gradient_predivide_factor = 1.0 + below(3);
    one.weighted = below(2) == 0;
    one.set_to_none = below(2) == 0;
    one.clips = below(2) == 0;
    one.zero_grad_every_second = below(5) == 0;
    const size_t window = 1 + below(3);
    // Without weights the parts must be equal for the mean of means to be the mean.
    for (size_t i = 0; i < window; ++i) {
      one.batches.push_back(one.weighted ? static_cast<int64_t>(1 + below(11)) : 6);
    }
    if (below(2) == 0) one.options.in_place_bytes = 1;
    return one;
  }
};

struct FuzzModelImpl : torch::nn::Module {
  explicit FuzzModelImpl(const FuzzCase& one) : one_(one) {
    for (int64_t i = 0; i < one.num_weights; ++i) {
      weights.push_back(register_module("layer" + std::to_string(i), torch::nn::Linear(kWidth, kWidth)));
    }
    head = register_module("head", torch::nn::Linear(kWidth, 1));
  }

  /// The loss of each row [rows]. Some layers are for rows whose first number is positive only, and are not
  /// called at all where there is no such row.
  at::Tensor forward(const at::Tensor& x, int64_t step) {
    std::vector<at::Tensor> outputs{x};
    for (const auto& layer : one_.layers) {
      const at::Tensor& input = outputs[layer.input];
      at::Tensor output = input;
      const at::Tensor rows = x.select(1, 0) > 0.5;
      if (layer.when == FuzzCase::When::kAlways || (layer.when == FuzzCase::When::kEvenSteps && step % 2 == 0)) {
        output = torch::tanh(weights[layer.weights](input));
      } else if (layer.when == FuzzCase::When::kSomeRows && rows.any().item<bool>()) {
        output = torch::where(rows.unsqueeze(1), torch::tanh(weights[layer.weights](input)), input);
      }
      outputs.push_back(output);
    }
    // Every third step passes the head by, and with it perhaps the whole model.
    if (step % 3 == 2) return outputs.back().sum(1).square();
    return head(outputs.back()).squeeze(1).square();
  }

  FuzzCase one_;
  std::vector<torch::nn::Linear> weights;
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(FuzzModel);

/// Parameters after six steps.
inline std::vector<at::Tensor> train_fuzz(const FuzzCase& one, uint64_t seed, const comm::Group& group) {
  FuzzModel model(one);
  hasten::testing::initialise(*model, seed + 1);
  model->to(at::kDouble);
  const auto ddp = std::make_shared<const Ddp>(*model, group, one.options);
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.5));
  auto generator = at::detail::createCPUGenerator(seed);
  for (int64_t step = 0; step < 6; ++step) {
    for (int64_t i = 0; i < one.num_weights; ++i) {
      for (auto& parameter : model->weights[i]->parameters()) parameter.set_requires_grad(step >= one.frozen_until[i]);
    }
    if (step % 2 == 0 || !one.zero_grad_every_second) optimizer.zero_grad(one.set_to_none);
    for (size_t batch = 0; batch < one.batches.size(); ++batch) {
      const bool last = batch + 1 == one.batches.size();
      const NoSync scope(last ? Ddp::Models{} : Ddp::Models{ddp});
      const at::Tensor all = at::randn({one.batches[batch], kWidth}, generator, at::kDouble);
      const auto parts = all.tensor_split(group.world_size());
      const at::Tensor mine = parts[group.rank()];
      BackwardOptions options;
      if (one.weighted) options.weight = static_cast<double>(mine.size(0));
      at::Tensor loss = model->forward(mine, step).mean();
      // As in a program that knows nothing of graphs: the data may leave nothing to train here.
      if (!loss.requires_grad()) loss = loss + torch::zeros({}, torch::TensorOptions(at::kDouble).requires_grad(true));
      backward(loss, options,
               {.models = {ddp},
                .group = group,
                .num_batches = static_cast<int64_t>(one.batches.size()),
                .ends_window = last});
    }
    if (one.clips) torch::nn::utils::clip_grad_norm_(model->parameters(), 0.3);
    optimizer.step();
  }
  std::vector<at::Tensor> result;
  for (const auto& parameter : model->parameters()) result.push_back(parameter.detach().clone());
  return result;
}

/// Cases `begin` to `end`, on 2 and 3 ranks against one.
inline void fuzz(uint64_t begin, uint64_t end) {
  std::cout << "seeds " << begin << " to " << end - 1 << std::endl;
  for (uint64_t seed = begin; seed < end && !::testing::Test::HasFailure(); ++seed) {
    const FuzzCase one = FuzzCase::draw(seed);
    const auto alone = train_fuzz(one, seed, comm::Group());
    for (const int world_size : {2, 3}) {
      hasten::testing::run_ranks(world_size, [&](process::Process& process) {
        const auto mine = train_fuzz(one, seed, process.group());
        for (size_t i = 0; i < alone.size(); ++i) {
          EXPECT_TRUE(torch::allclose(mine[i], alone[i], 1e-8, 1e-8))
              << "seed " << seed << ", " << world_size << " ranks, parameter " << i << ", off by "
              << (mine[i] - alone[i]).abs().max().item<double>();
        }
      });
    }
  }
}

}  // namespace hasten::parallel::fuzzing
