// The table of loops that kernels.cpp compiles once for each instruction set; steps.cpp calls them.
//
// A rule's loop works on float32 only. Where memory holds something else, steps.cpp goes through blocks that stay in
// the nearest cache, and the loaders and stores below convert. So there is one loop a rule, whatever the dtypes, and
// forms of weights cannot differ in their arithmetic.
#pragma once

#include <cstdint>

#include "hasten/optim/steps/slice.h"

namespace hasten::optim::steps::detail {

/// Elements that are converted at a time.
inline constexpr int64_t kBlock = 1024;

/// float32 views of a block.
struct Block {
  float* p;
  const float* g;
  float* s0;
  float* s1;
  float* s2;
  int64_t n;
};

struct SgdFactors {
  float lr, momentum, gradient_share, decay, scale;
  bool has_momentum, nesterov, first, decay_after;
};
struct AdamFactors {
  float shrink, rate, beta1, rest1, beta2, rest2, eps, correction2, decay, scale;
  bool amsgrad;
};
struct AdagradFactors {
  float rate, eps, decay, scale;
};
struct RmsPropFactors {
  float lr, alpha, rest, eps, decay, momentum, scale;
  bool has_momentum, centered;
};
struct LambFactors {
  /// unbias1, unbias2: 1 / (1 - beta^step), as a product takes a fraction of a division's time.
  float beta1, share, beta2, rest2, eps, unbias1, unbias2, decay_in, decay_out, scale, rate;
};
struct NovoGradFactors {
  float lr, beta1, share, correction1, denominator, decay, scale;
  bool inside;
};

/// fastai's rules (optim/fastai.h): those of one pass, and RAdam's three forms.
enum class FastaiRule : uint8_t { kSgd, kRmsProp, kAdam, kRAdamEarly, kRAdam, kRAdamSoftplus, kQHAdam };
/// s0: averages of gradients, if `averages`; s1: those of squares, for all rules but kSgd.
struct FastaiFactors {
  FastaiRule rule;
  bool averages;
  float shrink, l2, mom, damp, sqr_mom, square_damp, lr, eps, debias1, debias2, rectifier, beta, nu_1, nu_2;
};

struct Kernels {
  void (*sgd)(const Block&, const SgdFactors&);
  void (*adam)(const Block&, const AdamFactors&);
  void (*adagrad)(const Block&, const AdagradFactors&);
  void (*rmsprop)(const Block&, const RmsPropFactors&);
  /// Adds the block's sums to `weight_squares` and `update_squares`.
  void (*lamb_moments)(const Block&, const LambFactors&, double* weight_squares, double* update_squares);
  void (*lamb_apply)(const Block&, const LambFactors&);
  void (*novograd)(const Block&, const NovoGradFactors&);
  void (*fastai)(const Block&, const FastaiFactors&);

  void (*load)(float* to, const void* from, Storage storage, int64_t n);
  void (*store)(void* to, const float* from, Storage storage, int64_t n);
  void (*load_split)(float* to, const void* high, const void* low, int64_t n);
  void (*store_split)(void* high, void* low, const float* from, int64_t n);
  void (*store_stochastic)(void* to, const float* from, int64_t n, const Dither& dither);
  /// `before` is the weight that was loaded, `after` what the rule made of it.
  void (*store_kahan)(void* to, void* rest, const float* before, const float* after, int64_t n);

  double (*sum_of_squares)(const float* values, int64_t n);
  double (*largest_magnitude)(const float* values, int64_t n);
};

const Kernels& kernels(Instructions instructions) noexcept;

}  // namespace hasten::optim::steps::detail
