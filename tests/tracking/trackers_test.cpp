#include "hasten/tracking/run/trackers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <atomic>
#include <random>
#include <set>
#include <thread>

#include "hasten/core/error.h"
#include "hasten/tracking/board/commands.h"
#include "hasten/tracking/follower/follower_options.h"
#include "hasten/tracking/follower/registry.h"
#include "hasten/tracking/journal/tracker.h"
#include "support/http_server.h"
#include "tracking/tracking_support.h"

namespace hasten::tracking {
namespace {

using hasten::testing::words_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using Runs = hasten::testing::InFolder;

TEST_F(Runs, WhatIsLoggedIsInTheEventFilesWhenTheRunHasEnded) {
  Trackers trackers(setup_in(folder_, {"tensorboard", "csv"}));
  trackers.init("fashion", {{"lr", 0.5}});
  for (int step = 0; step < 100; ++step) trackers.log({{"loss", 1.0 / (1 + step)}, {"lr", 0.5}}, step);
  trackers.log_images({{"input", Image{2, 2, 1, {1, 2, 3, 4}}}}, 99);
  trackers.finish();

  const auto events = events_in(folder_ / "fashion/run");

  int scalars = 0, images = 0;
  for (const auto& event : events) {
    scalars += event.kind == EventValue::Kind::kScalar;
    images += event.kind == EventValue::Kind::kImage;
  }
  EXPECT_EQ(scalars, 200);
  EXPECT_EQ(images, 1);
  const std::string csv = text_of(folder_ / "fashion/run/metrics.csv");
  EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 201);
  EXPECT_THAT(csv, HasSubstr("step,time,key,value\n0,"));
  EXPECT_EQ(text_of(folder_ / "fashion/run/config.csv"), "key,value\nlr,0.5\n");
  const auto status = read_status(folder_ / "fashion/run/journal.jsonl");
  EXPECT_EQ(status.end, "finished");
  ASSERT_EQ(status.sinks.size(), 2u);
  EXPECT_TRUE(status.sinks[0].state.done);
  EXPECT_EQ(status.sinks[0].num_bytes_left, 0);
  const std::string journal = text_of(folder_ / "fashion/run/journal.jsonl");
  EXPECT_EQ(journal.find('\n', journal.find(R"("op":"finish")")), journal.size() - 1);
}

TEST_F(Runs, ATrackerOfTheProgramsOwnGetsEveryCallInOrderOnAnotherThread) {
  const auto own = std::make_shared<KeepingTracker>();
  Trackers trackers(setup_in(folder_, {own, own, "journal"}));
  trackers.init("p", {{"a", 1}});
  trackers.log({{"x", 1.5}, {"word", "hi"}, {"g", {{"a", true}}}});
  own->fail_next = 2;
  trackers.log({{"x", 2.5}}, {}, {{"keeping", {{"how", "so"}}}, {"other", {{"b", 1}}}});
  trackers.note("careful", "warning");
  trackers.tracker("keeping").log({{"y", 3}}, 7);
  trackers.finish();
  trackers.finish();

  auto lines = own->lines();
  std::erase_if(lines, [](const std::string& line) {
    return line.find("is tried again") != std::string::npos;
  });  // a note, when it comes
  EXPECT_THAT(lines, ElementsAre("start p", R"(config {"a":1})", "log 0 x=1.5 word=hi g/a=1",
                                 R"(log 1 x=2.5 {"how":"so"})", "note careful", "log 7 y=3", "finish 0"));
  EXPECT_EQ(trackers.tracker<KeepingTracker>(), own);
  EXPECT_THAT(trackers.names(), ElementsAre("keeping", "journal"));
}

TEST_F(Runs, ALineForOneTrackerReachesNoOther) {
  const auto own = std::make_shared<KeepingTracker>();
  Trackers trackers(setup_in(folder_, {own, "csv"}));
  trackers.init("p");
  trackers.tracker("keeping").log({{"mine", 1}}, 0);
  trackers.tracker("csv").log({{"theirs", 2}}, 1);
  trackers.log({{"both", 3}}, 2);
  trackers.finish();

  EXPECT_THAT(own->lines(), ElementsAre("start p", "log 0 mine=1", "log 2 both=3", "finish 0"));
  const std::string rows = text_of(folder_ / "p/run/metrics.csv");
  EXPECT_THAT(rows, HasSubstr("theirs"));
  EXPECT_THAT(rows, HasSubstr("both"));
  EXPECT_THAT(rows, Not(HasSubstr("mine")));
}

TEST_F(Runs, OnlyTheMainProcessLogsAndEachRankHasItsMetrics) {
  auto setup = setup_in(folder_, {"journal"});
  setup.world_size = 2;
  setup.options.metrics_interval_s = 0.02;
  Trackers main(setup);
  setup.rank = 1;
  Trackers other(setup);
  for (Trackers* trackers : {&main, &other}) {
    trackers->init("p", {{"a", 1}});
    trackers->count_step(32);
    trackers->log({{"x", 1}}, 0);
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  other.finish();
  main.finish();

  const std::string first = text_of(folder_ / "p/run/journal.jsonl"),
                    second = text_of(folder_ / "p/run/journal-rank1.jsonl");
  EXPECT_THAT(first, HasSubstr(R"("op":"log")"));
  EXPECT_THAT(second, ::testing::Not(HasSubstr(R"("op":"log")")));
  EXPECT_THAT(second, ::testing::Not(HasSubstr(R"("op":"config")")));
  EXPECT_THAT(second, HasSubstr(R"("samples_per_s")"));
  EXPECT_THAT(second, HasSubstr(R"("memory_bytes")"));
}

TEST_F(Runs, WrongUseIsRefusedWithTheRemedy) {
  const auto refused = [&](std::vector<LogWith> with, const std::function<void(Trackers&)>& use) {
    return words_of<UsageError>([&] {
      Trackers trackers(setup_in(folder_, with));
      use(trackers);
    });
  };
  const auto with_init = [](const std::function<void(Trackers&)>& use) {
    return [use](Trackers& trackers) {
      trackers.init("p");
      use(trackers);
    };
  };
  EXPECT_THAT(refused({"tensorbord"}, [](Trackers&) {}), HasSubstr("did you mean 'tensorboard'"));
  EXPECT_THAT(refused({"journal"}, [](Trackers& t) { t.log({{"x", 1}}); }), HasSubstr("before init_trackers"));
  EXPECT_THAT(refused({}, [](Trackers& t) { t.init("p"); }), HasSubstr("log_with"));
  EXPECT_THAT(refused({"journal"}, with_init([](Trackers& t) { t.init("p"); })), HasSubstr("second time"));
  for (const char* name : {"", "a/b", "..", ".hidden"})
    EXPECT_THAT(refused({"journal"}, [&](Trackers& t) { t.init(name); }), HasSubstr("project name")) << name;
  EXPECT_THAT(refused({"journal"}, [](Trackers& t) { t.init(std::string("a\0b", 3)); }), HasSubstr("project name"));
  EXPECT_THAT(refused({"tensorboard"},
                      [](Trackers& t) {
                        t.init("p", {}, {{"tensorbord", {{"a", 1}}}});
                      }),
              HasSubstr("did you mean 'tensorboard'"));
  EXPECT_THAT(refused({"tensorboard"},
                      [](Trackers& t) {
                        t.init("p", {}, {{"tensorboard", {{"double_scalar", true}}}});
                      }),
              HasSubstr("did you mean 'double_scalars'"));
  EXPECT_THAT(refused({"wandb"},
                      [](Trackers& t) {
                        t.init("p", {}, {{"wandb", {{"api_key", "x"}}}});
                      }),
              HasSubstr("WANDB_API_KEY"));
  EXPECT_THAT(refused({"journal"}, with_init([](Trackers& t) { t.log({{"", 1}}); })), HasSubstr("key of 0 bytes"));
  EXPECT_THAT(refused({"journal"}, with_init([](Trackers& t) {
                        t.log({{std::string(513, 'k'), 1}});
                      })),
              HasSubstr("key of 513 bytes"));
  EXPECT_THAT(refused({"journal"}, with_init([](Trackers& t) {
                        t.log({{"x", 1}, {"x", 2}});
                      })),
              HasSubstr("'x' stands twice"));
  EXPECT_THAT(refused({"journal"}, with_init([](Trackers& t) { t.log({{"x", 1}}, -1); })), HasSubstr("step -1"));
  EXPECT_THAT(refused({"journal"}, with_init([](Trackers& t) {
                        t.log({{"x", Value::invalid("a tensor of shape [2, 3]")}});
                      })),
              HasSubstr("'x' is a tensor of shape [2, 3]"));
  EXPECT_THAT(refused({"journal"}, with_init([](Trackers& t) { t.tracker("journl"); })),
              HasSubstr("did you mean 'journal'"));
  EXPECT_THAT(refused({"journal"}, with_init([](Trackers& t) { t.tracker("journal").call("_secret"); })),
              HasSubstr("'_secret'"));
  auto without_folder = setup_in("", {"tensorboard"});
  EXPECT_THAT(words_of<UsageError>([&] { Trackers(without_folder).init("p"); }), HasSubstr("project_dir"));
}

TEST_F(Runs, AClientThatPythonLacksIsNamedWithThatPython) {
  auto setup = setup_in(folder_, {"wandb"});
  setup.environment = environment_with({{"HASTEN_TRACKER_PYTHON", write("python", "#!/bin/sh\nexit 0\n")}});
  std::filesystem::permissions(folder_ / "python", std::filesystem::perms::owner_all);

  const std::string words = words_of<UsageError>([&] { Trackers(setup).init("p"); });

  EXPECT_THAT(words, HasSubstr("-m pip install wandb"));
  EXPECT_THAT(words, HasSubstr(path("python")));
}

TEST_F(Runs, WithoutALoggingDirectoryTheJournalIsInTheUsersStateFolder) {
  auto setup = setup_in("", {"journal"});
  setup.environment = environment_with({{"XDG_STATE_HOME", path("state")}});
  Trackers trackers(setup);
  trackers.init("p");
  trackers.finish();

  EXPECT_EQ(trackers.run_folder(), folder_ / "state/hasten/p/run");
}

TEST_F(Runs, ARunThatGoesOnFromACheckpointDropsWhatCameBehindIt) {
  core::Value state;
  {
    Trackers first(setup_in(folder_, {"tensorboard"}));
    first.init("p");
    for (int step = 0; step < 5; ++step) first.log({{"x", step}}, step);
    state = first.state();
    for (int step = 5; step < 8; ++step) first.log({{"x", step}}, step);
    first.finish();
  }
  auto setup = setup_in(folder_, {"tensorboard"});
  setup.run_key = "another";
  Trackers second(setup);
  second.load_state(state);
  second.init("p");
  for (int step = 5; step < 7; ++step) second.log({{"x", step + 100}}, step);
  second.finish();

  EXPECT_EQ(second.run_id(), "run");
  const auto events = events_in(folder_ / "p/run");
  ASSERT_EQ(events.size(), 11u);
  EXPECT_EQ(events[8].kind, EventValue::Kind::kRestart);
  EXPECT_EQ(events[8].step, 5);
  EXPECT_EQ(events[10].number, 106);
  EXPECT_EQ(read_status(folder_ / "p/run/journal.jsonl").end, "finished");
}

// A process that logs steps and counts those that `log` has returned for, until it is killed.
pid_t start_training(const TrackersSetup& setup, std::atomic<int64_t>* counted) {
  const pid_t pid = fork();
  if (pid != 0) return pid;
  try {
    Trackers trackers(setup);
    trackers.init("p");
    for (int64_t step = 0;; ++step) {
      trackers.log({{"x", step}, {"y", 0.5}}, step);
      counted->store(step + 1);
      if (step % 64 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
  }
  _exit(1);
}

TEST_F(Runs, NothingThatLogReturnedForIsLostWhenTheProcessIsKilled) {
  auto* counted = static_cast<std::atomic<int64_t>*>(
      mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  const int64_t rounds = Environment::current().integer("HASTEN_TEST_SCALE").value_or(4);
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(text("seed ", seed));
  std::mt19937 random(seed);
  for (int64_t round = 0; round < rounds; ++round) {
    auto setup = setup_in(folder_, {"tensorboard"});
    setup.run_key = text("run", round);
    counted->store(0);
    const pid_t training = start_training(setup, counted);
    while (counted->load() == 0 && waitpid(training, nullptr, WNOHANG) == 0)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 40000));
    kill(training, SIGKILL);
    waitpid(training, nullptr, 0);
    const int64_t logged = counted->load();
    const auto folder = folder_ / "p" / setup.run_key;
    // Every other time the follower is killed as well.
    const std::string follower = text_of(folder / "journal.follow");
    if (round % 2 == 1 && !follower.empty()) kill(std::stoi(follower), SIGKILL);

    for (int tries = 0; tries < 200; ++tries) {
      try {
        ASSERT_TRUE(complete(folder / "journal.jsonl", {}, 30, setup.environment, {}));
        break;
      } catch (const UsageError&) {  // still drained by the follower of the dead process
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
      }
    }

    const auto events = events_in(folder);
    ASSERT_GE(static_cast<int64_t>(events.size()), 2 * logged);
    ASSERT_LE(static_cast<int64_t>(events.size()), 2 * (logged + 1));
    for (size_t i = 0; i < events.size(); ++i) ASSERT_EQ(events[i].step, static_cast<int64_t>(i / 2));
    // The follower of the dead process may still put a file of its own into the folder.
    std::error_code failed;
    while (std::filesystem::remove_all(folder, failed), failed)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  munmap(counted, 4096);
}

TEST_F(Runs, AKilledFollowerIsStartedAgainAndEachPointIsThereOnce) {
  auto setup = setup_in(folder_, {"tensorboard", "csv"});
  Trackers trackers(setup);
  trackers.init("p");
  for (int step = 0; step < 300; ++step) {
    trackers.log({{"x", step}}, step);
    if (step == 150) {
      std::string pid;
      while ((pid = text_of(folder_ / "p/run/journal.follow")).empty())
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      kill(std::stoi(pid), SIGKILL);
    }
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  trackers.finish();

  EXPECT_EQ(events_in(folder_ / "p/run").size(), 300u);
  const std::string csv = text_of(folder_ / "p/run/metrics.csv");
  EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 301);
}

TEST_F(Runs, AHistogramWithoutAFiniteValueIsLeftOutAndTheRunGoesOn) {
  const double values[] = {NAN, INFINITY};
  Trackers trackers(setup_in(folder_, {"tensorboard"}));
  trackers.init("p");
  trackers.log_histogram("weights", histogram(values, 2), 0);
  trackers.log_histogram("weights", histogram(values, 0), 1);
  trackers.log({{"loss", 2}}, 1);
  trackers.finish();

  EXPECT_EQ(events_in(folder_ / "p/run").size(), 1u);
  const std::string journal = text_of(folder_ / "p/run/journal.jsonl");
  EXPECT_THAT(journal, HasSubstr("the histogram 'weights' of step 0 has no finite value"));
  EXPECT_THAT(journal, Not(HasSubstr("of step 1 has no")));
}

TEST_F(Runs, WithoutTheCommandTrackersRunOnAThread) {
  auto setup = setup_in(folder_, {"csv"});
  setup.options.program = "";
  setup.environment = Environment::of({{"PATH", "/none"}});
  Trackers trackers(setup);
  trackers.init("p");
  trackers.log({{"x", 1}}, 0);
  trackers.finish();

  EXPECT_THAT(text_of(folder_ / "p/run/metrics.csv"), HasSubstr(",x,1\n"));
}

TEST_F(Runs, AnExceptionEndsTheRunAsFailed) {
  try {
    Trackers trackers(setup_in(folder_, {"journal"}));
    trackers.init("p");
    throw std::runtime_error("x");
  } catch (const std::runtime_error&) {
  }
  EXPECT_EQ(read_status(folder_ / "p/run/journal.jsonl").end, "failed");
}

TEST_F(Runs, ADeadServerNeitherStopsTrainingNorLosesAnything) {
  auto setup = setup_in(folder_, {"mlflow"});
  setup.environment = environment_with({{"MLFLOW_TRACKING_URI", "http://127.0.0.1:9"}});
  setup.options.finish_timeout_s = 0.5;
  setup.options.drain_timeout_s = 0.2;
  Trackers trackers(setup);
  trackers.init("p");
  for (int step = 0; step < 50; ++step) trackers.log({{"x", step}}, step);
  trackers.finish();

  const auto status = read_status(folder_ / "p/run/journal.jsonl");
  ASSERT_EQ(status.sinks.size(), 1u);
  EXPECT_FALSE(status.sinks[0].state.done);
  EXPECT_GT(status.sinks[0].num_bytes_left, 0);
  EXPECT_EQ(status.end, "finished");
}

TEST_F(Runs, ADiskThatIsFullInMidRunCostsLinesWhichAreCountedAndTrainingGoesOn) {
  // A limit on files' sizes has the effect of a full disk for as long as it holds.
  signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  auto setup = setup_in(folder_, {"journal"});
  setup.options.journal.retry_interval_s = 0;
  setup.options.per_rank_metrics = false;
  Trackers trackers(setup);
  trackers.init("p");
  for (int64_t step = 0; step < 100; ++step) trackers.log({{"x", step}}, step);
  const auto journal = folder_ / "p/run/journal.jsonl";
  rlimit full = before;
  full.rlim_cur = std::filesystem::file_size(journal) + 20;
  setrlimit(RLIMIT_FSIZE, &full);
  for (int64_t step = 100; step < 200; ++step) EXPECT_NO_THROW(trackers.log({{"x", step}}, step));
  setrlimit(RLIMIT_FSIZE, &before);
  for (int64_t step = 200; step < 300; ++step) trackers.log({{"x", step}}, step);
  trackers.finish();

  std::set<int64_t> steps;
  std::string notes;
  JournalReader reader(journal);
  while (const auto record = reader.next()) {
    if (record->op == "log") steps.insert(*record->step);
    if (record->op == "note") notes += record->body.at("text").as_string() + "\n";
  }
  EXPECT_EQ(steps.size(), 200u);
  EXPECT_EQ(steps.count(99) + steps.count(200), 2u);
  EXPECT_THAT(notes, HasSubstr("100 lines of the journal were lost"));
}

TEST_F(Runs, AServerThatNeverAnswersHoldsUpNeitherTheEndNorAProcess) {
  std::atomic<bool> ends = false;
  hasten::testing::HttpServer server([&](const auto&) {
    while (!ends) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    return hasten::testing::HttpServerAnswer{200, "{}"};
  });
  auto setup = setup_in(folder_, {"mlflow"});
  setup.environment = environment_with({{"MLFLOW_TRACKING_URI", server.url()}});
  setup.options.finish_timeout_s = 0.3;
  setup.options.drain_timeout_s = 0.2;
  Trackers trackers(setup);
  trackers.init("p");
  for (int step = 0; step < 50; ++step) trackers.log({{"x", step}}, step);
  std::string pid;
  while ((pid = text_of(folder_ / "p/run/journal.follow")).empty())
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  trackers.finish();

  const auto is_there = [&] { return kill(std::stoi(pid), 0) == 0; };
  for (int i = 0; i < 2000 && is_there(); ++i) {
    waitpid(std::stoi(pid), nullptr, WNOHANG);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_FALSE(is_there());
  EXPECT_EQ(read_status(folder_ / "p/run/journal.jsonl").end, "finished");
  ends = true;
}

}  // namespace
}  // namespace hasten::tracking
