// The smaller commands: env, tpu-config, completion; and options where they have no use.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "cli/command.h"
#include "hasten/core/version.h"

namespace hasten {
namespace {

namespace fs = std::filesystem;
using test::CommandResult;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class Commands : public testing::Test {
 protected:
  Commands() {
    std::string name = testing::TempDir() + "hasten_commands_XXXXXX";
    folder_ = mkdtemp(name.data());
  }
  ~Commands() override { fs::remove_all(folder_); }

  const std::string& folder() const { return folder_; }
  std::string write(const std::string& name, const std::string& content) const {
    std::ofstream(folder_ + "/" + name) << content;
    return folder_ + "/" + name;
  }
  CommandResult run(std::vector<std::string> words) const {
    words.insert(words.begin(), HASTEN_COMMAND);
    return test::run_command(words, {{"HF_HOME", folder_}});
  }

 private:
  std::string folder_;
};

TEST_F(Commands, EnvSaysTheSameAsTextAndAsJson) {
  const std::string file = write("c.yaml", "distributed_type: 'NO'\n");

  const CommandResult text = run({"env", "--config_file", file});
  const auto json = nlohmann::json::parse(run({"env", "--json", "--config_file", file}).out);

  EXPECT_THAT(text.out, StartsWith("hasten: " + std::string(version()) + "\n"));
  for (const char* name : {"compiler", "libtorch", "system", "cores"}) {
    EXPECT_THAT(text.out, HasSubstr("\n" + std::string(name) + ": " + json[name].get<std::string>() + "\n"));
  }
  EXPECT_THAT(json["libtorch"].get<std::string>(), ::testing::MatchesRegex("2\\.[0-9]+\\..*"));
  EXPECT_THAT(text.out, HasSubstr("\nmemory: "));
  EXPECT_THAT(json["memory"].get<std::string>(), HasSubstr(" GiB free"));
  EXPECT_TRUE(json["GPUs"].is_array());
  EXPECT_TRUE(json["interfaces"].contains("lo"));
  EXPECT_EQ(json["configuration"]["values"]["num_processes"], 1);
  EXPECT_THAT(text.out, HasSubstr("\nconfiguration: " + file + "\n  compute_environment: \"LOCAL_MACHINE\"\n"));
}

TEST_F(Commands, EnvFindsTheTorchThatScriptsFind) {
  fs::create_directories(folder() + "/lib/python3.11/site-packages/torch");
  write("lib/python3.11/site-packages/torch/version.py", "__version__ = '2.13.0+cpu'\n");

  const CommandResult result =
      test::run_command({HASTEN_COMMAND, "env"}, {{"HF_HOME", folder()}, {"PATH", folder() + "/bin"}});

  EXPECT_THAT(result.out, HasSubstr("\npython's torch: 2.13.0+cpu in " + folder() + "/lib/python3.11"));
}

TEST_F(Commands, EnvFindsNoConfigurationWhereThereIsNone) {
  EXPECT_THAT(run({"env"}).out, HasSubstr("\nconfiguration: none\n"));
  EXPECT_EQ(run({"env", "--jason"}).err,
            "[env] unknown option '--jason', did you mean '--json'? See hasten env --help.\n");
}

TEST_F(Commands, TpuConfigBuildsAcceleratesCommand) {
  const std::string commands = write("commands.txt", "ls\npwd\n");
  const std::string file =
      write("c.yaml", "distributed_type: XLA\nnum_processes: 8\ntpu_name: pod\ntpu_zone: us\ncommands:\n- echo hi\n");

  EXPECT_EQ(run({"tpu-config", "--debug", "--config_file", file}).out,
            "Running gcloud compute tpus tpu-vm ssh pod --zone us --command cd /usr/share; echo hi --worker all\n");
  EXPECT_EQ(run({"tpu-config", "--debug", "--tpu_name", "a", "--tpu_zone", "b", "--use_alpha", "--install_accelerate",
                 "--accelerate_version", "0.12.0", "--command_file", commands})
                .out,
            "Running gcloud alpha compute tpus tpu-vm ssh a --zone b --command cd /usr/share; pip install "
            "accelerate==0.12.0; ls; pwd --worker all\n");
}

TEST_F(Commands, TpuConfigSaysAllThatIsMissing) {
  EXPECT_EQ(run({"tpu-config", "--tpu_zone", "b"}).err,
            "[tpu-config] 2 things are wrong:\n"
            "  no command is given (--command, --command_file)\n"
            "  the TPU has no name (--tpu_name)\n"
            "Give it here or in the configuration file.\n");
}

TEST_F(Commands, TpuConfigRefusesACommandFileWithoutACommand) {
  const std::string blank = write("blank.txt", "\n  \n");
  for (const auto& [file, words] : {std::pair(blank, "has no command; expected one a line"),
                                    std::pair(folder(), "cannot be read: it is a folder. Check --command_file")}) {
    const CommandResult result =
        run({"tpu-config", "--debug", "--tpu_name", "a", "--tpu_zone", "b", "--command_file", file});

    EXPECT_EQ(result.exit_code, 2) << file;
    EXPECT_THAT(result.err, HasSubstr(words)) << file;
  }
}

TEST_F(Commands, RefuseOptionsOfOtherActions) {
  const std::string file = write("x.txt", "");
  const std::vector<std::pair<std::vector<std::string>, const char*>> commands = {
      {{"checkpoint", "list", folder(), "--keep", "3"}, "[checkpoint] --keep is for prune, not for list. Leave it out"},
      {{"checkpoint", "verify", folder(), "--force_takeover"},
       "--force_takeover is for prune and repair, not for veri"},
      {{"checkpoint", "diff", file, file, "--json"}, "--json is for list, not for diff"},
      {{"track", "status", folder(), "--to", "csv"}, "[track] --to is for sync, not for status"},
      {{"track", "recover", folder(), "--options", "{}"}, "--options is for sync, not for recover"},
      {{"board", folder(), "--port", "80"}, "[board] --port is for --serve, not for a page in a file"},
      {{"board", folder(), "--serve", "-o", file}, "--output is for a page in a file, not for --serve"}};
  for (const auto& [words, expected] : commands) {
    const CommandResult result = run(words);

    EXPECT_EQ(result.exit_code, 2) << expected << result.err;
    EXPECT_THAT(result.err, HasSubstr(expected));
  }
}

TEST_F(Commands, WordsOfOptionsThatAreNoObjectAreRefused) {
  for (const std::string words : {"{", "[1]", "no json"}) {
    const CommandResult result = run({"track", "sync", folder(), "--to", "csv", "--options", words});

    EXPECT_EQ(result.exit_code, 2) << words;
    EXPECT_THAT(result.err, StartsWith("[track] --options is ")) << words;
  }
}

TEST_F(Commands, VerifyNamesTheFileThatIsNoRecord) {
  const std::string one = write("one.jsonl", "{\"a\": 1}\nend 9\n");

  EXPECT_THAT(run({"verify", "--compare", one, one}).err,
              HasSubstr("'" + one + "', line 1 is no event of a record: there is no key 'rank' in a map of 1 key. It "
                        "has: a. Record the run again"));
  EXPECT_THAT(run({"verify", "--compare", one}).err, HasSubstr("--compare has 1 file; expected two"));
}

TEST_F(Commands, BashOffersCommandsOptionsAndValues) {
  const std::string script =
      write("try", "source <(" HASTEN_COMMAND
                   " completion bash)\n"
                   "offer() { COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); _hasten; echo ${COMPREPLY[*]}; }\n"
                   "offer hasten la\n"
                   "offer hasten launch --fsdp_v\n"
                   "offer hasten launch --mixed_precision b\n"
                   "offer hasten config u\n");

  EXPECT_EQ(test::run_command({"/bin/bash", script}).out, "launch\n--fsdp_version\nbf16\nupdate\n");
}

TEST_F(Commands, CompletionIsForBashAndZsh) {
  // Not with -o filenames: zsh would then put no blank after an option.
  EXPECT_THAT(run({"completion", "zsh"}).out,
              ::testing::AllOf(StartsWith("autoload -U +X bashcompinit && bashcompinit\n_hasten() {"),
                               ::testing::EndsWith("\ncomplete -o default -F _hasten hasten\n")));
  EXPECT_EQ(run({"completion", "bsh"}).err,
            "[completion] 'bsh' is neither bash nor zsh, did you mean 'bash'? See hasten completion --help.\n");
}

TEST_F(Commands, ToFsdp2ConvertsTheSectionAndKeepsTheRest) {
  const std::string file =
      write("fsdp.yaml",
            "distributed_type: FSDP\nsurprise: 3\nfsdp_config:\n  fsdp_sharding_strategy: shard_grad_op\n"
            "  fsdp_use_orig_params: true\n  fsdp_forward_prefetch: false\n  fsdp_own: x\n");
  const CommandResult done = run({"to-fsdp2", "--config_file", file, "--output_file", folder() + "/two.yaml"});
  EXPECT_EQ(done.exit_code, 0) << done.err;
  EXPECT_THAT(done.err, HasSubstr("fsdp_use_orig_params is removed"));
  std::ifstream two(folder() + "/two.yaml");
  const std::string text((std::istreambuf_iterator<char>(two)), {});
  EXPECT_EQ(text,
            "distributed_type: FSDP\nfsdp_config:\n  fsdp_own: x\n  fsdp_reshard_after_forward: false\n  fsdp_version: "
            "2\nsurprise: 3\n");
  EXPECT_THAT(run({"to-fsdp2", "--config_file", file}).err, HasSubstr("--overwrite"));
  EXPECT_THAT(run({"to-fsdp2", "--config_file", file, "--output_file", file}).err, HasSubstr("exists already"));
  EXPECT_EQ(run({"to-fsdp2", "--config_file", file, "--overwrite"}).exit_code, 0);
}

TEST_F(Commands, PlanPrintsTheMemoryOfEveryStrategy) {
  const CommandResult done = run({"plan", "--memory", "1B", "--ranks_per_host", "8", "--limit_gib", "20"});
  EXPECT_EQ(done.exit_code, 0) << done.err;
  EXPECT_THAT(done.out, HasSubstr("1000000000 parameters on 1 host with 8 ranks each"));
  EXPECT_THAT(done.out, HasSubstr("the first that fits is stage 2"));
  const std::string config =
      write("ds.json", "{\"bf16\": {\"enabled\": true}, \"zero_optimization\": {\"stage\": 3}} // words\n");
  EXPECT_THAT(run({"plan", "--memory", "--config", config, "124M"}).out, HasSubstr("two-byte compute"));
  EXPECT_THAT(run({"plan", "--memory", "much"}).err, HasSubstr("'much' is no number of parameters"));
  EXPECT_THAT(run({"plan", "124M"}).err, HasSubstr("--memory"));
}

}  // namespace
}  // namespace hasten
