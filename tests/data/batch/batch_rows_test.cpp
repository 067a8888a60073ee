#include "hasten/data/batch/detail/batch_rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/data/example.h>
#include <torch/types.h>

#include <array>
#include <map>
#include <string>

#include "hasten/core/error.h"
#include "support/folder.h"

namespace hasten::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::words_of;

/// Everything that a batch may hold.
struct Mixed {
  at::Tensor x = {};
  std::vector<std::string> names = {};
  std::map<std::string, std::vector<bool>> flags = {};
  std::vector<std::vector<int>> words = {};
  std::vector<at::Tensor> layers = {};
  std::optional<at::Tensor> mask = {};
  std::array<double, 2> scale = {1, 2};
  torch::data::Example<> pair = {};
  std::string split = "train";
  friend auto hasten_fields(Mixed& m) {
    return std::tie(m.x, m.names, m.flags, m.words, m.layers, m.mask, m.scale, m.pair, m.split);
  }
};

Mixed mixed(int begin, int end) {
  Mixed batch{.x = torch::arange(begin, end)};
  for (int i = begin; i < end; ++i) {
    batch.names.push_back(text("n", i));
    batch.flags["odd"].push_back(i % 2 == 1);
    batch.words.emplace_back(static_cast<size_t>(i), i);
  }
  batch.layers = {batch.x, batch.x + 1};
  batch.mask = batch.x > 1;
  batch.pair = {batch.x, batch.x};
  return batch;
}

void expect_same(const Mixed& given, const Mixed& wanted) {
  EXPECT_TRUE(torch::equal(given.x, wanted.x)) << given.x;
  EXPECT_EQ(given.names, wanted.names);
  EXPECT_EQ(given.flags, wanted.flags);
  EXPECT_EQ(given.words, wanted.words);
  EXPECT_TRUE(torch::equal(given.layers.at(1), wanted.layers.at(1)));
  EXPECT_TRUE(torch::equal(given.mask.value(), wanted.mask.value()));
  EXPECT_EQ(given.scale, wanted.scale);
  EXPECT_TRUE(torch::equal(given.pair.target, wanted.pair.target));
  EXPECT_EQ(given.split, wanted.split);
}

TEST(BatchRows, TensorsAndVectorsAreCutAndJoinedTogether) {
  EXPECT_EQ(num_rows(mixed(0, 5)), 5u);
  expect_same(slice_rows(mixed(0, 5), 1, 3), mixed(1, 3));
  expect_same(join_rows(std::vector{mixed(0, 2), mixed(2, 3), mixed(3, 5)}), mixed(0, 5));
}

TEST(BatchRows, WithoutTensorsAVectorTellsTheSamples) {
  const std::map<std::string, std::vector<std::string>> texts{{"a", {"x", "y"}}, {"b", {"u", "v"}}};

  EXPECT_EQ(num_rows(texts), 2u);
  EXPECT_THAT(slice_rows(texts, 1, 2).at("b"), ElementsAre("v"));
  EXPECT_THROW(num_rows(std::pair{1, 2}), UsageError);
}

TEST(BatchRows, WhatHasNoRowForEachSampleIsRefused) {
  auto batch = mixed(0, 4);
  batch.names.pop_back();

  EXPECT_THAT(words_of<UsageError>([&] { slice_rows(batch, 0, 2); }),
              HasSubstr("a batch of 4 samples holds a vector of 3 elements"));
  EXPECT_THAT(words_of<UsageError>([&] {
                join_rows(std::vector{batch, mixed(4, 6)});
              }),
              HasSubstr("a vector of 3 elements"));
  batch = mixed(0, 4);
  batch.mask = torch::ones({2, 4});
  EXPECT_THAT(words_of<UsageError>([&] { slice_rows(batch, 0, 2); }), HasSubstr("a tensor of shape [2, 4]"));
  EXPECT_NO_THROW(slice_rows(batch, 0, 4)) << "nothing is cut";
}

TEST(BatchRows, WhatBelongsToAWholeBatchMustBeTheSameInAll) {
  const auto refused = [](const auto& change) {
    auto other = mixed(2, 4);
    change(other);
    return words_of<UsageError>([&] { join_rows(std::vector{mixed(0, 2), other}); });
  };

  EXPECT_THAT(refused([](Mixed& batch) { batch.split = "test"; }),
              HasSubstr("one has 'train' where another has 'test'"));
  EXPECT_THAT(refused([](Mixed& batch) { batch.scale[1] = 3; }), HasSubstr("one has 2 where another has 3"));
  EXPECT_THAT(refused([](Mixed& batch) { batch.mask.reset(); }), HasSubstr("an optional value"));
  EXPECT_THAT(refused([](Mixed& batch) { batch.pair.data = at::Tensor(); }), HasSubstr("an undefined one"));
  EXPECT_THAT(refused([](Mixed& batch) { batch.layers.pop_back(); }), HasSubstr("one has 2 elements"));
  EXPECT_THAT(refused([](Mixed& batch) { batch.flags["even"] = {true, false}; }), HasSubstr("one has 1 entries"));
  EXPECT_THAT(refused([](Mixed& batch) { batch.flags.clear(); }), HasSubstr("an entry 'odd'"));
}

}  // namespace
}  // namespace hasten::data
