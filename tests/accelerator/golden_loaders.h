// What the golden tests of loaders share: running a case on as many ranks as it asks for, one pass with what
// the gradient state says meanwhile, and the differences that several topics have in common.
#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "hasten/accelerator.h"
#include "hasten/comm/nested/json_objects.h"
#include "support/golden.h"
#include "support/ranks.h"
#include "support/samples.h"

namespace hasten::testing {

using nlohmann::json;

inline torch::data::DataLoaderOptions loader_options_of(const json& input) {
  return torch::data::DataLoaderOptions(input.at("batch_size")).drop_last(input.at("drop_last"));
}

using AcceleratorOptionsOf = std::function<AcceleratorOptions(const json& input)>;

/// Runs all cases on as many ranks as each asks for; by case, what each rank gave. A UsageError is
/// ValueError.
inline std::map<std::string, std::vector<json>> on_ranks(
    const GoldenTopic& topic, const AcceleratorOptionsOf& options,
    const std::function<json(const Accelerator&, const GoldenCase&)>& run) {
  std::set<int> worlds;
  for (const auto& golden : topic.cases()) worlds.insert(num_ranks_of(golden));
  std::map<std::string, std::vector<json>> given;
  std::mutex mutex;
  for (const int world_size : worlds) {
    run_ranks(world_size, [&](process::Process& process) {
      for (const auto& golden : topic.cases()) {
        if (num_ranks_of(golden) != world_size) continue;
        json result;
        try {
          const Accelerator accelerator(process, options(golden.input));
          result = run(accelerator, golden);
        } catch (const UsageError&) {
          result = golden_error("ValueError");
        } catch (const std::exception& error) {
          result = {{"exception", error.what()}};
        }
        const std::lock_guard lock(mutex);
        auto& ranks = given[golden.name];
        ranks.resize(static_cast<size_t>(world_size));
        ranks[static_cast<size_t>(process.rank())] = std::move(result);
      }
    });
  }
  return given;
}

/// One pass: what was given, and what the gradient state said meanwhile.
template <class Loader>
json one_pass(const Loader& loader, const training::GradientState& state,
              const std::function<json(const typename Loader::Batch&)>& to_json = nullptr) {
  json batches = json::array(), ends = json::array(), remainders = json::array();
  for (auto& batch : loader) {
    if (to_json) {
      batches.push_back(to_json(batch));
    } else if constexpr (requires { json(batch); }) {
      batches.push_back(batch);
    }
    ends.push_back(state.end_of_dataloader());
    remainders.push_back(state.remainder());
  }
  return {{"batches", batches}, {"end_of_dataloader", ends}, {"remainder", remainders}, {"len", loader.size()}};
}

/// What the ranks gave as one record, each key a list by rank. An error is the same on all of them.
inline json by_rank(const std::vector<json>& ranks, const char* batches_key) {
  json all;
  for (const json& rank : ranks) {
    if (rank.contains("error") || rank.contains("exception")) return rank;
    all[batches_key].push_back(rank.at("batches"));
    for (const char* key : {"end_of_dataloader", "remainder", "len"}) all[key].push_back(rank.at(key));
    if (!rank.at("remainder").empty()) all["last_remainder"] = rank.at("remainder").back();
  }
  return all;
}

}  // namespace hasten::testing
