// cv with all that a long run needs (Accelerate's complete_cv_example): checkpoints by step or epoch, going on in
// mid-epoch, trackers, mixed precision.
//
//   complete_cv --checkpointing_steps 100 --with_tracking --output_dir runs
//   complete_cv --resume_from_checkpoint runs/step_100 --output_dir runs
#include <hasten/checkpoint/weights.h>
#include <hasten/hasten.h>
#include <hasten/learner/image_loaders.h>
#include <torch/torch.h>

#include "complete.h"
#include "data/picture_files.h"
#include "data/pictures.h"
#include "models/resnet.h"
#include "support.h"

using torch::data::samplers::RandomSampler;
using torch::data::samplers::SequentialSampler;

struct CompleteCvOptions : example::CompleteOptions {
  std::string data, weights;
  int64_t epochs = 3, size = 224, limit = 2000;
  size_t batch_size = 64, workers = 0;
  double lr = 3e-2;
  uint64_t seed = 42;
};

void train_complete_cv(const CompleteCvOptions& o) {
  using namespace hasten::data;
  const hasten::Accelerator accelerator(o.accelerator_options(o.seed));
  if (o.with_tracking)
    accelerator.init_trackers(
        "complete_cv", {{"lr", o.lr}, {"num_epochs", o.epochs}, {"batch_size", static_cast<int64_t>(o.batch_size)}});
  const auto folder = accelerator.main_process_first([&] {
    return example::made_folder(o.data, "pets", [&](const auto& to) { example::write_kinds(to, 10'000, false); });
  });
  auto files = hasten::learner::image_files(folder);
  std::shuffle(files.begin(), files.end(), std::mt19937(1));
  if (o.data.empty()) files.resize(std::min(files.size(), static_cast<size_t>(o.limit)));
  const auto list = std::make_shared<const example::PictureList>(example::list_pictures(files));
  const example::PictureFiles train_set(list, true, o.seed,
                                        {RandomResizedCrop{.height = o.size, .width = o.size, .min_area = 0.5}});
  const example::PictureFiles test_set(list, false, o.seed, {Resize{o.size, o.size}});

  auto net = models::resnet50d(static_cast<int64_t>(list->classes.size()));
  if (!o.weights.empty()) {
    hasten::checkpoint::load_weights(*net, o.weights, {.strict = false});
    for (const auto& item : net->named_parameters()) item.value().set_requires_grad(item.key().rfind("fc", 0) == 0);
  }
  torch::optim::Adam adam(net->parameters(), o.lr / 25);
  const auto global_batch = o.batch_size * static_cast<size_t>(accelerator.num_processes());
  const auto steps = static_cast<int64_t>((*train_set.size() + global_batch - 1) / global_batch);
  hasten::optim::OneCycleLR cycle(adam, {.max_lr = o.lr, .epochs = o.epochs, .steps_per_epoch = steps});
  const auto loading = torch::data::DataLoaderOptions(o.batch_size).workers(o.workers);
  auto [model, optimizer, scheduler, train, test] = accelerator.prepare(
      net, adam, cycle, loader<RandomSampler>(train_set, loading), loader<SequentialSampler>(test_set, loading));
  example::Checkpointing checkpoints(accelerator, o);
  for (int64_t epoch = checkpoints.resume(train); epoch < o.epochs; ++epoch) {
    model->train();
    Mean mean;
    for (auto& batch : train) {
      const auto loss = torch::nn::functional::cross_entropy(model(batch.data), batch.target);
      mean.update(loss.detach(), static_cast<double>(batch.target.size(0)));
      accelerator.backward(loss);
      optimizer.step();
      scheduler.step();
      optimizer.zero_grad();
      checkpoints.after_step();
    }
    model->eval();
    const torch::NoGradGuard no_grad;
    Accuracy accuracy;
    for (auto& batch : test)
      accuracy.update(accelerator.without_padding(model(batch.data)), accelerator.without_padding(batch.target));
    const double value = accuracy.compute(accelerator.group()), loss = mean.compute(accelerator.group());
    accelerator.print("epoch ", epoch, ": ", example::rounded(100 * value, 2));
    if (o.with_tracking)
      accelerator.log({{"accuracy", 100 * value}, {"train_loss", loss}, {"epoch", epoch}}, checkpoints.step());
    checkpoints.after_epoch(epoch);
  }
  accelerator.end_training();
}

int main(int argc, char** argv) {
  CompleteCvOptions o;
  CLI::App app("Fine-tunes ResNet-50d, with checkpoints and trackers.");
  o.add_to(app);
  app.add_option("--data", o.data, "folder of pictures KIND_NUMBER.jpg (default: garments, made once)");
  app.add_option("--weights", o.weights, "timm's weights; the body is frozen then");
  app.add_option("--epochs", o.epochs)->capture_default_str();
  app.add_option("--size", o.size, "edge of the pictures in pixels")
      ->check(CLI::Range(32, 1024))
      ->capture_default_str();
  app.add_option("--batch_size", o.batch_size, "of each process")->capture_default_str();
  app.add_option("--lr", o.lr, "highest rate")->capture_default_str();
  app.add_option("--limit", o.limit, "garments to train with")->capture_default_str();
  app.add_option("--workers", o.workers, "threads that read ahead")->capture_default_str();
  app.add_option("--seed", o.seed)->capture_default_str();
  return example::run(app, argc, argv, [&] { train_complete_cv(o); });
}
