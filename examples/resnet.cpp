// Trains ResNet-34 (He et al. 2015) on a folder of images, one folder a class.
//
//   ./resnet --data imagenette                      one process
//   hasten launch -n 8 ./resnet --data imagenette   eight, each with batches of 32
//
// DATA holds train/CLASS/*.jpg and val/CLASS/*.jpg (PNG too). "// +" marks what a program for one process
// would not have.
#include <hasten/data/dataset/image_folder.h>
#include <hasten/hasten.h>
#include <hasten/precision/amp.h>
#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <iomanip>
#include <iostream>

using torch::data::samplers::RandomSampler;
using torch::data::samplers::SequentialSampler;
using torch::data::transforms::Stack;

struct Options {
  std::string data, save;
  int epochs = 10;
  int64_t size = 224;
  size_t batch = 32, workers = 2;
  double lr = 0.1;
  uint64_t seed = 42;
  int threads = 0;
  std::string opt_level;
};

Options parse(int argc, char** argv) {
  Options options;
  CLI::App app("Trains ResNet-34 on a folder of images.");
  app.add_option("--data", options.data, "folder with train/ and val/, and in each a folder a class")->required();
  app.add_option("--save", options.save, "file for the trained network");
  app.add_option("--epochs", options.epochs, "passes over the training images")->capture_default_str();
  app.add_option("--size", options.size, "edge of the images in pixels")
      ->check(CLI::Range(32, 1024))
      ->capture_default_str();
  app.add_option("--batch", options.batch, "images a process and step")->capture_default_str();
  app.add_option("--lr", options.lr, "highest learning rate, for 256 images a step")->capture_default_str();
  app.add_option("--workers", options.workers, "threads a process that read images")->capture_default_str();
  app.add_option("--seed", options.seed, "of the weights, crops and order")->capture_default_str();
  app.add_option("--opt_level", options.opt_level, "Apex's level of mixed precision (default: float32)")
      ->check(CLI::IsMember({"O0", "O1", "O2", "O3"}));
  app.add_option("--threads", options.threads, "of each process (default: libtorch's choice)");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error) == 0 ? 0 : 2);
  }
  return options;
}

torch::nn::Conv2d convolution(int64_t from, int64_t to, int64_t kernel, int64_t stride) {
  return torch::nn::Conv2d(torch::nn::Conv2dOptions(from, to, kernel).stride(stride).padding(kernel / 2).bias(false));
}

// Two convolutions beside a shortcut; names as torchvision's.
struct BasicBlockImpl : torch::nn::Module {
  BasicBlockImpl(int64_t from, int64_t to, int64_t stride)
      : conv1(register_module("conv1", convolution(from, to, 3, stride))),
        bn1(register_module("bn1", torch::nn::BatchNorm2d(to))),
        conv2(register_module("conv2", convolution(to, to, 3, 1))),
        bn2(register_module("bn2", torch::nn::BatchNorm2d(to))) {
    if (stride == 1 && from == to) return;
    downsample = register_module("downsample",
                                 torch::nn::Sequential(convolution(from, to, 1, stride), torch::nn::BatchNorm2d(to)));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const auto y = bn2(conv2(torch::relu(bn1(conv1(x)))));
    return torch::relu(y + (downsample.is_empty() ? x : downsample->forward(x)));
  }
  torch::nn::Conv2d conv1;
  torch::nn::BatchNorm2d bn1;
  torch::nn::Conv2d conv2;
  torch::nn::BatchNorm2d bn2;
  torch::nn::Sequential downsample{nullptr};
};
TORCH_MODULE(BasicBlock);

struct ResNet34Impl : torch::nn::Module {
  explicit ResNet34Impl(int64_t num_classes)
      : conv1(register_module("conv1", convolution(3, 64, 7, 2))),
        bn1(register_module("bn1", torch::nn::BatchNorm2d(64))),
        layer1(register_module("layer1", stage(64, 64, 3, 1))),
        layer2(register_module("layer2", stage(64, 128, 4, 2))),
        layer3(register_module("layer3", stage(128, 256, 6, 2))),
        layer4(register_module("layer4", stage(256, 512, 3, 2))),
        fc(register_module("fc", torch::nn::Linear(512, num_classes))) {
    for (auto& module : modules(/*include_self=*/false)) {
      if (auto* conv = module->as<torch::nn::Conv2d>())
        torch::nn::init::kaiming_normal_(conv->weight, 0, torch::kFanOut, torch::kReLU);
    }
  }
  torch::Tensor forward(torch::Tensor x) {
    x = torch::max_pool2d(torch::relu(bn1(conv1(x))), 3, 2, 1);
    x = layer4->forward(layer3->forward(layer2->forward(layer1->forward(x))));
    return fc(torch::adaptive_avg_pool2d(x, {1, 1}).flatten(1));
  }

  static torch::nn::Sequential stage(int64_t from, int64_t to, int blocks, int64_t stride) {
    torch::nn::Sequential list;
    for (int block = 0; block < blocks; ++block)
      list->push_back(BasicBlock(block == 0 ? from : to, to, block == 0 ? stride : 1));
    return list;
  }

  torch::nn::Conv2d conv1;
  torch::nn::BatchNorm2d bn1;
  torch::nn::Sequential layer1, layer2, layer3, layer4;
  torch::nn::Linear fc;
};
TORCH_MODULE(ResNet34);

hasten::data::ImageFolder images(const Options& options, bool train) {
  using namespace hasten::data;
  const int64_t size = options.size;
  const std::vector<ImageStep> augmented = {RandomResizedCrop{size, size}, HorizontalFlip{}};
  const std::vector<ImageStep> centred = {ResizeShorter{size * 8 / 7}, CenterCrop{size, size}};
  return ImageFolder(
      options.data + (train ? "/train" : "/val"),
      {.steps = train ? augmented : centred, .mean = kImageNetMean, .std = kImageNetStd, .seed = options.seed});
}

std::string rounded(double value, int digits) {
  return hasten::text(std::fixed, std::setprecision(digits), value);
}

std::string evaluate(hasten::Accelerator& accelerator, auto& model, auto& val) {
  const torch::NoGradGuard no_grad;
  model->eval();
  int64_t correct = 0, count = 0;
  for (auto& batch : val) {
    const auto hits = accelerator.gather_for_metrics(model(batch.data).argmax(1).eq(batch.target));  // +
    correct += hits.sum().template item<int64_t>();
    count += hits.size(0);
  }
  return hasten::text("accuracy ", rounded(static_cast<double>(correct) / static_cast<double>(count), 4), " of ",
                      count);
}

void run(const Options& options) {
  if (options.threads > 0) torch::set_num_threads(options.threads);
  const auto train_images = images(options, /*train=*/true), val_images = images(options, /*train=*/false);
  if (train_images.classes() != val_images.classes()) {
    throw hasten::DataError(hasten::Origin{"resnet"}, options.data, "in '", options.data,
                            "' train/ and val/ hold different classes. Give both the same folders.");
  }

  hasten::Accelerator accelerator({.seed = options.seed});  // +
  ResNet34 net(static_cast<int64_t>(train_images.classes().size()));
  const auto global_batch = options.batch * static_cast<size_t>(accelerator.num_processes());  // +
  const double lr = options.lr * static_cast<double>(global_batch) / 256;
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(lr).momentum(0.9).weight_decay(1e-4));
  const size_t steps = (*train_images.size() + global_batch - 1) / global_batch;
  hasten::optim::CosineAnnealingLR cosine(sgd, {.T_max = static_cast<int64_t>(steps) * options.epochs});
  const auto loading = torch::data::DataLoaderOptions(options.batch).workers(options.workers);
  auto [model, optimizer, scheduler, train, val] = accelerator.prepare(  // +
      net, sgd, cosine, hasten::data::loader<RandomSampler>(train_images.map(Stack<>()), loading),
      hasten::data::loader<SequentialSampler>(val_images.map(Stack<>()), loading));

  const bool with_amp = !options.opt_level.empty();
  hasten::precision::Amp amp(
      {.enabled = with_amp, .opt_level = hasten::precision::parse_amp_level(with_amp ? options.opt_level : "O0")});
  const auto [amp_model, amp_optimizer] = amp.initialize(net, sgd);
  for (int epoch = 0; epoch < options.epochs; ++epoch) {
    model->train();
    hasten::tracking::Progress bar(
        train.size(), {.description = hasten::text("epoch ", epoch), .enabled = accelerator.is_main_process()});
    torch::Tensor loss;
    for (auto& batch : train) {
      optimizer.zero_grad();
      loss = torch::nn::functional::cross_entropy(with_amp ? amp_model(batch.data) : model(batch.data), batch.target);
      if (with_amp) {
        amp.scale_loss(loss, amp_optimizer, [&](const torch::Tensor& scaled) { accelerator.backward(scaled); });
        amp_optimizer.step();
      } else {
        accelerator.backward(loss);  // + was loss.backward()
        optimizer.step();
      }
      scheduler.step();
      bar.advance(1, "loss " + rounded(loss.item<double>(), 2));
    }
    bar.finish();
    accelerator.print("epoch ", epoch, ": ",
                      with_amp ? evaluate(accelerator, amp_model, val) : evaluate(accelerator, model, val));
  }

  accelerator.wait_for_everyone();  // +
  if (!options.save.empty() && accelerator.is_main_process()) {
    torch::save(accelerator.unwrap_model(model), options.save);
  }
}

int main(int argc, char** argv) {
  try {
    run(parse(argc, argv));
  } catch (const hasten::DataError& error) {  // missing or damaged images: its words say what to do
    std::cerr << error.what() << '\n';
    return 2;
  }
}
