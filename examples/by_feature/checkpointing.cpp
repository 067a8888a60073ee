// base.cpp that saves its state every 20 steps, in the background, and goes on from the newest complete checkpoint.
//
//   ./checkpointing FOLDER        again after a stop, on any number of processes
#include <hasten/hasten.h>
#include <torch/torch.h>

#include "arguments.h"

using torch::data::samplers::RandomSampler;
using torch::data::samplers::SequentialSampler;

// Points around four centres, [samples, 8], and the centre of each.
auto points(int64_t samples, uint64_t seed) {
  auto generator = at::detail::createCPUGenerator(seed);
  const auto centres = torch::randn({4, 8}, at::detail::createCPUGenerator(0));
  const auto targets = torch::randint(4, {samples}, generator, torch::kLong);
  return hasten::data::TensorDataset(2 * centres.index_select(0, targets) + torch::randn({samples, 8}, generator),
                                     targets);
}

torch::nn::Sequential make_net() {
  using namespace torch::nn;
  return Sequential(Linear(8, 32), ReLU(), Linear(32, 4));
}

// An average of the weights: state() and load_state() are all that a registered object needs.
struct Ema {
  at::Tensor weight = torch::zeros({32, 8});
  int64_t steps = 0;
  void update(const at::Tensor& now) {
    weight = 0.9 * weight.to(now.device()) + 0.1 * now.detach();
    ++steps;
  }
  hasten::training::State state() const { return hasten::training::State::of({{"weight", weight}, {"steps", steps}}); }
  void load_state(const hasten::training::State& state) {
    weight = state.at("weight").tensor();
    steps = state.at("steps").value().as_int();
  }
};

void run(hasten::Accelerator& accelerator, int64_t batch_size) {
  auto net = make_net();
  torch::optim::Adam adam(net->parameters(), 1e-2);
  auto [model, optimizer, train, test] =
      accelerator.prepare(net, adam, hasten::data::loader<RandomSampler>(points(1000, 1), batch_size),
                          hasten::data::loader<SequentialSampler>(points(250, 2), batch_size));
  Ema ema;
  accelerator.register_for_checkpointing("ema", ema);
  const auto from = accelerator.resume();
  accelerator.print(from ? "goes on at step " + std::to_string(from->step) : "begins");

  for (int epoch = static_cast<int>(train.state().epoch); epoch < 3; ++epoch) {
    for (auto& batch : train) {
      optimizer.zero_grad();
      auto loss = torch::nn::functional::cross_entropy(model(batch.data), batch.target);
      accelerator.backward(loss);
      optimizer.step();
      ema.update(net->parameters()[0]);
      if (ema.steps % 20 == 0) accelerator.save_state();
    }

    const torch::NoGradGuard no_grad;
    int64_t correct = 0, total = 0;
    for (auto& batch : test) {
      const auto [found, wanted] = accelerator.gather_for_metrics(std::pair(model(batch.data).argmax(1), batch.target));
      correct += found.eq(wanted).sum().item<int64_t>();
      total += wanted.numel();
    }
    accelerator.print("epoch ", epoch, ": ", correct, " of ", total, " right");
  }
  accelerator.end_training();
}

int main(int argc, char** argv) {
  const example::Arguments arguments(argc, argv, "checkpointing FOLDER");
  hasten::Accelerator accelerator(
      {.loader = {.use_seedable_sampler = true},
       .seed = 1,
       .project = {.project_dir = arguments.text(1), .automatic_checkpoint_naming = true, .total_limit = 2}});
  run(accelerator, 20);
  return 0;
}
