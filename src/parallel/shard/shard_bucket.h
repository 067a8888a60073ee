// ShardBucket: a unit's gradients, which each rank of the host reads in place. Each rank reduces the part that it owns
// into the host's gradient region.
//
// Each rank has two slots of one unit's size in memory that the host shares. When a unit is complete, its gradients are
// copied into a slot and a few numbers are all-reduced. That shows that every rank has done so. Then each rank adds its
// part up over the ranks, in their order and with the loops of the all-reduce. So the sums have its bits. A unit is
// reduced just before the next one is launched, so two slots are enough.
//
// On several hosts the sums of a host's ranks then go to the owners on the others. Backward goes on meanwhile: they are
// awaited when the next unit comes that far, so one unit is on the wire at a time. A rank that is alone on its host
// sends a unit as soon as it is complete.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "parallel/ddp/reducer_bucket.h"
#include "parallel/shard/region_model.h"
#include "parallel/shard/shard_pool.h"

namespace hasten::parallel::shard {

class ShardBucket : public ReducerBucket {
 public:
  ShardBucket(RegionModel& model, size_t unit, const ReducerBucketSettings& settings);
  ~ShardBucket() override;
  ShardBucket(const ShardBucket&) = delete;
  ShardBucket& operator=(const ShardBucket&) = delete;

  size_t size() const noexcept override { return items_.size(); }
  bool is_cpu() const override { return true; }
  void begin_step() override;
  void take(size_t i, double scale, const at::Tensor& arrived = {}) override;
  void take_rest(double scale) override;
  bool complete() const noexcept override { return num_taken_ == items_.size(); }
  void launch(const CommHook& hook, const Trailer& tail) override;
  void wait() override {
    reduce();
    end_reduce();
  }
  Trailer tail() const override;
  std::vector<size_t> settle(double factor) override;
  void drop_gradients() override;

 private:
  const at::Tensor& parameter(size_t i) const { return model_.parameters()[items_[i]].tensor; }
  void set_aside(size_t i);
  void fill(const at::Tensor& flat, size_t i);
  /// Adds up over the ranks of the host. On several hosts sends the sums; end_reduce awaits those of the others.
  void reduce();
  void end_reduce();
  void finish(const at::Tensor& sums);
  void send_to_hosts();
  void sum_of_host(const at::Tensor& out, comm::ReduceOp op);
  void sum_of_item(const at::Tensor& out, size_t i, comm::ReduceOp op);
  at::Tensor place_of_sums() const;
  c10::ScalarType dtype_between_hosts() const;
  ShardInterval column() const;
  void add_kept(const at::Tensor& sums);
  bool keeps_any() const;
  at::Tensor own_part() const;

  RegionModel& model_;
  size_t unit_;
  ReducerBucketSettings settings_;
  std::vector<size_t> items_;
  /// Hooks that keep autograd from adding to the view of the reduced gradient.
  std::vector<unsigned> hooks_;
  double scale_ = 1;
  std::vector<bool> taken_, absent_;
  /// The reduced gradient from before is a part of the next one (accumulation).
  std::vector<bool> kept_;
  /// For each item, its gradient in the order of memory until this rank has added its part up. Undefined if all of it
  /// is in the slot.
  std::vector<at::Tensor> own_;
  std::vector<at::Tensor> graphs_;
  size_t num_taken_ = 0;
  int64_t slot_ = 0;
  /// For each item: ranks that have a gradient, the same for kept ones; then the tail.
  at::Tensor numbers_;
  std::optional<comm::Work<>> work_;
  /// On several hosts: what this rank sends and receives.
  at::Tensor sent_ = {}, received_ = {};
  std::optional<comm::Work<>> crossing_;
};

}  // namespace hasten::parallel::shard
