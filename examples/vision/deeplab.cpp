// DeepLabV3 on Cityscapes: DDP with mixed precision, mean IoU over 19 classes.
//
//   hasten launch -n 4 deeplab --data cityscapes --weights resnet50.safetensors --mixed_precision fp16
//   hasten launch -n 2 deeplab --small             scenes of Fashion-MNIST's garments in the same form, 2 epochs
//   hasten launch -n 4 deeplab --checkpoint saved --start-epoch 7 …    goes on behind the seventh epoch
//
// Batches of 3 on each process, SGD with a polynomial rate; pixels of other classes (255) do not count. --local_rank,
// which old launchers add, is accepted: the process's place comes from its environment.
#include <hasten/checkpoint/weights.h>
#include <hasten/hasten.h>
#include <torch/torch.h>

#include "data/cityscapes.h"
#include "data/pictures.h"
#include "models/deeplab.h"
#include "support.h"

using torch::data::samplers::RandomSampler;
using torch::data::samplers::SequentialSampler;

struct DeepLabOptions {
  std::string data, weights, mixed_precision, checkpoint;
  int64_t epochs = 100, start_epoch = 0, crop = 512, layers = 50, width = 256, scenes = 200;
  size_t batch_size = 3, workers = 4;
  double lr = 1e-2;
  bool sync_bn = false, small = false;
  uint64_t seed = 1;
  int local_rank = 0;
};

void train_deeplab(const DeepLabOptions& o) {
  hasten::AcceleratorOptions settings{.loader = {.use_seedable_sampler = true}, .seed = o.seed};
  if (!o.mixed_precision.empty())
    settings.mixed_precision = hasten::precision::parse_precision(o.mixed_precision, "--mixed_precision");
  const hasten::Accelerator accelerator(settings);
  const auto folder = accelerator.main_process_first([&] {
    return example::made_folder(o.data, hasten::text("scenes_", o.crop, "_", o.scenes).c_str(),
                                [&](const auto& to) { example::write_scenes(to, o.scenes, o.crop); });
  });
  const example::Cityscapes train_set(folder, "train", o.crop, o.seed), test_set(folder, "val", o.crop, o.seed);

  models::ResNetOptions body{.blocks = {3, 4, 6, 3}, .bottleneck = true};
  if (o.layers == 18) body = {};
  models::DeepLab net(example::kCityClasses, body, o.width);
  if (!o.weights.empty()) hasten::checkpoint::load_weights(*net->backbone, o.weights, {.strict = false});
  if (o.sync_bn) hasten::parallel::convert_sync_batchnorm(net, accelerator.group());
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(o.lr).momentum(0.9).weight_decay(1e-4));
  const auto global_batch = o.batch_size * static_cast<size_t>(accelerator.num_processes());
  const auto steps = static_cast<int64_t>((*train_set.size() + global_batch - 1) / global_batch);
  hasten::optim::PolynomialLR decay(sgd, {.total_iters = steps * o.epochs, .power = 0.9});
  const auto loading = torch::data::DataLoaderOptions(o.batch_size).workers(o.workers);
  auto [model, optimizer, scheduler, train, test] = accelerator.prepare(
      net, sgd, decay,
      hasten::data::loader<RandomSampler>(train_set, torch::data::DataLoaderOptions(loading).drop_last(true)),
      hasten::data::loader<SequentialSampler>(test_set, loading));
  const auto scoring = torch::nn::functional::CrossEntropyFuncOptions().ignore_index(example::kCityIgnored);
  const auto saved = [&](int64_t epoch) { return hasten::text(o.checkpoint, "/epoch_", epoch); };
  if (o.start_epoch > 0) accelerator.load_state(saved(o.start_epoch));
  for (int64_t epoch = o.start_epoch; epoch < o.epochs; ++epoch) {
    model->train();
    for (auto& batch : train) {
      optimizer.zero_grad();
      accelerator.backward(torch::nn::functional::cross_entropy(model(batch.data), batch.target, scoring));
      optimizer.step();
      scheduler.step();
    }
    model->eval();
    const torch::NoGradGuard no_grad;
    hasten::data::ConfusionMatrix matrix({.num_classes = example::kCityClasses, .ignore_index = example::kCityIgnored});
    for (auto& batch : test)
      matrix.update(accelerator.without_padding(model(batch.data)), accelerator.without_padding(batch.target));
    const auto confusion = matrix.compute(accelerator.group());
    accelerator.print("epoch ", epoch, ": mIoU ", example::rounded(confusion.mean_iou(), 4), ", pixels ",
                      example::rounded(confusion.accuracy(), 4));
    if (!o.checkpoint.empty()) accelerator.save_state(saved(epoch + 1));
  }
  accelerator.end_training();
}

int main(int argc, char** argv) {
  DeepLabOptions o;
  CLI::App app("DeepLabV3 on Cityscapes.");
  app.add_option("--data", o.data, "folder with leftImg8bit/ and gtFine/ (default: scenes of garments, made once)");
  app.add_option("--weights", o.weights, "torchvision's ResNet for the backbone");
  auto* epochs = app.add_option("--epochs", o.epochs)->capture_default_str();
  auto* checkpoint = app.add_option("--checkpoint", o.checkpoint, "folder for the state behind each epoch");
  app.add_option("--start-epoch,--start_epoch", o.start_epoch, "goes on behind so many epochs, from --checkpoint")
      ->check(CLI::NonNegativeNumber)
      ->needs(checkpoint)
      ->capture_default_str();
  app.add_flag("--small", o.small, "2 epochs, and no threads that read ahead, for a quick look");
  app.add_option("--crop", o.crop, "height of a window, which is twice as wide")
      ->check(CLI::Range(32, 1024))
      ->capture_default_str();
  app.add_option("--layers", o.layers, "of the ResNet")->check(CLI::IsMember({18, 50}))->capture_default_str();
  app.add_option("--width", o.width, "channels of the pyramid")->capture_default_str();
  app.add_option("--scenes", o.scenes, "scenes to make without --data")->capture_default_str();
  app.add_option("-b,--batch-size,--batch_size", o.batch_size, "of each process")->capture_default_str();
  app.add_option("--lr", o.lr)->capture_default_str();
  app.add_option("--mixed_precision", o.mixed_precision, "what layers compute in")
      ->check(CLI::IsMember({"no", "fp16", "bf16", "fp8"}));
  app.add_flag("--sync_bn", o.sync_bn, "batch normalisation over all processes");
  auto* workers = app.add_option("-j,--workers", o.workers, "threads that read ahead")->capture_default_str();
  app.add_option("--seed", o.seed)->capture_default_str();
  app.add_option("--local_rank,--local-rank", o.local_rank, "accepted, not needed");
  return example::run(app, argc, argv, [&] {
    if (o.small && epochs->empty()) o.epochs = 2;
    if (o.small && workers->empty()) o.workers = 0;
    train_deeplab(o);
  });
}
