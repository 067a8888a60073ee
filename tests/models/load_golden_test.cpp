// Folders and device maps of load_checkpoint_in_model (checkpoint_sharding.json, family load), through offload.
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include <nlohmann/json.hpp>
#include <set>

#include "hasten/core/error.h"
#include "hasten/offload/load/dispatch.h"
#include "hasten/offload/units/set_tensor.h"
#include "models/offload_rules.h"
#include "support/golden.h"

namespace hasten::testing {
namespace {

// A module of zeros of a tree's names, shapes and dtypes.
struct ZeroModule : torch::nn::Module {
  explicit ZeroModule(const json& tree) {
    for (const auto& item : tree.value("params", json::array()))
      register_parameter(item.at("name"), zeros_for(item), false);
    for (const auto& item : tree.value("buffers", json::array())) register_buffer(item.at("name"), zeros_for(item));
    for (const auto& child : tree.value("children", json::array())) {
      register_module(child.at(0), std::make_shared<ZeroModule>(child.at(1)));
    }
  }
  static at::Tensor zeros_for(const json& item) {
    return at::zeros(item.at("shape").get<std::vector<int64_t>>(),
                     offload::scalar_type_of_name(item.at("dtype").get<std::string>()));
  }
};

json tensor_facts(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.detach().to(at::kDouble).contiguous().view(-1);
  const auto values = [&](int64_t begin, int64_t end) {
    json list = json::array();
    for (int64_t i = std::max<int64_t>(0, begin); i < std::min(end, flat.numel()); ++i)
      list.push_back(flat[i].item<double>());
    return list;
  };
  return {{"shape", tensor.sizes().vec()},
          {"dtype", dtype_text(tensor)},
          {"sum", flat.sum().item<double>()},
          {"abs_sum", flat.abs().sum().item<double>()},
          {"first", values(0, 4)},
          {"last", values(flat.numel() - 2, flat.numel())}};
}

json loaded_facts(const json& input) {
  const torch::NoGradGuard no_grad;
  auto net = std::make_shared<ZeroModule>(input.at("model"));
  offload::DispatchOptions options{.strict = input.at("strict").get<bool>()};
  if (!input.at("device_map").is_null()) {
    options.device_map = map_of(input.at("device_map"));
    // load_checkpoint_in_model refuses a map with holes; load_checkpoint_and_dispatch puts the rest on the CPU
    // (offload.json, *_hole_*).
    const auto tree = offload::tree_of(*net);
    plan::check_device_map(tree, options.device_map.map_for(tree, options.map_options()));
  }
  if (!input.at("dtype").is_null()) options.dtype = offload::scalar_type_of_name(input.at("dtype").get<std::string>());
  const auto model = offload::load_checkpoint_and_dispatch(
      net, golden_folder() + "/" + input.at("folder").get<std::string>(), options);
  json tensors = json::object();
  for (const auto& item : offload::named_tensors(*net)) tensors[item.name] = tensor_facts(item.tensor);
  return {{"tensors", tensors}};
}

// A DataError is an error of files in Python, or one of shapes and names if it says that they do not fit.
json facts_or_error(const GoldenCase& golden) {
  const std::set<std::string> usage{"ValueError", "KeyError"};
  const std::set<std::string> data{"FileNotFoundError", "SafetensorError", "JSONDecodeError", "UnpicklingError",
                                   "OSError"};
  const std::string expected = golden.expected.value("error", "");
  try {
    return loaded_facts(golden.input);
  } catch (const UsageError& error) {
    return golden_error(usage.count(expected) > 0 ? expected : error.what());
  } catch (const DataError& error) {
    const bool does_not_fit = std::string_view(error.what()).find("does not fit the module") != std::string_view::npos;
    // Another framework's file is a DataError, where the peer has a ValueError.
    if (expected == "ValueError" && std::string_view(error.what()).find("are not PyTorch's") != std::string_view::npos)
      return golden_error(expected);
    if (does_not_fit) return golden_error(expected == "RuntimeError" ? expected : "ValueError");
    return golden_error(data.count(expected) > 0 ? expected : error.what());
  } catch (const std::exception& error) {
    return golden_error(error.what());
  }
}

// docs/differences.md: where both are there, safetensors is read and not pytorch_model.bin.
json safetensors_first(const GoldenCase& golden) {
  const std::filesystem::path folder = golden_folder() + "/" + golden.input.at("folder").get<std::string>();
  const bool has_both = exists(folder / "model.safetensors") && exists(folder / "pytorch_model.bin");
  if (!has_both || !golden.input.at("dtype").is_null() || !golden.expected.contains("tensors")) return {};
  std::ifstream file(folder / "model.safetensors", std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  uint64_t head = 0;
  std::memcpy(&head, bytes.data(), sizeof head);
  const json entries = json::parse(bytes.substr(8, head));
  json tensors = json::object();
  for (const auto& [name, entry] : entries.items()) {
    if (name == "__metadata__") continue;
    const at::Tensor values = at::zeros(entry.at("shape").get<std::vector<int64_t>>());
    std::memcpy(values.data_ptr(), bytes.data() + 8 + head + entry.at("data_offsets").at(0).get<uint64_t>(),
                values.nbytes());
    tensors[name] = tensor_facts(values);
  }
  return {{"tensors", tensors}};
}

TEST(LoadGolden, FoldersAndMapsGiveWhatAccelerateLoads) {
  GoldenTopic topic("checkpoint_sharding", [](const GoldenCase& golden) { return golden.family == "load"; });
  topic.tolerate({.relative = 2e-3, .absolute = 2e-3});
  topic.on_quirk("strict-ignores-missing-keys", [](const GoldenCase&) { return golden_error("ValueError"); });
  topic.on_quirk("dtype-ignored", [](const GoldenCase& golden) {
    json tensors = golden.expected.at("tensors");
    for (auto& [name, facts] : tensors.items()) facts["dtype"] = golden.input.at("dtype");
    return json{{"tensors", tensors}};
  });
  topic.on_every_case(safetensors_first);
  topic.for_each([&](const GoldenCase& golden) { topic.judge(golden, [&] { return facts_or_error(golden); }); });
  topic.finish();
}

}  // namespace
}  // namespace hasten::testing
