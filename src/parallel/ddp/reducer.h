// Reducer: the step of data parallelism, from the first gradient of a backward to the last bucket's arrival.
//
// Buckets are launched strictly in the order of the plan, since every rank must start the same exchanges in
// the same order although gradients may arrive in another. What a backward left out is found at its end.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "hasten/comm/group.h"
#include "hasten/core/log.h"
#include "hasten/parallel/ddp.h"
#include "parallel/ddp/bucket.h"

namespace hasten::parallel {

class Reducer {
 public:
  /// `parameters` are trainable; `buffers` follow rank 0 (empty: none do).
  Reducer(std::vector<std::string> names, std::vector<at::Tensor> parameters, std::vector<at::Tensor> buffers,
          comm::Group group, const DdpOptions& options);

  /// Called from inside backward when a gradient has been accumulated.
  void on_gradient(size_t parameter);

  /// While more have asked to hold back than to go on, gradients stay where they are.
  void hold_back(bool more) noexcept { holds_ += more ? 1 : -1; }

  const BucketPlan& plan() const noexcept { return plan_; }

 private:
  void begin();
  void launch_ready();
  void finish();
  void warn_unused(const std::vector<std::string>& names);

  struct Place {
    size_t bucket;
    size_t index;
  };

  std::vector<std::string> names_;
  std::vector<at::Tensor> buffers_;
  comm::Group group_;
  CommHook hook_;
  BucketPlan plan_;
  std::vector<Bucket> buckets_;
  std::vector<Place> places_;
  Logger logger_;

  /// The backward under way (autograd's graph task), nothing between two.
  std::optional<int> backward_;
  size_t next_bucket_ = 0;
  int holds_ = 0;
  int64_t num_steps_ = 0;
  bool warned_ = false;
  at::Tensor packed_buffers_;
  std::optional<comm::Work<>> buffers_work_;
};

}  // namespace hasten::parallel
