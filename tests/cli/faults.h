// Random faults in runs of `hasten launch`: each run must end as specified, with the right root cause, and
// leave no process. What is random comes from one seed, which every failure prints with the kind.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <iostream>
#include <memory>
#include <random>
#include <sstream>

#include "cli/ssh_machines.h"
#include "hasten/core/env.h"
#include "hasten/core/text.h"

namespace hasten::test {

class Faults : public SshMachines {
 protected:
  // `num_runs` of them, the kinds in turn.
  void run_faults(int num_runs) {
    const auto given = Environment::current().integer("HASTEN_TEST_SEED", 0, UINT32_MAX);
    const auto seed = static_cast<unsigned>(given.value_or(std::random_device()()));
    random_.seed(seed);
    std::cout << "HASTEN_TEST_SEED=" << seed << std::endl;
    std::vector<std::pair<const char*, void (Faults::*)()>> kinds = {
        {"a worker is killed", &Faults::kill_worker},
        {"a worker fails", &Faults::worker_fails},
        {"a keeper is killed", &Faults::kill_keeper},
        {"the launcher is killed", &Faults::kill_launcher},
        {"the launcher is killed while it starts", &Faults::kill_launcher_early},
        {"a worker is stopped and the run is told to end", &Faults::stop_worker_and_end},
        {"a worker is stopped and another is killed", &Faults::stop_worker_and_kill_another},
        {"a worker is killed in each of two attempts", &Faults::kill_worker_twice},
        {"the launcher is stopped while a worker is killed", &Faults::stop_launcher_and_kill_worker}};
    if (disks_can_be_made()) {
      kinds.emplace_back("the disk of the logs is full and a worker fails", &Faults::full_disk);
    } else {
      std::cout << "without the full disk: this machine has no user namespaces" << std::endl;
    }
    if (geteuid() == 0 && run_command({"/usr/bin/unshare", "-n", "true"}).exit_code == 0) {
      ASSERT_NO_FATAL_FAILURE(make_ssh_machines(3));
      kinds.emplace_back("all processes of a machine are killed", &Faults::kill_machine);
      kinds.emplace_back("the cable of a machine is cut", &Faults::cut_machine);
      kinds.emplace_back("the launcher of several machines is killed", &Faults::kill_launcher_of_machines);
    } else {
      std::cout << "without several machines: there are no network namespaces, or this is not root"
                << std::endl;
    }
    for (int run = 0; run < num_runs && !HasFailure(); ++run) {
      const auto& [kind, fault] = kinds[static_cast<size_t>(run) % kinds.size()];
      SCOPED_TRACE(text(kind, ", run ", run, ", HASTEN_TEST_SEED=", seed));
      alarm(120);  // the end of a run that hangs, and of this program
      (this->*fault)();
      Command::wait_for_orphans();
      EXPECT_TRUE(std::filesystem::is_empty(temporary()));
    }
    alarm(0);
  }

 private:
  struct Worker {
    pid_t pid = 0;
    pid_t keeper = 0;
  };

  int draw(int least, int most) { return std::uniform_int_distribution(least, most)(random_); }

  // Workers with children of their own; some of them all ignore SIGTERM. `at_end` is what a worker does once
  // it is ready.
  std::vector<std::string> command(int num_workers, std::vector<std::string> options,
                                   const std::string& at_end) {
    const std::string stubborn = draw(0, 3) == 0 ? "trap '' TERM; " : "";
    const std::string children =
        text("i=0; while [ $i -lt ", draw(0, 3), " ]; do sleep 1000 & i=$((i+1)); done; ");
    options.insert(options.end(), {"-n", text(num_workers), "--shutdown_timeout", "0.1"});
    return script_words(options, stubborn + children + "echo ready $RANK $$ $PPID; " + at_end);
  }
  static constexpr const char* kWork = "while :; do echo noise >&2; sleep 0.01; done";

  // By rank, once all are ready. Other lines are left out.
  static std::vector<Worker> ready(const Command& command, int num_workers) {
    std::vector<Worker> workers(static_cast<size_t>(num_workers));
    for (int num_ready = 0; num_ready < num_workers;) {
      std::istringstream line(command.read_line());
      std::string word;
      size_t rank = 0;
      Worker worker;
      if (!(line >> word)) throw std::runtime_error("the run ended before its workers were ready");
      if (word != "ready" || !(line >> rank >> worker.pid >> worker.keeper)) continue;
      workers.at(rank) = worker;
      ++num_ready;
    }
    return workers;
  }

  static void expect_root_cause(const CommandResult& result, int rank, const std::string& end) {
    EXPECT_THAT(result.err, testing::HasSubstr(text("╭ hasten: rank ", rank, " of ")));
    EXPECT_THAT(result.err, testing::HasSubstr(text(" failed first: ", end, "\n")));
  }

  void kill_one(pid_t Worker::*whom) {
    const int num_workers = draw(1, 4), victim = draw(0, num_workers - 1);
    Command run(command(num_workers, {}, kWork), environment());
    const auto workers = ready(run, num_workers);

    kill(workers[static_cast<size_t>(victim)].*whom, SIGKILL);
    const CommandResult result = run.finish();

    EXPECT_EQ(result.exit_code, 137);
    expect_root_cause(result, victim, "killed by SIGKILL");
  }
  void kill_worker() { kill_one(&Worker::pid); }
  void kill_keeper() { kill_one(&Worker::keeper); }

  void worker_fails() {
    const int num_workers = draw(1, 4), victim = draw(0, num_workers - 1), exit_code = draw(1, 100);
    const std::string fail =
        text("[ $RANK = ", victim, " ] && { echo last words >&2; exit ", exit_code, "; }; ");

    const CommandResult result = run_command(command(num_workers, {}, fail + kWork), environment());

    EXPECT_EQ(result.exit_code, exit_code);
    expect_root_cause(result, victim, text("exit code ", exit_code));
    EXPECT_THAT(result.err, testing::HasSubstr("│   last words\n╰"));
  }

  void kill_launcher() {
    const int num_workers = draw(1, 4);
    Command run(command(num_workers, {}, kWork), environment());
    ready(run, num_workers);

    kill(run.pid(), SIGKILL);

    EXPECT_EQ(run.finish().exit_code, 137);
  }

  void kill_launcher_early() {
    Command run(command(draw(1, 4), {}, kWork), environment());

    usleep(static_cast<useconds_t>(draw(0, 15000)));  // somewhere between its first and its last fork
    kill(run.pid(), SIGKILL);

    EXPECT_EQ(run.finish().exit_code, 137);
    Command::wait_for_orphans();
    // Before it has a keeper, nobody but the launcher itself could remove its folder.
    for (const auto& entry : std::filesystem::directory_iterator(temporary())) {
      EXPECT_TRUE(std::filesystem::is_empty(entry));
      std::filesystem::remove(entry);
    }
  }

  void stop_worker_and_end() {
    const int num_workers = draw(1, 4), victim = draw(0, num_workers - 1);
    Command run(command(num_workers, {}, kWork), environment());
    const auto workers = ready(run, num_workers);

    kill(workers[static_cast<size_t>(victim)].pid, SIGSTOP);
    kill(run.pid(), SIGTERM);

    EXPECT_EQ(run.finish().exit_code, 143);
  }

  void stop_worker_and_kill_another() {
    const int num_workers = draw(2, 4), victim = draw(1, num_workers - 1);
    Command run(command(num_workers, {}, kWork), environment());
    const auto workers = ready(run, num_workers);

    kill(workers[0].pid, SIGSTOP);
    kill(workers[static_cast<size_t>(victim)].pid, SIGKILL);
    const CommandResult result = run.finish();

    EXPECT_EQ(result.exit_code, 137);
    expect_root_cause(result, victim, "killed by SIGKILL");
  }

  void full_disk() {
    const int num_workers = draw(1, 4), victim = draw(0, num_workers - 1), exit_code = draw(1, 100);
    const std::string work =
        text("head -c 300000 /dev/zero; [ $RANK = ", victim, " ] && exit ", exit_code, "; ");
    const auto launch =
        command(num_workers, {"--log_dir", folder() / "disk", draw(0, 1) == 0 ? "--tee" : "--redirects", "3"},
                work + kWork);

    const CommandResult result = run_command(on_a_disk_of("128k", launch), environment());

    EXPECT_EQ(result.exit_code, exit_code);
    EXPECT_THAT(result.err, testing::HasSubstr("No space left on device"));
    expect_root_cause(result, victim, text("exit code ", exit_code));
  }

  void kill_worker_twice() {
    const int num_workers = draw(1, 4);
    Command run(command(num_workers, {"--max_restarts", "1", "--monitor_interval", "0"}, kWork),
                environment());
    int victim = 0;

    for (int attempt = 0; attempt < 2; ++attempt) {
      const auto workers = ready(run, num_workers);
      victim = draw(0, num_workers - 1);
      kill(workers[static_cast<size_t>(victim)].pid, SIGKILL);
    }
    const CommandResult result = run.finish();

    EXPECT_EQ(result.exit_code, 137);
    expect_root_cause(result, victim, "killed by SIGKILL");
  }

  // Started from machine 2 on machines 0 and 1.
  std::unique_ptr<Command> start_on_machines(int workers_each) {
    const std::string patience = " -o ServerAliveInterval=1 -o ServerAliveCountMax=2";
    const auto words = command(2 * workers_each,
                               {"--hostfile", hostfile(0, 1, workers_each), "--launcher_args",
                                "-F " + ssh_config().string() + patience},
                               kWork);
    auto run = std::make_unique<Command>(on_machine(2, words), environment());
    ready(*run, 2 * workers_each);
    return run;
  }

  static void expect_machine(const CommandResult& result, int machine) {
    EXPECT_EQ(result.exit_code, 255);
    EXPECT_THAT(result.err, testing::HasSubstr(text("hasten: machine ", machine, " of 2 (", address(machine),
                                                    ") ended first: exit code 255; ssh")));
  }

  // What a launcher that was killed together with all its keepers could not remove.
  void remove_what_is_left() const {
    for (const auto& entry : std::filesystem::directory_iterator(temporary())) {
      EXPECT_THAT(entry.path().filename().string(), testing::StartsWith("hasten_"));
      std::filesystem::remove_all(entry);
    }
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

  void stop_launcher_and_kill_worker() {
    const int num_workers = draw(1, 4), victim = draw(0, num_workers - 1);
    Command run(command(num_workers, {}, kWork), environment());
    const auto workers = ready(run, num_workers);

    kill(run.pid(), SIGSTOP);
    kill(workers[static_cast<size_t>(victim)].pid, SIGKILL);
    kill(run.pid(), SIGCONT);
    const CommandResult result = run.finish();

    EXPECT_EQ(result.exit_code, 137);
    expect_root_cause(result, victim, "killed by SIGKILL");
  }

  std::mt19937 random_;
};

}  // namespace hasten::test
