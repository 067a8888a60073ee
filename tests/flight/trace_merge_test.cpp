#include "hasten/flight/trace_merge.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "hasten/core/error.h"
#include "hasten/core/value.h"

namespace hasten::flight {
namespace {

using core::Value;
using ::testing::HasSubstr;

// In the form of libtorch's.
std::string trace_of(const std::string& base) {
  return R"({
  "schemaVersion": 1,
  "traceEvents": [
  {"name": "process_name", "ph": "M", "ts": 5.1, "pid": 812, "tid": 0, "args": {"name": "train \"x\" }"}},
  {"name": "process_sort_index", "ph": "M", "ts": 5.1, "pid": 812, "tid": 0, "args": {"sort_index": 812}},
  {
    "ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 812, "tid": 812,
    "ts": 1000.250, "dur": 3.5,
    "args": {"External id": 17, "Record function id": 0, "Input Dims": [[2, 3], [3, 4]], "correlation": -1}
  },
  {"ph": "s", "id": 4, "pid": 812, "tid": 812, "ts": 1000.250, "cat": "fwdbwd", "name": "fwdbwd"},
  {"name": "Iteration", "ph": "X", "ts": 1, "dur": 2, "pid": "Spans", "tid": 0, "args": {}}
  ],
  "traceName": "rank.json",
  "baseTimeNanoseconds": )" +
         base + "\n}\n";
}

Value merged(const std::vector<std::string>& traces) {
  std::ostringstream out;
  TraceMerger merger(out);
  int rank = 0;
  for (const std::string& trace : traces) {
    EXPECT_EQ(merger.add(rank, trace, "rank.json"), 5);
    ++rank;
  }
  merger.end();
  return Value::parse_json(out.str());
}

TEST(TraceMerger, RanksOfEqualNumbersAreApart) {
  const Value all = merged({trace_of("1000"), trace_of("1000")});

  const auto& events = all.at("traceEvents").as_list();
  ASSERT_EQ(events.size(), 10u);
  EXPECT_EQ(events[0].at("args").at("name").as_string(), "rank 0: train \"x\" }");
  EXPECT_EQ(events[5].at("args").at("name").as_string(), "rank 1: train \"x\" }");
  EXPECT_NE(events[0].at("pid"), events[5].at("pid"));
  EXPECT_EQ(events[5].at("pid"), events[7].at("pid"));
  EXPECT_NE(events[3].at("id"), events[8].at("id"));
  EXPECT_EQ(events[4].at("pid").as_string(), "rank 0: Spans");
  EXPECT_EQ(events[9].at("pid").as_string(), "rank 1: Spans");
  EXPECT_LT(events[1].at("args").at("sort_index").as_int(), events[6].at("args").at("sort_index").as_int());
}

TEST(TraceMerger, EventsStayAsTheyAreOtherwise) {
  const Value all = merged({trace_of("1000"), trace_of("1000")});

  const Value& event = all.at("traceEvents").as_list()[7];
  EXPECT_EQ(event.at("name").as_string(), "aten::mm");
  EXPECT_EQ(event.at("ts").as_double(), 1000.25);
  EXPECT_EQ(event.at("dur").as_double(), 3.5);
  EXPECT_EQ(event.at("tid").as_int(), 812);
  EXPECT_EQ(event.at("args").at("Input Dims").to_json(), "[[2,3],[3,4]]");
  EXPECT_EQ(event.at("args").at("correlation").as_int(), -1) << "names nothing";
  EXPECT_NE(event.at("args").at("External id"), all.at("traceEvents").as_list()[2].at("args").at("External id"));
}

TEST(TraceMerger, TimesCountFromTheFirstTracesBase) {
  const Value all = merged({trace_of("5000"), trace_of("2005000")});

  EXPECT_EQ(all.at("baseTimeNanoseconds").as_int(), 5000);
  EXPECT_EQ(all.at("traceEvents").as_list()[2].at("ts").as_double(), 1000.25);
  EXPECT_EQ(all.at("traceEvents").as_list()[7].at("ts").as_double(), 3000.25);
}

TEST(TraceMerger, TimesThatAreMovedKeepTheirNanoseconds) {
  const auto trace = [](const std::string& time, const std::string& base) {
    return R"({"traceEvents": [{"ph": "X", "name": "a", "pid": 1, "tid": 1, "ts": )" + time +
           R"(, "dur": 0.001}], "baseTimeNanoseconds": )" + base + "}";
  };
  for (const auto& [time, moved] : std::vector<std::pair<std::string, std::string>>{
           {"4932457430569.289", "4932457430570.290"}, {"8999999999999.999", "9000000000001.000"}, {"7", "8.001"}}) {
    std::ostringstream out;
    TraceMerger merger(out);
    merger.add(0, trace(time, "5"), "a.json");
    merger.add(1, trace(time, "1006"), "b.json");
    merger.end();

    EXPECT_THAT(out.str(), HasSubstr("\"ts\": " + time + ","));
    EXPECT_THAT(out.str(), HasSubstr("\"ts\": " + moved + ","));
  }
}

TEST(TraceMerger, ATraceThatIsCutNamesItsFile) {
  std::ostringstream out;
  const std::string whole = trace_of("1");
  for (const size_t length : {size_t{0}, size_t{40}, whole.find("aten::mm"), whole.find("traceName") - 8}) {
    TraceMerger merger(out);
    try {
      merger.add(0, whole.substr(0, length), "/tmp/rank_0.json");
      ADD_FAILURE() << length << " bytes were taken";
    } catch (const DataError& error) {
      EXPECT_THAT(error.what(), HasSubstr("/tmp/rank_0.json"));
    }
  }
}

}  // namespace
}  // namespace hasten::flight
