#include "tracking/tensorboard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <random>

#include "hasten/core/error.h"
#include "support/folder.h"
#include "tracking/crc32c.h"
#include "tracking/event_file.h"
#include "tracking/event_reader.h"
#include "tracking/png.h"
#include "tracking/proto.h"
#include "tracking/summary.h"

namespace hasten::tracking {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using EventFiles = hasten::testing::InFolder;

std::string hex(const std::string& bytes) {
  std::string out;
  for (const char byte : bytes) {
    char two[3];
    std::snprintf(two, sizeof two, "%02x", static_cast<unsigned char>(byte));
    out += two;
  }
  return out;
}

TEST(Crc32c, IsThatOfTheStandardWithAndWithoutTheInstruction) {
  // RFC 3720, appendix B.4.
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aaU);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43U);
  EXPECT_EQ(crc32c("123456789"), 0xe3069283U);
  std::mt19937 random(7);
  for (int size = 0; size < 100; ++size) {
    std::string bytes;
    for (int i = 0; i < size; ++i) bytes += static_cast<char>(random());
    EXPECT_EQ(crc32c(bytes), detail::crc32c_by_table(bytes));
  }
  EXPECT_EQ(masked_crc32c("123456789"), ((0xe3069283U >> 15) | (0xe3069283U << 17)) + 0xa282ead8U);
}

TEST(Summary, BytesAreThoseOfTheProtocol) {
  EXPECT_EQ(hex(summary::scalar("a", 1.0F)), "0a080a0161150000803f");
  EXPECT_EQ(hex(summary::event(1.0, 5, summary::scalar("a", 1.0F))), "09000000000000f03f10052a0a0a080a0161150000803f");
  EXPECT_EQ(hex(summary::version_event(0.0)), "0900000000000000001a0d627261696e2e4576656e743a32");
  EXPECT_EQ(hex(summary::record("x")).substr(0, 16), "0100000000000000");
  EXPECT_EQ(summary::record("x").size(), 17u);
}

TEST(EventFileName, HasTenDigitsHostPidAndCounter) {
  EXPECT_EQ(event_file_name(1769000000.9, "host", 12, 3), "events.out.tfevents.1769000000.host.12.3");
  EXPECT_EQ(event_file_name(5, "h", 1, 0), "events.out.tfevents.0000000005.h.1.0");
}

std::vector<EventValue> values_in(const std::filesystem::path& folder, std::string* problem = nullptr) {
  std::vector<EventValue> values;
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().string().find("tfevents") != std::string::npos) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  for (const auto& file : files) {
    const auto report = read_events(file, [&](EventValue value) { values.push_back(std::move(value)); });
    if (problem != nullptr) *problem = report.problem;
  }
  return values;
}

std::unique_ptr<Tracker> started(const std::filesystem::path& folder, const core::Value& options = {}) {
  auto tracker = make_tensorboard(options, Environment::of({}));
  tracker->start({.project = "p", .run_id = "r", .folder = folder, .pid = 42, .start_time_s = 1769000000});
  return tracker;
}

TEST_F(EventFiles, ScalarsGroupsAndTextsAreReadBack) {
  auto tracker = started(folder_);
  tracker->set_time_s(1769000001.5);
  tracker->log({{"loss", 0.5}, {"n", 3}, {"on", true}, {"note", "hello"}, {"Loss/all", {{"train/a", 1.0}}}}, 7, {});
  tracker->flush();

  const auto values = values_in(folder_);
  const auto group = values_in(folder_ / "Loss_all_train_a");

  ASSERT_EQ(values.size(), 4u);
  EXPECT_EQ(values[0].tag, "loss");
  EXPECT_EQ(values[0].number, 0.5);
  EXPECT_EQ(values[0].step, 7);
  EXPECT_EQ(values[0].time_s, 1769000001.5);
  EXPECT_EQ(values[1].number, 3);
  EXPECT_EQ(values[2].number, 1);
  EXPECT_EQ(values[3].bytes, "hello");
  ASSERT_EQ(group.size(), 1u);
  EXPECT_EQ(group[0].tag, "Loss/all");
}

TEST_F(EventFiles, DoublesKeepTheirBitsIfAsked) {
  auto tracker = started(folder_, core::Value::map({{"double_scalars", true}}));
  tracker->log({{"x", 0.1}}, 1, {});
  tracker->flush();

  EXPECT_EQ(values_in(folder_)[0].number, 0.1);
}

TEST_F(EventFiles, AFollowerThatGoesOnWritesEachPointOnce) {
  core::Value state;
  {
    auto first = started(folder_);
    first->log({{"x", 1.0}, {"group", {{"a", 1.0}}}}, 1, {});
    state = first->flush();
    first->log({{"x", 2.0}, {"group", {{"a", 2.0}, {"late", 2.0}}}}, 2, {});
    first->flush();  // not acknowledged
  }
  auto second = make_tensorboard({}, Environment::of({}));
  second->resume(state);
  second->start({.folder = folder_, .pid = 42, .start_time_s = 1769000000});
  second->log({{"x", 2.0}, {"group", {{"a", 2.0}, {"late", 2.0}}}}, 2, {});
  second->flush();

  EXPECT_EQ(values_in(folder_).size(), 2u);
  EXPECT_EQ(values_in(folder_ / "group_a").size(), 2u);
  EXPECT_EQ(values_in(folder_ / "group_late").size(), 1u);
}

TEST_F(EventFiles, ARewindMarksThePointBehindWhichEarlierFilesCountNoMore) {
  auto tracker = started(folder_);
  tracker->log({{"x", 1.0}}, 10, {});
  tracker->rewind(5);
  tracker->log({{"x", 2.0}}, 6, {});
  tracker->flush();

  const auto values = values_in(folder_);

  ASSERT_EQ(values.size(), 3u);
  EXPECT_EQ(values[1].kind, EventValue::Kind::kRestart);
  EXPECT_EQ(values[1].step, 6);
}

TEST_F(EventFiles, SettingsAreHparamsAndYaml) {
  auto tracker = started(folder_);
  tracker->store_init_configuration(core::Value::map({{"lr", 0.1}, {"opt", core::Value::map({{"name", "adam"}, {"amp", true}})}}));
  tracker->log({{"loss", 0.5}}, 0, {});
  tracker->finish(RunEnd::kFinished);
  tracker->flush();

  const auto values = values_in(folder_);
  std::ifstream yaml(folder_ / "hparams.yml");
  std::string text((std::istreambuf_iterator<char>(yaml)), {});

  EXPECT_EQ(text, "\"lr\": 0.1\n\"opt\":\n  \"name\": \"adam\"\n  \"amp\": true\n");
  const auto config = std::find_if(values.begin(), values.end(), [](const auto& value) { return value.kind == EventValue::Kind::kConfig; });
  ASSERT_NE(config, values.end());
  EXPECT_EQ(config->config.at("lr").as_double(), 0.1);
  EXPECT_EQ(config->config.at("opt/name").as_string(), "adam");
}

TEST_F(EventFiles, SeveralImagesBecomeAGridOfEightColumns) {
  std::vector<Image> images(9, Image{2, 1, 1, {10, 200}});
  const Image grid = image_grid(images);
  const Image back = decode_png(encode_png(grid), "grid");

  EXPECT_EQ(grid.width, 16);
  EXPECT_EQ(grid.height, 2);
  EXPECT_EQ(grid.channels, 3);
  EXPECT_EQ(back.pixels, grid.pixels);
  EXPECT_EQ(std::vector<uint8_t>(grid.pixels.begin(), grid.pixels.begin() + 6), (std::vector<uint8_t>{10, 10, 10, 200, 200, 200}));
  EXPECT_THROW(decode_png("no png", "x.png"), DataError);
}

TEST_F(EventFiles, DamagedAndHostileFilesAreReadUpToTheDamage) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(text("seed ", seed));
  std::mt19937 random(seed);
  std::string good = summary::record(summary::version_event(1));
  for (int step = 0; step < 5; ++step) good += summary::record(summary::event(1, step, summary::scalar("x", 1.0F)));
  const int64_t rounds = Environment::current().integer("HASTEN_TEST_SCALE").value_or(200);
  for (int64_t round = 0; round < rounds; ++round) {
    std::string bytes = good;
    bytes[random() % bytes.size()] = static_cast<char>(random());
    if (round % 2 == 0) bytes.resize(random() % bytes.size());
    const std::string file = write("damaged", bytes);
    int64_t count = 0;
    const auto report = read_events(file, [&](const EventValue&) { ++count; });
    EXPECT_LE(count, 5);
    EXPECT_LE(report.num_records, 6);
  }
  // Messages that say nonsense, with right checksums.
  for (int64_t round = 0; round < rounds; ++round) {
    std::string noise;
    for (unsigned n = random() % 60; n > 0; --n) noise += static_cast<char>(random() % 64);
    read_events(write("noise", summary::record(noise)), [](const EventValue&) {});
  }
  std::string huge("\xff\xff\xff\xff\xff\xff\xff\x7f", 8);
  const uint32_t crc = masked_crc32c(huge);
  huge.append(reinterpret_cast<const char*>(&crc), 4);
  EXPECT_THAT(read_events(write("huge", huge), [](const EventValue&) {}).problem, HasSubstr("length"));
}

}  // namespace
}  // namespace hasten::tracking
