// See parts.h.
#include "checkpoint/parts.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <functional>
#include <unordered_map>
#include <unordered_set>

#include "hasten/comm/nested/objects.h"
#include "hasten/core/error.h"
#include "hasten/interception/interceptor.h"
#include "hasten/parallel/ddp/distributed_models.h"
#include "hasten/parallel/layout/layout.h"
#include "hasten/parallel/layout/placement.h"
#include "hasten/parallel/layout/stages.h"
#include "hasten/parallel/shard/sharding.h"
#include "hasten/plan/layout.h"

namespace hasten::checkpoint {
namespace {

using OfTensor = std::function<at::Tensor(const at::Tensor&)>;

training::State changed(const training::State& state, at::IntArrayRef sizes, const OfTensor& change) {
  if (state.is_tensor()) return state.tensor().sizes() == sizes ? training::State(change(state.tensor())) : state;
  if (!state.is_map()) return state;
  training::State::Map map;
  for (const auto& [name, child] : state.map()) map.emplace_back(name, changed(child, sizes, change));
  return map;
}

using Sizes = std::function<std::vector<int64_t>(const at::Tensor& parameter)>;
using Change = std::function<at::Tensor(const at::Tensor& parameter, const at::Tensor& value)>;

// The tensors of cut parameters that have the given sizes.
void change_state(OptimizerState& state, const std::vector<Place>& places, const Sizes& sizes, const Change& change) {
  std::unordered_map<std::string, at::Tensor> cut;
  for (const auto& place : places) {
    if (parallel::placed_by(place.parameter) != nullptr) cut.emplace(place.name, place.parameter);
  }
  if (cut.empty()) return;
  for (auto& [name, slots] : state.state) {
    const auto found = cut.find(name);
    if (found == cut.end()) continue;
    const auto of = [&](const at::Tensor& value) { return change(found->second, value); };
    slots = changed(training::State(slots), sizes(found->second), of).map();
  }
}

// The tensors of a state as [path, dtype, sizes…], beside its plain values.
core::Value described_state(const training::SplitState& split) {
  core::Value tensors = core::Value::list();
  for (const auto& [path, tensor] : split.tensors) {
    core::Value one = core::Value::list({path, static_cast<int64_t>(tensor.scalar_type())});
    for (const int64_t size : tensor.sizes()) one.push_back(size);
    tensors.push_back(std::move(one));
  }
  return core::Value::map({{"value", split.value}, {"tensors", std::move(tensors)}});
}

// Gives the slots of a parameter, that its first holder has, to all stages. Empty: it has none.
Slots shared_slots(const parallel::StagedParameters& stages, const at::Tensor& parameter, const Slots& own) {
  const int root = stages.first_holder(parameter);
  const auto& group = stages.group();
  training::SplitState split;
  std::string words;
  if (group.rank() == root && !own.empty()) {
    split = training::split_tensors(training::State(own));
    words = described_state(split).to_json();
  }
  words = comm::broadcast_object(group, words, root);
  if (words.empty()) return {};
  const core::Value described = core::Value::parse_json(words);
  std::unordered_map<std::string, at::Tensor> values;
  size_t next = 0;
  for (const auto& one : described.at("tensors").as_list()) {
    const auto& list = one.as_list();
    std::vector<int64_t> sizes;
    for (size_t i = 2; i < list.size(); ++i) sizes.push_back(list[i].as_int());
    const auto dtype = static_cast<at::ScalarType>(list[1].as_int());
    const at::Tensor value = group.rank() == root ? split.tensors[next++].second.detach().cpu().contiguous()
                                                  : at::empty(sizes, at::TensorOptions(dtype));
    group.broadcast_(value, root);
    values.emplace(list[0].as_string(), value);
  }
  return training::join_tensors(described.at("value"), [&](const std::string& path) { return values.at(path); }).map();
}

// Collective over the pipeline.
void share_over_stages(OptimizerState& state, const std::vector<Place>& places) {
  const interception::PassScope pass;
  std::unordered_set<std::string> done;
  for (const auto& place : places) {
    const auto* const stages = parallel::staged_by(place.parameter);
    if (stages == nullptr || !done.insert(place.name).second) continue;
    const auto found = std::find_if(state.state.begin(), state.state.end(),
                                    [&](const auto& item) { return item.first == place.name; });
    auto shared = shared_slots(*stages, place.parameter, found == state.state.end() ? Slots() : found->second);
    if (shared.empty()) continue;
    if (found == state.state.end()) {
      state.state.emplace_back(place.name, std::move(shared));
    } else {
      found->second = std::move(shared);
    }
  }
}

}  // namespace

StateDict parts_dict(const torch::nn::Module& module, const std::vector<std::string>& exclude) {
  const at::NoGradGuard no_grad;
  StateDict out = state_dict(module, {.keep_vars = true, .exclude = exclude});
  for (const auto& [name, tensor] : StateDict(out)) {
    if (!is_part(tensor)) out.set(name, tensor.detach());
  }
  return out;
}

bool has_parts(const RunParts& run) {
  const auto modules = run.models->modules();
  return std::any_of(modules.begin(), modules.end(),
                     [](const auto* module) { return parallel::has_parts(*module) || parallel::has_stages(*module); });
}

bool is_part(const at::Tensor& parameter) {
  return parallel::placed_by(parameter) != nullptr || parallel::staged_by(parameter) != nullptr;
}

bool counts_for(const RunParts& run, const at::Tensor& parameter) {
  if (!parallel::counts_on_this_stage(parameter)) return false;
  return run.layout == nullptr || run.layout->tensor().rank() == 0 || parallel::placed_by(parameter) != nullptr;
}

int stream_of(const RunParts& run) {
  return run.layout == nullptr ? run.process.rank() : run.layout->data().rank();
}

int num_streams(const RunParts& run) {
  return run.layout == nullptr ? run.process.world_size() : run.layout->data().world_size();
}

int first_rank_of_stream(const RunParts& run) {
  if (run.layout == nullptr || !run.layout->divides_model()) return run.process.rank();
  const auto ranks = plan::group_of(
      run.layout->sizes(), {plan::Axis::kPp, plan::Axis::kCp, plan::Axis::kSp, plan::Axis::kTp}, run.process.rank());
  return ranks.front();
}

void cut_state(OptimizerState& state, const std::vector<Place>& places) {
  std::unordered_set<std::string> elsewhere;
  for (const auto& place : places) {
    if (parallel::is_elsewhere(place.parameter)) elsewhere.insert(place.name);
  }
  std::erase_if(state.state, [&](const auto& item) { return elsewhere.contains(item.first); });
  change_state(
      state, places, [](const at::Tensor& parameter) { return parallel::whole_sizes(parameter); },
      [](const at::Tensor& parameter, const at::Tensor& value) {
        return parallel::part_as(parameter, value).contiguous();
      });
}

void gather_state(OptimizerState& state, const std::vector<Place>& places) {
  change_state(
      state, places, [](const at::Tensor& parameter) { return parameter.sizes().vec(); },
      [](const at::Tensor& parameter, const at::Tensor& value) { return parallel::gather_as(parameter, value); });
  share_over_stages(state, places);
}

void keep_own_slices(const RunParts& run, const torch::optim::Optimizer& optimizer, OptimizerState& state,
                     const std::vector<Place>& places) {
  if (run.sharding == nullptr || !run.sharding->steps(optimizer)) return;
  std::unordered_map<std::string, at::Tensor> parameters;
  for (const auto& place : places) parameters.emplace(place.name, place.parameter);
  std::erase_if(state.state, [&](auto& item) {
    const auto found = parameters.find(item.first);
    if (found == parameters.end()) return false;
    const at::Tensor& parameter = found->second;
    const auto own = run.sharding->stepped_interval(optimizer, parameter);
    if (!own) return false;
    const auto slice = [&](const at::Tensor& value) {
      const at::Tensor laid = at::empty_strided(parameter.sizes(), parameter.strides(), value.options()).copy_(value);
      return laid.as_strided({laid.numel()}, {1}).narrow(0, own->begin, own->size()).clone();
    };
    if (own->size() > 0) item.second = changed(training::State(item.second), parameter.sizes(), slice).map();
    return own->size() == 0;  // another rank's
  });
}

LoadOptimizerOptions options_for_own_state(const RunParts& run, const torch::optim::Optimizer& optimizer) {
  LoadOptimizerOptions options{.is_own = true};
  if (run.sharding == nullptr) return options;
  const auto& shard = run.sharding->options();
  const auto none = parallel::OffloadDevice::kNone;
  if (shard.optimizer_offload.device == none && shard.parameter_offload.device == none) return options;
  options.rests_on_host = [sharding = run.sharding, &optimizer](const at::Tensor& parameter) {
    return sharding->stepped_interval(optimizer, parameter).has_value();
  };
  return options;
}

void require_known_parts(const RunParts& run, const torch::optim::Optimizer& optimizer, const char* what) {
  const auto* const codec = find_codec(optimizer);
  if (codec != nullptr && std::string(codec->name) != "LBFGS") return;
  for (const auto& place : places_of(optimizer, {})) {
    if (!is_part(place.parameter)) continue;
    throw UsageError(
        Origin{"checkpoint", run.process.rank(), run.process.world_size()}, what, " of ",
        codec == nullptr ? "an optimizer of a class without a codec" : codec->name,
        " with tp or pp: its state is not known by parameter, and the parameters are in parts. Use one of libtorch's "
        "optimizers but LBFGS, or specialise checkpoint::OptimizerCodec for its class.");
  }
}

}  // namespace hasten::checkpoint
