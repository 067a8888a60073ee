// Accelerator: the front door. An ordinary libtorch training loop, with a few changed lines, on any number of
// processes.
//
// It forwards to the rooms and holds no logic of its own: loaders (data), gradients (parallel), steps
// (optim); who am I and what the ranks do together is its base's (accelerator_base.h). A value handle:
// copies, and everything prepared, share one state that lives as long as any of them. Follows Hugging Face's
// accelerate.Accelerator in names and meaning; docs/differences.md lists where it does not.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "hasten/accelerator_base.h"
#include "hasten/accelerator_options.h"
#include "hasten/data/loader/loader.h"
#include "hasten/optim/prepared/low_weights.h"
#include "hasten/optim/prepared/prepared_optimizer.h"
#include "hasten/optim/prepared/prepared_scheduler.h"
#include "hasten/parallel/ddp/backward.h"
#include "hasten/parallel/ddp/distributed_models.h"
#include "hasten/parallel/ddp/no_sync.h"
#include "hasten/parallel/join/join.h"
#include "hasten/parallel/local_sgd/local_sgd.h"
#include "hasten/parallel/model/jit_module.h"
#include "hasten/parallel/model/prepared_model.h"
#include "hasten/parallel/parameters/state_dict.h"
#include "hasten/parallel/shard/dummy.h"
#include "hasten/process/process.h"

namespace hasten {

struct ReadOptions;

class Accelerator : public AcceleratorBase {
 public:
  /// The process that the environment describes (hasten launch, torchrun, srun, mpirun; by itself a world of
  /// one). Collective: yes. Blocks: until all ranks have come. Throws: UsageError (half-set environment, busy
  /// port, an option that this version lacks), CommError (a rank did not come).
  explicit Accelerator(const AcceleratorOptions& options = {});
  /// A process made by the caller.
  explicit Accelerator(process::Process process, const AcceleratorOptions& options = {});

  /// Makes modules, optimizers, schedulers and loaders, in any mix and order, ready for this world; gives a handle for each,
  /// alone or as a tuple. Lvalues are borrowed and must outlive their handles (TORCH_MODULE holders and shared_ptrs share their
  /// module), rvalues are owned. A model whose last handle is gone is no longer exchanged. Preparing twice is the same as once.
  /// With options first, `prepare({.device_placement = {true, false}}, net, loader)`: as they say. Collective: yes, if there is
  /// a module. Blocks: then. Throws: UsageError, if the ranks' modules differ naming the first difference; CommError.
  template <class... T>
  [[nodiscard]] auto prepare(const PrepareOptions& own, T&&... objects) const {
    if (distributed_type() == DistributedType::kDeepSpeed) {
      plan::AutoInputs known{.has_model = false};
      (parallel::note_for_auto(known, objects), ...);
      fill_auto(known);
    }
    const auto placed = device_placements(own, sizeof...(T), options().device_placement);
    auto place = placed.begin();
    if constexpr (sizeof...(T) == 1) {
      return prepare_one(std::forward<T>(objects)..., *place);
    } else {
      // Braces: from left to right, since modules are prepared collectively.
      return std::tuple{prepare_one(std::forward<T>(objects), *place++)...};
    }
  }
  template <class First, class... Rest>
    requires(!std::is_same_v<std::remove_cvref_t<First>, PrepareOptions>)
  [[nodiscard]] auto prepare(First&& first, Rest&&... rest) const {
    return prepare(PrepareOptions{}, std::forward<First>(first), std::forward<Rest>(rest)...);
  }

  /// prepare for one kind, under Accelerate's names.
  template <class M>
    requires parallel::is_module_v<std::remove_cvref_t<M>>
  [[nodiscard]] auto prepare_model(M&& model) const {
    return prepare(std::forward<M>(model));
  }
  template <class O>
    requires optim::is_optimizer_v<O>
  [[nodiscard]] auto prepare_optimizer(O&& optimizer) const {
    return prepare(std::forward<O>(optimizer));
  }
  template <optim::SchedulerLike S>
  [[nodiscard]] auto prepare_scheduler(S& scheduler) const {
    return prepare(scheduler);
  }
  template <class L>
    requires data::is_loader_v<std::remove_cvref_t<L>>
  [[nodiscard]] auto prepare_data_loader(L&& loader) const {
    return prepare(std::forward<L>(loader));
  }

  /// data::loader and prepare in one: takes what torch::data::make_data_loader takes.
  template <class Sampler = torch::data::samplers::RandomSampler, class... Arguments>
  auto data_loader(Arguments&&... arguments) const {
    return prepare(data::loader<Sampler>(std::forward<Arguments>(arguments)...));
  }

  /// loss.backward(): gradients are the mean over all ranks when it returns. The loss is divided by
  /// gradient_accumulation_steps first. With a weight (`{.weight = num_tokens}`): the mean over all samples
  /// of the window on all ranks, and steps of prepared optimizers are skipped where there were none.
  /// Collective: yes, unless all models are held back; a rank whose loss does not depend on a model offers no
  /// gradient. Blocks: until gradients have been exchanged. Throws: as parallel::backward.
  void backward(const at::Tensor& loss, const parallel::BackwardOptions& options = {}) const;

  /// The scope of one batch, where gradient_accumulation_steps batches make one step: until the last of them, and the loader's
  /// last, these models (all prepared ones if none is named) keep their gradients on their rank, and prepared optimizers and
  /// schedulers wait. `const auto scope = accelerator.accumulate(model);` Call zero_grad() behind step(): at the head of the
  /// window's last batch it forgets those before. Collective: no, but all ranks call it alike. Blocks: no. Throws: UsageError
  /// for a model of another Accelerator.
  template <class... M>
  parallel::NoSync accumulate(const parallel::PreparedModel<M>&... models) const {
    return accumulate(ddps(models...));
  }
  /// A scope in which backward through these models (all prepared ones if none is named) does not exchange
  /// gradients; optimizers step all the same.
  /// Collective: no, but all ranks call it alike. Blocks: no. Throws: as accumulate.
  template <class... M>
  parallel::NoSync no_sync(const parallel::PreparedModel<M>&... models) const {
    return no_sync(ddps(models...));
  }

  /// Local SGD on a prepared model; see parallel::LocalSgd.
  /// Collective: no. Blocks: no. Throws: as accumulate; UsageError if num_steps is below 1.
  template <class M>
  parallel::LocalSgd local_sgd(const parallel::PreparedModel<M>& model,
                               const parallel::LocalSgdOptions& options = {}) const {
    require_ours(model.ddp());
    return parallel::LocalSgd(model, group(), local_sgd_options(options));
  }

  /// Runs `fn`, a loop in which some ranks have more batches than others. Ranks that have run out answer the collectives of the
  /// others with nothing; at the end they take over parameters, buffers, optimizers and schedulers. Gradients are the mean over
  /// the ranks that had data: a backward without a weight has weight 1. Refused in it: prepare of a model, a change of its
  /// parameters, join_uneven_inputs itself, a loop over a further loader whose ranks share an order where some have run out.
  /// `models` is a prepared model, or a tuple of several. Once for each loop over a loader. Collective: yes. Blocks: until all
  /// ranks have run out. Throws: UsageError on all ranks for what is refused, or for different calls of ranks with data.
  template <class M>
  void join_uneven_inputs(const M& models, const std::function<void()>& fn,
                          const parallel::JoinOptions& options = {}) const {
    if constexpr (parallel::is_prepared_model_v<M>) {
      require_ours(models.ddp());
    } else {
      std::apply([this](const auto&... model) { (require_ours(model.ddp()), ...); }, models);
    }
    join(fn, options);
  }

  /// The selected DeepSpeed plugin with its configuration; `select` takes another for models prepared from now on, each of
  /// which keeps its own. Throws: UsageError without one, or for an unknown name.
  const plan::DeepSpeedSettings& deepspeed_plugin() const;
  void select_deepspeed_plugin(const std::string& name) const;

  /// The precision in use: AcceleratorOptions::mixed_precision, else ACCELERATE_MIXED_PRECISION, else kNo.
  Precision mixed_precision() const noexcept;
  /// A scope in which more code computes in mixed_precision: `const auto scope = accelerator.autocast();`. With
  /// `{.enabled = false}` a part in float32. Nothing with kNo. Throws: UsageError for a dtype other than kHalf and kBFloat16.
  precision::Autocast autocast(const std::optional<precision::AutocastOptions>& options = {}) const;
  /// Exact values of weights below float32 (PrecisionOptions::weights); the loss scale with fp16. Null otherwise.
  const optim::LowWeights* low_weights() const noexcept;
  const precision::GradScaler* scaler() const;
  /// The scaler's state for a checkpoint, the same on all ranks; nothing unless losses are scaled.
  std::optional<precision::GradScalerState> scaler_state() const;
  /// Collective: no. Blocks: no. Throws: UsageError if losses are not scaled, or for a state that does not fit.
  void load_scaler_state(const precision::GradScalerState& state) const;
  /// Divides gradients (of one optimizer) by the loss scale, as clip_grad_norm_ and step do. Nothing if done, or inside a window.
  /// Collective: no, for gradients of prepared models. Blocks: until gradients are there. Throws: nothing.
  void unscale_gradients() const;
  void unscale_gradients(torch::optim::Optimizer& optimizer) const;
  template <class O>
  void unscale_gradients(const optim::PreparedOptimizer<O>& optimizer) const {
    unscale_gradients(optimizer.unwrap());
  }

  /// Scales gradients down so that the norm of all of them together (2-norm, or `norm_type`, which may be infinity) is at most
  /// max_norm; returns the norm before. To be called where sync_gradients(). With fp16 gradients are unscaled first; in the
  /// middle of a window it measures and changes nothing. Collective: where something is split. Blocks: then. Throws: CommError.
  double clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm,
                         double norm_type = 2.0) const;
  /// Cuts every element of the gradients to [-clip_value, clip_value]. Collective: no. Blocks: no. Throws: nothing.
  void clip_grad_value_(const std::vector<at::Tensor>& parameters, double clip_value) const;

  /// The module or optimizer that was handed to prepare; anything else as it is.
  template <class T>
  static auto& unwrap_model(T& model) {
    if constexpr (parallel::is_prepared_model_v<T>) {
      return model.unwrap();
    } else {
      return model;
    }
  }

  /// parallel::state_dict of a module, prepared or not.
  template <class M>
  static std::map<std::string, at::Tensor> get_state_dict(M& model) {
    return parallel::state_dict(parallel::module_of(unwrap_model(model)));
  }

  /// A loader that leaves out its first batches; see data::skip_first_batches.
  template <class Loader>
  static Loader skip_first_batches(const Loader& loader, size_t num_batches) {
    return data::skip_first_batches(loader, num_batches);
  }

  /// Gives memory that is free, but kept for the next step, back to the system.
  /// Collective: no. Blocks: no. Throws: nothing.
  void free_memory() const;

  /// As they were read: with what the environment says, and with logging_dir.
  const AcceleratorOptions& options() const noexcept;
  const std::filesystem::path& project_dir() const noexcept { return options().project_dir; }
  const std::filesystem::path& logging_dir() const noexcept { return options().logging_dir; }

 private:
  Accelerator(const ReadOptions& read, std::optional<process::Process> own);
  template <class T>
  static std::shared_ptr<std::remove_cvref_t<T>> hold(T&& object);
  template <class T>
  auto prepare_one(T&& object, bool place) const;
  template <class O>
  auto prepare_shared(std::shared_ptr<O> object) const;
  void fill_auto(const plan::AutoInputs& known) const;
  std::shared_ptr<torch::optim::Optimizer> make_real(const parallel::DummyOptim& dummy) const;
  std::shared_ptr<optim::Scheduler> make_real(const parallel::DummyScheduler& dummy) const;
  using Models = parallel::DistributedModels::Models;
  template <class... M>
  Models ddps(const parallel::PreparedModel<M>&... models) const {
    (require_ours(models.ddp()), ...);
    return {models.ddp()...};
  }
  void require_ours(const std::shared_ptr<const parallel::Ddp>& ddp) const;
  void join(const std::function<void()>& fn, const parallel::JoinOptions& options) const;
  parallel::OptimizerRegistry& optimizer_registry() const noexcept;
  parallel::NoSync accumulate(Models models) const;
  parallel::NoSync no_sync(Models models, bool exchanges = false) const;
  /// The Ddp of a module, made at the first call.
  std::shared_ptr<const parallel::Ddp> distribute(torch::nn::Module& module, bool place) const;
  parallel::LocalSgdOptions local_sgd_options(parallel::LocalSgdOptions options) const;
  std::shared_ptr<parallel::ForwardScopes> scopes_of(torch::nn::Module& module) const;
  void add_optimizer(const std::shared_ptr<torch::optim::Optimizer>& optimizer) const;
  data::LoaderOptions loader_options(bool place) const;
  optim::PreparedSchedulerOptions scheduler_options() const;

  struct Impl;
  std::shared_ptr<Impl> impl_;
};

/// Holders and shared_ptrs are copied (they share their module), other lvalues are borrowed, rvalues owned.
template <class T>
std::shared_ptr<std::remove_cvref_t<T>> Accelerator::hold(T&& object) {
  using Object = std::remove_cvref_t<T>;
  constexpr bool kBorrow =
      std::is_lvalue_reference_v<T> && !parallel::detail::is_module_pointer<Object>::value;
  if constexpr (kBorrow) {
    // Ends with its last handle, so that others can see whether the object is still borrowed.
    return std::shared_ptr<Object>(std::make_shared<std::byte>(), &object);
  } else {
    return std::make_shared<Object>(std::forward<T>(object));
  }
}

template <class O>
auto Accelerator::prepare_shared(std::shared_ptr<O> object) const {
  if constexpr (optim::is_optimizer_v<O>) {
    add_optimizer(object);
    return optim::PreparedOptimizer<O>(std::move(object), shared_gradient_state(), options().optimizer);
  } else {
    optimizer_registry().add_scheduler(object);
    return optim::PreparedScheduler<O>(std::move(object), shared_gradient_state(), scheduler_options());
  }
}

template <class T>
auto Accelerator::prepare_one(T&& object, [[maybe_unused]] bool place) const {
  using Object = std::remove_cvref_t<T>;
  static_assert(
      !data::is_torch_loader_v<Object>,
      "torch::data's loaders keep their sampler private and cannot be spread over ranks: make this one with "
      "hasten::data::loader<Sampler>(dataset, options) or accelerator.data_loader<Sampler>(dataset, "
      "options)");
  if constexpr (parallel::is_prepared_model_v<Object> || optim::is_prepared_optimizer_v<Object> ||
                optim::is_prepared_scheduler_v<Object>) {
    return Object(std::forward<T>(object));
  } else if constexpr (std::is_same_v<Object, torch::jit::Module>) {
    // Of a type that depends on T: clang looks for the function's return type at once otherwise.
    using Script = std::conditional_t<std::is_same_v<Object, torch::jit::Module>, parallel::JitModule, T>;
    return prepare_one(Script(std::forward<T>(object)), place);
  } else if constexpr (parallel::is_module_v<Object>) {
    auto model = hold(std::forward<T>(object));
    auto ddp = distribute(parallel::module_of(*model), place);
    auto scopes = scopes_of(parallel::module_of(*model));
    return parallel::PreparedModel<Object>(std::move(model), std::move(ddp), std::move(scopes));
  } else if constexpr (std::is_same_v<Object, parallel::DummyOptim> || std::is_same_v<Object, parallel::DummyScheduler>) {
    return prepare_shared(make_real(object));
  } else if constexpr (optim::is_optimizer_v<Object> || optim::SchedulerLike<Object>) {
    return prepare_shared(hold(std::forward<T>(object)));
  } else {
    static_assert(data::is_loader_v<Object> || data::is_torch_loader_v<Object>,
                  "prepare takes torch::nn modules, torch::optim optimizers, hasten::optim schedulers and "
                  "hasten::data loaders");
    Object loader(std::forward<T>(object));
    loader.prepare(process(), shared_gradient_state(), loader_options(place));
    return loader;
  }
}

}  // namespace hasten
