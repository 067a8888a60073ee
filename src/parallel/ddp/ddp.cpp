// Puts the parts together: check, copy, plan, hooks; see hasten/parallel/ddp/ddp.h.
#include "hasten/parallel/ddp/ddp.h"

#include <torch/types.h>

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "hasten/comm/group/rejoin.h"
#include "hasten/core/error.h"
#include "hasten/interception/interceptor.h"
#include "hasten/parallel/layout/placement.h"
#include "hasten/parallel/layout/stages.h"
#include "parallel/ddp/gradient_hooks.h"
#include "parallel/ddp/reducer.h"
#include "parallel/parameters/parameter_set.h"
#include "parallel/parameters/parameter_sync.h"

namespace hasten::parallel {
struct Ddp::Impl {
  torch::nn::Module& module;
  comm::Group group;
  DdpOptions options;
  std::vector<std::weak_ptr<const Ddp>> before = {};
  ModuleWatch watch{module};
  ModelStep step{group};
  JoinedModel joined = {};
  /// Its ranks meet again when one was replaced; and the meeting for which it was set up.
  std::shared_ptr<comm::Meetings> meetings = comm::meetings_of(group);
  int64_t met_in = -1;
  /// Whether its parameters are others than those it was built for.
  bool outdated = false;
  /// Its parameters, each once.
  ParameterSet parameter_set = {};
  /// Parameters of which each rank has its own copy.
  std::vector<at::Tensor> replicated = {};
  std::unique_ptr<Reducer> reducer = {};
  std::unique_ptr<GradientHooks> hooks = {};
  /// Parameters that it exchanged once and the module no longer has.
  ParameterSet removed = {};
  std::unique_ptr<GradientHooks> refusals = {};

  /// One process has nothing to exchange, unless an exchange keeps its parameters elsewhere (in files).
  bool alone() const { return group.world_size() == 1 && !options.exchange && !options.make_exchange; }

  bool is_exchanged_by_another(const at::Tensor& parameter) const {
    return std::any_of(before.begin(), before.end(), [&](const auto& weak) {
      const auto model = weak.lock();
      return model && std::any_of(model->parameters().begin(), model->parameters().end(),
                                  [&](const at::Tensor& theirs) { return theirs.is_same(parameter); });
    });
  }

  // replace_module and register_parameter change the registered members, and not those of the user's class. A forward
  // through the latter would train parameters that are not exchanged, on each rank apart.
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
    step.forget();
    if (!alone()) refuse_removed();
    const auto trained = std::exchange(parameter_set, ParameterSet::of(module, [this](const at::Tensor& parameter) {
                                         return is_exchanged_by_another(parameter);
                                       }));
    step.attach(&parameter_set, nullptr);
    if (!alone()) connect(trained.tensors);
    step.attach(&parameter_set, reducer.get());
  }

  // `trained`: the parameters that it exchanged before, with the values of ranks that train alone (LocalSgd).
  // `root`: the rank whose values all get; of a meeting after the first one nothing is compared or averaged.
  void connect(const std::vector<at::Tensor>& trained, int root = 0, bool again = false) {
    // Parameters are memory here, also inside a forward that stages or parts are computed in.
    std::optional<interception::PassScope> pass;
    if (has_parts(module) || has_stages(module)) pass.emplace();
    hooks.reset();
    reducer.reset();
    if (meetings) met_in = meetings->number();
    if (options.exchange) options.exchange->release();
    check_same_module(module, group);
    if (std::exchange(step.local_sgd().num_steps, 0) > 0) average_tensors(trained, group, true);
    if (!options.sync_module_states && !again) check_equal_states(module, group);
    const auto buffers = module.buffers();
    auto all = options.exchange ? options.exchange->place(module, parameter_set.names, parameter_set.dense())
                                : module.parameters();
    std::erase_if(all, [this](const at::Tensor& parameter) { return is_exchanged_by_another(parameter); });
    replicated = all;
    all.insert(all.end(), buffers.begin(), buffers.end());
    broadcast_tensors(all, group, root);
    watch.look();  // memory that the exchange has moved is no change of the program's
    if (parameter_set.tensors.empty()) return;
    auto followers = options.broadcast_buffers ? buffers : std::vector<at::Tensor>{};
    reducer =
        std::make_unique<Reducer>(parameter_set, std::move(followers), group, options, step.window(), step.settings(),
                                  [this](bool inside) { check_equal_parameters(module, group, inside); });
    set_hooks();
  }

  // The ranks have met anew: gradients are dropped, and all get root's values and order of buckets.
  void reconnect(int root) {
    step.drop_gradients();
    step.forget();
    step.window().drop_weight();
    if (alone()) return;
    // Sums of floats depend on the place in a bucket, so the order that was learned stays.
    const auto order = reducer ? reducer->learned_order() : LearnedOrder{};
    connect({}, root, /*again=*/true);
    step.attach(&parameter_set, reducer.get());
    if (!reducer) return;
    const auto size = static_cast<int64_t>(parameter_set.tensors.size());
    at::Tensor message = torch::full({size + 2}, -1, at::kLong);
    auto* const words = message.mutable_data_ptr<int64_t>();
    words[0] = order.num_steps;
    words[1] = static_cast<int64_t>(order.parameters.size());
    std::copy(order.parameters.begin(), order.parameters.end(), words + 2);
    broadcast_tensors({message}, group, root);
    const auto* const got = message.const_data_ptr<int64_t>();
    reducer->set_order({got[0], {got + 2, got + 2 + got[1]}});
  }

  [[noreturn]] void refuse_before_meeting() const {
    throw UsageError(Origin{"ddp", group.rank(), group.world_size()},
                     "a backward before the ranks have met: under hasten launch --survive they do in "
                     "accelerator.survive. Train inside it, or start the program without --survive.");
  }

  void set_hooks() {
    hooks.reset();
    hooks = std::make_unique<GradientHooks>(parameter_set.tensors, [this](size_t i, const at::Tensor& arrived) {
      if (meetings && met_in < 0) refuse_before_meeting();
      reducer->on_gradient(i, arrived);
    });
  }

  void refresh_if_changed() {
    if (meetings && meetings->number() != met_in) reconnect(meetings->source());
    const auto change = watch.look();
    if (change == ModuleWatch::Change::kValues) {
      step.window().note_changed(AccumulationWindow::Values::kChanged);
      step.forget();
    }
    outdated = outdated || change == ModuleWatch::Change::kParameters;
    if (outdated) {
      if (joined.scope)
        joined.scope->reject("a change of the model's parameters (to, requires_grad_, register_parameter)");
      outdated = false;
      build();
    } else if (hooks && !hooks->intact()) {
      set_hooks();
    }
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
  impl_.reset(new Impl{module, std::move(group), options, {before.begin(), before.end()}});
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

const BucketPlan& Ddp::plan() const noexcept {
  static const BucketPlan kNone;
  return impl_->reducer ? impl_->reducer->plan() : kNone;
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

const std::vector<at::Tensor>& Ddp::parameters() const noexcept {
  return impl_->parameter_set.tensors;
}

void Ddp::check_parameters() const {
  const bool averages = impl_->step.local_sgd().now || impl_->step.local_sgd().num_steps > 0;
  if (impl_->alone() || shares_parameters() || averages || impl_->joined.is_joining()) return;
  if (impl_->options.check_parameters_every > 0) check_equal_parameters(impl_->module, impl_->group);
}

void Ddp::broadcast_from(int root) const {
  // Shared parameters are stepped by all ranks, also those without data (join_uneven_inputs).
  auto all = shares_parameters() ? impl_->replicated : impl_->module.parameters();
  const auto buffers = impl_->module.buffers();
  all.insert(all.end(), buffers.begin(), buffers.end());
  broadcast_tensors(all, impl_->group, root);
  impl_->step.forget();
}

ModelStep& Ddp::step() const noexcept {
  return impl_->step;
}

JoinedModel& Ddp::joined() const noexcept {
  return impl_->joined;
}

void before_forward(const Ddp& model) {
  if (at::GradMode::is_enabled() && model.module().is_training()) model.refresh_if_changed();
}

bool JoinedModel::notify(const char* operation) const {
  if (scope) scope->notify({"models", operation, {static_cast<int64_t>(place)}});
  return is_joining();
}

}  // namespace hasten::parallel
