// The optimizers' rules as loops over slices: SGD, Adam, AdamW, Adagrad, RMSprop, LAMB, NovoGrad.
//
// Formulas and defaults follow torch.optim. LAMB, NovoGrad, and the options of SGD and Adam that torch.optim lacks
// follow Apex (FusedLAMB, FusedNovoGrad, FusedAdam, FusedSGD). libtorch's fused kernels require whole tensors, and
// weights, gradients and moments of one dtype. These take any mix and slices, and write a second copy in the same pass.
// Memory on the CPU only. `step` counts from 1 in every rule. Rules that need a norm of a whole parameter give the sums
// of their slices first. A caller can then add those of other ranks.
#pragma once

#include <cstdint>

#include "hasten/optim/steps/slice.h"

namespace hasten::optim::steps {

/// State: momentum buffer, if momentum is not 0.
struct Sgd {
  double lr = 1e-3;
  double momentum = 0.0;
  double dampening = 0.0;
  double weight_decay = 0.0;
  bool nesterov = false;
  /// The momentum buffer holds no value yet; the step sets it to the gradient.
  bool is_first_step = false;
  /// Apex's wd_after_momentum: decay is added to the update and does not enter the momentum.
  bool decay_after_momentum = false;
};

/// Adam and AdamW. State: exp_avg, exp_avg_sq, and max_exp_avg_sq with amsgrad.
struct Adam {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.0;
  int64_t step = 1;
  bool amsgrad = false;
  /// AdamW: weights shrink by lr * weight_decay. False: weight_decay * weight is added to the gradient.
  bool decoupled_decay = false;
  bool bias_correction = true;
};

/// State: sum.
struct Adagrad {
  double lr = 1e-2;
  double lr_decay = 0.0;
  double weight_decay = 0.0;
  double eps = 1e-10;
  int64_t step = 1;
};

/// State: square_avg, momentum_buffer with momentum, grad_avg if centered.
struct RmsProp {
  double lr = 1e-2;
  double alpha = 0.99;
  double eps = 1e-8;
  double weight_decay = 0.0;
  double momentum = 0.0;
  bool centered = false;
};

/// State: exp_avg, exp_avg_sq. Clipping by the norm of all gradients is the slice's gradient_factor.
struct Lamb {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-6;
  double weight_decay = 0.01;
  int64_t step = 1;
  bool bias_correction = true;
  /// True: decay is part of the update. False: it is added to the gradient.
  bool adam_w_mode = true;
  /// The gradient enters exp_avg with weight 1 - beta1; false: with weight 1.
  bool grad_averaging = true;
  /// The trust ratio is applied without weight decay as well.
  bool use_nvlamb = false;
};

/// State: exp_avg. The second moment is one number a parameter, see novograd_moment.
struct NovoGrad {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.0;
  int64_t step = 1;
  bool bias_correction = true;
  bool grad_averaging = true;
  bool reg_inside_moment = false;
};

/// Makes a step of a slice, which is updated in place.
/// Throws: InternalError if memory that the rule or the form needs is null.
void step(const Slice& slice, const Sgd& rule, Instructions instructions = best_instructions());
void step(const Slice& slice, const Adam& rule, Instructions instructions = best_instructions());
void step(const Slice& slice, const Adagrad& rule, Instructions instructions = best_instructions());
void step(const Slice& slice, const RmsProp& rule, Instructions instructions = best_instructions());

/// Sums over a slice that LAMB's trust ratio comes from.
struct LambSums {
  double weight_squares = 0.0;
  double update_squares = 0.0;
};
/// First pass: updates the moments, leaves the weight, and returns the slice's sums.
/// Throws: as step.
LambSums lamb_moments(const Slice& slice, const Lamb& rule, Instructions instructions = best_instructions());
/// Returns the factor of the update, from the sums of the whole parameter: lr, times the ratio of the norms where the
/// rule applies it.
double lamb_rate(const Lamb& rule, const LambSums& sums) noexcept;
/// Second pass: moves the weight by `rate` times the update, which it computes anew from the moments. Reads no
/// gradient.
/// Throws: as step.
void lamb_apply(const Slice& slice, const Lamb& rule, double rate, Instructions instructions = best_instructions());

/// The norms that NovoGrad's second moment is made of.
enum class NovoGradNorm : uint8_t { kInfinity = 0, kTwo = 2 };
/// Returns the second moment after a step: of the previous one and the norm of the whole parameter's gradient.
double novograd_moment(const NovoGrad& rule, NovoGradNorm kind, double previous, double norm) noexcept;
/// `moment` is the parameter's second moment after this step.
/// Throws: as step.
void step(const Slice& slice, const NovoGrad& rule, double moment, Instructions instructions = best_instructions());

/// Returns the sum of squares of `count` elements, in float64 over blocks of float32. It is infinite or NaN exactly if
/// an element is. The cut into blocks begins at the first element, so the sum depends on where a slice begins.
double sum_of_squares(const void* values, Storage storage, int64_t count,
                      Instructions instructions = best_instructions());
/// Returns the largest absolute value, 0 for none; NaN if any element is.
double largest_magnitude(const void* values, Storage storage, int64_t count,
                         Instructions instructions = best_instructions());

}  // namespace hasten::optim::steps
