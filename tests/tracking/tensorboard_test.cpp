#include "tracking/sinks/tensorboard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iostream>
#include <limits>
#include <random>
#include <stdexcept>

#include "hasten/core/error.h"
#include "support/folder.h"
#include "tracking/board/event_reader.h"
#include "tracking/journal/json.h"
#include "tracking/journal/png.h"
#include "tracking/sinks/crc32c.h"
#include "tracking/sinks/event_file.h"
#include "tracking/sinks/proto.h"
#include "tracking/sinks/summary.h"
#include "tracking/tracking_support.h"

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

double number_of(const core::Value& value) {
  return value.is_string() ? (value.as_string().front() == '-' ? -1 : 1) * std::numeric_limits<double>::infinity()
                           : value.as_double();
}

std::string bytes_of_hex(const std::string& digits) {
  std::string bytes;
  for (size_t i = 0; i + 1 < digits.size(); i += 2)
    bytes += static_cast<char>(std::stoi(digits.substr(i, 2), nullptr, 16));
  return bytes;
}

// What our encoder makes of a case of torch.utils.tensorboard's.
std::string encoded(const std::string& family, const core::Value& in) {
  const auto word = [&](const char* key) { return in.at(key).as_string(); };
  const auto integer = [&](const char* key) { return in.at(key).as_int(); };
  if (family == "scalar") return summary::scalar(word("tag"), static_cast<float>(number_of(in.at("value"))));
  if (family == "text") return summary::text(word("tag"), word("value"));
  if (family == "histogram") {
    std::vector<double> values;
    for (const auto& value : in.at("values").as_list()) values.push_back(number_of(value));
    return summary::histogram(word("tag"), histogram(values.data(), values.size()));
  }
  if (family == "image") {
    return summary::image(word("tag"), static_cast<int>(integer("width")), static_cast<int>(integer("height")),
                          static_cast<int>(integer("channels")), bytes_of_hex(word("png")));
  }
  const double time = number_of(in.at("time"));
  if (family == "event")
    return summary::event(time, integer("step"),
                          summary::scalar(word("tag"), static_cast<float>(number_of(in.at("value")))));
  if (family == "event_version") return summary::version_event(time);
  if (family == "event_start") return summary::start_event(time, integer("step"));
  throw std::runtime_error("the family is not known");
}

// Takes the sum and the sum of squares out of a histogram's bytes: their last bits follow the order of adding.
std::pair<double, double> take_sums(std::string& bytes) {
  constexpr std::array<size_t, 5> kPlaces = {0, 9, 18, 27, 36};
  constexpr char kTags[] = "\x09\x11\x19\x21\x29";  // min, max, num, sum, sum of squares
  for (size_t at = 0; at + 45 <= bytes.size(); ++at) {
    if (!std::all_of(kPlaces.begin(), kPlaces.end(),
                     [&](size_t place) { return bytes[at + place] == kTags[place / 9]; }))
      continue;
    std::pair<double, double> sums;
    std::memcpy(&sums.first, bytes.data() + at + 28, 8);
    std::memcpy(&sums.second, bytes.data() + at + 37, 8);
    bytes.erase(at + 27, 18);
    return sums;
  }
  return {};
}

bool is_same_histogram(std::string ours, std::string theirs) {
  const auto mine = take_sums(ours), other = take_sums(theirs);
  const auto near = [](double a, double b) { return std::abs(a - b) <= 1e-12 * std::max(1.0, std::abs(b)); };
  return ours == theirs && near(mine.first, other.first) && near(mine.second, other.second);
}

TEST(Summary, GoldenBytesAreTorchs) {
  const std::string folder =
      Environment::current().text("HASTEN_GOLDEN_DIR").value_or(HASTEN_SOURCE_DIR "/tests/golden");
  const auto golden = read_json(text_of(folder + "/tracking.json"));
  ASSERT_TRUE(golden && golden->contains("cases")) << "no cases in " << folder << "/tracking.json";
  int right = 0, all = 0;
  for (const core::Value& one : golden->at("cases").as_list()) {
    ++all;
    const core::Value* name = one.find("name");
    const std::string called = name != nullptr && name->is_string() ? name->as_string() : text("case ", all);
    try {
      const std::string family = called.substr(0, called.find('/')), ours = hex(encoded(family, one.at("input"))),
                        theirs = one.at("expected").at("bytes").as_string();
      const bool same =
          family == "histogram" ? is_same_histogram(bytes_of_hex(ours), bytes_of_hex(theirs)) : ours == theirs;
      right += same ? 1 : 0;
      EXPECT_TRUE(same) << called << "\nours   " << ours << "\ntheirs " << theirs;
    } catch (const std::exception& error) {
      ADD_FAILURE() << called << ": " << error.what();
    }
  }
  std::cout << "golden tracking: " << right << " of " << all << '\n';
  EXPECT_GT(all, 0);
}

TEST(Summary, AScalarsRecordInOnePassHasTheSameBytes) {
  for (const int64_t step : {int64_t{0}, int64_t{1}, int64_t{127}, int64_t{128}, int64_t{1} << 40}) {
    for (const size_t length : {1, 100, 130, 500}) {
      const std::string tag(length, 't');
      std::string bytes = "before";
      summary::append_scalar_record(bytes, 1769000000.25, step, tag, 0.5F);
      EXPECT_EQ(bytes, "before" + summary::record(summary::event(1769000000.25, step, summary::scalar(tag, 0.5F))))
          << step << ' ' << length;
    }
  }
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

TEST_F(EventFiles, OptionsOfSummaryWriterChooseFolderNameAndPurgeStep) {
  const auto options = core::Value::map(
      {{"comment", "_lr3"}, {"filename_suffix", ".mine"}, {"purge_step", 5}, {"flush_secs", 30}, {"max_queue", 10}});
  auto tracker = started(folder_ / "run", options);
  tracker->log({{"x", 1.0}}, 6, {});
  tracker->flush();
  auto elsewhere = started(folder_ / "run", core::Value::map({{"log_dir", (folder_ / "other").string()}}));
  elsewhere->log({{"x", 2.0}}, 1, {});
  elsewhere->flush();

  const auto values = values_in(folder_ / "run_lr3");
  ASSERT_EQ(values.size(), 2u);
  EXPECT_EQ(values[0].kind, EventValue::Kind::kRestart);
  EXPECT_EQ(values[0].step, 5);
  EXPECT_EQ(values[1].number, 1.0);
  for (const auto& entry : std::filesystem::directory_iterator(folder_ / "run_lr3"))
    EXPECT_THAT(entry.path().string(), ::testing::EndsWith(".mine"));
  EXPECT_EQ(values_in(folder_ / "other").size(), 1u);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "run"));
}

TEST_F(EventFiles, AQueueOfSummaryWritersLengthWaitsInMemory) {
  auto tracker = started(folder_, core::Value::map({{"max_queue", 3}}));

  tracker->log({{"x", 1.0}, {"y", 1.0}}, 1, {});
  EXPECT_EQ(values_in(folder_).size(), 0u);
  tracker->log({{"x", 2.0}}, 2, {});
  EXPECT_EQ(values_in(folder_).size(), 3u);

  auto at_once = started(folder_ / "at_once", core::Value::map({{"flush_secs", 0}}));
  at_once->log({{"x", 1.0}}, 1, {});
  EXPECT_EQ(values_in(folder_ / "at_once").size(), 1u);
}

TEST_F(EventFiles, OptionsOfAnotherKindAreRefusedByName) {
  const auto refused = [](const char* key, core::Value value, const char* words) {
    EXPECT_THAT(
        [&] {
          make_tensorboard(core::Value::map({{key, value}}), Environment::of({}));
        },
        ::testing::ThrowsMessage<UsageError>(HasSubstr(words)));
  };

  refused("max_queue", "ten", "max_queue \"ten\"; expected a whole number from 0 on");
  refused("purge_step", -1, "purge_step -1");
  refused("flush_secs", -1, "seconds from 0 on");
  refused("filename_suffix", "a/b", "a text without '/'");
  refused("double_scalars", 1, "true or false");
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
  tracker->store_init_configuration(
      core::Value::map({{"lr", 0.1}, {"opt", core::Value::map({{"name", "adam"}, {"amp", true}})}}));
  tracker->log({{"loss", 0.5}}, 0, {});
  tracker->finish(RunEnd::kFinished);
  tracker->flush();

  const auto values = values_in(folder_);
  std::ifstream yaml(folder_ / "hparams.yml");
  std::string text((std::istreambuf_iterator<char>(yaml)), {});

  EXPECT_EQ(text, "\"lr\": 0.1\n\"opt\":\n  \"name\": \"adam\"\n  \"amp\": true\n");
  const auto config = std::find_if(values.begin(), values.end(),
                                   [](const auto& value) { return value.kind == EventValue::Kind::kConfig; });
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
  EXPECT_EQ(std::vector<uint8_t>(grid.pixels.begin(), grid.pixels.begin() + 6),
            (std::vector<uint8_t>{10, 10, 10, 200, 200, 200}));
  EXPECT_THROW(decode_png("no png", "x.png"), DataError);
}

TEST_F(EventFiles, AnEmbeddingIsAFolderOfItsOwnAndStandsOnceInTheConfiguration) {
  Embedding points{.num_dims = 2,
                   .values = {1, 0.5F, -2, 3e-8F, 0, 1, 2, 2, 7, 9},
                   .metadata = {{"a", "0"}, {"b\tc", "1"}, {"", "2"}, {"d", "3"}, {"e", "4"}},
                   .columns = {"name", "class"},
                   .images = {}};
  points.images.assign(5, Image{2, 3, 1, std::vector<uint8_t>(6, 200)});
  Trackers trackers(setup_in(folder_, {"tensorboard"}));
  trackers.init("p");
  trackers.log_embedding("net/last", points, 42);
  trackers.log_embedding("net/last", points, 42);
  trackers.log_embedding("plain", {.num_dims = 1, .values = {4}}, 7);
  trackers.finish();

  const auto run = folder_ / "p/run";
  EXPECT_EQ(text_of(run / "00042/net%2flast/tensors.tsv"), "1\t0.5\n-2\t3e-08\n0\t1\n2\t2\n7\t9\n");
  EXPECT_EQ(text_of(run / "00042/net%2flast/metadata.tsv"), "name\tclass\na\t0\nb c\t1\n\t2\nd\t3\ne\t4\n");
  const Image sprite = decode_png(text_of(run / "00042/net%2flast/sprite.png"), "sprite.png");
  EXPECT_EQ(sprite.width, 6);
  EXPECT_EQ(sprite.height, 9);
  EXPECT_EQ(text_of(run / "projector_config.pbtxt"),
            "embeddings {\n  tensor_name: \"net/last:00042\"\n  metadata_path: \"00042/net%2flast/metadata.tsv\"\n  "
            "sprite {\n"
            "    image_path: \"00042/net%2flast/sprite.png\"\n    single_image_dim: 2\n    single_image_dim: 3\n  }\n"
            "  tensor_path: \"00042/net%2flast/tensors.tsv\"\n}\n"
            "embeddings {\n  tensor_name: \"plain:00007\"\n  tensor_path: \"00007/plain/tensors.tsv\"\n}\n");
  EXPECT_FALSE(std::filesystem::exists(run / "00007/plain/metadata.tsv"));
}

TEST_F(EventFiles, AnEmbeddingWhosePartsDoNotFitIsRefused) {
  Trackers trackers(setup_in(folder_, {"journal"}));
  trackers.init("p");

  EXPECT_THROW(trackers.log_embedding("e", {.num_dims = 2, .values = {1, 2, 3}}), UsageError);
  EXPECT_THROW(trackers.log_embedding("e", {.num_dims = 0, .values = {1}}), UsageError);
  EXPECT_THROW(trackers.log_embedding("e", {.num_dims = 1, .values = {1, 2}, .metadata = {{"a"}}}), UsageError);
  EXPECT_THROW(trackers.log_embedding("e", {.num_dims = 1, .values = {1}, .metadata = {{"a", "b"}}}), UsageError);
  EXPECT_THROW(trackers.log_embedding("e", {.num_dims = 1, .values = {1, 2}, .images = {Image{1, 1, 1, {0}}}}),
               UsageError);
}

TEST_F(EventFiles, ARecordWhoseDataWereChangedIsNotTaken) {
  const std::string first = summary::record(summary::version_event(1));
  std::string bytes = first + summary::record(summary::event(1, 3, summary::scalar("x", 1.0F)));
  bytes[bytes.size() - 5] ^= 1;  // the last byte of the data: a mantissa's bit
  int64_t count = 0;

  const auto report = read_events(write("changed", bytes), [&](const EventValue&) { ++count; });

  EXPECT_EQ(count, 0);
  EXPECT_EQ(report.num_records, 1);
  EXPECT_THAT(report.problem, HasSubstr("record 1 has data"));
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
