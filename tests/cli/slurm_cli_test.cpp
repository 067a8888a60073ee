// `hasten launch` under a real Slurm: its controller and a daemon for each of two machines (machines.h).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/daemon.h"
#include "cli/machines.h"

namespace hasten {
namespace {

using test::CommandResult;
using test::Daemon;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;
using Words = std::vector<std::string>;

class Slurm : public test::Machines {
 protected:
  void make_cluster() {
    for (const char* tool : {"/usr/sbin/slurmctld", "/usr/sbin/slurmd", "/usr/bin/srun"})
      ASSERT_EQ(access(tool, X_OK), 0) << tool << " is missing: install slurmctld, slurmd and slurm-client";
    if (geteuid() != 0) GTEST_SKIP() << "slurmd cannot run in a namespace unless this is root";
    ASSERT_NO_FATAL_FAILURE(make_machines(2));
    if (IsSkipped()) return;
    write_configuration();
    start(0, "/usr/sbin/slurmctld");
    for (const int i : {0, 1}) start(i, "/usr/sbin/slurmd");
    const auto num_idle = [&] {
      return test::lines_of(on_login({"/usr/bin/sinfo", "-h", "-N", "-t", "idle", "-o", "%N"}).out).size();
    };
    for (int attempt = 0; num_idle() < 2; ++attempt) ASSERT_LT(attempt, 1000) << content_of(folder() / "log");
  }

  // A command of Slurm's where the controller is.
  CommandResult on_login(const Words& command) const {
    auto variables = environment();
    variables.insert({{"SLURM_CONF", configuration()}, {"MASTER_ADDR", address(0)}, {"HASTEN", HASTEN_COMMAND}});
    return test::run_command(on_machine(0, command), variables);
  }
  CommandResult srun(const Words& options, const Words& launch) const {
    Words all = {"/usr/bin/srun", "--nodes=2"};
    all.insert(all.end(), options.begin(), options.end());
    const Words ours = words(launch);
    all.insert(all.end(), ours.begin(), ours.end());
    return on_login(all);
  }
  // What the batch script `script` has written, and whether it ended with 0.
  CommandResult batch(const std::string& script) const {
    const std::string out = folder() / "batch.out", file = folder() / "batch.sh";
    std::ofstream(file) << "#!/bin/sh\n" << script << "\n";
    const CommandResult job =
        on_login({"/usr/bin/sbatch", "--parsable", "--nodes=2", "--output=" + out, "--open-mode=truncate", file});
    std::string state;
    do {  // sbatch --wait looks every ten seconds only
      state = on_login({"/usr/bin/squeue", "-h", "-t", "all", "-o", "%T", "-j", test::lines_of(job.out).at(0)}).out;
    } while (state == "PENDING\n" || state == "RUNNING\n" || state == "COMPLETING\n");
    return {state == "COMPLETED\n" ? 0 : 1, content_of(out), state};
  }
  void wait_until_idle() const {
    for (const int i : {0, 1}) wait_until_only(i, {"slurmctld", "slurmd", "slurmscriptd"});
  }

 private:
  std::string configuration() const { return folder() / "slurm.conf"; }
  void start(int i, const std::string& program) {
    daemons_.push_back(
        std::make_unique<Daemon>(on_machine(i, {program, "-D", "-f", configuration()}), folder() / "log"));
  }
  void write_configuration() const {
    const std::string place = folder();
    std::ofstream file(configuration());
    file << "ClusterName=test\nSlurmctldHost=node0(" << address(0) << ")\nAuthType=auth/none\nCredType=cred/none\n"
         << "SlurmUser=root\nSlurmdUser=root\nStateSaveLocation=" << place << "/state\nSlurmdSpoolDir=" << place
         << "/spool_%n\nSlurmctldPidFile=" << place << "/slurmctld.pid\nSlurmdPidFile=" << place
         << "/slurmd_%n.pid\nProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nMpiDefault=none\n"
         << "JobAcctGatherType=jobacct_gather/none\nAccountingStorageType=accounting_storage/none\n"
         << "SwitchType=switch/none\nSchedulerType=sched/builtin\nReturnToService=2\nKillWait=2\n";
    for (const int i : {0, 1}) {
      std::filesystem::create_directory(folder() / text("spool_node", i));
      file << "NodeName=node" << i << " NodeAddr=" << address(i) << " CPUs=2\n";
    }
    file << "PartitionName=all Nodes=ALL Default=YES State=UP\n";
    std::filesystem::create_directory(folder() / "state");
  }

  std::vector<std::unique_ptr<Daemon>> daemons_;
};

TEST_F(Slurm, LaunchersThatSrunStartsAreOneRun) {
  ASSERT_NO_FATAL_FAILURE(make_cluster());
  if (IsSkipped()) return;
  const std::string self_test = std::filesystem::path(HASTEN_COMMAND).replace_filename("hasten-self-test");

  const CommandResult result = srun({"--ntasks-per-node=1"}, {"--cpu", "--nproc_per_node", "1", self_test});

  EXPECT_THAT(result.out, HasSubstr("hasten test on 2 processes, cpu\n")) << result.err;
  EXPECT_THAT(result.out, HasSubstr("4 of 4 hold\n"));
  EXPECT_EQ(result.exit_code, 0);
}

TEST_F(Slurm, ExplainSaysWhatCameFromTheStep) {
  ASSERT_NO_FATAL_FAILURE(make_cluster());
  if (IsSkipped()) return;

  const CommandResult result = srun({"--ntasks-per-node=1", "--export=PATH,TMPDIR,HF_HOME,SLURM_CONF"}, {"--explain"});

  EXPECT_THAT(result.out, ::testing::ContainsRegex("nnodes +2 +Slurm: SLURM_STEP_TASKS_PER_NODE\n")) << result.err;
  EXPECT_THAT(result.out, ::testing::ContainsRegex("node_rank +1 +Slurm: SLURM_NODEID\n"));
  EXPECT_THAT(result.out, ::testing::ContainsRegex("master_addr +node0 +Slurm: SLURM_STEP_NODELIST\n"));
}

TEST_F(Slurm, AFailureOnOneMachineEndsTheStepAndLeavesNobody) {
  ASSERT_NO_FATAL_FAILURE(make_cluster());
  if (IsSkipped()) return;

  const CommandResult result =
      srun({"--ntasks-per-node=1", "--kill-on-bad-exit=1"},
           {"--nproc_per_node", "1", "sh", "-c", "[ $RANK = 1 ] && exit 7; sleep 1000 & wait"});

  EXPECT_NE(result.exit_code, 0);
  EXPECT_THAT(result.err, HasSubstr("╭ hasten: rank 1 of 2 failed first: exit code 7\n"));
  wait_until_idle();
}

TEST_F(Slurm, SeveralLaunchersOnAMachineAreRefused) {
  ASSERT_NO_FATAL_FAILURE(make_cluster());
  if (IsSkipped()) return;

  const CommandResult result = srun({"--ntasks-per-node=2"}, {"true"});

  EXPECT_NE(result.exit_code, 0);
  EXPECT_THAT(result.err, HasSubstr("[launch] srun started several launchers on one machine"));
}

TEST_F(Slurm, ABatchShellIsOneMachineUnlessMoreAreAskedFor) {
  ASSERT_NO_FATAL_FAILURE(make_cluster());
  if (IsSkipped()) return;
  const std::string show = "sh -c 'echo $(hostname) $RANK/$WORLD_SIZE of $GROUP_WORLD_SIZE'";

  const CommandResult one = batch("$HASTEN launch -n 2 " + show);
  const CommandResult both = batch("$HASTEN launch --nnodes 2 --master_addr 10.77.0.1 --nproc_per_node 1 " + show);

  EXPECT_THAT(test::lines_of(one.out), UnorderedElementsAre("node0 0/2 of 1", "node0 1/2 of 1"));
  EXPECT_THAT(test::lines_of(both.out), UnorderedElementsAre("node0 0/2 of 2", "node1 1/2 of 2"));
  EXPECT_EQ(both.exit_code, 0);
  wait_until_idle();
}

}  // namespace
}  // namespace hasten
