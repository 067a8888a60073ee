#include "hasten/flight/recorder.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <thread>

#include "hasten/flight/page.h"
#include "hasten/flight/page_notes.h"
#include "hasten/flight/pages.h"

namespace hasten::flight {
namespace {

const PageIdentity kRank2{.run = "127.0.0.1:29500 attempt 0", .rank = 2, .world_size = 4, .local_rank = 2};

CallFacts all_reduce(int group, std::span<const int64_t> sizes = {}) {
  return {.group = group,
          .label = {"all_reduce", "sum", "float32"},
          .sizes = sizes,
          .file = "/home/me/bucket.cpp",
          .line = 131,
          .purpose = "gradients, bucket",
          .purpose_number = 3};
}

RankState read(const Recorder& recorder) {
  return PageView(recorder.descriptor()).read();
}

TEST(Recorder, WritesItsPlaceInTheRun) {
  const Recorder recorder(kRank2);

  const RankState state = read(recorder);

  EXPECT_EQ(state.run, "127.0.0.1:29500 attempt 0");
  EXPECT_EQ(state.rank, 2);
  EXPECT_EQ(state.world_size, 4);
  EXPECT_EQ(state.pid, getpid());
  EXPECT_EQ(state.program, "flight_unit_tests");
  EXPECT_EQ(state.life, Life::kRunning);
}

TEST(Recorder, ACallIsReadAsItWasPosted) {
  Recorder recorder(kRank2);
  const int group = recorder.open_group("world", 2, 4, 60000);
  const int64_t sizes[] = {8, 3, 2, 2, 7};

  const Ticket ticket = recorder.post(all_reduce(group, sizes));

  const RankState state = read(recorder);
  ASSERT_EQ(state.groups.size(), 1U);
  EXPECT_EQ(state.groups[0].name, "world");
  EXPECT_EQ(state.groups[0].calls, 1U);
  EXPECT_EQ(state.groups[0].timeout_s, 60);
  ASSERT_EQ(state.calls.size(), 1U);
  const CallState& call = state.calls[0];
  EXPECT_EQ(call.group, state.groups[0].key);
  EXPECT_EQ(call.number, 1U);
  EXPECT_EQ(call.label, "all_reduce(sum) of float32");
  EXPECT_EQ(call.site, "bucket.cpp:131");
  EXPECT_EQ(call.purpose, "gradients, bucket");
  EXPECT_EQ(call.purpose_number, 3);
  EXPECT_EQ(call.sizes, (std::vector<int64_t>{8, 3, 2, 2}));
  EXPECT_EQ(call.dims, 5);
  EXPECT_TRUE(call.waits_s.has_value()) << "a caller is in the call until it goes on";
  recorder.go_on(ticket);
  EXPECT_FALSE(read(recorder).calls[0].waits_s.has_value());
  recorder.wait(ticket);
  EXPECT_TRUE(read(recorder).calls[0].waits_s.has_value());
  recorder.end(ticket);
  EXPECT_TRUE(read(recorder).calls[0].ended);
  EXPECT_FALSE(read(recorder).calls[0].waits_s.has_value());
}

TEST(Recorder, GroupsOfOneNameAreToldApartAsOnTheOtherRanks) {
  Recorder one(kRank2), other(kRank2);

  for (Recorder* recorder : {&one, &other}) {
    recorder->open_group("world", 0, 2, 1000);
    recorder->open_group("world", 0, 2, 1000);
  }

  const auto mine = read(one).groups, theirs = read(other).groups;
  ASSERT_EQ(mine.size(), 2U);
  EXPECT_NE(mine[0].key, mine[1].key);
  EXPECT_EQ(mine[0].key, theirs[0].key);
  EXPECT_EQ(mine[1].key, theirs[1].key);
}

TEST(Recorder, MessagesAreNumberedByPeerAndTag) {
  Recorder recorder(kRank2);
  const int group = recorder.open_group("world", 2, 4, 1000);
  const auto send = [&](int peer, int tag) {
    recorder.end(recorder.post(
        {.kind = CallKind::kSend, .group = group, .label = {"send"}, .peer = peer, .tag = tag, .file = "a.cpp"}));
  };

  send(0, 0), send(0, 0), send(1, 0), send(0, 5), send(0, 0);

  std::vector<uint64_t> numbers;
  for (const CallState& call : read(recorder).calls) numbers.push_back(call.number);
  EXPECT_EQ(numbers, (std::vector<uint64_t>{1, 2, 1, 1, 3}));
  EXPECT_EQ(read(recorder).groups[0].calls, 0U) << "messages have no number among the collectives";
}

TEST(Recorder, OfCallsOnADeviceTheLongestOfEachStepIsAWait) {
  Recorder recorder(kRank2);
  const int group = recorder.open_group("world", 2, 4, 1000);
  const auto post = [&] {
    const Ticket ticket = recorder.post(all_reduce(group));
    recorder.go_on(ticket);
    return ticket;
  };
  const Ticket first = post(), second = post(), third = post();
  recorder.step(1);
  const Ticket next = post(), unknown = post();

  recorder.end_on_device(first, 20'000'000);
  recorder.end_on_device(second, 50'000'000);
  recorder.end_on_device(next, 30'000'000);
  recorder.end_on_device(third, 10'000'000);  // the device says it late
  recorder.end_on_device(unknown, 0);

  EXPECT_DOUBLE_EQ(read(recorder).waited_s, 0.080);
  for (const CallState& call : read(recorder).calls) EXPECT_TRUE(call.ended);
}

TEST(Recorder, TheRingKeepsTheLastCalls) {
  Recorder recorder(kRank2);
  const int group = recorder.open_group("world", 2, 4, 1000);

  const Ticket first = recorder.post(all_reduce(group));
  for (int i = 0; i < 300; ++i) recorder.end(recorder.post(all_reduce(group)));
  recorder.end(first);  // its place has another call by now

  const RankState state = read(recorder);
  ASSERT_EQ(state.calls.size(), static_cast<size_t>(kNumRecords));
  EXPECT_EQ(state.calls.back().number, 301U);
  EXPECT_EQ(state.calls.front().number, 301U - kNumRecords + 1);
}

TEST(Recorder, AClosedGroupGivesItsPlaceBack) {
  Recorder recorder(kRank2);
  std::vector<int> places;
  for (int i = 0; i < kNumGroups; ++i) places.push_back(recorder.open_group("g", 0, 2, 1));
  EXPECT_EQ(recorder.open_group("one too many", 0, 2, 1), -1);
  EXPECT_EQ(recorder.post(all_reduce(-1)).sequence, 0U) << "a group without a place records nothing";

  recorder.close_group(places[7]);

  EXPECT_EQ(recorder.open_group("again", 0, 2, 1), 7);
}

TEST(Recorder, PhasesHaveTheirTimesAndTheOuterOneComesBack) {
  const auto recorder = std::make_shared<Recorder>(kRank2);
  {
    const PhaseScope outer(recorder, "evaluate");
    {
      const PhaseScope inner(recorder, "data");
      EXPECT_EQ(read(*recorder).phase, "data");
    }
    EXPECT_EQ(read(*recorder).phase, "evaluate");
  }

  const RankState state = read(*recorder);

  EXPECT_EQ(state.phase, "");
  EXPECT_GT(state.phase_times_s.at("data"), 0);
  EXPECT_GT(state.phase_times_s.at("evaluate"), 0);
}

TEST(Recorder, AScopeWithoutARecorderDoesNothing) {
  set_process_recorder(nullptr);
  const PhaseScope scope("evaluate");
  alive();
  const auto recorder = std::make_shared<Recorder>(kRank2);

  set_process_recorder(recorder);

  const PhaseScope other("checkpoint");
  EXPECT_EQ(read(*recorder).phase, "checkpoint");
  set_process_recorder(nullptr);
}

TEST(Recorder, StepsGiveTheirDurationsButForTheFirst) {
  Recorder recorder(kRank2);

  for (int i = 0; i < 40; ++i) recorder.step(16);
  recorder.set_epoch(3);
  recorder.set_loss(0.25);
  recorder.set_bad(BadValue::kGradient, "layer.weight");

  const RankState state = read(recorder);
  EXPECT_EQ(state.step, 40);
  EXPECT_EQ(state.samples, 640);
  EXPECT_EQ(state.step_times_s.size(), static_cast<size_t>(kNumSteps));
  EXPECT_EQ(state.epoch, 3);
  EXPECT_EQ(state.loss, 0.25);
  EXPECT_EQ(state.bad_step, 41);
  EXPECT_EQ(state.bad_value, "layer.weight");
}

TEST(Recorder, AValueThatIsFiniteAgainStaysUntilItIsReported) {
  Recorder recorder(kRank2);
  const PageView view(recorder.descriptor());
  recorder.step(1);
  recorder.set_bad(BadValue::kLoss, "loss");
  recorder.set_epoch(3);
  recorder.clear_bad(BadValue::kLoss);
  EXPECT_EQ(view.read().bad_step, 0);
  ASSERT_TRUE(unreported_value(view.page()));
  EXPECT_EQ(unreported_value(view.page())->step, 2);
  EXPECT_EQ(unreported_value(view.page())->epoch, 0);

  recorder.step(1);
  recorder.set_bad(BadValue::kNorm, "norm");
  EXPECT_EQ(view.read().bad_step, 2);
  EXPECT_EQ(unreported_value(view.page())->name, "loss") << "the first one counts";
  note_value_reported(view.page());
  EXPECT_TRUE(has_reported_value(view.page()));
  EXPECT_FALSE(unreported_value(view.page()));
  EXPECT_EQ(view.read().bad_step, 2);
  recorder.clear_bad(BadValue::kNorm);
  EXPECT_FALSE(has_reported_value(view.page()));
  EXPECT_EQ(view.read().bad_step, 0);
}

TEST(Recorder, AForkedChildWritesNothingIntoItsParentsPage) {
  Recorder recorder(kRank2);
  const int group = recorder.open_group("world", 2, 4, 1000);

  const pid_t child = fork();
  if (child == 0) {
    recorder.post(all_reduce(group));
    recorder.step(1);
    _exit(0);
  }
  int status = -1;
  waitpid(child, &status, 0);

  EXPECT_EQ(status, 0);
  EXPECT_TRUE(read(recorder).calls.empty());
  EXPECT_EQ(read(recorder).step, 0);
}

TEST(Recorder, APageThatANewProcessTakesHasNoCallsOfTheOneBefore) {
  const MemoryFile file = MemoryFile::create(kPageLabel, kPageBytes);
  {
    Recorder ended(kRank2, dup(file.descriptor()));
    ended.enter_phase(ended.phase_number("forward"));
    ended.post(all_reduce(ended.open_group("world", 2, 4, 1000)));
  }

  announce(file, kRank2);

  const RankState announced = PageView(file.descriptor()).read();
  EXPECT_TRUE(announced.calls.empty());
  EXPECT_TRUE(announced.groups.empty());
  EXPECT_EQ(announced.phase, "");
  Recorder replaced(kRank2, dup(file.descriptor()));
  replaced.post(all_reduce(replaced.open_group("world", 2, 4, 1000)));
  EXPECT_EQ(read(replaced).groups.size(), 1U);
  ASSERT_EQ(read(replaced).calls.size(), 1U);
  EXPECT_EQ(read(replaced).calls[0].number, 1U);
}

TEST(Recorder, CallsOfAGroupThatBeginsAnewAreDroppedAndThoseOfOthersStay) {
  Recorder recorder(kRank2);
  const int world = recorder.open_group("world", 2, 4, 1000), pair = recorder.open_group("pair", 0, 2, 1000);
  const Ticket before = recorder.post(all_reduce(world));
  recorder.post(all_reduce(pair));

  forget_calls(recorder.page(), world);
  recorder.end(before);

  ASSERT_EQ(read(recorder).calls.size(), 1U);
  EXPECT_EQ(read(recorder).calls[0].group, read(recorder).groups[1].key);
  EXPECT_FALSE(read(recorder).calls[0].ended);
  recorder.post(all_reduce(world));
  EXPECT_EQ(read(recorder).groups[0].calls, 1U);
}

TEST(Recorder, TextsThatFindNoPlaceAreLeftOut) {
  Recorder recorder(kRank2);
  const int group = recorder.open_group("world", 2, 4, 1000);

  for (uint32_t line = 0; line < 2 * kNumTexts; ++line) {
    CallFacts call = all_reduce(group);
    call.line = line;
    recorder.end(recorder.post(call));
  }

  const RankState state = read(recorder);
  EXPECT_EQ(state.calls.back().label, "all_reduce(sum) of float32");
  EXPECT_EQ(state.calls.back().site, "");
}

}  // namespace
}  // namespace hasten::flight
