#include "hasten/process/rank_info.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "hasten/core/error.h"

namespace hasten::process {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Map = std::map<std::string, std::string>;

const Map kTorchrun = {{"RANK", "5"},
                       {"WORLD_SIZE", "8"},
                       {"LOCAL_RANK", "1"},
                       {"LOCAL_WORLD_SIZE", "4"},
                       {"GROUP_RANK", "1"},
                       {"MASTER_ADDR", "10.0.0.1"},
                       {"MASTER_PORT", "29400"},
                       {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                       {"TORCHELASTIC_RESTART_COUNT", "2"}};
const Map kSlurm = {{"SLURM_JOB_ID", "1234567"},
                    {"SLURM_STEP_ID", "3"},
                    {"SLURM_STEP_NUM_TASKS", "5"},
                    {"SLURM_PROCID", "4"},
                    {"SLURM_LOCALID", "0"},
                    {"SLURM_NODEID", "2"},
                    {"SLURM_STEP_TASKS_PER_NODE", "2(x2),1"},
                    {"SLURM_STEP_NODELIST", "node[07-09]"}};
const Map kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "3"},
                      {"OMPI_COMM_WORLD_SIZE", "4"},
                      {"OMPI_COMM_WORLD_LOCAL_RANK", "3"},
                      {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                      {"PMIX_NAMESPACE", "prterun-host-77@1"}};

/// `base` with some variables changed, or taken away by an empty value.
RankInfo identify_with(const Map& base, const Map& changes = {}) {
  Map variables = base;
  for (const auto& [name, value] : changes) variables[name] = value;
  return read_rank_info(Environment::of(variables));
}

std::string message_of(const Map& base, const Map& changes = {}) {
  try {
    identify_with(base, changes);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no UsageError";
}

TEST(Identify, AnEmptyEnvironmentIsAWorldOfOne) {
  const RankInfo id = identify_with({});

  EXPECT_EQ(id.source, "none");
  EXPECT_EQ(id.world_size, 1);
  EXPECT_EQ(id.rank, 0);
}

TEST(Identify, AddressAndPortAloneMakeNoRun) {
  EXPECT_EQ(identify_with({{"MASTER_ADDR", "10.0.0.1"}, {"MASTER_PORT", "29500"}}).world_size, 1);
}

TEST(Identify, ReadsTorchrunsVariables) {
  const RankInfo id = identify_with(kTorchrun);

  EXPECT_EQ(id.source, "torchrun");
  EXPECT_EQ(id.rank, 5);
  EXPECT_EQ(id.world_size, 8);
  EXPECT_EQ(id.local_rank, 1);
  EXPECT_EQ(id.local_world_size, 4);
  EXPECT_EQ(id.node_rank, 1);
  EXPECT_EQ(id.master_addr, "10.0.0.1");
  EXPECT_EQ(id.master_port, 29400);
  EXPECT_TRUE(id.agent_store);
  EXPECT_EQ(id.restart_count, 2);
}

TEST(Identify, TorchrunsVariablesComeBeforeSlurmsAndOpenMpis) {
  Map all = kTorchrun;
  all.insert(kSlurm.begin(), kSlurm.end());
  all.insert(kOpenMpi.begin(), kOpenMpi.end());

  EXPECT_EQ(identify_with(all).source, "torchrun");
}

TEST(Identify, EachMissingVariableOfARunOverMachinesIsListedAlone) {
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}) {
    EXPECT_THAT(message_of(kTorchrun, {{name, ""}}), HasSubstr(std::string(" but not ") + name + ". ")) << name;
  }
}

TEST(Identify, AHalfSetEnvironmentListsWhatIsSetAndWhatIsMissing) {
  EXPECT_EQ(message_of({{"LOCAL_RANK", "1"}, {"WORLD_SIZE", "4"}}),
            "[state] the environment of torchrun is half set: WORLD_SIZE=4, LOCAL_RANK=1 but not RANK, "
            "MASTER_ADDR, "
            "MASTER_PORT, LOCAL_WORLD_SIZE. Set what is missing, start with hasten launch, or unset all of "
            "them to run "
            "alone.");
}

TEST(Identify, ARunOnOneMachineNeedsNoLocalVariables) {
  for (const char* address : {"127.0.0.1", "localhost", "::1"}) {
    const RankInfo id = identify_with(
        kTorchrun, {{"MASTER_ADDR", address}, {"LOCAL_RANK", ""}, {"LOCAL_WORLD_SIZE", ""}, {"GROUP_RANK", ""}});

    EXPECT_EQ(id.local_rank, 5) << address;
    EXPECT_EQ(id.local_world_size, 8) << address;
    EXPECT_EQ(id.node_rank, 0) << address;
  }
}

TEST(Identify, AWorldOfOneNeedsRankAndWorldSizeOnly) {
  const RankInfo id = identify_with({{"RANK", "0"}, {"WORLD_SIZE", "1"}});

  EXPECT_EQ(id.local_world_size, 1);
  EXPECT_EQ(id.source, "torchrun");
}

TEST(Identify, WithoutGroupRankTheMachineFollowsFromTheRank) {
  EXPECT_EQ(identify_with(kTorchrun, {{"GROUP_RANK", ""}}).node_rank, 1);
}

TEST(Identify, ContradictionsNameTheirNumbers) {
  EXPECT_THAT(message_of(kTorchrun, {{"RANK", "8"}}), HasSubstr("RANK=8 contradicts WORLD_SIZE=8"));
  EXPECT_THAT(message_of(kTorchrun, {{"LOCAL_WORLD_SIZE", "9"}}),
              HasSubstr("LOCAL_WORLD_SIZE=9 contradicts WORLD_SIZE=8"));
  EXPECT_THAT(message_of(kTorchrun, {{"LOCAL_RANK", "4"}}), HasSubstr("LOCAL_RANK=4 contradicts LOCAL_WORLD_SIZE=4"));
  EXPECT_THAT(message_of(kSlurm, {{"SLURM_PROCID", "5"}}),
              HasSubstr("SLURM_PROCID=5 contradicts SLURM_STEP_NUM_TASKS=5"));
  EXPECT_THAT(message_of(kOpenMpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "5"}}),
              HasSubstr("OMPI_COMM_WORLD_LOCAL_SIZE=5 contradicts OMPI_COMM_WORLD_SIZE=4"));
}

TEST(Identify, ValuesThatAreNoNumbersAreNamed) {
  EXPECT_THAT(message_of(kTorchrun, {{"RANK", "first"}}), HasSubstr("RANK='first'"));
  EXPECT_THAT(message_of(kTorchrun, {{"WORLD_SIZE", "0"}}), HasSubstr("WORLD_SIZE='0'"));
  EXPECT_THAT(message_of(kTorchrun, {{"MASTER_PORT", "70000"}}), HasSubstr("MASTER_PORT='70000'"));
}

TEST(Identify, ReadsASlurmStepOfSeveralTasks) {
  const RankInfo id = identify_with(kSlurm);

  EXPECT_EQ(id.source, "slurm");
  EXPECT_EQ(id.rank, 4);
  EXPECT_EQ(id.world_size, 5);
  EXPECT_EQ(id.local_rank, 0);
  EXPECT_EQ(id.node_rank, 2);
  EXPECT_EQ(id.local_world_size, 1);
  EXPECT_EQ(id.master_addr, "node07");
  EXPECT_EQ(id.master_port, 15000 + (31 * 1234567 + 3) % 15000);
  EXPECT_FALSE(id.agent_store);
}

TEST(Identify, CountsTheTasksOfItsOwnSlurmNode) {
  EXPECT_EQ(identify_with(kSlurm, {{"SLURM_NODEID", "0"}}).local_world_size, 2);
  EXPECT_EQ(identify_with(kSlurm, {{"SLURM_NODEID", "1"}}).local_world_size, 2);
  EXPECT_THAT(message_of(kSlurm, {{"SLURM_NODEID", "3"}}), HasSubstr("SLURM_STEP_TASKS_PER_NODE='2(x2),1'"));
  EXPECT_THAT(message_of(kSlurm, {{"SLURM_STEP_TASKS_PER_NODE", "two"}}), HasSubstr("'two'"));
}

TEST(Identify, TakesTheFirstHostOfASlurmNodeList) {
  const std::vector<std::pair<std::string, std::string>> lists = {{"alpha,beta", "alpha"},
                                                                  {"n1", "n1"},
                                                                  {"node[01-03,07],gpu1", "node01"},
                                                                  {"gpu[5,7-9]-ib,x", "gpu5-ib"},
                                                                  {"r[1-2]n[3-4]", "r1n3"}};
  for (const auto& [list, host] : lists) {
    EXPECT_EQ(identify_with(kSlurm, {{"SLURM_STEP_NODELIST", list}}).master_addr, host) << list;
  }
}

TEST(Identify, GivenAddressAndPortComeBeforeDerivedOnes) {
  const Map given = {{"MASTER_ADDR", "10.1.1.1"}, {"MASTER_PORT", "4000"}};

  EXPECT_EQ(identify_with(kSlurm, given).master_addr, "10.1.1.1");
  EXPECT_EQ(identify_with(kSlurm, given).master_port, 4000);
  EXPECT_EQ(identify_with(kOpenMpi, given).master_addr, "10.1.1.1");
  EXPECT_EQ(identify_with(kOpenMpi, given).master_port, 4000);
}

TEST(Identify, ASlurmStepOnOneMachineMeetsAtTheLoopbackAddress) {
  EXPECT_EQ(identify_with(kSlurm, {{"SLURM_STEP_TASKS_PER_NODE", "5"}, {"SLURM_NODEID", "0"}}).master_addr,
            "127.0.0.1");
}

TEST(Identify, SlurmShellsAndStepsOfOneTaskAreWorldsOfOne) {
  for (const char* step : {"", "batch", "interactive", "4294967290", "4294967291", "4294967292"}) {
    EXPECT_EQ(identify_with(kSlurm, {{"SLURM_STEP_ID", step}}).world_size, 1) << step;
  }
  EXPECT_EQ(identify_with(kSlurm, {{"SLURM_STEP_NUM_TASKS", "1"}}).source, "none");
}

TEST(Identify, EachMissingVariableOfASlurmStepIsListed) {
  for (const char* name : {"SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_STEP_TASKS_PER_NODE",
                           "SLURM_STEP_NODELIST", "SLURM_JOB_ID"}) {
    EXPECT_THAT(message_of(kSlurm, {{name, ""}}), AllOf(HasSubstr("a Slurm step is half set"), HasSubstr(name)))
        << name;
  }
}

TEST(Identify, ReadsOpenMpisVariables) {
  const RankInfo id = identify_with(kOpenMpi);

  EXPECT_EQ(id.source, "openmpi");
  EXPECT_EQ(id.rank, 3);
  EXPECT_EQ(id.world_size, 4);
  EXPECT_EQ(id.local_rank, 3);
  EXPECT_EQ(id.local_world_size, 4);
  EXPECT_EQ(id.node_rank, 0);
  EXPECT_EQ(id.master_addr, "127.0.0.1");
}

TEST(Identify, OpenMpisPortDependsOnTheJobOnly) {
  const int port = identify_with(kOpenMpi).master_port;

  EXPECT_GE(port, 15000);
  EXPECT_LT(port, 30000);
  EXPECT_EQ(identify_with(kOpenMpi, {{"OMPI_COMM_WORLD_RANK", "0"}}).master_port, port);
  EXPECT_NE(identify_with(kOpenMpi, {{"PMIX_NAMESPACE", "prterun-host-78@1"}}).master_port, port);
  EXPECT_NE(identify_with(kOpenMpi, {{"PMIX_NAMESPACE", ""}, {"OMPI_MCA_ess_base_jobid", "4242"}}).master_port, port);
  EXPECT_THAT(message_of(kOpenMpi, {{"PMIX_NAMESPACE", ""}}), HasSubstr("but not MASTER_PORT"));
}

TEST(Identify, OpenMpiOverMachinesNeedsAnAddress) {
  const Map two_machines = {{"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}};

  EXPECT_THAT(message_of(kOpenMpi, two_machines), HasSubstr("but not MASTER_ADDR"));
  Map with_address = two_machines;
  with_address["MASTER_ADDR"] = "n1";
  EXPECT_EQ(identify_with(kOpenMpi, with_address).node_rank, 1);
}

TEST(Identify, EachMissingVariableOfOpenMpiIsListed) {
  for (const char* name :
       {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"}) {
    EXPECT_THAT(message_of(kOpenMpi, {{name, ""}}), HasSubstr(name)) << name;
  }
}

TEST(Identify, AnotherMpisProcessesAreRefusedRatherThanRunAlone) {
  EXPECT_THAT(message_of({{"PMI_RANK", "0"}, {"PMI_SIZE", "4"}}), HasSubstr("PMI_SIZE=4"));
  EXPECT_EQ(identify_with({{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}}).world_size, 1);
}

}  // namespace
}  // namespace hasten::process
