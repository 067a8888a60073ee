// A training under `hasten launch --survive`, as a case of a test program (support/processes.h), and the run of it.
//
// SURVIVE_PROGRAM has words for what it does besides. SURVIVE_DIES has places at which a rank kills itself once:
// "1@forward:5" is rank 1, when its process comes there for the fifth time. With "!" behind it each process of the rank
// ends so, with exit code 1. SURVIVE_KILLS has the number of kills at
// random times, and a seed. Marks in the folder TMPDIR count both over all processes.
#pragma once

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "accelerator/survived_deaths.h"
#include "accelerator/survived_results.h"
#include "cli/command.h"
#include "hasten/accelerator.h"
#include "hasten/core/env.h"
#include "hasten/core/strings.h"
#include "hasten/data/dataset/map.h"
#include "hasten/files/disk/durable_folder.h"
#include "hasten/optim/schedulers/decay.h"
#include "support/processes.h"

namespace hasten::survived {

inline bool has_word(const std::string& word) {
  static const std::string words = Environment::current().text("SURVIVE_PROGRAM").value_or("");
  return (' ' + words + ' ').find(' ' + word + ' ') != std::string::npos;
}

struct NetImpl : torch::nn::Module {
  NetImpl() {
    register_module("in", in);
    register_module("norm", norm);
    register_module("out", out);
  }
  at::Tensor forward(const at::Tensor& x) {
    pass("forward");
    return out(torch::dropout(torch::relu(norm(in(x))), 0.2, is_training()));
  }
  torch::nn::Linear in{12, 16};
  torch::nn::BatchNorm1d norm{16};
  torch::nn::Linear out{16, 4};
};
TORCH_MODULE(Net);

struct Rows : torch::data::Dataset<Rows> {
  torch::data::Example<> get(size_t index) override {
    pass("data");
    const auto first = static_cast<double>(index);
    return {torch::sin(torch::arange(12, torch::kDouble) * (0.1 + 0.03 * first)),
            torch::tensor(static_cast<int64_t>(index % 4))};
  }
  torch::optional<size_t> size() const override { return 90; }
};

/// Something with a state of the program's own.
struct Mean {
  at::Tensor value = torch::zeros({1}, torch::kDouble);
  int64_t count = 0;
  void add(const at::Tensor& x) { value = value * 0.9 + x.detach().to(torch::kDouble) * 0.1, ++count; }
  training::State state() const { return training::State::of({{"value", value}, {"count", count}}); }
  void load_state(const training::State& state) {
    value = state.at("value").tensor().clone();
    count = state.at("count").value().as_int();
  }
};

inline std::string digits(const at::Tensor& tensor) {
  std::ostringstream out;
  out.precision(17);
  const at::Tensor x = tensor.detach().to(torch::kDouble);
  out << x.sum().item<double>() << ' ' << x.abs().sum().item<double>() << ' ' << (x * x).sum().item<double>();
  return out.str();
}

inline checkpoint::Layout layout_of(int64_t epoch) {
  return epoch % 2 == 0 ? checkpoint::Layout::kHasten : checkpoint::Layout::kAccelerate;
}

inline int run_program() {
  pass("main");
  const int64_t epochs = 6;
  start_random_death(epochs * 10 - 12);
  at::set_num_threads(1);
  torch::manual_seed(7 + own_rank());  // a newcomer is as good as any
  AcceleratorOptions options;
  options.gradient_accumulation_steps = has_word("accumulates") ? 2 : 1;
  options.backend = has_word("gloo") ? comm::BackendKind::kGloo : comm::BackendKind::kAuto;
  if (has_word("fp16")) options.mixed_precision = Precision::kFp16;
  if (has_word("shards")) options.shard = {.stage = parallel::ShardStage::kOptimizer};
  if (has_word("saves") || has_word("background") || has_word("beside")) {
    options.project.project_dir = project_folder();
    options.project.automatic_checkpoint_naming = true;
    options.project.iteration = 3;
  }
  if (has_word("tracks")) {
    options.log_with = {"journal", "tensorboard"};
    options.project.project_dir = project_folder();
  }
  if (has_word("leaves") && Environment::current().flag("HASTEN_REPLACES").value_or(false))
    std::filesystem::create_directories(project_folder() + "/checkpoints/.checkpoint_99.tmp-0123");
  const std::string of_another_run = project_folder() + "/checkpoints/.checkpoint_98.tmp-4567";
  std::optional<files::FolderLock> another_run;
  if (has_word("beside") && own_rank() == 1) {
    std::filesystem::create_directories(of_another_run);
    another_run.emplace(project_folder() + "/checkpoints");
  }
  Accelerator accelerator(options);
  pass("accelerator");
  Net net;
  if (!has_word("fp16")) net->to(torch::kDouble);
  const auto mapped = [] { return data::map(Rows(), torch::data::transforms::Stack<>()); };
  const torch::data::DataLoaderOptions reading = torch::data::DataLoaderOptions(3).workers(has_word("workers") ? 2 : 0);
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  optim::StepLR schedule(sgd, {.step_size = 7, .gamma = 0.9});
  auto [model, optimizer, scheduler, train, validation] =
      accelerator.prepare(net, sgd, schedule, data::loader(mapped(), reading),
                          data::loader<torch::data::samplers::SequentialSampler>(mapped(), reading));
  Net other;
  if (!has_word("fp16")) other->to(torch::kDouble);
  torch::optim::Adam adam(other->parameters(), torch::optim::AdamOptions(0.01));
  std::optional<std::tuple<Model<Net>, Optimizer>> second;
  if (has_word("gan")) {
    auto prepared = accelerator.prepare(other, adam);
    second.emplace(std::get<0>(prepared), std::get<1>(prepared));
  }
  Mean mean, accuracy;
  accelerator.checkpoints().register_object("mean", mean);
  accelerator.checkpoints().register_object("accuracy", accuracy);
  net->in->weight.register_hook([](const at::Tensor&) { pass("backward"); });
  const auto hook = accelerator.checkpoints().add_save_hook([](auto&, const std::string& folder) {
    pass("save");
    pass_save(folder);
  });
  if (has_word("tracks")) accelerator.init_trackers("tracked", {{"lr", 0.05}});
  pass("prepared");
  if (has_word("messages")) accelerator.process().group().send(torch::ones({1}), (own_rank() + 1) % 3);
  if (has_word("saves_before")) accelerator.checkpoints().save_state("early");
  if (has_word("local_sgd")) {
    const auto scope = accelerator.local_sgd(model);
  }
  if (has_word("plain")) {
    for (auto& batch : train) accelerator.backward(model(batch.data).sum());
    return 0;
  }

  const auto report = accelerator.survive(
      {.epochs = epochs}, train,
      [&](auto& batch) {
        if (has_word("background") && mean.count % 3 == 1) {
          accelerator.checkpoints().save_state();
          pass("saved");
        }
        const auto scope = accelerator.accumulate(model);
        const auto x = has_word("fp16") ? batch.data.to(torch::kFloat) : batch.data;
        if (second) {
          auto& [critic, steps] = *second;
          accelerator.backward(torch::nn::functional::cross_entropy(critic(x), batch.target));
          pass("between");
          steps.step();
          steps.zero_grad();
          pass("behind_first");
        }
        const at::Tensor loss = torch::nn::functional::cross_entropy(model(x), batch.target);
        mean.add(loss);
        pass(text("step_", mean.count));
        batches_now() = mean.count;
        batches_now().notify_all();
        try {
          accelerator.backward(loss);
        } catch (const CommError&) {
          if (!has_word("swallows")) throw;
        }
        if (is_newcomer().exchange(false)) take_next_mark("back_");
        if (has_word("tracks")) accelerator.log({{"loss", loss}});
        pass("optimizer");
        optimizer.step();
        pass("behind_step");
        scheduler.step();
        optimizer.zero_grad();
      },
      [&](int64_t epoch) {
        const torch::NoGradGuard no_grad;
        model->eval();
        for (auto& batch : validation) {
          const auto x = has_word("fp16") ? batch.data.to(torch::kFloat) : batch.data;
          const at::Tensor right = model(x).argmax(1).eq(batch.target).to(torch::kDouble);
          accuracy.add(accelerator.gather_for_metrics(right).mean().view(1));
          pass("evaluation");
        }
        model->train();
        if (has_word("saves")) {
          accelerator.checkpoints().save_state({}, {.background = false});
          pass("saved");
          accelerator.checkpoints().save_state(text(project_folder(), "/named_", epoch % 2),
                                               {.layout = layout_of(epoch)});
        }
      });

  accelerator.checkpoints().end();
  if (has_word("tracks")) accelerator.end_training();
  accelerator.process().group().barrier();
  std::ofstream out(text(std::getenv("TMPDIR"), "/end_", own_rank()));
  if (has_word("saves") || has_word("background")) {
    out << saves_of_run(has_word("saves")) << "next " << accelerator.checkpoints().save_iteration() << '\n';
  }
  if (has_word("beside")) out << "another run's save: " << std::filesystem::exists(of_another_run) << '\n';
  if (has_word("tracks")) out << tracked_runs();
  for (const auto& named : net->named_parameters()) out << named.key() << ' ' << digits(named.value()) << '\n';
  for (const auto& named : net->named_buffers()) out << named.key() << ' ' << digits(named.value()) << '\n';
  if (has_word("gan")) {
    for (const auto& named : other->named_parameters()) out << named.key() << ' ' << digits(named.value()) << '\n';
  }
  out << "mean " << (has_word("accumulates") ? mean.count : 0) << ' ' << mean.count << "\naccuracy "
      << digits(accuracy.value) << ' ' << accuracy.count << "\nlr "
      << static_cast<torch::optim::SGDOptions&>(sgd.param_groups()[0].options()).lr() << "\nsteps " << report.num_steps
      << '\n';
  out.close();
  std::printf("rank %d: %ld recoveries\n", own_rank(), static_cast<long>(report.num_recoveries));
  accelerator.end_training();
  return 0;
}

struct Ended {
  test::CommandResult result;
  /// What rank r has at the end.
  std::vector<std::string> states;
};

/// Runs the program on 3 ranks, with `survive` replacements.
inline Ended run_survived(const std::string& program, const std::string& deaths = "", const std::string& kills = "",
                          int survive = 60, const std::vector<std::string>& more = {}) {
  std::string folder = ::testing::TempDir() + "/survive_XXXXXX";
  EXPECT_NE(mkdtemp(folder.data()), nullptr);
  const auto self = std::filesystem::read_symlink("/proc/self/exe");
  std::vector<std::string> words = {(self.parent_path().parent_path() / "bin/hasten").string(),
                                    "launch",
                                    "-n",
                                    "3",
                                    "--survive",
                                    std::to_string(survive)};
  words.insert(words.end(), more.begin(), more.end());
  words.push_back(self.string());
  Ended ended{test::run_command(words, {{"HASTEN_TEST_CASE", "survived_program"},
                                        {"SURVIVE_PROGRAM", program},
                                        {"SURVIVE_DIES", deaths},
                                        {"SURVIVE_KILLS", kills},
                                        {"TMPDIR", folder}}),
              {}};
  for (int rank = 0; rank < 3; ++rank) ended.states.push_back(contents(folder + text("/end_", rank)));
  std::filesystem::remove_all(folder);
  return ended;
}

/// The end of a run of `program` without deaths, the same on all ranks.
inline std::string undisturbed(const std::string& program) {
  const Ended ended = run_survived(program);
  EXPECT_EQ(ended.result.exit_code, 0) << ended.result.err;
  EXPECT_FALSE(ended.states[0].empty());
  return ended.states[0];
}

inline void expect_same_end(const Ended& ended, const std::string& expected, const std::string& about) {
  EXPECT_EQ(ended.result.exit_code, 0) << about << '\n' << ended.result.out << ended.result.err;
  for (const std::string& state : ended.states) EXPECT_EQ(state, expected) << about << '\n' << ended.result.err;
}

}  // namespace hasten::survived
