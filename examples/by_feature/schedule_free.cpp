// base.cpp with schedule-free AdamW (Defazio et al., 2024): no schedule, averaged weights to judge by, others to train
// with.
#include <hasten/hasten.h>
#include <torch/torch.h>

using torch::data::samplers::RandomSampler;
using torch::data::samplers::SequentialSampler;

// Points around four centres, [samples, 8], and the centre of each.
auto points(int64_t samples, uint64_t seed) {
  auto generator = at::detail::createCPUGenerator(seed);
  const auto centres = torch::randn({4, 8}, at::detail::createCPUGenerator(0));
  const auto targets = torch::randint(4, {samples}, generator, torch::kLong);
  return hasten::data::TensorDataset(2 * centres.index_select(0, targets) + torch::randn({samples, 8}, generator),
                                     targets);
}

torch::nn::Sequential make_net() {
  using namespace torch::nn;
  return Sequential(Linear(8, 32), ReLU(), Linear(32, 4));
}

// y, where gradients are taken, lies between the base iterates z and their mean x: y = (1 - beta) z + beta x. train()
// puts y into the parameters, eval() puts x there.
class ScheduleFreeAdamW : public torch::optim::Optimizer {
 public:
  ScheduleFreeAdamW(const std::vector<torch::Tensor>& parameters, double lr)
      : Optimizer({torch::optim::OptimizerParamGroup(parameters)}, std::make_unique<torch::optim::AdamWOptions>(lr)) {}
  torch::Tensor step(LossClosure = nullptr) override {
    const torch::NoGradGuard no_grad;
    ++steps_;
    for (auto& group : param_groups()) {
      const auto& options = static_cast<torch::optim::AdamWOptions&>(group.options());
      const auto [beta_1, beta_2] = options.betas();
      for (auto& y : group.params()) {
        if (!y.grad().defined()) continue;
        auto& slot = state()[y.unsafeGetTensorImpl()];
        if (!slot) {
          auto fresh = std::make_unique<torch::optim::AdamWParamState>();
          fresh->exp_avg(y.clone());  // z
          fresh->exp_avg_sq(torch::zeros_like(y));
          slot = std::move(fresh);
        }
        auto& own = static_cast<torch::optim::AdamWParamState&>(*slot);
        own.exp_avg_sq().mul_(beta_2).addcmul_(y.grad(), y.grad(), 1 - beta_2);
        const auto correction = std::sqrt(1 - std::pow(beta_2, static_cast<double>(steps_)));
        const auto move =
            y.grad() / (own.exp_avg_sq().sqrt() / correction + options.eps()) + options.weight_decay() * y;
        auto x = (y - (1 - beta_1) * own.exp_avg()) / beta_1;
        own.exp_avg().sub_(move, options.lr());
        x = torch::lerp(x, own.exp_avg(), 1.0 / static_cast<double>(steps_));
        y.copy_(torch::lerp(own.exp_avg(), x, beta_1));
      }
    }
    return {};
  }
  void eval() {
    shift([](double beta) { return 1 - 1 / beta; });
  }
  void train() {
    shift([](double beta) { return 1 - beta; });
  }

 private:
  void shift(const std::function<double(double)>& part) {
    const torch::NoGradGuard no_grad;
    for (auto& group : param_groups()) {
      const double beta = std::get<0>(static_cast<torch::optim::AdamWOptions&>(group.options()).betas());
      for (auto& weight : group.params()) {
        const auto found = state().find(weight.unsafeGetTensorImpl());
        if (found != state().end())
          weight.lerp_(static_cast<torch::optim::AdamWParamState&>(*found->second).exp_avg(), part(beta));
      }
    }
  }
  int64_t steps_ = 0;
};

void run(hasten::Accelerator& accelerator, int64_t batch_size) {
  auto net = make_net();
  ScheduleFreeAdamW adam(net->parameters(), 1e-2);
  auto [model, optimizer, train, test] =
      accelerator.prepare(net, adam, hasten::data::loader<RandomSampler>(points(1000, 1), batch_size),
                          hasten::data::loader<SequentialSampler>(points(250, 2), batch_size));

  for (int epoch = 0; epoch < 3; ++epoch) {
    if (epoch > 0) adam.train();
    for (auto& batch : train) {
      optimizer.zero_grad();
      auto loss = torch::nn::functional::cross_entropy(model(batch.data), batch.target);
      accelerator.backward(loss);
      optimizer.step();
    }

    adam.eval();
    const torch::NoGradGuard no_grad;
    int64_t correct = 0, total = 0;
    for (auto& batch : test) {
      const auto [found, wanted] = accelerator.gather_for_metrics(std::pair(model(batch.data).argmax(1), batch.target));
      correct += found.eq(wanted).sum().item<int64_t>();
      total += wanted.numel();
    }
    accelerator.print("epoch ", epoch, ": ", correct, " of ", total, " right");
  }
}

int main() {
  hasten::Accelerator accelerator({.loader = {.use_seedable_sampler = true}, .seed = 1});
  run(accelerator, 20);
  return 0;
}
