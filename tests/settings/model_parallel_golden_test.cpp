// Accelerate's ParallelismConfig: sizes, meshes and handlers as the peer resolves them.
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <string>

#include "hasten/core/error.h"
#include "hasten/settings/parallelism_config.h"
#include "support/golden.h"

namespace hasten::plan {
namespace {

using nlohmann::json;
using testing::GoldenCase;
using testing::GoldenTopic;

template <class T>
json value_or_null(const std::optional<T>& value) {
  return value ? json(*value) : json(nullptr);
}

ParallelismConfig config_of(const json& arguments) {
  ParallelismConfig config;
  const std::map<std::string, std::optional<int64_t>*> sizes = {{"dp_replicate_size", &config.dp_replicate_size},
                                                                {"dp_shard_size", &config.dp_shard_size},
                                                                {"tp_size", &config.tp_size},
                                                                {"cp_size", &config.cp_size},
                                                                {"sp_size", &config.sp_size}};
  for (const auto& [key, value] : arguments.items()) {
    if (sizes.contains(key))
      *sizes.at(key) = value.get<int64_t>();
    else if (key == "cp_backend")
      config.cp_backend = value.get<std::string>();
    else if (key == "sp_backend")
      config.sp_backend = value.get<std::string>();
    else
      throw std::runtime_error("an argument that this test does not know: " + key);
  }
  return config;
}

json mesh_case(const GoldenCase& golden) {
  try {
    const auto found =
        resolve_parallelism(config_of(golden.input.at("arguments")),
                            Environment::of(golden.input.at("environment").get<std::map<std::string, std::string>>()));
    json names = json::array(), shape = json::array();
    for (const auto& [name, size] : found.mesh()) {
      names.push_back(name);
      shape.push_back(size);
    }
    return {{"total_size", found.total()},
            {"mesh", {{"names", names}, {"shape", shape}}},
            {"dp", found.data_axes()},
            {"non_dp", found.other_axes()},
            {"dp_shard_cp", found.shard_axes()},
            {"dp_cp", found.loss_axes()},
            {"data_parallel_size", found.dp_replicate * found.dp_shard},
            {"non_data_parallel_size", found.tp * found.cp * found.sp},
            {"cp_comm_strategy", value_or_null(found.cp_comm_strategy)},
            {"sp_seq_length", value_or_null(found.sp_seq_length)},
            {"sp_seq_length_is_variable", value_or_null(found.sp_seq_length_is_variable)},
            {"sp_attn_implementation", value_or_null(found.sp_attn_implementation)}};
  } catch (const UsageError&) {
    return testing::golden_error("ValueError");
  }
}

TEST(ParallelismConfig, ResolvesAsAccelerateDoes) {
  GoldenTopic topic("model_parallel", [](const GoldenCase& golden) { return golden.family == "mesh"; });
  // Tensor and context parallelism go with plain data parallelism as well.
  topic.on_quirk("tensor-parallel-without-ddp", mesh_case);

  topic.for_each([&](const GoldenCase& golden) { topic.judge(golden, [&] { return mesh_case(golden); }); });

  topic.finish();
}

TEST(ParallelismConfig, RefusesTwoWaysOfCuttingTheSequence) {
  EXPECT_THROW(resolve_parallelism({.cp_size = 2, .sp_size = 2}, Environment::of({})), UsageError);
}

TEST(ParallelismConfig, ReadsALengthThatPythonsLauncherLeftOut) {
  const auto found =
      resolve_parallelism({.sp_size = 2}, Environment::of({{"PARALLELISM_CONFIG_SP_SEQ_LENGTH", "None"},
                                                           {"PARALLELISM_CONFIG_SP_SEQ_LENGTH_IS_VARIABLE", "false"}}));

  EXPECT_FALSE(found.sp_seq_length);
  EXPECT_EQ(found.sp_seq_length_is_variable, false);
}

}  // namespace
}  // namespace hasten::plan
