// Names matched, then tensors read; see weights.h.
#include <ATen/Functions.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>

#include "checkpoint/parts.h"
#include "checkpoint/source_reader.h"
#include "compat/versions.h"
#include "hasten/checkpoint/python_tensor.h"
#include "hasten/checkpoint/weights.h"
#include "hasten/comm/group/group.h"
#include "hasten/comm/nested/objects.h"
#include "hasten/comm/types/purpose.h"
#include "hasten/compat/storage_watch.h"
#include "hasten/core/error.h"
#include "hasten/files/base/box.h"
#include "hasten/files/folders/open_source.h"
#include "hasten/files/python/python_file.h"
#include "hasten/interception/interceptor.h"
#include "hasten/offload/units/device_writes.h"
#include "hasten/parallel/layout/placement.h"
#include "hasten/parallel/layout/stages.h"

namespace hasten::checkpoint {
namespace {

// Wrappers put these before all names.
constexpr std::string_view kPrefixes[] = {"module.", "_orig_mod."};

std::string renamed(std::string name, const std::vector<std::pair<std::string, std::string>>& rename) {
  for (const auto& [from, to] : rename) {
    if (name.rfind(from, 0) == 0) return to + name.substr(from.size());
  }
  return name;
}

// The prefix that all names have, taken off as often as there is one.
std::string common_prefix(const std::vector<std::string>& names) {
  std::string prefix;
  for (bool found = !names.empty(); found;) {
    found = false;
    for (const auto each : kPrefixes) {
      const std::string longer = prefix + std::string(each);
      if (std::all_of(names.begin(), names.end(),
                      [&](const std::string& name) { return name.rfind(longer, 0) == 0; })) {
        prefix = longer;
        found = true;
      }
    }
  }
  return prefix;
}

class StateDictSource : public files::TensorSource {
 public:
  StateDictSource(const StateDict& state, std::string path)
      : state_(state), names_(state.names()), path_(std::move(path)) {
    for (const auto& [name, tensor] : state_) infos_.emplace(name, info_of(name, tensor));
  }
  const std::vector<std::string>& names() const override { return names_; }
  bool contains(std::string_view name) const override { return state_.contains(name); }
  const files::TensorInfo& info(std::string_view name) const override {
    state_.at(name);
    return infos_.at(std::string(name));
  }
  void read(std::string_view name, const files::Box& box, void* target) const override {
    at::Tensor part = state_.at(name);
    if (!files::fits(box, info(name).shape)) {
      throw UsageError(Origin{"checkpoint"}, "the box ", files::describe(box), " lies outside of '", name, "'.");
    }
    for (size_t d = 0; d < box.size.size(); ++d)
      part = part.narrow(static_cast<int64_t>(d), box.offset[d], box.size[d]);
    at::from_blob(target, box.size, part.options().device(at::kCPU).requires_grad(false)).copy_(part.detach());
  }
  std::optional<files::TensorLocation> location(std::string_view) const override { return {}; }
  const std::string& path() const override { return path_; }
  std::string_view form() const override { return "state_dict"; }

 private:
  StateDict state_;
  std::vector<std::string> names_;
  std::map<std::string, files::TensorInfo> infos_;
  std::string path_;
};

std::vector<WantedTensor> wanted_of(const torch::nn::Module& module, const std::vector<std::string>& exclude) {
  std::vector<WantedTensor> requested;
  for (const auto& [name, tensor] : parts_dict(module, exclude)) requested.push_back({name, tensor});
  return requested;
}

// Floating parameters and buffers take the dtype; their identity stays.
void cast_module(torch::nn::Module& module, c10::ScalarType dtype, const std::vector<std::string>& exclude) {
  if (parallel::has_parts(module) || parallel::has_stages(module)) {
    throw UsageError(Origin{"checkpoint"},
                     "LoadWeightsOptions::dtype of a model that is cut over ranks: its parameters "
                     "would no longer be known as parts. Convert the model before prepare.");
  }
  const at::NoGradGuard no_grad;
  const auto cast = [&](const std::string& name, at::Tensor tensor) {
    const bool left =
        std::any_of(exclude.begin(), exclude.end(), [&](const auto& each) { return matches_pattern(name, each); });
    if (!left && tensor.defined() && tensor.is_floating_point()) tensor.set_data(tensor.to(dtype));
  };
  for (const auto& item : module.named_parameters()) cast(item.key(), item.value());
  for (const auto& item : module.named_buffers()) cast(item.key(), item.value());
}

// Where a tensor's values lie. A storage without memory of its own, as of parameters in parts, stands for itself.
const void* place_of_values(const at::Tensor& tensor) {
  if (!tensor.has_storage() || tensor.storage().data() != nullptr) return tensor.const_data_ptr();
  return tensor.storage().unsafeGetStorageImpl();
}

std::string listed(const char* title, const std::vector<std::string>& names) {
  constexpr size_t kMost = 20;
  if (names.empty()) return {};
  std::vector<std::string> shown(names.begin(),
                                 names.begin() + static_cast<std::ptrdiff_t>(std::min(names.size(), kMost)));
  return text("; ", title, " (", names.size(), "): ", hasten::join(shown), names.size() > kMost ? " …" : "");
}

}  // namespace

WeightMatch match_weights(const std::vector<WantedTensor>& requested, const files::TensorSource& source,
                          const std::vector<std::string>& names,
                          const std::vector<std::pair<std::string, std::string>>& rename) {
  const size_t prefix = common_prefix(names).size();
  std::unordered_map<std::string, std::string> there;  // name here → name in the source
  for (const auto& name : names) there.emplace(renamed(name.substr(prefix), rename), name);
  WeightMatch match;
  // By memory; a part without elements is found by its parameter.
  std::set<const void*> matched;
  std::unordered_map<std::string, bool> known;
  std::vector<size_t> open;
  for (size_t i = 0; i < requested.size(); ++i) {
    known.emplace(requested[i].name, true);
    const auto found = there.find(requested[i].name);
    if (found == there.end()) {
      open.push_back(i);
      continue;
    }
    const auto& info = source.info(found->second);
    if (const auto sizes = parallel::whole_sizes(requested[i].tensor); sizes != info.shape) {
      match.mismatched.push_back(
          text(requested[i].name, " [", hasten::join(info.shape), "] in the file, [", hasten::join(sizes), "] here"));
      continue;
    }
    match.pairs.emplace_back(i, found->second);
    matched.insert(place_of_values(requested[i].tensor));
    matched.insert(requested[i].tensor.unsafeGetTensorImpl());
  }
  for (const size_t i : open) {
    const bool is_tied = matched.count(requested[i].tensor.unsafeGetTensorImpl()) > 0 ||
                         (requested[i].tensor.numel() > 0 && matched.count(place_of_values(requested[i].tensor)) > 0);
    if (!is_tied) match.missing.push_back(requested[i].name);
  }
  for (const auto& name : names) {
    if (!known.count(renamed(name.substr(prefix), rename))) match.unexpected.push_back(name);
  }
  return match;
}

std::string describe(const WeightMatch& match, const std::vector<WantedTensor>& requested) {
  std::vector<std::string> names;
  for (const auto& each : requested) names.push_back(each.name);
  std::vector<std::string> unexpected;
  for (const auto& name : match.unexpected) unexpected.push_back(name + did_you_mean(name, names));
  std::string all =
      listed("missing", match.missing) + listed("unexpected", unexpected) + listed("mismatched", match.mismatched);
  return all.empty() ? all : all.substr(2);
}

void read_into(const at::Tensor& target, const files::TensorSource& source, const std::string& name,
               bool through_copy) {
  const at::NoGradGuard no_grad;
  const auto& info = source.info(name);
  const auto dtype = torch_dtype(info.dtype);
  if (parallel::placed_by(target) != nullptr) return parallel::copy_part_(target, read_tensor(source, name));
  const at::Tensor plain = target.detach();
  if (!through_copy && plain.device().is_cpu() && plain.is_contiguous() && plain.scalar_type() == dtype &&
      plain.numel() > 0) {
    source.read_all(name, plain.mutable_data_ptr());
    compat::bump_version(target);
    compat::notify_changed(target);
    return;
  }
  at::Tensor read = at::empty(info.shape, at::TensorOptions().dtype(dtype));
  if (read.numel() > 0) source.read_all(name, read.mutable_data_ptr());
  plain.copy_(read);
}

namespace {

// As read_into; devices are written to through a ring.
void read_by(offload::DeviceWrites& writes, const at::Tensor& target, const files::TensorSource& source,
             const std::string& name) {
  const auto& info = source.info(name);
  const bool is_plain = interception::interceptors_of(target, interception::Level::kEveryOperator).empty() &&
                        target.sizes() == at::IntArrayRef(info.shape);
  if (target.is_cpu() || !is_plain) return read_into(target, source, name);
  const at::NoGradGuard no_grad;
  const at::Tensor read = at::empty(info.shape, at::TensorOptions().dtype(torch_dtype(info.dtype)));
  if (read.numel() > 0) source.read_all(name, read.mutable_data_ptr());
  if (writes.put(target, read)) {
    compat::bump_version(target);
    compat::notify_changed(target);
  } else {
    target.detach().copy_(read);
  }
}

void read_together(const std::vector<WantedTensor>& requested, const WeightMatch& match,
                   const files::TensorSource& source, const comm::Group& share) {
  SourceReader reader(source);
  for (const auto& [index, name] : match.pairs) {
    if (!parallel::is_elsewhere(requested[index].tensor))
      reader.into(requested[index].tensor, name, /*through_copy=*/false);
  }
  const comm::Purpose purpose("load_weights");
  const auto digests = comm::gather_object(share, reader.shared_digest());
  const bool alike = std::all_of(digests.begin(), digests.end(), [&](const auto& each) { return each == digests[0]; });
  reader.read(alike ? &share : nullptr);
}

}  // namespace

WeightsReport load_weights(torch::nn::Module& module, const files::TensorSource& source,
                           const LoadWeightsOptions& options) {
  const auto requested = wanted_of(module, options.exclude);
  const auto match = match_weights(requested, source, source.names(), options.rename);
  WeightMatch wrong = match;
  if (!options.strict) wrong.missing.clear(), wrong.unexpected.clear();
  if (const std::string words = describe(wrong, requested); !words.empty()) {
    throw UsageError(Origin{"checkpoint"}, "'", source.path(), "' does not fit the module: ", words,
                     ". Rename (LoadWeightsOptions::rename), or load what fits with strict = false.");
  }
  if (options.dtype) cast_module(module, *options.dtype, options.exclude);
  // set_data gives tensors other memory: the list is made anew.
  const auto now = options.dtype ? wanted_of(module, options.exclude) : requested;
  if (options.share != nullptr && options.share->world_size() > 1) {
    read_together(now, match, source, *options.share);
  } else {
    offload::DeviceWrites writes;
    for (const auto& [index, name] : match.pairs) {
      if (!parallel::is_elsewhere(now[index].tensor)) read_by(writes, now[index].tensor, source, name);
    }
    writes.finish();
  }
  return {match.missing, match.unexpected, source.remarks()};
}

WeightsReport load_weights(torch::nn::Module& module, const std::string& path, const LoadWeightsOptions& options) {
  return load_weights(module, *files::open_source(path), options);
}

WeightsReport load_weights(torch::nn::Module& module, const files::PythonValue& value,
                           const LoadWeightsOptions& options) {
  return load_weights(module, *files::python_source(value, "the Python value"), options);
}

WeightsReport load_weights(torch::nn::Module& module, const StateDict& state, const LoadWeightsOptions& options) {
  return load_weights(module, *source_of(state), options);
}

files::TensorSourcePtr source_of(const StateDict& state, const std::string& path) {
  return std::make_shared<StateDictSource>(state, path);
}

}  // namespace hasten::checkpoint
