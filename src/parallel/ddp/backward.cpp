// See backward.h.
#include "hasten/parallel/ddp/backward.h"

#include <torch/types.h>

#include <algorithm>
#include <cmath>

#include "hasten/comm/types/purpose.h"
#include "hasten/core/error.h"
#include "parallel/parameters/find_used_models.h"
#include "parallel/statistics/weightless_backward.h"

namespace hasten::parallel {
namespace {

struct Participant {
  const Ddp* model;
  /// Whether this rank's loss depends on it, as far as is known.
  bool reached;
  /// Whether any rank's loss depends on it. A model takes part besides if earlier backwards of the window have left it
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
  if (loss.numel() != 1 && !options.gradient.defined()) {
    throw UsageError(origin, "backward of a loss of the shape [", join(loss.sizes()),
                     "]; expected one number. Take its mean(), or give BackwardOptions::gradient of that shape.");
  }
  if (options.weight && !(*options.weight >= 0 && std::isfinite(*options.weight))) {
    throw UsageError(origin, "backward with weight ", *options.weight,
                     "; expected a number of samples or tokens, 0 or more.");
  }
  const bool mixed =
      !options.weight && std::any_of(context.models.begin(), context.models.end(),
                                     [](const auto& model) { return model->step().window().weight().has_value(); });
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
    for (size_t i = 0; i < count; ++i)
      held[i] = models[i]->step().window().state() == AccumulationWindow::State::kEndingWithGradients;
    const bool exchanges = std::any_of(models.begin(), models.end(),
                                       [](const auto& model) { return !model->step().window().holds_back(); });
    if (exchanges && context.group.world_size() > 1) {
      const at::Tensor flags = at::zeros({static_cast<int64_t>(2 * count)}, at::kInt);
      int* const flag = flags.data_ptr<int>();
      for (size_t i = 0; i < count; ++i) {
        flag[i] = mine[i] ? 1 : 0;
        flag[count + i] = held[i] ? 1 : 0;
      }
      const comm::Purpose purpose("models of a backward");
      context.group.with_check(false).all_reduce_(flags, comm::ReduceOp::kMax);
      for (size_t i = 0; i < count; ++i) {
        anyones[i] = flag[i] != 0;
        held[i] = flag[count + i] != 0;
      }
    }
  }
  std::vector<Participant> list;
  for (size_t i = 0; i < count; ++i) {
    if (anyones[i] || held[i])
      list.push_back({models[i].get(), mine[i], anyones[i], models[i]->step().num_exchanges()});
  }
  return list;
}

// The gradient of `loss` times `factor`.
at::Tensor gradient_of(const at::Tensor& loss, const BackwardOptions& options, double factor) {
  if (options.gradient.defined()) return factor == 1.0 ? options.gradient : options.gradient * factor;
  // Without one, libtorch makes it itself.
  if (factor == 1.0) return {};
  return at::full_like(loss, factor).detach();
}

void run(const at::Tensor& loss, const BackwardOptions& options, const BackwardContext& context, double factor) {
  // A weight of nothing: a mean over no samples is no number, and must not touch the gradients.
  if (factor == 0.0) {
    WeightlessOptions weightless{.retain_graph = options.retain_graph.value_or(options.create_graph),
                                 .create_graph = options.create_graph};
    for (const auto& model : context.models) {
      for (const at::Tensor& parameter : model->parameters())
        weightless.parameters.insert(parameter.unsafeGetTensorImpl());
    }
    return weightless_backward(loss, weightless);
  }
  loss.backward(gradient_of(loss, options, factor), options.retain_graph, options.create_graph);
}

Ddp::Models held_models(const BackwardCall& call, const BackwardContext& context) {
  Ddp::Models held;
  for (size_t i = 0; i < context.models.size(); ++i) {
    if (call.held.at(i)) held.push_back(context.models[i]);
  }
  return held;
}

// While it exists and there are several models, waiting is left to the end of backward. So all ranks wait for them in
// one order although their gradients come in different ones.
class InOrder {
 public:
  explicit InOrder(const std::vector<Participant>& list) : list_(list) { set(list.size() > 1); }
  ~InOrder() { set(false); }
  InOrder(const InOrder&) = delete;
  InOrder& operator=(const InOrder&) = delete;

 private:
  void set(bool later) const noexcept {
    for (const auto& one : list_) one.model->step().settings().finishes_later = later;
  }
  const std::vector<Participant>& list_;
};

}  // namespace

void backward(const at::Tensor& loss, const BackwardOptions& options, const BackwardContext& context) {
  for (const auto& model : context.models) {
    model->step().abandon();
    model->refresh_if_changed();
    model->step().begin_backward(context.optimizer_calls, context.ends_window);
  }
  check(loss, options, context);
  const auto list = participants(loss, context);
  const InOrder in_order(list);
  const auto exchanges = [&](const Participant& one) {
    return context.group.world_size() > 1 && !one.model->step().window().holds_back();
  };
  if (options.weight) {
    for (const auto& one : list) {
      one.model->step().add_weight(one.reached_anywhere ? *options.weight : 0.0);
    }
  }
  // Models that this rank passes by. A single model may turn out to be passed by only afterwards.
  for (const auto& one : list) {
    if (exchanges(one) && !one.reached) one.model->step().start();
  }
  const bool exchanges_any = std::any_of(list.begin(), list.end(), exchanges);
  if (loss.requires_grad() || !exchanges_any) {
    run(loss, options, context, options.weight.value_or(1.0 / static_cast<double>(context.num_batches)));
  }
  bool had_gradients = false;
  for (const auto& one : list) {
    one.model->step().settle_alone();
    if (!context.ends_window) one.model->step().end_held_backward(context.optimizer_calls);
    if (!exchanges(one)) continue;
    if (!one.model->step().is_exchanging() && one.model->step().num_exchanges() == one.steps_before)
      one.model->step().start();
    if (one.model->step().is_exchanging()) one.model->step().finish();
    had_gradients = had_gradients || one.model->step().had_gradients();
  }
  for (const auto& one : list) {
    if (options.weight && !one.reached_anywhere) one.model->step().window().reopen();
  }
  if (loss.requires_grad() || !exchanges_any || had_gradients || options.weight == 0.0) return;
  throw UsageError(Origin{"accelerator", context.group.rank(), context.group.world_size()},
                   "the loss depends on no parameter that requires a gradient, on any rank. Is it detached, or "
                   "computed under NoGradGuard?");
}

BackwardCall BackwardCall::of(const BackwardContext& context) {
  BackwardCall call{.ends_window = context.ends_window};
  for (const auto& model : context.models) {
    call.held.push_back(model->step().window().holds_back());
    call.local_sgd.push_back(model->step().local_sgd().now);
  }
  return call;
}

training::JoinCall BackwardCall::encode() const {
  training::JoinCall call{kModelsComponent, kBackward, {ends_window ? 1 : 0}};
  for (size_t i = 0; i < held.size(); ++i) call.integers.push_back((held[i] ? 1 : 0) + (local_sgd[i] ? 2 : 0));
  return call;
}

BackwardCall BackwardCall::decode(const training::JoinCall& call) {
  BackwardCall result{.ends_window = call.integers.at(0) != 0};
  for (size_t i = 1; i < call.integers.size(); ++i) {
    result.held.push_back((call.integers[i] & 1) != 0);
    result.local_sgd.push_back((call.integers[i] & 2) != 0);
  }
  return result;
}

void set_active(const Ddp& model, int first, bool all) noexcept {
  auto& settings = model.step().settings();
  settings.buffers_from = first;
  settings.comparable = all;
}

Ddp::Models keep_window_open(const training::JoinCall& call, BackwardContext& context) {
  const auto agreed = BackwardCall::decode(call);
  if (!context.ends_window || agreed.ends_window) return {};
  context.ends_window = false;
  return held_models(agreed, context);
}

Ddp::Models prepare_shadow(const BackwardCall& call, BackwardContext& context) {
  context.ends_window = call.ends_window;
  for (const auto& model : context.models) {
    if (!model->step().window().weight().has_value()) model->step().drop_gradients();
  }
  return held_models(call, context);
}

}  // namespace hasten::parallel
