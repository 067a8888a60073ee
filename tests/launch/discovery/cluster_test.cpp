// Environments as the schedulers make them; variables that say nothing of machines are left out.
#include "hasten/launch/discovery/cluster.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "hasten/core/error.h"
#include "hasten/launch/plan/run_plan.h"
#include "hasten/launch/plan/settings.h"

namespace hasten::launcher {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Variables = std::map<std::string, std::string>;

// sbatch -N 2: the batch shell.
const Variables kBatch = {{"SLURM_JOB_ID", "4711"},
                          {"SLURM_JOB_NODELIST", "gpu[03-04]"},
                          {"SLURM_JOB_NUM_NODES", "2"},
                          {"SLURM_NNODES", "2"},
                          {"SLURM_NODELIST", "gpu[03-04]"},
                          {"SLURM_TASKS_PER_NODE", "1(x2)"},
                          {"SLURM_NODEID", "0"},
                          {"SLURM_PROCID", "0"},
                          {"SLURM_LOCALID", "0"}};

Variables with(Variables base, const Variables& more) {
  for (const auto& [name, value] : more) base[name] = value;
  return base;
}

// srun --ntasks-per-node 1 in it: the second task.
const Variables kStep = with(kBatch, {{"SLURM_STEP_ID", "2"},
                                      {"SLURM_STEP_NUM_TASKS", "2"},
                                      {"SLURM_STEP_NUM_NODES", "2"},
                                      {"SLURM_STEP_NODELIST", "gpu[03-04]"},
                                      {"SLURM_STEP_TASKS_PER_NODE", "1(x2)"},
                                      {"SLURM_NODEID", "1"},
                                      {"SLURM_PROCID", "1"},
                                      {"PMI_SIZE", "2"},
                                      {"PMI_RANK", "1"}});

// mpirun -np 2 --map-by ppr:1:node of OpenMPI 4.1: the second launcher.
const Variables kOpenMpi = {{"OMPI_COMM_WORLD_SIZE", "2"},
                            {"OMPI_COMM_WORLD_RANK", "1"},
                            {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"},
                            {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                            {"OMPI_UNIVERSE_SIZE", "8"},
                            {"PMIX_NAMESPACE", "2291531777"},
                            {"PMIX_RANK", "1"}};

Cluster found(const Variables& variables, const Variables& files = {}) {
  return find_cluster(Environment::of(variables), [&](const std::string& path) -> std::optional<std::string> {
    const auto file = files.find(path);
    return file == files.end() ? std::nullopt : std::optional(file->second);
  });
}

std::string value(const Cluster& cluster, const std::string& option) {
  for (const FoundValue& found : cluster.values) {
    if (found.option == option) return found.value;
  }
  return "";
}

LaunchSettings settled(const Variables& variables, const std::vector<std::string>& words,
                       const core::Value::Map& of_file = {}) {
  core::Value::Map values = of_file;
  values.emplace_back("distributed_type", core::Value{std::string("NO")});
  const Config config{.path = "/home/me/c.yaml", .given = values, .values = values};
  LaunchSettings settings(read_command_line(launch_options(), words), &config, Environment::of(variables));
  settings.take(found(variables));
  return settings;
}

std::string refused(const LaunchSettings& settings) {
  try {
    plan_run(settings, Machine{.cpus = {Cpu{}}});
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(Cluster, IsNoneOnAMachineOfOnesOwn) {
  const Cluster none = found({{"HOME", "/root"}});

  EXPECT_EQ(none.name, "");
  EXPECT_FALSE(none.started_on_each);
  EXPECT_THAT(none.hosts, IsEmpty());
}

TEST(Cluster, ATaskOfSrunKnowsItsPlace) {
  const Cluster cluster = found(kStep);

  EXPECT_EQ(cluster.name, "Slurm");
  EXPECT_TRUE(cluster.started_on_each);
  EXPECT_EQ(value(cluster, "nnodes"), "2");
  EXPECT_EQ(value(cluster, "node_rank"), "1");
  EXPECT_EQ(value(cluster, "master_addr"), "gpu03");
  EXPECT_EQ(value(cluster, "master_port"), "26043");  // 15000 + (31 * 4711 + 2) % 15000
  EXPECT_EQ(cluster.problem, "");
}

TEST(Cluster, WhatTheUserHasSetForTheMeetingPointCounts) {
  const Cluster cluster = found(with(kStep, {{"MASTER_ADDR", "10.1.0.3"}, {"MASTER_PORT", "7000"}}));

  EXPECT_EQ(value(cluster, "master_addr"), "10.1.0.3");
  EXPECT_EQ(value(cluster, "master_port"), "7000");
}

TEST(Cluster, ABatchOrInteractiveShellIsOneMachineOfAKnownJob) {
  for (const char* reserved : {"4294967291", "4294967290"}) {  // batch, interactive
    const Cluster cluster = found(with(kBatch, {{"SLURM_STEP_ID", reserved}, {"SLURM_STEP_NUM_TASKS", "2"}}));

    EXPECT_FALSE(cluster.started_on_each);
    EXPECT_THAT(cluster.values, IsEmpty());
    EXPECT_THAT(cluster.hosts, ElementsAre(Host{"gpu03", 1}, Host{"gpu04", 1}));
    EXPECT_EQ(cluster.hosts_origin, "SLURM_JOB_NODELIST");
  }
  EXPECT_FALSE(found(kBatch).started_on_each);
}

TEST(Cluster, AStepOfOneTaskIsOneMachine) {
  EXPECT_FALSE(found(with(kStep, {{"SLURM_STEP_NUM_TASKS", "1"}, {"PMI_SIZE", "1"}})).started_on_each);
}

TEST(Cluster, SeveralLaunchersOnOneMachineAreAProblem) {
  EXPECT_EQ(found(with(kStep, {{"SLURM_STEP_NUM_TASKS", "4"}, {"SLURM_STEP_TASKS_PER_NODE", "2(x2)"}})).problem,
            "srun started several launchers on one machine (SLURM_STEP_TASKS_PER_NODE 2(x2)), but each starts all "
            "workers of its machine; use srun --ntasks-per-node 1, and give --nproc_per_node");
  EXPECT_THAT(found(with(kOpenMpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}})).problem,
              HasSubstr("OpenMPI started 2 launchers on this machine (OMPI_COMM_WORLD_LOCAL_SIZE)"));
}

TEST(Cluster, AHalfSetStepIsNoGuess) {
  Variables half = kStep;
  half.erase("SLURM_STEP_NODELIST");

  EXPECT_THROW(found(half), UsageError);
}

TEST(Cluster, ANumberThatIsNoneIsRefusedByThePlan) {
  const Variables pmi = {{"PMI_SIZE", "2"}, {"PMI_RANK", "x"}};

  EXPECT_THROW(plan_run(settled(pmi, {"--master_addr", "h"}), Machine{.cpus = {Cpu{}}}), UsageError);
}

TEST(Cluster, AStepWithoutTasksHasNoMachines) {
  EXPECT_EQ(found(with(kStep, {{"SLURM_STEP_TASKS_PER_NODE", "1(x0)"}})).values.front().value, "0");
}

TEST(Cluster, ALauncherOfMpirunKnowsItsPlaceButNotWhereTheFirstIs) {
  const Cluster cluster = found(kOpenMpi);

  EXPECT_EQ(cluster.name, "OpenMPI");
  EXPECT_EQ(value(cluster, "nnodes"), "2");
  EXPECT_EQ(value(cluster, "node_rank"), "1");
  EXPECT_EQ(value(cluster, "master_addr"), "");
  EXPECT_NE(value(cluster, "master_port"), "");
  EXPECT_EQ(value(found(with(kOpenMpi, {{"MASTER_ADDR", "n1"}})), "master_addr"), "n1");
  EXPECT_FALSE(found(with(kOpenMpi, {{"OMPI_COMM_WORLD_SIZE", "1"}})).started_on_each);
}

TEST(Cluster, OtherMpisAreKnownByTheirPmi) {
  const Cluster hydra = found({{"PMI_SIZE", "3"}, {"PMI_RANK", "2"}, {"MPI_LOCALNRANKS", "1"}, {"PMI_FD", "6"}});
  const Cluster mvapich = found({{"MV2_COMM_WORLD_SIZE", "3"}, {"MV2_COMM_WORLD_RANK", "0"}});

  EXPECT_EQ(hydra.name, "PMI");
  EXPECT_EQ(value(hydra, "nnodes"), "3");
  EXPECT_EQ(value(hydra, "node_rank"), "2");
  EXPECT_EQ(mvapich.name, "MVAPICH");
}

TEST(Cluster, MpirunInAJobMeetsOnItsFirstMachine) {
  const Variables pbs = {{"PBS_JOBID", "1234.head"}, {"PBS_NODEFILE", "/var/spool/pbs/aux/1234.head"}};
  const Variables files = {{"/var/spool/pbs/aux/1234.head", "n11\nn11\nn12\nn12\n"}};

  const Cluster cluster = found(with(kOpenMpi, pbs), files);

  EXPECT_EQ(value(cluster, "master_addr"), "n11");
}

TEST(Cluster, ReadsPbssNodeFile) {
  const Variables pbs = {{"PBS_JOBID", "1234.head"}, {"PBS_NODEFILE", "/aux/1234.head"}};

  const Cluster cluster = found(pbs, {{"/aux/1234.head", "n11\nn11\nn12\nn12\n"}});

  EXPECT_EQ(cluster.name, "PBS");
  EXPECT_FALSE(cluster.started_on_each);
  EXPECT_THAT(cluster.hosts, ElementsAre(Host{"n11", 2}, Host{"n12", 2}));
  EXPECT_THROW(found(pbs), UsageError);
}

TEST(Cluster, ReadsLsfsThreeLists) {
  const std::vector<Host> hosts = {{"hostA", 2}, {"hostB", 1}};

  EXPECT_EQ(found({{"LSB_DJOB_HOSTFILE", "/f"}}, {{"/f", "hostA\nhostA\nhostB\n"}}).hosts, hosts);
  EXPECT_EQ(found({{"LSB_MCPU_HOSTS", "hostA 2 hostB 1"}}).hosts, hosts);
  EXPECT_EQ(found({{"LSB_HOSTS", "hostA hostA hostB"}}).hosts, hosts);
  EXPECT_EQ(found({{"LSB_HOSTS", "hostA"}, {"LSB_JOBID", "8"}}).name, "LSF");
}

TEST(Cluster, IsWeakerThanOptionFileAndEnvironment) {
  const auto by_cluster = settled(kStep, {});
  const auto by_environment = settled(with(kStep, {{"PET_MASTER_PORT", "7001"}}), {});
  const auto by_option = settled(kStep, {"--master_addr", "gpu03-ib", "--node-rank", "0"});

  EXPECT_EQ(by_cluster.of("node_rank").origin, "Slurm: SLURM_NODEID");
  EXPECT_EQ(by_cluster.text("master_addr"), "gpu03");
  EXPECT_EQ(by_environment.text("master_port"), "7001");
  EXPECT_EQ(by_environment.text("node_rank"), "1");
  EXPECT_EQ(by_option.text("master_addr"), "gpu03-ib");
  EXPECT_EQ(by_option.text("node_rank"), "0");
}

TEST(Cluster, MakesThePlanOfARunOnSeveralMachines) {
  const RunPlan plan = plan_run(settled(kStep, {"--nproc_per_node", "4"}), Machine{.cpus = {Cpu{}}});

  EXPECT_EQ(plan.num_processes, 8);
  EXPECT_EQ(plan.max_machines, 2);
  EXPECT_EQ(plan.machine_rank, 1);
  EXPECT_EQ(plan.run.master_addr, "gpu03");
  EXPECT_EQ(plan.run.master_port, 26043);
}

TEST(Cluster, AFileThatAllMachinesReadMustNotSayWhichOneThisIs) {
  const core::Value::Map of_one_machine = {{"num_machines", {int64_t{1}}}, {"machine_rank", {int64_t{0}}}};

  EXPECT_EQ(refused(settled(kStep, {}, of_one_machine)),
            "[launch] 2 things are wrong:\n"
            "  num_machines is 1 (c.yaml: num_machines), but 2 (Slurm: SLURM_STEP_TASKS_PER_NODE); take it out of "
            "the file, or give --nnodes\n"
            "  machine_rank is 0 (c.yaml: machine_rank), but 1 (Slurm: SLURM_NODEID); take it out of the file, or "
            "give --node_rank\n"
            "See hasten launch --help.");
}

TEST(Cluster, WhoWantsOneMachineGetsOne) {
  const RunPlan plan = plan_run(settled(kStep, {"--nnodes", "1"}), Machine{.cpus = {Cpu{}}});

  EXPECT_EQ(plan.max_machines, 1);
  EXPECT_EQ(plan.machine_rank, 0);
  EXPECT_EQ(plan.run.master_addr, "127.0.0.1");
}

}  // namespace
}  // namespace hasten::launcher
