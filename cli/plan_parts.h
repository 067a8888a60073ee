// The parts of `hasten plan`: one function each, in a file of its own.
#pragma once

#include <string>

#include "hasten/launch/options/command_line.h"
#include "hasten/plan/search.h"

namespace hasten::cli {

/// `hasten plan --memory`: prints the table of plan/shard_memory.h.
int plan_memory(const launcher::CommandLine& line);

/// Returns the shape of the model that the command line names, with the fields that it sets.
/// Throws: UsageError and DataError, naming what is missing.
plan::ModelShape planned_model(const launcher::CommandLine& line);

/// Returns the machines that the command line names.
plan::Cluster planned_cluster(const launcher::CommandLine& line);

/// Returns what the search may choose. `devices` and `batch` have defaults that depend on the machines.
plan::SearchOptions search_options(const launcher::CommandLine& line, const plan::Cluster& cluster);

/// All that the tables print.
struct PlanReport {
  const plan::ModelShape& model;
  const plan::Cluster& cluster;
  const plan::SearchOptions& options;
  const plan::SearchResult& result;
  std::string precision = {};
  size_t top = 10;
};

/// Returns the table as text, with the line of a launch; or as JSON.
std::string plan_text(const PlanReport& report);
std::string plan_json(const PlanReport& report);

}  // namespace hasten::cli
