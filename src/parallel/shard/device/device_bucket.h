// DeviceBucket: the gradients of one unit on a device, from autograd to their owner's stripe.
//
// When all of a unit's gradients are there, one kernel copies them into a flat buffer, which frees them. A stream of
// its own reduce-scatters the buffer into the stripe of the reduced gradient, or adds to that.
#pragma once

#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <optional>
#include <vector>

#include "parallel/ddp/reducer_bucket.h"
#include "parallel/shard/device/device_model.h"

namespace hasten::parallel::shard {

class DeviceBucket : public ReducerBucket {
 public:
  DeviceBucket(DeviceModel& model, size_t unit, const ReducerBucketSettings& settings);
  ~DeviceBucket() override;
  DeviceBucket(const DeviceBucket&) = delete;
  DeviceBucket& operator=(const DeviceBucket&) = delete;

  size_t size() const noexcept override { return items_.size(); }
  bool is_cpu() const override { return false; }
  void begin_step() override;
  void take(size_t i, double scale, const at::Tensor& arrived = {}) override;
  void take_rest(double scale) override;
  bool complete() const noexcept override { return num_taken_ == items_.size(); }
  void launch(const CommHook& hook, const Trailer& tail) override;
  void wait() override;
  Trailer tail() const override;
  std::vector<size_t> settle(double factor) override;
  void drop_gradients() override;

  /// Adds the result to the stripe, on the stream of the exchange.
  void reduce();
  /// Gives the memory of the gradients back. Called behind reduce().
  void release();

 private:
  const at::Tensor& parameter(size_t i) const { return model_.parameters()[items_[i]].tensor; }
  void abandon();
  void set_aside(size_t i);
  /// Makes the flat buffer of what has arrived.
  void collect();
  bool keeps_any() const;
  void add(const at::Tensor& sums);

  DeviceModel& model_;
  size_t unit_;
  ReducerBucketSettings settings_;
  std::vector<size_t> items_;
  /// Hooks that keep autograd from adding to the mark of the reduced gradient.
  std::vector<unsigned> hooks_;
  std::vector<bool> taken_, absent_, kept_;
  size_t num_taken_ = 0;
  double scale_ = 1;
  std::vector<at::Tensor> arrived_;
  at::Tensor flat_, sums_;
  /// The streams that gradients arrive on, and that they are sent on.
  std::optional<c10::Stream> made_on_, sent_on_;
  std::optional<comm::Work<>> work_;
  /// The stripe has the result.
  std::optional<c10::Event> done_;
};

}  // namespace hasten::parallel::shard
