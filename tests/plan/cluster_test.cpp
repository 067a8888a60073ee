// Machines and their constants: presets, files, what is wrong with a file by key and line.
#include "hasten/plan/cluster.h"

#include <gmock/gmock.h>

#include "hasten/core/error.h"

namespace hasten::plan {
namespace {

using ::testing::HasSubstr;

constexpr const char* kMachine = R"({"device": "Box", "peak_flops": 1e14, "memory_bandwidth": 1e12,
 "memory_gib": 40, "devices_per_host": 4,
 "link_bandwidth": 1e11,
 "network_bandwidth": 1e10)";

std::string refusal(const std::string& json, const std::string& name = "") {
  try {
    cluster_from_json(json, "machines.json", name);
  } catch (const DataError& error) {
    return error.what();
  }
  return "";
}

TEST(Cluster, presets_have_the_constants_of_their_family) {
  EXPECT_EQ(preset_cluster("h100").machine.device, "H100 SXM 80GB");
  EXPECT_EQ(preset_cluster("a100_40gb").constants.product_share, 0.83);
  EXPECT_EQ(preset_cluster("h100_500w").constants.product_share, 0.71 * 0.85);
  EXPECT_EQ(preset_cluster("a100_80gb").origins, Origins::kPublishedFit);
  EXPECT_EQ(preset_cluster("cpu").origins, Origins::kRated);
  EXPECT_TRUE(preset_cluster("cpu").machine.shares_memory);
  EXPECT_THROW(preset_cluster("h200"), UsageError);
  EXPECT_EQ(constants_of_device("B200").second, Origins::kRated);
}

TEST(Cluster, a_file_names_a_machine_and_constants) {
  const Cluster cluster = cluster_from_json(
      std::string(kMachine) +
          R"(, "constants": {"product_share": 0.5, "link_latency_s": {"value": 2e-6, "source": "measured on 2 processes", "residual": 0.03}}})",
      "machines.json");
  EXPECT_EQ(cluster.machine.devices_per_host, 4);
  EXPECT_EQ(cluster.constants.product_share, 0.5);
  EXPECT_EQ(cluster.constants.link_latency_s, 2e-6);
  EXPECT_EQ(cluster.origins, Origins::kMeasured);
  EXPECT_EQ(cluster.residuals.at("link_latency_s"), 0.03);
}

TEST(Cluster, what_is_written_reads_as_the_same) {
  const Cluster cluster = preset_cluster("h100_80gb");
  const Cluster read = cluster_from_json(cluster_json(cluster).to_json(2), "h100.json");
  EXPECT_EQ(cluster_json(read), cluster_json(cluster));
}

TEST(Cluster, one_of_several_machines_is_chosen_by_name) {
  const std::string json = std::string(R"({"machines": {"a": )") + kMachine + R"(}, "b": )" + kMachine + "}}}";
  EXPECT_EQ(cluster_from_json(json, "machines.json", "b").machine.device, "Box");
  EXPECT_THAT(refusal(json), HasSubstr("holds a, b"));
}

TEST(Cluster, mistakes_are_named_by_key_and_line) {
  const auto with = [](const std::string& from, const std::string& to) {
    std::string json = std::string(kMachine) + "}";
    json.replace(json.find(from), from.size(), to);
    return json;
  };
  EXPECT_THAT(refusal(with("\"link_bandwidth\": 1e11", "\"link_bandwidth\": 300")),
              HasSubstr("machines.json, line 3: 'link_bandwidth' is 300 bytes a second; expected 1e8 to 1e14"));
  EXPECT_THAT(refusal(with("\"memory_gib\": 40", "\"memory_gib\": -40")), HasSubstr("line 2: 'memory_gib' is -40"));
  EXPECT_THAT(refusal(with("\"memory_gib\": 40", "\"memory_gb\": 40")), HasSubstr("did you mean 'memory_gib'?"));
  EXPECT_THAT(refusal(with("\"memory_gib\": 40,", "")), HasSubstr("'memory_gib' is missing"));
  EXPECT_THAT(refusal(with("1e14", "\"fast\"")), HasSubstr("'peak_flops' is \"fast\""));
  EXPECT_THAT(refusal(with("\"devices_per_host\": 4", "\"devices_per_host\": 2.5")), HasSubstr("no whole number"));
  EXPECT_THAT(refusal(std::string(kMachine) + R"(, "constants": {"produkt_share": 1}})"),
              HasSubstr("did you mean 'product_share'?"));
  EXPECT_THAT(refusal(std::string(kMachine) + R"(, "constants": {"memory_share": 0}})"),
              HasSubstr("'memory_share' is 0"));
}

}  // namespace
}  // namespace hasten::plan
