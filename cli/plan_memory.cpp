// `hasten plan --memory MODEL`: the memory that a training of a model takes on each host, for every sharding strategy.
#include <algorithm>
#include <cctype>
#include <cstdint>
#include <filesystem>
#include <iostream>
#include <optional>

#include "hasten/core/error.h"
#include "hasten/core/number.h"
#include "hasten/core/strings.h"
#include "hasten/files/safetensors/safetensors_header.h"
#include "hasten/plan/shard_memory.h"
#include "hasten/settings/deepspeed_config.h"
#include "plan_parts.h"

namespace hasten::cli {
namespace {

namespace fs = std::filesystem;

struct Counted {
  int64_t parameters = 0, largest = 0;
};

// Numbers of elements, from the header in front of a safetensors file's values. The header halves the last size of F4.
void count_file(const fs::path& path, Counted& counted) {
  const files::SafetensorsHeader header = files::read_safetensors_header(path.string());
  for (const auto& entry : header.entries) {
    int64_t numel = entry.info.dtype == files::Dtype::kFloat4E2M1FnX2 ? 2 : 1;
    for (const int64_t length : entry.info.shape) numel *= length;
    counted.parameters += numel;
    counted.largest = std::max(counted.largest, numel);
  }
}

Counted count(const std::string& model) {
  std::error_code ignored;
  Counted counted;
  if (fs::is_regular_file(model, ignored)) {
    count_file(model, counted);
  } else if (fs::is_directory(model, ignored)) {
    for (const auto& entry : fs::directory_iterator(model)) {
      if (entry.path().extension() == ".safetensors") count_file(entry.path(), counted);
    }
    if (counted.parameters == 0)
      throw UsageError(Origin{"plan"}, "'", model,
                       "' has no safetensors file. Name a file, or a number of parameters.");
  } else {
    counted.parameters = plan::parse_parameter_count(model);
  }
  return counted;
}

// The ZeRO configuration's dtype and optimizer, if a file has them.
void apply_config(const std::string& path, int world_size, plan::ShardMemoryInput& input) {
  const auto config = plan::DeepSpeedConfig::read(path);
  const auto resolved = plan::resolve_deepspeed(config, world_size, false);
  if (resolved.on("fp16.enabled") || resolved.on("bf16.enabled")) input.compute_bytes = 2;
  const std::string type = core::lower(resolved.text("optimizer.type"));
  if (type == "sgd") input.optimizer_bytes = 4;
  if (type == "adagrad" || type == "rmsprop") input.optimizer_bytes = 4;
  if (resolved.is_given("zero_optimization.reduce_bucket_size"))
    input.largest_unit = std::min(input.largest_unit, resolved.count("zero_optimization.reduce_bucket_size"));
  std::cout << config.source() << ": stage " << resolved.stage << ".\n";
}

}  // namespace

int plan_memory(const launcher::CommandLine& line) {
  const auto integer = [&](const char* name, int otherwise) {
    return line.has(name) ? core::whole_number<int>(line.text(name)).value() : otherwise;
  };
  const Counted counted = count(line.rest.front());
  plan::ShardMemoryInput input{.parameters = counted.parameters,
                               .largest_unit = std::max(int64_t{1} << 20, counted.largest),
                               .ranks_per_host = integer("ranks_per_host", 1),
                               .hosts = integer("num_machines", 1)};
  if (line.has("config")) apply_config(line.text("config"), input.ranks_per_host * input.hosts, input);
  if (line.has("mixed_precision")) input.compute_bytes = line.text("mixed_precision") == "no" ? 4 : 2;
  if (line.has("optimizer_bytes")) input.optimizer_bytes = integer("optimizer_bytes", 8);
  std::optional<int64_t> limit;
  if (line.has("limit_gib"))
    limit =
        static_cast<int64_t>(core::real_number(line.text("limit_gib")).value() * static_cast<double>(int64_t{1} << 30));
  std::cout << plan::describe(input, plan::shard_memory(input), limit);
  return 0;
}

}  // namespace hasten::cli
