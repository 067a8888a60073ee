// Saved states of models that are cut over ranks: files of any layout, loaded into any other.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdlib>
#include <iostream>
#include <mutex>

#include "hasten/accelerator.h"
#include "hasten/checkpoint/python_tensor.h"
#include "hasten/checkpoint/weights.h"
#include "hasten/core/error.h"
#include "hasten/core/file.h"
#include "hasten/core/text.h"
#include "hasten/files/folders/open_source.h"
#include "hasten/parallel/layout/placement.h"
#include "support/folder.h"
#include "support/parallel_models.h"
#include "support/processes.h"
#include "support/ranks.h"
#include "support/test_device.h"

namespace hasten {
namespace {

using ::testing::HasSubstr;
using testing::run_ranks;
using testing::run_ranks_collecting;
using Parallel = parallel::ParallelOptions;

class CutModels : public testing::InFolder {};

// Threads share the default generator, so only one draws at a time.
std::shared_ptr<models::Gpt2Impl> small_net(uint64_t seed) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  torch::manual_seed(seed);
  return std::make_shared<models::Gpt2Impl>(testing::small_gpt2_config(16, 2));
}

// A run of a small Gpt2 with AdamW in some layout. All layouts see the same samples in each step.
struct CutRun {
  CutRun(process::Process& process, const Parallel& parallel, uint64_t seed = 3, const AcceleratorOptions& more = {})
      : accelerator(process, with(more, parallel)),
        net(net_behind_all(accelerator, seed)),
        // A large eps, so that rounding in gradients of zero is not blown up to whole steps.
        adamw(net->parameters(), torch::optim::AdamWOptions(1e-2).eps(1e-3)),
        model(accelerator.prepare(net)),
        optimizer(accelerator.prepare(adamw)) {}

  // Accelerators of other threads set the default generator as they are made, and models draw as they are prepared.
  static std::shared_ptr<models::Gpt2Impl> net_behind_all(const Accelerator& accelerator, uint64_t seed) {
    accelerator.wait_for_everyone();
    auto made = small_net(seed);
    accelerator.wait_for_everyone();
    return made;
  }
  static AcceleratorOptions with(AcceleratorOptions options, const Parallel& parallel) {
    options.tune_allocator = false;
    options.parallel = parallel;
    return options;
  }

  // Stages are outermost, and ranks of tp innermost.
  at::Tensor samples_of(int step) const {
    const auto samples = (at::arange(4 * 8).view({4, 8}) * (7 + step) + step).remainder(97);
    const auto& parallel = accelerator.options().parallel;
    const int models =
        std::max(1, accelerator.process().world_size() / (parallel.tp * parallel.cp * parallel.sp * parallel.pp));
    const int64_t rows = 4 / models;
    return testing::here(samples.narrow(
        0, rows * (accelerator.process().rank() / (parallel.tp * parallel.cp * parallel.sp) % models), rows));
  }
  void backward(int step) {
    const auto loss = [&](const at::Tensor& ids) {
      return testing::language_loss(model(ids, at::Tensor(), nullptr), ids.roll(-1, 1));
    };
    if (accelerator.options().parallel.pp > 1) {
      accelerator.forward_backward(samples_of(step), loss);
    } else {
      accelerator.backward(loss(samples_of(step)));
    }
  }
  void train(int first, int count) {
    for (int step = first; step < first + count; ++step) {
      optimizer.zero_grad();
      backward(step);
      optimizer.step();
    }
  }
  std::map<std::string, at::Tensor> weights() const {
    std::map<std::string, at::Tensor> all;
    for (const auto& item : net->named_parameters()) {
      all[item.key()] = parallel::gather_parameter(item.value()).clone().cpu();
    }
    return all;
  }

  Accelerator accelerator;
  std::shared_ptr<models::Gpt2Impl> net;
  torch::optim::AdamW adamw;
  parallel::PreparedModel<std::shared_ptr<models::Gpt2Impl>> model;
  optim::PreparedOptimizer<torch::optim::AdamW> optimizer;
};

using Weights = std::map<std::string, at::Tensor>;

void expect_equal(const Weights& found, const Weights& wanted, double tolerance, const std::string& words) {
  ASSERT_EQ(found.size(), wanted.size()) << words;
  for (const auto& [name, value] : wanted) {
    ASSERT_EQ(found.at(name).sizes(), value.sizes()) << words << ' ' << name;
    EXPECT_LE((found.at(name) - value).abs().max().item<double>(), tolerance) << words << ' ' << name;
  }
}

struct Place {
  std::string name;
  int world;
  Parallel parallel;
};

std::vector<Place> places() {
  return {{"one", 1, {}},
          {"dp2", 2, {}},
          {"tp2", 2, {.tp = 2}},
          {"tp4", 4, {.tp = 4}},
          {"dp2tp2", 4, {.dp_replicate = 2, .tp = 2}},
          {"zero2tp2", 4, {.dp_shard = 2, .tp = 2}},
          {"pp2", 2, {.pp = 2}},
          {"pp2tp2", 4, {.tp = 2, .pp = 2}},
          {"dp2pp2", 4, {.dp_replicate = 2, .pp = 2}},
          {"zero2pp2", 4, {.dp_shard = 2, .pp = 2}},
          {"cp2", 2, {.cp = 2}},
          {"dp2sp2", 4, {.dp_replicate = 2, .sp = 2}},
          {"cp2tp2", 4, {.cp = 2, .tp = 2}}};
}

// Trains two steps in each layout, saves, and goes on for two more in each other one.
TEST_F(CutModels, OfAnyLayoutGoOnInAnyOther) {
  Weights saved, ended;
  for (const auto& from : places()) {
    run_ranks(from.world, [&](process::Process& process) {
      CutRun run(process, from.parallel);
      run.train(0, 2);
      run.accelerator.save_state(path(from.name));
      const auto now = run.weights();
      if (from.world == 1) saved = now;
      run.train(2, 2);
      const auto end = run.weights();
      if (from.world == 1) ended = end;
      if (process.rank() == 0) expect_equal(end, ended, 2e-4, from.name);
      process.wait_for_everyone();
    });
  }

  for (const auto& to : places()) {
    run_ranks(to.world, [&](process::Process& process) {
      CutRun run(process, to.parallel, 9);
      for (const auto& from : places()) {
        run.accelerator.load_state(path(from.name));
        const auto loaded = run.weights();
        if (process.rank() == 0) expect_equal(loaded, saved, 1e-5, from.name + " in " + to.name);
        run.train(2, 2);
        const auto end = run.weights();
        // Moments that were lost or mixed up would show here.
        if (process.rank() == 0) expect_equal(end, ended, 2e-4, from.name + " on " + to.name);
      }
      process.wait_for_everyone();
    });
  }
}

TEST_F(CutModels, LieWholeInFilesThatPeersRead) {
  Weights wanted;
  for (const auto& place : places()) {
    run_ranks(place.world, [&](process::Process& process) {
      CutRun run(process, place.parallel);
      run.accelerator.save_state(path(place.name));
      if (place.world == 1) wanted = run.weights();
      process.wait_for_everyone();
    });
    // A Hugging Face folder: one file, or several and an index. On devices each rank of a sharded model writes its own
    // parts, in the form of torch.distributed.checkpoint.
    const bool in_parts = testing::on_device() && place.parallel.dp_shard > 1;
    const auto file = place.world == 1 ? "/model.safetensors" : "/model.safetensors.index.json";
    const auto source = files::open_source(path(place.name + (in_parts ? "" : file)));
    size_t found = 0;
    for (const auto& [name, value] : wanted) {
      if (!source->contains(name)) continue;
      EXPECT_TRUE(checkpoint::read_tensor(*source, name).equal(value)) << place.name << ' ' << name;
      ++found;
    }
    // The head is the embedding, which a run's own reader knows.
    EXPECT_EQ(found, wanted.size() - (in_parts ? 0 : 1)) << place.name;
  }
}

TEST_F(CutModels, SaveModelWritesTheBytesOfOneProcess) {
  for (const auto& place : places()) {
    run_ranks(place.world, [&](process::Process& process) {
      CutRun run(process, place.parallel);
      run.accelerator.save_model(run.model, path(place.name));
      run.accelerator.save_model(run.model, path(place.name + "_all"), {.by_all_ranks = true});
      process.wait_for_everyone();
    });
    const auto whole = core::read_file(path("one/model.safetensors"));
    EXPECT_GT(whole.value().size(), 4000U);
    EXPECT_TRUE(core::read_file(path(place.name + "/model.safetensors")) == whole) << place.name;
    EXPECT_TRUE(core::read_file(path(place.name + "_all/model.safetensors")) == whole) << place.name;
  }
}

TEST_F(CutModels, InAcceleratesFormGoOnInAnyLayout) {
  const std::vector<Place> some = {places()[0], places()[2], places()[5], places()[7], places()[9]};
  Weights ended;
  for (const auto& from : some) {
    run_ranks(from.world, [&](process::Process& process) {
      CutRun run(process, from.parallel);
      run.train(0, 2);
      run.accelerator.save_state(path(from.name), {.layout = checkpoint::Layout::kAccelerate});
      run.train(2, 2);
      if (from.world == 1) ended = run.weights();
      process.wait_for_everyone();
    });
  }
  for (const auto& to : some) {
    run_ranks(to.world, [&](process::Process& process) {
      CutRun run(process, to.parallel, 9);
      for (const auto& from : some) {
        run.accelerator.load_state(path(from.name));
        run.train(2, 2);
        const auto end = run.weights();
        if (process.rank() == 0) expect_equal(end, ended, 2e-4, from.name + " on " + to.name);
      }
      process.wait_for_everyone();
    });
  }
}

// The window's first half is in the file: gradients of parts, once a model.
TEST_F(CutModels, AnOpenWindowGoesOnInAnotherLayout) {
  const AcceleratorOptions two_steps{.gradient_accumulation_steps = 2};
  const auto half = [](CutRun& run, int step) {
    const auto scope = run.accelerator.accumulate(run.model);
    run.backward(step);
    run.optimizer.step();
    run.optimizer.zero_grad();
  };
  Weights ended;
  const std::vector<Place> some = {places()[0], places()[2], places()[4], places()[7], places()[8]};
  for (const auto& from : some) {
    run_ranks(from.world, [&](process::Process& process) {
      CutRun run(process, from.parallel, 3, two_steps);
      half(run, 0);
      run.accelerator.save_state(path(from.name));
      half(run, 1);
      if (from.world == 1) ended = run.weights();
      process.wait_for_everyone();
    });
  }
  for (const auto& to : some) {
    for (const auto& from : some) {
      run_ranks(to.world, [&](process::Process& process) {
        CutRun run(process, to.parallel, 9, two_steps);
        run.accelerator.load_state(path(from.name));
        half(run, 1);
        const auto end = run.weights();
        if (process.rank() == 0) expect_equal(end, ended, 2e-4, from.name + " on " + to.name);
        process.wait_for_everyone();
      });
    }
  }
}

TEST_F(CutModels, LoadWeightsFillsParts) {
  Weights wanted;
  run_ranks(1, [&](process::Process& process) {
    CutRun run(process, {});
    run.accelerator.save_model(run.model, path("whole"));
    wanted = run.weights();
  });
  run_ranks(2, [&](process::Process& process) {
    CutRun run(process, {.tp = 2}, 9);
    checkpoint::load_weights(*run.net, path("whole"));
    const auto alone = run.weights();
    run.adamw.zero_grad();
    {
      const torch::NoGradGuard no_grad;
      for (auto& parameter : run.net->parameters()) parameter.zero_();
    }
    checkpoint::load_weights(*run.net, path("whole"), {.share = &process.group()});
    const auto together = run.weights();
    if (process.rank() == 0) {
      expect_equal(alone, wanted, 0, "each rank");
      expect_equal(together, wanted, 0, "together");
    }
    EXPECT_THROW(checkpoint::load_weights(*run.net, path("whole"), {.dtype = at::kDouble}), UsageError);
    process.wait_for_everyone();
  });
}

TEST_F(CutModels, CheckReplicasNamesTheCopyThatDiffers) {
  const auto words = run_ranks_collecting(4, [&](process::Process& process) {
    CutRun run(process, {.dp_replicate = 2, .tp = 2});
    run.train(0, 1);
    run.accelerator.save_state(path("alike"), {.check_replicas = true});
    if (process.rank() == 3) {
      const torch::NoGradGuard no_grad;
      run.net->named_parameters()["transformer.h.0.mlp.c_fc.weight"].add_(1);
    }
    run.accelerator.save_state(path("apart"), {.check_replicas = true});
  });

  EXPECT_THAT(words[0], HasSubstr("'transformer.h.0.mlp.c_fc.weight' is another on each side of ranks 0, 1, 2, 3"));
}

// Dropout draws on each stage; statistics of batches are computed on the second.
struct NormedNetImpl : torch::nn::Module {
  NormedNetImpl() {
    for (int i = 0; i < 4; ++i) {
      layers->push_back(torch::nn::Sequential(torch::nn::Linear(8, 8), torch::nn::Dropout(0.5),
                                              torch::nn::BatchNorm1d(torch::nn::BatchNormOptions(8)),
                                              torch::nn::ReLU()));
    }
    register_module("layers", layers);
  }
  at::Tensor forward(at::Tensor x) {
    for (const auto& layer : *layers) x = layer->as<torch::nn::SequentialImpl>()->forward(x);
    return x;
  }
  torch::nn::ModuleList layers;
};

// A loop over such a net on two stages.
struct NormedRun {
  explicit NormedRun(process::Process& process, uint64_t seed)
      : accelerator(process, CutRun::with({.seed = seed}, {.pp = 2, .microbatches = 2})),
        net(std::make_shared<NormedNetImpl>()),
        adamw(net->parameters(), torch::optim::AdamWOptions(1e-2)),
        model(accelerator.prepare(net)),
        optimizer(accelerator.prepare(adamw)) {}
  void train(int first, int count) {
    for (int step = first; step < first + count; ++step) {
      optimizer.zero_grad();
      const at::Tensor batch =
          at::arange(64).view({8, 8}).mul(step + 1).remainder(7).to(accelerator.device(), at::kFloat);
      accelerator.forward_backward(batch, [&](const at::Tensor& x) { return model(x).pow(2).mean(); });
      optimizer.step();
    }
  }
  Accelerator accelerator;
  std::shared_ptr<NormedNetImpl> net;
  torch::optim::AdamW adamw;
  parallel::PreparedModel<std::shared_ptr<NormedNetImpl>> model;
  optim::PreparedOptimizer<torch::optim::AdamW> optimizer;
};

Weights state_of(NormedRun& run) {
  Weights all;
  for (const auto& [name, tensor] : run.accelerator.get_state_dict(run.model))
    all[name] = tensor.detach().cpu().clone();
  return all;
}

HASTEN_PROCESS_CASE(cut_models_stages) {
  process::Process process({.cpu = !testing::on_device()});
  const char* folder = std::getenv("CUT_FOLDER");
  NormedRun run(process, 5);
  run.train(0, 2);
  run.accelerator.save_state(std::string(folder) + "/run");
  run.accelerator.save_model(run.model, std::string(folder) + "/model");
  const auto saved = state_of(run);
  run.train(2, 2);
  const auto ended = state_of(run);
  run.accelerator.load_state(std::string(folder) + "/run");
  expect_equal(state_of(run), saved, 0, "loaded");
  run.train(2, 2);
  expect_equal(state_of(run), ended, 0, "resumed");
  if (process.rank() == 0) {
    const auto file = files::open_source(std::string(folder) + "/model/model.safetensors");
    const auto state = files::open_source(std::string(folder) + "/run");
    for (const auto& [name, value] : saved) {
      EXPECT_TRUE(checkpoint::read_tensor(*file, name).equal(value)) << name;
      EXPECT_TRUE(checkpoint::read_tensor(*state, name).equal(value)) << name;
    }
    EXPECT_GT(saved.at("layers.3.2.running_var").sub(1).abs().max().item<double>(), 1e-3);
  }
  return ::testing::Test::HasFailure() ? 1 : 0;
}

// The last stage's statistics are in the file, and each stage draws on from where it was.
TEST_F(CutModels, OnStagesKeepStatisticsAndRandomStreamsOfEachStage) {
  for (const auto& result :
       testing::run_processes(2, "cut_models_stages", {{"CUT_FOLDER", path("")}, {"OMP_NUM_THREADS", "1"}}))
    EXPECT_EQ(result.exit_code, 0) << result.output;
}

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// Saves a stream of each model's own, or loads and says what this rank draws.
HASTEN_PROCESS_CASE(cut_models_streams) {
  const Accelerator accelerator(
      {.tune_allocator = false, .parallel = {.dp_replicate = -1, .tp = std::stoi(variable("CUT_TP"))}});
  const int model = accelerator.rank() / accelerator.options().parallel.tp;
  if (variable("CUT_SAVES") == "1") {
    torch::manual_seed(static_cast<uint64_t>(100 + model));
    accelerator.save_state(variable("CUT_FOLDER"));
  } else {
    accelerator.load_state(variable("CUT_FOLDER"));
    std::cout << "drew " << at::randint(1000000, {1}).item<int64_t>() << std::endl;
  }
  return 0;
}

// Ranks of one model go on with one stream, wherever it was saved.
TEST_F(CutModels, ShareTheRandomStreamOfTheirData) {
  const auto drawn_after = [](uint64_t seed) {
    return text("drew ", at::randint(1000000, {1}, at::detail::createCPUGenerator(seed)).item<int64_t>(), '\n');
  };
  const auto run = [&](int world, const std::string& tp, const std::string& folder, bool saves) {
    const auto results = testing::run_processes(
        world, "cut_models_streams",
        {{"CUT_TP", tp}, {"CUT_FOLDER", path(folder)}, {"CUT_SAVES", saves ? "1" : "0"}, {"OMP_NUM_THREADS", "1"}});
    std::vector<std::string> said;
    for (const auto& result : results) {
      EXPECT_EQ(result.exit_code, 0) << result.output;
      said.push_back(result.output);
    }
    return said;
  };
  run(2, "1", "apart", true);
  run(4, "2", "models", true);

  for (const auto& said : run(2, "2", "apart", false)) EXPECT_THAT(said, HasSubstr(drawn_after(100)));
  const auto said = run(4, "2", "models", false);
  for (size_t rank = 0; rank < 4; ++rank) EXPECT_THAT(said[rank], HasSubstr(drawn_after(100 + rank / 2)));
  const auto on_data = run(2, "1", "models", false);
  for (size_t rank = 0; rank < 2; ++rank) EXPECT_THAT(on_data[rank], HasSubstr(drawn_after(100 + rank)));
}

TEST_F(CutModels, RefuseOptimizersOfWholeParameters) {
  const auto words = run_ranks_collecting(2, [&](process::Process& process) {
    const Accelerator accelerator(process, {.tune_allocator = false, .parallel = {.tp = 2}});
    const auto net = small_net(3);
    torch::optim::LBFGS lbfgs(net->parameters(), torch::optim::LBFGSOptions(1));
    auto model = accelerator.prepare(net);
    auto optimizer = accelerator.prepare(lbfgs);
  });

  EXPECT_THAT(words[0], HasSubstr("LBFGS with tp = 2: it needs norms of whole parameters"));
}

}  // namespace
}  // namespace hasten
