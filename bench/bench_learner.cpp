// What a Learner costs beside a plain libtorch loop: a tiny MLP, with metrics and one-cycle, and without.
//
// The plain loop sets lr and momentum by the same schedule, smooths its loss and counts its accuracy; the bare one does
// none of it. All run in one process, an epoch each in turn, and who goes first changes each time. With --memory a
// single side runs, whose peak of memory is given.
#include <ATen/record_function.h>
#include <hasten/hasten.h>
#include <hasten/learner/callbacks.h>
#include <hasten/learner/learner.h>
#include <hasten/learner/metrics.h>
#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <numbers>
#include <optional>

#include "options.h"
#include "support.h"

namespace learner = hasten::learner;

namespace {

constexpr int64_t kFeatures = 32, kClasses = 5;

torch::nn::Sequential make_net(int64_t width) {
  torch::manual_seed(0);
  return torch::nn::Sequential(torch::nn::Linear(kFeatures, width), torch::nn::ReLU(),
                               torch::nn::Linear(width, kClasses));
}

double cosine(double from, double to, double part) {
  return from + (1 + std::cos(std::numbers::pi * (1 - part))) * (to - from) / 2;
}

struct Plain {
  Plain(const torch::Tensor& x, const torch::Tensor& y, int64_t width, size_t batch_size)
      : net(make_net(width)),
        adam(net->parameters(), torch::optim::AdamWOptions(1e-3).betas({0.9, 0.99}).eps(1e-5)),
        optimizer(accelerator.prepare(adam)),
        model(accelerator.prepare(net)),
        train(accelerator.prepare(
            hasten::data::loader(hasten::data::TensorDataset(x, y),
                                 hasten::data::SeedableRandomSampler(static_cast<size_t>(x.size(0))), batch_size))),
        valid(accelerator.prepare(hasten::data::loader(
            hasten::data::TensorDataset(x, y), hasten::data::SeedableSequentialSampler(static_cast<size_t>(x.size(0))),
            batch_size))) {}

  void epoch(bool with_all) {
    net->train();
    const auto steps = static_cast<double>(train.size());
    double at = 0;
    float smooth = 0;
    for (auto& batch : train) {
      if (with_all) {
        const double part = at++ / steps;
        auto& options = static_cast<torch::optim::AdamWOptions&>(adam.param_groups()[0].options());
        options.lr(part < 0.25 ? cosine(4e-5, 1e-3, part * 4) : cosine(1e-3, 1e-8, (part - 0.25) / 0.75));
        std::get<0>(options.betas()) =
            part < 0.25 ? cosine(0.95, 0.85, part * 4) : cosine(0.85, 0.95, (part - 0.25) / 0.75);
      }
      auto loss = torch::nn::functional::cross_entropy(model(batch.data), batch.target);
      accelerator.backward(loss);
      optimizer.step();
      optimizer.zero_grad();
      if (with_all) {
        smooth += 0.02F * (loss.item<float>() - smooth);
        history.push_back(smooth);
      }
    }
    const torch::NoGradGuard no_grad;
    net->eval();
    hasten::data::Mean mean;
    int64_t correct = 0;
    for (auto& batch : valid) {
      const auto output = model(batch.data);
      const auto loss = torch::nn::functional::cross_entropy(output, batch.target);
      if (!with_all) continue;
      mean.update(loss, static_cast<double>(batch.target.size(0)));
      correct += output.argmax(1).eq(batch.target).sum().item<int64_t>();
    }
    counted += correct;
  }

  hasten::Accelerator accelerator{hasten::process::Process(hasten::process::RankInfo{}, hasten::comm::Group())};
  torch::nn::Sequential net;
  torch::optim::AdamW adam;
  decltype(accelerator.prepare(adam)) optimizer;
  decltype(accelerator.prepare(net)) model;
  hasten::data::Loader<hasten::data::TensorDataset<2>, hasten::data::SeedableRandomSampler> train;
  hasten::data::Loader<hasten::data::TensorDataset<2>, hasten::data::SeedableSequentialSampler> valid;
  std::vector<float> history;
  int64_t counted = 0;
};

int64_t& num_operators() {
  static int64_t count = 0;
  return count;
}

/// Operators of libtorch that `side` calls: a count that does not depend on the machine's load.
int64_t count_operators(const std::function<void()>& side) {
  num_operators() = 0;
  const auto handle = at::addGlobalCallback(
      at::RecordFunctionCallback([](const at::RecordFunction&) -> std::unique_ptr<at::ObserverContext> {
        ++num_operators();
        return nullptr;
      }).scopes({at::RecordScope::FUNCTION}));
  side();
  at::removeCallback(handle);
  return num_operators();
}

}  // namespace

int main(int argc, char** argv) {
  const std::map<std::string, size_t> names{{"plain", 0}, {"learner", 1}, {"bare", 2}, {"empty", 3}};
  int64_t steps = 200, width = 64, batch_size = 64;
  int rounds = 15;
  std::optional<size_t> only;
  CLI::App app("Times a Learner beside a plain loop.");
  app.add_option("--steps", steps, "of an epoch")->check(CLI::PositiveNumber);
  app.add_option("--rounds", rounds, "epochs of each side")->check(CLI::PositiveNumber);
  app.add_option("--width", width, "of the hidden layer")->check(CLI::PositiveNumber);
  app.add_option("--batch-size", batch_size, "rows of a batch")->check(CLI::PositiveNumber);
  app.add_option("--memory", only, "runs this side only, and gives MB above the start")
      ->transform(CLI::CheckedTransformer(names));
  bench::parse(app, argc, argv);
  torch::set_num_threads(1);
  const auto x = torch::randn({steps * batch_size, kFeatures}),
             y = torch::randint(kClasses, {steps * batch_size}, torch::kLong);
  const auto rows = static_cast<size_t>(batch_size);
  Plain plain(x, y, width, rows), bare(x, y, width, rows);
  const auto loaders = learner::tensor_loaders({x, y}, {x, y}, {.batch_size = batch_size});
  const learner::Learner full(loaders, make_net(width),
                              {.loss = learner::cross_entropy(), .metrics = {learner::accuracy()}, .wd_bn_bias = true});
  const learner::Learner empty(loaders, make_net(width),
                               {.loss = learner::cross_entropy(),
                                .cbs = learner::callbacks(learner::TrainEval()),
                                .default_cbs = false,
                                .wd_bn_bias = true});
  const std::vector<std::function<void()>> sides = {[&] { plain.epoch(true); },
                                                    [&] { full.no_logging([&] { full.fit_one_cycle(1, 1e-3); }); },
                                                    [&] { bare.epoch(false); }, [&] { empty.fit(1, 1e-3); }};
  if (only) {
    const double start_mb = bench::memory_mb("VmRSS");
    for (int round = 0; round < rounds; ++round) sides[*only]();
    std::cout << nlohmann::json{{"over_start_mb", bench::memory_mb("VmHWM") - start_mb}} << std::endl;
    return 0;
  }
  std::vector<std::vector<double>> ms(sides.size());
  for (int round = -1; round < rounds; ++round) {
    for (size_t i = 0; i < sides.size(); ++i) {
      const size_t side = round % 2 == 0 ? i : sides.size() - 1 - i;
      const double took = bench::time_ms(sides[side]) / static_cast<double>(steps);
      if (round >= 0) ms[side].push_back(took);
    }
  }
  std::vector<double> costs_us;  // of the Learner itself, round by round
  for (size_t round = 0; round < ms[3].size(); ++round) costs_us.push_back(1000 * (ms[3][round] - ms[2][round]));
  std::vector<double> operators;
  for (const auto& side : sides)
    operators.push_back(static_cast<double>(count_operators(side)) / static_cast<double>(steps));
  std::cout << nlohmann::json{{"plain_operators", operators[0]},        {"learner_operators", operators[1]},
                              {"bare_operators", operators[2]},         {"empty_operators", operators[3]},
                              {"plain_ms", bench::median(ms[0])},       {"learner_ms", bench::median(ms[1])},
                              {"bare_ms", bench::median(ms[2])},        {"empty_ms", bench::median(ms[3])},
                              {"bare_cost_us", bench::median(costs_us)}}
            << std::endl;
}
