// LoaderOptions::drop_last: a loader that is prepared leaves its short last batch out, on any number of ranks.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "hasten/data/dataset/tensor_dataset.h"
#include "hasten/data/loader/loader.h"
#include "hasten/data/sampler/samplers.h"
#include "support/ranks.h"

namespace hasten::data {
namespace {

// Sizes of the batches that this rank gets, over two epochs.
template <class Loader>
std::vector<int64_t> batch_sizes(Loader& loader) {
  std::vector<int64_t> sizes;
  for (int epoch = 0; epoch < 2; ++epoch) {
    for (auto& batch : loader) sizes.push_back(batch.data.size(0));
  }
  return sizes;
}

auto of_eleven(size_t batch_size) {
  return loader<torch::data::samplers::RandomSampler>(TensorDataset(torch::arange(11), torch::arange(11)), batch_size);
}

TEST(DropLast, AShortBatchIsLeftOutFromTheFirstEpochOn) {
  testing::run_ranks(1, [](auto& process) {
    auto whole = of_eleven(4), cut = of_eleven(4);
    const auto state = std::make_shared<training::GradientState>();
    whole.prepare(process, state, {});
    cut.prepare(process, state, {.drop_last = true});

    EXPECT_EQ(whole.size(), 3U);
    EXPECT_EQ(batch_sizes(whole), (std::vector<int64_t>{4, 4, 3, 4, 4, 3}));
    EXPECT_EQ(cut.size(), 2U);
    EXPECT_EQ(batch_sizes(cut), (std::vector<int64_t>{4, 4, 4, 4}));
  });
}

TEST(DropLast, RanksGetWholeStepsAlone) {
  testing::run_ranks(2, [](auto& process) {
    const auto state = std::make_shared<training::GradientState>();
    // Five batches of two and one of one: without it, two steps of both ranks.
    auto cut = of_eleven(2);
    cut.prepare(process, state, {.drop_last = true});
    EXPECT_EQ(cut.size(), 2U);
    EXPECT_EQ(batch_sizes(cut), (std::vector<int64_t>{2, 2, 2, 2}));

    auto split = of_eleven(4);
    split.prepare(process, state, {.split_batches = true, .drop_last = true});
    EXPECT_EQ(batch_sizes(split), (std::vector<int64_t>{2, 2, 2, 2}));
    // Rank 0 reads for both.
    auto dispatched = of_eleven(2);
    dispatched.prepare(process, state, {.drop_last = true, .dispatch_batches = true});
    EXPECT_EQ(batch_sizes(dispatched), (std::vector<int64_t>{2, 2, 2, 2}));
  });
}

}  // namespace
}  // namespace hasten::data
