// Trains a 3D U-Net (Çiçek et al. 2016) to find the brain in a head, or balls in noisy volumes that it synthesises:
// segmentation with batch normalisation over all processes, since volumes are large and batches small.
//
//   ./unet3d --small                                  one process, balls of 16 x 16 x 16 in batches of 4, 3 epochs
//   hasten launch -n 4 ./unet3d --small --batch 1     four, the same batches of 4 together
//   hasten launch -n 2 ./unet3d --data brain --shrink 1 --runs runs --save nets
//
// brain: the T1 volume of Debian's mricron-data and its brain mask, or --image and --mask (NIfTI). Blocks from the
// front train, those from the back test. Binary cross-entropy plus soft dice, a rate that falls to a fifth at 25, 50
// and 75 epochs, dice and IoU. Volumes of 32 x 160 x 160, Apex's O1.
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
  int epochs = 100;
  std::vector<int64_t> size = {32, 160, 160};
  int64_t channels = 8, batch = 8;
  size_t train = 48, test = 9, workers = 4;
  uint64_t seed = 42;
  int threads = 0, local_rank = 0;
  bool small = false;
  double lr = 2e-4, weight_decay = 1e-4;
  std::string opt_level = "O1", data = "balls", runs, save;
  example::BrainOptions brain = {};

  std::array<int64_t, 3> shape() const { return {size[0], size[size.size() / 2], size.back()}; }
};

// The values for a quick look, where none was given.
void make_small(const CLI::App& app, Options& options) {
  const auto set = [&](const char* name, auto& value, const auto& small) {
    if (app.count(name) == 0) value = small;
  };
  set("--epochs", options.epochs, 3);
  set("--size", options.size, std::vector<int64_t>{16, 16, 16});
  set("--batch", options.batch, 4);
  set("--workers", options.workers, 0);
  set("--lr", options.lr, 1e-2);
  set("--weight_decay", options.weight_decay, 0.0);
  set("--opt_level", options.opt_level, "");
}

Options parse(int argc, char** argv) {
  Options options;
  CLI::App app("Trains a 3D U-Net on volumes that it synthesises.");
  app.add_option("--epochs", options.epochs, "passes over the training volumes")->capture_default_str();
  app.add_flag("--small", options.small, "few small volumes and epochs in float32, where no other number is given");
  app.add_option("--size", options.size, "depth, height, width of a volume in voxels, multiples of 4; or one edge")
      ->delimiter(',')
      ->expected(1, 3)
      ->capture_default_str();
  app.add_option("--workers", options.workers, "threads of each process that read ahead")->capture_default_str();
  app.add_option("--local_rank,--local-rank", options.local_rank, "accepted, not needed");
  app.add_option("--channels", options.channels, "of the first level")->capture_default_str();
  app.add_option("--batch", options.batch, "volumes a process and step")->capture_default_str();
  app.add_option("--train", options.train, "number of training volumes")->capture_default_str();
  app.add_option("--test", options.test, "number of test volumes")->capture_default_str();
  app.add_option("--seed", options.seed, "of the weights and the volumes")->capture_default_str();
  app.add_option("--opt_level", options.opt_level, "Apex's level of mixed precision; with --small float32")
      ->check(CLI::IsMember({"O0", "O1", "O2", "O3"}))
      ->capture_default_str();
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
    if (options.small) make_small(app, options);
    if (options.size.size() == 2) throw CLI::ValidationError("--size", "expected one number or three");
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error) == 0 ? 0 : 2);
  }
  return options;
}

// Two balls, brighter than the noise by about its deviation, in a volume [1, depth, height, width]; the target is
// 1 in a ball. A sample depends on seed and index alone.
class Balls : public torch::data::datasets::Dataset<Balls> {
 public:
  static constexpr bool kThreadSafe = true;
  Balls(size_t count, std::array<int64_t, 3> size, uint64_t seed) : count_(count), size_(size), seed_(seed) {}

  torch::data::Example<> get(size_t index) override {
    auto generator = at::detail::createCPUGenerator(seed_ * 1'000'003 + index);
    const auto axis = [&](size_t which) { return torch::arange(size_[which], torch::kFloat); };
    const auto edge = static_cast<double>(*std::min_element(size_.begin(), size_.end()));
    auto inside = torch::zeros(size_, torch::kBool);
    for (int ball = 0; ball < 2; ++ball) {
      const auto random = torch::rand({4}, generator);
      const auto from_centre = [&](size_t which) {
        const auto place = random[static_cast<int64_t>(which)] * static_cast<double>(size_[which]);
        return (axis(which) - place).square();
      };
      const double radius = (0.15 + 0.15 * random[3].item<double>()) * edge;
      const auto distance = from_centre(0).view({-1, 1, 1}) + from_centre(1).view({-1, 1}) + from_centre(2);
      inside.logical_or_(distance < radius * radius);
    }
    const auto noise = torch::randn({1, size_[0], size_[1], size_[2]}, generator);
    return {noise + inside.to(torch::kFloat), inside.to(torch::kFloat).unsqueeze(0)};
  }
  std::optional<size_t> size() const override { return count_; }

 private:
  size_t count_;
  std::array<int64_t, 3> size_;
  uint64_t seed_;
};

// Voxels of each volume in [batch, 1, …] that both have, and that either has, counted twice where both do.
struct Overlap {
  torch::Tensor both, sum;
};

Overlap overlap(const torch::Tensor& a, const torch::Tensor& b) {
  return {(a * b).flatten(1).sum(1), (a + b).flatten(1).sum(1)};
}

// Cross-entropy plus one minus the soft dice, of each volume: [batch]. The mean over volumes is the same however they
// are spread over processes.
torch::Tensor losses_of(const torch::Tensor& logits, const torch::Tensor& target) {
  const auto [both, sum] = overlap(torch::sigmoid(logits), target);
  const auto dice = (2 * both + 1) / (sum + 1);
  const auto entropy = torch::binary_cross_entropy_with_logits(logits, target, {}, {}, at::Reduction::None);
  return entropy.flatten(1).mean(1) + (1 - dice);
}

// Loss, dice and IoU over all test volumes together, each volume once.
struct Found {
  double loss = 0, dice = 0, iou = 0;
  int64_t volumes = 0;
  // The first slices of image, target and prediction of this rank's last batch.
  torch::Tensor image = {}, target = {}, predicted = {};
  std::string text() const {
    return hasten::text("validation loss ", example::rounded(loss, 4), ", dice ", example::rounded(dice, 4), ", IoU ",
                        example::rounded(iou, 4), " of ", volumes, " volumes");
  }
};
Found evaluate(hasten::Accelerator& accelerator, auto& model, auto& test) {
  const torch::NoGradGuard no_grad;
  model->eval();
  Found result;
  double both = 0, sum = 0;
  for (auto& batch : test) {
    const auto logits = model(batch.data);
    const auto found = torch::sigmoid(logits).gt(0.5).to(torch::kFloat);
    const auto mine = overlap(found, batch.target);
    // A row a volume, each once.
    const auto all = accelerator.gather_for_metrics(  // +
        torch::stack({mine.both, mine.sum, losses_of(logits.to(torch::kFloat), batch.target)}, 1));
    both += all.select(1, 0).sum().template item<double>();
    sum += all.select(1, 1).sum().template item<double>();
    result.loss += all.select(1, 2).sum().template item<double>();
    result.volumes += all.size(0);
    const auto first = [](const torch::Tensor& volume) { return volume[0][0][0]; };
    const auto image = first(batch.data);
    result.image = (image - image.min()) / (image.max() - image.min() + 1e-6);
    result.target = first(batch.target);
    result.predicted = first(found);
  }
  result.loss /= static_cast<double>(result.volumes);
  result.dice = 2 * both / sum;
  result.iou = both / (sum - both);
  return result;
}

template <class Train, class Test>
void train_unet(const Options& options, Train train_set, Test test_set) {
  hasten::AcceleratorOptions settings{.seed = options.seed, .ddp = {.delay_allreduce = true}};  // +
  if (!options.runs.empty()) {
    settings.log_with = {"tensorboard"};
    settings.project.project_dir = options.runs;
  }
  hasten::Accelerator accelerator(settings);  // +
  if (!options.runs.empty())
    accelerator.init_trackers(hasten::text("unet3d_", hasten::join(options.shape(), "x"), "_batch", options.batch),
                              {{"lr", options.lr}, {"epochs", options.epochs}, {"data", options.data}});
  models::UNet net(options.channels);
  hasten::parallel::convert_sync_batchnorm(net, accelerator.process().group());  // +
  torch::optim::Adam adam(net->parameters(), torch::optim::AdamOptions(options.lr).weight_decay(options.weight_decay));
  hasten::optim::MultiStepLR falling(adam, {.milestones = {25, 50, 75}, .gamma = 0.2});
  const auto loading = torch::data::DataLoaderOptions(static_cast<size_t>(options.batch)).workers(options.workers);
  auto [model, optimizer, train, test] = accelerator.prepare(  // +
      net, adam, hasten::data::loader<RandomSampler>(std::move(train_set).map(Stack<>()), loading),
      hasten::data::loader<SequentialSampler>(std::move(test_set).map(Stack<>()), loading));

  const bool with_amp = !options.opt_level.empty();
  hasten::precision::Amp amp(
      {.enabled = with_amp, .opt_level = hasten::precision::parse_amp_level(with_amp ? options.opt_level : "O0")});
  const auto [amp_model, amp_optimizer] = amp.initialize(net, adam);
  accelerator.print("epochs ", options.epochs, ", batch size ", options.batch, ", learning rate ", options.lr,
                    ", training size ", options.train, ", validation size ", options.test, ", device ",
                    accelerator.device().str());
  const auto num_volumes = static_cast<int64_t>(options.train);
  for (int epoch = 0; epoch < options.epochs; ++epoch) {
    const std::string title = hasten::text("Epoch ", epoch + 1, "/", options.epochs);
    model->train();
    hasten::tracking::Progress bar(num_volumes,
                                   {.description = title, .unit = "img", .enabled = accelerator.is_main_process()});
    double sum = 0;
    int64_t seen = 0;
    for (auto& batch_of_volumes : train) {
      optimizer.zero_grad();
      const auto logits = with_amp ? amp_model(batch_of_volumes.data) : model(batch_of_volumes.data);
      const auto loss = losses_of(logits.to(torch::kFloat), batch_of_volumes.target).mean();
      if (with_amp) {
        amp.scale_loss(loss, amp_optimizer, [&](const torch::Tensor& scaled) { accelerator.backward(scaled); });
        amp_optimizer.step();
      } else {
        accelerator.backward(loss);  // + was loss.backward()
        optimizer.step();
      }
      // The mean over the processes.
      const double mean = accelerator.reduce(loss.detach(), {.op = hasten::comm::ReduceOp::kMean}).template item<double>();  // +
      sum += mean;
      const int64_t volumes = std::min(batch_of_volumes.data.size(0) * accelerator.world_size(), num_volumes - seen);
      seen += volumes;
      bar.advance(volumes, "loss (batch) " + example::rounded(mean, 2));
    }
    bar.finish();
    // Once an epoch: the milestones are epochs.
    falling.step();
    const double train_loss = sum / static_cast<double>(train.size());
    const Found found = with_amp ? evaluate(accelerator, amp_model, test) : evaluate(accelerator, model, test);
    accelerator.print(title, ": training loss ", example::rounded(train_loss, 4), ", ", found.text());
    if (!options.runs.empty()) {
      accelerator.log({{"Loss/training", {{"train_loss", train_loss}, {"val_loss", found.loss}}},
                       {"Metrics/validation", {{"dice", found.dice}, {"iou", found.iou}}}},
                      epoch + 1);
      accelerator.log_images(
          {{"images", found.image}, {"Label/ground_truth", found.target}, {"Label/predict", found.predicted}},
          epoch + 1);
    }
    if (!options.save.empty() && accelerator.is_main_process()) {
      std::filesystem::create_directories(options.save);
      torch::save(net, hasten::text(options.save, "/unet3d-epoch", epoch + 1, ".pth"));
    }
  }
  accelerator.end_training();  // +
}

void run(const Options& options) {
  if (options.threads > 0) torch::set_num_threads(options.threads);
  if (options.data == "brain") {
    const auto head = std::make_shared<const example::Head>(options.brain);
    std::cerr << options.brain.image << ": " << example::describe_nifti(options.brain.image) << '\n';
    train_unet(options, example::HeadCubes(head, true, options.train, options.shape(), options.seed),
               example::HeadCubes(head, false, options.test, options.shape(), options.seed));
  } else {
    train_unet(options, Balls(options.train, options.shape(), options.seed),
               Balls(options.test, options.shape(), options.seed + 1));
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
