// Orders of pipelines are torch's, and groups of ranks Megatron-Core's (model_parallel.json).
#include <gtest/gtest.h>

#include <algorithm>

#include "hasten/core/error.h"
#include "hasten/plan/layout.h"
#include "hasten/plan/orders.h"
#include "support/golden.h"

namespace hasten::testing {
namespace {

using nlohmann::json;

json order_json(const GoldenCase& golden) {
  const plan::OrderSizes sizes{golden.input.at("ranks"), golden.input.at("stages_per_rank"),
                               golden.input.at("microbatches")};
  try {
    const auto order = plan::make_order(plan::parse_order(golden.input.at("schedule").get<std::string>()), sizes);
    json ranks = json::array();
    for (const auto& actions : order.ranks) {
      ranks.push_back(json::array());
      for (const plan::Action& action : actions) ranks.back().push_back(plan::action_text(action));
    }
    return {{"ranks", ranks}};
  } catch (const UsageError&) {
    return golden_error("ValueError");
  }
}

// 1F1B from its definition: a rank runs a backward once p - r microbatches are in flight, or no forward is left.
json one_forward_one_backward(const GoldenCase& golden) {
  const int p = golden.input.at("ranks"), m = golden.input.at("microbatches");
  json ranks = json::array();
  for (int r = 0; r < p; ++r) {
    json row = json::array();
    for (int forwards = 0, backwards = 0; backwards < m;) {
      const bool full = forwards - backwards == p - r || forwards == m;
      row.push_back(std::to_string(r) + (full ? "B" : "F") + std::to_string(full ? backwards : forwards));
      ++(full ? backwards : forwards);
    }
    ranks.push_back(row);
  }
  return {{"ranks", ranks}};
}

TEST(OrdersGolden, OrdersAreTorchs) {
  GoldenTopic topic("model_parallel", [](const GoldenCase& golden) { return golden.family == "order"; });
  topic.on_quirk("fewer-microbatches-refused", one_forward_one_backward);
  // torch's text of 1F1B numbers the last rank's forwards from 1; what it runs begins with 0.
  topic.on_every_case([](const GoldenCase& golden) {
    if (golden.input.at("schedule") != "Schedule1F1B" || !golden.expected.contains("ranks")) return json();
    json ranks = golden.expected.at("ranks");
    const int m = golden.input.at("microbatches");
    const std::string stage = std::to_string(ranks.size() - 1);
    int forwards = 0;
    for (json& action : ranks.back()) {
      if (action == stage + "F" + std::to_string(forwards + 1) && forwards < m)
        action = stage + "F" + std::to_string(forwards++);
    }
    return json{{"ranks", ranks}};
  });

  topic.for_each([&](const GoldenCase& golden) { topic.judge(golden, order_json(golden)); });

  topic.finish();
}

// "tp-dp-cp" -> its axes.
std::vector<plan::Axis> axes_of(const std::string& name) {
  std::vector<plan::Axis> axes;
  for (size_t from = 0; from < name.size(); from += 3)
    axes.push_back(plan::parse_axis(name.substr(from, 2) == "dp" ? "dp_shard" : name.substr(from, 2)));
  return axes;
}

TEST(OrdersGolden, GroupsOfRanksAreMegatrons) {
  GoldenTopic topic("model_parallel", [](const GoldenCase& golden) { return golden.family == "groups"; });

  topic.for_each([&](const GoldenCase& golden) {
    const json& input = golden.input;
    const plan::LayoutSizes sizes{
        .pp = input.at("pp"), .dp_shard = input.at("dp"), .cp = input.at("cp"), .tp = input.at("tp")};
    json groups = json::object();
    for (const auto& [name, unused] : golden.expected.at("groups").items())
      groups[name] = plan::groups_along(sizes, axes_of(name));
    topic.judge(golden, json{{"world_size", plan::num_ranks(sizes)}, {"groups", groups}});
  });

  topic.finish();
}

}  // namespace
}  // namespace hasten::testing
