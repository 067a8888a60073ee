// Device maps of random models and limits beside Accelerate's own, from the installed release.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <string>

#include "hasten/core/env.h"
#include "hasten/plan/device_map.h"
#include "support/folder.h"
#include "support/python.h"

namespace hasten::testing {
namespace {

using nlohmann::json;

// Builds each model on the meta device, and prints its map, or the error, a line a case.
constexpr const char* kAccelerate = R"(
import json, sys, warnings
import torch
from accelerate import infer_auto_device_map
classes = {}
def build(spec, ties):
    module = classes.setdefault(spec['class'], type(spec['class'], (torch.nn.Module,), {}))()
    for p in spec['params']:
        made = lambda: torch.nn.Parameter(torch.empty(p['shape'], dtype=getattr(torch, p['dtype']), device='meta'), requires_grad=False)
        module.register_parameter(p['name'], ties.setdefault(p['tie'], made()) if 'tie' in p else made())
    for b in spec['buffers']:
        module.register_buffer(b['name'], torch.empty(b['shape'], dtype=getattr(torch, b['dtype']), device='meta'))
    for name, child in spec['children']: module.add_module(name, build(child, ties))
    return module
for case in json.load(open(sys.argv[1])):
    options = case['options']
    dtype = getattr(torch, options['dtype']) if 'dtype' in options else None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter('always')
        try:
            found = infer_auto_device_map(build(case['tree'], {}), max_memory=dict(map(tuple, case['limits'])), dtype=dtype,
                                          **{key: value for key, value in options.items() if key != 'dtype'})
            result = {'map': list(found.items()), 'warns_buffers': any('buffer' in str(w.message) for w in caught)}
        except Exception as error:
            result = {'error': type(error).__name__}
    print(json.dumps(result))
)";

// Models of up to four levels: modules with parameters and buffers, of which some are one tensor. Each name occurs
// once, since Accelerate finds ties by parts of names; there is one tie, since it takes several in the order of a
// Python set.
class RandomModel {
 public:
  explicit RandomModel(std::mt19937_64& random) : random_(random) {}

  json tree(int depth = 0) {
    json spec = {{"class", depth == 0 ? "Net" : pick({"Block", "Layer", "Attention", "Norm"})},
                 {"params", json::array()},
                 {"buffers", json::array()},
                 {"children", json::array()}};
    const bool is_leaf = depth == 3 || (depth > 0 && below(3) == 0);
    if (is_leaf || below(4) == 0) add_tensors(spec);
    for (size_t i = 0, count = is_leaf ? 0 : 1 + below(4); i < count; ++i) {
      const std::string name = "m" + std::to_string(++num_names_);
      spec["children"].push_back({name, tree(depth + 1)});
    }
    return spec;
  }
  double bytes() const { return bytes_; }

 private:
  size_t below(size_t end) { return random_() % end; }
  std::string pick(const std::vector<std::string>& from) { return from[below(from.size())]; }

  void add_tensors(json& spec) {
    for (size_t i = 0, count = 1 + below(3); i < count; ++i) {
      json parameter = tensor("w" + std::to_string(++num_names_));
      if (below(8) == 0)
        parameter = {{"name", parameter["name"]}, {"shape", {40, 10}}, {"dtype", "float32"}, {"tie", 0}};
      spec["params"].push_back(std::move(parameter));
    }
    if (below(4) == 0) spec["buffers"].push_back(tensor("b" + std::to_string(++num_names_)));
  }
  json tensor(const std::string& name) {
    const int64_t rows = 1 + static_cast<int64_t>(below(30)), columns = 1 + static_cast<int64_t>(below(30));
    bytes_ += static_cast<double>(rows * columns) * 4;
    return {{"name", name},
            {"shape", {rows, columns}},
            {"dtype", pick({"float32", "float32", "float16", "int64", "int8"})}};
  }

  std::mt19937_64& random_;
  double bytes_ = 0;
  int num_names_ = 0;
};

json random_case(std::mt19937_64& random) {
  const auto below = [&](uint64_t end) { return random() % end; };
  RandomModel model(random);
  json tree = model.tree();
  json limits = json::array();
  const auto limit = [&] { return static_cast<int64_t>(model.bytes() * static_cast<double>(below(80)) / 100) + 1; };
  for (uint64_t i = 0, count = below(4); i < count; ++i) limits.push_back({i, limit()});
  if (below(5) != 0) limits.push_back({"cpu", limit()});
  if (limits.empty()) limits.push_back({"cpu", limit()});
  json options = {
      {"clean_result", below(3) != 0}, {"offload_buffers", below(2) == 0}, {"fallback_allocation", below(3) == 0}};
  if (below(2) == 0) options["no_split_module_classes"] = below(2) == 0 ? json{"Block"} : json{"Layer", "Attention"};
  if (below(3) == 0) options["dtype"] = below(2) == 0 ? "float16" : "bfloat16";
  return {{"tree", tree}, {"limits", limits}, {"options", options}};
}

json device_json(const plan::Device& device) {
  if (const int* index = std::get_if<int>(&device)) return *index;
  return std::get<std::string>(device);
}

plan::MemoryLimits limits_of(const json& list) {
  plan::MaxMemory limits;
  for (const auto& item : list) {
    limits.emplace_back(
        item.at(0).is_number() ? plan::Device(item.at(0).get<int>()) : plan::Device(item.at(0).get<std::string>()),
        item.at(1).get<int64_t>());
  }
  return plan::memory_limits(limits);
}

plan::InferOptions options_of(const json& from) {
  plan::InferOptions options;
  options.no_split_module_classes = from.value("no_split_module_classes", std::vector<std::string>());
  if (from.contains("dtype")) options.sizes.dtype = from["dtype"];
  options.clean_result = from["clean_result"];
  options.offload_buffers = from["offload_buffers"];
  options.fallback_allocation = from["fallback_allocation"];
  return options;
}

// One name of a tie is enough, and a buffer of a module that was split goes with the module's first tensor.
size_t parameters_without_device(const plan::ModuleTree& tree, const plan::DeviceMap& map) {
  std::set<int64_t> all, covered;
  for (const auto& item : tree.all_parameters()) {
    all.insert(item.tensor->identity);
    if (map.device_of(item.name) != nullptr) covered.insert(item.tensor->identity);
  }
  return all.size() - covered.size();
}

class DeviceMapPeers : public InFolder {};

TEST_F(DeviceMapPeers, MapsOfRandomModelsAreAccelerates) {
  const auto why = testing::why_without_python("HASTEN_PEERS_PYTHON", {"torch", "accelerate"});
  if (!why.empty()) GTEST_SKIP() << why;
  const std::string python = *Environment::current().text("HASTEN_PEERS_PYTHON");
  constexpr int kCases = 1500;
  std::mt19937_64 random(11);
  json cases = json::array();
  for (int i = 0; i < kCases; ++i) cases.push_back(random_case(random));
  const std::string file = write("cases.json", cases.dump()), program = write("program.py", kAccelerate);
  FILE* const pipe =
      ::popen((python + " " + program + " " + file + " >" + path("maps") + " 2>" + path("errors")).c_str(), "r");
  ASSERT_EQ(::pclose(pipe), 0) << std::ifstream(path("errors")).rdbuf();

  std::ifstream lines(path("maps"));
  int equal = 0, without_map = 0, several_devices = 0;
  for (const json& one : cases) {
    std::string line;
    ASSERT_TRUE(std::getline(lines, line));
    const json theirs = json::parse(line);
    const auto tree = plan::ModuleTree::from_json(core::Value::parse_json(one["tree"].dump()));
    const auto limits = limits_of(one["limits"]);
    const auto options = options_of(one["options"]);
    const auto inferred = plan::infer_auto_device_map(tree, limits, options);
    if (theirs.contains("error")) {  // on some tied models; docs/differences.md, tied-index-error
      EXPECT_TRUE(theirs["error"] == "IndexError" || theirs["error"] == "ValueError") << theirs << "\n" << one;
      EXPECT_EQ(parameters_without_device(tree, inferred.device_map), 0U) << one;
      ++without_map;
      continue;
    }
    json ours = json::array(), wanted = theirs["map"];
    for (const auto& [name, device] : inferred.device_map.entries()) ours.push_back({name, device_json(device)});
    if (options.clean_result) {  // Accelerate merges entries in the order of a Python set
      std::sort(ours.begin(), ours.end());
      std::sort(wanted.begin(), wanted.end());
    }
    EXPECT_EQ(ours, wanted) << one;
    EXPECT_EQ(inferred.warns_buffers, theirs["warns_buffers"].get<bool>()) << one;
    equal += ours == wanted ? 1 : 0;
    several_devices += ours.size() > 1 ? 1 : 0;
  }
  std::cout << equal << " of " << kCases << " maps equal, " << without_map << " for which Accelerate has none\n";
  EXPECT_GT(several_devices, kCases / 2);
  EXPECT_LT(without_map, kCases / 5);
}

}  // namespace
}  // namespace hasten::testing
