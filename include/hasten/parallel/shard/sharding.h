// Sharding: the models of an Accelerator whose state is split over the ranks, and the steps of their optimizers.
//
// Each rank steps the slices that it owns, in the memory that its host shares. The optimizer's own class or the fused
// kernels step them, with slices in the place of parameters. So names, groups, learning rates and the state's types
// stay libtorch's. Between steps any rank may read all parameters without a collective. The layout is
// sharded_model.h's, gradients are shard_bucket.h's.
#pragma once

#include <torch/optim/optimizer.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "hasten/comm/group/group.h"
#include "hasten/parallel/ddp/gradient_exchange.h"
#include "hasten/parallel/shard/options.h"
#include "hasten/parallel/shard/plan.h"

namespace hasten::parallel {

namespace shard {
struct SplitParameter;
using SplitParameters = std::unordered_map<const c10::TensorImpl*, SplitParameter>;
}  // namespace shard

/// A piece of optimizer state as this rank has it.
struct ShardedStatePiece {
  std::string parameter;
  /// "exp_avg", "momentum_buffer" …
  std::string name;
  /// The elements of the flat parameter that `tensor` belongs to.
  ShardInterval interval;
  std::vector<int64_t> parameter_sizes;
  at::Tensor tensor;
  /// The parameter itself.
  at::Tensor of = {};
};

/// A collective of a Sharding that ranks without data have to answer (join_uneven_inputs).
struct ShardCall {
  enum class Kind { kStep, kClipNorm, kClipValue, kFinite } kind;
  /// kStep: the optimizer, and the factor by which its gradients count.
  torch::optim::Optimizer* optimizer = nullptr;
  /// The others: the parameters; max_norm and norm_type, or the limit.
  const std::vector<at::Tensor>* parameters = nullptr;
  double first = 1.0, second = 2.0;
};

/// While it exists, split parameters of devices are whole on every rank, and any rank may read them alone. Its end,
/// which is to be reached by all ranks, takes over what the program wrote inside, alike on all ranks
/// (FSDP's summon_full_params with writeback).
class WholeParameters {
 public:
  WholeParameters(WholeParameters&&) noexcept;
  ~WholeParameters();

 private:
  friend class Sharding;
  struct Impl;
  explicit WholeParameters(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

class Sharding {
 public:
  /// `group`: all ranks.
  Sharding(comm::Group group, ShardOptions options);
  ~Sharding();
  Sharding(const Sharding&) = delete;
  Sharding& operator=(const Sharding&) = delete;

  const ShardOptions& options() const noexcept { return options_; }
  /// ShardOptions::param_dtype of models made from now on, if it is not set.
  void set_param_dtype(const std::string& name) {
    if (options_.param_dtype.empty()) options_.param_dtype = name;
  }
  /// Where models made from now on go, unit by unit, whose parameters are on no accelerator; the CPU if not set.
  void set_device(c10::Device device);
  /// WrapPolicy::leaf_classes of models made from now on get these as well.
  void add_leaf_classes(const std::vector<std::string>& classes) {
    auto& all = options_.wrap.leaf_classes;
    all.insert(all.end(), classes.begin(), classes.end());
  }
  /// The options of models made from now on; those that are there keep theirs. Where optimizer state rests, and the
  /// axis over which is sharded, stay as they were.
  void set_options(ShardOptions options) {
    options.optimizer_offload = options_.optimizer_offload;
    options.shard_over = options_.shard_over;
    options.mesh = options_.mesh;
    options_ = std::move(options);
  }
  /// Returns true if backwards inside a window of accumulation exchange their gradients.
  bool exchanges_each_backward() const noexcept;

  /// Returns the exchange of one more model, for its Ddp (DdpOptions::exchange), over the model's group.
  std::shared_ptr<GradientExchange> make_exchange(const comm::Group& group);

  /// Makes the parameters of all models whole on every rank, until the result ends. On CPUs they are so anyway.
  /// Collective: yes, where a device holds them in parts. Blocks: until they are there. Throws: CommError.
  [[nodiscard]] WholeParameters summon() const;
  /// Returns true if reading a parameter is a collective: a device holds them in parts.
  bool reads_collectively() const;
  /// Returns this rank's part of a parameter's values, which has no elements if another rank owns them all. Nothing for
  /// a parameter that is whole on this rank.
  std::optional<ShardedStatePiece> value_part(const at::Tensor& parameter) const;
  /// Gives a parameter that value_part has a part of these values; false for another. To be called alike on all ranks.
  bool set_value(const at::Tensor& parameter, const at::Tensor& value) const;
  /// Returns the whole reduced gradient of a parameter; undefined if it has none. On CPUs it is .grad().
  /// Collective: yes, where a device holds it in parts. Blocks: until it is there. Throws: CommError.
  at::Tensor full_gradient(const at::Tensor& parameter) const;

  /// Returns true if any of the optimizer's parameters is split.
  bool steps(const torch::optim::Optimizer& optimizer) const;

  /// Parameters' storages of which this rank has a private copy, since the program wrote to them.
  int64_t num_private_copies() const;
  /// Returns the counts of all models together.
  UnitCounts unit_counts() const;

  /// Runs `own_step`, the optimizer's step, on this rank's slices. Writes that the program made to parameters
  /// since the last step count if all ranks made the same ones. Classes other than libtorch's SGD, Adam, AdamW,
  /// Adagrad and RMSprop step whole parameters, which are dealt to the ranks. Collective: yes. Blocks: until
  /// all ranks have stepped. Throws: UsageError naming the parameter if ranks hold different values, or for
  /// LBFGS; CommError; what own_step throws.
  at::Tensor step(torch::optim::Optimizer& optimizer, const std::function<at::Tensor()>& own_step);

  /// Called with each call before it begins; empty: none.
  void set_observer(std::function<void(const ShardCall&)> observer) { observer_ = std::move(observer); }
  void announce(const ShardCall& call) const {
    if (observer_) observer_(call);
  }

  /// Returns true if a rank of the first group along ShardOptions::shard_over has the same slices as this rank.
  bool is_copy() const;
  /// Returns the elements of a parameter that this rank steps, which may be none or all. Nothing for a parameter that
  /// is not split, which every rank steps whole.
  std::optional<ShardInterval> stepped_interval(const torch::optim::Optimizer& optimizer,
                                                const at::Tensor& parameter) const;
  /// Returns this rank's pieces of the optimizer's state, and the numbers beside them (step counts) unchanged.
  /// Throws: UsageError for a class whose state is not known here.
  std::vector<ShardedStatePiece> sharded_state(const torch::optim::Optimizer& optimizer) const;
  /// Returns the whole optimizer state, of the parameters' shapes, on every rank. Counted steps come as "step", of one
  /// number. State that is loaded whole into the optimizer is cut by its next step.
  /// Collective: yes. Blocks: yes. Throws: as sharded_state; CommError.
  std::vector<ShardedStatePiece> full_state(const torch::optim::Optimizer& optimizer) const;

  /// Returns the part of a parameter's gradient that this rank owns, over memory that it may write to. Undefined if it
  /// owns none. Nothing for a gradient that is whole on each rank (parallel/clip/clip.h).
  std::optional<at::Tensor> owned_gradient(const at::Tensor& parameter) const;

  /// torch's clip_grad_norm_ and clip_grad_value_, each rank on the parts that it owns. The first returns the norm
  /// before. Collective: yes. Blocks: until all ranks have. Throws: as clip_gradients_; CommError.
  double clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm, double norm_type = 2.0) const;
  void clip_grad_value_(const std::vector<at::Tensor>& parameters, double limit) const;
  /// Returns true if all gradients of these parameters are finite on all ranks; each rank looks at the parts that it
  /// owns. Collective: yes. Blocks: until all ranks have. Throws: CommError.
  bool has_finite_gradients(const std::vector<at::Tensor>& parameters) const;
  /// Multiplies gradients by a factor; none may be read before the next collective.
  /// Collective: yes. Blocks: until all ranks have come. Throws: CommError.
  void scale_gradients_(const std::vector<at::Tensor>& parameters, double factor) const;

 private:
  struct Impl;
  comm::Group group_;
  ShardOptions options_;
  std::function<void(const ShardCall&)> observer_;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hasten::parallel
