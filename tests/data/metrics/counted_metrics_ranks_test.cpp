// Metrics whose counts travel: the same result for any number of ranks.
#include <gtest/gtest.h>
#include <torch/types.h>

#include "hasten/data/metrics/counted_metrics.h"
#include "hasten/data/metrics/metrics.h"
#include "support/ranks.h"

namespace hasten::data {
namespace {

using at::Tensor;

// 23 samples with values that round, cut into batches of 4 on each rank; the last step is evened out with
// repeated samples, as loaders do it.
struct Results {
  double accuracy, top_2, mean, loss;
  Tensor counts;
};

Results count(const comm::Group& group) {
  auto generator = at::detail::createCPUGenerator(3);
  const Tensor scores = at::randn({23, 5}, generator);
  const Tensor targets = at::randint(5, {23}, generator, at::TensorOptions().dtype(at::kLong));
  const Tensor values = at::randn({23}, generator) * torch::logspace(-9, 9, 23);
  constexpr int64_t kBatch = 4, kSamples = 23;
  Accuracy accuracy, top_2({.top_k = 2});
  Mean mean, loss;
  ConfusionMatrix matrix({.num_classes = 5});
  const int64_t step = kBatch * group.world_size();
  for (int64_t begin = 0; begin < kSamples; begin += step) {
    const Tensor rows = (torch::arange(kBatch) + begin + group.rank() * kBatch).remainder(kSamples);
    const bool last = begin + step >= kSamples;
    const training::LoaderPosition position{last, last && begin + step > kSamples ? kSamples - begin : 0};
    const Tensor mine = without_padding(rows, position, group.rank());
    accuracy.update(scores.index_select(0, mine), targets.index_select(0, mine));
    top_2.update(scores.index_select(0, mine), targets.index_select(0, mine));
    mean.update(values.index_select(0, mine));
    loss.update(values.index_select(0, mine), 0.1);
    matrix.update(scores.index_select(0, mine), targets.index_select(0, mine));
  }
  return {accuracy.compute(group), top_2.compute(group), mean.compute(group), loss.compute(group),
          matrix.compute(group).counts};
}

TEST(CountedMetrics, AreTheSameBitForBitOnAnyNumberOfRanks) {
  const Results one = count(comm::Group());
  EXPECT_EQ(one.counts.sum().item<int64_t>(), 23);
  for (const int world_size : {2, 3, 4, 7}) {
    testing::run_ranks(world_size, [&](process::Process& process) {
      const Results some = count(process.group());

      EXPECT_EQ(some.accuracy, one.accuracy) << world_size;
      EXPECT_EQ(some.top_2, one.top_2) << world_size;
      EXPECT_EQ(some.mean, one.mean) << world_size;
      EXPECT_EQ(some.loss, one.loss) << world_size;
      EXPECT_TRUE(torch::equal(some.counts, one.counts)) << world_size;
    });
  }
}

}  // namespace
}  // namespace hasten::data
