// Names and tensors of modules in Python's order; see state_dict.h.
#include "hasten/checkpoint/state_dict.h"

#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/instancenorm.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <unordered_map>

#include "hasten/core/error.h"
#include "hasten/core/sentence.h"
#include "hasten/parallel/layout/placement.h"
#include "hasten/parallel/layout/stages.h"
#include "hasten/parallel/shard/in_parts.h"

namespace hasten::checkpoint {
namespace {

// Python's classes of batch and instance norm have version 2, since their state counts batches.
int64_t version_of(const torch::nn::Module& module) {
  using namespace torch::nn;
  const auto* one = &module;
  const bool is_norm = dynamic_cast<const BatchNorm1dImpl*>(one) || dynamic_cast<const BatchNorm2dImpl*>(one) ||
                       dynamic_cast<const BatchNorm3dImpl*>(one) || dynamic_cast<const InstanceNorm1dImpl*>(one) ||
                       dynamic_cast<const InstanceNorm2dImpl*>(one) || dynamic_cast<const InstanceNorm3dImpl*>(one);
  return is_norm ? 2 : 1;
}

// What tensors share that show the same elements, whether their storage has memory now or not.
using SameElements = std::tuple<const c10::StorageImpl*, int64_t, std::vector<int64_t>, std::vector<int64_t>>;
SameElements elements_of(const at::Tensor& tensor) {
  return {tensor.storage().unsafeGetStorageImpl(), tensor.storage_offset(), tensor.sizes().vec(),
          tensor.strides().vec()};
}

bool is_excluded(const std::string& name, const StateDictOptions& options) {
  return std::any_of(options.exclude.begin(), options.exclude.end(),
                     [&](const std::string& pattern) { return matches_pattern(name, pattern); });
}

// Whole values of cut parameters, so that tied ones stay one tensor; and where buffers lie.
struct Gathered {
  const parallel::StagedParameters* stages = nullptr;
  std::unordered_map<const c10::TensorImpl*, at::Tensor> values = {};
};

at::Tensor whole_of(const at::Tensor& parameter, Gathered& gathered) {
  at::Tensor& whole = gathered.values[parameter.unsafeGetTensorImpl()];
  if (!whole.defined()) whole = parallel::gather_parameter(parameter);
  return whole;
}

void collect(const torch::nn::Module& module, const std::string& path, const StateDictOptions& options,
             Gathered& gathered, StateDict& out) {
  out.versions.emplace_back(path.empty() ? path : path.substr(0, path.size() - 1), version_of(module));
  const auto keep = [&](const std::string& name, const at::Tensor& tensor) {
    if (tensor.defined()) out.set(options.prefix + path + name, options.keep_vars ? tensor : tensor.detach());
  };
  for (const auto& item : module.named_parameters(false)) {
    // One at a time, so that a rank holds no more than one whole one beside what it returns.
    const bool is_part = item.value().defined() &&
                         (parallel::placed_by(item.value()) != nullptr || parallel::staged_by(item.value()) != nullptr);
    keep(item.key(), is_part && !options.keep_vars ? whole_of(item.value(), gathered) : item.value());
  }
  for (const auto& item : module.named_buffers(false)) {
    if (is_excluded(path + item.key(), options)) continue;
    // Running statistics are those of the stage that computes them.
    const bool is_staged = gathered.stages != nullptr && !options.keep_vars && item.value().defined();
    keep(item.key(), is_staged ? gathered.stages->from_holder(item.value(), item.value()) : item.value());
  }
  for (const auto& child : module.named_children()) {
    collect(*child.value(), path + child.key() + ".", options, gathered, out);
  }
}

}  // namespace

void StateDict::set(const std::string& name, at::Tensor tensor) {
  const auto [place, is_new] = index_.emplace(name, items_.size());
  if (is_new) {
    items_.emplace_back(name, std::move(tensor));
  } else {
    items_[place->second].second = std::move(tensor);
  }
}

const at::Tensor* StateDict::find(std::string_view name) const noexcept {
  const auto found = index_.find(std::string(name));
  return found == index_.end() ? nullptr : &items_[found->second].second;
}

const at::Tensor& StateDict::at(std::string_view name) const {
  if (const auto* tensor = find(name)) return *tensor;
  throw UsageError(Origin{"checkpoint"}, "a state_dict of ", size(), " tensors has no '", name, "'",
                   guess_end(name, names()));
}

std::vector<std::string> StateDict::names() const {
  std::vector<std::string> all;
  all.reserve(items_.size());
  for (const auto& item : items_) all.push_back(item.first);
  return all;
}

StateDict state_dict(const torch::nn::Module& module, const StateDictOptions& options) {
  StateDict out;
  Gathered gathered{parallel::stages_of(module)};
  collect(module, "", options, gathered, out);
  return out;
}

StateDict converted(const StateDict& state, int rank, const GetStateDictOptions& options) {
  StateDict out;
  if (options.rank0_only && rank != 0) {
    whole(state, /*keep=*/false);
    return out;
  }
  out.versions = state.versions;
  // The memory of a tensor in parts goes with the next read of another, so copies leave the device.
  for (const auto& [name, tensor] : whole(state)) {
    at::Tensor own = tensor;
    if (options.device) own = own.to(*options.device);
    if (options.dtype && own.is_floating_point()) own = own.to(*options.dtype);
    out.set(name, own);
  }
  return out;
}

StateDict whole(const StateDict& state, bool keep) {
  const at::NoGradGuard no_grad;
  StateDict out;
  out.versions = state.versions;
  std::map<SameElements, at::Tensor> copies;  // tied ones stay one tensor
  for (const auto& [name, tensor] : state) {
    if (!parallel::is_in_parts(tensor)) {
      if (keep) out.set(name, tensor);
      continue;
    }
    const auto [copy, is_new] = copies.emplace(elements_of(tensor), at::Tensor());
    if (is_new && keep) copy->second = tensor.to(at::kCPU, false, true);
    if (is_new && !keep) tensor.flatten().narrow(0, 0, std::min<int64_t>(tensor.numel(), 1)).clone();
    if (keep) out.set(name, copy->second);
  }
  return out;
}

bool matches_pattern(std::string_view name, std::string_view pattern) noexcept {
  size_t n = 0, p = 0, star = std::string_view::npos, from = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      from = n;
    } else if (p < pattern.size() && pattern[p] == name[n]) {
      ++p;
      ++n;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      n = ++from;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

}  // namespace hasten::checkpoint
