// DeviceModel: a sharded model on a device, where each rank has memory of its own.
//
// In stage 3 a rank keeps its stripe of each unit; operators that read a parameter have the unit gathered
// (device_reads.h, device_units.h). In stages 1 and 2 units stay whole, and stepped stripes are gathered behind the
// step. Gradients of stages 2 and 3 are reduced unit by unit to their owners (device_bucket.h), and .grad() is a mark
// (split_gradient.h).
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "parallel/shard/device/device_reads.h"
#include "parallel/shard/device/device_units.h"
#include "parallel/shard/device/split_gradient.h"
#include "parallel/shard/sharded_model.h"

namespace hasten::parallel::shard {

class DeviceBucket;

class DeviceModel : public ShardedModel {
 public:
  DeviceModel(const comm::Group& group, ShardOptions options, c10::Device device, IsTaken is_taken = {});
  ~DeviceModel() override;

  void release() override {}
  std::vector<at::Tensor> place(const torch::nn::Module& module, const std::vector<std::string>& names,
                                const std::vector<at::Tensor>& trainable) override;
  std::vector<std::vector<size_t>> units() const override;
  std::unique_ptr<ReducerBucket> make_bucket(size_t unit, const ReducerBucketSettings& settings) override;
  void begin(bool ends_window) override;
  void finish() override;

  bool holds(const at::Tensor& tensor) const override;
  at::Tensor value_slice(size_t item, ShardInterval interval) const override;
  at::Tensor gradient_slice(size_t item, ShardInterval interval) const override;
  bool has_own_gradient(size_t item) const override;
  bool steps_whole(size_t item) const override;
  void begin_step() override;
  void exchange_stepped(const IsStepped& is_stepped) override;
  void finish_step() override;
  void end_step() override;
  std::optional<size_t> unit_on_host(size_t item) const override;
  void send_stepped(size_t unit) override { memory_->send(unit); }
  void complete_gradients() override;
  UnitCounts unit_counts() const override { return memory_ ? memory_->counts() : UnitCounts{}; }

  c10::Device device() const noexcept { return device_; }
  DeviceUnits& memory() { return *memory_; }
  const DeviceUnits& memory() const { return *memory_; }
  /// Returns the reduced gradient of a unit's elements that this rank owns, which it makes if it is not there.
  at::Tensor& gradient_of(size_t unit);
  /// Returns where the owned elements begin in the unit's stripe.
  int64_t place_of(size_t item, ShardInterval interval) const;
  /// .grad() becomes the mark of the reduced gradient.
  void show_gradient(size_t item);
  /// Returns the whole reduced gradient. Collective: yes. Throws: CommError.
  at::Tensor full_gradient(size_t item);
  /// The parameter gets these values, of which this rank keeps its part. All ranks do so alike.
  void set_value(size_t item, const at::Tensor& value);
  /// Returns the item whose storage the tensor shows.
  std::optional<size_t> item_of(const at::Tensor& tensor) const;
  bool is_resident(size_t item) const { return resident_[item]; }
  /// Keeps all units in memory from here on, or no longer. Collective: yes. Throws: CommError.
  void set_whole(bool whole);
  /// Returns true if optimizers step the unit's stripe on the CPU.
  bool steps_on_host(size_t unit) const { return on_host_[unit]; }
  /// Returns true if the backward under way is the last one of its window.
  bool ends_window() const noexcept { return ends_window_; }
  /// Whether the unit's reduced gradient is the sum of this group alone (replicas() add theirs once a window).
  bool is_partial(size_t unit) const { return partial_[unit]; }
  void set_partial(size_t unit, bool is) { partial_[unit] = is; }

  /// Notes a unit's facts: for each item whether this rank lacks a gradient, and the tail of the model. Those of all
  /// units are sent with the last one.
  void note_launched(size_t unit, const std::vector<bool>& absent, const std::vector<double>* tail);
  /// Returns how many ranks have a gradient of the item, as a mean. Waits for the device.
  double presence(size_t item);
  std::vector<double> tail();
  /// The launched bucket that has not been reduced, which goes before another is.
  DeviceBucket* pending = nullptr;
  void on_unit_reduced();

 private:
  void choose(const torch::nn::Module& module, const std::vector<at::Tensor>& trainable, std::vector<at::Tensor>& left);
  std::vector<bool> find_resident() const;
  void give_values(torch::nn::Module& module) const;
  void move_rest(const torch::nn::Module& module, const std::vector<at::Tensor>& left) const;
  void fill_unit(size_t index, const DeviceReads* before);
  void show_values(size_t item, const at::Tensor& whole, int64_t offset, const DeviceReads* before);
  std::optional<c10::ScalarType> low_dtype() const;
  void make_reads();
  void adopt_replaced();
  /// Collective: yes. Throws: UsageError on all ranks for a parameter that some wrote to more often than others.
  void compare_writes() const;
  int64_t version(size_t item) const;
  void note_version(size_t item);
  void adopt_written();
  at::Tensor to_rest(const at::Tensor& stripe, bool on_host) const;
  void read_numbers();
  /// The units whose state rests on the CPU, in the order in which their gradients are reduced.
  std::vector<bool> find_on_host() const;
  bool steps_any_on_host() const;
  void complete_gradient(size_t unit);

  /// Whether the program has operations checked; those of the model's groups are not.
  const bool is_checked_;
  c10::Device device_;
  /// For marks of gradients, which may outlive the model; null then.
  std::shared_ptr<DeviceModel*> self_ = std::make_shared<DeviceModel*>(this);
  std::unique_ptr<DeviceUnits> memory_;
  std::shared_ptr<DeviceReads> reads_;
  /// The storage that shows each item.
  std::vector<c10::Storage> storages_;
  std::vector<bool> resident_, trains_;
  /// By unit.
  std::vector<bool> on_host_, partial_;
  bool ends_window_ = true;
  /// The layout of each item's elements in the unit.
  struct Layout {
    std::vector<int64_t> sizes, strides;
  };
  std::vector<Layout> layouts_;
  /// The version of each item's values when the last step ended; the stripes on the CPU have those values.
  std::vector<int64_t> versions_;
  /// The units whose gradients are exchanged, by their numbers in the plan.
  std::vector<size_t> exchanged_;
  std::vector<at::Tensor> gradients_, marks_;
  /// One number for each item, then the tail: sent, and what has come.
  std::vector<double> numbers_;
  at::Tensor sums_, read_;
  size_t num_launched_ = 0;
  std::optional<comm::Work<>> numbers_work_;
};

}  // namespace hasten::parallel::shard
