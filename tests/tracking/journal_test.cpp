#include "hasten/tracking/journal/journal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <random>

#include "hasten/core/env.h"
#include "hasten/core/error.h"
#include "support/folder.h"
#include "tracking/follower/sink.h"
#include "tracking/journal/json.h"
#include "tracking/journal/line_queue.h"

namespace hasten::tracking {
namespace {

using ::testing::HasSubstr;
using JournalFile = hasten::testing::InFolder;

core::Value record(int step) {
  return core::Value::map(
      {{"op", "log"}, {"t", 1.5}, {"step", step}, {"values", core::Value::map({{"x", step * 0.5}})}});
}

std::vector<int64_t> steps_in(const std::string& path, JournalPosition from = {}) {
  JournalReader reader(path, from);
  std::vector<int64_t> steps;
  while (const auto found = reader.next()) steps.push_back(found->step.value_or(-1));
  return steps;
}

TEST_F(JournalFile, ReadsBackWhatWasWritten) {
  Journal journal(path("run/journal.jsonl"));
  for (int step = 0; step < 1000; ++step) EXPECT_TRUE(journal.append(record(step)));

  const auto steps = steps_in(path("run/journal.jsonl"));

  ASSERT_EQ(steps.size(), 1000u);
  EXPECT_EQ(steps[999], 999);
}

TEST_F(JournalFile, AReaderSeesWhatIsWrittenLater) {
  Journal journal(path("journal.jsonl"));
  JournalReader reader(path("journal.jsonl"));
  EXPECT_FALSE(reader.next());

  journal.append(record(7));

  EXPECT_EQ(reader.next()->step, 7);
  EXPECT_FALSE(reader.next());
  EXPECT_EQ(reader.num_bytes_left(), 0);
}

TEST_F(JournalFile, GoesOnInAFurtherPartWhenOneHasGrown) {
  {
    Journal journal(path("journal.jsonl"), {.rotate_bytes = 500});
    for (int step = 0; step < 100; ++step) journal.append(record(step));
  }
  Journal again(path("journal.jsonl"), {.rotate_bytes = 500});
  again.append(record(100));

  const auto steps = steps_in(path("journal.jsonl"));

  EXPECT_TRUE(std::filesystem::exists(path("journal.2.jsonl")));
  ASSERT_EQ(steps.size(), 101u);
  for (int64_t step = 0; step <= 100; ++step) EXPECT_EQ(steps[static_cast<size_t>(step)], step);
}

TEST_F(JournalFile, CorruptLinesAreSkippedWithTheirPlaceAndReason) {
  const std::string good = R"({"op":"log","step":1,"values":{}})";
  write("journal.jsonl", good + "\nrubbish\n{\"step\":1}\n" + std::string(100000, '[') +
                             "\n{\"op\":\"log\",\"step\":1.5}\n\n" + good + "\n" + good);

  JournalReader reader(path("journal.jsonl"));
  int records = 0;
  while (reader.next()) ++records;

  EXPECT_EQ(records, 2);  // the last line has no end
  ASSERT_EQ(reader.problems().size(), 4u);
  EXPECT_EQ(reader.problems()[0].position.offset, 34);
  EXPECT_THAT(reader.problems()[2].reason, HasSubstr("nested too deeply"));
}

TEST_F(JournalFile, ATornLineOfADeadProcessIsClosedByTheNextOne) {
  write("journal.jsonl", R"({"op":"log","step":1})"
                         "\n"
                         R"({"op":"lo)");
  Journal journal(path("journal.jsonl"));
  journal.append(record(2));

  EXPECT_EQ(steps_in(path("journal.jsonl")), (std::vector<int64_t>{1, 2}));
}

TEST_F(JournalFile, ASecondWriterIsRefusedWithThePidOfTheFirst) {
  const Journal first(path("journal.jsonl"));

  const std::string words = hasten::testing::words_of<UsageError>([&] { Journal second(path("journal.jsonl")); });

  EXPECT_THAT(words, HasSubstr(text("pid ", getpid())));
}

TEST_F(JournalFile, AFolderThatCannotBeWrittenIsNamed) {
  EXPECT_THAT(hasten::testing::words_of<DataError>([] { Journal journal("/proc/none/journal.jsonl"); }),
              HasSubstr("/proc/none"));
}

TEST_F(JournalFile, RandomRecordsCutAnywhereAreReadUpToTheCut) {
  const int64_t rounds = Environment::current().integer("HASTEN_TEST_SCALE").value_or(30);
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(text("seed ", seed));
  std::mt19937 random(seed);
  for (int64_t round = 0; round < rounds; ++round) {
    std::string bytes;
    std::vector<size_t> ends;
    std::vector<core::Value> written;
    for (int i = 0; i < 20; ++i) {
      std::string noise;
      for (unsigned n = random() % 12; n > 0; --n) noise += static_cast<char>(random());
      core::Value one =
          core::Value::map({{"op", "log"}, {"step", static_cast<int64_t>(random())}, {"values", core::Value::map()}});
      one["values"]["k"] = std::ldexp(static_cast<double>(random()), static_cast<int>(random() % 200) - 100);
      one["values"]["list"] = core::Value::list({true, nullptr, static_cast<int64_t>(random()) - (1 << 30)});
      append_json(bytes, one);
      std::string with_noise = bytes;
      bytes += '\n';
      ends.push_back(bytes.size());
      written.push_back(one);
    }
    const size_t cut = random() % (bytes.size() + 1);
    write("cut.jsonl", bytes.substr(0, cut));
    JournalReader reader(path("cut.jsonl"));
    size_t count = 0;
    while (const auto found = reader.next()) {
      ASSERT_TRUE(found->body == written[count]) << found->body.to_json() << written[count].to_json();
      ++count;
    }
    EXPECT_EQ(count, static_cast<size_t>(std::upper_bound(ends.begin(), ends.end(), cut) - ends.begin()));
  }
}

TEST_F(JournalFile, AFullDiskDropsLinesCountsThemAndSaysSo) {
  // /dev/full takes no byte, as a full disk.
  std::filesystem::create_symlink("/dev/full", path("journal.jsonl"));
  Journal journal(path("journal.jsonl"), {.retry_interval_s = 0});

  EXPECT_FALSE(journal.append(record(1)));
  EXPECT_FALSE(journal.append(record(2)));

  EXPECT_GE(journal.num_lost(), 2);
  EXPECT_THAT(journal.error(), HasSubstr("No space"));
}

class Number : public Pending {
 public:
  bool ready() noexcept override { return is_ready; }
  double value() noexcept override { return 0.25; }
  bool is_ready = false;
};

TEST_F(JournalFile, LinesWaitInOrderForANumberThatIsNotThereYet) {
  const auto journal = std::make_shared<Journal>(path("journal.jsonl"));
  LineQueue queue(journal);
  const auto number = std::make_shared<Number>();

  queue.push(LogLine{.step = 1, .values = {{"loss", Value(number)}}});
  queue.push(LogLine{.step = 2, .values = {{"lr", 0.5}}});
  queue.push(std::string("{\"op\":\"note\",\"step\":3}\n"));
  EXPECT_TRUE(steps_in(path("journal.jsonl")).empty());
  number->is_ready = true;
  queue.drain();

  EXPECT_EQ(steps_in(path("journal.jsonl")), (std::vector<int64_t>{1, 2, 3}));
  JournalReader reader(path("journal.jsonl"));
  EXPECT_EQ(reader.next()->body.at("values").at("loss").as_double(), 0.25);
}

TEST_F(JournalFile, AtMostSixtyFourLinesWait) {
  const auto journal = std::make_shared<Journal>(path("journal.jsonl"));
  LineQueue queue(journal);
  for (int step = 0; step < 100; ++step)
    queue.push(LogLine{.step = step, .values = {{"loss", Value(std::make_shared<Number>())}}});

  EXPECT_EQ(steps_in(path("journal.jsonl")).size(), 36u);
  queue.drain(/*all=*/true);
  EXPECT_EQ(steps_in(path("journal.jsonl")).size(), 100u);
}

TEST_F(JournalFile, ValuesThatJsonLacksComeBack) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  std::string line;
  append_log_line(line, {.step = 1,
                         .values = {{"nan", std::nan("")},
                                    {"inf", kInfinity},
                                    {"minus", -kInfinity},
                                    {"text", "NaN"},
                                    {"bytes", std::string("\xff\"\n")},
                                    {"tiny", 5e-324},
                                    {"group", {{"a", 1}}}}});
  const auto body = read_json(line);
  ASSERT_TRUE(body);

  const Values values = values_of(body->at("values"));

  EXPECT_TRUE(std::isnan(values[0].second.as_number()));
  EXPECT_EQ(values[1].second.as_number(), kInfinity);
  EXPECT_EQ(values[2].second.as_number(), -kInfinity);
  EXPECT_EQ(values[3].second.as_string(), "NaN");
  EXPECT_EQ(values[4].second.as_string(), "\xEF\xBF\xBD\"\n");
  EXPECT_EQ(values[5].second.as_number(), 5e-324);
  EXPECT_EQ(values[6].second.as_group().front().second.as_int(), 1);
}

TEST(TrackingJson, ReadsPythonsNumbersAndRefusesRubbish) {
  EXPECT_TRUE(std::isnan(read_json("[NaN, -Infinity]")->as_list()[0].as_double()));
  EXPECT_EQ(read_json(R"("\u00e9\ud83d\ude00")")->as_string(), "\xc3\xa9\xf0\x9f\x98\x80");
  EXPECT_TRUE(read_json("9223372036854775807")->is_int());
  EXPECT_FALSE(read_json("92233720368547758070")->is_int());
  EXPECT_EQ(read_json("1e400")->as_double(), std::numeric_limits<double>::infinity());
  for (const char* wrong :
       {"", "{", "[1,]", "{\"a\" 1}", "tru", "1 2", "\"a", "\"\\x\"", "\"\\ud800\"", "+1", "-", "nan"}) {
    std::string reason;
    EXPECT_FALSE(read_json(wrong, &reason)) << wrong;
    EXPECT_NE(reason, "");
  }
}

}  // namespace
}  // namespace hasten::tracking
