#include "hasten/tracking/board/board.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <map>
#include <string>
#include <thread>

#include "hasten/core/error.h"
#include "hasten/core/http.h"
#include "tracking/sinks/event_file.h"
#include "tracking/sinks/summary.h"
#include "tracking/tracking_support.h"

namespace hasten::tracking {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Boards = hasten::testing::InFolder;

TEST(CurveReduction, KeepsEndsAndEverySpike) {
  Curve curve;
  for (int i = 0; i < 100000; ++i) curve.push_back({1.0 * i, 0, std::sin(i * 0.001)});
  curve[31415].value = 50;
  curve[77777].value = -60;
  curve[5000].value = std::nan("");

  const Curve reduced = reduce_curve(curve, 2000);

  EXPECT_LE(reduced.size(), 2000u);
  EXPECT_GT(reduced.size(), 1500u);
  EXPECT_EQ(reduced.front().step, 0);
  EXPECT_EQ(reduced.back().step, 99999);
  EXPECT_TRUE(
      std::is_sorted(reduced.begin(), reduced.end(), [](const auto& a, const auto& b) { return a.step < b.step; }));
  const auto has = [&](double value) {
    return std::any_of(reduced.begin(), reduced.end(), [&](const auto& point) { return point.value == value; });
  };
  EXPECT_TRUE(has(50));
  EXPECT_TRUE(has(-60));
  EXPECT_EQ(reduce_curve({{1, 0, 1}}, 4).size(), 1u);
}

TEST_F(Boards, ARunsCurvesSettingsImagesNotesAndRanksAreInThePage) {
  auto setup = setup_in(folder_, {"tensorboard"});
  setup.options.metrics_interval_s = 0.01;
  Trackers trackers(setup);
  trackers.init("p", {{"lr", 0.5}, {"net", {{"depth", 3}}}});
  for (int step = 0; step < 10; ++step)
    trackers.log({{"loss", 1.0 / (step + 1)}, {"Loss", {{"val", 0.25}}}, {"word", "text <b>"}}, step);
  trackers.log_images({{"input", Image{1, 1, 1, {7}}}}, 9);
  trackers.note("</script><script>alert(1)</script>", "warning");
  trackers.count_step(4);
  std::this_thread::sleep_for(std::chrono::milliseconds(60));
  trackers.finish();

  const auto runs = read_runs({folder_});
  const std::string page = board_page(board_data(runs, 0, false));

  ASSERT_EQ(runs.size(), 1u);  // the event files of the run say the same and are left out
  EXPECT_EQ(runs[0].name, "p/run");
  EXPECT_EQ(runs[0].curves.at("loss").size(), 10u);
  EXPECT_EQ(runs[0].curves.at("Loss/val").back().value, 0.25);
  EXPECT_EQ(runs[0].end, "finished");
  EXPECT_FALSE(runs[0].ranks.at(0).at("memory_bytes").empty());
  EXPECT_THAT(page, HasSubstr(R"("net/depth":3)"));
  EXPECT_THAT(page, HasSubstr("data:image/png;base64,"));
  EXPECT_THAT(page, Not(HasSubstr("alert(1)</script>")));
  EXPECT_THAT(page, HasSubstr("script-src 'sha256-"));
  EXPECT_THAT(page, Not(HasSubstr("@HASH@")));
  EXPECT_THAT(page, Not(HasSubstr("http://")));
}

TEST_F(Boards, EventFilesOfOtherProgramsAreRunsAndARestartDropsPoints) {
  {
    EventFile file(folder_ / "a/events.out.tfevents.1.h.1.0", 0, 1);
    for (int step = 0; step < 8; ++step) file.append(summary::event(1, step, summary::scalar("x", 1.0F)));
    file.flush();
    EventFile second(folder_ / "a/events.out.tfevents.2.h.1.0", 0, 2);
    second.append(summary::start_event(2, 5));
    second.append(summary::event(2, 5, summary::scalar("x", 2.0F)));
    second.flush();
  }

  const auto runs = read_runs({folder_});

  ASSERT_EQ(runs.size(), 1u);
  EXPECT_EQ(runs[0].name, "a");
  EXPECT_EQ(runs[0].curves.at("x").size(), 6u);
  EXPECT_EQ(runs[0].curves.at("x").back().value, 2.0);
  EXPECT_THROW(read_runs({folder_ / "none"}), DataError);
}

TEST_F(Boards, EventFilesThatACrashHasCutAreShownUpToThereBesideTheOthers) {
  std::string good = summary::record(summary::version_event(1));
  for (int step = 0; step < 8; ++step) good += summary::record(summary::event(1, step, summary::scalar("x", 1.0F)));
  std::string flipped = good;
  for (size_t i = 0; i < 3; ++i) flipped[flipped.size() / 2 + i] = '\377';
  const std::string name = "/events.out.tfevents.1.host";
  write("good" + name, good);
  write("cut" + name, good.substr(0, good.size() - 7));
  write("flipped" + name, flipped);
  write("empty" + name, "");
  write("rubbish" + name, std::string(5000, '\x93'));
  write("twice" + name, good);
  write("twice/events.out.tfevents.2.host", good);
  std::filesystem::create_directories(folder_ / "folder/events.out.tfevents.3.host");
  std::filesystem::create_symlink("/no/such/file", folder_ / "folder/events.out.tfevents.4.host");

  std::map<std::string, size_t> points;
  for (const auto& run : read_runs({folder_})) {
    const auto curve = run.curves.find("x");
    points[run.name] = curve == run.curves.end() ? 0 : curve->second.size();
  }

  EXPECT_EQ(points["good"], 8u);
  EXPECT_EQ(points["cut"], 7u);
  EXPECT_GT(points["flipped"], 0u);
  EXPECT_LT(points["flipped"], 8u);
  EXPECT_GE(points["twice"], 8u);
  EXPECT_EQ(points["empty"] + points["rubbish"] + points["folder"], 0u);
}

TEST_F(Boards, AServedPageGivesNewsToItsOwnHostOnly) {
  write("a/journal.jsonl", R"({"op":"start","t":1,"project":"p","run_id":"r"})"
                           "\n"
                           R"({"op":"log","t":1,"step":1,"values":{"x":1.0}})"
                           "\n");
  std::atomic<bool> ends = false;
  std::atomic<bool> started = false;
  std::string address;
  std::thread server([&] {
    serve_board(
        {folder_}, "127.0.0.1", 0, [&](const std::string& at) { address = at, started = true; },
        [&] { return ends.load(); });
  });
  while (!started) std::this_thread::yield();
  http::Client client({.use_proxy = false});

  const auto page = client.send({.url = address});
  const auto data = client.send({.url = address + "data?after=-1"});
  const auto version = runs_version({folder_});
  const auto none = client.send({.url = address + text("data?after=", version)});
  const auto foreign = client.send({.url = address, .headers = {{"Host", "evil.example:80"}}});
  const auto other = client.send({.url = address + "etc/passwd"});
  ends = true;
  server.join();

  EXPECT_EQ(page.status, 200);
  EXPECT_THAT(page.body, HasSubstr("\"live\":true"));
  EXPECT_THAT(data.body, HasSubstr("\"x\":[[1.0],[1.0],[1.0]]"));
  EXPECT_EQ(none.status, 204);
  EXPECT_EQ(foreign.status, 400);
  EXPECT_EQ(other.status, 404);
}

}  // namespace
}  // namespace hasten::tracking
