// See parts.h.
#include "checkpoint/parts.h"

#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <functional>
#include <unordered_map>

#include "hasten/core/error.h"
#include "hasten/parallel/ddp/distributed_models.h"
#include "hasten/parallel/layout/layout.h"
#include "hasten/parallel/layout/placement.h"
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

}  // namespace

StateDict parts_dict(const torch::nn::Module& module, const std::vector<std::string>& exclude) {
  const at::NoGradGuard no_grad;
  StateDict out = state_dict(module, {.keep_vars = true, .exclude = exclude});
  for (const auto& [name, tensor] : StateDict(out)) {
    if (parallel::placed_by(tensor) == nullptr) out.set(name, tensor.detach());
  }
  return out;
}

bool has_parts(const RunParts& run) {
  const auto modules = run.models->modules();
  return std::any_of(modules.begin(), modules.end(), [](const auto* module) { return parallel::has_parts(*module); });
}

bool counts_for(const RunParts& run, const at::Tensor& parameter) {
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
}

void require_known_parts(const RunParts& run, const torch::optim::Optimizer& optimizer, const char* what) {
  const auto* const codec = find_codec(optimizer);
  if (codec != nullptr && std::string(codec->name) != "LBFGS") return;
  for (const auto& place : places_of(optimizer, {})) {
    if (parallel::placed_by(place.parameter) == nullptr) continue;
    throw UsageError(Origin{"checkpoint", run.process.rank(), run.process.world_size()}, what, " of ",
                     codec == nullptr ? "an optimizer of a class without a codec" : codec->name,
                     " with tp: its state is not known by parameter, and the parameters are cut. Use one of libtorch's "
                     "optimizers but LBFGS, or specialise checkpoint::OptimizerCodec for its class.");
  }
}

}  // namespace hasten::checkpoint
