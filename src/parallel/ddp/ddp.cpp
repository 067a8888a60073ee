// Puts the parts together: check, copy, plan, hooks; see hasten/parallel/ddp.h.
#include "hasten/parallel/ddp/ddp.h"

#include <torch/types.h>

#include <algorithm>
#include <set>
#include <utility>

#include "hasten/core/error.h"
#include "hasten/core/log.h"
#include "hasten/parallel/join/join.h"
#include "parallel/ddp/gradient_hooks.h"
#include "parallel/ddp/reducer.h"
#include "parallel/ddp/value_watch.h"
#include "parallel/parameters/parameter_set.h"
#include "parallel/parameters/parameter_sync.h"

namespace hasten::parallel {
struct Ddp::Impl {
  /// The backwards of a window so far, whose optimizer waits.
  struct HeldBatches {
    /// Scopes of windows whose gradients are exchanged all the same.
    int scopes = 0;
    int64_t count = 0;
    /// The parameters after the last of them.
    ValueWatch values = {};
    /// What prepared optimizers had done.
    int64_t optimizer_calls = 0;
    bool left_gradients = false;
    /// Whether the window's last backward finds some.
    bool offered = false;
    bool warned = false, warned_of_loss = false;

    void forget() noexcept {
      count = 0;
      left_gradients = false;
      values.forget();
    }
  };

  torch::nn::Module& module;
  comm::Group group;
  DdpOptions options;
  std::vector<std::weak_ptr<const Ddp>> before = {};
  Window window = {};
  ModuleWatch watch{module};
  HeldBatches held = {};
  LocalSgdState local_sgd = {};
  /// The loop of uneven length it is in, and its place there.
  Join* join = nullptr;
  size_t place = 0;
  /// Whether its parameters are others than those it was built for.
  bool outdated = false;
  /// What it exchanges, each once.
  ParameterSet parameter_set = {};
  std::unique_ptr<Reducer> reducer = {};
  std::unique_ptr<GradientHooks> hooks = {};
  /// What it exchanged once and the module no longer has.
  ParameterSet removed = {};
  std::unique_ptr<GradientHooks> refusals = {};

  bool alone() const { return group.world_size() == 1; }

  bool is_exchanged_by_another(const at::Tensor& parameter) const {
    return std::any_of(before.begin(), before.end(), [&](const auto& weak) {
      const auto model = weak.lock();
      return model && std::any_of(model->parameters().begin(), model->parameters().end(),
                                  [&](const at::Tensor& theirs) { return theirs.is_same(parameter); });
    });
  }

  // replace_module and register_parameter change what is registered, and not what a member of the user's
  // class holds: a forward through that would train, on each rank apart, parameters that nobody exchanges.
  void refuse_removed() {
    std::set<const c10::TensorImpl*> registered;
    for (const at::Tensor& tensor : module.parameters()) registered.insert(tensor.unsafeGetTensorImpl());
    ParameterSet gone;
    for (const ParameterSet* list : {&removed, &parameter_set}) {
      for (size_t i = 0; i < list->tensors.size(); ++i) {
        const at::Tensor& tensor = list->tensors[i];
        if (!tensor.requires_grad() || registered.contains(tensor.unsafeGetTensorImpl())) continue;
        gone.names.push_back(list->names[i]);
        gone.tensors.push_back(tensor);
      }
    }
    removed = std::move(gone);
    refusals = std::make_unique<GradientHooks>(removed.tensors, [this](size_t i, const at::Tensor&) {
      throw UsageError(Origin{"ddp", group.rank(), group.world_size()}, "'", removed.names[i],
                       "' got a gradient, but was taken out of the model after prepare (replace_module, "
                       "register_parameter). Assign what replaced it to the member through which forward "
                       "uses it; what is to be trained apart needs a clone.");
    });
  }

  void build() {
    watch.look();
    held.forget();
    if (!alone()) refuse_removed();
    const auto trained = std::exchange(parameter_set, ParameterSet::of(module, [this](const at::Tensor& parameter) {
                                         return is_exchanged_by_another(parameter);
                                       }));
    if (!alone()) connect(trained.tensors);
  }

  // `trained`: what it exchanged before, and what ranks that train apart (LocalSgd) have made of it.
  void connect(const std::vector<at::Tensor>& trained) {
    hooks.reset();
    reducer.reset();
    if (options.exchange) options.exchange->release();
    check_same_module(module, group);
    if (std::exchange(local_sgd.num_steps, 0) > 0) average_tensors(trained, group, true);
    const auto buffers = module.buffers();
    auto all = options.exchange ? options.exchange->place(module, parameter_set.names, parameter_set.dense())
                                : module.parameters();
    std::erase_if(all, [this](const at::Tensor& parameter) { return is_exchanged_by_another(parameter); });
    all.insert(all.end(), buffers.begin(), buffers.end());
    broadcast_tensors(all, group);
    watch.look();  // memory that the exchange has moved is no change of the program's
    if (parameter_set.tensors.empty()) return;
    auto followers = options.broadcast_buffers ? buffers : std::vector<at::Tensor>{};
    reducer =
        std::make_unique<Reducer>(parameter_set, std::move(followers), group, options, window,
                                  [this](bool inside) { check_equal_parameters(module, group, inside); });
    set_hooks();
  }

  void set_hooks() {
    hooks.reset();
    hooks = std::make_unique<GradientHooks>(
        parameter_set.tensors, [this](size_t i, const at::Tensor& arrived) { reducer->on_gradient(i, arrived); });
  }

  void refresh_if_changed() {
    const auto change = watch.look();
    if (change == ModuleWatch::Change::kValues) {
      window.values_changed = true;
      held.forget();
    }
    outdated = outdated || change == ModuleWatch::Change::kParameters;
    if (outdated) {
      if (join) join->refuse("a change of the model's parameters (to, requires_grad_, register_parameter)");
      outdated = false;
      build();
    } else if (hooks && !hooks->intact()) {
      set_hooks();
    }
  }

  bool has_gradients() const {
    return std::any_of(parameter_set.tensors.begin(), parameter_set.tensors.end(),
                       [](const at::Tensor& parameter) { return parameter.grad().defined(); });
  }

  void warn(const std::string& line) const {
    Logger("ddp", {group.rank(), group.world_size()}).warning(line);
  }

  // Gradients may be dropped on purpose before a window begins, but hardly all of them inside it. A prepared
  // optimizer drops them when a window is given up at its end, or at the head of its last batch.
  void look_for_lost_gradients(int64_t optimizer_calls, bool ends_window) {
    const bool by_prepared = optimizer_calls != held.optimizer_calls;
    if (!held.left_gradients || held.warned_of_loss || (by_prepared && !ends_window)) return;
    if (has_gradients()) return;
    held.warned_of_loss = true;
    warn(text("the gradients after backward ", held.count,
              " of a window in which they are accumulated are gone before its end, ",
              by_prepared ? "by zero_grad() before the backward of its last batch. Call zero_grad() behind "
                            "step(), at the end of the loop's body."
                          : "as by zero_grad() of the module or of an optimizer that was not prepared. Call "
                            "zero_grad() of the one that prepare gave, behind step()."));
  }

  // An optimizer that was not prepared does not wait for the window's end, and steps with this rank's own
  // gradients, or those of a part of the window. Others may change parameters there (a clamp), as long as all
  // ranks do it alike.
  void look_inside_window(int64_t optimizer_calls) {
    const auto changed = held.values.changed(parameter_set.tensors);
    if (changed.empty()) return;
    window.values_changed = true;
    if (optimizer_calls != held.optimizer_calls) return;
    window.changed_inside = true;
    if (std::exchange(held.warned, true)) return;
    const size_t others = changed.size() - 1;
    warn(text("'", parameter_set.names[changed.front()], '\'', others > 0 ? text(" and ", others, " more") : "",
              " changed after backward ", held.count,
              " of a window in which gradients are accumulated, and no prepared optimizer has "
              "stepped. Step the optimizer that prepare gave, which waits for the window's end, not "
              "the one that it was given."));
  }
};

Ddp::Ddp(torch::nn::Module& module, comm::Group group, const DdpOptions& options, const Models& before) {
  if (options.predivide(1) <= 0 || options.check_parameters_every < 0) {
    throw UsageError(Origin{"ddp"}, "gradient_predivide_factor is ", options.predivide(1),
                     " and check_parameters_every ", options.check_parameters_every,
                     "; the factor must be above 0, the number of steps not below.");
  }
  if (options.comm_hook && options.communication_dtype) {
    throw UsageError(Origin{"ddp"}, "communication_dtype is ", c10::toString(*options.communication_dtype),
                     " beside a comm_hook, which says by itself what travels; leave one of them out.");
  }
  impl_ = std::make_unique<Impl>(Impl{module, std::move(group), options, {before.begin(), before.end()}});
  auto& own = impl_->options;
  if (own.make_exchange && !own.exchange && !impl_->alone()) own.exchange = own.make_exchange(impl_->group);
  if (own.exchange && own.comm_hook) {
    throw UsageError(Origin{"ddp", impl_->group.rank(), impl_->group.world_size()},
                     "a comm_hook and sharding exclude each other: ranks share the parameters and exchange no "
                     "whole gradients. Use communication_dtype to send fewer bytes.");
  }
  impl_->build();
}

Ddp::~Ddp() = default;
Ddp::Ddp(Ddp&&) noexcept = default;
Ddp& Ddp::operator=(Ddp&&) noexcept = default;

void Ddp::hold_back(bool more) const noexcept {
  impl_->window.holds += more ? 1 : -1;
}

bool Ddp::holds_back() const noexcept {
  return impl_->window.holds > 0;
}

const BucketPlan& Ddp::plan() const noexcept {
  static const BucketPlan kNone;
  return impl_->reducer ? impl_->reducer->plan() : kNone;
}

void Ddp::wait(bool more) const noexcept {
  impl_->held.scopes += more ? 1 : -1;
}

bool Ddp::shares_parameters() const noexcept {
  return impl_->options.exchange != nullptr;
}

torch::nn::Module& Ddp::module() const noexcept {
  return impl_->module;
}

void Ddp::refresh_if_changed() const {
  impl_->refresh_if_changed();
}

void Ddp::before_forward() const {
  if (at::GradMode::is_enabled() && impl_->module.is_training()) refresh_if_changed();
}

void Ddp::begin_backward(int64_t optimizer_calls, bool ends_window) const {
  Impl& impl = *impl_;
  if (!impl.held.values.empty()) {
    impl.look_for_lost_gradients(optimizer_calls, ends_window);
    impl.look_inside_window(optimizer_calls);
  }
  impl.held.offered = ends_window && impl.held.left_gradients && impl.has_gradients();
  if (!ends_window || !impl.has_gradients()) impl.window.settled_early.reset();
  if (ends_window) impl.held.forget();
}

void Ddp::end_held_backward(int64_t optimizer_calls) const {
  Impl& impl = *impl_;
  // Held back twice is held back apart from accumulation, too (LocalSgd), which lets ranks part on purpose.
  if (impl.window.holds + impl.held.scopes != 1) return;
  impl.held.values.note(impl.parameter_set.tensors);
  impl.held.optimizer_calls = optimizer_calls;
  impl.held.left_gradients = impl.has_gradients();
  ++impl.held.count;
}

bool Ddp::has_held_gradients() const noexcept {
  return impl_->held.offered;
}

const std::vector<at::Tensor>& Ddp::parameters() const noexcept {
  return impl_->parameter_set.tensors;
}

void Ddp::add_weight(double weight, bool ends) const {
  Window& window = impl_->window;
  if (!window.weight) {
    // What stands from before the window counts once, as it would without weights.
    const double before = window.settled_early.value_or(weight);
    const at::NoGradGuard no_grad;
    for (const at::Tensor& parameter : impl_->parameter_set.tensors) {
      if (parameter.grad().defined()) parameter.mutable_grad().mul_(before);
    }
    window.weight = std::exchange(window.settled_early, std::nullopt).value_or(0);
  }
  *window.weight += weight;
  window.ends = ends;
}

bool Ddp::has_weight() const noexcept {
  return impl_->window.weight.has_value();
}

void Ddp::may_go_on() const noexcept {
  impl_->window.settled_early = impl_->window.divided_out;
}

void Ddp::finish_later(bool later) const noexcept {
  impl_->window.finishes_later = later;
}

int64_t Ddp::num_steps() const noexcept {
  return impl_->reducer ? impl_->reducer->num_steps() : 0;
}

void Ddp::start_exchange() const {
  if (impl_->reducer) impl_->reducer->start();
}

void Ddp::finish_exchange() const {
  if (impl_->reducer) impl_->reducer->finish();
}

bool Ddp::is_exchanging() const noexcept {
  return impl_->reducer && impl_->reducer->is_exchanging();
}

void Ddp::abandon_exchange() const noexcept {
  if (impl_->reducer) impl_->reducer->abandon();
}

void Ddp::set_active(int first, bool all) const noexcept {
  impl_->window.buffers_from = first;
  impl_->window.comparable = all;
}

void Ddp::broadcast_from(int root) const {
  auto all = impl_->module.parameters();
  const auto buffers = impl_->module.buffers();
  all.insert(all.end(), buffers.begin(), buffers.end());
  broadcast_tensors(all, impl_->group, root);
  impl_->held.forget();
}

void Ddp::drop_gradients() const {
  for (const at::Tensor& parameter : impl_->parameter_set.tensors) parameter.mutable_grad() = at::Tensor();
  impl_->held.left_gradients = false;
}

bool Ddp::had_gradients() const noexcept {
  return impl_->reducer && impl_->reducer->had_gradients();
}

void Ddp::settle_alone() const {
  Window& window = impl_->window;
  const bool by_itself = impl_->alone() || impl_->local_sgd.now;
  const int others = window.holds - (impl_->local_sgd.now ? 1 : 0);  // local SGD's own scope is no window's
  if (!by_itself || !window.weight || !window.ends || others > 0) return;
  const double total = window.divided_out = *std::exchange(window.weight, std::nullopt);
  const at::NoGradGuard no_grad;
  for (const at::Tensor& parameter : impl_->parameter_set.tensors) {
    at::Tensor& gradient = parameter.mutable_grad();
    if (total == 0) gradient = at::Tensor();
    if (gradient.defined()) gradient.div_(total);
  }
}

void Ddp::drop_weight() const noexcept {
  impl_->window.weight.reset();
}

void Ddp::set_join(Join* join, size_t place) const noexcept {
  impl_->join = join;
  impl_->place = place;
}

bool Ddp::announce(const char* call) const {
  if (impl_->join) impl_->join->announce(nlohmann::json::object({{call, impl_->place}}));
  return is_joining();
}

bool Ddp::is_joining() const noexcept {
  return impl_->join != nullptr;
}

LocalSgdState& Ddp::local_sgd() const noexcept {
  return impl_->local_sgd;
}

void Ddp::set_averaged() const noexcept {
  impl_->local_sgd.num_steps = 0;
  impl_->held.forget();
}

}  // namespace hasten::parallel
