// How huggingface_hub splits weights over files, what save_model leaves in a folder, and what it should remove.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <set>

#include "files/memory_source.h"
#include "files/python_json.h"
#include "hasten/core/env.h"
#include "hasten/files/base/cast.h"
#include "hasten/files/folders/open_source.h"
#include "hasten/files/safetensors/hf_index.h"
#include "hasten/files/safetensors/shard_split.h"
#include "hasten/files/safetensors/weight_writer.h"
#include "support/golden.h"

namespace hasten::files {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

std::string sharding_path(const std::string& relative) {
  return (fs::path(Environment::current().text("HASTEN_GOLDEN_DIR").value_or(HASTEN_GOLDEN_DEFAULT)) / relative)
      .string();
}

uint64_t limit_of(const json& size) {
  return size.is_string() ? parse_shard_size(size.get<std::string>())
                          : static_cast<uint64_t>(std::max<int64_t>(0, size.get<int64_t>()));
}

uint64_t bytes_of_json(const json& tensor) {
  TensorInfo info{.shape = tensor.at("shape").get<std::vector<int64_t>>()};
  info.dtype = *dtype_of_torch_name(tensor.at("dtype").get<std::string>());
  return static_cast<uint64_t>(bytes_of(info));
}

json split_json(const ShardSplit& split) {
  json files = json::array(), map = json::object();
  for (const ShardFile& file : split.files) {
    files.push_back({file.file, file.names});
    for (const std::string& name : file.names) map[name] = file.file;
  }
  return {{"files", files},
          {"weight_map", map},
          {"metadata", {{"total_size", split.total_size}}},
          {"is_sharded", split.is_sharded()}};
}

json run_split(const json& input) {
  std::vector<ShardTensor> tensors;
  for (const json& tensor : input.at("tensors")) {
    ShardTensor one{.name = tensor.at("name"), .bytes = bytes_of_json(tensor)};
    if (tensor.contains("share")) one.storage = tensor.at("share").get<int64_t>();
    tensors.push_back(one);
  }
  return split_json(split_into_shards(tensors, limit_of(input.at("max_shard_size")),
                                      input.at("filename_pattern").get<std::string>()));
}

// docs/differences.md: a text of bare digits is a number of bytes, where the peer wants a unit. The cases split tensors
// of one size.
json bare_digits_are_bytes(const hasten::testing::GoldenCase& golden) {
  const json& input = golden.input;
  const json size = input.value("max_shard_size", json());
  if (golden.family != "size" || !size.is_string() || size == "") return {};
  const std::string words = size;
  if (words.find_first_not_of("0123456789") != std::string::npos) return {};
  const json& tensors = input.at("tensors");
  const uint64_t each = bytes_of_json(tensors.at(0));
  const auto per_file = static_cast<size_t>(std::max<uint64_t>(1, std::stoull(words) / each));
  const size_t num_files = (tensors.size() + per_file - 1) / per_file;
  json files = json::array(), map = json::object();
  for (size_t i = 0; i < tensors.size(); ++i) {
    char number[64];
    std::snprintf(number, sizeof number, "-%05zu-of-%05zu", i / per_file + 1, num_files);
    const std::string file = "model" + std::string(num_files == 1 ? "" : number) + ".safetensors";
    if (i % per_file == 0) files.push_back({file, json::array()});
    files.back()[1].push_back(tensors[i].at("name"));
    map[tensors[i].at("name").get<std::string>()] = file;
  }
  return {{"is_sharded", num_files > 1},
          {"metadata", {{"total_size", each * tensors.size()}}},
          {"files", files},
          {"weight_map", map}};
}

struct Member {
  std::string name;
  json tensor;
};

/// The state_dict of a model tree: a module's parameters, its buffers that persist, then its children.
void add_members(const json& tree, const std::string& prefix, std::vector<Member>& out) {
  for (const char* kind : {"params", "buffers"}) {
    for (const json& tensor : tree.value(kind, json::array())) {
      if (tensor.value("persistent", true)) out.push_back({prefix + tensor.at("name").get<std::string>(), tensor});
    }
  }
  for (const json& child : tree.value("children", json::array()))
    add_members(child.at(1), prefix + child.at(0).get<std::string>() + ".", out);
}

std::vector<std::string> names_below(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

double real_of(const json& value) {
  return value.is_boolean() ? static_cast<double>(value.get<bool>()) : value.get<double>();
}

json told_of(const TensorSource& source, const std::string& name) {
  const TensorInfo& info = source.info(name);
  const std::string bytes = testing::bytes_of_tensor(source, name);
  json values = json::array();
  double sum = 0, abs_sum = 0;
  for (size_t i = 0; i < static_cast<size_t>(numel_of(info.shape)); ++i) {
    json value = testing::element_json(info.dtype, bytes, i);
    if (can_cast(info.dtype, Dtype::kFloat64)) {  // these cases have doubles, not the shortest decimals
      double wide = 0;
      cast_elements(info.dtype, bytes.data() + i * element_bytes(info.dtype), Dtype::kFloat64, &wide, 1);
      value = wide;
    }
    sum += real_of(value);
    abs_sum += std::abs(real_of(value));
    values.push_back(std::move(value));
  }
  const size_t n = values.size();
  return {{"shape", info.shape},
          {"dtype", torch_name(info.dtype)},
          {"sum", sum},
          {"abs_sum", abs_sum},
          {"first", json(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(std::min<size_t>(n, 4)))},
          {"last", json(values.begin() + static_cast<std::ptrdiff_t>(n - std::min<size_t>(n, 2)), values.end())}};
}

/// Reads a folder of save_model, and splits the model as it was split there.
json run_save(const json& input) {
  const std::string folder = sharding_path(input.at("folder"));
  if (!fs::exists(folder)) {  // the peer wrote nothing
    const testing::ScratchFolder ours;
    write_weights(real_disk(), testing::MemorySource(), ours / "out",
                  {.safe_serialization = input.at("safe_serialization")});
    return {{"stored", json::array()},
            {"index", nullptr},
            {"tensors", json::object()},
            {"files", names_below(ours / "out")}};
  }
  const TensorSourcePtr source = open_source(folder);
  std::vector<std::string> stored = source->names();
  std::sort(stored.begin(), stored.end());
  json given{{"stored", stored}, {"index", nullptr}, {"tensors", json::object()}, {"files", names_below(folder)}};
  if (!input.at("model").is_object()) {
    for (const std::string& name : stored) given["tensors"][name] = told_of(*source, name);
    return given;
  }
  std::vector<Member> members;
  add_members(input.at("model"), "", members);
  std::map<int64_t, std::string> holder;
  std::vector<ShardTensor> tensors;
  for (const Member& member : members) {
    std::string stored_as = member.name;
    if (member.tensor.contains("tie")) {
      const auto [at, fresh] = holder.emplace(member.tensor.at("tie").get<int64_t>(), member.name);
      stored_as = source->contains(member.name) ? member.name : at->second;
      if (!fresh && !source->contains(member.name)) {
        given["tensors"][member.name] = told_of(*source, stored_as);
        continue;
      }
    }
    if (!source->contains(stored_as)) continue;
    given["tensors"][member.name] = told_of(*source, stored_as);
    ShardTensor tensor{.name = member.name, .bytes = bytes_of_json(member.tensor)};
    if (member.tensor.contains("tie")) tensor.storage = member.tensor.at("tie").get<int64_t>();
    tensors.push_back(tensor);
  }
  const bool safe = input.at("safe_serialization");
  const ShardSplit split = split_into_shards(tensors, limit_of(input.at("max_shard_size")),
                                             safe ? "model{suffix}.safetensors" : "pytorch_model{suffix}.bin");
  json files = json::array();
  for (const ShardFile& file : split.files) files.push_back(file.file);
  if (split.is_sharded()) {
    const std::string name = safe ? "model.safetensors.index.json" : "pytorch_model.bin.index.json";
    files.push_back(name);
    const std::string ours = to_json(split.index());
    given["index"] = json::parse(ours);
    // The file as huggingface_hub wrote it is ours, byte for byte.
    std::ifstream file(folder + "/" + name);
    const std::string theirs((std::istreambuf_iterator<char>(file)), {});
    if (ours != theirs) given["index"] = "differs in its bytes: " + ours;
  }
  if (files != given["files"]) given["files"] = files;
  return given;
}

json run_overwrite(const json& input) {
  const testing::ScratchFolder folder;
  for (const json& name : input.at("before")) std::ofstream(folder / name.get<std::string>()) << "a user's";
  std::vector<Member> members;
  add_members(input.at("model"), "", members);
  json given{{"files_after_each", json::array()}};
  float value = 0;
  for (const json& save : input.at("saves")) {
    value += 1;
    testing::MemorySource source;
    for (const Member& member : members) {
      const auto shape = member.tensor.at("shape").get<std::vector<int64_t>>();
      source.add(member.name, shape, std::vector<float>(static_cast<size_t>(numel_of(shape)), value));
    }
    write_weights(
        real_disk(), source, folder.path(),
        {.safe_serialization = save.at("safe_serialization"), .max_shard_bytes = limit_of(save.at("max_shard_size"))});
    given["files_after_each"].push_back(names_below(folder.path()));
  }
  given["files_after_second"] = given["files_after_each"][1];
  const TensorSourcePtr loaded = open_source(folder.path());
  given["load_gives"] = testing::values_json(*loaded, members.front().name)[0] == value ? "new" : "old";
  return given;
}

bool is_selected(const hasten::testing::GoldenCase& golden) {
  return golden.family != "load" && golden.family != "layout";
}

TEST(GoldenCheckpointSharding, SplitsAndFoldersAreThePeers) {
  hasten::testing::GoldenTopic topic("checkpoint_sharding", is_selected);
  topic.tolerate({.relative = 1e-12});
  // Stale files go (docs/differences.md): what is there after the second save is what the second save wrote.
  topic.on_quirk("stale-files-left", [](const hasten::testing::GoldenCase& golden) {
    return json{
        {"files_after_each", {golden.expected.at("files_after_each").at(0), golden.fixed.at("files_after_second")}},
        {"load_gives", "new"}};
  });
  // "infGB" is refused as any other text is, where the peer overflows.
  topic.on_quirk("odd-number",
                 [](const hasten::testing::GoldenCase&) { return hasten::testing::golden_error("ValueError"); });
  topic.on_every_case(bare_digits_are_bytes);
  topic.for_each([&](hasten::testing::GoldenCase golden) {
    json given;
    try {
      if (golden.family == "split" || golden.family == "size") given = run_split(golden.input);
      if (golden.family == "overwrite") given = run_overwrite(golden.input);
      if (golden.family == "save" || golden.family == "views") {
        golden.expected.erase("bytes");  // our headers are padded to 4096
        if (golden.expected.contains("stored") && golden.expected.contains("tensors")) {
          // Tensors that the peer lost are not in the folder.
          const json wanted = golden.expected.at("tensors");
          for (const auto& [name, told] : wanted.items()) {
            const auto& stored = golden.expected.at("stored");
            const bool lost =
                std::find(golden.quirks.begin(), golden.quirks.end(), "tensor-lost") != golden.quirks.end() &&
                std::find(stored.begin(), stored.end(), name) == stored.end();
            if (lost) golden.expected.at("tensors").erase(name);
          }
        }
        given = run_save(golden.input);
      }
    } catch (const UsageError&) {
      given = hasten::testing::golden_error("ValueError");
    } catch (const std::exception& error) {
      given = {{"failed", error.what()}};
    }
    topic.judge(golden, given);
  });
  topic.finish();
}

}  // namespace
}  // namespace hasten::files
