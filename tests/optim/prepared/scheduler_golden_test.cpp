// Prepared schedulers against Accelerate's: driven step by step, and in whole loops through the front door
// with real ranks. The golden cases are those of the peer's only pace, once per process; ours, which counts
// optimizer steps, is prepared_scheduler_test.cpp's.
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <map>
#include <mutex>
#include <set>

#include "hasten/accelerator.h"
#include "optim/scheduler_spec.h"
#include "support/golden.h"
#include "support/ranks.h"
#include "support/samples.h"

namespace hasten::optim {
namespace {

using hasten::testing::golden_error;
using hasten::testing::GoldenCase;
using hasten::testing::GoldenTopic;
using nlohmann::json;

// What our rules give, from the case alone: closed forms, and the number of steps.

double one_cycle_length(const json& spec) {
  if (spec.contains("total_steps")) return spec.at("total_steps");
  return spec.at("epochs").get<double>() * spec.at("steps_per_epoch").get<double>();
}

double between(const json& spec, double from, double to, double part) {
  if (spec.value("anneal_strategy", "cos") == "linear") return from + (to - from) * part;
  return to + (from - to) * (1.0 + std::cos(std::numbers::pi * part)) / 2.0;
}

/// Rate and momentum of OneCycleLR at step n; from its last step on they stay.
std::pair<double, double> one_cycle(const json& spec, double n) {
  const double total = one_cycle_length(spec), up = spec.value("pct_start", 0.3) * total - 1.0;
  const double max = spec.at("max_lr"), initial = max / spec.value("div_factor", 25.0);
  const double last = initial / spec.value("final_div_factor", 1e4);
  const double slow = spec.value("base_momentum", 0.85), fast = spec.value("max_momentum", 0.95);
  const double s = std::min(n, total - 1.0);
  if (s <= up) return {between(spec, initial, max, s / up), between(spec, fast, slow, s / up)};
  if (!spec.value("three_phase", false)) {
    const double part = (s - up) / (total - 1.0 - up);
    return {between(spec, max, last, part), between(spec, slow, fast, part)};
  }
  const double down = 2.0 * up;
  if (s <= down) {
    return {between(spec, max, initial, (s - up) / up), between(spec, slow, fast, (s - up) / up)};
  }
  return {between(spec, initial, last, (s - down) / (total - 1.0 - down)), fast};
}

/// How high a triangular2 cycle stands at step n, from 0 to 1.
double cyclic_height(const json& spec, double n) {
  const double up = spec.at("step_size_up");
  const double cycle = std::floor(n / (2.0 * up)), in_cycle = n - cycle * 2.0 * up;
  return (1.0 - std::abs(in_cycle / up - 1.0)) / std::pow(2.0, cycle);
}

double warm(const json& spec, double n) {
  const double warmup = spec.at("warmup"), rest = std::max(1.0, spec.at("total").get<double>() - warmup);
  if (n < warmup) return n / std::max(1.0, warmup);
  if (spec.at("type") == "LambdaLR_linear_warmup") {
    return std::max(0.0, (spec.at("total").get<double>() - n) / rest);
  }
  return std::max(0.0, 0.5 * (1.0 + std::cos(std::numbers::pi * (n - warmup) / rest)));
}

double cosine(double base, double low, double part) {
  return low + (base - low) * (1.0 + std::cos(std::numbers::pi * part)) / 2.0;
}

double rate_at(const json& spec, double base, double n) {
  const std::string type = spec.at("type");
  if (type.starts_with("LambdaLR")) return base * warm(spec, n);
  if (type == "OneCycleLR") return one_cycle(spec, n).first;
  if (type == "StepLR") {
    return base * std::pow(spec.at("gamma").get<double>(), std::floor(n / spec.at("step_size").get<double>()));
  }
  if (type == "ExponentialLR") return base * std::pow(spec.at("gamma").get<double>(), n);
  if (type == "MultiStepLR") {
    double rate = base;
    for (const double milestone : spec.at("milestones")) {
      if (milestone <= n) rate *= spec.at("gamma").get<double>();
    }
    return rate;
  }
  if (type == "ConstantLR") return n < spec.at("total_iters") ? base * spec.at("factor").get<double>() : base;
  if (type == "LinearLR") {
    const double from = spec.at("start_factor"), to = spec.at("end_factor"), total = spec.at("total_iters");
    return base * (from + (to - from) * std::min(1.0, n / total));
  }
  if (type == "PolynomialLR") {
    const double left = 1.0 - std::min(1.0, n / spec.at("total_iters").get<double>());
    return base * std::pow(left, spec.at("power").get<double>());
  }
  if (type == "CosineAnnealingLR") return cosine(base, spec.at("eta_min"), n / spec.at("T_max").get<double>());
  if (type == "CosineAnnealingWarmRestarts") {
    double length = spec.at("T_0");
    for (; n >= length; length *= spec.value("T_mult", 1.0)) n -= length;
    return cosine(base, spec.at("eta_min"), n / length);
  }
  if (type == "CyclicLR") {
    const double low = spec.at("base_lr"), high = spec.at("max_lr");
    return low + (high - low) * cyclic_height(spec, n);
  }
  if (type == "ChainedScheduler") {
    double rate = base;
    for (const json& part : spec.at("schedulers")) rate *= rate_at(part, base, n) / base;
    return rate;
  }
  if (type == "SequentialLR") {
    size_t now = 0;
    double since = 0.0;
    for (const double milestone : spec.at("milestones")) {
      if (milestone > n) break;
      since = milestone;
      ++now;
    }
    return rate_at(spec.at("schedulers").at(now), base, n - since);
  }
  throw std::runtime_error("no closed form of " + type);
}

double momentum_at(const json& spec, double n) {
  if (spec.at("type") == "CyclicLR") return 0.9 - (0.9 - 0.8) * cyclic_height(spec, n);
  if (spec.at("type") != "OneCycleLR" || !spec.value("cycle_momentum", true)) return 0.9;
  return one_cycle(spec, n).second;
}

/// Steps of the schedule after each batch: docs/differences.md, adjust-scheduler and one-cycle-past-the-end.
std::vector<int64_t> steps_taken(const GoldenCase& golden) {
  const json& input = golden.input;
  const json& sync = golden.family == "accelerator" ? golden.expected.at("sync") : input.at("sync_gradients");
  const bool adjust = input.at("adjust_scheduler");
  const int64_t each = input.at("split_batches").get<bool>() ? 1 : input.at("num_processes").get<int64_t>();
  const bool has_end = input.at("scheduler").at("type") == "OneCycleLR";
  std::vector<int64_t> taken;
  int64_t batches = 0, steps = 0;
  for (size_t i = 0; i < sync.size(); ++i) {
    ++batches;
    const bool steps_now = !input.at("step_with_optimizer").get<bool>() || sync.at(i).get<bool>();
    const bool skipped = input.contains("skipped") && input.at("skipped").at(i).get<bool>();
    if (!input.at("step_with_optimizer").get<bool>()) {
      ++steps;
    } else if (steps_now) {
      if (!skipped) steps += each * (adjust ? batches : 1);
      batches = 0;
    }
    if (has_end) {
      steps = std::min(steps, static_cast<int64_t>(one_cycle_length(input.at("scheduler"))));
    }
    taken.push_back(steps);
  }
  return taken;
}

json peers_attribute(const json& spec, const char* attribute, int64_t value) {
  // The peer's composed schedulers count no steps, and the chained one no epochs; its warm restarts have a
  // count that stays 0. Ours are those of every scheduler (scheduler_test.cpp).
  const std::string type = spec.at("type"), name = attribute;
  if (type == "CosineAnnealingWarmRestarts" && name == "step_count") return 0;
  const bool absent = type == "ChainedScheduler" || (type == "SequentialLR" && name == "step_count");
  return absent ? json() : json(value);
}

json rates_by_rule(const GoldenCase& golden) {
  const json& spec = golden.input.at("scheduler");
  json values;
  for (const int64_t steps : steps_taken(golden)) {
    json rates = json::array(), momenta = json::array();
    for (const double base : golden.input.at("lrs")) {
      rates.push_back(rate_at(spec, base, static_cast<double>(steps)));
      momenta.push_back(momentum_at(spec, static_cast<double>(steps)));
    }
    values["lr"].push_back(rates);
    if (golden.expected.contains("momentum")) values["momentum"].push_back(momenta);
  }
  return values;
}

json adjusted_by_rule(const GoldenCase& golden) {
  const json& spec = golden.input.at("scheduler");
  json values = rates_by_rule(golden);
  for (const int64_t steps : steps_taken(golden)) {
    values["step_count"].push_back(peers_attribute(spec, "step_count", steps + 1));
    values["last_epoch"].push_back(peers_attribute(spec, "last_epoch", steps));
  }
  if (golden.family == "accelerator") values["adjust_scheduler_in_state"] = true;
  return values;
}

/// A metric counts once, for any number of processes: PyTorch's rule with threshold 1e-4, relative, and min.
json patience_by_rule(const GoldenCase& golden) {
  const json& spec = golden.input.at("scheduler");
  json rates = json::array();
  double rate = golden.input.at("lrs").at(0), best = INFINITY;
  int64_t bad = 0;
  for (const double metric : golden.input.at("metrics")) {
    const bool better = metric < best * (1.0 - 1e-4);
    if (better) best = metric;
    bad = better ? 0 : bad + 1;
    if (bad > spec.at("patience")) {
      rate *= spec.at("factor").get<double>();
      bad = 0;
    }
    rates.push_back(rate);
  }
  return {{"lr", rates}};
}

// What the code gives.

json snapshot(const json& spec, const Scheduler& scheduler, bool with_momentum) {
  json now{{"lr", testing::rates_of(scheduler.optimizer())},
           {"step_count", peers_attribute(spec, "step_count", scheduler.step_count())},
           {"last_epoch", peers_attribute(spec, "last_epoch", scheduler.last_epoch())}};
  if (with_momentum) now["momentum"] = testing::momenta_of(scheduler.optimizer());
  return now;
}

void append(json& to, const json& now) {
  for (const auto& [key, value] : now.items()) to[key].push_back(value);
}

bool has_momentum(const json& spec) {
  return spec.at("type") == "OneCycleLR" || spec.at("type") == "CyclicLR";
}

json run_state(const GoldenCase& golden) {
  const json& input = golden.input;
  const json& spec = input.at("scheduler");
  const auto sgd = testing::optimizer_of("SGD", input.at("lrs"));
  const std::unique_ptr<Scheduler> scheduler = testing::recipe_of(spec)(*sgd);
  const auto gradients = std::make_shared<training::GradientState>();
  using Optimizer = torch::optim::Optimizer;
  const PreparedOptimizer<torch::optim::SGD> optimizer(
      std::shared_ptr<torch::optim::SGD>(std::shared_ptr<Optimizer>(), dynamic_cast<torch::optim::SGD*>(sgd.get())),
      gradients);
  const PreparedScheduler<Scheduler> prepared(std::shared_ptr<Scheduler>(std::shared_ptr<Scheduler>(), scheduler.get()),
                                              gradients,
                                              {.step_with_optimizer = input.at("step_with_optimizer"),
                                               .adjust_scheduler = input.at("adjust_scheduler"),
                                               .once_per_process = !input.at("split_batches").get<bool>(),
                                               .world_size = input.at("num_processes")});
  json given{{"initial", snapshot(spec, *scheduler, false)}};
  try {
    for (size_t i = 0; i < input.at("sync_gradients").size(); ++i) {
      gradients->set_sync_gradients(input.at("sync_gradients").at(i));
      if (input.at("skipped").at(i)) {
        optimizer.skip_step();
      } else {
        optimizer.step();
      }
      prepared.step();
      append(given, snapshot(spec, *scheduler, has_momentum(spec)));
    }
  } catch (const UsageError&) {
    return golden_error("ValueError");
  }
  return given;
}

json run_plateau(const GoldenCase& golden) {
  const auto sgd = testing::optimizer_of("SGD", golden.input.at("lrs"));
  const auto gradients = std::make_shared<training::GradientState>();
  const auto handle = gradients->set_prepared(*sgd);
  const PreparedScheduler<ReduceLROnPlateau> prepared(
      std::make_shared<ReduceLROnPlateau>(*sgd, testing::plateau_of(golden.input.at("scheduler"))), gradients,
      {.once_per_process = !golden.input.at("split_batches").get<bool>(),
       .world_size = golden.input.at("num_processes")});
  json given{{"lr", json::array()}};
  for (const double metric : golden.input.at("metrics")) {
    prepared.step(metric);
    given["lr"].push_back(testing::rates_of(*sgd)[0]);
  }
  return given;
}

AcceleratorOptions options_of(const json& input) {
  // Member by member: where an initializer of an aggregate throws, g++ 12 destroys what it has made twice.
  AcceleratorOptions options{.scheduler = {.step_per_process = true}};
  options.loader.split_batches = input.at("split_batches");
  options.gradient_accumulation_steps = input.value("num_steps", int64_t{1});
  options.accumulation.adjust_scheduler = input.at("adjust_scheduler");
  options.step_scheduler_with_optimizer = input.at("step_with_optimizer");
  return options;
}

json run_loop(const process::Process& process, const json& input) {
  const Accelerator accelerator(process, options_of(input));
  torch::nn::Linear net(1, 1);
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (size_t i = 0; i < 2; ++i) {
    groups.emplace_back(std::vector<at::Tensor>{net->parameters()[i]},
                        std::make_unique<torch::optim::SGDOptions>(
                            torch::optim::SGDOptions(input.at("lrs").at(i).get<double>()).momentum(0.9)));
  }
  torch::optim::SGD sgd(groups, torch::optim::SGDOptions(1.0).momentum(0.9));
  const json& spec = input.at("scheduler");
  const std::unique_ptr<Scheduler> made = testing::recipe_of(spec)(sgd);
  auto [model, optimizer, scheduler] = accelerator.prepare(net, sgd, *made);
  const auto loader = accelerator.data_loader<torch::data::samplers::SequentialSampler>(
      hasten::testing::Range(input.at("samples")),
      torch::data::DataLoaderOptions(input.at("batch_size").get<size_t>()));
  const bool adjusts = input.at("adjust_scheduler").get<bool>() && input.at("num_steps") > 1 &&
                       input.at("step_with_optimizer").get<bool>();
  json given{{"adjust_scheduler_in_state", adjusts}};
  try {
    for (int64_t epoch = 0; epoch < input.at("epochs").get<int64_t>(); ++epoch) {
      for (const auto& batch : loader) {
        const auto scope = accelerator.accumulate(model);
        const auto x = torch::tensor(std::vector<float>(batch.begin(), batch.end())).unsqueeze(1) / 26.0;
        accelerator.backward(model(x).mean());
        optimizer.step();
        scheduler.step();
        optimizer.zero_grad();
        append(given, snapshot(spec, *made, false));
        given["sync"].push_back(accelerator.sync_gradients());
      }
    }
  } catch (const UsageError&) {
    return golden_error("ValueError");
  }
  return given;
}

/// state_real: as state, but the number of processes is the real one.
json run_real(const process::Process& process, const json& input) {
  const Accelerator accelerator(process, options_of(input));
  const auto sgd = testing::optimizer_of("SGD", input.at("lrs"));
  const json& spec = input.at("scheduler");
  const std::unique_ptr<Scheduler> made = testing::recipe_of(spec)(*sgd);
  const auto [optimizer, scheduler] = accelerator.prepare(dynamic_cast<torch::optim::SGD&>(*sgd), *made);
  // The case says itself at which steps gradients are exchanged; for programs this state is read-only.
  auto& gradients = const_cast<training::GradientState&>(accelerator.gradient_state());
  json given{{"initial", snapshot(spec, *made, false)}};
  for (size_t i = 0; i < input.at("sync_gradients").size(); ++i) {
    gradients.set_sync_gradients(input.at("sync_gradients").at(i));
    if (input.at("skipped").at(i)) {
      optimizer.skip_step();
    } else {
      optimizer.step();
    }
    scheduler.step();
    append(given, snapshot(spec, *made, has_momentum(spec)));
  }
  return given;
}

/// The cases that need real ranks, on as many as each asks for; by case, what each rank gave.
std::map<std::string, std::vector<json>> on_ranks(const GoldenTopic& topic) {
  std::set<int> worlds;
  const auto is_real = [](const GoldenCase& one) { return one.family == "accelerator" || one.family == "state_real"; };
  for (const auto& golden : topic.cases()) {
    if (is_real(golden)) worlds.insert(hasten::testing::num_ranks_of(golden));
  }
  std::map<std::string, std::vector<json>> given;
  std::mutex mutex;
  for (const int world_size : worlds) {
    hasten::testing::run_ranks(world_size, [&](process::Process& process) {
      for (const auto& golden : topic.cases()) {
        if (!is_real(golden) || hasten::testing::num_ranks_of(golden) != world_size) continue;
        json result = hasten::testing::outcome_of([&] {
          return golden.family == "accelerator" ? run_loop(process, golden.input) : run_real(process, golden.input);
        });
        const std::lock_guard lock(mutex);
        given[golden.name].push_back(std::move(result));
      }
    });
  }
  return given;
}

TEST(SchedulerGolden, PreparedSchedulersMoveAsThePeersDoOrBetter) {
  GoldenTopic topic("scheduler");
  topic.tolerate({.relative = 1e-9, .absolute = 1e-18});
  topic.on_quirk("adjust-scheduler-never-on", adjusted_by_rule);
  topic.on_quirk("adjust-scheduler-unreachable", adjusted_by_rule);
  topic.on_quirk("no-step-count-crash", adjusted_by_rule);
  topic.on_quirk("one-cycle-step-count-inflated", adjusted_by_rule);
  topic.on_quirk("one-cycle-past-the-end", rates_by_rule);
  topic.on_quirk("patience-counts-processes", patience_by_rule);

  const auto given = on_ranks(topic);
  topic.for_each([&](const GoldenCase& golden) {
    if (golden.family == "state") {
      topic.judge(golden, [&] { return run_state(golden); });
    } else if (golden.family == "plateau") {
      topic.judge(golden, [&] { return run_plateau(golden); });
    } else {
      const auto& ranks = given.at(golden.name);
      for (const json& rank : ranks) EXPECT_EQ(rank, ranks[0]) << golden.name << ": the ranks differ";
      topic.judge(golden, [&] { return ranks.at(0); });
    }
  });

  topic.finish();
}

}  // namespace
}  // namespace hasten::optim
