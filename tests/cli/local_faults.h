// Random faults in runs on one machine.
#pragma once

#include <csignal>

#include "cli/fault_run.h"

namespace hasten::test {

class LocalFaults : public FaultRun {
 protected:
  std::vector<Kind> local_kinds() {
    std::vector<Kind> kinds = {
        {"a worker is killed", [this] { kill_one(&Worker::pid); }},
        {"a worker fails", [this] { worker_fails(); }},
        {"a shim is killed", [this] { kill_one(&Worker::shim); }},
        {"the launcher is killed", [this] { kill_launcher(); }},
        {"the launcher is killed while it starts", [this] { kill_launcher_early(); }},
        {"a worker is stopped and the run is told to end", [this] { stop_worker_and_end(); }},
        {"a worker is stopped and another is killed", [this] { stop_worker_and_kill_another(); }},
        {"a worker is killed in each of two attempts", [this] { kill_worker_twice(); }},
        {"the launcher is stopped while a worker is killed", [this] { stop_launcher_and_kill_worker(); }}};
    if (disks_can_be_made()) {
      kinds.push_back({"the disk of the logs is full and a worker fails", [this] { full_disk(); }});
    } else {
      std::cout << "without the full disk: this machine has no user namespaces" << std::endl;
    }
    return kinds;
  }

  // `at_end` is what a worker does once it is ready.
  std::vector<std::string> command(int num_workers, std::vector<std::string> options, const std::string& at_end) {
    options.insert(options.end(), {"-n", text(num_workers), "--shutdown_timeout", "0.1"});
    return script_words(options, worker_script(at_end));
  }

 private:
  void kill_one(pid_t Worker::*whom) {
    const int num_workers = draw(1, 4), victim = draw(0, num_workers - 1);
    Command run(command(num_workers, {}, kWork), environment());
    const auto workers = ready(run, num_workers);

    expect_end_by_killing(workers[static_cast<size_t>(victim)].*whom, victim, run);
  }

  // `pid` is worker `victim`, or keeps it.
  void expect_end_by_killing(pid_t pid, int victim, Command& run) {
    kill(pid, SIGKILL);
    const CommandResult result = run.finish();

    EXPECT_EQ(result.exit_code, 137);
    expect_root_cause(result, victim, "killed by SIGKILL");
  }

  void worker_fails() {
    const int num_workers = draw(1, 4), victim = draw(0, num_workers - 1), exit_code = draw(1, 100);
    const std::string fail = text("[ $RANK = ", victim, " ] && { echo last words >&2; exit ", exit_code, "; }; ");

    const CommandResult result = run_command(command(num_workers, {}, fail + kWork), environment());

    EXPECT_EQ(result.exit_code, exit_code);
    expect_root_cause(result, victim, text("exit code ", exit_code));
    EXPECT_THAT(result.err, ::testing::HasSubstr("│   last words\n╰"));
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
    // Before it has a shim, nobody but the launcher itself could remove its folder.
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
    expect_end_by_killing(workers[static_cast<size_t>(victim)].pid, victim, run);
  }

  void full_disk() {
    const int num_workers = draw(1, 4), victim = draw(0, num_workers - 1), exit_code = draw(1, 100);
    const std::string work = text("head -c 300000 /dev/zero; [ $RANK = ", victim, " ] && exit ", exit_code, "; ");
    const auto launch = command(
        num_workers, {"--log_dir", folder() / "disk", draw(0, 1) == 0 ? "--tee" : "--redirects", "3"}, work + kWork);

    const CommandResult result = run_command(on_a_disk_of("128k", launch), environment());

    EXPECT_EQ(result.exit_code, exit_code);
    EXPECT_THAT(result.err, ::testing::HasSubstr("No space left on device"));
    expect_root_cause(result, victim, text("exit code ", exit_code));
  }

  void kill_worker_twice() {
    const int num_workers = draw(1, 4);
    Command run(command(num_workers, {"--max_restarts", "1", "--monitor_interval", "0"}, kWork), environment());
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
};

}  // namespace hasten::test
