// See loader_comparison.h.
#include "hasten/data/loader/loader_comparison.h"

#include <torch/types.h>

#include <algorithm>
#include <vector>

#include "hasten/comm/group/group.h"
#include "hasten/comm/types/purpose.h"
#include "hasten/core/count_text.h"
#include "hasten/core/error.h"
#include "hasten/core/log.h"

namespace hasten::data {
namespace {

constexpr int64_t kUnknown = -1;

std::string describe(const int64_t* facts) {
  return text(facts[0] == kUnknown ? std::string("an unknown number of") : std::to_string(facts[0]),
              " samples in batches of ", facts[1], facts[2] != 0 ? ", the last short one left out" : "");
}

}  // namespace

void check_same_loader(const process::Process& process, const LoaderDescription& mine) {
  const int num_ranks = process.group().world_size();
  if (num_ranks == 1) return;
  const comm::Purpose purpose("prepare of a loader");
  const std::vector<int64_t> facts = {mine.num_samples ? static_cast<int64_t>(*mine.num_samples) : kUnknown,
                                      static_cast<int64_t>(mine.batch_size), mine.drop_last ? 1 : 0};
  const auto count = static_cast<int64_t>(facts.size());
  const at::Tensor all = at::empty({num_ranks, count}, at::kLong);
  process.group().all_gather_into_(all.view({-1}), torch::tensor(facts, at::kLong));
  const auto* first = all.const_data_ptr<int64_t>();
  for (int rank = 1; rank < num_ranks; ++rank) {
    const auto* theirs = first + rank * count;
    if (std::equal(first, first + count, theirs)) continue;
    throw UsageError(Origin{"data", process.rank(), process.world_size()},
                     "the ranks prepare different loaders: rank 0's has ", describe(first), ", rank ", rank, "'s ",
                     describe(theirs),
                     ". Make the same loader on every rank: prepare gives each its part. For loops of different length "
                     "on purpose, iterate over unprepared loaders inside join_uneven_inputs.");
  }
}

void warn_if_empty(const process::Process& process, const LoaderDescription& mine) {
  if (!mine.num_samples) return;
  const Logger logger("data", {process.rank(), process.world_size()});
  if (*mine.num_samples == 0) {
    logger.warning(text("a loader over a ", mine.dataset,
                        " has no samples, so that a loop over it makes no step. Look at what the dataset reads, or set "
                        "LoaderOptions::allow_empty."));
  } else if (mine.drop_last && *mine.num_samples < mine.step_samples) {
    logger.warning(text("a loader over a ", mine.dataset, " gives no batch, so that a loop over it makes no step: it has ",
                        count_text(*mine.num_samples, "sample"), ", a step on all ranks takes ", mine.step_samples,
                        ", and drop_last leaves the rest out. Use smaller batches, or keep the last one."));
  }
}

}  // namespace hasten::data
