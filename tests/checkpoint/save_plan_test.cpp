// The plan of a save: each byte once, evenly dealt, in files that torch's readers take.
#include "checkpoint/save/save_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "hasten/core/error.h"
#include "hasten/files/safetensors/safetensors_header.h"
#include "support/folder.h"

namespace hasten::checkpoint {
namespace {

using ::testing::HasSubstr;

PieceInfo whole(const std::string& name, std::vector<int64_t> shape, const std::string& kind = "model",
                int rank = kEveryRank) {
  PieceInfo piece{{name, files::Dtype::kFloat32, std::move(shape)}, kind, {}, rank};
  piece.box = files::whole_box(piece.info.shape);
  return piece;
}

TEST(SavePlan, OneRankWritesOneFileOfEachKind) {
  const auto plan = plan_save(
      {whole("a", {3}), whole("model_1/a", {3}, "model_1"), whole("optimizer.0.a.exp_avg", {3}, "optimizer")}, 1);

  std::vector<std::string> names;
  for (const auto& file : plan.files) names.push_back(file.name);
  EXPECT_THAT(names, ::testing::ElementsAre("model.safetensors", "model_1.safetensors", "state.safetensors"));
  EXPECT_TRUE(plan.indexes.empty());
  const auto header = files::parse_safetensors_header("model_1", plan.files[1].head, plan.files[1].bytes);
  EXPECT_EQ(header.entries.at(0).info.name, "a");
}

TEST(SavePlan, EveryByteIsWrittenOnceAndRanksAreWithinOneTensorOfEven) {
  std::mt19937 random(3);
  for (int trial = 0; trial < 50; ++trial) {
    const int world = 1 + static_cast<int>(random() % 5);
    std::vector<PieceInfo> pieces;
    uint64_t largest = 0, total = 0;
    for (int i = 0; i < 30; ++i) {
      pieces.push_back(whole(text("t", i), {1 + static_cast<int64_t>(random() % 40), 3}));
      largest = std::max<uint64_t>(largest, 12 * static_cast<uint64_t>(pieces.back().info.shape[0]));
      total += 12 * static_cast<uint64_t>(pieces.back().info.shape[0]);
    }
    const auto plan = plan_save(pieces, world);

    std::map<size_t, int> times;
    std::map<int, uint64_t> load;
    for (const auto& file : plan.files) {
      uint64_t end = file.head.size();
      EXPECT_EQ(end % 4096, 0u);
      auto sorted = file.pieces;
      std::sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.position < b.position; });
      for (const auto& [piece, position] : sorted) {
        EXPECT_EQ(position, end);
        end += 12 * static_cast<uint64_t>(pieces[piece].info.shape[0]);
        ++times[piece];
        load[file.writer] += 12 * static_cast<uint64_t>(pieces[piece].info.shape[0]);
      }
      EXPECT_EQ(end, file.bytes);
    }
    EXPECT_EQ(times.size(), pieces.size());
    for (const auto& [piece, count] : times) EXPECT_EQ(count, 1);
    for (const auto& [writer, bytes] : load) EXPECT_LE(bytes, total / static_cast<uint64_t>(world) + largest);
  }
}

TEST(SavePlan, SplitTensorsCarryTorchsShardingInfoAndFurtherBoxesGoToParts) {
  std::vector<PieceInfo> pieces;
  int rank = 0;
  for (const auto& [begin, end] : {std::pair{0, 5}, std::pair{5, 12}}) {
    const std::vector<int64_t> shape{4, 3};
    for (const auto& box : files::boxes_of_range(shape, begin, end)) {
      pieces.push_back({{"optimizer.0.w.exp_avg", files::Dtype::kFloat32, shape}, "optimizer", box, rank});
    }
    ++rank;
  }
  pieces.push_back(whole("random.0.cpu", {8}, "random", 0));

  const auto plan = plan_save(pieces, 2);

  std::vector<std::string> names;
  for (const auto& file : plan.files) {
    names.push_back(file.name);
    const auto header = files::parse_safetensors_header(file.name, file.head, file.bytes);
    ASSERT_NE(header.find_metadata("DCP_SHARDING_INFO"), nullptr);
    const auto info = core::Value::parse_json(*header.find_metadata("DCP_SHARDING_INFO"));
    for (const auto& entry : header.entries) EXPECT_TRUE(info.contains(entry.info.name)) << entry.info.name;
    EXPECT_EQ(*header.find_metadata("DCP_VERSION"), "1.0");
  }
  EXPECT_THAT(names,
              ::testing::ElementsAre("state-00001-of-00002.safetensors", "state-00001-of-00002.part1.safetensors",
                                     "state-00002-of-00002.safetensors", "state-00002-of-00002.part1.safetensors"));
}

TEST(SavePlan, PiecesThatDisagreeAreNamed) {
  EXPECT_THAT(testing::words_of<UsageError>([] {
                plan_save({whole("a", {3}), whole("a", {4})}, 2);
              }),
              HasSubstr("'a' has sizes [4]"));
  EXPECT_THAT(testing::words_of<UsageError>([] { plan_save({whole("a", {3}, "model", 2)}, 2); }), HasSubstr("rank 2"));
}

TEST(SavePlan, PiecesTravelAsPlainValues) {
  std::vector<PieceInfo> pieces{whole("a", {3}), whole("b", {}, "custom", 0)};
  pieces.push_back({{"c", files::Dtype::kBFloat16, {4, 4}}, "optimizer", {{1, 0}, {2, 4}}, 1});

  EXPECT_EQ(pieces_of(core::Value::parse_json(to_value(pieces).to_json())), pieces);
}

}  // namespace
}  // namespace hasten::checkpoint
