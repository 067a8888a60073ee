// What a data-parallel step costs beside a step of one rank alone, and of what: all ranks at once without a
// word, all in step (a barrier behind each backward), and data-parallel. In turns within one run, a few steps
// each, so that whatever else the machine does meets all of them alike; medians of the rounds: alone the mean
// of the ranks, otherwise the slowest rank's. Of the steps at once also the slowest rank's of each single
// one: those who end their steps together take that long, even if they tell each other nothing.
//
// Start this with `hasten launch -n 2`.
#include <hasten/hasten.h>
#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <functional>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>

#include "models.h"
#include "options.h"
#include "support.h"

namespace {

torch::nn::Sequential make_net(const std::string& model) {
  torch::manual_seed(0);
  auto net = bench::work(model).net;
  if (model == "cnn") hasten::parallel::channels_last(net);  // as the demo has it
  return net;
}

}  // namespace

int main(int argc, char** argv) {
  std::string model_name = "mlp";
  int rounds = 60, steps = 20;
  CLI::App app("Times a step of one rank alone, of all at once, in step, and data-parallel, in turns.");
  app.add_option("--model", model_name, "see models.h")->check(CLI::IsMember(bench::kModels));
  app.add_option("--rounds", rounds, "of one turn each")->check(CLI::PositiveNumber);
  app.add_option("--steps", steps, "of a turn")->check(CLI::PositiveNumber);
  bench::parse(app, argc, argv);

  torch::set_num_threads(1);
  hasten::Accelerator accelerator(hasten::AcceleratorOptions{.cpu = true});
  const auto group = accelerator.process().group().with_check(false);
  auto own_net = make_net(model_name), net = make_net(model_name);
  torch::optim::SGD own_sgd(own_net->parameters(), 0.01), sgd(net->parameters(), 0.01);
  auto own_optimizer = accelerator.prepare(own_sgd);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  const auto [unused, data, target] = bench::work(model_name);

  using torch::nn::functional::cross_entropy;
  const auto own_step = [&](bool in_step) {
    own_optimizer.zero_grad();
    cross_entropy(own_net->forward(data), target).backward();
    if (in_step) group.barrier();
    own_optimizer.step();
  };
  const auto shared_step = [&] {
    optimizer.zero_grad();
    accelerator.backward(cross_entropy(model(data), target));
    optimizer.step();
  };
  // Times of every single step, in the order of the turns.
  std::map<std::string, std::vector<double>> times;
  const auto turn = [&](const std::string& name, bool takes_part, const std::function<void()>& step) {
    if (takes_part) {
      step();  // what the last turn left in the caches is not this one's
      for (int i = 0; i < steps; ++i) times[name].push_back(bench::time_ms(step));
    }
    group.barrier();
  };
  for (int round = -1; round < rounds; ++round) {
    if (round == 0) times.clear();  // the first one warmed up
    for (int rank = 0; rank < group.world_size(); ++rank) {
      turn("alone", group.rank() == rank, [&] { own_step(false); });
    }
    turn("at_once", true, [&] { own_step(false); });
    turn("in_step", true, [&] { own_step(true); });
    turn("data_parallel", true, shared_step);
  }

  // Cores are not equally fast: what is done together takes as long as on the slowest.
  using hasten::comm::ReduceOp;
  const auto of_turns = [&](const torch::Tensor& all) { return all.view({-1, steps}).mean(1).median(); };
  nlohmann::json of_all;
  for (const auto& [name, all] : times) {
    torch::Tensor single = torch::tensor(all, torch::kDouble), typical = of_turns(single).view({1});
    group.all_reduce_(typical, name == "alone" ? ReduceOp::kMean : ReduceOp::kMax);
    of_all[name] = typical.item<double>();
    if (name != "at_once") continue;
    group.all_reduce_(single, ReduceOp::kMax);
    of_all["slower_of_each"] = of_turns(single).item<double>();
  }
  if (accelerator.is_main_process()) std::cout << of_all << std::endl;
}
