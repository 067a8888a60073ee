// Clusters: what the machines of a run can do, and how much of it programs get.
//
// Rated figures come from data sheets, or from a file with the fields of Machine. Constants say which share of them a
// training reaches. Those of A100 and H100 were fitted to published runs (docs/plan.md); a file may hold measured ones.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "hasten/core/value.h"

namespace hasten::plan {

/// Where a number comes from; the table says it beside the prediction.
enum class Origins {
  kRated,         ///< a data sheet, with constants of another device
  kPublishedFit,  ///< fitted to published runs of this kind of device
  kMeasured,      ///< measured on these machines
};

/// Shares of the rated figures, and costs that no data sheet has.
struct Constants {
  double product_share = 0.71;      ///< of the peak, for large matrix products
  double small_size_cost = 410;     ///< products of m x k by k x n take 1 + this (1/m + 1/k + 1/n) times as long
  double attention_share = 0.45;    ///< of the peak, for attention
  double wide_passes_unfused = 12;  ///< reads or writes of [tokens, hidden] a layer, unfused attention
  double wide_passes_flash = 24;    ///< the same with fused attention
  double score_passes = 4;          ///< reads or writes of attention's scores, unfused
  double cut_passes = 10;           ///< reads or writes of what tensor parallelism cuts, in quarters
  double logit_passes = 2;          ///< reads or writes of the logits, in float32
  double memory_share = 0.75;       ///< of the rated memory bandwidth
  double link_share = 0.55;         ///< of the rated bandwidth inside a host
  double network_share = 1;         ///< of the rated bandwidth between hosts
  double link_latency_s = 0;        ///< of a collective inside a host
  double network_latency_s = 0;     ///< of a message between hosts
  double data_overlap = 0.9;        ///< share of a backward behind which the data exchange hides
  double exposed_data = 0.2;        ///< share of the data exchange that nothing hides
  double seconds_a_layer = 3e-5;    ///< the host's work for a layer of a microbatch
  double seconds_a_step = 0.03;     ///< the host's work for a step
};

/// One device, its host and its connections. Bandwidths are bytes a second of one device, in one direction.
struct Machine {
  std::string device = {};        ///< "H100 SXM 80GB"
  double peak_flops = 0;          ///< a second, bf16, dense
  double peak_flops_float32 = 0;  ///< a second, for --precision no; 0: half of peak_flops
  double memory_bandwidth = 0;
  double memory_gib = 0;  ///< of a device
  double devices_per_host = 1;
  double link_bandwidth = 0;     ///< between devices of a host
  double network_bandwidth = 0;  ///< of each device's share of its host's network cards
  bool shares_memory = false;    ///< ranks of a host share parameters in memory (the CPU)
};

struct Cluster {
  std::string name = {};
  Machine machine = {};
  Constants constants = {};
  Origins origins = Origins::kRated;
  /// "measured on 2 processes, 2026-05-01", by the constant's name, where a file says so.
  std::map<std::string, std::string> sources = {};
  /// Relative error of the line through the measured points, by the constant's name.
  std::map<std::string, double> residuals = {};
};

/// Returns the machine and the constants for "a100_40gb", "a100_80gb", "h100_80gb" (also "h100"), "h100_500w" or "cpu".
/// "cpu" has round numbers for one core.
/// Throws: UsageError with the nearest name.
Cluster preset_cluster(const std::string& name);

/// Returns the names that preset_cluster takes.
std::vector<std::string> preset_cluster_names();

/// Returns constants for a device's name, and where they come from. A100 and H100 have a published fit, with smaller
/// shares if "500 W" is in the name, less than rated power. Other devices get the constants of the H100.
std::pair<Constants, Origins> constants_of_device(const std::string& device);

/// Reads a cluster file: the fields of Machine, and in "constants" any of Constants. Each of these is a number, or a
/// map of "value", "source" and "residual". A file may hold several machines in "machines", by name; `name` selects
/// one. Lines in messages are counted in `text`. Throws: DataError with key and line for keys that are unknown or
/// missing; numbers that are negative or not finite; bandwidths outside of 1e8 to 1e14 bytes a second.
Cluster cluster_from_json(const std::string& text, const std::string& source, const std::string& name = "");

/// Returns the file that cluster_from_json reads, with every constant and its source.
core::Value cluster_json(const Cluster& cluster);

/// Returns the constants' names, in the order of Constants, and one of them for reading or writing.
std::vector<std::string> constant_names();
double* find_constant(Constants& constants, const std::string& name);

}  // namespace hasten::plan
