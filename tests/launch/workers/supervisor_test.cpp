#include "hasten/launch/workers/supervisor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <deque>
#include <numeric>
#include <stdexcept>

#include "hasten/core/error.h"
#include "hasten/core/text.h"

namespace hasten::launcher {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

Event exited(int local_rank, int exit_code) {
  return {Event::Kind::kExited, local_rank, exit_code << 8};
}
Event killed(int local_rank, int signal) {
  return {Event::Kind::kExited, local_rank, signal};
}
Event gone(int local_rank) {
  return {Event::Kind::kGone, local_rank};
}
Event received(int signal) {
  return {Event::Kind::kSignal, 0, signal};
}
Event deadline() {
  return {};
}

// 100, 101, …
std::vector<pid_t> pids(int num_workers) {
  std::vector<pid_t> result(static_cast<size_t>(num_workers));
  std::iota(result.begin(), result.end(), 100);
  return result;
}

// Gives the events it was told to give, and writes down what it is asked to do.
class ScriptedProcesses : public WorkerProcesses {
 public:
  explicit ScriptedProcesses(std::deque<Event> events) : events_(std::move(events)) {}

  std::vector<pid_t> start(int num_workers) override {
    ++num_starts;
    return pids(num_workers);
  }
  pid_t start_one(int local_rank) override {
    started_again.push_back(local_rank);
    if (refuses_more) throw UsageError({"launch"}, "no more processes");
    return 200 + local_rank;
  }
  void signal(int local_rank, int signal) override { signals.push_back(text(sigabbrev_np(signal), ' ', local_rank)); }
  Event wait(std::optional<TimePoint> deadline) override {
    const Event event = events_.front();
    events_.pop_front();
    if (event.kind == Event::Kind::kDeadline) {
      EXPECT_TRUE(deadline.has_value());
      waited = *deadline - now_;
      delays.push_back(waited.count());
      now_ = *deadline;
    }
    return event;
  }
  TimePoint now() const override { return now_; }

  std::vector<std::string> signals;
  std::chrono::duration<double> waited{0};
  std::vector<double> delays;  // all that was waited for
  int num_starts = 0;
  std::vector<int> started_again;
  bool refuses_more = false;

 private:
  std::deque<Event> events_;
  TimePoint now_{};
};

TEST(Supervisor, EndsWithZeroWhenAllWorkersDo) {
  ScriptedProcesses processes({exited(1, 0), gone(1), exited(0, 0), gone(0)});

  const Outcome outcome = supervise(processes, {.num_workers = 2});

  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_FALSE(outcome.root_cause);
  EXPECT_THAT(processes.signals, ElementsAre("TERM 0"));  // for what rank 0 may have left behind
}

TEST(Supervisor, SaysOnceThatAWorkerIsStoppedWhenOthersHaveEnded) {
  ScriptedProcesses processes({exited(0, 0), gone(0), deadline(), exited(2, 0), gone(2), deadline(), exited(3, 0),
                               gone(3), deadline(), exited(1, 0), gone(1)});
  std::vector<std::string> notices;
  int looks = 0;
  const SupervisorOptions options{.num_workers = 4,
                                  .notice = [&](const std::string& line) { notices.push_back(line); },
                                  .is_stopped = [&](pid_t pid) { return pid == 101 && ++looks > 1; }};

  const Outcome outcome = supervise(processes, options);

  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(notices, ElementsAre("worker 1 is stopped, and others have ended; kill -CONT 101 lets it go on"));
  EXPECT_THAT(processes.delays, ElementsAre(5.0, 5.0, 5.0));
}

TEST(Supervisor, StopsTheOthersAtTheFirstFailureAndKeepsItsExitCode) {
  ScriptedProcesses processes({exited(1, 3), gone(1), killed(0, SIGTERM), gone(0), exited(2, 9), gone(2)});

  const Outcome outcome = supervise(processes, {.num_workers = 3});

  EXPECT_EQ(outcome.exit_code, 3);
  EXPECT_EQ(outcome.root_cause->local_rank, 1);
  EXPECT_EQ(outcome.root_cause->pid, 101);
  EXPECT_EQ(outcome.others.size(), 2u);
  EXPECT_THAT(processes.signals, ElementsAre("TERM 0", "TERM 1", "TERM 2"));
}

TimePoint seconds_in(double seconds) {
  return TimePoint() +
         std::chrono::duration_cast<std::chrono::steady_clock::duration>(std::chrono::duration<double>(seconds));
}

SupervisorOptions with_rank_0_leaving(int num_workers) {
  return {.num_workers = num_workers,
          .left_at = [](int local_rank) { return local_rank == 0 ? std::optional(seconds_in(-1)) : std::nullopt; }};
}

TEST(Supervisor, AWorkerThatHasLeftComesToItsOwnExitCode) {
  ScriptedProcesses processes({exited(1, 1), gone(1), killed(2, SIGTERM), gone(2), exited(0, 7), gone(0)});

  const Outcome outcome = supervise(processes, with_rank_0_leaving(3));

  EXPECT_THAT(processes.signals, ElementsAre("TERM 1", "TERM 2", "TERM 0")) << "rank 0: what it has left behind";
  ASSERT_EQ(outcome.others.size(), 2u);
  EXPECT_EQ(outcome.others[1].local_rank, 0);
  EXPECT_EQ(exit_code_of(outcome.others[1].status), 7);
  EXPECT_EQ(outcome.others[1].left, seconds_in(-1));
  EXPECT_FALSE(outcome.root_cause->left);
}

TEST(Supervisor, AWorkerThatHasLeftAndGoesOnIsStoppedAfterItsTime) {
  ScriptedProcesses processes({exited(1, 1), gone(1), deadline(), deadline(), killed(0, SIGKILL), gone(0)});

  supervise(processes, with_rank_0_leaving(2));

  EXPECT_THAT(processes.signals, ElementsAre("TERM 1", "TERM 0", "KILL 0"));
  EXPECT_THAT(processes.delays, ElementsAre(5, 30));
}

// Replaces every worker that fails, and writes down whether another had ended.
SupervisorOptions replacing(int num_workers, std::vector<bool>* had_ended = nullptr) {
  return {.num_workers = num_workers, .replaces = [had_ended](const WorkerEnd&, bool any_has_ended) {
            if (had_ended != nullptr) had_ended->push_back(any_has_ended);
            return Replacing{true};
          }};
}

TEST(Supervisor, StartsAWorkerAgainAloneOnceItsGroupIsGone) {
  ScriptedProcesses processes({killed(1, SIGKILL), gone(1), exited(0, 0), gone(0), exited(1, 0), gone(1)});
  std::vector<bool> had_ended;

  const Outcome outcome = supervise(processes, replacing(2, &had_ended));

  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_FALSE(outcome.root_cause);
  EXPECT_THAT(processes.started_again, ElementsAre(1));
  EXPECT_EQ(processes.num_starts, 1);
  EXPECT_THAT(had_ended, ElementsAre(false));
  EXPECT_EQ(processes.signals.front(), "KILL 1") << "what the dead worker has left behind";
}

TEST(Supervisor, AWorkerThatFailsAgainIsReportedByItsSuccessor) {
  ScriptedProcesses processes({exited(0, 1), gone(0), exited(0, 7), gone(0), killed(1, SIGTERM), gone(1)});
  int left = 1;

  const Outcome outcome = supervise(
      processes, {.num_workers = 2, .replaces = [&](const WorkerEnd&, bool) { return Replacing{left-- > 0}; }});

  EXPECT_EQ(outcome.exit_code, 7);
  EXPECT_EQ(outcome.root_cause->pid, 200);
  EXPECT_THAT(processes.started_again, ElementsAre(0));
}

TEST(Supervisor, TellsWhetherAnotherWorkerHasEnded) {
  ScriptedProcesses processes({exited(0, 0), gone(0), killed(1, SIGKILL), gone(1), exited(1, 0), gone(1)});
  std::vector<bool> had_ended;

  supervise(processes, replacing(2, &had_ended));

  EXPECT_THAT(had_ended, ElementsAre(true));
}

TEST(Supervisor, ASignalWhileAWorkerIsReplacedStartsNone) {
  ScriptedProcesses processes({killed(1, SIGKILL), received(SIGTERM), gone(1), killed(0, SIGTERM), gone(0)});

  const Outcome outcome = supervise(processes, replacing(2));

  EXPECT_EQ(outcome.exit_code, 128 + SIGTERM);
  EXPECT_THAT(processes.started_again, IsEmpty());
  EXPECT_EQ(outcome.others.size(), 2u);
}

TEST(Supervisor, AWorkerThatCannotBeStartedAgainEndsTheRun) {
  ScriptedProcesses processes({killed(1, SIGKILL), gone(1), killed(0, SIGTERM), gone(0)});
  processes.refuses_more = true;

  const Outcome outcome = supervise(processes, replacing(2));

  EXPECT_EQ(outcome.exit_code, 128 + SIGKILL);
  EXPECT_EQ(outcome.root_cause->local_rank, 1);
}

TEST(Supervisor, AWorkerKilledByASignalGives128PlusTheSignal) {
  ScriptedProcesses processes({killed(0, SIGSEGV), gone(0)});

  EXPECT_EQ(supervise(processes, {.num_workers = 1}).exit_code, 139);
}

TEST(Supervisor, AFailureAfterASuccessfulWorkerIsAFailure) {
  ScriptedProcesses processes({exited(0, 0), gone(0), exited(1, 1), gone(1)});

  const Outcome outcome = supervise(processes, {.num_workers = 2});

  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(processes.signals, ElementsAre("TERM 1"));  // nobody of rank 0 is left to be told
}

TEST(Supervisor, KillsWhoeverOutlivesTheShutdownTimeout) {
  ScriptedProcesses processes({exited(0, 1), gone(0), deadline(), killed(1, SIGKILL), gone(1)});

  const Outcome outcome = supervise(processes, {.num_workers = 2, .shutdown_timeout = std::chrono::seconds(7)});

  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_EQ(processes.waited.count(), 7);
  EXPECT_THAT(processes.signals, ElementsAre("TERM 0", "TERM 1", "KILL 1"));
}

TEST(Supervisor, HandsCtrlCOnAndEndsWith130) {
  ScriptedProcesses processes({received(SIGINT), exited(0, 0), gone(0), exited(1, 1), gone(1)});
  std::vector<std::string> notices;

  const Outcome outcome =
      supervise(processes, {.num_workers = 2, .notice = [&](const std::string& line) { notices.push_back(line); }});

  EXPECT_EQ(outcome.exit_code, 130);
  EXPECT_FALSE(outcome.root_cause);
  EXPECT_THAT(processes.signals, ElementsAre("INT 0", "INT 1", "TERM 0", "TERM 1"));
  EXPECT_THAT(notices, ElementsAre("stopping the workers; Ctrl-C again ends them at once"));
}

TEST(Supervisor, ASecondCtrlCKillsAtOnce) {
  ScriptedProcesses processes({received(SIGINT), received(SIGINT), killed(0, SIGKILL), gone(0)});

  EXPECT_EQ(supervise(processes, {.num_workers = 1}).exit_code, 130);
  EXPECT_THAT(processes.signals, ElementsAre("INT 0", "KILL 0", "TERM 0"));
  EXPECT_EQ(processes.waited.count(), 0);
}

TEST(Supervisor, HandsSigtermOnOnceAndEndsWith143) {
  ScriptedProcesses processes({received(SIGTERM), received(SIGTERM), killed(0, SIGTERM), gone(0)});

  EXPECT_EQ(supervise(processes, {.num_workers = 1}).exit_code, 143);
  EXPECT_THAT(processes.signals, ElementsAre("TERM 0"));
}

TEST(Supervisor, CtrlCWhileAFailureIsCleanedUpKeepsTheFailuresExitCode) {
  ScriptedProcesses processes({exited(0, 5), gone(0), received(SIGINT), killed(1, SIGKILL), gone(1)});

  EXPECT_EQ(supervise(processes, {.num_workers = 2}).exit_code, 5);
  EXPECT_THAT(processes.signals, ElementsAre("TERM 0", "TERM 1", "KILL 1"));
}

TEST(Supervisor, ChildrenLeftByASuccessfulRunAreStoppedAndThenKilled) {
  ScriptedProcesses processes({exited(0, 0), deadline(), gone(0)});

  EXPECT_EQ(supervise(processes, {.num_workers = 1}).exit_code, 0);
  EXPECT_THAT(processes.signals, ElementsAre("TERM 0", "KILL 0"));
}

TEST(Supervisor, AFailedGroupIsStartedAgainOnceNobodyIsLeft) {
  ScriptedProcesses processes({exited(1, 3), gone(1), killed(0, SIGTERM), gone(0), deadline(),  //
                               exited(0, 0), gone(0), exited(1, 0), gone(1)});
  std::vector<int> attempts;
  std::vector<std::string> notices;

  const Outcome outcome = supervise(processes, {.num_workers = 2,
                                                .max_restarts = 1,
                                                .restart_delay = std::chrono::seconds(3),
                                                .notice = [&](const std::string& line) { notices.push_back(line); },
                                                .before_attempt = [&](int attempt) { attempts.push_back(attempt); }});

  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_FALSE(outcome.root_cause);
  EXPECT_EQ(outcome.attempt, 1);
  EXPECT_EQ(outcome.others.size(), 2u);
  EXPECT_EQ(processes.num_starts, 2);
  EXPECT_THAT(attempts, ElementsAre(0, 1));
  EXPECT_THAT(processes.signals, ElementsAre("TERM 0", "TERM 1", "TERM 1"));
  EXPECT_THAT(processes.delays, ElementsAre(3));
  EXPECT_THAT(notices, ElementsAre("worker 1 failed: exit code 3; restart 1 of 1 in 3 s"));
}

TEST(Supervisor, WhereNoRestartIsPossibleTheFailureThatAskedForItIsReported) {
  ScriptedProcesses processes({exited(0, 9), gone(0), deadline()});
  std::vector<std::string> notices;

  const Outcome outcome = supervise(processes, {.num_workers = 1,
                                                .max_restarts = 3,
                                                .restart_delay = std::chrono::seconds(1),
                                                .notice = [&](const std::string& line) { notices.push_back(line); },
                                                .before_attempt =
                                                    [](int attempt) {
                                                      if (attempt > 0) throw std::runtime_error("the port is in use");
                                                    }});

  EXPECT_EQ(outcome.exit_code, 9);
  EXPECT_TRUE(outcome.root_cause);
  EXPECT_EQ(processes.num_starts, 1);
  EXPECT_THAT(notices,
              ElementsAre("worker 0 failed: exit code 9; restart 1 of 3 in 1 s", "no restart: the port is in use"));
}

TEST(Supervisor, TheDelayDoublesUpToHalfAMinuteAndTheLastFailureIsTheRootCause) {
  std::deque<Event> events;
  for (int attempt = 0; attempt < 7; ++attempt) {
    events.insert(events.end(), {exited(0, 1 + attempt), gone(0)});
    if (attempt < 6) events.push_back(deadline());
  }
  ScriptedProcesses processes(events);

  const Outcome outcome =
      supervise(processes, {.num_workers = 1, .max_restarts = 6, .restart_delay = std::chrono::seconds(2)});

  EXPECT_EQ(outcome.exit_code, 7);
  EXPECT_EQ(outcome.attempt, 6);
  EXPECT_EQ(outcome.root_cause->status, 7 << 8);
  EXPECT_THAT(outcome.others, IsEmpty());
  EXPECT_THAT(processes.delays, ElementsAre(2, 4, 8, 16, 30, 30));
}

TEST(Supervisor, WhoOutlivesTheShutdownTimeoutIsKilledBeforeARestart) {
  ScriptedProcesses processes({exited(0, 1), gone(0), deadline(), killed(1, SIGKILL), gone(1), deadline(),  //
                               exited(0, 0), gone(0), exited(1, 0), gone(1)});

  const Outcome outcome = supervise(processes, {.num_workers = 2,
                                                .shutdown_timeout = std::chrono::seconds(7),
                                                .max_restarts = 1,
                                                .restart_delay = std::chrono::seconds(1)});

  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(processes.delays, ElementsAre(7, 1));
}

TEST(Supervisor, ASignalThatEndsTheRunEndsTheWaitingForARestart) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) {
    ScriptedProcesses processes({exited(0, 1), gone(0), received(signal)});

    const Outcome outcome = supervise(processes, {.num_workers = 1, .max_restarts = 1});

    EXPECT_EQ(outcome.exit_code, 128 + signal);
    EXPECT_FALSE(outcome.root_cause);
    EXPECT_EQ(outcome.others.size(), 1u);
    EXPECT_EQ(processes.num_starts, 1);
  }
}

TEST(Supervisor, CtrlCWhileWorkersAreStoppedForARestartIsOrderlyAndTheSecondKills) {
  ScriptedProcesses processes({exited(0, 1), gone(0), received(SIGINT), received(SIGINT), killed(1, SIGKILL), gone(1)});

  EXPECT_EQ(supervise(processes, {.num_workers = 2, .max_restarts = 1}).exit_code, 130);
  EXPECT_THAT(processes.signals, ElementsAre("TERM 0", "TERM 1", "KILL 1"));
}

TEST(Supervisor, OtherSignalsAreHandedOnAndDoNotStopTheRun) {
  ScriptedProcesses processes({received(SIGUSR1), exited(0, 0), gone(0), received(SIGUSR2), exited(1, 0), gone(1)});

  const Outcome outcome = supervise(processes, {.num_workers = 2});

  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(processes.signals, ElementsAre("USR1 0", "USR1 1", "USR2 1", "TERM 1"));
}

TEST(Supervisor, DescribesHowAWorkerEnded) {
  EXPECT_EQ(describe_end(SIGSEGV), "killed by SIGSEGV");
  EXPECT_EQ(describe_end(40), "killed by signal 40");
  EXPECT_EQ(describe_end(3 << 8), "exit code 3");
}

// Two workers that may end in any way at any time; those in `with_child` leave a child behind that ends only
// when told to. Which of the possible events comes next is said by `choices`, so that all orders can be
// walked through.
class AnyOrder : public WorkerProcesses {
 public:
  AnyOrder(std::vector<bool> with_child, std::vector<size_t>& choices) : choices_(choices) {
    for (const bool has_child : with_child) workers_.push_back({.has_child = has_child});
  }

  std::vector<pid_t> start(int num_workers) override {
    EXPECT_TRUE(num_starts == 0 || everyone_gone()) << "somebody of the last attempt is left";
    for (Worker& worker : workers_) worker = {.has_child = worker.has_child};
    first_failure.reset();
    anyone_told_ = false;
    ++num_starts;
    return pids(num_workers);
  }
  pid_t start_one(int local_rank) override {
    Worker& worker = workers_[static_cast<size_t>(local_rank)];
    EXPECT_TRUE(worker.gone) << "a process of the dead worker is left";
    worker = {.has_child = worker.has_child};
    return 200 + local_rank;
  }
  void signal(int local_rank, int signal) override {
    Worker& worker = workers_[static_cast<size_t>(local_rank)];
    EXPECT_FALSE(worker.gone) << "a signal to nobody may hit a stranger";
    if (signal != SIGINT) worker.told = true;
    if (signal != SIGKILL) anyone_told_ = true;  // a dead worker's group is killed before it is replaced
  }
  bool replaces() {
    if (replacements_left == 0) return false;
    --replacements_left;
    first_failure.reset();
    return true;
  }
  Event wait(std::optional<TimePoint> deadline) override {
    std::vector<Event> possible;
    for (int rank = 0; rank < static_cast<int>(workers_.size()); ++rank) add_possible(rank, possible);
    if (deadline) possible.push_back({});
    if (signals_left_ > 0) possible.push_back(received(SIGINT));
    EXPECT_FALSE(possible.empty()) << "waits for ever";
    const Event event = possible[choose(possible.size())];
    happen(event);
    return event;
  }
  TimePoint now() const override { return {}; }

  // The next sequence of choices, false when all were seen.
  bool advance() {
    while (!choices_.empty() && choices_.back() + 1 == widths_[choices_.size() - 1]) choices_.pop_back();
    if (choices_.empty()) return false;
    ++choices_.back();
    return true;
  }

  std::optional<int> first_failure;  // exit code of the first failure before anyone was told to stop
  int interrupted = 0;
  int num_starts = 0;
  int max_restarts = 0;
  int replacements_left = 0;
  bool everyone_gone() const {
    return std::all_of(workers_.begin(), workers_.end(), [](const Worker& w) { return w.gone; });
  }

 private:
  struct Worker {
    bool has_child = false;
    bool exited = false;
    bool gone = false;
    bool told = false;
  };

  void add_possible(int rank, std::vector<Event>& possible) const {
    const Worker& worker = workers_[static_cast<size_t>(rank)];
    if (!worker.exited) {
      for (const int exit_code : {0, 1 + rank}) possible.push_back(exited(rank, exit_code));
    } else if (!worker.gone && (worker.told || !worker.has_child)) {
      possible.push_back(gone(rank));
    }
  }

  void happen(const Event& event) {
    Worker& worker = workers_[static_cast<size_t>(event.local_rank)];
    if (event.kind == Event::Kind::kSignal) {
      --signals_left_;
      if (!anyone_told_ || (first_failure && num_starts <= max_restarts)) interrupted = event.value;
    }
    if (event.kind == Event::Kind::kGone) worker.gone = true;
    if (event.kind == Event::Kind::kExited) worker.exited = true;
    if (event.kind == Event::Kind::kExited && event.value != 0 && !anyone_told_) first_failure = event.value >> 8;
  }

  size_t choose(size_t width) {
    if (depth_ == choices_.size()) choices_.push_back(0);
    widths_.resize(depth_ + 1);
    widths_[depth_] = width;
    return choices_[depth_++];
  }

  std::vector<Worker> workers_;
  std::vector<size_t>& choices_;
  std::vector<size_t> widths_;
  size_t depth_ = 0;
  int signals_left_ = 1;
  bool anyone_told_ = false;
};

// Walks through all orders for one pair of workers; returns how many there are.
int walk_through_orders(const std::vector<bool>& with_child, int max_restarts, int num_replacements = 0) {
  std::vector<size_t> choices;
  int num_orders = 0;
  for (bool more = true; more; ++num_orders) {
    AnyOrder processes(with_child, choices);
    processes.max_restarts = max_restarts;
    processes.replacements_left = num_replacements;
    const Outcome outcome =
        supervise(processes, {.num_workers = 2, .max_restarts = max_restarts, .replaces = [&](const auto&, bool) {
                                return Replacing{processes.replaces()};
                              }});
    const int expected = processes.interrupted != 0 ? 128 + processes.interrupted : processes.first_failure.value_or(0);
    EXPECT_TRUE(processes.everyone_gone()) << "choices " << join(choices);
    EXPECT_EQ(outcome.exit_code, expected) << "choices " << join(choices);
    EXPECT_EQ(outcome.others.size() + (outcome.root_cause ? 1 : 0), 2u) << "choices " << join(choices);
    EXPECT_EQ(outcome.attempt, processes.num_starts - 1) << "choices " << join(choices);
    more = processes.advance();
  }
  return num_orders;
}

TEST(Supervisor, EveryOrderOfEventsEndsWithNobodyLeftAndTheFirstCausesExitCode) {
  for (const auto& with_child : {std::vector{false, false}, {true, false}, {false, true}, {true, true}}) {
    EXPECT_GT(walk_through_orders(with_child, 0), 300);
  }
}

TEST(Supervisor, EveryOrderOfEventsWithAReplacementDoesToo) {
  EXPECT_GT(walk_through_orders({false, false}, 0, 1), 300);
  EXPECT_GT(walk_through_orders({true, false}, 0, 1), 300);
}

TEST(Supervisor, EveryOrderOfEventsWithARestartDoesToo) {
  EXPECT_GT(walk_through_orders({false, false}, 1), 10000);
}

}  // namespace
}  // namespace hasten::launcher
