// Checkpoints of real DeepSpeed runs: weights and moments as its own script merges them.
#include <gtest/gtest.h>

#include <filesystem>
#include <set>

#include "files/memory_source.h"
#include "files/python_json.h"
#include "hasten/core/env.h"
#include "hasten/files/folders/deepspeed_folder.h"
#include "hasten/files/folders/open_source.h"
#include "support/golden.h"

namespace hasten::files {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

std::string zero_path(const std::string& relative) {
  return (fs::path(Environment::current().text("HASTEN_GOLDEN_DIR").value_or(HASTEN_GOLDEN_DEFAULT)) / relative)
      .string();
}

/// Nested lists of doubles, as the cases have values.
json nested(const std::vector<int64_t>& shape, const json& flat, size_t dim, size_t& at) {
  if (dim == shape.size()) return flat.at(at++).get<double>();
  json list = json::array();
  for (int64_t i = 0; i < shape[dim]; ++i) list.push_back(nested(shape, flat, dim + 1, at));
  return list;
}

json merged_values(const TensorSource& source, const std::string& suffix) {
  json values = json::object();
  for (const std::string& name : source.names()) {
    if (!name.ends_with(suffix)) continue;
    size_t at = 0;
    values[name.substr(0, name.size() - suffix.size())] =
        nested(source.info(name).shape, testing::values_json(source, name), 0, at);
  }
  return values;
}

/// Moments of tied names are those of the parameter that holds the values.
json with_tied(json values, const json& tied) {
  for (const json& pair : tied) {
    for (const json& name : pair) {
      if (!values.contains(name) && values.contains(pair.at(0)))
        values[name.get<std::string>()] = values.at(pair.at(0).get<std::string>());
    }
  }
  return values;
}

std::set<std::string> all_files(const std::string& folder) {
  std::set<std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) files.insert(fs::relative(entry.path(), folder).string());
  }
  return files;
}

TEST(GoldenZeroCheckpoints, GiveTheMergedWeightsAndMoments) {
  hasten::testing::GoldenTopic topic("zero_checkpoints");
  topic.tolerate({.relative = 1e-6, .absolute = 1e-7});
  topic.for_each([&](hasten::testing::GoldenCase golden) {
    golden.expected.erase("losses");  // of the run: the sharding room's
    json given;
    try {
      const std::string path = zero_path(golden.input.at("folder"));
      const DeepSpeedFolder folder = open_deepspeed_folder(path);
      const json tied = golden.input.value("tied", json::array());
      given = {{"weights", merged_values(*open_source(path), "")}, {"files", all_files(path)}};
      for (const char* slot : {"exp_avg", "exp_avg_sq"})
        given[slot] = with_tied(merged_values(*folder.moments, text(".", slot)), tied);
      if (folder.world_size != golden.input.value("world", folder.world_size)) given = {{"world", folder.world_size}};
    } catch (const std::exception& error) {
      given = {{"failed", error.what()}};
    }
    topic.judge(golden, given);
  });
  topic.finish();
}

}  // namespace
}  // namespace hasten::files
