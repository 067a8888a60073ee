// The search for a strategy: every layout that divides, with the reason where one does not fit.
//
// Sizes are divisors, so that a few thousand layouts are all there are. Each is predicted. Those that fit are ranked by
// seconds; of those within 2 % of the fastest the simplest is taken.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "hasten/plan/predict.h"

namespace hasten::plan {

/// Parts that are set are fixed; the others are searched.
struct SearchOptions {
  int devices = 1;
  double batch = 1;  ///< sequences of a step
  std::optional<int> micro_batch = {}, tp = {}, pp = {}, chunks = {}, cp = {}, shard = {};
  std::optional<bool> sequence_parallel = {};  ///< unset: wherever tp is above 1
  std::optional<Recompute> recompute = {};
  std::vector<DataParallel> data_parallel = {DataParallel::kDdp, DataParallel::kZero1, DataParallel::kZero2,
                                             DataParallel::kZero3};
  /// Precision, optimizer and overlaps of all candidates.
  Strategy base = {};
  double usable_share = 0.92;  ///< of a device's memory
  double tie_share = 0.02;     ///< strategies this near to the fastest count as equally fast
};

struct Candidate {
  Strategy strategy = {};
  Prediction prediction = {};
  std::string reason = {};  ///< why it does not fit; "" if it does

  bool fits() const noexcept { return reason.empty(); }
};

struct SearchResult {
  /// Fastest of each layout that fits, by seconds. Chunks, microbatches and recompute are the best ones of the layout.
  std::vector<Candidate> fitting = {};
  size_t taken = 0;      ///< index in `fitting` of the one to take
  std::string why = {};  ///< why that one: "the fastest", or "within 2 % of the fastest, one axis less"
  /// Ddp and stages 1 to 3 over all devices, the best of each, where no such row is in `fitting`.
  std::vector<Candidate> pure = {};
  std::optional<Candidate> nearest = {};  ///< if nothing fits: the one that lacks the least memory
  size_t considered = 0;
};

/// Returns the result of trying every layout. Pure.
/// Throws: UsageError for a batch that no layout divides, with the nearest ones that one does; for fixed parts that do
/// not multiply to the devices, with the legal values.
SearchResult search(const ModelShape& model, const Cluster& cluster, const SearchOptions& options);

/// Returns whether a's layout is the simpler one: it has fewer axes. Of as many, data parallelism is simpler than tp,
/// that than cp, that than pp; then the less state is split.
bool is_simpler(const Strategy& a, const Strategy& b);

}  // namespace hasten::plan
