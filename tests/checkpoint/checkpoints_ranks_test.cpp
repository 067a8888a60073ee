// Saving and loading a run through the Accelerator: any world size into any other, any strategy into any other.
#include "hasten/checkpoint/checkpoints.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <array>
#include <atomic>
#include <filesystem>
#include <fstream>

#include "checkpoint/training_run.h"
#include "hasten/accelerator.h"
#include "hasten/checkpoint/options.h"
#include "hasten/checkpoint/project_save.h"
#include "hasten/checkpoint/python_tensor.h"
#include "hasten/data/dataset/tensor_dataset.h"
#include "hasten/files/disk/disk.h"
#include "hasten/files/folders/manifest.h"
#include "hasten/files/folders/open_source.h"
#include "hasten/files/folders/optimizer_folder.h"
#include "hasten/files/python/python_file.h"
#include "hasten/optim/schedulers/schedulers.h"
#include "hasten/parallel/shard/sharding.h"
#include "support/folder.h"
#include "support/models.h"
#include "support/ranks.h"
#include "support/test_device.h"

namespace hasten {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::run_ranks;
using testing::run_ranks_collecting;
namespace fs = std::filesystem;

class CheckpointsRanks : public testing::InFolder {};

bool equal(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (!a[i].equal(b[i])) return false;
  }
  return true;
}

TEST_F(CheckpointsRanks, ARunThatIsLoadedGoesOnBitForBit) {
  const std::vector<Setting> settings{{1, ShardStage::kNone},      {2, ShardStage::kNone},
                                      {4, ShardStage::kNone},      {2, ShardStage::kOptimizer},
                                      {2, ShardStage::kGradients}, {2, ShardStage::kParameters},
                                      {4, ShardStage::kParameters}};
  for (const auto& setting : settings) {
    const std::string folder = path(setting.name());
    run_ranks(setting.world, [&](auto& process) {
      TrainingRun whole(process, setting);
      whole.train(6);  // in the middle of the second epoch
      whole.accelerator.save_state(folder);
      whole.train(10);

      TrainingRun loaded(process, setting, {}, 99);
      const auto result = loaded.accelerator.load_state(folder);
      EXPECT_EQ(result.step, 6);
      EXPECT_TRUE(result.missing.empty() && result.unexpected.empty());
      EXPECT_EQ(loaded.ema.count, 6);
      loaded.train(10);

      EXPECT_TRUE(equal(whole.values(), loaded.values())) << setting.name();
      EXPECT_EQ(std::vector<double>(whole.losses.begin() + 6, whole.losses.end()), loaded.losses) << setting.name();
      EXPECT_TRUE(whole.ema.value.equal(loaded.ema.value));
      process.wait_for_everyone();
    });
  }
}

TEST_F(CheckpointsRanks, AnyNumberOfRanksAndAnyStrategyLoadWhatAnyOtherSaved) {
  const std::vector<Setting> settings{{1, ShardStage::kNone},       {2, ShardStage::kNone},
                                      {3, ShardStage::kNone},       {4, ShardStage::kNone},
                                      {2, ShardStage::kParameters}, {3, ShardStage::kOptimizer},
                                      {3, ShardStage::kGradients},  {4, ShardStage::kParameters}};
  for (const auto& saved : settings) {
    const std::string folder = path("from_" + saved.name());
    std::vector<at::Tensor> values;
    std::vector<double> after;
    run_ranks(saved.world, [&](auto& process) {
      TrainingRun run(process, saved);
      run.train(6);
      run.accelerator.save_state(folder);
      const auto own = run.values();
      if (process.is_main_process()) values = own;
      run.train(3);
      if (process.is_main_process()) after.assign(run.losses.begin() + 6, run.losses.end());
    });
    EXPECT_TRUE(files::verify_folder(folder).errors.empty());
    for (const auto& into : settings) {
      run_ranks(into.world, [&](auto& process) {
        TrainingRun run(process, into, {}, 7);
        run.accelerator.load_state(folder);
        EXPECT_TRUE(equal(run.values(), values)) << saved.name() << " -> " << into.name();
        run.train(3);
        for (size_t i = 0; i < after.size(); ++i) {
          EXPECT_NEAR(run.losses[i], after[i], 1e-6) << saved.name() << " -> " << into.name() << " step " << i;
        }
        process.wait_for_everyone();
      });
    }
  }
}

TEST_F(CheckpointsRanks, AutomaticNamesGoUpAndOldOnesGoAfterTheCommit) {
  run_ranks(2, [&](auto& process) {
    AcceleratorOptions options = options_of({2});
    options.project = {.project_dir = folder_, .automatic_checkpoint_naming = true, .total_limit = 2, .keep_every = 4};
    Accelerator accelerator(process, options);
    testing::Mlp net;
    auto model = accelerator.prepare(net);
    for (int i = 0; i < 7; ++i) {
      const auto save = accelerator.save_state();
      save.wait();
      EXPECT_EQ(fs::path(save.path()).filename(), text("checkpoint_", i));
      EXPECT_EQ(accelerator.save_iteration(), i + 1);
    }
    accelerator.end_training();
  });

  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder_ / "checkpoints")) {
    if (entry.is_directory()) names.push_back(entry.path().filename());
  }
  std::sort(names.begin(), names.end());
  EXPECT_THAT(names, ElementsAre("checkpoint_0", "checkpoint_4", "checkpoint_5", "checkpoint_6"));
}

// checkpoint_0 of step 2 and checkpoint_1 of step 4, by two ranks.
TEST_F(CheckpointsRanks, ALoadThatDoesNotFitSaysAllAndChangesNothing) {
  run_ranks(2, [&](auto& process) {
    TrainingRun(process, {2}).accelerator.save_state(path("saved"));
    Accelerator accelerator(process, options_of({2}));
    testing::Cnn net;
    testing::initialise(*net, 3);
    auto model = accelerator.prepare(net);
    torch::optim::SGD sgd(net->parameters(), 0.1);
    auto optimizer = accelerator.prepare(sgd);
    const auto before = net->parameters()[0].detach().clone();

    const auto words = testing::words_of<UsageError>([&] { accelerator.load_state(path("saved")); });

    EXPECT_THAT(words, HasSubstr("missing (9): conv.weight"));
    EXPECT_THAT(words, HasSubstr("unexpected (4): "));  // in the order of the files, which the ranks share
    for (const char* name :
         {"first.weight", "first.bias", "second.weight, did you mean 'conv.weight'?", "second.bias"}) {
      EXPECT_THAT(words.substr(words.find("unexpected (4): ")), HasSubstr(name));
    }
    EXPECT_THAT(words, HasSubstr("optimizer 0 is SGD, the saved one AdamW"));
    EXPECT_TRUE(net->parameters()[0].equal(before));
    process.wait_for_everyone();
  });
}

TEST_F(CheckpointsRanks, RanksThatNameOtherPathsAreToldOnAllRanks) {
  const auto words = run_ranks_collecting(2, [&](auto& process) {
    TrainingRun run(process, {2});
    run.accelerator.save_state(path(process.rank() == 0 ? "one" : "other"));
  });

  for (const auto& each : words) EXPECT_THAT(each, HasSubstr("expected one path"));
  EXPECT_TRUE(fs::is_empty(folder_));
}

TEST_F(CheckpointsRanks, HooksAddFilesAndTakeModelsOut) {
  run_ranks(2, [&](auto& process) {
    TrainingRun run(process, {2});
    auto handle = run.accelerator.register_save_state_pre_hook([&](auto& models, const std::string& folder) {
      ASSERT_EQ(models.size(), 1u);
      EXPECT_EQ(models[0].weights.names().front(), "first.weight");
      if (process.is_main_process()) std::ofstream(folder + "/notes.txt") << "hello";
      models.clear();
    });
    run.accelerator.save_state(path("out"));
    handle.remove();
    run.accelerator.save_state(path("whole"));
  });

  EXPECT_TRUE(fs::exists(path("out/notes.txt")));
  EXPECT_EQ(files::read_manifest(path("out")).find("first.weight"), nullptr);
  EXPECT_EQ(files::read_manifest(path("out")).parts.at("other_files").at("notes.txt").at("bytes").as_int(), 5);
  EXPECT_NE(files::read_manifest(path("whole")).find("first.weight"), nullptr);
}

TEST_F(CheckpointsRanks, ALoadHookReadsItsOwnFileAndTakesAModelOut) {
  run_ranks(1, [&](auto& process) {
    TrainingRun saved(process, {1});
    auto writes = saved.accelerator.register_save_state_pre_hook(
        [](auto&, const std::string& folder) { std::ofstream(folder + "/notes.txt") << "hello"; });
    saved.accelerator.save_state(path("out"));
    TrainingRun loaded(process, {1}, {}, /*seed=*/6);
    const auto before = loaded.values();
    std::string notes;
    auto handle = loaded.accelerator.register_load_state_pre_hook([&](auto& models, const std::string& folder) {
      std::ifstream(folder + "/notes.txt") >> notes;
      models.clear();
    });

    loaded.accelerator.load_state(path("out"));
    EXPECT_EQ(notes, "hello");
    EXPECT_TRUE(equal(loaded.values(), before));

    handle.remove();
    loaded.accelerator.load_state(path("out"));
    EXPECT_TRUE(equal(loaded.values(), saved.values()));
  });
}

TEST_F(CheckpointsRanks, ASaveThatFailsLeavesTheOneBeforeAndSaysWhy) {
  run_ranks(2, [&](auto& process) {
    TrainingRun run(process, {2}, folder_);
    run.accelerator.save_state().wait();
    // A file stands where a rank wants to write its own.
    auto handle = run.accelerator.register_save_state_pre_hook([&](auto&, const std::string& folder) {
      if (process.rank() == 1) fs::create_directories(folder + "/state-00002-of-00002.safetensors/in_the_way");
    });
    const auto save = run.accelerator.save_state();

    EXPECT_THAT(testing::words_of<DataError>([&] { save.wait(); }), HasSubstr("state-00002-of-00002.safetensors"));
    handle.remove();
    run.accelerator.save_state().wait();
    run.accelerator.end_training();
  });

  EXPECT_TRUE(fs::exists(folder_ / "checkpoints" / "checkpoint_0" / "manifest.json"));
  EXPECT_FALSE(fs::exists(folder_ / "checkpoints" / "checkpoint_1"));
  EXPECT_TRUE(fs::exists(folder_ / "checkpoints" / "checkpoint_2" / "manifest.json"));
}

TEST_F(CheckpointsRanks, AnOpenWindowsGradientsGoOn) {
  const auto train = [&](process::Process& process, bool stop) {
    AcceleratorOptions options = options_of({2});
    options.gradient_accumulation_steps = 4;
    Accelerator accelerator(process, options);
    testing::Mlp net;
    testing::initialise(*net, 5);
    torch::optim::SGD sgd(net->parameters(), 0.1);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    const auto problem = testing::problem_for("mlp", 9);
    const auto batch = [&](int step, int window_step) {
      const auto scope = accelerator.accumulate(model);
      const auto rows = testing::here(problem.inputs.narrow(0, 3 * ((2 * step + process.rank()) % 8), 3));
      accelerator.backward(model(rows).square().mean());
      optimizer.step();
      optimizer.zero_grad();
      (void)window_step;
    };
    for (int step = 0; step < 6; ++step) batch(step, step);
    if (stop) {
      accelerator.save_state(path("window"));
      const at::NoGradGuard no_grad;
      for (auto& parameter : net->parameters()) parameter.mutable_grad() = at::Tensor(), parameter.fill_(1);
      accelerator.load_state(path("window"));
    }
    for (int step = 6; step < 8; ++step) batch(step, step);
    return net->parameters()[0].detach().clone();
  };
  run_ranks(2, [&](auto& process) { EXPECT_TRUE(train(process, false).equal(train(process, true))); });
}

TEST_F(CheckpointsRanks, SaveModelDoesNotWriteIntoAState) {
  run_ranks(2, [&](auto& process) {
    TrainingRun run(process, {2}, folder_);
    run.train(2);
    run.accelerator.save_state(path("state"));
    if (process.is_main_process()) {
      EXPECT_THAT(testing::words_of<UsageError>([&] { checkpoint::save_model(*run.net, path("state")); }),
                  HasSubstr("holds a state that save_state wrote"));
    }
    process.wait_for_everyone();
    EXPECT_NO_THROW(run.accelerator.load_state(path("state")));
    process.wait_for_everyone();
  });
}

TEST_F(CheckpointsRanks, SaveModelAndGetStateDictNeedNoUnwrapping) {
  run_ranks(2, [&](auto& process) {
    TrainingRun run(process, {2, ShardStage::kParameters});
    const auto whole = run.accelerator.get_state_dict(*run.model);
    EXPECT_THAT(whole.names(), ElementsAre("first.weight", "first.bias", "second.weight", "second.bias"));
    const auto main_only = run.accelerator.get_state_dict(*run.model, {.rank0_only = true, .dtype = at::kBFloat16});
    EXPECT_EQ(main_only.empty(), !process.is_main_process());
    run.accelerator.save_model(*run.model, path("export"), {.max_shard_size = "600"});
    run.accelerator.save(run.net, path("net.pth"));
    process.wait_for_everyone();

    testing::Mlp other;
    checkpoint::load_weights(*other, path("export"));
    EXPECT_TRUE(testing::same_values(other->first->weight, run.net->first->weight, 0));
    process.wait_for_everyone();
  });
  EXPECT_TRUE(fs::exists(path("export/model.safetensors.index.json")));
  EXPECT_TRUE(fs::exists(path("net.pth")));
}

TEST_F(CheckpointsRanks, AcceleratesLayoutIsWrittenAndLoadedAgain) {
  for (const auto stage : {ShardStage::kNone, ShardStage::kParameters}) {
    const std::string folder = path(text("accelerate", static_cast<int>(stage)));
    run_ranks(2, [&](auto& process) {
      TrainingRun run(process, {2, stage});
      run.train(5);
      run.accelerator.save_state(folder, {.layout = checkpoint::Layout::kAccelerate});
      run.train(4);
      TrainingRun loaded(process, {2, stage}, {}, 77);
      loaded.accelerator.load_state(folder);
      loaded.train(4);

      EXPECT_TRUE(equal(run.values(), loaded.values()));
      process.wait_for_everyone();
    });
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    EXPECT_THAT(names, ElementsAre("custom_checkpoint_0.pkl", "hasten.json", "model.safetensors", "optimizer.bin",
                                   "random_states_0.pkl", "random_states_1.pkl", "scheduler.bin"));
  }
}

struct TwoOfOneShapeImpl : torch::nn::Module {
  TwoOfOneShapeImpl() {
    register_module("z", z);
    register_module("a", a);
  }
  at::Tensor forward(const at::Tensor& x) { return a(torch::tanh(z(x))); }
  torch::nn::Linear z{4, 4}, a{4, 4};
};
TORCH_MODULE(TwoOfOneShape);

// safetensors sorts names: without param_names the two layers would get each other's moments.
TEST_F(CheckpointsRanks, AcceleratesLayoutNamesTheParametersOfTheOptimizer) {
  run_ranks(1, [&](auto& process) {
    Accelerator accelerator(process, {.tune_allocator = false});
    TwoOfOneShape net;
    torch::optim::AdamW adam(net->parameters(), 0.01);
    auto [model, optimizer] = accelerator.prepare(net, adam);
    accelerator.backward(model(testing::here(torch::randn({8, 4}))).square().sum());
    optimizer.step();
    accelerator.save_state(path("named"), {.layout = checkpoint::Layout::kAccelerate});

    const auto weights = files::open_source(path("named"));
    const auto saved = files::read_optimizer(path("named"), 0, *weights);

    ASSERT_TRUE(saved.has_value());
    for (const auto& item : net->named_parameters()) {
      const auto& state = *adam.state().at(item.value().unsafeGetTensorImpl());
      const auto& moment = static_cast<const torch::optim::AdamWParamState&>(state).exp_avg();
      EXPECT_TRUE(checkpoint::tensor_of((*saved)["state"][item.key()]["exp_avg"]).equal(moment.cpu())) << item.key();
    }
  });
}

// Shared weights and optimizer state are read once for the ranks of a host; slices of sharded state by their ranks.
TEST_F(CheckpointsRanks, ALoadReadsEachFileOnceForAHostAndSlicesByTheirOwners) {
  for (const auto stage : {ShardStage::kNone, ShardStage::kOptimizer}) {
    const std::string folder = path(text("saved", static_cast<int>(stage)));
    std::array<uint64_t, 3> once{}, each{};
    uint64_t total = 0;
    run_ranks(3, [&](auto& process) {
      TrainingRun run(process, {3, stage});
      run.train(4);
      run.accelerator.save_state(folder);
      const auto rank = static_cast<size_t>(process.rank());

      TrainingRun shared(process, {3, stage}, {}, 50), alone(process, {3, stage}, {}, 51);
      once[rank] = shared.accelerator.load_state(folder).bytes_read;
      each[rank] = alone.accelerator.load_state(folder, {.read = checkpoint::ReadFiles::kEachRank}).bytes_read;
      EXPECT_TRUE(equal(shared.values(), run.values()));
      EXPECT_TRUE(equal(alone.values(), run.values()));
      run.train(5), shared.train(5), alone.train(5);
      EXPECT_TRUE(equal(shared.values(), run.values()));
      EXPECT_TRUE(equal(alone.values(), run.values()));
      process.wait_for_everyone();
    });
    const auto manifest = files::read_manifest(folder);
    uint64_t weights = 0, streams = 0;  // streams of random numbers: each is read by its rank
    for (const auto& tensor : manifest.tensors) {
      const auto bytes = static_cast<uint64_t>(files::bytes_of(tensor.info));
      (tensor.kind == "random" ? streams : total) += bytes;
      if (tensor.kind == "model") weights += bytes;
    }
    const uint64_t sum_once = once[0] + once[1] + once[2] - streams, sum_each = each[0] + each[1] + each[2] - streams;
    EXPECT_GE(sum_once, total);
    EXPECT_LT(sum_once, total + total / 10);  // and gaps
    // Weights, and the state that all ranks have whole, are read three times; slices are not.
    EXPECT_GE(sum_each, stage == ShardStage::kNone ? 3 * total : 3 * weights);
    if (stage != ShardStage::kNone) {
      EXPECT_LT(sum_each, 3 * weights + 2 * (total - weights));
    }
  }
}

TEST_F(CheckpointsRanks, ReplicasThatDifferAreNamedAndTheCheckpointBeforeStays) {
  run_ranks(3, [&](auto& process) {
    TrainingRun run(process, {3}, folder_);
    run.accelerator.save_state({}, {.check_replicas = true}).wait();
    if (process.rank() == 1) {
      const at::NoGradGuard no_grad;
      run.net->second->bias[0] += 1;  // a bit of memory that has turned over
    }
    const auto save = run.accelerator.save_state({}, {.check_replicas = true});

    EXPECT_THAT(testing::words_of<DataError>([&] { save.wait(); }), HasSubstr("'second.bias' differs on rank 1"));
    process.wait_for_everyone();
  });
  EXPECT_TRUE(fs::exists(folder_ / "checkpoints" / "checkpoint_0" / "manifest.json"));
  EXPECT_FALSE(fs::exists(folder_ / "checkpoints" / "checkpoint_1"));
}

// Two hosts of two ranks, each with a project_dir of its own, as on disks that are not shared.
TEST_F(CheckpointsRanks, HostsWithoutASharedFolderSaveEachIntoItsOwn) {
  const auto on_host = [&](process::Process& process) {
    process::RankInfo identity = process.identity();
    identity.local_rank = identity.rank % 2;
    identity.local_world_size = 2;
    identity.node_rank = identity.rank / 2;
    return process::Process(identity, process.group(), process.device());
  };
  const auto project = [&](const process::Process& process) { return path(text("host", process.node_rank())); };
  std::vector<at::Tensor> values;
  run_ranks(4, [&](auto& given) {
    const auto process = on_host(given);
    TrainingRun run(process, {4}, project(process));
    run.train(3);
    for (int i = 0; i < 2; ++i) run.accelerator.save_state().wait();
    if (process.is_main_process()) values = run.values();
    run.accelerator.end_training();
  });
  for (const char* host : {"host0", "host1"}) {
    for (const char* name : {"checkpoint_0", "checkpoint_1"}) {
      EXPECT_TRUE(files::verify_folder(path(text(host, "/checkpoints/", name))).errors.empty());
    }
  }
  fs::remove_all(path("host1/checkpoints/checkpoint_1"));

  run_ranks(4, [&](auto& given) {
    const auto process = on_host(given);
    TrainingRun run(process, {4}, project(process), 9);
    const auto resumed = run.accelerator.resume();
    ASSERT_TRUE(resumed.has_value());
    EXPECT_EQ(resumed->path, project(process) + "/checkpoints/checkpoint_0");  // the newest one that both hosts have
    EXPECT_TRUE(equal(run.values(), values));
    given.wait_for_everyone();
  });
}

TEST_F(CheckpointsRanks, SplitStateNeedsAFolderThatAllHostsShare) {
  const auto words = run_ranks_collecting(2, [&](auto& given) {
    process::RankInfo identity = given.identity();
    identity.local_rank = 0;
    identity.local_world_size = 1;
    identity.node_rank = identity.rank;
    TrainingRun run(process::Process(identity, given.group(), given.device()), {2, ShardStage::kOptimizer},
                    path(text("host", given.rank())));
    run.accelerator.save_state();
  });

  for (const auto& each : words) EXPECT_THAT(each, HasSubstr("not seen by all hosts (node 0, node 1)"));
}

TEST_F(CheckpointsRanks, SaveModelByAllRanksGivesTheSameFiles) {
  run_ranks(3, [&](auto& process) {
    TrainingRun run(process, {3});
    run.accelerator.save_model(*run.model, path("one"), {.max_shard_size = "600"});
    run.accelerator.save_model(*run.model, path("all"), {.max_shard_size = "600", .by_all_ranks = true});
    process.wait_for_everyone();
    EXPECT_THROW(
        run.accelerator.save_model(*run.model, path("all"), {.safe_serialization = false, .by_all_ranks = true}),
        UsageError);

    testing::Mlp other;
    checkpoint::load_weights(*other, path("all"), {.share = &process.group()});
    EXPECT_TRUE(testing::same_values(other->first->weight, run.net->first->weight, 0));
    process.wait_for_everyone();
  });
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(path("one"))) {
    const auto bytes = [](const fs::path& file) {
      std::ifstream in(file, std::ios::binary);
      return std::string(std::istreambuf_iterator<char>(in), {});
    };
    names.push_back(entry.path().filename());
    EXPECT_EQ(bytes(entry.path()), bytes(path("all") / entry.path().filename())) << names.back();
  }
  EXPECT_GT(names.size(), 2u);
  EXPECT_EQ(static_cast<size_t>(std::distance(fs::directory_iterator(path("all")), {})), names.size());
}

// Folders of Accelerate have no hasten.json: a SeedableRandomSampler as a whole object, and a StatefulDataLoader's
// dict.
TEST_F(CheckpointsRanks, PositionsInAcceleratesOwnFilesAreRead) {
  using files::PythonValue;
  run_ranks(1, [&](auto& process) {
    TrainingRun run(process, {1});
    run.train(1);
    run.accelerator.save_state(path("out"), {.layout = checkpoint::Layout::kAccelerate});
    fs::remove(path("out/hasten.json"));
    const auto write_sampler = [&](char seed) {
      std::string sampler =
          "\x80\x02"
          "caccelerate.data_loader\nSeedableRandomSampler\n)\x81}(X\x0c";
      sampler += std::string(3, '\0') + "initial_seedK" + seed + "X\x05" + std::string(3, '\0') + "epochK\x03ub.";
      std::ofstream(path("out/sampler.bin"), std::ios::binary) << sampler;
    };
    write_sampler(11);
    const auto position = PythonValue::dict({{"_num_yielded", 2},
                                             {"_iterator_finished", false},
                                             {"_index_sampler_state", PythonValue::dict({{"samples_yielded", 24}})}});
    files::save_python_file(files::real_disk(), path("out/dl_state_dict.bin"), position);

    TrainingRun loaded(process, {1});
    const auto result = loaded.accelerator.load_state(path("out"));

    EXPECT_THAT(result.unknown, ElementsAre());
    EXPECT_EQ(loaded.loader.state().epoch, 3u);
    EXPECT_EQ(loaded.loader.state().position, 24u);
    write_sampler(5);  // the order of another seed cannot be gone on with
    EXPECT_THROW(loaded.accelerator.load_state(path("out")), UsageError);
  });
}

TEST_F(CheckpointsRanks, FreeMemoryForgetsPreparedObjects) {
  run_ranks(1, [&](auto& process) {
    TrainingRun run(process, {1});
    run.train(1);
    run.accelerator.free_memory();
    run.accelerator.save_state(path("after"));
  });
  const auto manifest = files::read_manifest(path("after"));
  EXPECT_EQ(manifest.parts.find("optimizers"), nullptr);
  EXPECT_EQ(manifest.parts.find("custom"), nullptr);
  EXPECT_NE(manifest.find("first.weight"), nullptr);  // the model's handle is still there
}

}  // namespace
}  // namespace hasten
