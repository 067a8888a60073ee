// ShardedModel: a model whose parameters, gradients or optimizer state are split over ranks, wherever they lie.
//
// It plans units (unit_layout.h) and knows which elements of each parameter this rank owns. Two kinds put them
// somewhere: region_model.h maps one copy a host on the CPU, device_model.h keeps stripes on a device. sharding.h steps
// the slices of either.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "hasten/comm/group/group.h"
#include "hasten/parallel/ddp/gradient_exchange.h"
#include "hasten/parallel/shard/options.h"
#include "hasten/parallel/shard/plan.h"

namespace hasten::parallel::shard {

/// A parameter that is split.
struct ShardedParameter {
  std::string name;
  at::Tensor tensor;
};

class ShardedModel : public GradientExchange {
 public:
  /// Returns true if a tensor's storage is another model's already.
  using IsTaken = std::function<bool(const at::Tensor&)>;
  /// Returns true if an owner steps this item in the step at hand, and as a whole.
  struct IsStepped {
    std::function<bool(size_t item)> any = {};
    /// The owner of a parameter that is stepped whole; unset: slices are stepped.
    std::function<int(size_t item)> whole_owner = {};
  };

  ShardedModel(comm::Group group, ShardOptions options, IsTaken is_taken = {});

  /// Returns the ranks over which is sharded: one group along ShardOptions::shard_over, else all of the model.
  const comm::Group& group() const noexcept { return group_; }
  /// Returns all ranks that train the model.
  const comm::Group& everyone() const noexcept { return everyone_; }
  /// Returns the ranks with this rank's place in the other groups, which own the same slices; null if group() is all.
  const comm::Group* replicas() const noexcept { return replicas_ ? &*replicas_ : nullptr; }
  /// How often place() has planned.
  int64_t num_plans() const noexcept { return num_plans_; }
  const ShardOptions& options() const noexcept { return options_; }
  const ShardPlan& plan() const noexcept { return plan_; }
  const std::vector<ShardItem>& items() const noexcept { return items_; }
  std::vector<ShardedParameter>& parameters() noexcept { return parameters_; }
  bool splits_gradients() const noexcept { return options_.stage >= ShardStage::kGradients; }
  /// Returns this rank's number among the owners.
  int owner() const noexcept { return owner_; }
  /// Returns the elements of a parameter that this rank steps.
  ShardInterval owned(size_t item) const { return owned_interval(plan_, items_, item, owner_); }

  /// Returns true if the tensor's storage is this model's.
  virtual bool holds(const at::Tensor& tensor) const = 0;
  /// Storages of which this rank has a private copy.
  virtual int64_t num_private_copies() const { return 0; }
  /// Those elements of a parameter's value or gradient, as a flat tensor over writable memory.
  virtual at::Tensor value_slice(size_t item, ShardInterval interval) const = 0;
  virtual at::Tensor gradient_slice(size_t item, ShardInterval interval) const = 0;
  /// Returns true if .grad() stands for this model's reduced gradient.
  virtual bool has_own_gradient(size_t item) const = 0;
  /// Returns true if an owner may step this item whole.
  virtual bool steps_whole(size_t item) const = 0;

  /// Called round a step, in this order. exchange_stepped: this rank has stepped its part. finish_step: what was read
  /// before is old. end_step: all ranks are there, or an exception has left the step.
  virtual void begin_step() {}
  virtual void exchange_stepped(const IsStepped&) {}
  virtual void finish_step() {}
  virtual void end_step() {}
  /// Returns the unit of an item that the CPU steps for a device; nothing for others. `send_stepped`: the unit has been
  /// stepped, and goes to the device while others are.
  virtual std::optional<size_t> unit_on_host(size_t) const { return std::nullopt; }
  virtual void send_stepped(size_t) {}
  /// Gradients that are sums of this group alone, in the middle of a window, become those of all ranks.
  /// Collective: yes. Throws: CommError.
  virtual void complete_gradients() {}
  /// Zeros where nothing is filled.
  virtual UnitCounts unit_counts() const { return {}; }

 protected:
  /// Collective: yes. Blocks: until all ranks have come. Throws: UsageError if options differ, or if nothing gives the
  /// values of a tensor.
  void check_same_options(const torch::nn::Module& module) const;
  /// The groups along the axis, and those across them. `by_host`: without an axis, each host is a group. Collective:
  /// yes, the first time. Throws: UsageError for an axis that the mesh lacks, and for hosts of unequal size.
  void find_group(bool by_host = false);
  bool is_ignored(const std::string& name) const;
  /// Becomes one of these groups. They have equally many ranks; those of one place in each are replicas.
  void join_group(const std::vector<std::vector<int>>& groups);

  comm::Group everyone_, group_;
  std::optional<comm::Group> replicas_;
  ShardOptions options_;
  /// options_.ignored as names of modules and parameters of the module at hand.
  std::vector<std::string> ignored_;
  IsTaken is_taken_;
  std::vector<ShardedParameter> parameters_;
  std::vector<ShardItem> items_;
  /// Each item's index into the trainable ones of place().
  std::vector<size_t> trainable_index_;
  ShardPlan plan_;
  int owner_ = 0;
  int64_t num_plans_ = 0;
};

}  // namespace hasten::parallel::shard
