// transformers' tensor parallel plans, and Megatron's groups of ranks.
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>

#include "hasten/comm/mesh/device_mesh.h"
#include "hasten/parallel/tensor/tensor_plan.h"
#include "support/golden.h"

namespace hasten::parallel {
namespace {

using nlohmann::json;
using testing::GoldenCase;
using testing::GoldenTopic;

json plan_case(const GoldenCase& golden) {
  // The parameter of a tied head is listed once, under the embedding's name.
  std::vector<std::string> modules = {"lm_head"};
  for (const auto& [name, sizes] : golden.input.at("parameters").items()) {
    const std::string module = name.substr(0, name.rfind('.'));
    if (std::find(modules.begin(), modules.end(), module) == modules.end()) modules.push_back(module);
  }
  std::sort(modules.begin(), modules.end());
  json found = json::object();
  for (const auto& [pattern, style] : golden.expected.at("plan").items()) {
    found[pattern] = matching_modules(pattern, modules);
  }
  if (found.empty() || !golden.expected.contains("modules")) throw std::runtime_error("a plan without modules");
  return {{"plan", golden.expected.at("plan")}, {"modules", found}};
}

TEST(TensorPlan, NamesMatchTheModulesThatTransformersMatches) {
  GoldenTopic topic("model_parallel", [](const GoldenCase& golden) { return golden.family == "tp_plan"; });

  topic.for_each([&](const GoldenCase& golden) { topic.judge(golden, [&] { return plan_case(golden); }); });

  topic.finish();
}

// Groups along some axes, each once, in the order of their first rank.
json groups_along(const comm::MeshLayout& mesh, const std::vector<std::string>& axes) {
  std::set<std::vector<int>> groups;
  for (int rank = 0; rank < mesh.world_size(); ++rank) groups.insert(mesh.ranks_along(rank, axes));
  return json(std::vector<std::vector<int>>(groups.begin(), groups.end()));
}

TEST(ParallelLayout, HasMegatronsGroups) {
  GoldenTopic topic("model_parallel", [](const GoldenCase& golden) { return golden.family == "groups"; });

  topic.for_each([&](const GoldenCase& golden) {
    topic.judge(golden, [&] {
      const auto& sizes = golden.input;
      const int tp = sizes.at("tp"), cp = sizes.at("cp"), dp = sizes.at("dp"), pp = sizes.at("pp");
      // dp_shard beside cp and tp, in the order of parallel/layout/layout.h.
      const comm::MeshLayout mesh({{"pp", pp}, {"dp", dp}, {"cp", cp}, {"tp", tp}}, tp * cp * dp * pp);
      json groups = json::object();
      for (const auto& [name, ranks] : golden.expected.at("groups").items()) {
        std::vector<std::string> axes;
        std::stringstream parts(name);
        for (std::string axis; std::getline(parts, axis, '-');) axes.push_back(axis);
        auto mine = groups_along(mesh, axes);
        auto theirs = ranks;
        std::sort(theirs.begin(), theirs.end());
        groups[name] = mine == theirs ? ranks : mine;
      }
      return json{{"world_size", mesh.world_size()}, {"groups", groups}};
    });
  });

  topic.finish();
}

std::vector<PlanParameter> parameters() {
  return {{"layers.0.fc1.weight", {8, 4}}, {"layers.0.fc1.bias", {8}},      {"layers.0.fc2.weight", {4, 8}},
          {"layers.0.fc2.bias", {4}},      {"table.weight", {10, 4}, true}, {"attention.in_proj_weight", {12, 4}},
          {"attention.in_proj_bias", {12}}};
}

TEST(TensorPlan, CutsWeightsAndBiasesByStyle) {
  const auto cuts = resolve_plan({{"layers.*.fc1", "colwise"},
                                  {"layers.*.fc2", "rowwise"},
                                  {"table", "embedding_rowwise"},
                                  {"*.in_proj", "packed_colwise"}},
                                 parameters(), 2);

  EXPECT_EQ(cuts.size(), 6u);
  EXPECT_EQ(cuts.at("layers.0.fc1.weight"), (Cut{0, 1}));
  EXPECT_EQ(cuts.at("layers.0.fc1.bias"), (Cut{0, 1}));
  EXPECT_EQ(cuts.at("layers.0.fc2.weight"), (Cut{1, 1}));
  EXPECT_EQ(cuts.at("table.weight"), (Cut{0, 1}));
  EXPECT_EQ(cuts.at("attention.in_proj_weight"), (Cut{0, 3}));
  EXPECT_EQ(cuts.at("attention.in_proj_bias"), (Cut{0, 3}));
}

std::string conflicts(const TensorPlan& plan, const std::vector<PlanParameter>& all) {
  try {
    resolve_plan(plan, all, 2);
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no error";
}

TEST(TensorPlan, RefusesUnlikeCutsOfATiedPair) {
  const int tied = 0;
  const std::vector<PlanParameter> pair = {{"embedding.weight", {10, 4}, true, &tied},
                                           {"head.weight", {10, 4}, false, &tied}};

  const std::string words = conflicts({{"embedding", "embedding_colwise"}, {"head", "colwise"}}, pair);

  EXPECT_NE(words.find("'head.weight' (the same tensor as 'embedding.weight') is dim 1 by 'embedding' and dim 0 by "
                       "'head'"),
            std::string::npos)
      << words;
  EXPECT_EQ(conflicts({{"embedding", "embedding_rowwise"}, {"head", "colwise"}}, pair), "no error");
}

TEST(TensorPlan, NamesTheNearestModule) {
  const std::string words = conflicts({{"layers.0.fc3", "colwise"}}, parameters());

  EXPECT_NE(words.find("did you mean 'layers.0.fc"), std::string::npos) << words;
}

TEST(TensorPlan, ListsAllConflictsInOneMessage) {
  try {
    resolve_plan({{"layers.*.fc9", "colwise"},
                  {"layers.*.fc1", "columnwise"},
                  {"table", "embedding_rowwise"},
                  {"table.weight", "embedding_colwise"},
                  {"attention.in_proj", "packed_colwise:5"},
                  {"layers.*.fc2", "moe_tp_experts"}},
                 parameters(), 2);
    FAIL() << "no error";
  } catch (const std::exception& error) {
    const std::string words = error.what();
    for (const char* part : {"'layers.*.fc9' matches no module", "style 'columnwise' is unknown",
                             "'table.weight' is dim 0 by 'table' and dim 1 by 'table.weight'",
                             "12 in 5 blocks is not divided by tp 2", "experts are not supported"}) {
      EXPECT_NE(words.find(part), std::string::npos) << part << " in: " << words;
    }
  }
}

}  // namespace
}  // namespace hasten::parallel
