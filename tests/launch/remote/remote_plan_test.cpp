#include "hasten/launch/remote/remote_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "hasten/core/error.h"

namespace hasten::launcher {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using ::testing::Not;
using ::testing::UnorderedElementsAre;
using Words = std::vector<std::string>;

const Cluster kPbs = {.name = "PBS", .hosts = {{"n11", 2}, {"n12", 2}}, .hosts_origin = "PBS_NODEFILE", .port = 16000};

std::optional<RemotePlan> remote_plan_of(const Words& options, const Cluster& cluster = {},
                                         const std::map<std::string, std::string>& variables = {}) {
  const auto environment = Environment::of(variables);
  LaunchSettings settings(read_command_line(launch_options(), options), nullptr, environment);
  settings.take(cluster);
  return plan_remote(settings, cluster, {"./train", "--lr", "1"}, environment,
                     [](const std::string& path) -> std::optional<std::string> {
                       if (path != "hosts") return std::nullopt;
                       return "node1 slots=4\nnode2 slots=4\nsmall slots=2\n";
                     });
}

std::string remote_refusal(const Words& options, const Cluster& cluster = {}) {
  try {
    remote_plan_of(options, cluster);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(RemotePlan, ThereIsNoneUnlessItIsAskedFor) {
  EXPECT_FALSE(remote_plan_of({}));
  EXPECT_FALSE(remote_plan_of({"-n", "8"}, kPbs));
  EXPECT_FALSE(remote_plan_of({"--nnodes", "2", "--node_rank", "1", "--master_addr", "n11"}, kPbs));
  EXPECT_FALSE(remote_plan_of({"--nnodes", "2", "--master_addr", "h"}));
  EXPECT_FALSE(remote_plan_of({"--hostfile", "hosts", "--deepspeed_multinode_launcher", "standard"}));
}

TEST(RemotePlan, FiltersWithoutMachinesAreRefused) {
  EXPECT_EQ(remote_refusal({"--include", "node1"}),
            "[launch] --include 'node1' chooses among machines, and there is neither a hostfile nor a job that names "
            "some. Give --hostfile, or leave it out.");
  EXPECT_NE(remote_refusal({"--exclude", "node1"}), "");
  EXPECT_EQ(remote_refusal({"--include", "node1", "--hostfile", "hosts"}), "");
}

TEST(RemotePlan, EachMachineGetsTheCommandOfAStaticRun) {
  const auto run = remote_plan_of({"--hostfile", "hosts", "--exclude", "small", "--mixed_precision", "bf16", "--cpu"});

  const RemoteTask task = task_for(*run, 1, "/home/me");

  EXPECT_EQ(run->launcher, RemoteLauncher::kSsh);
  EXPECT_EQ(task.folder, "/home/me");
  EXPECT_THAT(task.words,
              ElementsAre("--node_rank=1", "--nnodes=2", "--master_addr=node1", "--master_port=29500",
                          "--nproc_per_node=4", "--cpu", "--mixed_precision=bf16", "--", "./train", "--lr", "1"));
}

TEST(RemotePlan, WhatTheUserSaysOfProcessesAndMeetingPointCounts) {
  const auto run =
      remote_plan_of({"--hostfile", "hosts", "-n", "6", "--main_process_ip", "10.0.0.1", "--master_port", "7"});

  EXPECT_THAT(run->words, Contains("--master_addr=10.0.0.1"));
  EXPECT_THAT(run->words, Contains("--master_port=7"));
  EXPECT_THAT(run->words, Contains("--num_processes=6"));
  EXPECT_THAT(run->words, Not(Contains(HasSubstr("--nproc_per_node"))));
}

TEST(RemotePlan, SlotsThatAFilterNamesAreTheVisibleGpus) {
  const auto run = remote_plan_of({"--hostfile", "hosts", "--include", "node1:1,3@node2:0,2"});

  EXPECT_EQ(task_for(*run, 1, "/").variables.at("CUDA_VISIBLE_DEVICES"), "0,2");
}

TEST(RemotePlan, MachinesHaveAsManyProcessesAsSlots) {
  EXPECT_THAT(remote_plan_of({"--hostfile", "hosts"})->words, Contains("--nproc_per_node=4,4,2"));
  EXPECT_THAT(remote_plan_of({"--hostfile", "hosts", "--nproc_per_node", "2"})->words, Contains("--nproc_per_node=2"));
  EXPECT_THAT(remote_refusal({"--hostfile", "hosts", "--launcher", "openmpi"}),
              HasSubstr("node1 has 4 slots and small 2"));
}

TEST(RemotePlan, AcceleratesHostfileIsForMpirun) {
  const auto run =
      remote_plan_of({"--mpirun_hostfile", "hosts", "--exclude", "small", "-n", "8", "--num_machines", "2"});

  EXPECT_EQ(run->launcher, RemoteLauncher::kOpenMpi);
  EXPECT_THAT(run->words, Contains("--num_processes=8"));
  EXPECT_THAT(run->words, Contains("--nnodes=2"));
  EXPECT_THAT(run->words, Not(Contains(HasSubstr("hostfile"))));
  EXPECT_EQ(remote_plan_of({"--mpirun_hostfile", "hosts", "--launcher", "ssh"})->launcher, RemoteLauncher::kSsh);
}

TEST(RemotePlan, AFileThatAllMachinesReadStartsNothingWhereTheyWereStartedAlready) {
  const Config file{.values = core::Value::map({{"distributed_type", "MULTI_CPU"},
                                                {"mpirun_config", core::Value::map({{"mpirun_hostfile", "hosts"}})}})};
  const auto environment = Environment::of({});
  const LaunchSettings settings(read_command_line(launch_options(), {"-n", "8"}), &file, environment);
  const auto two = [](const std::string&) { return std::optional<std::string>("a slots=4\nb slots=4\n"); };
  const Cluster step{.name = "OpenMPI", .started_on_each = true};

  EXPECT_TRUE(plan_remote(settings, {}, {"./train"}, environment, two));
  EXPECT_FALSE(plan_remote(settings, step, {"./train"}, environment, two));
}

TEST(RemotePlan, DeepSpeedsOptionsMeanTheSame) {
  const auto run = remote_plan_of({"--deepspeed_hostfile", "hosts", "--deepspeed_inclusion_filter", "node2",
                                   "--deepspeed_multinode_launcher", "pdsh"});

  EXPECT_EQ(run->launcher, RemoteLauncher::kPdsh);
  EXPECT_THAT(run->hosts, ElementsAre(ChosenHost{"node2", {0, 1, 2, 3}}));
  EXPECT_THAT(remote_refusal({"--deepspeed_hostfile", "hosts", "--deepspeed_multinode_launcher", "mvapich"}),
              HasSubstr("hasten starts itself through ssh, pdsh, openmpi or slurm"));
}

TEST(RemotePlan, AJobsMachinesAreUsedWhereMoreThanOneIsAskedFor) {
  const auto run = remote_plan_of({"--nnodes", "2"}, kPbs);

  EXPECT_EQ(run->launcher, RemoteLauncher::kSsh);
  EXPECT_THAT(run->hosts, ElementsAre(ChosenHost{"n11", {0, 1}}, ChosenHost{"n12", {0, 1}}));
  EXPECT_THAT(run->words, Contains("--master_port=16000"));
  EXPECT_EQ(remote_plan_of({"--launcher", "openmpi"}, kPbs)->launcher, RemoteLauncher::kOpenMpi);
  EXPECT_EQ(remote_plan_of({"--nnodes", "2"}, {.name = "Slurm", .hosts = {{"a", 1}, {"b", 1}}})->launcher,
            RemoteLauncher::kSlurm);
  EXPECT_EQ(remote_refusal({"--nnodes", "two"}, kPbs),
            "[launch] --nnodes: 'two' is neither a number of machines nor MIN:MAX.");
  EXPECT_EQ(remote_refusal({"--nnodes", "3"}, kPbs), "[launch] --nnodes 3: the job has 2 machines (PBS_NODEFILE).");
  EXPECT_THAT(remote_refusal({"--launcher", "ssh"}), HasSubstr("Give --hostfile"));
}

TEST(RemotePlan, VariablesOfLibrariesComeAlongAndThoseOfTheSessionStay) {
  const auto chosen = forwarded(Environment::of({{"NCCL_DEBUG", "INFO"},
                                                 {"PATH", "/bin"},
                                                 {"OMP_NUM_THREADS", "2"},
                                                 {"HOME", "/root"},
                                                 {"AWS_SECRET_ACCESS_KEY", "x"},
                                                 {"SSH_AUTH_SOCK", "/tmp/s"},
                                                 {"CUDA_VISIBLE_DEVICES", "1"}}));

  EXPECT_EQ(chosen,
            (std::map<std::string, std::string>{{"NCCL_DEBUG", "INFO"}, {"OMP_NUM_THREADS", "2"}, {"PATH", "/bin"}}));
}

TEST(RemotePlan, WhatAConfigurationFileSaysIsToldAsSuch) {
  const core::Value::Map values = {{"distributed_type", {std::string("FSDP")}}, {"use_cpu", {true}}};
  const Config file = {.path = "c.yaml", .given = values, .values = values};
  const Words words = {"--hostfile", "hosts", "--max_restarts", "1"};
  const LaunchSettings settings(read_command_line(launch_options(), words), &file, Environment::of({}));

  const auto run = plan_remote(settings, {}, {"./train"}, Environment::of({}),
                               [](const std::string&) { return std::optional<std::string>("node1 slots=1\n"); });

  EXPECT_THAT(run->words, IsSupersetOf({"--cpu", "--use_fsdp", "--max_restarts=1"}));
  EXPECT_THAT(run->from_file, UnorderedElementsAre("cpu", "use_fsdp"));
}

TEST(RemotePlan, ATaskSurvivesItsWayAsText) {
  const RemoteTask task = {"/a b/caf\xe9", {{"X", "it's \"é\"\n$Y"}}, {"sh", "-c", "echo 'a\xff'; exit"}, {"cpu"}};

  const std::string line = to_text(task);
  const RemoteTask back = task_in(line);

  EXPECT_EQ(line.find_first_not_of("0123456789abcdef"), std::string::npos);
  EXPECT_EQ(back.folder, task.folder);
  EXPECT_EQ(back.variables, task.variables);
  EXPECT_EQ(back.words, task.words);
  EXPECT_EQ(back.from_file, task.from_file);
  EXPECT_THROW(task_in("hello"), UsageError);
}

TEST(RemotePlan, CommandsNameMachinesAndTheTasksOfPdshMpirunAndSrunAreTheirArguments) {
  auto run = *remote_plan_of({"--hostfile", "hosts", "--exclude", "small", "--launcher_args", "-p 2222"});

  EXPECT_THAT(command_for_one(run, 1, "/opt/it's/hasten", "/"),
              ElementsAre("ssh", "-p", "2222", "-o", "BatchMode=yes", "-o", "ServerAliveInterval=3", "-o",
                          "ServerAliveCountMax=3", "-T", "node2", "'/opt/it'\\''s/hasten' remote follow"));
  run.launcher = RemoteLauncher::kSlurm;
  EXPECT_THAT(command_for_all(run, "hasten", "/"),
              ElementsAre("srun", "--nodes=2", "--ntasks=2", "--ntasks-per-node=1", "--kill-on-bad-exit=1",
                          "--nodelist=node1,node2", "-p", "2222", "hasten", "remote", "watch-parent",
                          to_text(task_for(run, std::nullopt, "/"))));
}

}  // namespace
}  // namespace hasten::launcher
