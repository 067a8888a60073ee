// Terms that the formulas of a step share: time, wires and memory.
#pragma once

#include "hasten/plan/cluster.h"
#include "hasten/plan/model_shape.h"
#include "hasten/plan/strategy.h"

namespace hasten::plan {

/// Sizes of one microbatch on one rank, and rates after their constants.
struct StepTerms {
  double tokens = 0;      ///< T: of a microbatch on this rank
  double tokens_cut = 0;  ///< T': the same under sequence parallelism
  double tensor = 1;      ///< t
  double hidden = 1, sequence = 1;
  double qkv = 0, width = 0;  ///< columns of queries, keys and values; of what attention gives
  double gate_columns = 0;    ///< columns that lead into the feed-forward part
  double ffn = 0;
  double cut_columns = 0;                    ///< gate_columns + qkv
  double score_heads = 0;                    ///< heads times attention parts
  double kv_columns = 0;                     ///< of keys alone
  double microbatches = 1;                   ///< m
  double stage_layers = 0;                   ///< layers of the largest stage
  double parameters = 0;                     ///< P: of the largest stage, on this rank
  double element = 2;                        ///< bytes
  double peak = 1, attention_peak = 1;       ///< operations a second, after their shares
  double memory = 1, link = 1, network = 1;  ///< bytes a second, after their shares
};

StepTerms step_terms(const ModelShape& model, const Cluster& cluster, const Strategy& strategy);

/// Returns the seconds of a product of [m, k] by [k, n].
double product_seconds(const StepTerms& terms, const Constants& constants, double m, double k, double n);

}  // namespace hasten::plan
