// Gradient accumulation as Accelerate does it: which batches sync (alone, and with loaders inside loaders),
// and real training on one and two ranks, through the front door.
#include <gtest/gtest.h>

#include <map>
#include <mutex>
#include <set>

#include "hasten/accelerator.h"
#include "hasten/data/dataset/tensor_dataset.h"
#include "hasten/optim/schedulers/lambda.h"
#include "support/golden.h"
#include "support/ranks.h"
#include "support/recipes.h"
#include "support/samples.h"

namespace hasten {
namespace {

using nlohmann::json;
using testing::GoldenCase;
using testing::GoldenTopic;
using testing::Range;
using torch::data::DataLoaderOptions;
using torch::data::samplers::SequentialSampler;

auto counting(const Accelerator& accelerator, const json& size, const json& batch_size) {
  return accelerator.data_loader<SequentialSampler>(Range(size.get<size_t>()),
                                                    DataLoaderOptions(batch_size.get<size_t>()));
}

/// Batches since the last end of a loader: what the peer shows as its step. Accelerator keeps it to itself.
class StepCount {
 public:
  explicit StepCount(bool with_dataloader) : with_dataloader_(with_dataloader) {}
  int64_t next(bool end) { return count_ = end && with_dataloader_ ? 0 : count_ + 1; }

 private:
  bool with_dataloader_;
  int64_t count_ = 0;
};

json run_flags(const process::Process& process, const json& input) {
  AcceleratorOptions options;
  options.gradient_accumulation_steps = input.at("num_steps");
  options.accumulation.sync_with_dataloader = input.at("sync_with_dataloader");
  const Accelerator accelerator(process, options);
  const auto loader = counting(accelerator, input.at("batches"), 1);
  StepCount count(input.at("sync_with_dataloader"));
  json given{{"sync", json::array()}, {"step", json::array()}};
  for (int64_t epoch = 0; epoch < input.at("epochs").get<int64_t>(); ++epoch) {
    for ([[maybe_unused]] const auto& batch : loader) {
      const auto scope = accelerator.accumulate();
      given["sync"].push_back(accelerator.sync_gradients());
      given["step"].push_back(count.next(accelerator.gradient_state().end_of_dataloader()));
    }
  }
  return given;
}

class Pattern {
 public:
  Pattern(const Accelerator& accelerator, const json& input)
      : accelerator_(accelerator),
        input_(input),
        a_(counting(accelerator, input.at("n_a"), input.at("batch_size"))),
        b_(counting(accelerator, input.at("n_b"), input.at("batch_size"))) {}

  json run() {
    for (int64_t epoch = 0; epoch < input_.at("epochs").get<int64_t>(); ++epoch) run_epoch(input_.at("pattern"));
    return std::move(rows_);
  }

 private:
  void run_epoch(const std::string& name) {
    if (name == "sequential") {
      all("a", a_);
      all("b", b_);
    } else if (name == "zip") {
      // As Python's zip: a first, and b only where a had one more.
      size_t batch = 0;
      auto a = a_.begin();
      for (auto b = b_.begin(); a != a_.end() && b != b_.end(); ++b) {
        step("ab", batch++);
        if (++a == a_.end()) break;
      }
    } else if (name == "manual_next") {
      size_t batch = 0;
      auto a = a_.begin();
      for (const size_t size = a_.size(); batch < size; ++batch) {
        step("a", batch);
        if (batch + 1 < size) ++a;
      }
    } else if (name == "break_outer") {
      size_t batch = 0;
      for ([[maybe_unused]] const auto& samples : a_) {
        step("a", batch++);
        if (batch == 2) break;
      }
      all("b", b_);
    } else {
      size_t batch = 0;
      for ([[maybe_unused]] const auto& samples : a_) {
        step("a", batch++);
        if (batch == 2) inner(name);
      }
    }
  }

  void inner(const std::string& name) {
    size_t batch = 0;
    if (name == "unprepared_inner") {
      const auto plain = torch::data::make_data_loader<SequentialSampler>(Range(input_.at("n_b").get<size_t>()),
                                                                          input_.at("batch_size").get<size_t>());
      for ([[maybe_unused]] const auto& samples : *plain) look("b", batch++);
      return;
    }
    for ([[maybe_unused]] const auto& samples : b_) {
      if (name == "nested_step") {
        step("b", batch++);
      } else {
        look("b", batch++);
      }
      if (name == "break_inner") return;
    }
  }

  template <class Loader>
  void all(const char* name, const Loader& loader) {
    size_t batch = 0;
    for ([[maybe_unused]] const auto& samples : loader) step(name, batch++);
  }

  void step(const char* loader, size_t batch) {
    const auto scope = accelerator_.accumulate();
    const int64_t count = count_.next(accelerator_.gradient_state().end_of_dataloader());
    row(loader, batch, accelerator_.sync_gradients(), count);
  }
  void look(const char* loader, size_t batch) { row(loader, batch, json(), json()); }
  void row(const char* loader, size_t batch, const json& sync, const json& count) {
    rows_["loader"].push_back(loader);
    rows_["batch"].push_back(batch);
    rows_["sync"].push_back(sync);
    rows_["step"].push_back(count);
    rows_["end"].push_back(accelerator_.gradient_state().end_of_dataloader());
    rows_["remainder"].push_back(accelerator_.gradient_state().remainder());
  }

  using Loader = decltype(counting(std::declval<const Accelerator&>(), json(), json()));
  const Accelerator& accelerator_;
  const json& input_;
  Loader a_, b_;
  StepCount count_{true};
  json rows_;
};

/// docs/differences.md, break-leaves-loader-active: a loop that was left holds no loader, so what is seen is
/// always of the loader that the batch is from, and each loader's last batch ends a window.
json by_last_batches(const GoldenCase& golden) {
  const int64_t batch_size = testing::positive(golden.input.at("batch_size"));
  const auto size = [&](const std::string& loader) -> int64_t {
    return golden.input.at(loader == "a" ? "n_a" : "n_b");
  };
  const json& expected = golden.expected;
  json rows;
  int64_t count = 0;
  for (size_t i = 0; i < expected.at("loader").size(); ++i) {
    const int64_t samples = size(expected.at("loader").at(i));
    const bool end = expected.at("batch").at(i) == (samples + batch_size - 1) / batch_size - 1;
    rows["end"].push_back(end);
    rows["remainder"].push_back(samples % batch_size);
    if (expected.at("sync").at(i).is_null()) {
      rows["sync"].push_back(json());
      rows["step"].push_back(json());
      continue;
    }
    count = end ? 0 : count + 1;
    rows["sync"].push_back(end || count % testing::positive(golden.input.at("num_steps")) == 0);
    rows["step"].push_back(count);
  }
  return rows;
}

json run_training(const process::Process& process, const json& input) {
  // Member by member: where an initializer of an aggregate throws, g++ 12 destroys what it has made twice.
  AcceleratorOptions options{.scheduler = {.step_per_process = true}};
  options.loader.split_batches = input.at("split_batches");
  options.gradient_accumulation_steps = input.at("num_steps");
  options.accumulation.sync_with_dataloader = input.at("sync_with_dataloader");
  options.accumulation.sync_each_batch = input.at("sync_each_batch");
  const Accelerator accelerator(process, options);
  const auto net = testing::sequential_of(input.at("model"));
  const auto made = testing::optimizer_for(input.at("optimizer"), net->parameters());
  optim::LambdaLR schedule(*made, {.lr_lambda = {[](int64_t s) { return 1.0 / (1.0 + static_cast<double>(s)); }}});
  const data::TensorDataset samples(testing::tensor_of(input.at("x"), testing::dtype_of(input.at("model"))),
                                    testing::targets_of(input));
  auto [model, optimizer, loader] = accelerator.prepare(
      net, *made,
      data::loader<SequentialSampler>(
          samples, DataLoaderOptions(input.at("batch_size").get<size_t>()).drop_last(input.at("drop_last"))));
  const auto scheduler = accelerator.prepare(schedule);

  json given{{"losses", json::array()}, {"sync", json::array()}, {"norms", json::array()}, {"lrs", json::array()}};
  for (int64_t epoch = 0; epoch < input.at("epochs").get<int64_t>(); ++epoch) {
    for (auto& batch : loader) {
      const auto scope = accelerator.accumulate(model);
      const at::Tensor loss = testing::loss_of(input.at("loss"), model(batch.data), batch.target);
      accelerator.backward(loss);
      given["losses"].push_back(loss.item<double>());
      given["sync"].push_back(accelerator.sync_gradients());
      if (accelerator.sync_gradients() && !input.at("clip_norm").is_null()) {
        const double norm_type = input.at("norm_type") == "inf" ? INFINITY : input.at("norm_type").get<double>();
        given["norms"].push_back(accelerator.clip_grad_norm_(net->parameters(), input.at("clip_norm"), norm_type));
      }
      if (accelerator.sync_gradients() && !input.at("clip_value").is_null()) {
        accelerator.clip_grad_value_(net->parameters(), input.at("clip_value"));
      }
      optimizer.step();
      if (input.at("scheduler").get<bool>()) {
        scheduler.step();
        if (accelerator.sync_gradients()) given["lrs"].push_back(scheduler.rates()[0]);
      }
      optimizer.zero_grad();
    }
  }
  for (const auto& parameter : net->named_parameters()) {
    given["params"][parameter.key()] = testing::lists_of(parameter.value().detach());
  }
  return given;
}

json run_case(const process::Process& process, const GoldenCase& golden) {
  if (golden.family == "flags") return run_flags(process, golden.input);
  if (golden.family == "train") return run_training(process, golden.input);
  AcceleratorOptions options;
  options.gradient_accumulation_steps = golden.input.at("num_steps");
  const Accelerator accelerator(process, options);
  return Pattern(accelerator, golden.input).run();
}

/// What the ranks of one case gave: the losses by rank, all else must be the same on every rank.
json joined(const GoldenCase& golden, std::map<int, json> ranks) {
  json all = ranks.at(0), losses = json::array();
  if (golden.family != "train") return all;
  for (auto& [rank, given] : ranks) {
    losses.push_back(given.at("losses"));
    given.erase("losses");
    EXPECT_EQ(given.dump(), ranks.at(0).dump()) << golden.name << ": rank " << rank << " differs";
  }
  all["losses"] = losses;
  return all;
}

TEST(AccumulationGolden, WindowsAndTrainingAreThePeers) {
  GoldenTopic topic("gradient_accumulation");
  topic.tolerate({.absolute = 1e-6});
  topic.on_quirk("break-leaves-loader-active", by_last_batches);

  std::map<std::string, std::map<int, json>> given;
  std::mutex mutex;
  std::set<int> worlds;
  for (const auto& golden : topic.cases()) worlds.insert(testing::num_ranks_of(golden));
  for (const int world_size : worlds) {
    testing::run_ranks(world_size, [&](process::Process& process) {
      for (const auto& golden : topic.cases()) {
        if (testing::num_ranks_of(golden) != world_size) continue;
        json result = testing::outcome_of([&] { return run_case(process, golden); });
        const std::lock_guard lock(mutex);
        given[golden.name][process.rank()] = std::move(result);
      }
    });
  }
  topic.for_each(
      [&](const GoldenCase& golden) { topic.judge(golden, [&] { return joined(golden, given.at(golden.name)); }); });

  topic.finish();
}

}  // namespace
}  // namespace hasten
