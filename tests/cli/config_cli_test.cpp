// `hasten config`: the questions through a pipe and in a terminal, default, update.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include "cli/command.h"
#include "cli/terminal.h"

namespace hasten {
namespace {

namespace fs = std::filesystem;
using test::CommandResult;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class Config : public testing::Test {
 protected:
  Config() {
    std::string name = testing::TempDir() + "hasten_config_XXXXXX";
    folder_ = mkdtemp(name.data());
  }
  ~Config() override { fs::remove_all(folder_); }

  std::string path(const std::string& name) const { return folder_ + "/" + name; }
  std::string content_of(const std::string& name) const {
    std::ifstream file(path(name));
    return {std::istreambuf_iterator<char>(file), {}};
  }
  // `answers` come through a pipe.
  CommandResult answer(const std::string& answers, const std::string& words = "") const {
    const std::string script = "printf '" + answers + "' | " + HASTEN_COMMAND + " config " + words;
    return test::run_command({"/bin/sh", "-c", script}, {{"HF_HOME", folder_}});
  }
  CommandResult config(std::vector<std::string> words) const {
    words.insert(words.begin(), {HASTEN_COMMAND, "config"});
    return test::run_command(words, {{"HF_HOME", folder_}, {"CUDA_VISIBLE_DEVICES", ""}});
  }

  std::string folder_;
};

constexpr const char* kOneCpuProcess =
    "compute_environment: LOCAL_MACHINE\n"
    "debug: false\n"
    "distributed_type: 'NO'\n"
    "downcast_bf16: false\n"
    "enable_cpu_affinity: false\n"
    "machine_rank: 0\n"
    "main_training_function: main\n"
    "mixed_precision: bf16\n"
    "num_machines: 1\n"
    "num_processes: 1\n"
    "rdzv_backend: static\n"
    "same_network: false\n"
    "tpu_use_cluster: false\n"
    "tpu_use_sudo: false\n"
    "use_cpu: true\n";

TEST_F(Config, AsksWithNumbersInAPipeAndWritesTheFile) {
  // your own machines, one process, CPU, no compiler, DDP, bf16
  const CommandResult result = answer("\\n0\\nyes\\n\\n\\n2\\n");

  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.out, StartsWith("Where shall it run?\n  0: machines of your own\n  1: Amazon SageMaker\n[0]: "));
  EXPECT_THAT(result.out, EndsWith("The configuration is in " + path("accelerate/default_config.yaml") + ".\n"));
  EXPECT_EQ(content_of("accelerate/default_config.yaml"), kOneCpuProcess);
}

TEST_F(Config, AsksOnlyWhatAnEarlierAnswerMakesAQuestion) {
  // several GPUs, 2 machines, rank 1, address, port, not one network, c10d, …, FSDP 2
  const CommandResult result =
      answer("0\\n2\\n2\\n1\\n10.0.0.1\\n2222\\nno\\n1\\n\\n\\n2\\n1\\n\\n\\n1\\n1000\\n\\n\\n\\n\\n8\\n\\n\\n2\\n",
             "--config_file " + path("c.yaml"));

  EXPECT_EQ(result.err, "");
  const std::string file = content_of("c.yaml");
  EXPECT_THAT(file, HasSubstr("distributed_type: FSDP\n"));
  EXPECT_THAT(file, HasSubstr("  fsdp_auto_wrap_policy: SIZE_BASED_WRAP\n"));
  EXPECT_THAT(file, HasSubstr("  fsdp_min_num_params: 1000\n"));
  EXPECT_THAT(file, HasSubstr("main_process_ip: 10.0.0.1\nmain_process_port: 2222\n"));
  EXPECT_THAT(file, HasSubstr("num_machines: 2\nnum_processes: 8\nrdzv_backend: c10d\n"));
}

TEST_F(Config, FsdpOnTheCpuIsAWayThatALaunchTakes) {
  // several CPU processes, 1 machine, no checks, no mpirun, no compiler, FSDP 2 without units, 2 processes
  const CommandResult asked =
      answer("0\\n1\\n1\\n\\n\\n\\n2\\n1\\n\\n\\n2\\n\\n\\n\\n\\n2\\n\\n", "--config_file " + path("c.yaml"));

  EXPECT_EQ(asked.exit_code, 0) << asked.err;
  EXPECT_THAT(content_of("c.yaml"), HasSubstr("distributed_type: FSDP\n"));
  EXPECT_THAT(content_of("c.yaml"), HasSubstr("use_cpu: true\n"));
  EXPECT_EQ(test::run_command({HASTEN_COMMAND, "launch", "--config_file", path("c.yaml"), "sh", "-c",
                               "echo $ACCELERATE_USE_FSDP $ACCELERATE_USE_CPU $WORLD_SIZE"},
                              {{"HF_HOME", folder_}, {"TMPDIR", folder_}})
                .out,
            "true True 2\ntrue True 2\n");
}

TEST_F(Config, DeepSpeedIsAskedForClippingFoldersOfNvmeAndItsMachines) {
  // several GPUs, 2 machines, ZeRO 3, both parts on NVMe, clipping, pdsh with a hostfile and one node
  const CommandResult asked = answer(
      "0\\n2\\n2\\n0\\nnode1\\n\\n\\n\\n\\n1\\n\\n3\\n2\\n/"
      "fast\\n2\\n\\n4\\nyes\\n-1\\n0.5\\n\\nyes\\n\\n1\\nhosts\\n\\nnode1\\n8\\n\\n\\n2"
      "\\n",
      "--config_file " + path("c.yaml"));

  EXPECT_EQ(asked.exit_code, 0) << asked.err;
  EXPECT_THAT(asked.out, HasSubstr("'-1' is not a number of at least 0.\n"));
  const std::string file = content_of("c.yaml");
  EXPECT_THAT(file, HasSubstr("  deepspeed_hostfile: hosts\n  deepspeed_inclusion_filter: node1\n"
                              "  deepspeed_multinode_launcher: pdsh\n  gradient_accumulation_steps: 4\n"
                              "  gradient_clipping: 0.5\n"));
  EXPECT_THAT(file, HasSubstr("  offload_optimizer_device: nvme\n  offload_optimizer_nvme_path: /fast\n"
                              "  offload_param_device: nvme\n  offload_param_nvme_path: /nvme\n"));
}

TEST_F(Config, AsksAgainUntilAnAnswerFits) {
  const CommandResult result = answer("7\\nx\\n0\\n0\\nmaybe\\nyes\\n\\n\\n\\n");

  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.out,
              HasSubstr("'7' is not a number between 0 and 1.\n[0]: 'x' is not a number between 0 and 1.\n"));
  EXPECT_THAT(result.out, HasSubstr("Please answer yes or no.\n"));
}

TEST_F(Config, AsksAgainForWhatALaunchWouldRefuse) {
  // several CPU processes, 2 machines, number 3, then 1, no address, then one, port 70000, then 29501 …, 1 process,
  // then 4
  const CommandResult result =
      answer("0\\n1\\n2\\n3\\n1\\n\\n10.0.0.1\\n70000\\n29501\\nyes\\nno\\nno\\nno\\n0\\n1\\n3\\n4\\n\\n",
             "--config_file " + path("c.yaml"));

  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("'3' is not a whole number between 0 and 1.\n"));
  EXPECT_THAT(result.out, HasSubstr("This has no default.\n"));
  EXPECT_THAT(result.out, HasSubstr("'70000' is not a whole number between 1 and 65535.\n"));
  EXPECT_THAT(result.out, HasSubstr("'1' is not a whole number of at least 2 that 2 divides.\n"));
  EXPECT_THAT(content_of("c.yaml"), HasSubstr("num_machines: 2\nnum_processes: 4\n"));
}

TEST_F(Config, APrecisionThatWasGivenIsNotAskedFor) {
  const CommandResult result = answer("\\n0\\nyes\\n\\n\\n", "--mixed_precision bf16");

  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(content_of("accelerate/default_config.yaml"), kOneCpuProcess);
  EXPECT_EQ(config({"update", "--mixed_precision", "bf16"}).exit_code, 2);
}

TEST_F(Config, WritesNothingIfTheAnswersEnd) {
  const CommandResult result = answer("0\\n");

  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(result.err, "[config] the answers ended before the questions did. Nothing was written.\n");
  EXPECT_TRUE(fs::is_empty(path("")));
}

TEST_F(Config, InATerminalArrowKeysChoose) {
  test::Terminal terminal;
  terminal.start({HASTEN_COMMAND, "config", "--config_file", path("c.yaml")});
  // Each answer is typed when its question has been shown.
  const std::pair<const char*, const char*> dialogue[] = {{"  Amazon SageMaker", "\033[B\033[A\n"},
                                                          {"  TPU", "\033[A\033[B\n"},
                                                          {"yes/NO]: ", "yes\n"},
                                                          {"torch.compile [yes/NO]: ", "\n"},
                                                          {"  FSDP", "\n"},
                                                          {"  fp8", "jj\n"}};

  for (const auto& [question, keys] : dialogue) {
    terminal.read_until(question);
    terminal.type(keys);
  }
  const auto [exit_code, shown] = terminal.finish();

  EXPECT_EQ(exit_code, 0);
  EXPECT_THAT(shown, HasSubstr("\033[32m> bf16\033[0m"));
  EXPECT_EQ(content_of("c.yaml"), kOneCpuProcess);
}

TEST_F(Config, DefaultWritesWithoutAskingAndOverwritesNothing) {
  const CommandResult first = config({"default", "--mixed_precision", "bf16"});
  const CommandResult second = config({"default"});

  EXPECT_EQ(first.out, "The configuration is in " + path("accelerate/default_config.yaml") + ".\n");
  EXPECT_THAT(content_of("accelerate/default_config.yaml"), HasSubstr("\"mixed_precision\": \"bf16\""));
  EXPECT_EQ(second.exit_code, 2);
  EXPECT_EQ(second.err,
            "[config] '" + path("accelerate/default_config.yaml") +
                "' exists already. Remove it, use hasten config, or name another file with --config_file.\n");
}

TEST_F(Config, UpdateBringsAnOldFileIntoTodaysForm) {
  std::ofstream(path("c.yaml")) << "distributed_type: 'NO'\nfp16: true\ndynamo_backend: INDUCTOR\n";

  const CommandResult result = config({"update", "--config_file", path("c.yaml")});

  EXPECT_EQ(result.out, "The configuration in " + path("c.yaml") + " is up to date.\n");
  EXPECT_THAT(content_of("c.yaml"), HasSubstr("dynamo_config:\n  dynamo_backend: INDUCTOR\n"));
  EXPECT_THAT(content_of("c.yaml"), HasSubstr("mixed_precision: fp16\n"));
}

TEST_F(Config, AWrongWordIsAnsweredWithTheNearest) {
  EXPECT_EQ(config({"defalt"}).err,
            "[config] unknown word 'defalt', did you mean 'default'? See hasten config --help.\n");
  EXPECT_EQ(config({"--mixed_precison", "no"}).err,
            "[config] unknown option '--mixed_precison', did you mean '--mixed_precision'? See hasten config "
            "--help.\n");
}

}  // namespace
}  // namespace hasten
