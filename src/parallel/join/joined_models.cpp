// See joined_models.h.
#include "parallel/join/joined_models.h"

#include <torch/types.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "hasten/comm/nested/objects.h"
#include "hasten/comm/types/purpose.h"
#include "hasten/interception/interceptor.h"
#include "hasten/parallel/ddp/backward.h"
#include "hasten/parallel/ddp/no_sync.h"
#include "hasten/parallel/local_sgd/local_sgd.h"

namespace hasten::parallel {
namespace {

bool has_gradients(const Ddp& model) {
  return std::any_of(model.parameters().begin(), model.parameters().end(),
                     [](const at::Tensor& parameter) { return parameter.grad().defined(); });
}

}  // namespace

JoinedModels::JoinedModels(training::JoinScope& scope, const DistributedModels& models, comm::Group group,
                           training::GradientState& gradients)
    : models_(models.all()), group_(std::move(group)), gradients_(gradients) {
  for (const auto& model : models_) model->refresh_if_changed();  // while every rank is there
  for (size_t i = 0; i < models_.size(); ++i) models_[i]->joined() = {&scope, i};
}

JoinedModels::~JoinedModels() {
  for (const auto& model : models_) {
    set_active(*model, 0, true);
    model->joined() = {};
  }
}

void JoinedModels::shadow(const training::JoinCall& call, const training::ActiveRanks& active) {
  if (call.operation == kBackward) return shadow_backward(call, active);
  const auto& model = models_.at(static_cast<size_t>(call.integers.at(0)));
  average_parameters(*model, group_.with_check(false), model->step().local_sgd().num_steps > 0);
}

void JoinedModels::shadow_backward(const training::JoinCall& call, const training::ActiveRanks& active) {
  BackwardContext context{.models = models_, .group = group_, .optimizer_calls = gradients_.optimizers().num_calls()};
  for (const auto& model : models_) set_active(*model, active.first(), active.all_of(group_.world_size()));
  const auto decoded = BackwardCall::decode(call);
  const auto held = prepare_shadow(decoded, context);
  gradients_.set_sync_gradients(context.ends_window);
  gradients_.set_weighted();
  gradients_.set_joined_window(!context.ends_window);
  const NoSync scope(held);
  backward(at::zeros({}), {.weight = 0.0}, context);
  // Local SGD divides a window's weights out on each rank that has one.
  for (size_t i = 0; i < models_.size(); ++i) {
    if (decoded.local_sgd.at(i) && context.ends_window) models_[i]->step().window().drop_weight();
  }
}

// A rank without data takes no part in zero_grad(), so it learns here what `root` has forgotten.
void JoinedModels::finish(int root) {
  // Parts of a model are memory here.
  const interception::PassScope pass;
  std::vector<int64_t> kept;
  for (const auto& model : models_) kept.push_back(has_gradients(*model) ? 1 : 0);
  const comm::Purpose purpose("end of join_uneven_inputs");
  kept = comm::broadcast_object(group_.with_check(false), kept, root);
  for (size_t i = 0; i < models_.size(); ++i) {
    models_[i]->broadcast_from(root);
    if (kept[i] == 0 && has_gradients(*models_[i])) models_[i]->step().drop_gradients();
  }
}

void JoinedModels::average() const {
  for (const auto& model : models_) {
    average_parameters(*model, group_.with_check(false), model->step().local_sgd().num_steps > 0);
  }
}

std::optional<training::JoinCall> JoinedModels::merge(const training::JoinCall& one,
                                                      const training::JoinCall& other) const {
  if (one.operation != kBackward || other.operation != kBackward) return std::nullopt;
  const auto a = BackwardCall::decode(one), b = BackwardCall::decode(other);
  if (a.ends_window == b.ends_window || a.local_sgd != b.local_sgd) return std::nullopt;
  return a.ends_window ? other : one;
}

}  // namespace hasten::parallel
