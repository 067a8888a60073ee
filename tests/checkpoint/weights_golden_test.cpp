// Folders that Accelerate's save_model, save_state and load_checkpoint_in_model wrote and read.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "files/folders/weight_search.h"
#include "hasten/accelerator.h"
#include "hasten/checkpoint/python_tensor.h"
#include "hasten/checkpoint/weights.h"
#include "hasten/files/folders/open_source.h"
#include "hasten/optim/schedulers/schedulers.h"
#include "support/folder.h"
#include "support/golden.h"
#include "support/models.h"
#include "support/ranks.h"

namespace hasten::checkpoint {
namespace {

using nlohmann::json;
using testing::GoldenCase;
using testing::GoldenTopic;
namespace fs = std::filesystem;

at::ScalarType dtype_named(const std::string& name) {
  const auto dtype = files::dtype_of_torch_name(name);
  if (!dtype) throw std::runtime_error("a dtype that is not known: " + name);
  return torch_dtype(*dtype);
}

// Element i of tensor number t, as the golden cases' README has it.
at::Tensor values_of(const std::vector<int64_t>& shape, const std::string& dtype, int64_t t) {
  const int64_t numel = at::empty(shape).numel();
  at::Tensor whole = (7919 * at::arange(numel) + 104729 * t).remainder(2003) - 1001;
  if (dtype == "bool") return whole.remainder(2).eq(0).view(shape);
  if (dtype == "uint8") return whole.remainder(256).to(at::kByte).view(shape);
  if (dtype == "int8") return whole.remainder(127).to(at::kChar).view(shape);
  if (dtype.rfind("int", 0) == 0) return whole.to(dtype_named(dtype)).view(shape);
  return whole.to(at::kDouble).div(1000).to(dtype_named(dtype)).view(shape);
}

struct TreeModule : torch::nn::Module {};

// A module of a tree; parameters and buffers are numbered apart, parameters of the whole tree first.
class TreeBuilder {
 public:
  std::shared_ptr<TreeModule> build(const json& tree) {
    auto module = make(tree);
    fill(*module);
    return module;
  }

 private:
  struct Made {
    at::Tensor tensor;
    std::string dtype;
    bool is_parameter;
  };

  at::Tensor tensor_for(const json& item, bool is_parameter) {
    const int tie = item.value("tie", -1);
    if (tie >= 0 && ties_.count(tie)) return ties_.at(tie);
    const std::string dtype = item.at("dtype");
    at::Tensor tensor =
        at::zeros(item.at("shape").get<std::vector<int64_t>>(), at::TensorOptions().dtype(dtype_named(dtype)));
    (is_parameter ? parameters_ : buffers_).push_back({tensor, dtype, is_parameter});
    if (tie >= 0) ties_.emplace(tie, tensor);
    return tensor;
  }

  std::shared_ptr<TreeModule> make(const json& tree) {
    auto module = std::make_shared<TreeModule>();
    for (const auto& item : tree.value("params", json::array())) {
      module->register_parameter(item.at("name"), tensor_for(item, true), false);
    }
    for (const auto& item : tree.value("buffers", json::array())) {
      const at::Tensor buffer = tensor_for(item, false);  // one that is not persistent has its number all the same
      if (item.value("persistent", true)) module->register_buffer(item.at("name"), buffer);
    }
    for (const auto& child : tree.value("children", json::array()))
      module->register_module(child.at(0), make(child.at(1)));
    return module;
  }

  void fill(TreeModule&) {
    int64_t t = 0;
    for (const auto* list : {&parameters_, &buffers_}) {
      for (const auto& made : *list) made.tensor.copy_(values_of(made.tensor.sizes().vec(), made.dtype, t++));
    }
  }

  std::map<int, at::Tensor> ties_;
  std::vector<Made> parameters_, buffers_;
};

json facts_of(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.detach().to(at::kDouble).contiguous().view(-1);
  const auto shown = [&](int64_t i) -> json {
    const double value = flat[i].item<double>();
    return tensor.scalar_type() == at::kBool ? json(value != 0) : json(value);
  };
  json first = json::array(), last = json::array();
  for (int64_t i = 0; i < std::min<int64_t>(4, flat.numel()); ++i) first.push_back(shown(i));
  for (int64_t i = std::max<int64_t>(0, flat.numel() - 2); i < flat.numel(); ++i) last.push_back(shown(i));
  return {{"shape", tensor.sizes().vec()},
          {"dtype", std::string(files::torch_name(file_dtype(tensor.scalar_type())))},
          {"sum", flat.sum().item<double>()},
          {"abs_sum", flat.abs().sum().item<double>()},
          {"first", first},
          {"last", last}};
}

json facts_of(const torch::nn::Module& module) {
  json all = json::object();
  for (const auto& [name, tensor] : state_dict(module)) all[name] = facts_of(tensor);
  return all;
}

std::vector<std::string> files_in(const std::string& folder) {
  std::vector<std::string> names;
  if (!fs::exists(folder)) return names;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) names.push_back(fs::relative(entry.path(), folder).string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string size_text(const json& size) {
  return size.is_string() ? size.get<std::string>() : std::to_string(size.get<int64_t>());
}

std::function<bool(const GoldenCase&)> of_families(std::set<std::string> families) {
  return [families](const GoldenCase& golden) { return families.count(golden.family) > 0; };
}

// Errors are compared by who can mend them: Python's several classes are UsageError or DataError here.
json error_given(const GoldenCase& golden, const std::function<json()>& run) {
  const std::set<std::string> usage{"ValueError", "RuntimeError", "KeyError"};
  const std::set<std::string> data{"FileNotFoundError", "SafetensorError", "JSONDecodeError", "UnpicklingError",
                                   "OSError"};
  const std::string expected = golden.expected.value("error", "");
  try {
    return run();
  } catch (const UsageError& error) {
    return usage.count(expected) ? testing::golden_error(expected) : json{{"error", error.what()}};
  } catch (const DataError& error) {
    // A file of another framework is the file's fault here, and a value that is none with the peers.
    const bool is_of_file =
        expected == "ValueError" && text(error.what()).find("are not PyTorch's") != std::string::npos;
    return data.count(expected) || is_of_file ? testing::golden_error(expected) : json{{"error", error.what()}};
  } catch (const std::exception& error) {
    return {{"error", error.what()}};
  }
}

class WeightsGolden : public testing::InFolder {};

// Bytes before the values of a safetensors file.
uint64_t head_bytes(const std::string& path) {
  uint64_t bytes = 0;
  std::ifstream(path, std::ios::binary).read(reinterpret_cast<char*>(&bytes), sizeof(bytes));
  return bytes + sizeof(bytes);
}

json saved_facts(const std::string& folder) {
  json stored = json::array();
  std::set<std::string> names;
  json index = nullptr, bytes = json::object();
  for (const auto& name : files_in(folder)) {
    bytes[name] = fs::file_size(folder + "/" + name);
    if (name.ends_with(".json")) {
      index = json::parse(std::ifstream(folder + "/" + name));
      continue;
    }
    const auto source = files::open_source(folder + "/" + name);
    names.insert(source->names().begin(), source->names().end());
  }
  for (const auto& name : names) stored.push_back(name);
  return {{"files", files_in(folder)}, {"index", index}, {"stored", stored}, {"bytes", bytes}};
}

TEST_F(WeightsGolden, SaveModelWritesAcceleratesFolders) {
  GoldenTopic topic("checkpoint_sharding", of_families({"save", "views"}));
  topic.tolerate({.relative = 1e-6, .absolute = 1e-6});
  const auto all_names = [](const GoldenCase& golden) {
    json stored = json::array();
    for (const auto& [name, facts] : golden.expected.at("tensors").items()) stored.push_back(name);
    return stored;
  };
  // No tensor is lost: each name that has memory of its own is written.
  topic.on_quirk("tensor-lost", [&](const GoldenCase& golden) -> json { return {{"stored", all_names(golden)}}; });
  topic.on_quirk("no-file-for-empty-model", [](const GoldenCase& golden) -> json {
    const bool safe = golden.input.at("safe_serialization");
    return {{"files", {safe ? "model.safetensors" : "pytorch_model.bin"}}};
  });
  int number = 0;
  topic.for_each([&](const GoldenCase& golden) {
    const auto given = error_given(golden, [&]() -> json {
      const std::string folder = path(text("save", number++));
      std::shared_ptr<torch::nn::Module> module;
      if (golden.family == "views") {
        module = std::make_shared<TreeModule>();
        const at::Tensor base = at::arange(12).to(at::kFloat);
        module->register_parameter("left", base.narrow(0, 0, 6));
        module->register_parameter("right", base.narrow(0, 6, 6));
      } else {
        module = TreeBuilder().build(golden.input.at("model"));
      }
      save_model(state_dict(*module), folder,
                 {.max_shard_size = size_text(golden.input.at("max_shard_size")),
                  .safe_serialization = golden.input.at("safe_serialization")});
      json facts = saved_facts(folder);
      facts["tensors"] = facts_of(*module);
      // What Python wrote reads back the same.
      const std::string theirs = testing::golden_folder() + "/" + golden.input.at("folder").get<std::string>();
      if (!golden.expected.at("files").empty()) {
        const auto before = facts_of(*module);
        const torch::NoGradGuard no_grad;
        for (auto& item : module->parameters()) item.zero_();
        for (auto& item : module->buffers()) item.zero_();
        load_weights(*module, theirs, {.strict = golden.quirks.empty()});
        if (golden.quirks.empty() && facts_of(*module) != before) facts["tensors"] = "Python's folder reads otherwise";
      }
      if (!golden.expected.contains("bytes")) facts.erase("bytes");
      if (facts.contains("bytes")) {
        if (!golden.quirks.empty()) facts["bytes"] = golden.expected.at("bytes");
        for (auto& [name, bytes] : facts["bytes"].items()) {
          if (name.ends_with(".bin") && golden.expected.at("bytes").contains(name)) {
            bytes =
                golden.expected.at("bytes").at(name);  // torch's archive has three records more: docs/differences.md
          } else if (name.ends_with(".safetensors") && golden.quirks.empty() && fs::exists(theirs + "/" + name)) {
            // Values begin at a multiple of 4096 here: what is compared is what comes after the heads.
            bytes = bytes.get<uint64_t>() - head_bytes(folder + "/" + name) + head_bytes(theirs + "/" + name);
          }
        }
      }
      if (!golden.expected.contains("index")) facts.erase("index");
      return facts;
    });
    topic.judge(golden, given);
  });
  topic.finish();
}

TEST_F(WeightsGolden, SavesOverASaveLeaveNothingStale) {
  GoldenTopic topic("checkpoint_sharding", of_families({"overwrite"}));
  const auto fixed_files = [](const GoldenCase& golden) -> json {
    json each = golden.expected.at("files_after_each");
    if (golden.fixed.is_object() && golden.fixed.contains("files_after_second"))
      each[1] = golden.fixed.at("files_after_second");
    return {{"files_after_each", each}, {"load_gives", "new"}};
  };
  topic.on_quirk("stale-files-left", fixed_files);
  topic.on_quirk("stale-weights-loaded", fixed_files);
  int number = 0;
  topic.for_each([&](const GoldenCase& golden) {
    const auto given = error_given(golden, [&]() -> json {
      const std::string folder = text("over", number++);
      for (const auto& name : golden.input.value("before", json::array()))
        write(folder + "/" + name.get<std::string>(), "x");
      auto module = TreeBuilder().build(golden.input.at("model"));
      json each = json::array();
      for (const auto& save : golden.input.at("saves")) {
        if (!each.empty()) {
          const torch::NoGradGuard no_grad;
          for (auto& parameter : module->parameters()) parameter.add_(1);
        }
        save_model(state_dict(*module), path(folder),
                   {.max_shard_size = size_text(save.at("max_shard_size")),
                    .safe_serialization = save.at("safe_serialization")});
        each.push_back(files_in(path(folder)));
      }
      const auto newest = facts_of(*module);
      auto loaded = TreeBuilder().build(golden.input.at("model"));
      load_weights(*loaded, path(folder));
      return {{"files_after_each", each},
              {"files_after_second", each.at(1)},
              {"load_gives", facts_of(*loaded) == newest ? "new" : "old"}};
    });
    topic.judge(golden, given);
  });
  topic.finish();
}

// Maps that leave modules without a device are offload's matter.
bool covers_all(const json& map) {
  if (map.is_null() || map.contains("")) return true;
  return map.contains("0") && map.contains("1");
}

// The float32 tensors of a safetensors file, put into the module: read here anew, apart from the code under test.
void fill_from_safetensors(const std::string& path, torch::nn::Module& module) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  uint64_t head = 0;
  std::memcpy(&head, bytes.data(), sizeof head);
  const json entries = json::parse(bytes.substr(8, head));
  const torch::NoGradGuard no_grad;
  for (auto& item : module.named_parameters()) {
    const uint64_t begin = entries.at(item.key()).at("data_offsets").at(0);
    std::memcpy(item.value().data_ptr(), bytes.data() + 8 + head + begin, item.value().nbytes());
  }
}

// docs/differences.md: where both are there, safetensors is read and not pytorch_model.bin.
json safetensors_first(const GoldenCase& golden) {
  const fs::path folder = testing::golden_folder() + "/" + golden.input.at("folder").get<std::string>();
  const bool has_both = fs::exists(folder / "model.safetensors") && fs::exists(folder / "pytorch_model.bin");
  if (!has_both || !golden.input.at("dtype").is_null() || !golden.expected.contains("tensors")) return {};
  auto module = TreeBuilder().build(golden.input.at("model"));
  fill_from_safetensors(folder / "model.safetensors", *module);
  return {{"tensors", facts_of(*module)}};
}

TEST_F(WeightsGolden, LoadCheckpointInModelsFolders) {
  GoldenTopic topic("checkpoint_sharding", [](const GoldenCase& golden) {
    return golden.family == "load" && covers_all(golden.input.at("device_map"));
  });
  topic.tolerate({.relative = 1e-6, .absolute = 1e-6});
  topic.on_quirk("strict-ignores-missing-keys", [](const GoldenCase&) { return testing::golden_error("ValueError"); });
  topic.on_quirk("dtype-ignored", [](const GoldenCase& golden) -> json {
    json tensors = golden.expected.at("tensors");
    for (auto& [name, facts] : tensors.items()) {
      const auto t = dtype_named(golden.input.at("dtype"));
      at::Tensor sum = at::zeros({}, at::kDouble), abs_sum = at::zeros({}, at::kDouble);
      facts["dtype"] = golden.input.at("dtype");
      for (const char* key : {"first", "last"}) {
        for (auto& value : facts[key]) value = at::full({}, value.get<double>(), at::kDouble).to(t).item<double>();
      }
      (void)sum, (void)abs_sum;
    }
    return {{"tensors", tensors}};
  });
  topic.tolerate({.relative = 2e-3, .absolute = 2e-3});
  topic.on_every_case(safetensors_first);
  topic.for_each([&](const GoldenCase& golden) {
    auto given = error_given(golden, [&]() -> json {
      auto module = TreeBuilder().build(golden.input.at("model"));
      {
        const torch::NoGradGuard no_grad;
        for (auto& parameter : module->parameters()) parameter.zero_();
      }
      LoadWeightsOptions options{.strict = golden.input.at("strict")};
      if (!golden.input.at("dtype").is_null()) options.dtype = dtype_named(golden.input.at("dtype"));
      load_weights(*module, testing::golden_folder() + "/" + golden.input.at("folder").get<std::string>(), options);
      return {{"tensors", facts_of(*module)}};
    });
    if (!golden.quirks.empty() && golden.quirks[0] == "strict-ignores-missing-keys" && given.contains("error") &&
        given["error"].get<std::string>().find("missing (") != std::string::npos) {
      given = testing::golden_error("ValueError");
    }
    topic.judge(golden, given);
  });
  topic.finish();
}

TEST_F(WeightsGolden, SaveStateWritesAcceleratesLayout) {
  GoldenTopic topic("checkpoint_sharding", of_families({"layout"}));
  int number = 0;
  topic.for_each([&](const GoldenCase& golden) {
    const std::string folder = path(text("layout", number++));
    const auto given = error_given(golden, [&]() -> json {
      testing::run_ranks(testing::num_ranks_of(golden), [&](auto& process) {
        AcceleratorOptions options{.tune_allocator = false};
        options.project.project_dir = folder;
        options.project.automatic_checkpoint_naming = golden.input.at("automatic_checkpoint_naming");
        if (!golden.input.at("total_limit").is_null())
          options.project.total_limit = golden.input.at("total_limit").template get<int64_t>();
        Accelerator accelerator(process, options);
        std::vector<testing::Mlp> nets(golden.input.at("models").template get<size_t>());
        std::vector<std::unique_ptr<torch::optim::SGD>> optimizers;
        std::vector<std::unique_ptr<optim::StepLR>> schedulers;
        std::vector<parallel::PreparedModel<testing::Mlp>> models;
        for (auto& net : nets) {
          optimizers.push_back(std::make_unique<torch::optim::SGD>(net->parameters(), 0.1));
          schedulers.push_back(
              std::make_unique<optim::StepLR>(*optimizers.back(), optim::StepLROptions{.step_size = 1}));
          models.push_back(accelerator.prepare(net));
        }
        std::vector<optim::PreparedOptimizer<torch::optim::SGD>> prepared;
        std::vector<optim::PreparedScheduler<optim::StepLR>> paced;
        for (auto& optimizer : optimizers) prepared.push_back(accelerator.prepare(*optimizer));
        for (auto& scheduler : schedulers) paced.push_back(accelerator.prepare(*scheduler));
        for (int64_t i = 0; i < golden.input.at("saves").template get<int64_t>(); ++i) {
          const bool automatic = options.project.automatic_checkpoint_naming;
          accelerator.save_state(
              automatic ? "" : folder + "/out",
              {.layout = Layout::kAccelerate, .safe_serialization = golden.input.at("safe_serialization")});
        }
        accelerator.end_training();
      });
      // hasten.json, and the lock of the run, are files that Accelerate ignores.
      auto names = files_in(folder);
      std::erase_if(names, [](const std::string& name) {
        return name.find("hasten.json") != std::string::npos || name.find(".hasten.lock") != std::string::npos;
      });
      return {{"files", names}};
    });
    topic.judge(golden, given);
  });
  topic.finish();
}

}  // namespace
}  // namespace hasten::checkpoint
