// What datasets draw while a batch is fetched: the same whoever fetches it.
#include "hasten/data/sampler/worker_random.h"

#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <set>

#include "hasten/data/loader/loader.h"
#include "support/samples.h"

namespace hasten::data {
namespace {

/// Sample i is i and a random number.
class Noisy : public torch::data::datasets::Dataset<Noisy, std::pair<size_t, double>> {
 public:
  std::pair<size_t, double> get(size_t index) override {
    return {index, torch::rand({}, worker_generator(), torch::kDouble).item<double>()};
  }
  std::optional<size_t> size() const override { return 20; }
};

std::vector<std::pair<size_t, double>> epochs(size_t workers, uint64_t seed) {
  std::vector<std::pair<size_t, double>> all;
  auto ours =
      loader(Noisy(), SeedableRandomSampler(20, {.seed = seed}), torch::data::DataLoaderOptions(3).workers(workers));
  for (int epoch = 0; epoch < 2; ++epoch) {
    for (auto& batch : ours) all.insert(all.end(), batch.begin(), batch.end());
  }
  return all;
}

TEST(WorkerRandom, IsTheSameWithAnyNumberOfWorkersAndAnotherInEachBatchEpochAndSeed) {
  const auto drawn = epochs(0, 1);

  for (const size_t workers : {1, 2, 3}) EXPECT_EQ(epochs(workers, 1), drawn);
  EXPECT_NE(epochs(0, 2), drawn);
  std::set<double> different;
  for (const auto& [index, number] : drawn) different.insert(number);
  EXPECT_EQ(different.size(), drawn.size());
}

TEST(WorkerRandom, OutsideAFetchItIsTheDefaultGenerator) {
  EXPECT_EQ(worker_generator(), at::detail::getDefaultCPUGenerator());
}

}  // namespace
}  // namespace hasten::data
