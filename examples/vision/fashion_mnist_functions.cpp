// FashionMNIST with two training functions: one that trains, one that trains and evaluates after each epoch; each epoch
// is saved.
//
//   fashion_mnist_functions                                  one process
//   fashion_mnist_functions --processes 2 --evaluate         two, started from inside by hasten::launch
//   hasten launch -n 2 fashion_mnist_functions --evaluate    two, started from outside
//
// Four epochs, batches of 64 on each process, Adam with 5e-3; every 100 steps each process prints its loss. The data is
// that of Debian's dataset-fashion-mnist.
#include <hasten/hasten.h>
#include <hasten/launch/run/launch.h>
#include <torch/torch.h>

#include "models/cnn.h"
#include "support.h"

using torch::data::samplers::RandomSampler;
using torch::data::samplers::SequentialSampler;

struct FashionOptions {
  int epochs = 4, processes = 0;
  int64_t batch_size = 64, limit = 60'000;
  double lr = 5e-3;
  bool evaluate = false;
  std::string data = hasten::data::kFashionMnistRoot, save = "fashion_mnist_epoch_";
  uint64_t seed = 1;
};

// One epoch: forward, loss, backward, step; the loss of this process's device every 100 steps.
void train_epoch(const hasten::Accelerator& accelerator, auto& model, auto& optimizer, auto& train, int epoch) {
  model->train();
  int64_t step = 0;
  for (auto& batch : train) {
    const auto loss = torch::nn::functional::cross_entropy(model(batch.data), batch.target);
    accelerator.backward(loss);
    optimizer.step();
    optimizer.zero_grad();
    if (++step % 100 != 0) continue;
    std::cout << hasten::text("device ", accelerator.rank(), ": epoch ", epoch + 1, ", step ", step, ", loss ",
                              loss.template item<float>(), "\n")
              << std::flush;
  }
}

// The weights without the handle, written once.
void save_epoch(const hasten::Accelerator& accelerator, auto& model, const FashionOptions& options, int epoch) {
  accelerator.wait_for_everyone();
  if (!options.save.empty())
    accelerator.save(*accelerator.unwrap_model(model), options.save + std::to_string(epoch + 1) + ".pt");
}

// Without evaluation.
void training_function(const hasten::Accelerator& accelerator, auto& model, auto& optimizer, auto& train,
                       const FashionOptions& options) {
  for (int epoch = 0; epoch < options.epochs; ++epoch) {
    train_epoch(accelerator, model, optimizer, train, epoch);
    save_epoch(accelerator, model, options, epoch);
  }
}

// With evaluation: every test image once, on all processes together.
void training_function_with_evaluation(const hasten::Accelerator& accelerator, auto& model, auto& optimizer,
                                       auto& train, auto& test, const FashionOptions& options) {
  for (int epoch = 0; epoch < options.epochs; ++epoch) {
    train_epoch(accelerator, model, optimizer, train, epoch);
    model->eval();
    const torch::NoGradGuard no_grad;
    hasten::data::Accuracy accuracy;
    for (auto& batch : test)
      accuracy.update(accelerator.without_padding(model(batch.data)), accelerator.without_padding(batch.target));
    const double value = accuracy.compute(accelerator.group());
    accelerator.print("epoch ", epoch + 1, ": accuracy ", example::rounded(value, 4));
    save_epoch(accelerator, model, options, epoch);
  }
}

void train_fashion(const FashionOptions& options) {
  const hasten::Accelerator accelerator({.seed = options.seed});
  const auto all = hasten::data::fashion_mnist(options.data, /*train=*/true);
  const auto& [images, labels] = all.data();
  const hasten::data::StackedIdxDataset train_set(
      {images.slice(0, 0, options.limit), labels.slice(0, 0, options.limit)});
  const auto test_set =
      hasten::data::fashion_mnist(options.data, /*train=*/false).map(torch::data::transforms::Stack<>());
  auto net = models::fashion_cnn();
  hasten::parallel::channels_last(net);
  torch::optim::Adam adam(net->parameters(), options.lr);
  auto [model, optimizer, train, test] = accelerator.prepare(
      net, adam, hasten::data::loader<RandomSampler>(train_set, static_cast<size_t>(options.batch_size)),
      hasten::data::loader<SequentialSampler>(test_set, 500));
  if (options.evaluate)
    training_function_with_evaluation(accelerator, model, optimizer, train, test, options);
  else
    training_function(accelerator, model, optimizer, train, options);
  accelerator.end_training();
}

int main(int argc, char** argv) {
  FashionOptions options;
  CLI::App app("FashionMNIST with two training functions.");
  app.add_option("--epochs", options.epochs, "passes over the training images")->capture_default_str();
  app.add_option("--batch_size", options.batch_size, "of each process")->capture_default_str();
  app.add_option("--lr", options.lr, "of Adam")->capture_default_str();
  app.add_flag("--evaluate", options.evaluate, "evaluates after each epoch");
  app.add_option("--processes", options.processes, "starts so many processes from inside");
  app.add_option("--data", options.data, "folder with the four files")->capture_default_str();
  app.add_option("--save", options.save, "start of the files' names; empty: none")->capture_default_str();
  app.add_option("--limit", options.limit, "trains with the first images only")->check(CLI::Range(1, 60'000));
  app.add_option("--seed", options.seed, "of weights and order")->capture_default_str();
  int code = 0;
  const int own = example::run(app, argc, argv, [&] {
    if (options.processes > 0)
      code = hasten::launch(options.processes, [&] { train_fashion(options); });
    else
      train_fashion(options);
  });
  return own != 0 ? own : code;
}
