// `hasten launch`'s options with real processes: what is explained, refused, and handed to the workers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include "cli/command.h"
#include "cli/terminal.h"
#include "hasten/core/env.h"
#include "hasten/launch/plan/affinity.h"

namespace hasten {
namespace {

namespace fs = std::filesystem;
using test::CommandResult;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;

class Options : public testing::Test {
 protected:
  Options() {
    std::string name = testing::TempDir() + "hasten_options_XXXXXX";
    folder_ = mkdtemp(name.data());
  }
  ~Options() override { fs::remove_all(folder_); }

  std::string path(const std::string& name) const { return folder_ + "/" + name; }
  std::string write(const std::string& name, const std::string& content) const {
    fs::create_directories(fs::path(path(name)).parent_path());
    std::ofstream(path(name)) << content;
    fs::permissions(path(name), fs::perms::owner_all);
    return path(name);
  }
  CommandResult launch(std::vector<std::string> words, std::map<std::string, std::string> environment = {}) const {
    words.insert(words.begin(), {HASTEN_COMMAND, "launch"});
    environment.insert({{"HF_HOME", folder_}, {"TMPDIR", folder_}});
    return test::run_command(words, environment);
  }
  // The lines of --explain about `setting`.
  std::string explained(const std::string& setting, std::vector<std::string> words,
                        const std::map<std::string, std::string>& environment = {}) const {
    words.insert(words.begin(), "--explain");
    std::istringstream lines(launch(words, environment).out);
    std::string found;
    for (std::string line; std::getline(lines, line);) {
      if (line.starts_with("  " + setting + " ")) found += line;
    }
    return found;
  }

 private:
  std::string folder_;
};

TEST_F(Options, ExplainSaysWhereEachValueCameFrom) {
  write("accelerate/default_config.yaml", "distributed_type: MULTI_GPU\nnum_processes: 3\nmixed_precision: bf16\n");

  EXPECT_THAT(explained("num_processes", {}), MatchesRegex(" *num_processes +3 +default_config.yaml: num_processes"));
  EXPECT_THAT(explained("num_processes", {"-n", "2"}), MatchesRegex(" *num_processes +2 +option -n"));
  EXPECT_THAT(explained("multi_gpu", {}), MatchesRegex(" *multi_gpu +True +default_config.yaml: distributed_type"));
  EXPECT_THAT(explained("max_restarts", {}, {{"PET_MAX_RESTARTS", "4"}}),
              MatchesRegex(" *max_restarts +4 +PET_MAX_RESTARTS"));
  EXPECT_EQ(explained("role", {}), "");
  EXPECT_THAT(explained("role", {"--explain", "all"}), MatchesRegex(" *role +default +default"));
  EXPECT_THAT(explained("aws_secret_access_key", {"--aws_secret_access_key", "s"}), Not(HasSubstr(" s ")));
}

TEST_F(Options, ExplainShowsWhatIsNotTheDefaultAndWithAllTheRestBehindIt) {
  const std::string few = launch({"--explain", "-n", "2", "train"}).out;
  const std::string all = launch({"-n", "2", "--explain", "all", "train"}).out;

  EXPECT_THAT(few, MatchesRegex("Processes:\n  num_processes  2  option -n\n\n[0-9]+ settings have their defaults; "
                                "hasten launch --explain all shows them.\n"));
  EXPECT_THAT(all, ::testing::StartsWith("Processes:\n  num_processes  2  option -n\n\nDefaults\n\n"));
  EXPECT_THAT(all, HasSubstr("\n  mixed_precision "));
  EXPECT_THAT(launch({"--explain"}).out, ::testing::StartsWith("No setting differs from its default.\n"));
}

TEST_F(Options, ExplainNamesTheGpuOfEachProcess) {
  for (const char* gpu : {"0000:01:00.0", "0000:02:00.0"})
    write(std::string("machine/proc/driver/nvidia/gpus/") + gpu + "/information", "");
  const auto devices = [&](std::vector<std::string> words, std::map<std::string, std::string> environment = {}) {
    words.insert(words.begin(), "--explain");
    environment["HASTEN_MACHINE_ROOT"] = path("machine");
    const std::string all = launch(words, environment).out;
    const auto begin = all.find("\nDevices ");
    return begin == std::string::npos ? "" : all.substr(begin + 1);
  };

  EXPECT_EQ(devices({"-n", "3"}),
            "Devices (2 GPUs):\n  process 0  GPU 0\n  process 1  GPU 1\n"
            "  process 2  none: start 2 processes at most, or give --cpu\n");
  EXPECT_EQ(devices({"-n", "1", "--gpu_ids", "1"}), "Devices (2 GPUs):\n  process 0  GPU 1\n");
  EXPECT_EQ(devices({"-n", "2", "--cpu"}), "Devices (2 GPUs):\n  all processes  CPU  --cpu\n");
}

TEST_F(Options, ExplainStartsNothing) {
  const CommandResult result = launch({"--explain", "touch", path("started")});

  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.err, "");
  EXPECT_FALSE(fs::exists(path("started")));
}

TEST_F(Options, ExplainShowsTheSettingsBeforeItSaysWhatContradicts) {
  const CommandResult result = launch({"--explain", "--cpu", "--multi_gpu"});

  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.out, HasSubstr("option --multi_gpu"));
  EXPECT_EQ(result.err, "[launch] --cpu and --multi_gpu exclude each other; give one. See hasten launch --help.\n");
}

TEST_F(Options, TheConfigurationFileChoosesTheRun) {
  write("accelerate/default_config.yaml", "distributed_type: 'NO'\nnum_processes: 3\n");
  const std::string other =
      write("other.yaml", "distributed_type: MULTI_GPU\nnum_processes: 2\nmixed_precision: fp16\n");

  EXPECT_EQ(launch({"sh", "-c", "echo $WORLD_SIZE"}).out, "3\n3\n3\n");
  // A machine with a GPU, which that file asks for.
  write("machine/dev/nvidia0", "");
  EXPECT_EQ(launch({"--config-file", other, "sh", "-c", "echo $ACCELERATE_MIXED_PRECISION"},
                   {{"HASTEN_MACHINE_ROOT", path("machine")}})
                .out,
            "fp16\nfp16\n");
  EXPECT_EQ(launch({"-n", "1", "sh", "-c", "echo $WORLD_SIZE"}).out, "1\n");
}

TEST_F(Options, DevicesThatAreNotThereAreRefusedBeforeAnythingStarts) {
  write("machine/proc/version", "");
  const std::map<std::string, std::string> bare{{"HASTEN_MACHINE_ROOT", path("machine")}};
  const std::string file = write("xla.yaml", "distributed_type: XLA\nnum_processes: 2\n");

  const CommandResult gpus = launch({"--multi_gpu", "-n", "2", "touch", path("started")}, bare);
  const CommandResult tpu = launch({"--config_file", file, "touch", path("started")}, bare);
  const CommandResult planned = launch({"--explain", "--multi_gpu", "-n", "2", "touch", path("started")}, bare);

  EXPECT_EQ(gpus.exit_code, 2);
  EXPECT_THAT(gpus.err, HasSubstr("--multi_gpu asks for GPUs, and this machine has none"));
  EXPECT_EQ(tpu.exit_code, 2);
  EXPECT_THAT(tpu.err, HasSubstr("distributed_type XLA (xla.yaml) asks for TPUs"));
  EXPECT_EQ(planned.exit_code, 0) << planned.err;
  EXPECT_FALSE(fs::exists(path("started")));
}

TEST_F(Options, WhatCannotBeDoneIsRefusedByName) {
  EXPECT_EQ(launch({"--nnodes", "1:2", "--master_addr", "h", "true"}).err,
            "[launch] --nnodes 1:2 needs --rdzv_backend c10d or etcd. See hasten launch --help.\n");
  EXPECT_EQ(launch({"--logs_specs", "mine", "--event_log_handler", "mine", "true"}).err,
            "[launch] 2 things are wrong:\n"
            "  --logs_specs mine: it names a Python class, and the launcher runs no Python; leave it out\n"
            "  --event_log_handler mine: it names a Python function, and the launcher runs no Python; leave it "
            "out\n"
            "See hasten launch --help.\n");
}

TEST_F(Options, APythonModuleOrAnyScriptIsRunUnbuffered) {
  const std::string python = write("python3", "#!/bin/sh\necho \"$@\"\n");
  const std::string script = write("script", "");
  const std::map<std::string, std::string> environment = {{"PYTHON_EXEC", python}};

  EXPECT_EQ(launch({"-m", "my.module", "--lr", "1"}, environment).out, "-u -m my.module --lr 1\n");
  EXPECT_EQ(launch({"--run_path", script, "-m"}, environment).out, "-u " + script + " -m\n");
  EXPECT_EQ(launch({"--no_python", write("direct.py", "#!/bin/sh\necho direct $@\n"), "1"}).out, "direct 1\n");
  EXPECT_EQ(launch({"true"}, {{"PYTHON_EXEC", "/nowhere"}}).exit_code, 0);
  EXPECT_EQ(launch({"-m", "x"}, {{"PYTHON_EXEC", "/nowhere"}}).err,
            "[launch] PYTHON_EXEC='/nowhere' is no program. Correct it or unset it.\n");
}

TEST_F(Options, TheLocalRankIsAnArgumentBeforeTheUsersIfAskedFor) {
  const std::string python = write("python3", "#!/bin/sh\necho \"$@\"\n");
  const std::string script = write("train.py", "");

  EXPECT_EQ(launch({"--pass_local_rank", script, "a"}, {{"PYTHON_EXEC", python}}).out,
            "-u " + script + " --local-rank=0 a\n");
  EXPECT_EQ(launch({"--pass_local_rank", "echo", "a"}).out, "--local-rank=0 a\n");
  EXPECT_EQ(launch({"--pass_local_rank_as", "local_rank", "echo", "a"}).out, "--local_rank=0 a\n");
  EXPECT_EQ(launch({"--use_env", "--pass_local_rank_as", "local_rank", "echo", "a"}).exit_code, 2);
}

TEST_F(Options, RolesSayHowManyWorkersThereAre) {
  const std::string out =
      launch({"--roles", "ps=1,trainer=2", "sh", "-c", "echo $RANK $ROLE_NAME $ROLE_RANK ${#HASTEN_RUN_KEY}"}).out;
  EXPECT_THAT(out, ::testing::HasSubstr("0 ps 0 64\n"));
  EXPECT_THAT(out, ::testing::HasSubstr("2 trainer 1 64\n"));
}

TEST_F(Options, RoleRunIdAndSignalsReachTheWorkers) {
  EXPECT_EQ(launch({"--role", "trainer", "--rdzv_id", "job9", "sh", "-c", "echo $ROLE_NAME $TORCHELASTIC_RUN_ID"}).out,
            "trainer job9\n");
  EXPECT_THAT(launch({"--standalone", "sh", "-c", "echo $MASTER_ADDR $TORCHELASTIC_RUN_ID"}).out,
              MatchesRegex("localhost [0-9a-f-]{36}\n"));
}

TEST_F(Options, AVirtualLocalRankIsAlwaysZero) {
  const CommandResult result = launch({"-n", "2", "--virtual_local_rank", "sh", "-c",
                                       "echo $LOCAL_RANK $CUDA_VISIBLE_DEVICES > $TMPDIR/$RANK; cat $TMPDIR/$RANK"},
                                      {{"CUDA_VISIBLE_DEVICES", "4,6"}});

  EXPECT_THAT(result.out, ::testing::AnyOf("0 4\n0 6\n", "0 6\n0 4\n"));
}

TEST_F(Options, BoundWorkersMayUseTheirCpusOnly) {
  const auto machine = launcher::this_machine(Environment::current());
  const int count = launcher::problems_of_exclusive_binding(machine, 2).empty() ? 2 : 1;

  const CommandResult result = launch({"-n", std::to_string(count), "--numa_binding", "exclusive", "sh", "-c",
                                       "set -- $(grep Cpus_allowed_list /proc/self/status); echo $2 > $TMPDIR/$RANK"});

  EXPECT_EQ(result.exit_code, 0) << result.err;
  const auto expected = launcher::bound_cpus(machine, "exclusive", count);
  for (int rank = 0; rank < count; ++rank) {
    std::ifstream file(path(std::to_string(rank)));
    std::string list;
    file >> list;
    EXPECT_EQ(launcher::numbers_in(list), expected[static_cast<size_t>(rank)]);
  }
}

TEST_F(Options, HelpIsGroupedAndWithoutColourInAPipe) {
  const std::string help = launch({"--help"}).out;

  EXPECT_THAT(help, HasSubstr("Usage: hasten launch [OPTIONS] PROGRAM [ARGUMENTS]\n"));
  EXPECT_THAT(help,
              HasSubstr("\nProcesses:\n  -n, --num_processes N               Processes in all, on all machines\n"));
  EXPECT_THAT(help, HasSubstr("\nFSDP:\n  With --use_fsdp.\n  --fsdp_version 1|2"));
  EXPECT_THAT(help, Not(HasSubstr("\033")));
}

TEST_F(Options, HelpIsInColourOnATerminal) {
  test::Terminal terminal;
  terminal.start({HASTEN_COMMAND, "launch", "--help"});
  const auto [exit_code, shown] = terminal.finish();

  EXPECT_THAT(shown, HasSubstr("\033[1mProcesses:\033[0m\n  \033[32m-n, --num_processes\033[0m N"));
  EXPECT_EQ(exit_code, 0);
}

}  // namespace
}  // namespace hasten
