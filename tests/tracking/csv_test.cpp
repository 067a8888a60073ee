// The CSV file of a run: what a resume leaves in it.
#include "tracking/sinks/csv.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "tracking/tracking_support.h"

namespace hasten::tracking {
namespace {

using CsvFile = hasten::testing::InFolder;
using ::testing::HasSubstr;
using ::testing::Not;

std::unique_ptr<Tracker> csv_in(const std::filesystem::path& folder, const core::Value& state = {}) {
  auto tracker = make_csv({}, Environment::of({}));
  if (!state.is_null()) tracker->resume(state);
  tracker->start({.folder = folder});
  return tracker;
}

TEST_F(CsvFile, StepsBehindTheCheckpointAreDroppedWhenTheRunGoesOn) {
  auto tracker = csv_in(folder_);
  for (int step = 0; step < 10; ++step) tracker->log({{"loss", step}, {"text", "two\nlines, and a \"quote\""}}, step, {});
  tracker->rewind(5);
  for (int step = 6; step < 8; ++step) tracker->log({{"loss", 100 + step}}, step, {});
  tracker->flush();

  const std::string csv = text_of(folder_ / "metrics.csv");

  EXPECT_THAT(csv, HasSubstr(",loss,5\n"));
  for (const char* gone : {",loss,6\n", ",loss,9\n"}) EXPECT_THAT(csv, Not(HasSubstr(gone)));
  EXPECT_THAT(csv, HasSubstr(",loss,106\n"));
  EXPECT_EQ(csv.find("step,time,key,value\n"), 0U);
  EXPECT_EQ(csv.rfind("step,time,key,value\n"), 0U);
}

// The follower died between the rewind and its next acknowledgement: records since the last one come again.
TEST_F(CsvFile, ARewindThatIsRepeatedLeavesEachRowOnce) {
  auto first = csv_in(folder_);
  first->set_time_s(1);
  for (int step = 0; step < 10; ++step) first->log({{"loss", step}}, step, {});
  const core::Value acknowledged = first->flush();
  first->log({{"more", 1}}, 3, {});
  first->rewind(4);
  first->flush();
  first.reset();

  auto second = csv_in(folder_, acknowledged);
  second->set_time_s(1);
  second->log({{"more", 1}}, 3, {});
  second->rewind(4);
  second->flush();

  const std::string csv = text_of(folder_ / "metrics.csv");
  EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 1 + 5 + 1);
  EXPECT_EQ(csv.find("more"), csv.rfind("more"));
}

}  // namespace
}  // namespace hasten::tracking
