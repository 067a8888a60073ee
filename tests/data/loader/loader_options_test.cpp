// Options of a loader that no other test is about: a promised position, an order of each rank's own.
#include "hasten/data/loader/loader_options.h"

#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <nlohmann/json.hpp>

#include "hasten/data/loader/loader.h"
#include "support/folder.h"
#include "support/ranks.h"
#include "support/samples.h"

namespace hasten::data {
namespace {

using testing::Counting;
using testing::Range;
using testing::words_of;
using torch::data::DataLoaderOptions;
using torch::data::samplers::RandomSampler;
using Batches = std::vector<Indices>;

process::Process one_process() {
  return {process::RankInfo{}, comm::Group()};
}

const LoaderOptions kStateful{.use_stateful_dataloader = true};

template <class Loader>
Batches rest_of(const Loader& loader) {
  Batches batches;
  for (auto& batch : loader) batches.push_back(batch);
  return batches;
}

/// Stops behind the second batch, and goes on in another loader from what was kept as text.
template <class Make>
void expect_state_dict_goes_on(Make make) {
  torch::manual_seed(4);
  auto stopped = make();
  std::string kept;
  Batches rest;
  for (auto& batch : stopped) {
    if (!kept.empty()) rest.push_back(batch);
    if (kept.empty() && stopped.state_dict().position == 6) kept = nlohmann::json(stopped.state_dict()).dump();
  }
  torch::manual_seed(5);
  auto resumed = make();
  resumed.load_state_dict(nlohmann::json::parse(kept).get<LoaderState>());

  EXPECT_EQ(rest_of(resumed), rest);
  EXPECT_EQ(rest.size(), 2u);
}

TEST(StatefulDataloader, EveryKindOfPreparedLoaderGoesOnFromItsStateDict) {
  for (const size_t workers : {0, 2}) {
    const auto options = DataLoaderOptions(3).workers(workers);
    const auto prepared = [](auto loader) {
      return loader.prepare(one_process(), std::make_shared<training::GradientState>(), kStateful);
    };
    expect_state_dict_goes_on([&] { return prepared(loader<RandomSampler>(Range(11), options)); });
    expect_state_dict_goes_on([&] { return prepared(loader(Range(11), SeedableRandomSampler(11), options)); });
    expect_state_dict_goes_on([&] { return prepared(loader(Counting(11), options)); });
  }
}

TEST(StatefulDataloader, ALoaderThatHasNoPositionIsRefusedWhenItIsPrepared) {
  auto ours = loader<RandomSampler>(Range(11), DataLoaderOptions(3).workers(2).enforce_ordering(false));
  const auto state = std::make_shared<training::GradientState>();

  EXPECT_EQ(words_of<UsageError>([&] { ours.prepare(one_process(), state, kStateful); }),
            "[data] use_stateful_dataloader = true with enforce_ordering = false: batches that come as "
            "they are ready leave no position to go on from. Use enforce_ordering = true.");
  EXPECT_NO_THROW(ours.prepare(one_process(), state)) << "nobody has asked for a position";
}

TEST(RngTypes, WithoutAGeneratorEveryRankDrawsAnOrderOfItsOwn) {
  // Ranks are threads here and share the default generator: the second to begin draws what comes next.
  std::vector<Batches> ranks(2);
  torch::manual_seed(6);
  testing::run_ranks(2, [&](process::Process& process) {
    auto ours = loader<RandomSampler>(Range(64), 32);
    ours.prepare(process, std::make_shared<training::GradientState>(), {.rng_types = {}});
    for (int rank = 0; rank < 2; ++rank) {
      if (process.rank() == rank) ranks[static_cast<size_t>(rank)] = rest_of(ours);
      process.wait_for_everyone();
    }
  });

  Indices seen = ranks[0].at(0);
  seen.insert(seen.end(), ranks[1].at(0).begin(), ranks[1].at(0).end());
  std::sort(seen.begin(), seen.end());
  EXPECT_NE(std::unique(seen.begin(), seen.end()), seen.end()) << "two orders: some samples come on both ranks";
}

}  // namespace
}  // namespace hasten::data
