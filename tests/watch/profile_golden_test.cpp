// Schedules, averages and tables beside what torch.profiler gave (scripts/record_profile_golden.py).
#include <gtest/gtest.h>

#include "hasten/watch/profile_options.h"
#include "hasten/watch/profile_table.h"
#include "support/golden.h"

namespace hasten::watch {
namespace {

using hasten::testing::GoldenCase;
using hasten::testing::GoldenTopic;
using nlohmann::json;

std::function<bool(const GoldenCase&)> family(const std::string& name) {
  return [name](const GoldenCase& one) { return one.family == name; };
}

TEST(ProfileGolden, SchedulesActAsTorchs) {
  GoldenTopic topic("profile", family("schedule"));
  topic.for_each([&](const GoldenCase& golden) {
    const json& in = golden.input;
    const ProfileSchedule schedule{.wait = in.at("wait"),
                                   .warmup = in.at("warmup"),
                                   .active = in.at("active"),
                                   .repeat = in.at("repeat"),
                                   .skip_first = in.at("skip_first"),
                                   .skip_first_wait = in.at("skip_first_wait") != 0};
    json actions = json::array();
    for (int64_t step = 0; step < 100; ++step) actions.push_back(static_cast<int>(action(schedule, step)));
    topic.judge(golden, {{"actions", actions}});
  });
}

std::vector<ProfileEvent> events_in(const json& list) {
  std::vector<ProfileEvent> events;
  for (const json& one : list) {
    events.push_back({.name = one.at("name"),
                      .thread = one.at("thread"),
                      .start_ns = one.at("start_ns"),
                      .end_ns = one.at("end_ns"),
                      .is_async = one.at("is_async"),
                      .input_shapes = one.at("input_shapes").get<std::vector<std::vector<int64_t>>>(),
                      .flops = one.at("flops"),
                      .cpu_bytes = one.at("cpu_bytes")});
  }
  return events;
}

TEST(ProfileGolden, TablesAreTorchsTexts) {
  GoldenTopic topic("profile", family("table"));
  topic.for_each([&](const GoldenCase& golden) {
    const json& options = golden.input.at("options");
    const ProfileAverages averages = average(events_in(golden.input.at("events")), options.at("group_by_input_shapes"),
                                             options.at("with_memory"), options.at("with_flops"));
    json keys = json::array(), counts = json::array();
    for (const ProfileAverage& one : averages.all()) {
      keys.push_back(one.key);
      counts.push_back(one.count);
    }
    topic.judge(golden, {{"keys", keys},
                         {"counts", counts},
                         {"table", averages.table({.sort_by = options.at("sort_by"),
                                                   .row_limit = options.at("row_limit"),
                                                   .header = options.at("header"),
                                                   .time_unit = options.at("time_unit")})}});
  });
}

}  // namespace
}  // namespace hasten::watch
