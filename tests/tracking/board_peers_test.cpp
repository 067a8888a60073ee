// The board in a real browser. Skipped where there is no chromium on PATH.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <set>

#include "hasten/core/path_search.h"
#include "hasten/tracking/board/board.h"
#include "tracking/follower/child.h"
#include "tracking/journal/json.h"
#include "tracking/journal/png.h"
#include "tracking/tracking_support.h"

namespace hasten::tracking {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class BoardPeers : public hasten::testing::InFolder {
 protected:
  void SetUp() override {
    browser_ = core::find_on_path("chromium", Environment::current());
    if (browser_.empty()) GTEST_SKIP() << "there is no chromium on PATH";
  }

  std::string browse(const std::string& page, std::vector<std::string> more) {
    std::vector<std::string> words = {browser_.string(),
                                      "--headless",
                                      "--no-sandbox",
                                      "--disable-gpu",
                                      "--enable-logging=stderr",
                                      "--v=0",
                                      "--virtual-time-budget=2000",
                                      "--user-data-dir=" + path("profile")};
    words.insert(words.end(), more.begin(), more.end());
    words.push_back("file://" + page);
    Child child(
        {.arguments = words, .environment = environment_with({{"HOME", path("")}}), .error_file = path("browser.log")});
    std::string output;
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(200);
    while (!child.output_ended() && std::chrono::steady_clock::now() < until) {
      for (const std::string& line : child.read_lines(std::chrono::milliseconds(100))) output += line + "\n";
    }
    if (!child.wait(std::chrono::seconds(20))) child.kill();
    return output;
  }

  std::filesystem::path browser_;
};

void write_runs(const std::filesystem::path& folder, int num_runs, int num_points) {
  for (int run = 0; run < num_runs; ++run) {
    const auto place = folder / text("run", run);
    std::filesystem::create_directories(place);
    std::ofstream file(place / "journal.jsonl");
    file << R"({"op":"start","t":1000,"project":"p","run_id":"r"})"
            "\n"
         << R"({"op":"config","t":1000,"config":{"lr":)" << run << ".5}}\n";
    for (int step = 0; step < num_points; ++step) {
      file << R"({"op":"log","t":)" << 1000 + step << R"(,"step":)" << step << R"(,"values":{"loss":)"
           << 1.0 / (1 + step) + run << "}}\n";
    }
    file << R"({"op":"note","t":1001,"level":"warning","text":"<img src=x onerror=alert(1)>"})"
            "\n"
         << R"({"op":"finish","t":1002,"end":"finished"})"
            "\n";
  }
}

TEST_F(BoardPeers, ChromiumShowsTheCurvesWithoutAnErrorOrARequest) {
  write_runs(folder_ / "runs", 2, 5000);
  const std::string page = write("board.html", board_page(board_data(read_runs({folder_ / "runs"}), 0, false)));

  const std::string dom = browse(page, {"--dump-dom"});
  const std::string log = text_of(path("browser.log"));

  EXPECT_THAT(dom, HasSubstr("Curves (1)"));
  EXPECT_THAT(dom, HasSubstr("<canvas"));
  EXPECT_THAT(dom, HasSubstr("run1 1.0002"));  // the last value
  EXPECT_THAT(dom, HasSubstr("class=\"differs\""));
  EXPECT_THAT(dom, Not(HasSubstr("<img src=\"x\"")));
  EXPECT_THAT(log, Not(HasSubstr("CONSOLE")));
  EXPECT_THAT(log, Not(HasSubstr("Refused to")));
}

TEST_F(BoardPeers, BytesAndTimesHaveTheirUnits) {
  std::filesystem::create_directories(folder_ / "runs");
  std::ofstream(folder_ / "runs/journal.jsonl")
      << R"({"op":"start","t":1000,"project":"p","run_id":"r"})"
         "\n"
         R"({"op":"log","t":1000,"step":0,"values":{"memory_bytes":320000000,"epoch_s":1500,"loss":4.788}})"
         "\n";
  const std::string page = write("board.html", board_page(board_data(read_runs({folder_ / "runs"}), 0, false)));

  const std::string dom = browse(page, {"--dump-dom"});

  EXPECT_THAT(dom, HasSubstr("305.2 MiB"));
  EXPECT_THAT(dom, HasSubstr("25 min"));
  EXPECT_THAT(dom, HasSubstr("4.788"));
}

TEST_F(BoardPeers, AScreenshotIsNotBlank) {
  write_runs(folder_ / "runs", 3, 500);
  const std::string page = write("board.html", board_page(board_data(read_runs({folder_ / "runs"}), 0, false)));

  browse(page, {"--window-size=800,600", "--screenshot=" + path("shot.png")});

  const Image shot = decode_png(text_of(path("shot.png")), "shot.png");
  std::set<uint32_t> colours;
  for (size_t i = 0; i + 2 < shot.pixels.size(); i += static_cast<size_t>(shot.channels)) {
    colours.insert(static_cast<uint32_t>(shot.pixels[i]) << 16 | static_cast<uint32_t>(shot.pixels[i + 1]) << 8 |
                   shot.pixels[i + 2]);
  }
  EXPECT_GT(colours.size(), 50u);
}

}  // namespace
}  // namespace hasten::tracking
