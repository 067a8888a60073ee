// See backward.h.
#include "hasten/parallel/ddp/backward.h"

#include <torch/types.h>

#include <algorithm>
#include <cmath>

#include "hasten/core/error.h"
#include "parallel/parameters/find_used_models.h"

namespace hasten::parallel {
namespace {

struct Participant {
  const Ddp* model;
  /// Whether this rank's loss depends on it, as far as is known.
  bool reached;
  /// Whether any rank's does; a model takes part besides if earlier backwards of the window have left it
  /// gradients.
  bool reached_anywhere;
  int64_t steps_before;
};

void check(const at::Tensor& loss, const BackwardOptions& options, const BackwardContext& context) {
  const Origin origin{"accelerator", context.group.rank(), context.group.world_size()};
  if (context.models.empty()) {
    throw UsageError(origin,
                     "backward before any model was prepared, or after the last handle to one is gone. Call "
                     "prepare with the model first, and keep the handle that it gives.");
  }
  if (!loss.defined()) throw UsageError(origin, "backward of an undefined tensor; give it the loss.");
  if (options.weight && !(*options.weight >= 0 && std::isfinite(*options.weight))) {
    throw UsageError(origin, "backward with weight ", *options.weight,
                     "; expected a number of samples or tokens, 0 or more.");
  }
  const bool mixed = !options.weight && std::any_of(context.models.begin(), context.models.end(),
                                                    [](const auto& model) { return model->has_weight(); });
  if (mixed) {
    throw UsageError(origin,
                     "backward without a weight, after one with a weight in the same window of "
                     "batches. Give every batch of a window a weight, or none.");
  }
}

// The models that take part on any rank; the same on all ranks.
std::vector<Participant> participants(const at::Tensor& loss, const BackwardContext& context) {
  const auto& models = context.models;
  const size_t count = models.size();
  std::vector<bool> mine(count, true);
  std::vector<bool> anyones = mine, held(count, false);
  if (count > 1) {
    std::vector<std::vector<at::Tensor>> parameters;
    for (const auto& model : models) parameters.push_back(model->parameters());
    anyones = mine = find_used_models(loss, parameters);
    for (size_t i = 0; i < count; ++i) held[i] = models[i]->has_held_gradients();
    const bool exchanges =
        std::any_of(models.begin(), models.end(), [](const auto& model) { return !model->holds_back(); });
    if (exchanges && context.group.world_size() > 1) {
      const at::Tensor flags = at::zeros({static_cast<int64_t>(2 * count)}, at::kInt);
      int* const flag = flags.data_ptr<int>();
      for (size_t i = 0; i < count; ++i) {
        flag[i] = mine[i] ? 1 : 0;
        flag[count + i] = held[i] ? 1 : 0;
      }
      context.group.with_check(false).all_reduce_(flags, comm::ReduceOp::kMax);
      for (size_t i = 0; i < count; ++i) {
        anyones[i] = flag[i] != 0;
        held[i] = flag[count + i] != 0;
      }
    }
  }
  std::vector<Participant> list;
  for (size_t i = 0; i < count; ++i) {
    if (anyones[i] || held[i]) list.push_back({models[i].get(), mine[i], anyones[i], models[i]->num_steps()});
  }
  return list;
}

// The gradient that stands for `loss` times `factor`.
at::Tensor gradient_of(const at::Tensor& loss, const BackwardOptions& options, double factor) {
  if (options.gradient.defined()) return factor == 1.0 ? options.gradient : options.gradient * factor;
  // Without one, libtorch makes it itself, and refuses what is no scalar.
  if (factor == 1.0 || loss.numel() != 1) return {};
  return at::full_like(loss, factor).detach();
}

void run(const at::Tensor& loss, const BackwardOptions& options, double factor) {
  // A weight of nothing: a mean over no samples is no number, and must not touch the gradients.
  if (factor == 0.0) return;
  loss.backward(gradient_of(loss, options, factor), options.retain_graph, options.create_graph);
}

Ddp::Models held_models(const nlohmann::json& call, const BackwardContext& context) {
  const std::vector<bool> is_held = call.at("held");
  Ddp::Models held;
  for (size_t i = 0; i < context.models.size(); ++i) {
    if (is_held.at(i)) held.push_back(context.models[i]);
  }
  return held;
}

// While it lives, waiting is left to the end of backward where there are several models, so that all ranks
// wait for them in one order although their gradients come in different ones.
class InOrder {
 public:
  explicit InOrder(const std::vector<Participant>& list) : list_(list) { set(list.size() > 1); }
  ~InOrder() { set(false); }
  InOrder(const InOrder&) = delete;
  InOrder& operator=(const InOrder&) = delete;

 private:
  void set(bool later) const noexcept {
    for (const auto& one : list_) one.model->finish_later(later);
  }
  const std::vector<Participant>& list_;
};

}  // namespace

void backward(const at::Tensor& loss, const BackwardOptions& options, const BackwardContext& context) {
  for (const auto& model : context.models) {
    model->abandon_exchange();
    model->refresh_if_changed();
    model->begin_backward(context.optimizer_calls, context.ends_window);
  }
  check(loss, options, context);
  const auto list = participants(loss, context);
  const InOrder in_order(list);
  const auto exchanges = [&](const Participant& one) {
    return context.group.world_size() > 1 && !one.model->holds_back();
  };
  if (options.weight) {
    for (const auto& one : list) {
      one.model->add_weight(one.reached_anywhere ? *options.weight : 0.0, context.ends_window);
    }
  }
  // Models that this rank passes by; a single one may turn out to be passed by only afterwards.
  for (const auto& one : list) {
    if (exchanges(one) && !one.reached) one.model->start_exchange();
  }
  const bool exchanges_any = std::any_of(list.begin(), list.end(), exchanges);
  if (loss.requires_grad() || !exchanges_any) {
    run(loss, options, options.weight.value_or(1.0 / static_cast<double>(context.num_batches)));
  }
  bool had_gradients = false;
  for (const auto& one : list) {
    one.model->settle_alone();
    if (!context.ends_window) one.model->end_held_backward(context.optimizer_calls);
    if (!exchanges(one)) continue;
    if (!one.model->is_exchanging() && one.model->num_steps() == one.steps_before)
      one.model->start_exchange();
    if (one.model->is_exchanging()) one.model->finish_exchange();
    had_gradients = had_gradients || one.model->had_gradients();
  }
  for (const auto& one : list) {
    if (options.weight && !one.reached_anywhere) one.model->may_go_on();
  }
  if (loss.requires_grad() || !exchanges_any || had_gradients || options.weight == 0.0) return;
  throw UsageError(
      Origin{"accelerator", context.group.rank(), context.group.world_size()},
      "the loss depends on no parameter that requires a gradient, on any rank. Is it detached, or "
      "computed under NoGradGuard?");
}

nlohmann::json describe(const BackwardContext& context) {
  std::vector<bool> held, apart;
  for (const auto& model : context.models) {
    held.push_back(model->holds_back());
    apart.push_back(model->local_sgd().now);
  }
  return {{kBackward, context.ends_window}, {"held", held}, {"apart", apart}};
}

Ddp::Models keep_window_open(const nlohmann::json& call, BackwardContext& context) {
  if (!context.ends_window || call.at(kBackward).get<bool>()) return {};
  context.ends_window = false;
  return held_models(call, context);
}

Ddp::Models read_description(const nlohmann::json& call, BackwardContext& context) {
  context.ends_window = call.at(kBackward);
  for (const auto& model : context.models) {
    if (!model->has_weight()) model->drop_gradients();
  }
  return held_models(call, context);
}

}  // namespace hasten::parallel
