#include "hasten/watch/profiler.h"

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>
#include <thread>

#include "hasten/core/error.h"
#include "hasten/core/value.h"
#include "hasten/flight/pages.h"
#include "hasten/flight/recorder.h"
#include "hasten/watch/step_profile.h"
#include "support/folder.h"

namespace hasten::watch {
namespace {

using hasten::testing::InFolder;
using ::testing::HasSubstr;

const process::Process& alone() {
  static const process::Process process({.change_process = false});
  return process;
}

void make_step() {
  at::mm(at::ones({8, 8}), at::ones({8, 8})).add_(1);
}

int64_t calls_of(const Profiler& profiler, const std::string& name) {
  const ProfileAverages averages = profiler.key_averages();
  for (const ProfileAverage& one : averages.all()) {
    if (one.key == name) return one.count;
  }
  return 0;
}

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

template <class Fn>
std::string error_of(const Fn& fn) {
  try {
    fn();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

using ProfilerFiles = InFolder;

TEST(Profiler, RecordsTheActiveStepsOfEachCycle) {
  std::vector<int64_t> calls;
  int64_t cycles = 0;

  profile(alone(),
          {.schedule = ProfileSchedule{.wait = 1, .warmup = 1, .active = 3, .repeat = 2},
           .on_trace_ready =
               [&](Profiler& profiler) {
                 ++cycles;
                 calls.push_back(calls_of(profiler, "aten::mm"));
                 EXPECT_EQ(calls_of(profiler, "ProfilerStep*"), 3);
               }},
          [&](Profiler& profiler) {
            for (int i = 0; i < 14; ++i) make_step(), profiler.step();
            EXPECT_EQ(profiler.step_num(), 14);
          });

  EXPECT_EQ(cycles, 2);
  EXPECT_EQ(calls, (std::vector<int64_t>{3, 3}));
}

TEST(Profiler, RecordsEverythingWithoutASchedule) {
  Profiler profiler(alone(), {.record_shapes = true, .with_flops = true});
  for (int i = 0; i < 5; ++i) make_step();
  EXPECT_TRUE(profiler.events().empty()) << "the cycle goes on";

  profiler.stop();

  EXPECT_EQ(calls_of(profiler, "aten::mm"), 5);
  const auto averages = profiler.key_averages(/*group_by_input_shapes=*/true);
  const auto mm = std::find_if(averages.all().begin(), averages.all().end(),
                               [](const ProfileAverage& one) { return one.key == "aten::mm"; });
  ASSERT_NE(mm, averages.all().end());
  EXPECT_EQ(mm->input_shapes, (std::vector<std::vector<int64_t>>{{8, 8}, {8, 8}}));
  EXPECT_EQ(mm->flops, 5u * 2 * 8 * 8 * 8);
  EXPECT_THAT(averages.table({.sort_by = "cpu_time_total", .row_limit = 4}), HasSubstr("Input Shapes"));
}

TEST(Profiler, OtherThreadsAreThereUnlessTheyAreLeftOut) {
  for (const bool all : {true, false}) {
    Profiler profiler(alone(), {.all_threads = all});

    std::thread([] { make_step(); }).join();

    profiler.stop();
    EXPECT_EQ(calls_of(profiler, "aten::mm"), all ? 1 : 0);
  }
}

TEST(Profiler, MemoryIsCountedForTheOperatorThatTakesIt) {
  Profiler profiler(alone(), {.profile_memory = true});
  const at::Tensor kept = at::zeros({1024});

  profiler.stop();

  const auto averages = profiler.key_averages();
  const auto zeros = std::find_if(averages.all().begin(), averages.all().end(),
                                  [](const ProfileAverage& one) { return one.key == "aten::zeros"; });
  ASSERT_NE(zeros, averages.all().end());
  EXPECT_EQ(zeros->cpu_memory_usage, 4096);
  EXPECT_THAT(averages.table(), HasSubstr("Self CPU Mem"));
}

TEST_F(ProfilerFiles, EachCycleIsSavedWithTheRank) {
  profile(alone(),
          {.schedule = ProfileSchedule{.warmup = 1, .active = 1, .repeat = 2},
           .output_trace_dir = path("traces"),
           .metadata = {{"settings", R"({"lr": 0.5})"}}},
          [&](Profiler& profiler) {
            for (int i = 0; i < 4; ++i) make_step(), profiler.step();
          });

  for (const char* name : {"traces/profile_0.json", "traces/profile_0.0.json"}) {
    const core::Value trace = core::Value::parse_json(text_of(path(name)));
    EXPECT_GT(trace.at("traceEvents").size(), 3u);
    EXPECT_EQ(trace.at("distributedInfo").at("world_size").as_int(), 1);
    EXPECT_EQ(trace.at("settings").at("lr").as_double(), 0.5);
  }
}

// The pattern is that of hta/common/trace_file.py, which takes every file for rank 0 otherwise.
TEST_F(ProfilerFiles, TheRankOfATraceIsWhereHtaLooksForIt) {
  const std::regex wanted("\"rank\":\\s+(\\d+)");
  Profiler profiler(alone(), {});
  make_step();
  profiler.stop();
  profiler.export_chrome_trace(path("a.json"));

  std::istringstream lines(text_of(path("a.json")));
  std::string rank;
  for (std::string line; rank.empty() && std::getline(lines, line);) {
    std::smatch found;
    if (std::regex_search(line, found, wanted)) rank = found[1];
  }
  EXPECT_EQ(rank, "0");
}

TEST_F(ProfilerFiles, ATraceIsExportedAsOftenAsWanted) {
  Profiler profiler(alone(), {});
  make_step();
  EXPECT_THAT(error_of([&] { profiler.export_chrome_trace(path("early.json")); }), HasSubstr("before the end"));
  profiler.stop();

  profiler.export_chrome_trace(path("new/a.json"));
  profiler.export_chrome_trace(path("b.json"));

  EXPECT_EQ(text_of(path("new/a.json")), text_of(path("b.json")));
  EXPECT_THAT(text_of(path("b.json")), HasSubstr("aten::mm"));
  EXPECT_THAT(error_of([&] { profiler.export_chrome_trace(path("a.json.gz")); }), HasSubstr("uncompressed"));
  EXPECT_THROW(profiler.export_chrome_trace("/proc/none/a.json"), DataError);
}

TEST(Profiler, WhatIsNotThereIsRefusedByName) {
  EXPECT_THAT(error_of([] {
                Profiler(alone(), {.activities = {"cpu", "cudo"}});
              }),
              HasSubstr("there is no activity 'cudo', did you mean 'cuda'?"));
  EXPECT_THAT(error_of([] { Profiler(alone(), {.activities = {"mtia"}}); }), HasSubstr("has no mtia"));
  EXPECT_THAT(error_of([] { Profiler(alone(), {.with_stack = true}); }), HasSubstr("with_stack"));
  EXPECT_THAT(error_of([] { Profiler(alone(), {.schedule = ProfileSchedule{.active = 0}}); }), HasSubstr("active 0"));
  Profiler profiler(alone(), {});
  make_step();
  EXPECT_THAT(error_of([] { Profiler(alone(), {}); }), HasSubstr("another profiler is on"));
  EXPECT_THAT(error_of([&] { profiler.toggle_collection(false); }), HasSubstr("with all threads"));
  profiler.stop();
  EXPECT_THAT(error_of([&] { (void)profiler.key_averages().table({.sort_by = "cpu_tme"}); }),
              HasSubstr("did you mean 'cpu_time'"));
}

TEST(Profiler, EndsWithAnException) {
  EXPECT_THROW(profile(alone(), {}, [](Profiler&) { throw std::runtime_error("in a step"); }), std::runtime_error);

  Profiler profiler(alone(), {});
  profiler.stop();
}

TEST(Profiler, CollectionIsSwitchedOffForAWhile) {
  Profiler profiler(alone(), {.all_threads = false});
  make_step();
  profiler.toggle_collection(false);
  at::zeros({3}).exp_();
  profiler.toggle_collection(true);
  make_step();

  profiler.stop();

  EXPECT_EQ(calls_of(profiler, "aten::mm"), 2);
  EXPECT_EQ(calls_of(profiler, "aten::exp_"), 0);
}

TEST_F(ProfilerFiles, AWishInThePageIsAnsweredWithATrace) {
  const auto recorder = std::make_shared<flight::Recorder>(flight::PageIdentity{.rank = 3, .world_size = 4});
  StepProfile profile(recorder, alone());
  const flight::PageView page(recorder->descriptor());
  make_step(), profile.after_step();
  EXPECT_EQ(page.wish_answer().state, flight::WishState::kNone);

  page.wish({.steps = 2, .folder = path("")});
  profile.after_step();
  EXPECT_EQ(page.wish_answer().state, flight::WishState::kRecording);
  for (int i = 0; i < 3; ++i) make_step(), profile.after_step();

  const auto answer = page.wish_answer();
  ASSERT_EQ(answer.state, flight::WishState::kWritten) << answer.words;
  EXPECT_THAT(text_of(answer.words), HasSubstr("ProfilerStep#1"));

  Profiler other(alone(), {});
  page.wish({.steps = 2, .folder = path("")});
  profile.after_step();
  EXPECT_EQ(page.wish_answer().state, flight::WishState::kRefused);
  EXPECT_THAT(page.wish_answer().words, HasSubstr("another profiler is on"));
}

}  // namespace
}  // namespace hasten::watch
