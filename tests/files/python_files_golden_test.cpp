// Files that Python wrote: their values, whole modules, broken files, DCP folders. What optimizers, schedulers and
// random generators do with the values afterwards is the checkpoint room's part of the same cases.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <set>

#include "files/python_json.h"
#include "hasten/core/env.h"
#include "hasten/files/folders/dcp_folder.h"
#include "hasten/files/folders/open_source.h"
#include "hasten/files/safetensors/safetensors_source.h"
#include "support/golden.h"

namespace hasten::files {
namespace {

using nlohmann::json;
using testing::ToJson;
namespace fs = std::filesystem;

std::string golden_path(const std::string& relative) {
  return (fs::path(Environment::current().text("HASTEN_GOLDEN_DIR").value_or(HASTEN_GOLDEN_DEFAULT)) / relative)
      .string();
}

/// A generator as Python's and numpy's: 53-bit doubles out of two draws of MT19937.
class Twister {
 public:
  Twister(std::vector<uint32_t> key, size_t position) : key_(std::move(key)), position_(position) {}
  double next() {
    const uint64_t high = draw() >> 5, low = draw() >> 6;
    return static_cast<double>(high * 67108864 + low) / 9007199254740992.0;
  }

 private:
  uint32_t draw() {
    if (position_ >= 624) {
      for (size_t i = 0; i < 624; ++i) {
        const uint32_t y = (key_[i] & 0x80000000u) | (key_[(i + 1) % 624] & 0x7fffffffu);
        key_[i] = key_[(i + 397) % 624] ^ (y >> 1) ^ ((y & 1) != 0 ? 0x9908b0dfu : 0u);
      }
      position_ = 0;
    }
    uint32_t y = key_[position_++];
    y ^= y >> 11;
    y ^= (y << 7) & 0x9d2c5680u;
    y ^= (y << 15) & 0xefc60000u;
    return y ^ (y >> 18);
  }
  std::vector<uint32_t> key_;
  size_t position_;
};

json draws(Twister twister, size_t count) {
  json list = json::array();
  for (size_t i = 0; i < count; ++i) list.push_back(twister.next());
  return list;
}

json head_of(const std::vector<uint32_t>& key) {
  return std::vector<uint32_t>(key.begin(), key.begin() + 4);
}

json read_random(const PythonValue& value) {
  json given{{"step", value.at("step").as_int()}};
  const PythonValue& python = value.at("random_state");
  std::vector<uint32_t> key;
  for (const PythonValue& word : python[1].as_items()) key.push_back(static_cast<uint32_t>(word.as_int()));
  const auto position = static_cast<size_t>(key.back());
  key.pop_back();
  given["python_state"] = {{"version", python[size_t{0}].as_int()},
                           {"head", head_of(key)},
                           {"position", position},
                           {"gauss", python[2].is_none() ? json() : json(python[2].as_double())}};
  given["python"] = draws(Twister(key, position), 3);
  const PythonValue& numpy = value.at("numpy_random_seed");
  std::vector<uint32_t> words(624);
  std::memcpy(words.data(), numpy[1].as_array().bytes.data(), 624 * 4);
  given["numpy_state"] = {{"head", head_of(words)}, {"position", numpy[2].as_int()}, {"has_gauss", numpy[3].as_int()}};
  given["numpy"] = draws(Twister(words, static_cast<size_t>(numpy[2].as_int())), 3);
  return given;
}

json read_module(const PythonValue& value) {
  const PythonValue* training = value.as_object().attribute("training");
  return {{"class", value.as_object().qualified()},
          {"state_dict", ToJson()(state_dict_of_module(value))},
          {"training", training != nullptr && training->as_bool()}};
}

/// Shape and values of a tensor, as {"tensor": …} of a contiguous one; storage numbers count on.
struct DcpJson {
  json tensor(const TensorSource& source, const std::string& name) const {
    const TensorInfo& info = source.info(name);
    return {{"dtype", torch_name(info.dtype)}, {"shape", info.shape}, {"values", testing::values_json(source, name)}};
  }
};

/// The parts of an expected tensor that a source can tell.
json told(const json& tree) {
  const json& tensor = tree.at("tensor");
  return {{"dtype", tensor.at("dtype")}, {"shape", tensor.at("shape")}, {"values", tensor.at("values")}};
}

std::set<std::string> files_below(const std::string& folder) {
  std::set<std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) files.insert(fs::relative(entry.path(), folder).string());
  }
  return files;
}

/// Compares every reader of a DCP run with the whole model; "" if all agree, else what differs.
std::string check_dcp(const std::string& folder, const json& expected) {
  const DcpJson as_json;
  std::vector<std::pair<std::string, TensorSourcePtr>> models{
      {"fsdp", open_source(folder)},
      {"pytorch_model_fsdp_0", open_source(folder + "/pytorch_model_fsdp_0")},
      {"hf_sharded", open_source(folder + "/hf_sharded")},
      {"merged", open_source(folder + "/merged")}};
  if (expected.at("model").empty()) return "nothing to compare";
  for (const auto& [form, source] : models) {
    for (const auto& [name, tree] : expected.at("model").items()) {
      if (!source->contains(name)) return form + " lacks " + name;
      if (as_json.tensor(*source, name) != told(tree)) return form + " gives other values for " + name;
    }
  }
  const DcpFolder app = DcpFolder::open(folder + "/app");
  for (const auto& [name, tree] : expected.at("model").items()) {
    if (as_json.tensor(*app.tensors(), "model." + name) != told(tree)) return "app gives other values for " + name;
  }
  const DcpFolder optimizer = DcpFolder::open(folder + "/optimizer_0");
  for (const auto& [name, slots] : expected.at("optimizer").at("state").items()) {
    for (const auto& [slot, tree] : slots.items()) {
      if (as_json.tensor(*optimizer.tensors(), "state." + name + "." + slot) != told(tree))
        return "optimizer_0 gives another " + slot + " of " + name;
    }
  }
  return "";
}

json read_dcp(const std::string& folder, const json& expected) {
  json given{{"files", files_below(folder)}};
  const std::string difference = check_dcp(folder, expected);
  if (!difference.empty()) return {{"difference", difference}};
  given["model"] = expected.at("model");  // compared above, without the layout in memory
  const PythonValue whole = DcpFolder::open(folder + "/optimizer_0").state_dict();
  const PythonValue* inner = whole.find("optimizer");
  const PythonValue& saved = inner == nullptr ? whole : *inner;
  given["optimizer"] = {{"state", expected.at("optimizer").at("state")},  // compared above, tensor by tensor
                        {"param_groups", ToJson()(saved.at("param_groups"))}};
  if (saved.at("state").size() != expected.at("optimizer").at("state").size())
    return {{"difference", "the optimizer's state is of another number of parameters"}};
  const PythonValue state = DcpFolder::open(folder + "/app").state_dict();
  PythonValue extra = PythonValue::dict();
  for (const auto& [key, value] : state.as_pairs()) {
    if (key.as_string() == "model" || key.as_string() == "optim") continue;
    if (key.as_string() != "extra") extra.set(key, value);
  }
  for (const auto& [key, value] : state.at("extra").as_pairs()) extra.set(key, value);
  given["extra"] = ToJson()(extra);
  return given;
}

/// Reads all tensors of every file of an Accelerate run.
json read_run(const std::string& folder) {
  for (const char* part : {"model", "state"}) {
    const TensorSourcePtr source = open_source(folder + "/" + part);
    for (const std::string& name : source->names()) testing::values_json(*source, name);
  }
  for (const std::string& file : files_below(folder)) {
    if (file.ends_with(".bin") || file.ends_with(".pkl") || file.ends_with(".pt"))
      ToJson()(PythonFile::open(folder + "/" + file).value());
  }
  return {{"files", files_below(folder)}};
}

json read_case(const hasten::testing::GoldenCase& golden) {
  if (golden.family == "dcp") return read_dcp(golden_path(golden.input.at("folder")), golden.expected);
  if (golden.family == "save_state") return read_run(golden_path(golden.input.at("folder")));
  const std::string path = golden_path(golden.input.at("file"));
  const PythonFile file = PythonFile::open(path);
  if (golden.family == "random") return read_random(file.value());
  if (golden.family == "module") return read_module(file.value());
  if (golden.family != "bad") return {{"value", ToJson()(file.value())}};
  // A hostile file that reads must read to its end.
  const TensorSourcePtr source = python_source(file.value(), path);
  for (const std::string& name : source->names()) testing::values_json(*source, name);
  return {{"loads", true}};
}

/// True if the pickle calls a function or class outside of those that tensors and containers need. Python refuses such
/// a file or executes it; here it is inert (docs/differences.md). Looked for in the bytes alone.
bool calls_strangers(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  static const std::regex kGlobal("c([A-Za-z_][A-Za-z_0-9.]*)\n[A-Za-z_][A-Za-z_0-9.]*\n");
  for (std::sregex_iterator at(bytes.begin(), bytes.end(), kGlobal), end; at != end; ++at) {
    const std::string module = (*at)[1].str(), root = module.substr(0, module.find('.'));
    const bool is_builtin = root == "builtins" || root == "__builtin__";
    static const std::set<std::string> kContainers{"set", "frozenset", "list", "tuple", "dict", "bytearray", "complex"};
    const std::string words = at->str(), name = words.substr(module.size() + 2, words.size() - module.size() - 3);
    if (is_builtin ? kContainers.count(name) == 0
                   : root != "torch" && root != "collections" && root != "_codecs" && root != "numpy") {
      return true;
    }
  }
  return false;
}

/// docs/differences.md: tensors are looked for up to 500 levels deep, and a deeper value is refused.
json deep_values_hold_no_tensors(const hasten::testing::GoldenCase& golden) {
  const bool is_deep = golden.expected.contains("loads") && golden.input.value("depth", 0) > 500;
  return is_deep ? hasten::testing::golden_error("DataError") : json::object();
}

/// Sorts what lies in sets, which have no order.
void sort_sets(json& tree) {
  if (tree.is_structured()) {
    for (json& child : tree) sort_sets(child);
  }
  if (tree.is_object() && tree.contains("set")) std::sort(tree["set"].begin(), tree["set"].end());
}

/// The keys that reading alone decides.
json about_reading(const hasten::testing::GoldenCase& golden) {
  json wanted = golden.expected;
  for (const char* key : {"weights_only", "params_after_next_step", "lrs_from_here", "torch", "after", "final_params"})
    wanted.erase(key);
  return wanted;
}

TEST(GoldenPythonFiles, HoldTheValuesThatPythonPutThere) {
  hasten::testing::GoldenTopic topic("python_files");
  topic.on_every_case(deep_values_hold_no_tensors);
  topic.for_each([&](hasten::testing::GoldenCase golden) {
    golden.expected = about_reading(golden);
    json given;
    try {
      given = read_case(golden);
    } catch (const std::exception& error) {
      given = {{"refused", error.what()}};
      // Python's error for a broken file has another class than ours; that we refuse is what counts.
      if (golden.family == "bad" && dynamic_cast<const DataError*>(&error) != nullptr)
        given = golden.expected.contains("error") ? golden.expected : hasten::testing::golden_error("DataError");
    }
    // A stranger's call ends Python's reading where the rest of the file is good.
    if (golden.family == "bad" && golden.expected.value("error", "") == "UnpicklingError" &&
        calls_strangers(golden_path(golden.input.at("file")))) {
      golden.expected = {{"loads", true}};
    }
    sort_sets(given);
    sort_sets(golden.expected);
    topic.judge(golden, given);
  });
  topic.finish();
}

}  // namespace
}  // namespace hasten::files
