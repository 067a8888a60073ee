// One command that starts itself on the machines of a hostfile: real sshd, pdsh and mpirun between machines.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/ssh_machines.h"

namespace hasten {
namespace {

using test::Command;
using test::CommandResult;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;
using Words = std::vector<std::string>;

class Hostfile : public test::SshMachines {
 protected:
  // `hasten launch` on machine 0, for the machines of the hostfile.
  Words launch_words(const std::string& hosts, const Words& more) const {
    Words options = {"--hostfile", hosts, "--launcher_args", "-F " + ssh_config().string(), "--cpu"};
    options.insert(options.end(), more.begin(), more.end());
    return on_machine(0, words(options));
  }
  CommandResult launch(const std::string& hosts, const Words& more) const {
    return test::run_command(launch_words(hosts, more), environment());
  }
  Words all_idle(int num_machines) const {
    for (int i = 0; i < num_machines; ++i) wait_until_idle(i);
    return {};
  }
  // What mpirun starts its daemons with.
  std::string make_agent() const {
    const std::string agent = folder() / "agent";
    std::ofstream(agent) << "#!/bin/sh\nexec ssh -F " << ssh_config().string() << " \"$@\"\n";
    std::filesystem::permissions(agent, std::filesystem::perms::owner_all);
    return agent;
  }
  static std::string self_test() { return std::filesystem::path(HASTEN_COMMAND).replace_filename("hasten-self-test"); }
};

TEST_F(Hostfile, ARunStartsItselfOnItsMachinesThroughSsh) {
  ASSERT_NO_FATAL_FAILURE(make_ssh_machines(3));
  if (IsSkipped()) return;

  const CommandResult result = launch(hostfile(0, 2, 1), {"--no_python", self_test()});

  EXPECT_THAT(result.out, HasSubstr("hasten test on 3 processes, cpu\n")) << result.err;
  EXPECT_THAT(result.out, HasSubstr("\n4 of 4 hold\n"));
  EXPECT_EQ(result.exit_code, 0);
  all_idle(3);
}

TEST_F(Hostfile, SlotsAndFiltersChooseTheWorkers) {
  ASSERT_NO_FATAL_FAILURE(make_ssh_machines(3));
  if (IsSkipped()) return;
  const std::string hosts = hostfile(0, 2, 4);
  const Words show = {"sh", "-c", "echo $(hostname) $RANK/$WORLD_SIZE $LOCAL_RANK gpus $CUDA_VISIBLE_DEVICES"};
  const auto with = [&](Words options) {
    options.insert(options.end(), show.begin(), show.end());
    const CommandResult result = launch(hosts, options);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return test::lines_of(result.out);
  };

  EXPECT_THAT(with({"--include", "10.77.0.2:1,3@10.77.0.3:0,2"}),
              UnorderedElementsAre("node1 0/4 0 gpus 1,3", "node1 1/4 1 gpus 1,3", "node2 2/4 0 gpus 0,2",
                                   "node2 3/4 1 gpus 0,2"));
  EXPECT_THAT(with({"--exclude", "10.77.0.1", "-n", "2"}),
              UnorderedElementsAre("node1 0/2 0 gpus", "node2 1/2 0 gpus"));
}

TEST_F(Hostfile, TheEnvironmentThatMattersAndTheFolderComeAlong) {
  ASSERT_NO_FATAL_FAILURE(make_ssh_machines(2));
  if (IsSkipped()) return;
  auto variables = environment();
  variables.insert({{"NCCL_DEBUG", "it's \"WARN\" $HOME"}, {"SECRET", "mine"}, {"HASTEN_LOG_LEVEL", "info"}});
  const std::string show = "echo \"$(pwd) [$NCCL_DEBUG] [$SECRET] $HASTEN_LOG_LEVEL\"";

  const auto result = test::run_command(launch_words(hostfile(1, 1, 1), {"sh", "-c", show}), variables);

  EXPECT_EQ(result.out, std::filesystem::current_path().string() + " [it's \"WARN\" $HOME] [] info\n") << result.err;
}

TEST_F(Hostfile, TheFirstFailureEndsAllAndItsExitCodeComesBack) {
  ASSERT_NO_FATAL_FAILURE(make_ssh_machines(3));
  if (IsSkipped()) return;

  const CommandResult result =
      launch(hostfile(0, 2, 1), {"sh", "-c", "[ $RANK = 2 ] && { echo last words >&2; exit 7; }; sleep 1000 & wait"});

  EXPECT_EQ(result.exit_code, 7);
  EXPECT_THAT(result.err, HasSubstr("╭ hasten: rank 2 of 3 failed first: exit code 7\n"));
  EXPECT_THAT(result.err, HasSubstr("│   last words\n╰ exit code 7\n"));
  EXPECT_THAT(result.err, HasSubstr("hasten: machine 2 of 3 (10.77.0.3) ended first: exit code 7\n"));
  all_idle(3);
}

TEST_F(Hostfile, MachinesHaveAsManyWorkersAsSlots) {
  ASSERT_NO_FATAL_FAILURE(make_ssh_machines(3));
  if (IsSkipped()) return;
  std::ofstream(folder() / "hosts") << "10.77.0.1 slots=1\n10.77.0.2 slots=3\n10.77.0.3 slots=2\n";

  const CommandResult result = launch(
      folder() / "hosts", {"sh", "-c", "echo $(hostname) $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $GROUP_RANK"});

  EXPECT_THAT(test::lines_of(result.out), UnorderedElementsAre("node0 0/6 0/1 0", "node1 1/6 0/3 1", "node1 2/6 1/3 1",
                                                               "node1 3/6 2/3 1", "node2 4/6 0/2 2", "node2 5/6 1/2 2"))
      << result.err;
  all_idle(3);
}

TEST_F(Hostfile, SigtermReachesTheWorkersEverywhereAndTheirLastWordsComeBack) {
  ASSERT_NO_FATAL_FAILURE(make_ssh_machines(2));
  if (IsSkipped()) return;
  Command command(launch_words(hostfile(0, 1, 1), {"sh", "-c",
                                                   "trap 'echo saved $RANK; exit 0' TERM; echo ready; while :; do "
                                                   "sleep 0.01; done"}),
                  environment());
  for (int i = 0; i < 2; ++i) EXPECT_EQ(command.read_line(), "ready");

  kill(command.pid(), SIGTERM);
  const CommandResult result = command.finish();

  EXPECT_EQ(result.exit_code, 143) << result.err;
  EXPECT_THAT(test::lines_of(result.out), UnorderedElementsAre("saved 0", "saved 1"));
  all_idle(2);
}

TEST_F(Hostfile, ALauncherThatIsKilledLeavesNobodyAnywhere) {
  ASSERT_NO_FATAL_FAILURE(make_ssh_machines(3));
  if (IsSkipped()) return;
  Command command(launch_words(hostfile(0, 2, 2), {"sh", "-c", "trap '' TERM; sleep 1000 & echo ready; wait"}),
                  environment());
  for (int i = 0; i < 6; ++i) EXPECT_EQ(command.read_line(), "ready");

  kill(command.pid(), SIGKILL);
  command.finish();

  all_idle(3);
}

TEST_F(Hostfile, AMachineThatSshDoesNotReachIsNamed) {
  ASSERT_NO_FATAL_FAILURE(make_ssh_machines(2));
  if (IsSkipped()) return;
  std::ofstream(folder() / "hosts") << "10.77.0.1 slots=1\n10.77.0.2 slots=1\n";
  std::ofstream(ssh_config(), std::ios::app) << "  Port 23\n";

  const CommandResult result = launch(folder() / "hosts", {"true"});

  EXPECT_EQ(result.exit_code, 255);
  EXPECT_THAT(result.err, HasSubstr("hasten: machine 1 of 2 (10.77.0.2) ended first: exit code 255; ssh did not "
                                    "reach it, or lost it. Does 'ssh 10.77.0.2 true' work without a question?\n"));
  all_idle(2);
}

TEST_F(Hostfile, PdshStartsThemAsWell) {
  ASSERT_EQ(access("/usr/bin/pdsh", X_OK), 0) << "pdsh is missing: install it";
  ASSERT_NO_FATAL_FAILURE(make_ssh_machines(2));
  if (IsSkipped()) return;
  auto variables = environment();
  variables["PDSH_SSH_ARGS_APPEND"] = "-F " + ssh_config().string();
  const auto with = [&](const std::string& script) {
    return test::run_command(
        on_machine(0, words({"--hostfile", hostfile(0, 1, 1), "--launcher", "pdsh", "sh", "-c", script})), variables);
  };

  const CommandResult good = with("echo $(hostname) $RANK/$WORLD_SIZE");
  const CommandResult bad = with("[ $RANK = 1 ] && exit 7; sleep 1000 & wait");

  EXPECT_THAT(test::lines_of(good.out), UnorderedElementsAre("node0 0/2", "node1 1/2")) << good.err;
  EXPECT_EQ(good.exit_code, 0);
  EXPECT_EQ(bad.exit_code, 7) << bad.err;
  all_idle(2);
}

TEST_F(Hostfile, MpirunStartsThemAsWell) {
  ASSERT_EQ(access("/usr/bin/mpirun", X_OK), 0) << "mpirun is missing: install openmpi-bin";
  ASSERT_NO_FATAL_FAILURE(make_ssh_machines(2));
  if (IsSkipped()) return;
  const std::string agent = make_agent();
  const auto launched = [&](const std::string& script) {
    return on_machine(0, words({"--hostfile", hostfile(0, 1, 1), "--launcher", "openmpi", "--launcher_args",
                                "--allow-run-as-root --mca plm_rsh_agent " + agent, "sh", "-c", script}));
  };

  const CommandResult good = test::run_command(launched("echo $(hostname) $RANK/$WORLD_SIZE"), environment());
  const CommandResult bad = test::run_command(launched("[ $RANK = 1 ] && exit 7; sleep 1000 & wait"), environment());

  EXPECT_THAT(test::lines_of(good.out), UnorderedElementsAre("node0 0/2", "node1 1/2")) << good.err;
  EXPECT_EQ(good.exit_code, 0);
  EXPECT_EQ(bad.exit_code, 7) << bad.err;
  all_idle(2);
}

// The file is on the disk that the machines share, as a home folder is.
TEST_F(Hostfile, AHostfileOfTheConfigurationFileStartsEachMachineOnce) {
  std::filesystem::create_directories(folder() / "hub/accelerate");
  std::ofstream(folder() / "hosts") << "elsewhere slots=2\n";
  std::ofstream(folder() / "hub/accelerate/default_config.yaml")
      << "distributed_type: DEEPSPEED\ndeepspeed_config:\n  deepspeed_hostfile: " << folder() / "hosts"
      << "\nnum_processes: 2\nnum_machines: 1\n";
  std::filesystem::create_directory(folder() / "bin");
  // Runs here what ssh would run elsewhere, but once.
  std::ofstream(folder() / "bin/ssh") << "#!/bin/sh\nmkdir $DIR/called || exit 9\n"
                                      << "for last; do :; done\nexec sh -c \"$last\"\n";
  std::filesystem::permissions(folder() / "bin/ssh", std::filesystem::perms::owner_all);
  auto variables = environment();
  variables["PATH"] = folder().string() + "/bin:/usr/bin:/bin";

  const CommandResult result = test::run_command(words({"sh", "-c", "echo $RANK/$WORLD_SIZE"}), variables);

  EXPECT_THAT(test::lines_of(result.out), UnorderedElementsAre("0/2", "1/2"));
  EXPECT_EQ(result.err, "");
  EXPECT_EQ(result.exit_code, 0);
}

TEST_F(Hostfile, LaunchersThatMpirunStartsAreOneRun) {
  ASSERT_EQ(access("/usr/bin/mpirun", X_OK), 0) << "mpirun is missing: install openmpi-bin";
  ASSERT_NO_FATAL_FAILURE(make_ssh_machines(2));
  if (IsSkipped()) return;
  Words mpirun = {"/usr/bin/mpirun",
                  "--allow-run-as-root",
                  "--mca",
                  "plm_rsh_agent",
                  make_agent(),
                  "--host",
                  "10.77.0.1,10.77.0.2",
                  "--map-by",
                  "ppr:1:node",
                  "-x",
                  "MASTER_ADDR=10.77.0.1"};
  const Words ours = words({"--cpu", "--nproc_per_node", "1", self_test()});
  mpirun.insert(mpirun.end(), ours.begin(), ours.end());

  const CommandResult result = test::run_command(on_machine(0, mpirun), environment());

  EXPECT_THAT(result.out, HasSubstr("hasten test on 2 processes, cpu\n")) << result.err;
  EXPECT_THAT(result.out, HasSubstr("4 of 4 hold\n"));
  EXPECT_EQ(result.exit_code, 0);
  all_idle(2);
}

}  // namespace
}  // namespace hasten
