// merge-weights, convert, zero-to-fp32 and checkpoint as commands: what they write, say and refuse.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/resource.h>

#include <filesystem>
#include <fstream>

#include "cli/command.h"
#include "hasten/files/folders/manifest.h"
#include "hasten/files/folders/open_source.h"
#include "hasten/files/folders/optimizer_folder.h"
#include "hasten/files/python/python_file.h"
#include "hasten/files/safetensors/safetensors_header.h"

namespace hasten {
namespace {

namespace fs = std::filesystem;
using test::CommandResult;
using ::testing::HasSubstr;
using ::testing::StartsWith;

const std::string kGolden = HASTEN_SOURCE_DIR "/tests/golden/";
const std::string kDcp = kGolden + "python_files/dcp_adamw_w2";

class CheckpointCommands : public testing::Test {
 protected:
  CheckpointCommands() {
    std::string name = testing::TempDir() + "hasten_checkpoint_XXXXXX";
    folder_ = mkdtemp(name.data());
  }
  ~CheckpointCommands() override { fs::remove_all(folder_); }
  std::string at(const std::string& name) const { return folder_ + "/" + name; }
  static CommandResult run(std::vector<std::string> words) {
    words.insert(words.begin(), HASTEN_COMMAND);
    return test::run_command(words);
  }
  static std::string bytes(const files::TensorSource& source, const std::string& name) {
    std::string out(static_cast<size_t>(files::bytes_of(source.info(name))), '\0');
    source.read_all(name, out.data());
    return out;
  }
  static void expect_equal(const std::string& one, const std::string& other) {
    const auto a = files::open_source(one), b = files::open_source(other);
    ASSERT_EQ(a->names().size(), b->names().size());
    for (const std::string& name : a->names()) EXPECT_EQ(bytes(*a, name), bytes(*b, name)) << name;
  }
  /// A folder of hasten's own form.
  void make_checkpoint(const std::string& name) const {
    ASSERT_EQ(run({"convert", kDcp + "/merged", at(name), "--to", "hasten"}).exit_code, 0);
  }

 private:
  std::string folder_;
};

TEST_F(CheckpointCommands, MergeWeightsGivesWhatThePeersMergeGives) {
  // The folder above pytorch_model_fsdp_0 is enough.
  const CommandResult result = run({"merge-weights", kDcp, at("out")});

  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr(at("out/model.safetensors")));
  expect_equal(at("out"), kDcp + "/merged");
}

TEST_F(CheckpointCommands, AnOutputThatWouldTakeThePlaceOfWhatIsReadIsRefused) {
  make_checkpoint("own");
  const CommandResult before = run({"checkpoint", "verify", at("own")});
  ASSERT_EQ(before.exit_code, 0) << before.err;

  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"convert", at("own"), at("own"), "--to", "hasten"},
        {"convert", at("own"), at("own/../own"), "--dtype", "bfloat16"},
        {"merge-weights", at("own"), at("own")}}) {
    const CommandResult result = run(words);
    EXPECT_EQ(result.exit_code, 2) << words[0];
    EXPECT_THAT(result.err, HasSubstr("would take its place or remove it. Give a path elsewhere.")) << words[0];
  }
  EXPECT_EQ(run({"checkpoint", "verify", at("own")}).out, before.out);
}

TEST_F(CheckpointCommands, MergeWeightsRemovesOnlyWhatItHasReadBack) {
  fs::copy(kDcp + "/pytorch_model_fsdp_0", at("in"), fs::copy_options::recursive);
  EXPECT_EQ(run({"merge-weights", at("in"), at("in/out"), "--remove_checkpoint_dir"}).exit_code, 2);
  EXPECT_TRUE(fs::exists(at("in")));

  const CommandResult result =
      run({"merge-weights", "--unsafe_serialization", "--remove_checkpoint_dir", at("in"), at("out")});

  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_FALSE(fs::exists(at("in")));
  expect_equal(at("out/pytorch_model.bin"), kDcp + "/merged");
}

TEST_F(CheckpointCommands, ConvertTakesTheOptimizersStateAlong) {
  const CommandResult own = run({"convert", kDcp, at("own"), "--to", "hasten"});
  const CommandResult back = run({"convert", at("own"), at("accelerate"), "--to", "accelerate"});
  const CommandResult model = run({"convert", kDcp, at("model"), "--to", "hasten", "--only", "model"});

  ASSERT_EQ(own.exit_code, 0) << own.err;
  ASSERT_EQ(back.exit_code, 0) << back.err;
  EXPECT_THAT(own.out, HasSubstr("state of 1 optimizer\n"));
  EXPECT_FALSE(fs::exists(at("model/state.safetensors"))) << model.err;
  EXPECT_TRUE(files::verify_folder(at("own")).errors.empty());
  const auto weights = files::open_source(at("own"));
  const auto from = files::read_optimizer(kDcp, 0, *weights), to = files::read_optimizer(at("accelerate"), 0, *weights);
  ASSERT_TRUE(from && to);
  ASSERT_GT((*from)["state"].size(), 0u);
  EXPECT_EQ((*from)["state"].size(), (*to)["state"].size());
  for (const auto& [name, slots] : (*from)["state"].as_pairs()) {
    for (const auto& [slot, value] : slots.as_pairs()) {
      const auto& there = (*to)["state"][name.as_string()][slot.as_string()];
      std::string one(static_cast<size_t>(files::numel_of(value.as_tensor().shape)) * 4, '\0'), other = one;
      files::read_tensor(value.as_tensor(), files::whole_box(value.as_tensor().shape), one.data());
      files::read_tensor(there.as_tensor(), files::whole_box(there.as_tensor().shape), other.data());
      EXPECT_EQ(one, other) << name.as_string() << ' ' << slot.as_string();
    }
  }
}

// The two checkpoints of each folder differ in the state of their optimizers, and `latest` names the other one.
TEST_F(CheckpointCommands, ConvertTakesTheOptimizerOfTheTagThatIsGiven) {
  const auto copy = [&](const std::string& from, const std::string& to) {
    fs::create_directories(fs::path(at(to)).parent_path());
    fs::copy(kGolden + from, at(to), fs::copy_options::recursive);
  };
  const auto convert = [&](const std::string& in, const std::vector<std::string>& more) {
    std::vector<std::string> words = {"convert", at(in), at(in + "_out"), "--to", "hasten"};
    words.insert(words.end(), more.begin(), more.end());
    const CommandResult result = run(words);
    EXPECT_EQ(result.exit_code, 0) << in << ": " << result.err;
    return result.out;
  };
  copy("zero_checkpoints/zero3_fp32_w3/global_step5", "deepspeed/first");
  copy("zero_checkpoints/zero2_bf16_w2/global_step5", "deepspeed/second");
  copy("megatron/gpt2_tp2_pp2/iter_0000020", "megatron/iter_0000010");
  copy("megatron/gpt2_numbered_tp2_pp2/iter_0000020", "megatron/iter_0000020");
  make_checkpoint("own/first");
  ASSERT_EQ(run({"convert", kDcp, at("own/second"), "--to", "hasten"}).exit_code, 0);
  std::ofstream(at("deepspeed/latest")) << "first";
  std::ofstream(at("own/latest")) << "first";
  std::ofstream(at("megatron/latest_checkpointed_iteration.txt")) << "10";

  EXPECT_THAT(convert("deepspeed", {"--tag", "second"}), HasSubstr("state of 1 optimizer\n"));
  EXPECT_THAT(convert("megatron", {"--tag", "20"}), HasSubstr("state of 1 optimizer\n"));
  EXPECT_THAT(convert("own", {"--tag", "second"}), HasSubstr("state of 1 optimizer\n"));

  const auto moments = [](const std::string& folder) { return files::open_source(folder, {.part = "optimizer"}); };
  ASSERT_EQ(run({"convert", kGolden + "zero_checkpoints/zero2_bf16_w2", at("alone"), "--to", "hasten"}).exit_code, 0);
  const auto expected = moments(at("alone")), found = moments(at("deepspeed_out"));
  ASSERT_GT(expected->names().size(), 0u);
  ASSERT_EQ(found->names(), expected->names());
  for (const std::string& name : expected->names()) EXPECT_EQ(bytes(*found, name), bytes(*expected, name)) << name;

  // Without a tag the one that `latest` names counts; without `latest` a tag needs the form.
  fs::remove_all(at("megatron_out"));
  fs::remove_all(at("deepspeed_out"));
  EXPECT_THAT(convert("megatron", {}), ::testing::Not(HasSubstr("state of")));
  fs::remove(at("deepspeed/latest"));
  EXPECT_THAT(convert("deepspeed", {"--tag", "second", "--from", "deepspeed"}), HasSubstr("state of 1 optimizer\n"));
}

// FSDP2 on 16 ranks, AdamW, a group for each of five layers.
TEST_F(CheckpointCommands, ConvertKeepsTheGroupsOfAnOptimizerOfManyRanksInTheirOrder) {
  const CommandResult result =
      run({"convert", kGolden + "folders/accelerate_fsdp_adamw_w16_5_groups", at("out"), "--to", "accelerate"});

  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto file = files::PythonFile::open(at("out/optimizer.bin"));
  const auto& groups = file.value().at("param_groups");
  ASSERT_EQ(groups.size(), 5u);
  int64_t next = 0;
  for (size_t g = 0; g < 5; ++g) {
    EXPECT_THAT(groups[g].at("param_names")[0].as_string(), StartsWith(std::to_string(g) + "."));
    for (const auto& number : groups[g].at("params").as_items()) EXPECT_EQ(number.as_int(), next++);
  }
  EXPECT_EQ(file.value().at("state").size(), static_cast<size_t>(next));
}

TEST_F(CheckpointCommands, ConvertRefusesNumbersWithoutNamesAndWritesNothing) {
  const CommandResult result =
      run({"convert", kGolden + "python_files/save_state_sgd_w2/state", at("out"), "--to", "hasten"});

  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("--only model"));
  EXPECT_THAT(result.err, HasSubstr("load_state"));
  EXPECT_FALSE(fs::exists(at("out")));
}

TEST_F(CheckpointCommands, ZeroToFp32TakesTheFolderOfSaveCheckpoint) {
  make_checkpoint("run/step_5");
  std::ofstream(at("run/latest")) << "step_5";

  const CommandResult result = run({"zero-to-fp32", at("run"), at("out")});
  const CommandResult frozen = run({"zero-to-fp32", at("run"), at("out2"), "--exclude_frozen_parameters"});

  ASSERT_EQ(result.exit_code, 0) << result.err;
  expect_equal(at("out"), kDcp + "/merged");
  EXPECT_EQ(frozen.exit_code, 2);
  EXPECT_THAT(frozen.err, HasSubstr("only DeepSpeed's does"));
}

TEST_F(CheckpointCommands, ConvertGoesRoundWithoutALoss) {
  std::string from = kDcp + "/merged/model.safetensors";
  for (const auto& [to, out] : std::vector<std::pair<std::string, std::string>>{
           {"torch", "a.pt"}, {"hasten", "b"}, {"accelerate", "c"}, {"safetensors", "d.safetensors"}}) {
    const CommandResult result = run({"convert", from, at(out), "--to", to});
    ASSERT_EQ(result.exit_code, 0) << result.err;
    from = at(out);
  }
  expect_equal(from, kDcp + "/merged");
}

TEST_F(CheckpointCommands, ConvertCastsRenamesAndSplits) {
  const CommandResult result = run({"convert", kDcp + "/merged", at("out"), "--dtype=bfloat16", "--rename",
                                    "s/^0\\./first./", "--max-shard-size", "60", "--rename=s|weight|w|"});

  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto source = files::open_source(at("out"));
  EXPECT_EQ(source->info("first.w").dtype, files::Dtype::kBFloat16);
  EXPECT_TRUE(fs::exists(at("out/model.safetensors.index.json")));
  EXPECT_TRUE(fs::exists(at("out/model-00001-of-00003.safetensors")) ||
              fs::exists(at("out/model-00001-of-00004.safetensors")));
}

TEST_F(CheckpointCommands, ZeroToFp32TakesTheScriptsOptions) {
  const CommandResult result = run({"zero-to-fp32", kGolden + "zero_checkpoints/zero3_bf16_w2", at("out"),
                                    "--safe_serialization", "-t", "global_step5", "-d"});

  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("a.weight [7, 5]\n"));
  const auto source = files::open_source(at("out"));
  EXPECT_EQ(source->info("scale").dtype, files::Dtype::kFloat32);
  const CommandResult frozen =
      run({"convert", kGolden + "zero_checkpoints/zero3_bf16_w2", at("x"), "--exclude-frozen"});
  EXPECT_FALSE(files::open_source(at("x"))->contains("scale"));
  EXPECT_THAT(run({"zero-to-fp32", kGolden + "zero_checkpoints/zero3_bf16_w2", at("y"), "--tag", "global_step4"}).err,
              HasSubstr("did you mean 'global_step5'?"));
}

TEST_F(CheckpointCommands, ListSaysWhatIsThereAndWhatIsNotComplete) {
  make_checkpoint("checkpoints/checkpoint_2");
  make_checkpoint("checkpoints/checkpoint_10");
  fs::create_directories(at("checkpoints/checkpoint_11"));
  fs::create_directories(at("checkpoints/other"));
  fs::create_directories(at("checkpoints/checkpoint_12"));
  std::ofstream(at("checkpoints/checkpoint_12/model.safetensors"));
  std::ofstream(at("checkpoints/checkpoint_12/state.safetensors"));

  const std::string out = run({"checkpoint", "list", at("")}).out;

  EXPECT_THAT(out, StartsWith("checkpoint "));
  EXPECT_LT(out.find("checkpoint_2 "), out.find("checkpoint_10 "));
  EXPECT_THAT(out, HasSubstr("complete\n"));
  EXPECT_THAT(out, HasSubstr("it has no manifest.json\n"));
  EXPECT_THAT(out, HasSubstr("its manifest.json is missing\n"));
  EXPECT_THAT(run({"checkpoint", "list", at("checkpoints"), "--json"}).out, HasSubstr("\"number\": 10"));
}

TEST_F(CheckpointCommands, VerifyFindsADamagedByteAndDiffNamesTheTensor) {
  make_checkpoint("a");
  make_checkpoint("b");
  EXPECT_EQ(run({"checkpoint", "verify", at("a")}).exit_code, 0);
  EXPECT_EQ(run({"checkpoint", "diff", at("a"), at("b")}).exit_code, 0);
  const std::string file = at("b/model.safetensors");
  const auto entry = files::read_safetensors_header(file);
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekp(static_cast<std::streamoff>(entry.body_offset + entry.entries.back().begin));
  stream.put('\x41');
  stream.close();

  const CommandResult verify = run({"checkpoint", "verify", at("b")}),
                      diff = run({"checkpoint", "diff", at("a"), at("b")});

  EXPECT_EQ(verify.exit_code, 1);
  EXPECT_THAT(verify.out, HasSubstr("tensor '" + entry.entries.back().info.name + "'"));
  EXPECT_EQ(diff.exit_code, 1);
  EXPECT_THAT(diff.out, HasSubstr(entry.entries.back().info.name + ": largest difference"));
  EXPECT_EQ(run({"checkpoint", "verify", at("b"), "--fast"}).exit_code, 0);
}

TEST_F(CheckpointCommands, PruneKeepsTheNewestAndThoseOfEachK) {
  for (const char* number : {"1", "2", "3", "4", "5"}) make_checkpoint(std::string("checkpoint_") + number);

  EXPECT_THAT(run({"checkpoint", "prune", at(""), "--keep", "2", "--keep-every", "2", "--dry-run"}).out,
              HasSubstr("would remove "));
  EXPECT_TRUE(fs::exists(at("checkpoint_1")));
  EXPECT_EQ(run({"checkpoint", "prune", at(""), "--keep", "2", "--keep-every", "2"}).exit_code, 0);

  EXPECT_FALSE(fs::exists(at("checkpoint_1")));
  EXPECT_TRUE(fs::exists(at("checkpoint_2")));
  EXPECT_FALSE(fs::exists(at("checkpoint_3")));
  EXPECT_TRUE(fs::exists(at("checkpoint_4")));
  EXPECT_TRUE(fs::exists(at("checkpoint_5")));
  EXPECT_EQ(run({"checkpoint", "prune", at("")}).exit_code, 2);
}

TEST_F(CheckpointCommands, RepairMakesALostManifestAnew) {
  make_checkpoint("a");
  fs::remove(at("a/manifest.json"));

  EXPECT_EQ(run({"checkpoint", "repair", at("a")}).exit_code, 0);

  EXPECT_EQ(run({"checkpoint", "verify", at("a")}).exit_code, 0);
  EXPECT_THAT(run({"checkpoint", "repair", at("a")}).out, HasSubstr("nothing to repair"));
}

TEST_F(CheckpointCommands, ShowOpensAStrangersPickleWithoutExecutingIt) {
  std::ofstream(at("evil.pkl"), std::ios::binary) << "\x80\x02"
                                                  << "cos\nsystem\nX\x0a" << std::string(3, '\0') << "touch /x/y"
                                                  << "\x85R.";

  const CommandResult result = run({"checkpoint", "show", at("evil.pkl")});

  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("Python would have called os.system\n"));
  EXPECT_THAT(run({"checkpoint", "show", kDcp + "/merged/model.safetensors"}).out, HasSubstr("tensors, "));
  make_checkpoint("a");
  EXPECT_THAT(run({"checkpoint", "show", at("a")}).out, HasSubstr("1 piece\n"));
}

TEST_F(CheckpointCommands, MistakesAreToldWithTheRemedy) {
  EXPECT_EQ(run({"merge-weights", at("nothing")}).exit_code, 2);
  EXPECT_THAT(run({"merge-weights", at("nothing"), at("out")}).err, HasSubstr("there is no file or folder"));
  EXPECT_THAT(run({"checkpoint", "lsit", at("")}).err, HasSubstr("did you mean 'list'? Expected one of diff, list"));
  EXPECT_THAT(run({"checkpoint", "diff", at("a")}).err, HasSubstr("diff takes 2 paths, not 1. See"));
  EXPECT_THAT(run({"convert"}).err,
              HasSubstr("expected a source and an output beside the options, but none is given."));
  EXPECT_THAT(run({"convert", "a"}).err, HasSubstr("but only 'a' is given."));
  EXPECT_THAT(run({"convert", kDcp + "/merged", at("x"), "--to", "torhc"}).err, HasSubstr("torch"));
  EXPECT_THAT(run({"convert", kDcp + "/merged", at("x"), "--rename", "x/y"}).err, HasSubstr("s/OLD/NEW/"));
  EXPECT_THAT(run({"convert", at(""), at("x")}).err, HasSubstr("no folder of weights"));
  fs::create_directories(at("empty"));
  EXPECT_THAT(run({"convert", at("empty"), at("x")}).err, HasSubstr("it is empty. Give the folder or file"));
  EXPECT_EQ(run({"convert", "--help"}).exit_code, 0);
}

TEST_F(CheckpointCommands, MergingNeedsNoMemoryForTheModel) {
  // 256 MB in two shards of hasten's form; the command's own peak stays under 64 MB.
  const int64_t rows = 32;
  std::vector<std::string> names;
  for (int64_t half = 0; half < 2; ++half) {
    const auto layout = files::lay_out_safetensors(
        {{"w", files::Dtype::kFloat32, {rows / 2, 1 << 21}}},
        {{"DCP_SHARDING_INFO", "{\"w\":{\"saved_offsets\":[" + std::to_string(half * rows / 2) + ",0]}}"}});
    fs::create_directories(at("in"));
    std::ofstream file(at("in/model-0000" + std::to_string(half + 1) + "-of-00002.safetensors"), std::ios::binary);
    file << layout.head;
    file.seekp(static_cast<std::streamoff>(layout.file_bytes - 1));
    file.put('x');
  }
  rusage before{}, after{};
  getrusage(RUSAGE_CHILDREN, &before);
  if (before.ru_maxrss >= 64 << 10) GTEST_SKIP() << "the command of another test was larger; run this test by itself";

  ASSERT_EQ(run({"merge-weights", at("in"), at("out")}).exit_code, 0);

  getrusage(RUSAGE_CHILDREN, &after);
  EXPECT_EQ(fs::file_size(at("out/model.safetensors")), 4096u + (uint64_t{rows} << 23));
  EXPECT_LT(after.ru_maxrss, 64 << 10);
}

}  // namespace
}  // namespace hasten
