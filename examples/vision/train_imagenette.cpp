// Imagenette and Imagewoof with fastai's options of its script: xresnet, label smoothing, a flat rate with a cosine
// end, MixUp.
//
//   train_imagenette --data ROOT                          ROOT/imagenette2-160, or a folder with train/ and val/ itself
//   hasten launch -n 2 train_imagenette --epochs 2        two processes; garments of Fashion-MNIST in ten folders
//
// Windows of 35 to 100 % of a picture, flips, ImageNet's statistics; accuracy and top-5. From scratch.
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

namespace learner = hasten::learner;

struct ImagenetteOptions {
  std::string data, opt = "adam", arch = "xresnet50", act_fn = "ReLU", pool = "AvgPool";
  bool woof = false, sa = false, sym = false, fp16 = false, dump = false;
  double lr = 1e-3, sqrmom = 0.99, mom = 0.9, eps = 1e-6, mixup = 0.1, sh = 0, beta = 0;
  int64_t size = 160, epochs = 2, bs = 64, runs = 1, limit = 5000, workers = 0;
  uint64_t seed = 1;
};

// fastai's RandomErasing: in three of ten pictures up to three windows become noise, `part` of the area at most.
learner::Batch erase(learner::Batch batch, double part) {
  auto x = batch.inputs.front().clone();
  const int64_t height = x.size(2), width = x.size(3);
  for (int64_t i = 0; i < x.size(0); ++i) {
    const auto draws = torch::rand({14});
    const auto draw = [&](int64_t at) { return draws[at].item<double>(); };
    if (draw(0) > 0.3) continue;
    const auto count = static_cast<int64_t>(1 + draw(1) * 3);
    for (int64_t j = 0; j < count; ++j) {
      const double area = draw(2 + 4 * j) * part * static_cast<double>(height * width) / static_cast<double>(count);
      const double ratio = std::exp((draw(3 + 4 * j) * 2 - 1) * std::log(1 / 0.3));
      const auto h = std::min(height, static_cast<int64_t>(std::sqrt(area * ratio))),
                 w = std::min(width, static_cast<int64_t>(std::sqrt(area / ratio)));
      const auto top = static_cast<int64_t>(draw(4 + 4 * j) * static_cast<double>(height - h)),
                 left = static_cast<int64_t>(draw(5 + 4 * j) * static_cast<double>(width - w));
      x[i].slice(1, top, top + h).slice(2, left, left + w).normal_();
    }
  }
  batch.inputs.front() = x;
  return batch;
}

hasten::optim::fastai::Factory optimizer_of(const ImagenetteOptions& o) {
  namespace fastai = hasten::optim::fastai;
  if (o.opt == "rms") return fastai::rms_prop({.sqr_mom = o.sqrmom});
  if (o.opt == "sgd") return fastai::sgd({.mom = o.mom});
  if (o.opt == "ranger") return fastai::ranger({.mom = o.mom, .eps = o.eps, .sqr_mom = o.sqrmom, .beta = o.beta});
  return fastai::adam({.mom = o.mom, .sqr_mom = o.sqrmom, .eps = o.eps});
}

std::string imagenette_folder(const ImagenetteOptions& o) {
  if (o.data.empty())
    return example::made_folder("", "imagenette", [&](const auto& to) { example::write_kinds(to, 10'000, true); });
  const std::string size = o.size <= 128 ? "-160" : o.size <= 224 ? "-320" : "";
  const auto inside = std::filesystem::path(o.data) / ((o.woof ? "imagewoof2" : "imagenette2") + size);
  return std::filesystem::exists(inside) ? inside.string() : o.data;
}

double train_once(const hasten::Accelerator& accelerator, const std::string& folder, const ImagenetteOptions& o) {
  using namespace hasten::data;
  auto files = learner::image_files(folder);
  if (o.data.empty() && o.limit < static_cast<int64_t>(files.size())) {
    std::shuffle(files.begin(), files.end(), std::mt19937(1));
    files.resize(static_cast<size_t>(o.limit));
  }
  auto loaders = learner::image_loaders(
      files, {.valid = learner::folder_split("val"),
              .train_steps = {RandomResizedCrop{.height = o.size, .width = o.size, .min_area = 0.35}, HorizontalFlip{}},
              .valid_steps = {ResizeShorter{o.size * 8 / 7}, CenterCrop{o.size, o.size}},
              .batch_size = o.bs,
              .seed = o.seed,
              .workers = o.workers});
  if (o.sh > 0) loaders.augment = [part = o.sh](const learner::Batch& batch) { return erase(batch, part); };
  models::ResNetOptions shape{.pools_maximum = o.pool == "MaxPool", .self_attention = o.sa, .symmetric = o.sym};
  shape.activation = o.act_fn == "Mish" ? models::mish : o.act_fn == "SiLU" ? models::silu : models::relu;
  const auto net = models::xresnet(std::stoll(o.arch.substr(std::string("xresnet").size())),
                                   static_cast<int64_t>(loaders.vocab.size()), shape);
  const learner::Learner learn(loaders, net,
                               {.loss = learner::label_smoothing(),
                                .opt_func = optimizer_of(o),
                                .metrics = {learner::accuracy(), learner::top_k_accuracy(5)}});
  if (o.dump) accelerator.print(learn.summary());
  if (o.fp16) learn.to_fp16();
  learner::Callbacks mixing;
  if (o.mixup > 0) mixing = learner::callbacks(learner::MixUp(o.mixup));
  learn.distrib_ctx(accelerator, [&] { learn.fit_flat_cos(o.epochs, o.lr, {.wd = 1e-2, .cbs = mixing}); });
  return learn.recorder().value_of("accuracy");
}

int main(int argc, char** argv) {
  ImagenetteOptions o;
  CLI::App app("Imagenette and Imagewoof with fastai's options.");
  app.add_option("--data", o.data, "folder of the sets, or with train/ and val/ (default: garments, made once)");
  app.add_flag("--woof", o.woof, "Imagewoof in the place of Imagenette");
  app.add_option("--lr", o.lr)->capture_default_str();
  app.add_option("--size", o.size, "edge of the pictures in pixels")
      ->check(CLI::Range(32, 1024))
      ->capture_default_str();
  app.add_option("--sqrmom", o.sqrmom)->capture_default_str();
  app.add_option("--mom", o.mom)->capture_default_str();
  app.add_option("--eps", o.eps)->capture_default_str();
  app.add_option("--epochs", o.epochs)->capture_default_str();
  app.add_option("--bs", o.bs, "batch size of each process")->capture_default_str();
  app.add_option("--mixup", o.mixup, "0: none")->capture_default_str();
  app.add_option("--opt", o.opt)->check(CLI::IsMember({"adam", "rms", "sgd", "ranger"}))->capture_default_str();
  app.add_option("--arch", o.arch)
      ->check(CLI::IsMember({"xresnet18", "xresnet34", "xresnet50", "xresnet101"}))
      ->capture_default_str();
  app.add_option("--sh", o.sh, "largest part of a picture that random erasing takes; 0: none")->capture_default_str();
  app.add_flag("--sa", o.sa, "self-attention behind the first stage");
  app.add_flag("--sym", o.sym, "symmetric weights in it");
  app.add_option("--beta", o.beta, "of ranger")->capture_default_str();
  app.add_option("--act_fn", o.act_fn)->check(CLI::IsMember({"ReLU", "Mish", "SiLU"}))->capture_default_str();
  app.add_flag("--fp16", o.fp16, "computes in float16");
  app.add_option("--pool", o.pool, "of the shortcuts")
      ->check(CLI::IsMember({"AvgPool", "MaxPool"}))
      ->capture_default_str();
  app.add_flag("--dump", o.dump, "prints the layers");
  app.add_option("--runs", o.runs, "trainings, each with the next seed")->capture_default_str();
  app.add_option("--limit", o.limit, "garments to train with")->capture_default_str();
  app.add_option("--workers", o.workers, "threads that read ahead")->capture_default_str();
  app.add_option("--seed", o.seed)->capture_default_str();
  return example::run(app, argc, argv, [&] {
    const hasten::Accelerator accelerator({.seed = o.seed});
    const auto folder = learner::rank0_first(accelerator.group(), [&] { return imagenette_folder(o); });
    for (int64_t run = 0; run < o.runs; ++run) {
      auto own = o;
      own.seed += static_cast<uint64_t>(run);
      hasten::process::set_seed(accelerator.process(), own.seed);
      accelerator.print("run ", run, ": accuracy ", example::rounded(train_once(accelerator, folder, own), 4));
    }
    accelerator.end_training();
  });
}
