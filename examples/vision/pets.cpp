// Cats or dogs, or 37 breeds, by fine-tuning: file names begin with a capital letter for a cat, and hold the breed up
// to the last '_'.
//
//   pets --data oxford-iiit-pet/images --weights resnet34.safetensors      the real set, torchvision's weights
//   hasten launch -n 2 pets                                                two processes; garments of Fashion-MNIST
//   (shoes are "cats")
//
// Resized to 224, a fifth held out by seed 99, ResNet-34, error rate, `fine_tune(1)`. Without --weights it trains from
// scratch.
#include <hasten/checkpoint/weights.h>
#include <hasten/hasten.h>
#include <hasten/learner/callbacks.h>
#include <hasten/learner/distributed.h>
#include <hasten/learner/image_loaders.h>
#include <hasten/learner/learner.h>
#include <hasten/learner/metrics.h>
#include <hasten/learner/recorder.h>
#include <torch/torch.h>

#include "data/pictures.h"
#include "models/resnet.h"
#include "support.h"

struct PetsOptions {
  std::string data, weights, label = "cats";
  int64_t epochs = 1, freeze_epochs = 1, size = 224, batch_size = 64, limit = 2000, layers = 34, workers = 0;
  double lr = 2e-3;
  bool fp16 = false, find_lr = false;
  uint64_t seed = 99;
};

void train_pets(const PetsOptions& o) {
  namespace learner = hasten::learner;
  const hasten::Accelerator accelerator({.seed = o.seed});
  const auto folder = learner::rank0_first(accelerator.group(), [&] {
    return example::made_folder(o.data, "pets", [&](const auto& to) { example::write_kinds(to, 10'000, false); });
  });
  auto files = learner::image_files(folder);
  if (o.data.empty() && o.limit < static_cast<int64_t>(files.size())) {
    std::shuffle(files.begin(), files.end(), std::mt19937(1));
    files.resize(static_cast<size_t>(o.limit));
  }
  const auto is_cat = [](const std::filesystem::path& file) {
    return std::string(std::isupper(static_cast<unsigned char>(file.filename().string()[0])) != 0 ? "cat" : "dog");
  };
  learner::ImageLoadersOptions loading{.valid = learner::random_split(0.2, o.seed),
                                       .resize = o.size,
                                       .batch_size = o.batch_size,
                                       .seed = o.seed,
                                       .workers = o.workers};
  if (o.label == "cats")
    loading.label = is_cat;
  else
    loading.label = learner::name_before_number;
  const auto loaders = learner::image_loaders(files, loading);
  const auto classes = static_cast<int64_t>(loaders.vocab.size());
  auto net = models::resnet(o.layers, classes);
  if (!o.weights.empty()) hasten::checkpoint::load_weights(*net, o.weights, {.strict = false});
  accelerator.print(files.size(), " pictures, ", classes, " classes", o.weights.empty() ? "; from scratch" : "");

  const learner::Learner learn(
      loaders, net,
      {.loss = learner::cross_entropy(), .metrics = {learner::error_rate()}, .splitter = models::resnet_groups});
  if (o.fp16) learn.to_fp16();
  learn.distrib_ctx(accelerator, {.sync_bn = true}, [&] {
    const double lr = o.find_lr ? learn.lr_find().valley : o.lr;
    learn.fine_tune(o.epochs, lr, {.freeze_epochs = o.freeze_epochs});
  });
  accelerator.print("error_rate ", example::rounded(learn.recorder().value_of("error_rate"), 4));
  accelerator.end_training();
}

int main(int argc, char** argv) {
  PetsOptions o;
  CLI::App app("Cats or dogs, or breeds, by fine-tuning a ResNet.");
  app.add_option("--data", o.data, "folder of pictures NAME_NUMBER.jpg (default: garments, made once)");
  app.add_option("--weights", o.weights, "torchvision's weights, safetensors or .pth");
  app.add_option("--label", o.label, "what is learned")
      ->check(CLI::IsMember({"cats", "breeds"}))
      ->capture_default_str();
  app.add_option("--epochs", o.epochs, "behind those with a frozen body")->capture_default_str();
  app.add_option("--freeze_epochs", o.freeze_epochs)->capture_default_str();
  app.add_option("--size", o.size, "edge of the pictures in pixels")
      ->check(CLI::Range(32, 1024))
      ->capture_default_str();
  app.add_option("--batch_size", o.batch_size, "of each process")->capture_default_str();
  app.add_option("--layers", o.layers)->check(CLI::IsMember({18, 34}))->capture_default_str();
  app.add_option("--lr", o.lr, "base rate")->capture_default_str();
  app.add_flag("--lr_find", o.find_lr, "takes the valley of the range test");
  app.add_flag("--fp16", o.fp16, "computes in float16");
  app.add_option("--limit", o.limit, "garments to train with")->capture_default_str();
  app.add_option("--workers", o.workers, "threads that read ahead")->capture_default_str();
  app.add_option("--seed", o.seed, "of weights, order and the held-out part")->capture_default_str();
  return example::run(app, argc, argv, [&] { train_pets(o); });
}
