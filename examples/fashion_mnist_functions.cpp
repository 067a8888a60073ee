// FashionMNIST with two training functions: one that trains, one that trains and evaluates after each epoch; each epoch is saved.
//
//   ./fashion_mnist_functions                              one process
//   hasten launch -n 2 ./fashion_mnist_functions --evaluate   two, with evaluation
//
// Four epochs, batches of 64 on each process, Adam with 5e-3; every 100 steps each process prints its loss. The data is that of
// Debian's dataset-fashion-mnist.
#include <hasten/hasten.h>
#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <iostream>

namespace {

using torch::data::samplers::RandomSampler;
using torch::data::samplers::SequentialSampler;
using torch::data::transforms::Stack;

struct Options {
  int epochs = 4;
  int64_t batch_size = 64;
  double lr = 5e-3;
  bool evaluate = false;
  std::string data = hasten::data::kFashionMnistRoot;
  std::string save = "fashion_mnist_epoch_";
  int64_t limit = 60'000;
  uint64_t seed = 1;
  int threads = 0;
};

torch::nn::Sequential make_net() {
  using namespace torch::nn;
  return Sequential(Conv2d(Conv2dOptions(1, 32, 3).padding(1)), BatchNorm2d(32), ReLU(), MaxPool2d(2),
                    Conv2d(Conv2dOptions(32, 64, 3)), BatchNorm2d(64), ReLU(), MaxPool2d(2), Flatten(),
                    Linear(64 * 6 * 6, 600), Dropout(0.25), Linear(600, 120), Linear(120, 10));
}

auto first_images(const hasten::data::IdxDataset& set, int64_t count) {
  const auto& [images, labels] = set.data();
  return hasten::data::StackedIdxDataset({images.slice(0, 0, count), labels.slice(0, 0, count)});
}

/// One epoch: forward, loss, backward, step; the loss of this process's device every 100 steps.
void train_epoch(const hasten::Accelerator& accelerator, auto& model, auto& optimizer, auto& train, int epoch) {
  model->train();
  int64_t step = 0;
  for (auto& batch : train) {
    const auto loss = torch::nn::functional::cross_entropy(model(batch.data), batch.target);
    accelerator.backward(loss);
    optimizer.step();
    optimizer.zero_grad();
    if (++step % 100 == 0) {
      std::cout << hasten::text("device ", accelerator.rank(), ": epoch ", epoch + 1, ", step ", step, ", loss ", loss.template item<float>(), "\n")
                << std::flush;
    }
  }
}

/// The weights without the handle, written once.
void save_epoch(const hasten::Accelerator& accelerator, auto& model, const Options& options, int epoch) {
  accelerator.wait_for_everyone();
  if (options.save.empty() || !accelerator.is_main_process()) return;
  torch::save(accelerator.unwrap_model(model), options.save + std::to_string(epoch + 1) + ".pt");
}

/// Without evaluation.
void training_function(const hasten::Accelerator& accelerator, auto& model, auto& optimizer, auto& train, const Options& options) {
  for (int epoch = 0; epoch < options.epochs; ++epoch) {
    train_epoch(accelerator, model, optimizer, train, epoch);
    save_epoch(accelerator, model, options, epoch);
  }
}

/// With evaluation: every test image once, on all processes together.
void training_function_with_evaluation(const hasten::Accelerator& accelerator, auto& model, auto& optimizer, auto& train, auto& test,
                                       const Options& options) {
  for (int epoch = 0; epoch < options.epochs; ++epoch) {
    train_epoch(accelerator, model, optimizer, train, epoch);
    model->eval();
    const torch::NoGradGuard no_grad;
    hasten::data::Accuracy accuracy;
    for (auto& batch : test) {
      accuracy.update(accelerator.without_padding(model(batch.data)), accelerator.without_padding(batch.target));
    }
    const double value = accuracy.compute(accelerator.group());
    accelerator.print("epoch ", epoch + 1, ": accuracy ", value);
    save_epoch(accelerator, model, options, epoch);
  }
}

Options parse(int argc, char** argv) {
  Options options;
  CLI::App app("FashionMNIST with two training functions.");
  app.add_option("--epochs", options.epochs, "passes over the training images")->capture_default_str();
  app.add_option("--batch-size", options.batch_size, "of each process")->capture_default_str();
  app.add_option("--lr", options.lr, "of Adam")->capture_default_str();
  app.add_flag("--evaluate", options.evaluate, "evaluates after each epoch");
  app.add_option("--data", options.data, "folder with the four files")->capture_default_str();
  app.add_option("--save", options.save, "start of the files' names; empty: none")->capture_default_str();
  app.add_option("--limit", options.limit, "trains with the first images only")->check(CLI::Range(1, 60'000));
  app.add_option("--seed", options.seed, "of weights and order")->capture_default_str();
  app.add_option("--threads", options.threads, "of each process (default: libtorch's choice)");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error) == 0 ? 0 : 2);
  }
  return options;
}

void run(const Options& options) {
  if (options.threads > 0) torch::set_num_threads(options.threads);
  const hasten::Accelerator accelerator(hasten::AcceleratorOptions{.seed = options.seed});
  const auto train_set = first_images(hasten::data::fashion_mnist(options.data, /*train=*/true), options.limit);
  const auto test_set = hasten::data::fashion_mnist(options.data, /*train=*/false).map(Stack<>());
  auto net = make_net();
  hasten::parallel::channels_last(net);
  torch::optim::Adam adam(net->parameters(), options.lr);
  auto [model, optimizer, train, test] =
      accelerator.prepare(net, adam, hasten::data::loader<RandomSampler>(train_set, options.batch_size),
                          hasten::data::loader<SequentialSampler>(test_set, 500));
  if (options.evaluate) training_function_with_evaluation(accelerator, model, optimizer, train, test, options);
  else training_function(accelerator, model, optimizer, train, options);
  accelerator.end_training();
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run(parse(argc, argv));
  } catch (const hasten::UsageError& error) {
    std::cerr << error.what() << "\n";
    return 2;
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
  return 0;
}
