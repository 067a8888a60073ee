// Trains a small 3D U-Net (Çiçek et al. 2016) to find balls in noisy volumes that it synthesises:
// segmentation with batch normalisation over all processes, since volumes are large and batches small.
//
//   ./unet3d                          one process, batches of 4
//   hasten launch -n 4 ./unet3d --batch 1     four, the same batches of 4 together
//
// "// +" marks what a program for one process would not have.
#include <hasten/hasten.h>
#include <hasten/precision/amp.h>
#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <iomanip>

using torch::data::samplers::RandomSampler;
using torch::data::samplers::SequentialSampler;
using torch::data::transforms::Stack;

struct Options {
  int epochs = 3;
  int64_t size = 16, channels = 8, batch = 4;
  size_t train = 48, test = 9;
  uint64_t seed = 42;
  int threads = 0;
  std::string opt_level;
};

Options parse(int argc, char** argv) {
  Options options;
  CLI::App app("Trains a 3D U-Net on volumes that it synthesises.");
  app.add_option("--epochs", options.epochs, "passes over the training volumes")->capture_default_str();
  app.add_option("--size", options.size, "edge of a volume in voxels; a multiple of 4")
      ->capture_default_str();
  app.add_option("--channels", options.channels, "of the first level")->capture_default_str();
  app.add_option("--batch", options.batch, "volumes a process and step")->capture_default_str();
  app.add_option("--train", options.train, "number of training volumes")->capture_default_str();
  app.add_option("--test", options.test, "number of test volumes")->capture_default_str();
  app.add_option("--seed", options.seed, "of the weights and the volumes")->capture_default_str();
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
      const auto distance = (axis - centre[0]).square().view({-1, 1, 1}) +
                            (axis - centre[1]).square().view({-1, 1}) + (axis - centre[2]).square();
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

torch::nn::Sequential two_convolutions(int64_t from, int64_t to) {
  using namespace torch::nn;
  const auto convolution = [](int64_t in, int64_t out) {
    return Conv3d(Conv3dOptions(in, out, 3).padding(1).bias(false));
  };
  return Sequential(convolution(from, to), BatchNorm3d(to), ReLU(), convolution(to, to), BatchNorm3d(to),
                    ReLU());
}

// Two levels down, two up, with the features of each level handed across; logits [batch, 1, …].
struct UNetImpl : torch::nn::Module {
  explicit UNetImpl(int64_t c)
      : down1(register_module("down1", two_convolutions(1, c))),
        down2(register_module("down2", two_convolutions(c, 2 * c))),
        bottom(register_module("bottom", two_convolutions(2 * c, 4 * c))),
        widen2(register_module("widen2", upsampling(4 * c, 2 * c))),
        up2(register_module("up2", two_convolutions(4 * c, 2 * c))),
        widen1(register_module("widen1", upsampling(2 * c, c))),
        up1(register_module("up1", two_convolutions(2 * c, c))),
        head(register_module("head", torch::nn::Conv3d(torch::nn::Conv3dOptions(c, 1, 1)))) {}

  torch::Tensor forward(const torch::Tensor& x) {
    const auto level1 = down1->forward(x);
    const auto level2 = down2->forward(torch::max_pool3d(level1, 2));
    const auto lowest = bottom->forward(torch::max_pool3d(level2, 2));
    const auto back2 = up2->forward(torch::cat({widen2(lowest), level2}, 1));
    return head(up1->forward(torch::cat({widen1(back2), level1}, 1)));
  }

  static torch::nn::ConvTranspose3d upsampling(int64_t from, int64_t to) {
    return torch::nn::ConvTranspose3d(torch::nn::ConvTranspose3dOptions(from, to, 2).stride(2));
  }

  torch::nn::Sequential down1, down2, bottom;
  torch::nn::ConvTranspose3d widen2;
  torch::nn::Sequential up2;
  torch::nn::ConvTranspose3d widen1;
  torch::nn::Sequential up1;
  torch::nn::Conv3d head;
};
TORCH_MODULE(UNet);

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

std::string rounded(double value, int digits) {
  return hasten::text(std::fixed, std::setprecision(digits), value);
}

// Dice and IoU over all test volumes together, each volume once.
std::string evaluate(hasten::Accelerator& accelerator, auto& model, auto& test) {
  const torch::NoGradGuard no_grad;
  model->eval();
  double both = 0, sum = 0;
  int64_t volumes = 0;
  for (auto& batch : test) {
    const auto mine = overlap(model(batch.data).gt(0).to(torch::kFloat), batch.target);
    const auto all = accelerator.gather_for_metrics(std::make_pair(mine.both, mine.sum));  // +
    both += all.first.sum().template item<double>();
    sum += all.second.sum().template item<double>();
    volumes += all.first.size(0);
  }
  return hasten::text("dice ", rounded(2 * both / sum, 4), ", IoU ", rounded(both / (sum - both), 4), " of ",
                      volumes, " volumes");
}

void run(const Options& options) {
  if (options.threads > 0) torch::set_num_threads(options.threads);
  hasten::Accelerator accelerator({.seed = options.seed});  // +
  UNet net(options.channels);
  hasten::parallel::convert_sync_batchnorm(net, accelerator.process().group());  // +
  torch::optim::Adam adam(net->parameters(), 1e-2);
  const auto volumes = [&](size_t count, uint64_t seed) {
    return Balls(count, options.size, seed).map(Stack<>());
  };
  const auto batch = static_cast<size_t>(options.batch);
  auto [model, optimizer, train, test] = accelerator.prepare(  // +
      net, adam, hasten::data::loader<RandomSampler>(volumes(options.train, options.seed), batch),
      hasten::data::loader<SequentialSampler>(volumes(options.test, options.seed + 1), batch));

  const bool with_amp = !options.opt_level.empty();
  hasten::precision::Amp amp({.enabled = with_amp, .opt_level = hasten::precision::parse_amp_level(with_amp ? options.opt_level : "O0")});
  const auto [amp_model, amp_optimizer] = amp.initialize(net, adam);
  for (int epoch = 0; epoch < options.epochs; ++epoch) {
    model->train();
    hasten::tracking::Progress bar(train.size(), {.description = hasten::text("epoch ", epoch),
                                                  .enabled = accelerator.is_main_process()});
    torch::Tensor loss;
    for (auto& batch_of_volumes : train) {
      optimizer.zero_grad();
      loss = loss_of(with_amp ? amp_model(batch_of_volumes.data) : model(batch_of_volumes.data), batch_of_volumes.target);
      if (with_amp) {
        amp.scale_loss(loss, amp_optimizer, [&](const torch::Tensor& scaled) { accelerator.backward(scaled); });
        amp_optimizer.step();
      } else {
        accelerator.backward(loss);  // + was loss.backward()
        optimizer.step();
      }
      bar.advance(1, "loss " + rounded(loss.item<double>(), 2));
    }
    bar.finish();
    accelerator.print("epoch ", epoch, ": ", with_amp ? evaluate(accelerator, amp_model, test) : evaluate(accelerator, model, test));
  }
}

int main(int argc, char** argv) {
  run(parse(argc, argv));
}
