// GradientCheck: looks for gradients that are not finite before they are exchanged, in some steps.
//
// Behind the exchange all ranks have them, so only here it is known which rank's backward made them. A gradient's sum
// is not finite if one of its values is not; it is read many times faster than each value is looked at.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "hasten/core/error.h"
#include "hasten/flight/recorder.h"
#include "hasten/training/deferred_scalar.h"

namespace hasten::parallel {

class GradientCheck {
 public:
  /// Findings go into the recorder's page, which also has the steps. Null: nothing is looked at.
  GradientCheck(std::shared_ptr<flight::Recorder> recorder, Origin origin)
      : recorder_(std::move(recorder)), origin_(std::move(origin)) {}

  /// A backward begins, and the one before has ended. Sums that a device has made in an earlier one are read, if they
  /// are there.
  /// Throws: UsageError for a gradient that is not finite, if that is to stop the run.
  void begin();
  /// A parameter's gradient has come. Throws: as begin.
  void take(const std::string& parameter, const at::Tensor& gradient);

 private:
  void finish();
  void report(const std::string& parameter);
  void read_pending();

  const std::shared_ptr<flight::Recorder> recorder_;
  const Origin origin_;
  bool is_open_ = false;
  bool found_ = false;
  /// Sums of gradients on a device. They are read a step later, so that no step waits.
  std::vector<std::pair<std::string, at::Tensor>> sums_ = {};
  std::vector<std::pair<std::string, at::Tensor>> earlier_sums_ = {};
  std::optional<tracking::Value> total_ = {};
};

}  // namespace hasten::parallel
