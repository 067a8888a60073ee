// prepare_object: the customisation point of Accelerator::prepare. Preparation: the services that an Accelerator offers
// to it.
//
// prepare calls `prepare_object(preparation, object, place)` for each object, found by argument-dependent lookup. The
// overloads below are for modules, optimizers, schedulers and loaders. A further kind of object has its own beside its
// class; nothing here changes.
#pragma once

#include <c10/util/Type.h>

#include <cstddef>
#include <memory>
#include <type_traits>
#include <typeinfo>
#include <utility>

#include "hasten/accelerator/options.h"
#include "hasten/core/error.h"
#include "hasten/data/loader/loader.h"
#include "hasten/data/loader/loader_comparison.h"
#include "hasten/optim/prepared/prepared_optimizer.h"
#include "hasten/optim/prepared/prepared_scheduler.h"
#include "hasten/optim/schedulers/torch_scheduler.h"
#include "hasten/parallel/ddp/ddp.h"
#include "hasten/parallel/join/join.h"
#include "hasten/parallel/join/operations.h"
#include "hasten/parallel/model/jit_module.h"
#include "hasten/parallel/model/prepared_model.h"
#include "hasten/parallel/parameters/forward_scope.h"
#include "hasten/plugins/dummy.h"

namespace hasten {

struct AcceleratorState;

/// An Accelerator's interface for prepare_object. Valid as long as one keeps it; copies share the Accelerator's state.
class Preparation {
 public:
  explicit Preparation(std::shared_ptr<AcceleratorState> state) noexcept : state_(std::move(state)) {}

  const AcceleratorOptions& options() const noexcept;
  /// Rank and world are those of the ranks with other batches (parallel/layout/layout.h).
  const process::Process& process() const noexcept;
  const std::shared_ptr<training::GradientState>& gradient_state() const noexcept;

  /// Returns the module's Ddp, made at the first call. With `place`, it first moves the module to the process's device.
  /// Collective: yes, where it is made. Blocks: then. Throws: as Ddp's constructor; UsageError in a joined loop.
  std::shared_ptr<const parallel::Ddp> distribute(torch::nn::Module& module, bool place) const;
  /// Returns what is opened round the module's forward; one object for all handles of it.
  std::shared_ptr<parallel::ForwardScopes> scopes(torch::nn::Module& module) const;
  /// Registers what joined loops take over, and what loss scaling and weights below float32 treat.
  /// Throws: UsageError for an optimizer that such weights cannot go with.
  void add_optimizer(const std::shared_ptr<torch::optim::Optimizer>& optimizer) const;
  template <class S>
  void add_scheduler(const std::shared_ptr<S>& scheduler) const {
    optimizer_registry().add_scheduler(scheduler);
  }
  /// Registers the position of a loader, for checkpoints.
  template <class Core>
  void add_loader(const std::shared_ptr<Core>& core) const {
    optimizer_registry().add(training::StateKind::kLoader, core);
  }
  /// Compares the ranks' loaders, and warns of one without samples. `is_stream`: batches may come from rank 0's alone.
  /// Collective: yes, outside of a joined loop. Blocks: yes. Throws: as data::check_same_loader.
  void check_loader(const data::LoaderDescription& mine, bool is_stream) const;
  /// Returns true if settings of DeepSpeed or Megatron-LM wait for what prepare is given; fill_auto hands that over.
  bool takes_objects() const noexcept;
  void fill_auto(const plan::AutoInputs& known) const;
  /// Return what the selected DeepSpeed configuration names in a dummy's place. Throw: UsageError if it names nothing.
  std::shared_ptr<torch::optim::Optimizer> make_real(const parallel::DummyOptim& dummy) const;
  std::shared_ptr<optim::Scheduler> make_real(const parallel::DummyScheduler& dummy) const;
  data::LoaderOptions loader_options(bool place) const;
  optim::PreparedSchedulerOptions scheduler_options() const;

 private:
  parallel::OptimizerRegistry& optimizer_registry() const noexcept;
  std::shared_ptr<AcceleratorState> state_;
};

/// Holders and shared_ptrs are copied (they share their module), other lvalues are borrowed, rvalues owned.
template <class T>
std::shared_ptr<std::remove_cvref_t<T>> hold(T&& object) {
  using Object = std::remove_cvref_t<T>;
  constexpr bool kBorrow = std::is_lvalue_reference_v<T> && !parallel::detail::is_module_pointer<Object>::value;
  if constexpr (kBorrow) {
    // Ends with its last handle, so that others can check whether the object is still borrowed.
    return std::shared_ptr<Object>(std::make_shared<std::byte>(), &object);
  } else {
    return std::make_shared<Object>(std::forward<T>(object));
  }
}

/// Whether T is a handle that prepare has given; preparing it again returns a copy.
template <class T>
inline constexpr bool is_prepared_v =
    parallel::is_prepared_model_v<T> || optim::is_prepared_optimizer_v<T> || optim::is_prepared_scheduler_v<T>;

template <class T>
  requires is_prepared_v<T>
std::remove_cvref_t<T> prepare_object(const Preparation&, T&& handle, bool) {
  return std::forward<T>(handle);
}

template <class T>
  requires parallel::is_module_v<T>
auto prepare_object(const Preparation& preparation, T&& model, bool place) {
  auto held = hold(std::forward<T>(model));
  auto& module = parallel::module_of(*held);
  auto ddp = preparation.distribute(module, place);
  auto scopes = preparation.scopes(module);
  return parallel::PreparedModel<std::remove_cvref_t<T>>(std::move(held), std::move(ddp), std::move(scopes));
}

/// TorchScript's modules, which are no torch::nn modules.
template <class T>
  requires std::is_same_v<std::remove_cvref_t<T>, torch::jit::Module>
auto prepare_object(const Preparation& preparation, T&& script, bool place) {
  return prepare_object(preparation, parallel::JitModule(std::forward<T>(script)), place);
}

template <class O>
auto prepare_shared_optimizer(const Preparation& preparation, std::shared_ptr<O> held) {
  preparation.add_optimizer(held);
  return optim::PreparedOptimizer<O>(std::move(held), preparation.gradient_state(), preparation.options().optimizer);
}

template <class S>
auto prepare_shared_scheduler(const Preparation& preparation, std::shared_ptr<S> held) {
  preparation.add_scheduler(held);
  return optim::PreparedScheduler<S>(std::move(held), preparation.gradient_state(), preparation.scheduler_options());
}

template <class T>
  requires optim::is_optimizer_v<T>
auto prepare_object(const Preparation& preparation, T&& optimizer, bool) {
  return prepare_shared_optimizer(preparation, hold(std::forward<T>(optimizer)));
}

/// Returns `object`, an optimizer or scheduler that a factory has made. Throws: UsageError for an empty pointer.
template <class T>
std::shared_ptr<T> require_made(std::shared_ptr<T> object) {
  if (object == nullptr)
    throw UsageError("prepare was given an empty pointer to an optimizer or a scheduler. Make the object before prepare.");
  return object;
}

/// What factories return: shared pointers, and unique ones, which are owned if they are moved here, else borrowed.
template <class T>
concept Made = optim::is_optimizer_v<T> || optim::SchedulerLike<T>;
template <Made T>
auto prepare_object(const Preparation& preparation, std::shared_ptr<T> object, bool) {
  if constexpr (optim::is_optimizer_v<T>) {
    return prepare_shared_optimizer(preparation, require_made(std::move(object)));
  } else {
    return prepare_shared_scheduler(preparation, require_made(std::move(object)));
  }
}
template <Made T>
auto prepare_object(const Preparation& preparation, std::unique_ptr<T>&& object, bool place) {
  return prepare_object(preparation, std::shared_ptr<T>(std::move(object)), place);
}
template <Made T>
auto prepare_object(const Preparation& preparation, std::unique_ptr<T>& object, bool place) {
  return prepare_object(preparation, std::shared_ptr<T>(std::make_shared<std::byte>(), object.get()), place);
}

template <class T>
  requires(std::is_base_of_v<torch::optim::LRScheduler, std::remove_cvref_t<T>>)
void prepare_object(const Preparation&, T&&, bool) {
  static_assert(!std::is_base_of_v<torch::optim::LRScheduler, std::remove_cvref_t<T>>,
                "libtorch's schedulers keep their optimizer private: prepare(hasten::optim::TorchScheduler(scheduler, "
                "optimizer)), "
                "or use hasten::optim's scheduler of the same name");
}

template <class T>
  requires(optim::SchedulerLike<std::remove_cvref_t<T>> && !is_prepared_v<T>)
auto prepare_object(const Preparation& preparation, T&& scheduler, bool) {
  return prepare_shared_scheduler(preparation, hold(std::forward<T>(scheduler)));
}

/// The dummies of a DeepSpeed configuration: the optimizer or scheduler that it names.
template <class T>
  requires std::is_same_v<std::remove_cvref_t<T>, parallel::DummyOptim>
auto prepare_object(const Preparation& preparation, T&& dummy, bool) {
  return prepare_shared_optimizer(preparation, preparation.make_real(dummy));
}
template <class T>
  requires std::is_same_v<std::remove_cvref_t<T>, parallel::DummyScheduler>
auto prepare_object(const Preparation& preparation, T&& dummy, bool) {
  return prepare_shared_scheduler(preparation, preparation.make_real(dummy));
}

template <class T>
  requires data::is_loader_v<T>
std::remove_cvref_t<T> prepare_object(const Preparation& preparation, T&& loader, bool place) {
  std::remove_cvref_t<T> held(std::forward<T>(loader));
  held.prepare(preparation.process(), preparation.gradient_state(), preparation.loader_options(place));
  preparation.add_loader(held.core());
  using Dataset = typename std::remove_cvref_t<T>::DatasetType;
  preparation.check_loader({.dataset = c10::demangle(typeid(Dataset).name()),
                            .num_samples = held.total_dataset_length(),
                            .batch_size = held.options().batch_size(),
                            .drop_last = held.options().drop_last()},
                           data::is_stream_v<Dataset>);
  return held;
}

template <class T>
  requires data::is_torch_loader_v<std::remove_cvref_t<T>>
void prepare_object(const Preparation&, T&&, bool) {
  static_assert(!data::is_torch_loader_v<std::remove_cvref_t<T>>,
                "torch::data's loaders keep their sampler private and cannot be spread over ranks: make this one with "
                "hasten::data::loader<Sampler>(dataset, options) or accelerator.data_loader<Sampler>(dataset, "
                "options)");
}

/// Fills the "auto" values of a DeepSpeed configuration from the objects of one call of prepare.
template <class... T>
void note_objects(const Preparation& preparation, const T&... objects) {
  if (!preparation.takes_objects()) return;
  plan::AutoInputs known{.has_model = false};
  (parallel::note_for_auto(known, objects), ...);
  preparation.fill_auto(known);
}

/// Whether prepare takes a T.
template <class T>
concept Preparable = requires(const Preparation& preparation, T&& object) {
  prepare_object(preparation, std::forward<T>(object), true);
};

}  // namespace hasten
