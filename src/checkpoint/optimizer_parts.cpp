// See optimizer_parts.h.
#include "hasten/checkpoint/optimizer_parts.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "hasten/checkpoint/optimizer_state.h"
#include "hasten/core/text.h"
#include "hasten/optim/fastai.h"
#include "hasten/optim/larc.h"
#include "hasten/parallel/layout/placement.h"
#include "hasten/parallel/layout/stages.h"

namespace hasten::checkpoint {
namespace {

using training::State;
using StatePtr = std::unique_ptr<torch::optim::OptimizerParamState>;

// A slot of a parameter's state, as this rank's part of it.
at::Tensor cut_slot(const at::Tensor& parameter, const at::Tensor& slot, const Origin& origin) {
  const auto* const placed = parallel::placed_by(parameter);
  const auto& place = *placed->placement(parameter);
  if (slot.sizes().vec() == place.sizes) {
    return parallel::part_as(parameter, slot).clone(at::MemoryFormat::Contiguous);
  }
  // Parts, slices of sharded parts, and numbers.
  int64_t part = 1;
  for (size_t i = 0; i < place.sizes.size(); ++i) {
    const bool is_cut = static_cast<int64_t>(i) == place.cut.dim;
    part *= is_cut ? parallel::part_size(place.sizes[i], place.cut.blocks, placed->group().world_size(),
                                         placed->group().rank())
                   : place.sizes[i];
  }
  if (slot.numel() <= std::max<int64_t>(part, 1)) return slot;
  throw UsageError(origin, "an optimizer has state of shape [", join(slot.sizes()),
                   "] from before prepare, for a parameter of shape [", join(place.sizes),
                   "] that is cut over ranks: it is not known how it is cut. Load the state after prepare.");
}

State cut_slots(const at::Tensor& parameter, const State& state, const Origin& origin) {
  if (state.is_tensor()) return State(cut_slot(parameter, state.tensor(), origin));
  if (!state.is_map()) return state;
  State::Map map;
  for (const auto& [name, part] : state.map()) map.emplace_back(name, cut_slots(parameter, part, origin));
  return State(std::move(map));
}

void cut_fastai(const at::Tensor& parameter, optim::fastai::State& state, const Origin& origin) {
  for (at::Tensor* const slot : {&state.grad_avg(), &state.sqr_avg(), &state.slow()}) {
    if (slot->defined()) *slot = cut_slot(parameter, *slot, origin);
  }
}

void cut_one(const AnyOptimizerCodec* codec, const at::Tensor& parameter, StatePtr& state, const Origin& origin) {
  if (auto* const fastai = dynamic_cast<optim::fastai::State*>(state.get())) {
    return cut_fastai(parameter, *fastai, origin);
  }
  if (codec == nullptr) {
    throw UsageError(origin,
                     "an optimizer of a class without a codec has state from before prepare, for a parameter that is "
                     "cut over ranks: it is not known how it is cut. Load the state after prepare.");
  }
  state = codec->make_state(cut_slots(parameter, State(codec->state(*state)), origin).map());
}

}  // namespace

void cut_state_to_parts(torch::optim::Optimizer& optimizer, const Origin& origin, const ParameterChoice& chosen) {
  if (auto* const larc = dynamic_cast<optim::Larc*>(&optimizer)) cut_state_to_parts(larc->wrapped(), origin, chosen);
  const AnyOptimizerCodec* const codec = find_codec(optimizer);
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
      if (found == optimizer.state().end() || found->second == nullptr || (chosen && !chosen(parameter))) continue;
      if (parallel::is_elsewhere(parameter)) {
        optimizer.state().erase(found);
      } else if (parallel::placed_by(parameter) != nullptr) {
        cut_one(codec, parameter, found->second, origin);
      }
    }
  }
}

}  // namespace hasten::checkpoint
