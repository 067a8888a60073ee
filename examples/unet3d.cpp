// Trains a small 3D U-Net (Çiçek et al. 2016) to find the brain in a head, or balls in noisy volumes that it
// synthesises: segmentation with batch normalisation over all processes, since volumes are large and batches small.
//
//   ./unet3d                                  one process, balls in batches of 4
//   hasten launch -n 4 ./unet3d --batch 1     four, the same batches of 4 together
//   hasten launch -n 2 ./unet3d --data brain --lr 2e-4 --weight_decay 1e-4 --epochs 90 --opt_level O1 --runs runs
//   --save nets
//
// brain: the T1 volume of Debian's mricron-data and its brain mask, or --image and --mask (NIfTI); cubes from the front
// train, those from the back test. Binary cross-entropy plus soft dice, a rate that falls to a fifth at 25, 50 and 75
// epochs, dice and IoU.
// "// +" marks what a program for one process would not have.
#include <hasten/hasten.h>
#include <hasten/precision/amp.h>
#include <torch/torch.h>

#include "data/brain.h"
#include "models/unet3d.h"
#include "support.h"

using torch::data::samplers::RandomSampler;
using torch::data::samplers::SequentialSampler;
using torch::data::transforms::Stack;

struct Options {
  int epochs = 3;
  int64_t size = 16, channels = 8, batch = 4;
  size_t train = 48, test = 9;
  uint64_t seed = 42;
  int threads = 0;
  double lr = 1e-2, weight_decay = 0;
  std::string opt_level, data = "balls", runs, save;
  example::BrainOptions brain = {};
};

Options parse(int argc, char** argv) {
  Options options;
  CLI::App app("Trains a 3D U-Net on volumes that it synthesises.");
  app.add_option("--epochs", options.epochs, "passes over the training volumes")->capture_default_str();
  app.add_option("--size", options.size, "edge of a volume in voxels; a multiple of 4")->capture_default_str();
  app.add_option("--channels", options.channels, "of the first level")->capture_default_str();
  app.add_option("--batch", options.batch, "volumes a process and step")->capture_default_str();
  app.add_option("--train", options.train, "number of training volumes")->capture_default_str();
  app.add_option("--test", options.test, "number of test volumes")->capture_default_str();
  app.add_option("--seed", options.seed, "of the weights and the volumes")->capture_default_str();
  app.add_option("--opt_level", options.opt_level, "Apex's level of mixed precision (default: float32)")
      ->check(CLI::IsMember({"O0", "O1", "O2", "O3"}));
  app.add_option("--lr", options.lr, "first rate of Adam")->capture_default_str();
  app.add_option("--weight_decay", options.weight_decay)->capture_default_str();
  app.add_option("--data", options.data, "what volumes show")
      ->check(CLI::IsMember({"balls", "brain"}))
      ->capture_default_str();
  app.add_option("--image", options.brain.image, "NIfTI volume of --data brain")->capture_default_str();
  app.add_option("--mask", options.brain.mask, "its mask: above 0 is brain")->capture_default_str();
  app.add_option("--shrink", options.brain.shrink, "--data brain: voxels that become one along each edge")
      ->check(CLI::Range(1, 8))
      ->capture_default_str();
  app.add_option("--runs", options.runs,
                 "folder for TensorBoard's files: scalars, and slices of image, target and prediction");
  app.add_option("--save", options.save, "folder for the network of each epoch");
  app.add_option("--threads", options.threads, "of each process (default: libtorch's choice)");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error) == 0 ? 0 : 2);
  }
  return options;
}

// Two balls, brighter than the noise by about its deviation, in a volume [1, size, size, size]; the target is
// 1 in a ball. A sample depends on seed and index alone.
class Balls : public torch::data::datasets::Dataset<Balls> {
 public:
  static constexpr bool kThreadSafe = true;
  Balls(size_t count, int64_t size, uint64_t seed) : count_(count), size_(size), seed_(seed) {}

  torch::data::Example<> get(size_t index) override {
    auto generator = at::detail::createCPUGenerator(seed_ * 1'000'003 + index);
    const auto axis = torch::arange(size_, torch::kFloat);
    auto inside = torch::zeros({size_, size_, size_}, torch::kBool);
    for (int ball = 0; ball < 2; ++ball) {
      const auto random = torch::rand({4}, generator);
      const auto centre = random * static_cast<double>(size_);
      const double radius = (0.15 + 0.15 * random[3].item<double>()) * static_cast<double>(size_);
      const auto distance = (axis - centre[0]).square().view({-1, 1, 1}) + (axis - centre[1]).square().view({-1, 1}) +
                            (axis - centre[2]).square();
      inside.logical_or_(distance < radius * radius);
    }
    const auto noise = torch::randn({1, size_, size_, size_}, generator);
    return {noise + inside.to(torch::kFloat), inside.to(torch::kFloat).unsqueeze(0)};
  }
  std::optional<size_t> size() const override { return count_; }

 private:
  size_t count_;
  int64_t size_;
  uint64_t seed_;
};

// Voxels of each volume in [batch, 1, …] that both have, and that either has, counted twice where both do.
struct Overlap {
  torch::Tensor both, sum;
};

Overlap overlap(const torch::Tensor& a, const torch::Tensor& b) {
  return {(a * b).flatten(1).sum(1), (a + b).flatten(1).sum(1)};
}

// Cross-entropy and one minus the soft dice, of each volume; so the mean over volumes is the same however
// they are spread over processes.
torch::Tensor loss_of(const torch::Tensor& logits, const torch::Tensor& target) {
  const auto [both, sum] = overlap(torch::sigmoid(logits), target);
  const auto dice = (2 * both + 1) / (sum + 1);
  return torch::binary_cross_entropy_with_logits(logits, target) + (1 - dice).mean();
}

// Dice and IoU over all test volumes together, each volume once.
struct Found {
  double dice = 0, iou = 0;
  int64_t volumes = 0;
  // The middle slices of image, target and prediction of this rank's last volume.
  torch::Tensor slices = {};
  std::string text() const {
    return hasten::text("dice ", example::rounded(dice, 4), ", IoU ", example::rounded(iou, 4), " of ", volumes,
                        " volumes");
  }
};
Found evaluate(hasten::Accelerator& accelerator, auto& model, auto& test) {
  const torch::NoGradGuard no_grad;
  model->eval();
  double both = 0, sum = 0;
  int64_t volumes = 0;
  torch::Tensor slices;
  for (auto& batch : test) {
    const auto found = model(batch.data).gt(0).to(torch::kFloat);
    const auto mine = overlap(found, batch.target);
    const auto all = accelerator.gather_for_metrics(std::make_pair(mine.both, mine.sum));  // +
    both += all.first.sum().template item<double>();
    sum += all.second.sum().template item<double>();
    volumes += all.first.size(0);
    const auto middle = [](const torch::Tensor& volume) { return volume[0][0][volume.size(2) / 2]; };
    const auto image = middle(batch.data);
    slices = torch::cat(
        {(image - image.min()) / (image.max() - image.min() + 1e-6), middle(batch.target), middle(found)}, 1);
  }
  return {2 * both / sum, both / (sum - both), volumes, slices};
}

template <class Train, class Test>
void train_unet(const Options& options, Train train_set, Test test_set) {
  hasten::AcceleratorOptions settings{.seed = options.seed};  // +
  if (!options.runs.empty()) {
    settings.log_with = {"tensorboard"};
    settings.project.project_dir = options.runs;
  }
  hasten::Accelerator accelerator(settings);  // +
  if (!options.runs.empty())
    accelerator.init_trackers("unet3d", {{"lr", options.lr}, {"epochs", options.epochs}, {"data", options.data}});
  models::UNet net(options.channels);
  hasten::parallel::convert_sync_batchnorm(net, accelerator.process().group());  // +
  torch::optim::Adam adam(net->parameters(), torch::optim::AdamOptions(options.lr).weight_decay(options.weight_decay));
  hasten::optim::MultiStepLR falling(adam, {.milestones = {25, 50, 75}, .gamma = 0.2});
  const auto batch = static_cast<size_t>(options.batch);
  auto [model, optimizer, train, test] = accelerator.prepare(  // +
      net, adam, hasten::data::loader<RandomSampler>(std::move(train_set).map(Stack<>()), batch),
      hasten::data::loader<SequentialSampler>(std::move(test_set).map(Stack<>()), batch));

  const bool with_amp = !options.opt_level.empty();
  hasten::precision::Amp amp(
      {.enabled = with_amp, .opt_level = hasten::precision::parse_amp_level(with_amp ? options.opt_level : "O0")});
  const auto [amp_model, amp_optimizer] = amp.initialize(net, adam);
  for (int epoch = 0; epoch < options.epochs; ++epoch) {
    model->train();
    hasten::tracking::Progress bar(
        train.size(), {.description = hasten::text("epoch ", epoch), .enabled = accelerator.is_main_process()});
    torch::Tensor loss;
    for (auto& batch_of_volumes : train) {
      optimizer.zero_grad();
      loss =
          loss_of(with_amp ? amp_model(batch_of_volumes.data) : model(batch_of_volumes.data), batch_of_volumes.target);
      if (with_amp) {
        amp.scale_loss(loss, amp_optimizer, [&](const torch::Tensor& scaled) { accelerator.backward(scaled); });
        amp_optimizer.step();
      } else {
        accelerator.backward(loss);  // + was loss.backward()
        optimizer.step();
      }
      bar.advance(1, "loss " + example::rounded(loss.item<double>(), 2));
    }
    bar.finish();
    falling.step();
    const Found found = with_amp ? evaluate(accelerator, amp_model, test) : evaluate(accelerator, model, test);
    accelerator.print("epoch ", epoch, ": ", found.text());
    if (!options.runs.empty()) {
      accelerator.log({{"train/loss", loss}, {"test/dice", found.dice}, {"test/iou", found.iou}}, epoch);
      accelerator.log_images({{"image, target, prediction", found.slices}}, epoch);
    }
    if (!options.save.empty() && accelerator.is_main_process()) {
      std::filesystem::create_directories(options.save);
      torch::save(net, hasten::text(options.save, "/epoch_", epoch, ".pt"));
    }
  }
  accelerator.end_training();  // +
}

void run(const Options& options) {
  if (options.threads > 0) torch::set_num_threads(options.threads);
  if (options.data == "brain") {
    const auto head = std::make_shared<const example::Head>(options.brain);
    train_unet(options, example::HeadCubes(head, true, options.train, options.size, options.seed),
               example::HeadCubes(head, false, options.test, options.size, options.seed));
  } else {
    train_unet(options, Balls(options.train, options.size, options.seed),
               Balls(options.test, options.size, options.seed + 1));
  }
}

int main(int argc, char** argv) {
  try {
    run(parse(argc, argv));
  } catch (const hasten::DataError& error) {  // missing or damaged volumes: its words say what to do
    std::cerr << error.what() << '\n';
    return 2;
  }
}
