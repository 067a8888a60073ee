#include "process/failure_reporter.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <exception>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <thread>
#include <vector>

#include "hasten/core/error.h"
#include "hasten/process/report_errors.h"

namespace hasten::process {
namespace {

TEST(ErrorFile, HasTorchrunsFormat) {
  const auto content = nlohmann::json::parse(error_file_text("it \"failed\"\n", 1700000000));

  EXPECT_EQ(content["message"]["message"], "it \"failed\"\n");
  EXPECT_EQ(content["message"]["extraInfo"]["timestamp"], "1700000000");
  EXPECT_EQ(content["message"]["extraInfo"]["py_callstack"], "it \"failed\"\n");
}

TEST(ErrorFile, TakesWordsThatAreNoUtf8) {
  EXPECT_TRUE(nlohmann::json::accept(error_file_text("\xff\xfe", 0)));
}

TEST(ReportErrorsDeathTest, AnUncaughtErrorEndsTheProcessWithItsMessage) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto fails = [](const auto& fail) {
    const auto reporter = report_errors(Environment::of({}));
    std::thread(fail).join();  // where googletest does not catch it
  };
  EXPECT_EXIT(fails([] { throw UsageError(Origin{"data"}, "no rows."); }), ::testing::ExitedWithCode(2),
              "^hasten: .*no rows");
  EXPECT_EXIT(fails([] { throw std::runtime_error("it is over"); }), ::testing::ExitedWithCode(1),
              "^hasten: it is over");
}

// Ends with 55.
[[noreturn]] void end_of_the_program() {
  _exit(55);
}

TEST(ReportErrorsDeathTest, TheLastOwnerThatIsThereCountsInWhateverOrderTheyEnd) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto fails = [](const std::vector<size_t>& ended) {
    std::set_terminate(end_of_the_program);
    std::vector<std::shared_ptr<const void>> owners;
    for (int rank = 0; rank < 3; ++rank) {
      owners.push_back(report_errors(Environment::of({{"RANK", text(rank)},
                                                      {"LOCAL_RANK", text(rank)},
                                                      {"WORLD_SIZE", "3"},
                                                      {"MASTER_ADDR", "127.0.0.1"},
                                                      {"MASTER_PORT", "1"}})));
    }
    for (const size_t each : ended) owners[each].reset();
    std::thread([] { throw std::runtime_error("it is over"); }).join();
  };

  EXPECT_EXIT(fails({}), ::testing::ExitedWithCode(1), "^hasten: rank 2/3: it is over");
  EXPECT_EXIT(fails({2}), ::testing::ExitedWithCode(1), "^hasten: rank 1/3: it is over");
  EXPECT_EXIT(fails({0, 2}), ::testing::ExitedWithCode(1), "^hasten: rank 1/3: it is over");
  EXPECT_EXIT(fails({2, 1}), ::testing::ExitedWithCode(1), "^hasten: rank 0/3: it is over");
  EXPECT_EXIT(fails({0, 1}), ::testing::ExitedWithCode(1), "^hasten: rank 2/3: it is over");
  EXPECT_EXIT(fails({1, 0, 2}), ::testing::ExitedWithCode(55), "");
}

}  // namespace
}  // namespace hasten::process
