// The program of docs/tutorial.md: a small network learns to which of four centres a point belongs.
//
//   ./tutorial                                     one process
//   hasten launch -n 2 ./tutorial                  two
//   hasten launch -n 2 ./tutorial --resume         goes on from the last checkpoint
//   hasten launch -n 2 ./tutorial --stage 3        parameters, gradients and optimizer state split over the ranks
#include <hasten/hasten.h>
#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <string>

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

struct Arguments {
  int epochs = 3, stage = 0;
  bool resume = false;
  std::string folder = "tutorial_run";
};

void train_and_test(hasten::Accelerator& accelerator, const Arguments& arguments) {
  torch::nn::Sequential net(torch::nn::Linear(8, 32), torch::nn::ReLU(), torch::nn::Linear(32, 4));
  torch::optim::Adam adam(net->parameters(), 1e-2);
  auto [model, optimizer, train, test] =
      accelerator.prepare(net, adam, hasten::data::loader<RandomSampler>(points(1000, 1), 20),
                          hasten::data::loader<SequentialSampler>(points(250, 2), 20));

  if (arguments.resume) accelerator.load_state(arguments.folder + "/state");

  accelerator.init_trackers("tutorial");
  int64_t step = static_cast<int64_t>(train.state().epoch * train.size());
  for (int epoch = static_cast<int>(train.state().epoch); epoch < arguments.epochs; ++epoch) {
    for (auto& batch : train) {
      optimizer.zero_grad();
      auto loss = torch::nn::functional::cross_entropy(model(batch.data), batch.target);
      accelerator.backward(loss);
      optimizer.step();
      accelerator.log({{"train/loss", loss}}, step++);
    }

    const torch::NoGradGuard no_grad;
    int64_t correct = 0, total = 0;
    for (auto& batch : test) {
      const auto [found, wanted] = accelerator.gather_for_metrics(std::pair(model(batch.data).argmax(1), batch.target));
      correct += found.eq(wanted).sum().item<int64_t>();
      total += wanted.numel();
    }
    accelerator.print("epoch ", epoch, ": ", correct, " of ", total, " right");
    accelerator.save_state(arguments.folder + "/state");
  }
  accelerator.end_training();

  accelerator.save_model(model, arguments.folder + "/weights");
}

int main(int argc, char** argv) {
  Arguments arguments;
  CLI::App app{"The program of docs/tutorial.md."};
  app.add_option("--epochs", arguments.epochs)->check(CLI::NonNegativeNumber);
  app.add_option("--stage", arguments.stage)->check(CLI::Range(0, 3));
  app.add_option("--folder", arguments.folder);
  app.add_flag("--resume", arguments.resume);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }

  hasten::AcceleratorOptions options{.loader = {.use_seedable_sampler = true},
                                     .seed = 1,
                                     .log_with = {"csv"},
                                     .project = {.project_dir = arguments.folder}};
  options.shard.stage = static_cast<hasten::ShardStage>(arguments.stage);
  hasten::Accelerator accelerator(options);
  train_and_test(accelerator, arguments);
  return 0;
}
