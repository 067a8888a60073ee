// AcceleratorState: the components of one Accelerator, which its copies and everything prepared share.
//
// Each component belongs to a room. The functions here let several of them act on one call of the training loop. Work
// of a single room stays in that room.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "accelerator/advice.h"
#include "accelerator/mixed_precision.h"
#include "accelerator/pipelines.h"
#include "accelerator/read_options.h"
#include "accelerator/step_exchanges.h"
#include "accelerator/step_record.h"
#include "accelerator/step_times.h"
#include "hasten/accelerator/options.h"
#include "hasten/accelerator/parallel_report.h"
#include "hasten/checkpoint/optimizer_parts.h"
#include "hasten/parallel/context/context_parallel.h"
#include "hasten/parallel/ddp/backward.h"
#include "hasten/parallel/ddp/distributed_models.h"
#include "hasten/parallel/ddp/no_sync.h"
#include "hasten/parallel/join/join.h"
#include "hasten/parallel/join/operations.h"
#include "hasten/parallel/layout/layout.h"
#include "hasten/parallel/local_sgd/local_sgd.h"
#include "hasten/parallel/survive/survive.h"
#include "hasten/parallel/tensor/clip_parts.h"
#include "hasten/plugins/plugins.h"
#include "hasten/process/distributed_type.h"
#include "hasten/process/process.h"
#include "hasten/tracking/run/trackers.h"
#include "hasten/training/accumulation.h"
#include "hasten/training/backward_observers.h"
#include "hasten/training/gradient_state.h"
#include "hasten/training/verify_recorder.h"

namespace hasten {

namespace checkpoint {
class Checkpoints;
}
namespace parallel {
class Sharding;
}
namespace process {
struct RejoiningProcess;
}

struct AcceleratorState {
  using Models = parallel::DistributedModels::Models;

  /// Without `own` a process that the environment describes. Collective, Blocks, Throws: as Accelerator's constructor.
  AcceleratorState(const ReadOptions& read, std::optional<process::Process> own);
  /// Starts a process by the environment. Refused variables end the program with their message, as those that the
  /// Process reads.
  static std::shared_ptr<AcceleratorState> make(const AcceleratorOptions& options, const Environment& environment);

  const process::Process& process() const noexcept { return operations->process(); }
  process::DistributedType distributed_type() const noexcept;

  void backward(const at::Tensor& loss, const parallel::BackwardOptions& options);
  /// A step of the prepared model's pipeline, whose gradients are those of the mean loss times the given number.
  using PipelineStep = std::function<at::Tensor(const parallel::Pipeline&, double scale)>;
  at::Tensor forward_backward(const PipelineStep& step, std::optional<double> weight);
  parallel::NoSync accumulate(Models chosen);
  /// `exchanges`: gradients are exchanged with every batch although the optimizer waits. `held`: what the scope keeps
  /// alive.
  parallel::NoSync no_sync(Models chosen, bool exchanges = false, std::shared_ptr<const void> held = {});
  parallel::SurviveReport survive(const parallel::SurviveOptions& survived, const parallel::SurvivedLoop& loop,
                                  const std::function<void(int64_t)>& after_epoch);
  void join_uneven_inputs(const std::function<void()>& fn, const parallel::JoinOptions& joined);
  std::shared_ptr<const parallel::Ddp> distribute(torch::nn::Module& module, bool place);
  /// Does fit_state for what optimizers hold already.
  void place_optimizers(const torch::nn::Module& module, bool is_new);
  /// Cuts an optimizer's state as the chosen parameters are, and moves all of it to its parameters' devices.
  /// Throws: UsageError for state that it is not known how to cut.
  void fit_state(torch::optim::Optimizer& optimizer, const checkpoint::ParameterChoice& chosen = {}) const;
  /// Throws: UsageError for an optimizer that steps cut parameters by norms or products of whole ones.
  void require_steps_of_parts(const torch::optim::Optimizer& optimizer) const;
  double clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm, double norm_type);
  void clip_grad_value_(const std::vector<at::Tensor>& parameters, double clip_value);
  parallel::LocalSgdOptions local_sgd_options(parallel::LocalSgdOptions options) const;
  Logger logger(const std::string& name, std::optional<LogLevel> level) const;
  void end_training();
  ParallelReport explain_parallel() const;

  /// The watch of a process that rejoins; null for others, which keep their own.
  std::shared_ptr<const void> process_watch = {};
  parallel::Layout layout;
  std::shared_ptr<training::GradientState> gradients = std::make_shared<training::GradientState>();
  std::shared_ptr<parallel::Operations> operations;
  std::shared_ptr<Plugins> plugins;
  /// The program's options with what the plugins request. `plugins` has them.
  const AcceleratorOptions& options;
  training::Accumulation accumulation;
  parallel::DistributedModels models = {};
  parallel::OptimizerRegistry optimizer_registry = {};
  /// Splits state over the ranks. Null where nothing is split.
  std::shared_ptr<parallel::Sharding> sharding = {};
  std::shared_ptr<MixedPrecision> precision = {};
  std::shared_ptr<checkpoint::Checkpoints> checkpoints = {};
  mutable tracking::Trackers trackers = {};
  std::shared_ptr<Advice> advice;
  /// Held by the open scopes of accumulate().
  std::shared_ptr<const void> open_scope = std::make_shared<char>();
  /// Saves the trackers' position in checkpoints.
  std::shared_ptr<void> tracked = {};
  /// Steps in the page of this rank, if it has one.
  std::shared_ptr<StepRecord> step_record =
      std::make_shared<StepRecord>(flight::process_recorder(), process(), gradients);
  std::shared_ptr<StepTimes> step_times = std::make_shared<StepTimes>(gradients);
  /// The exchanges of the last step between the ranks of a model.
  std::shared_ptr<StepExchanges> step_exchanges = std::make_shared<StepExchanges>();
  /// Writes down what each step computes (hasten verify); null without HASTEN_VERIFY.
  std::shared_ptr<training::VerifyRecorder> verify;
  training::BackwardObservers backward_observers = {};
  /// This process as loaders see it.
  process::Process data_process;
  /// Opened round the forwards of models whose parameters are cut.
  std::map<const torch::nn::Module*, std::shared_ptr<parallel::ForwardHook>> cut_models = {};
  /// Cuts the sequences that models get, over cp or sp.
  parallel::ContextParallel context;
  /// Takes the recorder off this loop.
  std::shared_ptr<void> verified = {};
  Pipelines pipelines;

 private:
  AcceleratorState(const ReadOptions& read, const process::RejoiningProcess& made);
  AcceleratorState(const ReadOptions& read, const process::Process& process);
  /// Backwards of one batch of each rank: several where this process computes those of all ranks.
  int64_t num_turns() const noexcept;
  Models not_held_back() const;
  void cut(torch::nn::Module& module, bool is_empty);
  void divide(torch::nn::Module& module);
  void require_evaluation(const torch::nn::Module& module) const;
  void require_divisible(const torch::nn::Module& module, bool is_dispatched) const;
  void require_cuttable(bool is_empty, const std::string& axis) const;
  parallel::ClipParts clip_parts() const { return {process().group(), layout, sharding}; }
  void start(const Environment& environment);
};

}  // namespace hasten
