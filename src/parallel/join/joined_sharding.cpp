// See joined_sharding.h.
#include "parallel/join/joined_sharding.h"

#include <c10/util/ScopeExit.h>
#include <torch/optim/optimizer.h>

#include "hasten/comm/nested/objects.h"
#include "hasten/comm/types/purpose.h"
#include "hasten/parallel/shard/prepare_sharding.h"
#include "hasten/parallel/shard/sharding.h"
#include "parallel/shard/optimizer_state.h"

namespace hasten::parallel {
namespace {

constexpr const char *kStep = "step", *kClipNorm = "clip_grad_norm_", *kClipValue = "clip_grad_value_",
                     *kFinite = "has_finite_gradients";

std::vector<double> numbers_of(const torch::optim::Optimizer& optimizer) {
  std::vector<double> all;
  for (const auto& group : optimizer.param_groups()) {
    const auto own = shard::group_numbers(group);
    all.push_back(static_cast<double>(own.size()));
    all.insert(all.end(), own.begin(), own.end());
  }
  return all;
}

void set_numbers(torch::optim::Optimizer& optimizer, const std::vector<double>& all, size_t next) {
  for (auto& group : optimizer.param_groups()) {
    const auto count = static_cast<size_t>(all.at(next++));
    const std::vector<double> own(all.begin() + static_cast<std::ptrdiff_t>(next),
                                  all.begin() + static_cast<std::ptrdiff_t>(next + count));
    shard::set_group_numbers(group, own);
    next += count;
  }
}

}  // namespace

JoinedSharding::JoinedSharding(training::JoinScope& scope, const JoinedLoop& loop) : scope_(scope), loop_(loop) {
  for (const auto& model : loop.models.all()) {
    for (const at::Tensor& parameter : model->parameters()) {
      places_.emplace(parameter.unsafeGetTensorImpl(), static_cast<int64_t>(parameters_.size()));
      parameters_.push_back(parameter);
    }
  }
  loop.sharding->set_observer([this](const ShardCall& call) {
    if (!shadows_) scope_.notify(encode(call));
  });
}

JoinedSharding::~JoinedSharding() {
  loop_.sharding->set_observer({});
}

training::JoinCall JoinedSharding::encode(const ShardCall& call) {
  training::JoinCall encoded{name(), kStep};
  if (call.kind == ShardCall::Kind::kStep) {
    const auto optimizers = loop_.optimizer_registry.optimizers();
    for (size_t i = 0; i < optimizers.size(); ++i) {
      if (optimizers[i].second.get() == call.optimizer) encoded.integers = {static_cast<int64_t>(i)};
    }
    if (encoded.integers.empty()) scope_.reject("a step of an optimizer that was not prepared");
    encoded.reals = {call.first};
    const auto numbers = numbers_of(*call.optimizer);
    encoded.reals.insert(encoded.reals.end(), numbers.begin(), numbers.end());
    return encoded;
  }
  encoded.operation = call.kind == ShardCall::Kind::kFinite     ? kFinite
                      : call.kind == ShardCall::Kind::kClipNorm ? kClipNorm
                                                                : kClipValue;
  encoded.reals = {call.first, call.second};
  for (const at::Tensor& parameter : *call.parameters) {
    const auto place = places_.find(parameter.unsafeGetTensorImpl());
    if (place == places_.end()) {
      if (!parameter.grad().defined()) continue;
      scope_.reject(encoded.operation + " of a parameter of no prepared model");
    }
    encoded.integers.push_back(place->second);
  }
  return encoded;
}

void JoinedSharding::shadow(const training::JoinCall& call, const training::ActiveRanks&) {
  shadows_ = true;
  const auto at_end = c10::make_scope_exit([this] { shadows_ = false; });
  if (call.operation == kStep) return shadow_step(call);
  std::vector<at::Tensor> parameters;
  for (const int64_t place : call.integers) parameters.push_back(parameters_.at(static_cast<size_t>(place)));
  if (call.operation == kFinite) {
    loop_.sharding->has_finite_gradients(parameters);
  } else if (call.operation == kClipNorm) {
    loop_.sharding->clip_grad_norm_(parameters, call.reals.at(0), call.reals.at(1));
  } else {
    loop_.sharding->clip_grad_value_(parameters, call.reals.at(0));
  }
}

void JoinedSharding::shadow_step(const training::JoinCall& call) {
  const auto optimizer = loop_.optimizer_registry.optimizers().at(static_cast<size_t>(call.integers.at(0))).second;
  set_numbers(*optimizer, call.reals, 1);
  step_slices(*loop_.sharding, *optimizer, call.reals.at(0), *loop_.optimizer_options);
}

void JoinedSharding::finish(int root) {
  for (const auto& [name, optimizer] : loop_.optimizer_registry.optimizers()) {
    if (!loop_.sharding->steps(*optimizer)) continue;
    const comm::Purpose purpose("end of join_uneven_inputs");
    const auto numbers = comm::broadcast_object(loop_.group, numbers_of(*optimizer), root);
    set_numbers(*optimizer, numbers, 0);
  }
}

}  // namespace hasten::parallel
