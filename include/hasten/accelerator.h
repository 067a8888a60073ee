// Accelerator: the front door. An ordinary libtorch training loop, with a few changed lines, on any number of
// processes.
//
// A composition of components, one a room: process(), group(), operations(), gradient_state(), preparation() and so on.
// Accelerate's names are one-line forwards to them; no decision is made here (tidy). A value handle: copies, and
// everything prepared, share one state that lasts as long as any of them. Follows Hugging Face's accelerate.Accelerator
// in names and meaning; docs/differences.md lists where it does not.
#pragma once

#include <cstddef>
#include <functional>
#include <iosfwd>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "hasten/accelerator/options.h"
#include "hasten/accelerator/parallel_report.h"
#include "hasten/accelerator/preparation.h"
#include "hasten/checkpoint/checkpoints.h"
#include "hasten/checkpoint/project_save.h"
#include "hasten/comm/mesh/device_mesh.h"
#include "hasten/data/loader/data_loader.h"
#include "hasten/data/loader/loader.h"
#include "hasten/optim/prepared/low_weights.h"
#include "hasten/optim/prepared/prepared_optimizer.h"
#include "hasten/optim/prepared/prepared_scheduler.h"
#include "hasten/parallel/context/context_parallel.h"
#include "hasten/parallel/ddp/backward.h"
#include "hasten/parallel/ddp/distributed_models.h"
#include "hasten/parallel/ddp/no_sync.h"
#include "hasten/parallel/join/join.h"
#include "hasten/parallel/join/operations.h"
#include "hasten/parallel/local_sgd/local_sgd.h"
#include "hasten/parallel/model/prepared_model.h"
#include "hasten/parallel/pipeline/pipeline.h"
#include "hasten/parallel/shard/build.h"
#include "hasten/parallel/survive/survive.h"
#include "hasten/plugins/dummy.h"
#include "hasten/process/distributed_type.h"
#include "hasten/process/print.h"
#include "hasten/process/process.h"
#include "hasten/process/split.h"
#include "hasten/tracking/run/each.h"
#include "hasten/tracking/run/progress.h"
#include "hasten/tracking/run/trackers.h"
#include "hasten/training/deferred_scalar.h"
#include "hasten/training/image_values.h"
#include "hasten/watch/profiler.h"

namespace hasten {

namespace parallel {
class Sharding;
}

using process::DistributedType;

/// The types that prepare returns, for members and function parameters: `void train(hasten::Model<Net>& model,
/// hasten::Optimizer& optimizer)`. A function that takes a `Net&` takes the model as well; most programs need `auto`
/// alone.
template <class Net>
using Model = parallel::PreparedModel<Net>;
using Optimizer = optim::AnyPreparedOptimizer;
template <class Batch>
using DataLoader = data::DataLoader<Batch>;

class Accelerator {
 public:
  /// Returns the process that the environment describes (hasten launch, torchrun, srun, mpirun). A program started by
  /// hand is a world of one. Collective: yes. Blocks: until all ranks have come. Throws: UsageError (half-set
  /// environment, busy port, an option that this version lacks), CommError (a rank did not come).
  explicit Accelerator(const AcceleratorOptions& options = {});
  // Moves copy: a handle that was moved from is one still.
  Accelerator(const Accelerator&) = default;
  Accelerator& operator=(const Accelerator&) = default;
  /// A process made by the caller.
  explicit Accelerator(process::Process process, const AcceleratorOptions& options = {});

  // ---- Components.

  /// Inside join_uneven_inputs, collectives on the group of process() and on group() may be refused. They throw
  /// UsageError on all ranks as soon as a rank has run out of data. reduce, gather and the like below go on.
  const process::Process& process() const noexcept { return operations_->own_process(); }
  /// Returns the group whose collectives are checked before data moves (GroupOptions::check).
  const comm::Group& group() const noexcept { return operations_->own_group(); }
  /// Collectives of the loop, also in loops of uneven length.
  parallel::Operations& operations() const noexcept { return *operations_; }
  const training::GradientState& gradient_state() const noexcept { return *operations_->gradient_state(); }
  /// Splits state over the ranks: slices of optimizer state, gathered into whole ones for saving. Null where nothing is
  /// split.
  const std::shared_ptr<parallel::Sharding>& sharding() const noexcept;
  /// Saving and loading the run's state (checkpoint/checkpoints.h).
  checkpoint::Checkpoints& checkpoints() const noexcept;
  /// Returns the argument of prepare_object, for a program's own kinds of objects (accelerator/preparation.h).
  Preparation preparation() const noexcept { return Preparation(state_); }

  // ---- The ranks, under the names of Accelerate and torch.

  c10::Device device() const noexcept { return process().device(); }
  int process_index() const noexcept { return rank(); }
  int local_process_index() const noexcept { return local_rank(); }
  int num_processes() const noexcept { return world_size(); }
  bool use_distributed() const noexcept { return world_size() > 1; }
  /// kFsdp or kDeepSpeed if their settings were given, else by the process's device.
  DistributedType distributed_type() const noexcept;
  int rank() const noexcept { return process().rank(); }
  int local_rank() const noexcept { return process().local_rank(); }
  int world_size() const noexcept { return process().world_size(); }
  bool is_main_process() const noexcept { return process().is_main_process(); }
  bool is_local_main_process() const noexcept { return process().is_local_main_process(); }
  bool is_last_process() const noexcept { return process().is_last_process(); }
  /// Return this rank's places along the axes of `.parallel`: 0 along an axis of one rank. data_parallel_rank is that
  /// along dp_replicate, as Accelerate's. Throw: UsageError if the program lays out nothing.
  int tensor_parallel_rank() const;
  int data_parallel_rank() const;
  int data_parallel_shard_rank() const;
  int pipeline_parallel_rank() const;
  /// Along cp or sp.
  int context_parallel_rank() const;
  /// Returns the axes pp, dp_replicate, dp_shard, cp, sp and tp with their groups, also those of one rank.
  /// Collective: at the first call where data alone is divided. Blocks: then. Throws: UsageError if the program sets
  /// no layout; CommError.
  const comm::DeviceMesh& mesh() const;
  bool sync_gradients() const noexcept { return gradient_state().sync_gradients(); }
  bool optimizer_step_was_skipped() const noexcept { return gradient_state().optimizer_step_was_skipped(); }

  // ---- What gets ready for this world.

  /// Makes modules, optimizers, schedulers and loaders, in any mix and order, ready for this world. Returns a handle
  /// for each, alone or as a tuple. Lvalues are borrowed and must outlive their handles (TORCH_MODULE holders and
  /// shared_ptrs share what they point to), rvalues are owned. A model whose last handle is gone is no longer
  /// exchanged. Preparing twice is the same as once. Options may come first: `prepare({.device_placement = {true,
  /// false}}, net, loader)`. Collective: yes, if there is a module or a loader. Blocks: then. Throws: UsageError if the
  /// ranks' modules differ, naming the first difference, or their loaders' lengths and batch sizes; CommError. A
  /// further kind of object has a prepare_object of its own (accelerator/preparation.h).
  template <class... T>
  [[nodiscard]] auto prepare(const PrepareOptions& own, T&&... objects) const {
    static_assert((Preparable<T> && ...),
                  "prepare takes torch::nn modules, torch::optim optimizers, hasten::optim schedulers, hasten::data "
                  "loaders, and objects with a prepare_object of their own (hasten/accelerator/preparation.h)");
    note_objects(preparation(), objects...);
    const auto placed = device_placements(own, sizeof...(T), options().device_placement);
    auto place = placed.begin();
    if constexpr (sizeof...(T) == 1) {
      return prepare_object(preparation(), std::forward<T>(objects)..., *place);
    } else {
      // Braces: from left to right, since modules are prepared collectively.
      return std::tuple{prepare_object(preparation(), std::forward<T>(objects), *place++)...};
    }
  }
  template <class First, class... Rest>
    requires(!std::is_same_v<std::remove_cvref_t<First>, PrepareOptions>)
  [[nodiscard]] auto prepare(First&& first, Rest&&... rest) const {
    return prepare(PrepareOptions{}, std::forward<First>(first), std::forward<Rest>(rest)...);
  }

  /// prepare for one kind, under Accelerate's names. `device_placement` unset: that of the options.
  template <class M>
    requires parallel::is_module_v<std::remove_cvref_t<M>>
  [[nodiscard]] auto prepare_model(M&& model, std::optional<bool> device_placement = {}) const {
    return prepare(placed(device_placement), std::forward<M>(model));
  }
  template <class O>
    requires optim::is_optimizer_v<O>
  [[nodiscard]] auto prepare_optimizer(O&& optimizer, std::optional<bool> device_placement = {}) const {
    return prepare(placed(device_placement), std::forward<O>(optimizer));
  }
  template <optim::SchedulerLike S>
  [[nodiscard]] auto prepare_scheduler(S& scheduler) const {
    return prepare(scheduler);
  }
  template <class L>
    requires data::is_loader_v<std::remove_cvref_t<L>>
  [[nodiscard]] auto prepare_data_loader(L&& loader, std::optional<bool> device_placement = {}) const {
    return prepare(placed(device_placement), std::forward<L>(loader));
  }

  /// Returns what `fn` returns, a module holder or a shared pointer: `accelerator.build([&] { return Llama(config);
  /// })`. Where parameters are split over the ranks, none of them takes memory for its own before prepare
  /// (parallel/shard/build.h). Throws: as offload::empty_weights.
  template <class F>
  auto build(F&& fn) const {
    return parallel::build(sharding(), std::forward<F>(fn));
  }

  /// data::loader and prepare in one: takes what torch::data::make_data_loader takes.
  template <class Sampler = torch::data::samplers::RandomSampler, class... Arguments>
  auto data_loader(Arguments&&... arguments) const {
    return prepare(data::loader<Sampler>(std::forward<Arguments>(arguments)...));
  }

  // ---- Training.

  /// loss.backward(): gradients are the mean over all ranks when it returns. The loss is divided by
  /// gradient_accumulation_steps first. With a weight (`{.weight = num_tokens}`) they are the mean over all samples of
  /// the window on all ranks. If the window has no samples, prepared optimizers skip the step.
  /// Collective: yes, unless all models are held back. A rank whose loss does not depend on a model offers no gradient.
  /// Blocks: until gradients have been exchanged. Throws: as parallel::backward.
  void backward(const at::Tensor& loss, const parallel::BackwardOptions& options = {}) const;

  /// A batch of a model on several stages (AcceleratorOptions::parallel, pp). It splits the batch into microbatches.
  /// Forward and backward of `loss(part)`, which computes with the prepared model, run in the pipeline's order. Returns
  /// the mean loss, the same on every rank; gradients are those of backward. With pp = 1 the batch is split only if
  /// microbatches are set. Parts count by their samples; with `weight(part)` parts and ranks count by it.
  /// Collective: yes. Blocks: until gradients have been exchanged. Throws: as parallel::Pipeline::forward_backward and
  /// backward; UsageError for another number of prepared models than one.
  template <class Batch, class Loss>
  at::Tensor forward_backward(const Batch& batch, Loss&& loss,
                              const std::function<double(const Batch&)>& weight = {}) const {
    return run_step([&](const parallel::Pipeline& pipeline,
                        double scale) { return pipeline.forward_backward(batch, loss, weight, scale); },
                    parallel::weight_of(batch, weight));
  }

  /// Calls `fn` with these tensors, each cut along the dimension of its sequence over cp or sp. Returns what `fn`
  /// returns: `context_parallel({{ids, 1}, {labels, 1}}, [&](auto ids, auto labels) { … })`. Where neither axis has
  /// ranks, `fn` gets the tensors themselves. Nothing is written in place, so nothing has to be restored (Accelerate's
  /// no_restore_buffers). Throws: as parallel::ContextParallel::cut; the exceptions of `fn`.
  template <size_t N, class Fn>
  decltype(auto) context_parallel(const parallel::SequenceTensor (&tensors)[N], Fn&& fn) const {
    return [&]<size_t... I>(std::index_sequence<I...>) -> decltype(auto) {
      return std::invoke(std::forward<Fn>(fn), cut_sequence(tensors[I])...);
    }(std::make_index_sequence<N>());
  }
  /// Returns how models and sequences are divided over the ranks: modules, cuts and stages. It has the exchanges and
  /// their bytes in the last step as well, and operators that ran on whole values. For people it is
  /// `accelerator.explain_parallel().text()`.
  ParallelReport explain_parallel() const;

  /// Opens the scope of one batch, where gradient_accumulation_steps batches make one step. Until the last of them, and
  /// the loader's last, these models keep their gradients on their rank. Prepared optimizers and schedulers wait as
  /// long. If no model is named, all prepared ones count. `const auto scope = accelerator.accumulate(model);`
  /// zero_grad() of a prepared optimizer stands at the head of the loop or behind step(): it keeps what waits.
  /// Collective: no, but all ranks call it alike. Throws: UsageError for a model of another Accelerator.
  template <class... M>
  parallel::NoSync accumulate(const parallel::PreparedModel<M>&... models) const {
    return accumulate(ddps(models...));
  }
  /// Opens a scope in which backward through these models does not exchange gradients. If no model is named, all
  /// prepared ones count. Optimizers step all the same.
  /// Collective: no, but all ranks call it alike. Throws: as accumulate.
  template <class... M>
  parallel::NoSync no_sync(const parallel::PreparedModel<M>&... models) const {
    return no_sync(ddps(models...));
  }

  /// Local SGD on a prepared model, over the ranks with other batches; see parallel::LocalSgd.
  /// Throws: as accumulate; UsageError if num_steps is below 1.
  template <class M>
  parallel::LocalSgd local_sgd(const parallel::PreparedModel<M>& model,
                               const parallel::LocalSgdOptions& options = {}) const {
    require_ours(model.ddp());
    return parallel::LocalSgd(model, operations_->data(), local_sgd_options(options));
  }

  /// Runs `fn`, a loop in which some ranks have more batches than others. A rank that has run out takes part in the
  /// others' collectives without data. Ranks of one model (tp, pp, cp, sp) run out together. At the end it takes over
  /// parameters, buffers, optimizers and schedulers. Gradients are the mean over the ranks that had data: a backward
  /// without a weight has weight 1. These are refused inside: preparing a model, changing its parameters,
  /// join_uneven_inputs itself. Once a rank has run out, a loop over another loader with a shared order is refused too.
  /// `models` is a prepared model, or a tuple of several. Once for each loop over a loader. Collective: yes. Blocks:
  /// until all ranks have run out. Throws: UsageError on all ranks for what is refused, or for different calls of ranks
  /// with data.
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

  /// Runs `options.epochs` passes of `step(batch)` over a prepared loader, and `after_epoch(epoch)` behind each. Under
  /// `hasten launch --survive N` it goes on when ranks die. Each is replaced under its number, runs main() up to here,
  /// and takes the state of another (docs/survive.md). Elsewhere it is the plain loop.
  /// Collective: yes. Blocks: until all ranks have ended. Throws: as parallel::survive.
  template <class L, class Step>
  parallel::SurviveReport survive(const parallel::SurviveOptions& options, const L& loader, Step&& step,
                                  const std::function<void(int64_t epoch)>& after_epoch = {}) const {
    return run_survived(options, parallel::survived_loop(loader, step), after_epoch);
  }

  /// Returns the selected DeepSpeed plugin with its configuration. `select` takes another for models prepared from now
  /// on; each model keeps its own. Throws: UsageError without one, or for an unknown name.
  const plan::DeepSpeedSettings& deepspeed_plugin() const;
  /// Returns the same, null without one, where Accelerate's deepspeed_plugin is None.
  const plan::DeepSpeedSettings* find_deepspeed_plugin() const noexcept;
  void select_deepspeed_plugin(const std::string& name) const;

  /// Returns the precision in use: AcceleratorOptions::mixed_precision, else ACCELERATE_MIXED_PRECISION, else kNo.
  Precision mixed_precision() const noexcept;
  /// Returns a scope in which more code computes in mixed_precision: `const auto scope = accelerator.autocast();`. With
  /// `{.enabled = false}` a part in float32. Nothing with kNo. Throws: UsageError for a dtype other than kHalf and
  /// kBFloat16.
  precision::Autocast autocast(const std::optional<precision::AutocastOptions>& options = {}) const;
  /// Returns the exact values of weights below float32 (PrecisionOptions::weights). Null where weights are float32.
  const optim::LowWeights* low_weights() const noexcept;
  /// Returns the loss scale of fp16. Null where losses are not scaled.
  const precision::GradScaler* scaler() const;
  /// Returns the scaler's state for a checkpoint, the same on all ranks; nothing unless losses are scaled.
  std::optional<precision::GradScalerState> scaler_state() const;
  /// Throws: UsageError if losses are not scaled, or for a state that does not fit.
  void load_scaler_state(const precision::GradScalerState& state) const;
  /// Divides gradients (of one optimizer) by the loss scale, as clip_grad_norm_ and step do. Nothing if done, or inside
  /// a window. Collective: no, for gradients of prepared models. Blocks: until gradients are there.
  void unscale_gradients() const;
  void unscale_gradients(torch::optim::Optimizer& optimizer) const;
  template <class O, class... More>
  void unscale_gradients(const optim::PreparedOptimizer<O>& optimizer,
                         const optim::PreparedOptimizer<More>&... more) const {
    unscale_gradients(optimizer.unwrap());
    (unscale_gradients(more.unwrap()), ...);
  }

  /// Scales gradients down so that the norm of all of them together is at most max_norm; returns the norm before. The
  /// norm is the 2-norm, or `norm_type`, which may be infinity. To be called where sync_gradients(). With fp16 it
  /// unscales gradients first. In the middle of a window it measures and changes nothing. Collective: where something
  /// is split. Blocks: then. Throws: CommError.
  double clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm, double norm_type = 2.0) const;
  /// Cuts gradients to [-clip_value, clip_value]. Collective: where something is split. Blocks: then. Throws:
  /// CommError.
  void clip_grad_value_(const std::vector<at::Tensor>& parameters, double clip_value) const;

  /// Returns the module or optimizer that was handed to prepare; anything else as it is.
  template <class T>
  static auto& unwrap_model(T& model) {
    if constexpr (parallel::is_prepared_model_v<T>) {
      return model.unwrap();
    } else {
      return model;
    }
  }

  /// Returns a handle without Ddp: forward runs under autocast and gives float32, as the prepared model's does.
  template <class M>
  static parallel::PreparedModel<M> unwrap_model(const parallel::PreparedModel<M>& model, parallel::KeepFp32Wrapper) {
    return model.without_ddp();
  }

  /// watch::profile: `accelerator.profile({.record_shapes = true}, [&](watch::Profiler& profiler) { … })`, with
  /// `profiler.step()` once a step.
  void profile(watch::ProfileOptions options, const std::function<void(watch::Profiler&)>& fn) const {
    watch::profile(process(), std::move(options), fn);
  }

  // ---- Checkpoints: checkpoint::Checkpoints and checkpoint/weights.h under Accelerate's names.

  checkpoint::Save save_state(const std::string& path = {}, const checkpoint::SaveOptions& options = {}) const {
    return checkpoints().save_state(path, options);
  }
  checkpoint::Loaded load_state(const std::string& path = {}, const checkpoint::LoadOptions& options = {}) const {
    return checkpoints().load_state(path, options);
  }
  std::optional<checkpoint::Loaded> resume(const checkpoint::ResumeOptions& options = {}) const {
    return checkpoints().resume(options);
  }
  /// `("ema", ema)`, or objects alone, which are numbered: each has state() and load_state() (training/stateful.h).
  template <class... T>
  void register_for_checkpointing(T&&... objects) const {
    checkpoint::register_objects(checkpoints(), std::forward<T>(objects)...);
  }
  checkpoint::HookHandle register_save_state_pre_hook(checkpoint::Checkpoints::Hook hook) const {
    return checkpoints().add_save_hook(std::move(hook));
  }
  checkpoint::HookHandle register_load_state_pre_hook(checkpoint::Checkpoints::Hook hook) const {
    return checkpoints().add_load_hook(std::move(hook));
  }
  int64_t save_iteration() const noexcept { return checkpoints().save_iteration(); }
  /// checkpoint::save_model of a model, prepared or not, on the first process (of each host with save_on_each_node).
  /// Blocks: on the disk. Throws: as checkpoint::save_model.
  template <class M>
  void save_model(M& model, const std::string& folder, const checkpoint::SaveModelOptions& options = {}) const {
    checkpoint::save_model(process(), this->options().project, parallel::module_of(unwrap_model(model)), folder,
                           options);
  }
  /// checkpoint::save of tensors, a StateDict, plain or nested values, or a module's state_dict, on the first process.
  template <class T>
  void save(const T& object, const std::string& path, const checkpoint::SaveFileOptions& options = {}) const {
    checkpoint::save(process(), this->options().project, unwrap_model(object), path, options);
  }
  /// Returns checkpoint::state_dict of a module, prepared or not, on every rank. It copies only as the options say, or
  /// the settings of FSDP and DeepSpeed (state_dict_config, stage3_gather_16bit_weights_on_model_save).
  template <class M>
  checkpoint::StateDict get_state_dict(M& model, const checkpoint::GetStateDictOptions& options = {}) const {
    return checkpoint::converted(checkpoint::state_dict(parallel::module_of(unwrap_model(model))), rank(),
                                 state_dict_options(options));
  }

  /// Returns a loader that leaves out its first batches; see data::skip_first_batches.
  template <class Loader>
  static Loader skip_first_batches(const Loader& loader, size_t num_batches) {
    return data::skip_first_batches(loader, num_batches);
  }

  // ---- Trackers of the run (tracking/run/trackers.h, docs/tracking.md): one-line forwards under Accelerate's names.

  tracking::Trackers& trackers() const noexcept;
  void init_trackers(const std::string& project_name, const tracking::Config& config = {},
                     const tracking::Config& init_kwargs = {}) const {
    trackers().init(project_name, config, init_kwargs);
  }
  void log(const tracking::Values& values, std::optional<int64_t> step = {},
           const tracking::Config& log_kwargs = {}) const {
    trackers().log(values, step, log_kwargs);
  }
  void log_images(const tracking::ImageValues& images, std::optional<int64_t> step = {},
                  const tracking::Config& log_kwargs = {}) const {
    trackers().log_images(images, step, log_kwargs);
  }
  void log_table(const std::string& key, const tracking::Table& table, std::optional<int64_t> step = {}) const {
    trackers().log_table(key, table, step);
  }
  void log_figure(const std::string& key, const std::filesystem::path& file, std::optional<int64_t> step = {}) const {
    trackers().log_figure(key, file, step);
  }
  void log_artifact(const std::filesystem::path& file, const std::string& artifact_path = "") const {
    trackers().log_artifact(file, artifact_path);
  }
  void log_artifacts(const std::filesystem::path& folder, const std::string& artifact_path = "") const {
    trackers().log_artifacts(folder, artifact_path);
  }
  tracking::TrackerHandle get_tracker(const std::string& name) const { return trackers().tracker(name); }
  /// Returns a progress bar on each machine's main process (Accelerate's utils.tqdm), or on the ranks of
  /// options.enabled.
  tracking::Progress progress(std::optional<int64_t> total, tracking::ProgressOptions options = {}) const {
    options.enabled = options.enabled && is_local_main_process();
    return tracking::Progress(total, std::move(options));
  }

  // ---- What the ranks do together (parallel/join/operations.h).

  /// Concatenates the ranks' tensors along dim 0 and their lists of objects, in any nested structure
  /// (comm/nested/nested.h). Collective: yes (as all of the following). Blocks: yes. Throws: CommError, also when the
  /// ranks' structures differ.
  template <class T>
  T gather(const T& value, comm::Group::Site site = comm::Group::Site::current()) const {
    return operations_->gather(value, site);
  }
  /// Gathers as gather does, without the samples that were repeated to make the last batch even. Over a loop, each
  /// sample of the dataset comes exactly once, for any world size. A vector of objects (strings, numbers, JSON) holds
  /// one a sample.
  template <class T>
  T gather_for_metrics(const T& value, comm::Group::Site site = comm::Group::Site::current()) const {
    return operations_->gather_for_metrics(value, site);
  }
  /// data::without_padding of this rank's part of the batch in hand, for metrics that each rank counts
  /// (data/metrics/counted_metrics.h).
  /// Throws: as data::without_padding.
  template <class T>
  T without_padding(const T& value) const {
    return data::without_padding(value, gradient_state().position(), preparation().process().rank());
  }
  /// Sum or mean over the ranks, elementwise, of the tensors and numbers of any nested structure.
  template <class T>
  T reduce(const T& value, const comm::ReduceOptions& options = {},
           comm::Group::Site site = comm::Group::Site::current()) const {
    return operations_->reduce(value, options, site);
  }
  /// Pads every tensor along a dim to the largest size any rank has.
  template <class T>
  T pad_across_processes(const T& value, const comm::PadOptions& options = {},
                         comm::Group::Site site = comm::Group::Site::current()) const {
    return operations_->pad_across_processes(value, options, site);
  }
  /// Ends a training and the run of the trackers. When it returns, saves under way are complete, all ranks have come,
  /// and their parameters have been compared (Ddp::check_parameters). To be called once, last. Collective: yes. Blocks:
  /// at most TrackingOptions::finish_timeout_s for trackers, and until all have come. Throws: DataError with what went
  /// wrong in a save; UsageError naming a parameter that differs between the ranks; CommError.
  void end_training() const;
  void wait_for_everyone() const { operations_->wait_for_everyone(); }
  /// Raises a flag that check_trigger reports on all ranks. It serves a decision of a single rank (stopping early, a
  /// loss that is no number).
  void set_trigger() const noexcept { operations_->set_trigger(); }
  /// Returns true if any rank has called set_trigger since the last time this gave true; lowers the flags.
  /// Collective: yes. Blocks: yes. Throws: CommError.
  bool check_trigger() const { return operations_->check_trigger(); }
  /// Returns true if SIGTERM or SIGUSR1 has come to any rank. A cluster announces the end of a job with these signals.
  /// The answer is the same on all ranks. Call it at the end of a step. From the first call on, these signals are
  /// recorded and no longer end the process by themselves (process::StopSignals). Collective: yes. Blocks: yes. Throws:
  /// CommError.
  bool should_stop() const { return operations_->should_stop(); }
  /// memory::find_executable_batch_size: halves `start` until `fn(batch_size)` fits into memory on all ranks
  /// (in join_uneven_inputs on those with data).
  template <class Fn>
  auto find_executable_batch_size(int64_t start, Fn&& fn) const {
    return operations_->find_executable_batch_size(start, std::forward<Fn>(fn));
  }
  /// process::split_between_processes: this rank's share of a vector, a tensor, or a map of them.
  template <class T>
  T split_between_processes(const T& values, bool apply_padding = false) const {
    return process::split_between_processes(preparation().process(), values, apply_padding);
  }
  /// Prints a line once per machine.
  template <class... Parts>
  void print(const Parts&... parts) const {
    process::print(process(), parts...);
  }
  /// The functions of process::Process under these names: `fn` on one process only, or one of each machine.
  void on_main_process(const std::function<void()>& fn) const { process().on_main_process(fn); }
  void on_local_main_process(const std::function<void()>& fn) const { process().on_local_main_process(fn); }
  void on_last_process(const std::function<void()>& fn) const { process().on_last_process(fn); }
  void on_process(int rank, const std::function<void()>& fn) const { process().on_process(rank, fn); }
  void on_local_process(int local_rank, const std::function<void()>& fn) const {
    process().on_local_process(local_rank, fn);
  }
  /// Returns a logger whose lines carry the rank; see core/log.h for main_process_only and in_order. Its lines from
  /// warning on are notes of the run as well. `level` unset: log_level of the environment.
  Logger logger(const std::string& name, std::optional<LogLevel> level = {}) const;
  /// process::main_process_first and local_main_process_first: `fn` on the main process, then on the others. In
  /// join_uneven_inputs the first rank with data (of each machine) replaces a main process that has none.
  template <class Fn>
  auto main_process_first(Fn&& fn) const {
    return operations_->main_process_first(std::forward<Fn>(fn));
  }
  template <class Fn>
  auto local_main_process_first(Fn&& fn) const {
    return operations_->local_main_process_first(std::forward<Fn>(fn));
  }

  /// Ends a training before the next one. Forgets prepared optimizers, schedulers, loaders and registered objects, so
  /// that no save or load includes them. Sets the step of accumulation to 0, and gives free memory back to the system.
  void free_memory() const;
  /// free_memory, by Accelerate's other name.
  void clear() const { free_memory(); }

  /// Returns the options as they were read, with the environment's values and logging_dir.
  const AcceleratorOptions& options() const noexcept;
  const std::filesystem::path& project_dir() const noexcept { return options().project.project_dir; }
  const std::filesystem::path& logging_dir() const noexcept { return options().project.logging_dir; }

 private:
  explicit Accelerator(std::shared_ptr<AcceleratorState> state);
  using Models = parallel::DistributedModels::Models;
  template <class... M>
  Models ddps(const parallel::PreparedModel<M>&... models) const {
    (require_ours(models.ddp()), ...);
    return {models.ddp()...};
  }
  static PrepareOptions placed(std::optional<bool> device_placement) {
    return {.device_placement = std::vector<bool>(device_placement.has_value(), device_placement.value_or(true))};
  }
  void require_ours(const std::shared_ptr<const parallel::Ddp>& ddp) const;
  void join(const std::function<void()>& fn, const parallel::JoinOptions& options) const;
  parallel::SurviveReport run_survived(const parallel::SurviveOptions& options, const parallel::SurvivedLoop& loop,
                                       const std::function<void(int64_t epoch)>& after_epoch) const;
  using PipelineStep = std::function<at::Tensor(const parallel::Pipeline&, double scale)>;
  at::Tensor cut_sequence(const parallel::SequenceTensor& tensor) const;
  at::Tensor run_step(const PipelineStep& step, std::optional<double> weight) const;
  parallel::NoSync accumulate(Models models) const;
  parallel::NoSync no_sync(Models models) const;
  parallel::LocalSgdOptions local_sgd_options(parallel::LocalSgdOptions options) const;
  checkpoint::GetStateDictOptions state_dict_options(const checkpoint::GetStateDictOptions& options) const;

  std::shared_ptr<AcceleratorState> state_;
  std::shared_ptr<parallel::Operations> operations_;
};

/// Writes one line for bug reports (Accelerate's `print(accelerator.state)`): "hasten 0.1.0, rank 0/2, local rank 0/2,
/// MULTI_CPU, device cpu, backend shm, mixed precision bf16, 4 batches to a step".
std::ostream& operator<<(std::ostream& out, const Accelerator& accelerator);

}  // namespace hasten
