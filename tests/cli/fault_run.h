// What the random faults (local_faults.h, machine_faults.h, elastic_faults.h) have in common: draws from one
// seed, workers with children of their own, and the loop over the kinds, which sees that every run ends in
// time and leaves no process and no file.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <iostream>
#include <limits>
#include <random>
#include <sstream>

#include "cli/ssh_machines.h"
#include "hasten/core/env.h"
#include "hasten/core/text.h"

namespace hasten::test {

class FaultRun : public SshMachines {
 protected:
  struct Kind {
    const char* name;
    std::function<void()> run;
  };
  struct Worker {
    pid_t pid = 0;
    pid_t shim = 0;
    int local_rank = 0;
    int world_size = 0;
    int restart = 0;
  };

  // `num_each` of each kind, the kinds in turn; HASTEN_TEST_FAULT leaves those that have it in their name. A
  // run may take the timeouts that its kind has said, and 10 s.
  void run_faults(std::vector<Kind> kinds, int num_each) {
    const std::string wanted = Environment::current().text("HASTEN_TEST_FAULT").value_or("");
    std::erase_if(kinds,
                  [&](const Kind& kind) { return std::string_view(kind.name).find(wanted) == std::string_view::npos; });
    ASSERT_FALSE(kinds.empty()) << "HASTEN_TEST_FAULT=" << wanted << " is in no kind's name";
    const auto given = Environment::current().integer("HASTEN_TEST_SEED", 0, UINT32_MAX);
    const auto seed = static_cast<unsigned>(given.value_or(std::random_device()()));
    random_.seed(seed);
    std::cout << "HASTEN_TEST_SEED=" << seed << std::endl;
    double most_beyond_s = -std::numeric_limits<double>::infinity();
    for (int run = 0; run < num_each * static_cast<int>(kinds.size()) && !HasFailure(); ++run) {
      const Kind& kind = kinds[static_cast<size_t>(run) % kinds.size()];
      SCOPED_TRACE(text(kind.name, ", run ", run, ", HASTEN_TEST_SEED=", seed));
      std::cout << "run " << run << ": " << kind.name << std::flush;
      alarm(120);  // the end of a run that hangs, and of this program
      const double time_s = run_one(kind);
      std::cout << ", " << time_s << " s, timeouts " << timeouts_s_ << " s" << std::endl;
      most_beyond_s = std::max(most_beyond_s, time_s - timeouts_s_);
    }
    alarm(0);
    std::cout << "longest: " << most_beyond_s << " s more than its timeouts" << std::endl;
  }

  int draw(int least, int most) { return std::uniform_int_distribution(least, most)(random_); }

  // How long the run that is being made may wait, as its settings say; for its kind to say.
  void allow(double timeouts_s) { timeouts_s_ = timeouts_s; }

  // A worker with children of its own, in some runs all of them stubborn, that says that it is ready and then
  // does `at_end`.
  std::string worker_script(const std::string& at_end) {
    const std::string stubborn = draw(0, 3) == 0 ? "trap '' TERM; " : "";
    const std::string children = text("i=0; while [ $i -lt ", draw(0, 3), " ]; do sleep 1000 & i=$((i+1)); done; ");
    return stubborn + children + "echo ready $RANK $$ $PPID $LOCAL_RANK $WORLD_SIZE $TORCHELASTIC_RESTART_COUNT; " +
           at_end;
  }
  static constexpr const char* kWork = "while :; do echo noise >&2; sleep 0.01; done";

  // The next worker that is ready, and its rank. Other lines are left out.
  static std::pair<size_t, Worker> read_worker(const Command& command) {
    while (true) {
      std::istringstream line(command.read_line());
      std::string word;
      size_t rank = 0;
      Worker worker;
      if (!(line >> word)) throw std::runtime_error("the run ended before its workers were ready");
      if (word == "ready" &&
          line >> rank >> worker.pid >> worker.shim >> worker.local_rank >> worker.world_size >> worker.restart)
        return {rank, worker};
    }
  }
  // By rank, once all are ready.
  static std::vector<Worker> ready(Command& command, int num_workers) {
    std::vector<Worker> workers(static_cast<size_t>(num_workers));
    try {
      for (int i = 0; i < num_workers; ++i) {
        const auto [rank, worker] = read_worker(command);
        workers.at(rank) = worker;
      }
    } catch (const std::runtime_error& error) {
      const CommandResult result = command.finish();
      throw std::runtime_error(text(error.what(), "; exit code ", result.exit_code, ":\n", result.err));
    }
    return workers;
  }

  static void expect_root_cause(const CommandResult& result, int rank, const std::string& end) {
    EXPECT_THAT(result.err, ::testing::HasSubstr(text("╭ hasten: rank ", rank, " of ")));
    EXPECT_THAT(result.err, ::testing::HasSubstr(text(" failed first: ", end, "\n")));
  }

  // What a launcher that was killed together with all its shims could not remove.
  void remove_what_is_left() const {
    for (const auto& entry : std::filesystem::directory_iterator(temporary())) {
      EXPECT_THAT(entry.path().filename().string(), ::testing::StartsWith("hasten_"));
      std::filesystem::remove_all(entry);
    }
  }

 private:
  double run_one(const Kind& kind) {
    const auto start = std::chrono::steady_clock::now();
    timeouts_s_ = 0;
    kind.run();
    Command::wait_for_orphans();
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
    EXPECT_TRUE(std::filesystem::is_empty(temporary()));
    EXPECT_LT(time.count(), timeouts_s_ + 10);
    return time.count();
  }

  double timeouts_s_ = 0;
  std::mt19937 random_;
};

}  // namespace hasten::test
