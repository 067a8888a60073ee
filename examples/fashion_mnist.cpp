// Trains a small convolutional network on Fashion-MNIST: an ordinary libtorch program, on any number of
// processes.
//
//   ./fashion_mnist --save net.pt            one process
//   hasten launch -n 4 ./fashion_mnist       four, each with batches of 64
//   ./fashion_mnist --evaluate net.pt        the accuracy of a saved network
//
// "// +" marks what a program for one process would not have. The data is that of Debian's
// dataset-fashion-mnist.
#include <hasten/hasten.h>
#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <iomanip>
#include <iostream>

using torch::data::samplers::RandomSampler;
using torch::data::samplers::SequentialSampler;
using torch::data::transforms::Stack;

torch::nn::Sequential make_net() {
  using namespace torch::nn;
  return Sequential(Conv2d(Conv2dOptions(1, 32, 5).padding(2)), BatchNorm2d(32), ReLU(), MaxPool2d(2),
                    Conv2d(Conv2dOptions(32, 64, 5).padding(2)), BatchNorm2d(64), ReLU(), MaxPool2d(2), Flatten(),
                    Linear(64 * 7 * 7, 64), ReLU(), Linear(64, 10));
}

struct Options {
  int epochs = 4;
  std::string data = hasten::data::kFashionMnistRoot;
  std::string save, evaluate, runs, mixed_precision;
  uint64_t seed = 1;
  int64_t limit = 60'000;
  int threads = 0;
};

Options parse(int argc, char** argv) {
  Options options;
  CLI::App app("Trains a small convolutional network on Fashion-MNIST.");
  app.add_option("--epochs", options.epochs, "passes over the training images")->capture_default_str();
  app.add_option("--data", options.data, "folder with the four .gz files")->capture_default_str();
  app.add_option("--save", options.save, "file for the trained network");
  app.add_option("--evaluate", options.evaluate, "only say how good the network in this file is")
      ->check(CLI::ExistingFile);
  app.add_option("--runs", options.runs,
                 "folder for TensorBoard's files and `hasten board`; without it nothing is logged");
  app.add_option("--seed", options.seed, "of the first weights and the order of the images")->capture_default_str();
  app.add_option("--limit", options.limit, "train with the first images only")->check(CLI::Range(1, 60'000));
  app.add_option("--mixed_precision", options.mixed_precision,
                 "what layers compute in (default: the launcher's choice, else no)")
      ->check(CLI::IsMember({"no", "fp16", "bf16", "fp8"}));
  app.add_option("--threads", options.threads, "of each process (default: libtorch's choice)");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error) == 0 ? 0 : 2);
  }
  return options;
}

// The first images of a set, pixels scaled to [0, 1], in whole batches.
auto first(const hasten::data::IdxDataset& set, int64_t count) {
  const auto& [images, labels] = set.data();
  return hasten::data::StackedIdxDataset({images.slice(0, 0, count), labels.slice(0, 0, count)});
}

std::string rounded(double value, int digits) {
  return hasten::text(std::fixed, std::setprecision(digits), value);
}

struct Accuracy {
  double fraction = 0;
  int64_t num_images = 0;
  std::string text() const { return hasten::text("accuracy ", rounded(fraction, 4), " of ", num_images); }
};

// Each process looks at its share of the images; the answers come together, every image once.
Accuracy evaluate(hasten::Accelerator& accelerator, auto& model, auto& test) {
  const torch::NoGradGuard no_grad;
  model->eval();
  int64_t correct = 0, images = 0;
  for (auto& batch : test) {
    const auto answer = model(batch.data).argmax(1);
    const auto [answers, targets] = accelerator.gather_for_metrics(std::make_pair(answer, batch.target));  // +
    correct += answers.eq(targets).sum().template item<int64_t>();
    images += targets.size(0);
  }
  return {static_cast<double>(correct) / static_cast<double>(images), images};
}

void run(const Options& options) {
  if (options.threads > 0) torch::set_num_threads(options.threads);
  const auto train_images = first(hasten::data::fashion_mnist(options.data, /*train=*/true), options.limit);
  const auto test_images = hasten::data::fashion_mnist(options.data, /*train=*/false).map(Stack<>());

  hasten::AcceleratorOptions settings{.seed = options.seed};  // +
  if (!options.runs.empty()) {
    settings.log_with = {"tensorboard"};
    settings.project.project_dir = options.runs;
  }
  if (!options.mixed_precision.empty()) {
    settings.mixed_precision = hasten::precision::parse_precision(options.mixed_precision, "--mixed_precision");
  }
  hasten::Accelerator accelerator(settings);  // +
  auto net = make_net();
  hasten::parallel::channels_last(net);  // convolutions and pooling are a quarter to a third faster so
  if (!options.evaluate.empty()) torch::load(net, options.evaluate);
  torch::optim::Adam adam(net->parameters(), 5e-3);
  auto [model, optimizer, train, test] = accelerator.prepare(  // +
      net, adam, hasten::data::loader<RandomSampler>(train_images, 64),
      hasten::data::loader<SequentialSampler>(test_images, 500));

  if (!options.evaluate.empty()) {
    accelerator.print(evaluate(accelerator, model, test).text());
    return;
  }
  // From 0.005 down to 0: with a constant rate the last few batches decide the accuracy, and with them the rounding of
  // the processor's convolutions.
  const auto steps = static_cast<int64_t>(train.size()) * options.epochs;
  hasten::optim::CosineAnnealingLR cosine(adam, {.T_max = std::max<int64_t>(steps, 1)});
  auto scheduler = accelerator.prepare(cosine);  // +
  const bool logs = !options.runs.empty();
  if (logs) {
    accelerator.init_trackers(
        "fashion_mnist",
        {{"epochs", options.epochs}, {"learning_rate", 5e-3}, {"batch_size", 64}, {"limit", options.limit}});
  }
  int64_t step = 0;
  for (int epoch = 0; epoch < options.epochs; ++epoch) {
    model->train();
    const auto start = std::chrono::steady_clock::now();
    hasten::tracking::Progress bar(
        train.size(), {.description = hasten::text("epoch ", epoch), .enabled = accelerator.is_main_process()});
    torch::Tensor loss;
    for (auto& batch : train) {
      optimizer.zero_grad();
      loss = torch::nn::functional::cross_entropy(model(batch.data), batch.target);
      accelerator.backward(loss);  // + was loss.backward()
      optimizer.step();
      scheduler.step();
      if (logs) accelerator.log({{"train/loss", loss}}, step);
      ++step;
      // Not at each step: reading waits for the device.
      bar.advance(1, step % 10 == 0 ? "loss " + rounded(loss.item<double>(), 2) : "");
    }
    bar.set_postfix("loss " + rounded(loss.item<double>(), 2));
    bar.finish();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    const double rate = static_cast<double>(*train_images.size()) / seconds.count();
    const Accuracy accuracy = evaluate(accelerator, model, test);
    if (logs) accelerator.log({{"test/accuracy", accuracy.fraction}, {"train/samples_per_s", rate}}, step);
    accelerator.print("epoch ", epoch, ": loss ", rounded(loss.item<double>(), 2), ", ", accuracy.text(), ", ",
                      rounded(rate, 0), " samples/s");
  }

  accelerator.end_training();  // +
  if (!options.save.empty() && accelerator.is_main_process()) {
    torch::save(accelerator.unwrap_model(model), options.save);
  }
}

int main(int argc, char** argv) {
  try {
    run(parse(argc, argv));
  } catch (const hasten::DataError& error) {  // missing or damaged data: its words say what to do
    std::cerr << error.what() << '\n';
    return 2;
  }
}
