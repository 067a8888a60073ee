// Reducer: the step of data parallelism, from the first gradient of a backward to the last bucket's arrival.
//
// Buckets are launched strictly in the order of the plan. Every rank must start the same exchanges in the same order
// although gradients may arrive in another. Gradients that a backward left out are found at its end. After the first
// step the plan is made anew, once, from the order in which rank 0's gradients arrived.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "hasten/comm/group/group.h"
#include "hasten/core/log.h"
#include "hasten/parallel/ddp/accumulation_window.h"
#include "hasten/parallel/ddp/ddp_options.h"
#include "parallel/ddp/bucket.h"
#include "parallel/ddp/context_gradients.h"
#include "parallel/ddp/gradient_check.h"
#include "parallel/parameters/parameter_set.h"

namespace hasten::parallel {

/// The order in which gradients arrived in the first step, for buckets made anew. Empty before the first step.
struct LearnedOrder {
  int64_t num_steps = 0;
  std::vector<size_t> parameters = {};
};

class Reducer {
 public:
  /// `buffers` follow rank 0 (empty: none do). `window` and `settings` outlive the reducer. `check` compares the ranks'
  /// parameters, which may have been changed inside the window.
  Reducer(ParameterSet parameters, std::vector<at::Tensor> buffers, comm::Group group, const DdpOptions& options,
          AccumulationWindow& window, const ExchangeSettings& settings, std::function<void(bool inside)> check);

  /// Called from inside backward when `arrived` has been accumulated.
  void on_gradient(size_t parameter, const at::Tensor& arrived);

  /// An exchange without a backward of this rank's: offers what gradients there are. Collective, with finish.
  void start();
  void finish();

  const BucketPlan& plan() const noexcept { return plan_; }
  int64_t num_steps() const noexcept { return num_steps_; }
  LearnedOrder learned_order() const;
  /// Goes on from the steps and the order of another reducer of these parameters. Empty: learns as usual.
  void set_order(LearnedOrder order);
  /// Returns true if an exchange has begun that is not finished.
  bool is_exchanging() const noexcept { return started_ || backward_; }
  void abandon() noexcept {
    started_ = false;
    backward_.reset();
    context_.restore();
  }
  /// Returns true if any rank had a gradient in the last step.
  bool had_gradients() const noexcept { return had_gradients_; }

 private:
  void begin();
  void build(const std::vector<size_t>& order);
  /// `is_unit`: the options' exchange makes it, for its unit of this number.
  void add_bucket(std::vector<size_t> members, bool is_unit);
  void launch_ready();
  void launch_rest();
  double in_factor() const { return 1.0 / options_.predivide(group_.world_size()); }
  std::optional<double> out_factor();
  void learn_order(const std::vector<size_t>& unused);
  void warn_unused(const std::vector<size_t>& unused);
  Trailer offered_tail() const;

  struct Place {
    size_t bucket;
    size_t index;
  };

  ParameterSet parameters_;
  std::vector<at::Tensor> buffers_;
  comm::Group group_;
  DdpOptions options_;
  AccumulationWindow& window_;
  const ExchangeSettings& settings_;
  std::function<void(bool)> check_;
  Logger logger_;
  GradientCheck gradient_check_{flight::process_recorder(), Origin{"ddp", group_.rank(), group_.world_size()}};

  /// Open in a pass of distributed autograd.
  ContextGradients context_;
  std::shared_ptr<GradientAllocator> gradient_allocator_;
  BucketPlan plan_;
  std::vector<std::unique_ptr<ReducerBucket>> buckets_;
  /// Nothing for sparse ones, and those that a static graph leaves out.
  std::vector<std::optional<Place>> places_;
  size_t tail_bucket_ = 0;
  std::vector<size_t> arrived_;
  std::optional<std::vector<size_t>> next_order_;
  bool has_learned_ = false;

  /// The backward under way (autograd's graph task), nothing between two.
  std::optional<int> backward_;
  bool started_ = false;
  size_t next_bucket_ = 0;
  int64_t num_steps_ = 0;
  bool had_gradients_ = false;
  std::vector<bool> warned_;
  /// For each parameter, whether its gradient travels in communication_dtype.
  std::vector<bool> travels_low_;
  at::Tensor packed_buffers_;
  std::optional<comm::Work<>> buffers_work_;
};

}  // namespace hasten::parallel
