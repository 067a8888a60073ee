// Accelerator: the front door. An ordinary libtorch training loop, with a few changed lines, on any number of
// processes.
//
// It forwards to the rooms and holds no logic of its own: who am I (state), loaders (data), gradients
// (parallel), collectives (comm). A value handle: copies, and everything prepared, share one state that lives
// as long as any of them. Follows Hugging Face's accelerate.Accelerator in names and meaning;
// docs/differences.md lists where it does not.
#pragma once

#include <algorithm>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "hasten/accelerator_options.h"
#include "hasten/comm/nested_operations.h"
#include "hasten/comm/objects.h"
#include "hasten/data/loader.h"
#include "hasten/data/metrics.h"
#include "hasten/optim/prepared_optimizer.h"
#include "hasten/optim/prepared_scheduler.h"
#include "hasten/parallel/distributed_models.h"
#include "hasten/parallel/no_sync.h"
#include "hasten/parallel/prepared_model.h"
#include "hasten/state/ordered.h"
#include "hasten/state/print.h"
#include "hasten/state/process.h"

namespace hasten {

class Accelerator {
 public:
  /// The process that the environment describes (hasten launch, torchrun, srun, mpirun; by itself a world of
  /// one). Collective: yes. Blocks: until all ranks have come. Throws: UsageError (half-set environment, busy
  /// port, an option that this version lacks), CommError (a rank did not come).
  explicit Accelerator(const AcceleratorOptions& options = {});
  /// A process made by the caller.
  explicit Accelerator(state::Process process, const AcceleratorOptions& options = {});

  /// Makes modules, optimizers, schedulers and loaders, in any mix and order, ready for this world; gives a
  /// handle for each, alone or as a tuple. Lvalues are borrowed and must outlive their handles (TORCH_MODULE
  /// holders and shared_ptrs share their module), rvalues are owned. Preparing twice is the same as once.
  /// Collective: yes, if there is a module. Blocks: then. Throws: UsageError, if the ranks' modules differ
  /// naming the first difference; CommError.
  template <class First, class... Rest>
  auto prepare(First&& first, Rest&&... rest) const {
    if constexpr (sizeof...(Rest) == 0) {
      return prepare_one(std::forward<First>(first));
    } else {
      // Braces: from left to right, since modules are prepared collectively.
      return std::tuple{prepare_one(std::forward<First>(first)), prepare_one(std::forward<Rest>(rest))...};
    }
  }

  /// data::loader and prepare in one: takes what torch::data::make_data_loader takes.
  template <class Sampler = torch::data::samplers::RandomSampler, class... Arguments>
  auto data_loader(Arguments&&... arguments) const {
    return prepare(data::loader<Sampler>(std::forward<Arguments>(arguments)...));
  }

  /// loss.backward(): gradients are the mean over all ranks when it returns. The loss is divided by
  /// gradient_accumulation_steps first.
  /// Collective: yes, if a prepared model took part and is not held back. Blocks: until gradients have been
  /// exchanged. Throws: UsageError for an undefined loss; CommError; what autograd throws.
  void backward(const at::Tensor& loss) const;

  /// The scope of one batch, where gradient_accumulation_steps batches make one step: until the last of them,
  /// and the loader's last, these models (all prepared ones if none is named) keep their gradients on their
  /// rank, and prepared optimizers and schedulers wait. `const auto scope = accelerator.accumulate(model);`
  /// Collective: no, but all ranks call it alike. Blocks: no. Throws: UsageError for a model of another
  /// Accelerator.
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

  /// Scales gradients down so that the norm of all of them together (2-norm, or `norm_type`, which may be
  /// infinity) is at most max_norm; returns the norm before. To be called where sync_gradients().
  /// Collective: no: gradients are alike on all ranks. Blocks: no. Throws: nothing.
  double clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm,
                         double norm_type = 2.0) const;
  /// Cuts every element of the gradients to [-clip_value, clip_value].
  /// Collective: no. Blocks: no. Throws: nothing.
  void clip_grad_value_(const std::vector<at::Tensor>& parameters, double clip_value) const;

  /// Raises a flag that check_trigger tells all ranks of, for a decision that one of them takes (stopping
  /// early, a loss that is no number).
  /// Collective: no. Blocks: no. Throws: nothing.
  void set_trigger() const noexcept;
  /// Whether any rank has called set_trigger since the last time this gave true; lowers the flags.
  /// Collective: yes. Blocks: yes. Throws: CommError.
  bool check_trigger() const;

  /// Everybody's tensors, concatenated along dim 0, in any nested structure (comm/nested.h).
  /// Collective: yes (as all of the following). Blocks: yes. Throws: CommError, also when the ranks'
  /// structures differ.
  template <class T>
  T gather(const T& value, comm::Group::Site site = comm::Group::Site::current()) const {
    return comm::gather(group(), value, site);
  }

  /// As gather, without the samples that were repeated to make the last batch even: over a loop each sample
  /// of the dataset exactly once, for any world size.
  template <class T>
  T gather_for_metrics(const T& value, comm::Group::Site site = comm::Group::Site::current()) const {
    return data::truncate_to_remainder(gather(value, site), gradient_state().position());
  }

  /// The same for objects, one a sample (strings, numbers, JSON: comm/objects.h).
  template <comm::Serialisable T>
  std::vector<T> gather_for_metrics(const std::vector<T>& objects,
                                    comm::Group::Site site = comm::Group::Site::current()) const {
    std::vector<T> all;
    for (auto& part : comm::gather_object(group(), objects, site)) {
      std::move(part.begin(), part.end(), std::back_inserter(all));
    }
    return data::truncate_objects(std::move(all), gradient_state().position());
  }

  /// Sum or mean over the ranks, elementwise, of any nested structure.
  template <class T>
  T reduce(const T& value, const comm::ReduceOptions& options = {},
           comm::Group::Site site = comm::Group::Site::current()) const {
    return comm::reduce(group(), value, options, site);
  }

  /// Pads every tensor along a dim to the largest size any rank has.
  template <class T>
  T pad_across_processes(const T& value, const comm::PadOptions& options = {},
                         comm::Group::Site site = comm::Group::Site::current()) const {
    return comm::pad_across_processes(group(), value, options, site);
  }

  void wait_for_everyone() const { process().wait_for_everyone(); }

  /// The module or optimizer that was handed to prepare; anything else as it is.
  template <class T>
  static auto& unwrap_model(T& model) {
    if constexpr (parallel::is_prepared_model_v<T>) {
      return model.unwrap();
    } else {
      return model;
    }
  }

  /// A loader that leaves out its first batches; see data::skip_first_batches.
  template <class Loader>
  static Loader skip_first_batches(const Loader& loader, size_t num_batches) {
    return data::skip_first_batches(loader, num_batches);
  }

  /// Gives memory that is free, but kept for the next step, back to the system.
  /// Collective: no. Blocks: no. Throws: nothing.
  void free_memory() const;

  /// Prints a line once per machine.
  /// Collective: no. Blocks: no. Throws: nothing.
  template <class... Parts>
  void print(const Parts&... parts) const {
    state::print(process(), parts...);
  }

  /// state::Process::on_main_process and on_local_main_process: `fn` on one process only.
  void on_main_process(const std::function<void()>& fn) const { process().on_main_process(fn); }
  void on_local_main_process(const std::function<void()>& fn) const { process().on_local_main_process(fn); }

  /// A logger whose lines carry the rank; see core/log.h for main_process_only and in_order.
  Logger logger(const std::string& name) const { return process().logger(name); }

  /// state::main_process_first and local_main_process_first: `fn` on the main process, then on the others.
  template <class Fn>
  auto main_process_first(Fn&& fn) const {
    return state::main_process_first(process(), std::forward<Fn>(fn));
  }
  template <class Fn>
  auto local_main_process_first(Fn&& fn) const {
    return state::local_main_process_first(process(), std::forward<Fn>(fn));
  }

  const state::Process& process() const noexcept;
  /// Whose collectives agree before data moves (GroupOptions::check).
  const comm::Group& group() const noexcept;
  const state::GradientState& gradient_state() const noexcept;
  const AcceleratorOptions& options() const noexcept;

  c10::Device device() const noexcept { return process().device(); }
  /// Accelerate's names of rank, local_rank and world_size.
  int process_index() const noexcept { return rank(); }
  int local_process_index() const noexcept { return local_rank(); }
  int num_processes() const noexcept { return world_size(); }
  bool use_distributed() const noexcept { return world_size() > 1; }
  int rank() const noexcept { return process().rank(); }
  int local_rank() const noexcept { return process().local_rank(); }
  int world_size() const noexcept { return process().world_size(); }
  bool is_main_process() const noexcept { return process().is_main_process(); }
  bool is_local_main_process() const noexcept { return process().is_local_main_process(); }
  bool is_last_process() const noexcept { return process().is_last_process(); }
  bool sync_gradients() const noexcept { return gradient_state().sync_gradients(); }
  bool optimizer_step_was_skipped() const noexcept { return gradient_state().optimizer_step_was_skipped(); }

 private:
  template <class T>
  static std::shared_ptr<std::remove_cvref_t<T>> hold(T&& object);
  template <class T>
  auto prepare_one(T&& object) const;
  using Models = parallel::DistributedModels::Models;
  template <class... M>
  Models ddps(const parallel::PreparedModel<M>&... models) const {
    (require_ours(models.ddp()), ...);
    return {models.ddp()...};
  }
  void require_ours(const std::shared_ptr<const parallel::Ddp>& ddp) const;
  parallel::NoSync accumulate(Models models) const;
  parallel::NoSync no_sync(Models models) const;
  /// The Ddp of a module, made at the first call.
  std::shared_ptr<const parallel::Ddp> distribute(torch::nn::Module& module) const;
  data::LoaderOptions loader_options() const;
  optim::PreparedSchedulerOptions scheduler_options() const;
  const std::shared_ptr<state::GradientState>& shared_gradient_state() const noexcept;

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
    return std::shared_ptr<Object>(std::shared_ptr<void>(), &object);
  } else {
    return std::make_shared<Object>(std::forward<T>(object));
  }
}

template <class T>
auto Accelerator::prepare_one(T&& object) const {
  using Object = std::remove_cvref_t<T>;
  static_assert(
      !data::is_torch_loader_v<Object>,
      "torch::data's loaders keep their sampler private and cannot be spread over ranks: make this one with "
      "hasten::data::loader<Sampler>(dataset, options) or accelerator.data_loader<Sampler>(dataset, "
      "options)");
  if constexpr (parallel::is_prepared_model_v<Object> || optim::is_prepared_optimizer_v<Object> ||
                optim::is_prepared_scheduler_v<Object>) {
    return Object(std::forward<T>(object));
  } else if constexpr (parallel::is_module_v<Object>) {
    auto model = hold(std::forward<T>(object));
    auto ddp = distribute(parallel::module_of(*model));
    return parallel::PreparedModel<Object>(std::move(model), std::move(ddp));
  } else if constexpr (optim::is_optimizer_v<Object>) {
    return optim::PreparedOptimizer<Object>(hold(std::forward<T>(object)), shared_gradient_state());
  } else if constexpr (optim::SchedulerLike<Object>) {
    return optim::PreparedScheduler<Object>(hold(std::forward<T>(object)), shared_gradient_state(),
                                            scheduler_options());
  } else {
    static_assert(data::is_loader_v<Object> || data::is_torch_loader_v<Object>,
                  "prepare takes torch::nn modules, torch::optim optimizers, hasten::optim schedulers and "
                  "hasten::data loaders");
    Object loader(std::forward<T>(object));
    loader.prepare(process(), shared_gradient_state(), loader_options());
    return loader;
  }
}

}  // namespace hasten
