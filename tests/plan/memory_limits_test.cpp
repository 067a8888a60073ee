#include "hasten/plan/memory_limits.h"

#include <gtest/gtest.h>

#include <random>

#include "hasten/core/error.h"
#include "hasten/plan/device_map.h"
#include "hasten/plan/memory_estimate.h"
#include "hasten/plan/memory_size.h"
#include "hasten/plan/module_tree.h"
#include "support/folder.h"

namespace hasten::plan {
namespace {

class MemoryLimitsTest : public testing::InFolder {
 protected:
  MemoryLimitsTest() { write("proc/meminfo", "MemTotal: 9000 kB\nMemAvailable: 4000 kB\n"); }
  int64_t available() const { return available_memory_bytes(path("proc"), path("cgroup")); }
};

TEST_F(MemoryLimitsTest, WithoutAControlGroupItIsMemAvailable) {
  EXPECT_EQ(available(), 4000 * 1024);
}

TEST_F(MemoryLimitsTest, ALimitOfVersionTwoCountsWithoutReclaimableFilePages) {
  write("proc/self/cgroup", "0::/job/task\n");
  write("cgroup/job/task/memory.max", "max\n");
  write("cgroup/job/memory.max", "3000000\n");
  write("cgroup/job/memory.current", "2500000\n");
  write("cgroup/job/memory.stat", "anon 1\ninactive_file 1500000\n");

  EXPECT_EQ(available(), 2000000);
}

TEST_F(MemoryLimitsTest, ALimitOfVersionOneCounts) {
  write("proc/self/cgroup", "5:cpu:/\n4:memory:/job\n");
  write("cgroup/memory/job/memory.limit_in_bytes", "1000000\n");
  write("cgroup/memory/job/memory.usage_in_bytes", "400000\n");
  write("cgroup/memory/job/memory.stat", "total_inactive_file 100000\n");
  write("cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  write("cgroup/memory/memory.usage_in_bytes", "5\n");

  EXPECT_EQ(available(), 700000);
}

TEST(Devices, AnUnknownOneIsRefusedWithTheNearest) {
  EXPECT_EQ(parse_device("cuda:1"), Device(1));
  EXPECT_EQ(parse_device("disk"), Device("disk"));
  EXPECT_NE(testing::words_of<UsageError>([] { parse_device("disk "); }).find("did you mean 'disk'?"),
            std::string::npos);
  EXPECT_NE(testing::words_of<UsageError>([] {
              memory_limits({{"cpuu", "1GB"}});
            }).find("did you mean 'cpu'?"),
            std::string::npos);
}

// A random tree of a few levels, some of whose tensors are tied.
ModuleNodePtr random_module(std::mt19937& random, int depth, int64_t& identity) {
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  auto node = std::make_shared<ModuleNode>();
  node->class_name = below(3) == 0 ? "Block" : "Other";
  for (int i = below(3); i > 0; --i) {
    const bool is_tied = identity > 0 && below(6) == 0;
    const int64_t id = is_tied ? below(static_cast<int>(identity)) : identity++;
    // Tied names have one shape: it follows from the identity.
    node->parameters.push_back({text("p", i), {1 + id % 7, 3}, "float32", id, true});
  }
  if (depth > 0) {
    for (int i = below(4); i > 0; --i)
      node->children.emplace_back(text("m", i), random_module(random, depth - 1, identity));
  }
  return node;
}

TEST(DeviceMap, OfRandomTreesCoversAllAndFitsTheLimits) {
  const unsigned seed = 20240607;
  std::mt19937 random(seed);
  for (int round = 0; round < 300; ++round) {
    int64_t identity = 0;
    const ModuleTree tree{random_module(random, 3, identity)};
    MemoryLimits limits;
    for (int d = 0; d < 2; ++d) limits.entries.emplace_back(Device(d), static_cast<double>(random() % 400));
    limits.entries.emplace_back(Device("cpu"), static_cast<double>(random() % 400));
    InferOptions options;
    options.fallback_allocation = round % 2 == 0;
    if (round % 3 == 0) options.no_split_module_classes = {"Block"};

    const DeviceMap map = infer_auto_device_map(tree, limits, options).device_map;

    SCOPED_TRACE(text("seed ", seed, " round ", round, ": ", map.to_json()));
    EXPECT_TRUE(examine_device_map(tree, map).uncovered_tensors.empty());
    std::map<int64_t, Device> places;
    std::map<std::string, double> used;
    for (const NamedTensor& item : tree.all_parameters()) {
      const Device* device = map.device_of(item.name);
      if (device == nullptr && places.count(item.tensor->identity) > 0)
        continue;  // a tied name, whose tensor has its place
      ASSERT_NE(device, nullptr) << item.name;
      const auto [place, is_new] = places.try_emplace(item.tensor->identity, *device);
      EXPECT_EQ(place->second, *device) << item.name << " is tied";
      if (is_new) used[device_text(*device)] += item.tensor->num_elements() * 4;
    }
    for (const auto& [device, limit] : limits.entries)
      EXPECT_LE(used[device_text(device)], limit) << device_text(device);
  }
}

// a is tied to b, and b's module to c by another tensor: all three go together, whatever the limits are.
TEST(DeviceMap, TiesAreFollowedFromTieToTie) {
  const auto tree = ModuleTree::from_json(core::Value::parse_json(R"({"class": "Net", "children": [
      ["a", {"class": "A", "params": [{"name": "w", "shape": [7, 7], "dtype": "float32", "tie": 0}]}],
      ["b", {"class": "B", "params": [{"name": "w", "shape": [7, 7], "dtype": "float32", "tie": 0},
                                      {"name": "v", "shape": [5, 5], "dtype": "float32", "tie": 1}]}],
      ["c", {"class": "C", "params": [{"name": "v", "shape": [5, 5], "dtype": "float32", "tie": 1},
                                      {"name": "u", "shape": [9], "dtype": "float32"}]}]]})"));
  std::mt19937 random(7);
  for (int round = 0; round < 120; ++round) {
    MemoryLimits limits;
    for (int d = 0; d < 3; ++d) limits.entries.emplace_back(Device(d), static_cast<double>(random() % 500));
    InferOptions options;
    options.fallback_allocation = round % 2 == 0;
    options.no_split_module_classes = {"A", "B", "C"};

    const DeviceMap map = infer_auto_device_map(tree, limits, options).device_map;

    EXPECT_EQ(*map.device_of("a.w"), *map.device_of("b.w")) << map;
    EXPECT_EQ(*map.device_of("b.v"), *map.device_of("c.v")) << map;
  }
}

TEST(DeviceMap, IsIteratedAndPrintedInItsOrder) {
  const DeviceMap map{{"wte", 0}, {"head", "disk"}};

  std::string seen;
  for (const auto& [name, device] : map) seen += text(name, "=", device, " ");

  EXPECT_EQ(seen, "wte=0 head=disk ");
  EXPECT_EQ(text(map), map.to_json());
  EXPECT_EQ(map.size(), 2U);
}

TEST(DeviceMap, TiedEntriesDoNotGiveWayToEachOtherForEver) {
  // Each half of the pair fits device 0 by itself, but not with the half that it is tied to.
  const auto tree = ModuleTree::from_json(core::Value::parse_json(R"({"class": "Net", "children": [
      ["pair", {"class": "Pair", "children": [
        ["a", {"class": "Linear", "params": [{"name": "weight", "shape": [9, 9], "dtype": "float32", "tie": 0},
                                             {"name": "bias", "shape": [9], "dtype": "float32"}]}],
        ["b", {"class": "Linear", "params": [{"name": "weight", "shape": [9, 9], "dtype": "float32", "tie": 0},
                                             {"name": "bias", "shape": [9], "dtype": "float32"}]}]]}],
      ["other", {"class": "Linear", "params": [{"name": "weight", "shape": [20, 9], "dtype": "float32"},
                                               {"name": "bias", "shape": [20], "dtype": "float32"}]}]]})"));
  MemoryLimits limits;
  for (const double bytes : {597.0, 115.0, 1198.0, 239.0}) {
    limits.entries.emplace_back(Device(static_cast<int>(limits.entries.size())), bytes);
  }
  InferOptions options;
  options.fallback_allocation = true;
  options.sizes.dtype = "float16";

  const DeviceMap map = infer_auto_device_map(tree, limits, options).device_map;

  EXPECT_TRUE(examine_device_map(tree, map).uncovered_tensors.empty()) << map.to_json();
}

TEST(DeviceMap, AMapWithHolesNamesAllTensorsAndTheNearestModule) {
  const auto tree = ModuleTree::from_names({{"encoder.weight", {2}}, {"decoder.weight", {2}}});

  const auto words = testing::words_of<UsageError>([&] {
    check_device_map(tree, {{"encodr", "cpu"}, {"decoder", 0}});
  });

  EXPECT_NE(words.find("encoder.weight"), std::string::npos) << words;
  EXPECT_NE(words.find("'encodr', did you mean 'encoder'?"), std::string::npos) << words;
}

TEST(DeviceMap, TiesAcrossDevicesAreCountedOnceForEachMemory) {
  const auto part = [](std::vector<TensorNode> parameters) {
    auto node = std::make_shared<ModuleNode>();
    node->class_name = "Part";
    node->parameters = std::move(parameters);
    return node;
  };
  auto root = std::make_shared<ModuleNode>();
  root->class_name = "Net";
  root->children = {{"emb", part({{"weight", {10, 4}, "float32", 1}})},
                    {"body", part({{"weight", {8}, "float32", 2}, {"tied", {6}, "float16", 3}})},
                    {"head", part({{"weight", {10, 4}, "float32", 1}, {"tied", {6}, "float16", 3}})}};
  const ModuleTree tree{root};

  EXPECT_TRUE(ties_across_devices(tree, {{"", 0}}).empty());
  EXPECT_TRUE(ties_across_devices(tree, {{"emb", 0}, {"body", 1}, {"head.weight", 0}, {"head.tied", 1}}).empty());
  const auto apart = ties_across_devices(tree, {{"emb", 0}, {"body", "cpu"}, {"head", "disk"}});
  ASSERT_EQ(apart.size(), 2U);
  EXPECT_EQ(apart[0].names, (std::vector<std::string>{"body.tied", "head.tied"}));
  EXPECT_EQ(apart[0].devices, (std::vector<Device>{"cpu", "disk"}));
  EXPECT_EQ(apart[0].extra_bytes, 0);
  EXPECT_EQ(apart[1].names, (std::vector<std::string>{"emb.weight", "head.weight"}));
  EXPECT_EQ(apart[1].extra_bytes, 160);
}

TEST(MemorySize, TextsAreThoseOfPythonsFloat) {
  EXPECT_EQ(parse_bytes("2_5.5_0MB"), 25'500'000);
  EXPECT_EQ(parse_bytes("7_68KiB"), 786'432);
  EXPECT_EQ(parse_bytes("0GB"), 0);
  for (const char* wrong : {"1__0KB", "_1KB", "1_GB", "0x10KB", "-1GB", "-0.5KiB", "1,5GB", "GB", "nanGB"})
    EXPECT_THROW(parse_bytes(wrong), UsageError) << wrong;
  EXPECT_THROW(parse_bytes(int64_t{-1}), UsageError);
}

TEST(EstimateTable, ALongNameWidensTheLastColumn) {
  const MaximumSizes sizes{1320, {880, {"1"}}};

  const std::string table = estimate_table(estimate_rows(sizes, {"float32"}), std::string(60, 'x'));

  std::istringstream lines(table);
  std::string first, second;
  std::getline(lines, first);
  std::getline(lines, second);
  EXPECT_NE(second.find(std::string(60, 'x')), std::string::npos);
  EXPECT_THROW(estimate_rows(sizes, {"float33"}), UsageError);
}

}  // namespace
}  // namespace hasten::plan
