#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "hasten/launch/plan/compose_environment.h"
#include "launch/plan/accelerate_environment.h"

namespace hasten::launcher {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Variables = std::map<std::string, std::string>;

Machine with_cores(int cores) {
  Machine machine{.folder = "/here"};
  for (int core = 0; core < cores; ++core) {
    machine.cpus.push_back({.number = 2 * core, .core = 2 * core});
    machine.cpus.push_back({.number = 2 * core + 1, .core = 2 * core});
  }
  return machine;
}

LaunchSettings settle(const std::vector<std::string>& words) {
  return LaunchSettings(read_command_line(launch_options(), words), nullptr, Environment::of({}));
}

Environment shared(const std::vector<std::string>& words, const Variables& inherited = {}) {
  const LaunchSettings settings = settle(words);
  const Machine machine = with_cores(6);
  return accelerate_environment(Environment::of(inherited), settings, plan_run(settings, machine), machine);
}

TEST(AccelerateEnvironment, ThreadsFollowThePeerWhoseOptionsChoseTheWorkers) {
  const auto threads = [](const std::vector<std::string>& words) {
    return shared(words).text("OMP_NUM_THREADS").value_or("unset");
  };

  EXPECT_EQ(threads({"--nproc_per_node", "1"}), "unset");  // torchrun
  EXPECT_EQ(threads({"--nproc_per_node", "2"}), "1");
  EXPECT_EQ(threads({"-n", "1"}), "1");  // Accelerate
  EXPECT_EQ(threads({"-n", "2", "--cpu"}), "3");
  EXPECT_EQ(threads({"-n", "8", "--cpu"}), "1");
  EXPECT_EQ(threads({"-n", "2", "--num_cpu_threads_per_process", "5"}), "5");
  EXPECT_EQ(threads({"-n", "2", "--num_cpu_threads_per_process", "auto"}), "3");
}

TEST(AccelerateEnvironment, ThreadsThatTheUserHasSetStayUnlessAnOptionSaysOtherwise) {
  EXPECT_EQ(shared({"-n", "2", "--cpu"}, {{"OMP_NUM_THREADS", "4,2"}}).text("OMP_NUM_THREADS"), "4,2");
  EXPECT_NE(shared({"-n", "2", "--cpu"}, {{"OMP_NUM_THREADS", "0"}}).text("OMP_NUM_THREADS"), "0");
  EXPECT_EQ(shared({"-n", "2", "--cpu"}, {{"MPI_LOCALNRANKS", "-1"}}).text("OMP_NUM_THREADS"),
            shared({"-n", "2", "--cpu"}, {}).text("OMP_NUM_THREADS"));
  EXPECT_EQ(shared({"--num_cpu_threads_per_process", "1"}, {{"OMP_NUM_THREADS", "9"}}).text("OMP_NUM_THREADS"), "1");
}

TEST(AccelerateEnvironment, OnlyTheGroupsThatAreUsedAreHandedOn) {
  const auto plain = shared({"-n", "2"});
  const auto sharded = shared({"-n", "2", "--use_fsdp", "--fsdp_version", "2", "--fsdp_offload_params", "TRUE"});

  EXPECT_FALSE(plain.has("FSDP_VERSION"));
  EXPECT_FALSE(plain.has("ACCELERATE_USE_FSDP"));
  EXPECT_EQ(sharded.text("FSDP_VERSION"), "2");
  EXPECT_EQ(sharded.text("FSDP_OFFLOAD_PARAMS"), "true");
  EXPECT_FALSE(sharded.has("FSDP_AUTO_WRAP_POLICY"));
}

TEST(AccelerateEnvironment, DeepspeedFindsTheCurrentFolder) {
  const auto alone = shared({"--use_deepspeed", "--gradient_clipping", "1"});
  const auto behind = shared({"--use_deepspeed"}, {{"PYTHONPATH", "/a:/b"}});

  EXPECT_EQ(alone.text("PYTHONPATH"), "/here");
  EXPECT_EQ(alone.text("ACCELERATE_GRADIENT_CLIPPING"), "1.0");
  EXPECT_EQ(behind.text("PYTHONPATH"), "/a:/b:/here");
}

TEST(AccelerateEnvironment, AVirtualLocalRankSeesItsOwnGpuOnly) {
  const LaunchSettings settings = settle({"--virtual_local_rank", "--role", "trainer", "--rdzv_id", "job"});
  const RunPlan plan = plan_run(settings, with_cores(1));

  const Machine machine = with_cores(1);
  const auto composed = [&](const std::map<std::string, std::string>& inherited) {
    return compose_environment({.inherited = Environment::of(inherited),
                                .launch = LaunchFacts{settings, plan, machine},
                                .run = {.run_id = plan.run.run_id, .role = plan.run.role}},
                               {.rank = 1, .local_rank = 1, .world_size = 2, .local_world_size = 2});
  };

  const auto of_all = composed({});
  const auto of_some = composed({{"CUDA_VISIBLE_DEVICES", "3,5"}});

  EXPECT_EQ(of_all.text("CUDA_VISIBLE_DEVICES"), "1");
  EXPECT_EQ(of_some.text("CUDA_VISIBLE_DEVICES"), "5");
  EXPECT_EQ(of_some.text("LOCAL_RANK"), "0");
  EXPECT_EQ(of_some.text("ROLE_NAME"), "trainer");
  EXPECT_EQ(of_some.text("TORCHELASTIC_RUN_ID"), "job");
}

TEST(AccelerateEnvironment, TheLocalRankIsAnArgumentWhereItIsAskedFor) {
  const WorkerPlace place{.rank = 7, .local_rank = 3};

  EXPECT_THAT(worker_arguments(settle({"--pass_local_rank"}), place), ElementsAre("--local-rank=3"));
  EXPECT_THAT(worker_arguments(settle({"--pass_local_rank_as", "local_rank"}), place), ElementsAre("--local_rank=3"));
  EXPECT_THAT(worker_arguments(settle({"--pass_local_rank_as", "local-rank"}), place), ElementsAre("--local-rank=3"));
  EXPECT_THAT(worker_arguments(settle({"--use_env"}), place), IsEmpty());
}

}  // namespace
}  // namespace hasten::launcher
