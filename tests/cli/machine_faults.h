// Random faults in runs on several machines (network namespaces) that one command starts through ssh.
#pragma once

#include <csignal>
#include <memory>

#include "cli/local_faults.h"

namespace hasten::test {

class MachineFaults : public LocalFaults {
 protected:
  std::vector<Kind> machine_kinds() {
    return {{"all processes of a machine are killed", [this] { kill_machine(); }},
            {"the cable of a machine is cut", [this] { cut_machine(); }},
            {"the launcher of several machines is killed", [this] { kill_launcher_of_machines(); }}};
  }

 private:
  // Started from machine 2 on machines 0 and 1.
  std::unique_ptr<Command> start_on_machines(int workers_each) {
    const std::string patience = " -o ServerAliveInterval=1 -o ServerAliveCountMax=2";
    const auto words = command(
        2 * workers_each,
        {"--hostfile", hostfile(0, 1, workers_each), "--launcher_args", "-F " + ssh_config().string() + patience},
        kWork);
    auto run = std::make_unique<Command>(on_machine(2, words), environment());
    ready(*run, 2 * workers_each);
    return run;
  }

  static void expect_machine(const CommandResult& result, int machine) {
    EXPECT_EQ(result.exit_code, 255);
    EXPECT_THAT(result.err, ::testing::HasSubstr(text("hasten: machine ", machine, " of 2 (", address(machine),
                                                      ") ended first: exit code 255; ssh")));
  }

  void kill_machine() {
    const int victim = draw(0, 1);
    const auto run = start_on_machines(draw(1, 2));

    kill_all_on(victim, {"sshd"});

    expect_machine(run->finish(), victim);
    for (const int i : {0, 1}) wait_until_idle(i);
    remove_what_is_left();
  }

  void cut_machine() {
    const int victim = draw(0, 1);
    const auto run = start_on_machines(draw(1, 2));
    allow(10);  // the launcher on the far side waits so long for the line to come back

    cut_cable(victim);

    expect_machine(run->finish(), victim);
    for (const int i : {0, 1}) wait_until_idle(i);
    mend_cable(victim);
  }

  void kill_launcher_of_machines() {
    const auto run = start_on_machines(draw(1, 2));

    kill(run->pid(), SIGKILL);

    EXPECT_EQ(run->finish().exit_code, 137);
    for (const int i : {0, 1}) wait_until_idle(i);
  }
};

}  // namespace hasten::test
