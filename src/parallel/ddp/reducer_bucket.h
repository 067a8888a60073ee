// ReducerBucket: several gradients that are exchanged as a whole, in whatever way.
//
// The reducer (reducer.h) notifies a bucket of the gradients that have come, launches it when it is complete, and
// settles it at the end. Bucket (bucket.h) all-reduces flat memory; parallel/shard reduces into the owners' slices.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <optional>
#include <vector>

#include "hasten/comm/types/purpose.h"
#include "hasten/parallel/compress/comm_hook.h"

namespace hasten::parallel {

/// Numbers of a rank that travel with one bucket of a model, and whose mean over the ranks comes back.
using Trailer = std::array<double, 4>;

struct ReducerBucketSettings {
  bool has_tail = false;
  /// Gradients travel in this dtype; unset: in that of the parameters.
  std::optional<c10::ScalarType> wire_dtype = {};
  /// Which of a unit's gradients do; empty: all of them.
  std::vector<bool> in_wire = {};
  /// If true, the exchange gives the mean, and gradients go into it as they are. Otherwise it gives the sum of the
  /// values that take() has scaled.
  bool averages = false;
};

class ReducerBucket {
 public:
  virtual ~ReducerBucket() = default;

  virtual size_t size() const noexcept = 0;
  virtual bool is_cpu() const = 0;
  /// Clears the record of gradients that have come.
  virtual void begin_step() = 0;
  /// Takes parameter i's .grad(), times `scale` if need be. `arrived` is what autograd has just accumulated, if
  /// anything. A parameter without a gradient contributes zeros and counts as absent.
  virtual void take(size_t i, double scale, const at::Tensor& arrived = {}) = 0;
  /// Takes what has not come by itself: gradients left from earlier steps, or nothing.
  virtual void take_rest(double scale) = 0;
  virtual bool complete() const noexcept = 0;
  /// Starts the exchange. Collective.
  virtual void launch(const CommHook& hook, const Trailer& tail) = 0;
  /// The same of the bucket of this number, which errors name. Collective.
  void launch_as(size_t number, const CommHook& hook, const Trailer& tail) {
    const comm::Purpose purpose("gradients, bucket", static_cast<int64_t>(number));
    launch(hook, tail);
  }
  /// Returns when it has ended.
  virtual void wait() = 0;
  /// Returns the mean of the tails; waits for the device.
  virtual Trailer tail() const = 0;
  /// After wait: multiplies the gradients by `factor`; gives the indices of those that no rank had.
  virtual std::vector<size_t> settle(double factor) = 0;
  /// Makes every .grad() undefined.
  virtual void drop_gradients() = 0;
};

}  // namespace hasten::parallel
