// Turns a slice and a rule into calls of the loops. It computes the factors of a step, and converts memory that is not
// float32 in blocks. See rules.h, kernels.h.
#include <algorithm>
#include <cmath>

#include "hasten/core/error.h"
#include "hasten/optim/steps/rules.h"
#include "optim/steps/kernels.h"

namespace hasten::optim::steps {
namespace {

using detail::Block;
using detail::kBlock;
using detail::Kernels;

constexpr int64_t size_of(Storage storage) noexcept {
  return storage == Storage::kFloat32 ? 4 : 2;
}

template <class Pointer>
Pointer* at_element(Pointer* base, Storage storage, int64_t index) {
  if (base == nullptr) return nullptr;
  using Byte = std::conditional_t<std::is_const_v<Pointer>, const char, char>;
  return static_cast<Pointer*>(static_cast<Byte*>(base) + index * size_of(storage));
}

// Memory that a rule reads and writes besides the weight.
struct Access {
  int num_states = 0;
  bool reads_gradient = true;
  bool writes_weight = true;
  bool writes_states = true;
};

void require(const Slice& slice, const Access& access) {
  const bool rest = slice.form == WeightForm::kSplit || slice.form == WeightForm::kKahan;
  bool good = slice.weight != nullptr && (!rest || slice.rest != nullptr);
  good = good && (!access.reads_gradient || slice.gradient != nullptr);
  for (int i = 0; i < access.num_states; ++i) good = good && slice.states[static_cast<size_t>(i)] != nullptr;
  if (good || slice.count == 0) return;
  throw InternalError(Origin{"optim"}, "a step of ", slice.count,
                      " elements lacks the memory of its weight, its "
                      "gradient or one of ",
                      access.num_states, " states.");
}

// The pointer of the rule for each state of the slice.
struct Buffers {
  alignas(64) float weight[kBlock];
  alignas(64) float before[kBlock];
  alignas(64) float gradient[kBlock];
  alignas(64) float states[3][kBlock];
};

bool is_plain(const Slice& slice, const Access& access) {
  return slice.form == WeightForm::kFloat32 && (slice.copy == nullptr || !access.writes_weight) &&
         (!access.reads_gradient || slice.gradient_storage == Storage::kFloat32) &&
         (access.num_states == 0 || slice.state_storage == Storage::kFloat32);
}

void load_weight(const Kernels& k, const Slice& slice, int64_t begin, int64_t n, float* to) {
  if (slice.form == WeightForm::kSplit) {
    k.load_split(to, static_cast<const uint16_t*>(slice.weight) + begin,
                 static_cast<const int16_t*>(slice.rest) + begin, n);
  } else {
    k.load(to, static_cast<const uint16_t*>(slice.weight) + begin, Storage::kBFloat16, n);
  }
}

void store_weight(const Kernels& k, const Slice& slice, int64_t begin, int64_t n, const Buffers& buffers) {
  auto* weight = static_cast<uint16_t*>(slice.weight) + begin;
  if (slice.form == WeightForm::kSplit) {
    k.store_split(weight, static_cast<int16_t*>(slice.rest) + begin, buffers.weight, n);
  } else if (slice.form == WeightForm::kKahan) {
    k.store_kahan(weight, static_cast<uint16_t*>(slice.rest) + begin, buffers.before, buffers.weight, n);
  } else {
    Dither dither = slice.dither;
    dither.first_element += begin;
    k.store_stochastic(weight, buffers.weight, n, dither);
  }
}

// Runs `loop` over blocks of float32. Without conversions the whole slice is one block.
template <class Loop>
void for_blocks(const Slice& slice, const Access& access, const Kernels& k, const Loop& loop) {
  require(slice, access);
  if (is_plain(slice, access)) {
    loop(Block{static_cast<float*>(slice.weight), static_cast<const float*>(slice.gradient),
               static_cast<float*>(slice.states[0]), static_cast<float*>(slice.states[1]),
               static_cast<float*>(slice.states[2]), slice.count});
    return;
  }
  Buffers buffers;
  const bool plain_weight = slice.form == WeightForm::kFloat32;
  const bool plain_states = slice.state_storage == Storage::kFloat32;
  for (int64_t begin = 0; begin < slice.count; begin += kBlock) {
    const int64_t n = std::min(kBlock, slice.count - begin);
    Block block{.p = plain_weight ? static_cast<float*>(slice.weight) + begin : buffers.weight,
                .g = buffers.gradient,
                .s0 = nullptr,
                .s1 = nullptr,
                .s2 = nullptr,
                .n = n};
    if (!plain_weight) load_weight(k, slice, begin, n, buffers.weight);
    if (slice.form == WeightForm::kKahan) std::copy_n(buffers.weight, n, buffers.before);
    if (access.reads_gradient && slice.gradient_storage == Storage::kFloat32) {
      block.g = static_cast<const float*>(slice.gradient) + begin;
    } else if (access.reads_gradient) {
      k.load(buffers.gradient, at_element(slice.gradient, slice.gradient_storage, begin), slice.gradient_storage, n);
    }
    float** const places[] = {&block.s0, &block.s1, &block.s2};
    for (size_t i = 0; i < static_cast<size_t>(access.num_states); ++i) {
      *places[i] = plain_states ? static_cast<float*>(slice.states[i]) + begin : buffers.states[i];
      if (!plain_states)
        k.load(buffers.states[i], at_element(slice.states[i], slice.state_storage, begin), slice.state_storage, n);
    }
    loop(block);
    if (!plain_states && access.writes_states) {
      for (size_t i = 0; i < static_cast<size_t>(access.num_states); ++i) {
        k.store(at_element(slice.states[i], slice.state_storage, begin), buffers.states[i], slice.state_storage, n);
      }
    }
    if (!access.writes_weight) continue;
    if (!plain_weight) store_weight(k, slice, begin, n, buffers);
    if (slice.copy != nullptr)
      k.store(at_element(slice.copy, slice.copy_storage, begin), block.p, slice.copy_storage, n);
  }
}

float narrow(double value) noexcept {
  return static_cast<float>(value);
}

double correction(double beta, int64_t step, bool corrected) noexcept {
  return corrected ? 1 - std::pow(beta, static_cast<double>(step)) : 1.0;
}

detail::LambFactors factors_of(const Lamb& rule, double scale, double rate) {
  return {.beta1 = narrow(rule.beta1),
          .share = narrow(rule.grad_averaging ? 1 - rule.beta1 : 1.0),
          .beta2 = narrow(rule.beta2),
          .rest2 = narrow(1 - rule.beta2),
          .eps = narrow(rule.eps),
          .unbias1 = narrow(1 / correction(rule.beta1, rule.step, rule.bias_correction)),
          .unbias2 = narrow(1 / correction(rule.beta2, rule.step, rule.bias_correction)),
          .decay_in = narrow(rule.adam_w_mode ? 0.0 : rule.weight_decay),
          .decay_out = narrow(rule.adam_w_mode ? rule.weight_decay : 0.0),
          .scale = narrow(scale),
          .rate = narrow(rate)};
}

}  // namespace

void step(const Slice& slice, const Sgd& rule, Instructions instructions) {
  const Kernels& k = detail::kernels(instructions);
  const detail::SgdFactors factors{.lr = narrow(rule.lr),
                                   .momentum = narrow(rule.momentum),
                                   .gradient_share = narrow(1 - rule.dampening),
                                   .decay = narrow(rule.weight_decay),
                                   .scale = narrow(slice.gradient_factor),
                                   .has_momentum = rule.momentum != 0,
                                   .nesterov = rule.nesterov,
                                   .first = rule.is_first_step,
                                   .decay_after = rule.decay_after_momentum};
  for_blocks(slice, {.num_states = factors.has_momentum ? 1 : 0}, k,
             [&](const Block& block) { k.sgd(block, factors); });
}

void step(const Slice& slice, const Adam& rule, Instructions instructions) {
  const Kernels& k = detail::kernels(instructions);
  const detail::AdamFactors factors{
      .shrink = narrow(rule.decoupled_decay ? 1 - rule.lr * rule.weight_decay : 1.0),
      .rate = narrow(rule.lr / correction(rule.beta1, rule.step, rule.bias_correction)),
      .beta1 = narrow(rule.beta1),
      .rest1 = narrow(1 - rule.beta1),
      .beta2 = narrow(rule.beta2),
      .rest2 = narrow(1 - rule.beta2),
      .eps = narrow(rule.eps),
      .correction2 = narrow(std::sqrt(correction(rule.beta2, rule.step, rule.bias_correction))),
      .decay = narrow(rule.decoupled_decay ? 0.0 : rule.weight_decay),
      .scale = narrow(slice.gradient_factor),
      .amsgrad = rule.amsgrad};
  for_blocks(slice, {.num_states = rule.amsgrad ? 3 : 2}, k, [&](const Block& block) { k.adam(block, factors); });
}

void step(const Slice& slice, const Adagrad& rule, Instructions instructions) {
  const Kernels& k = detail::kernels(instructions);
  const detail::AdagradFactors factors{
      .rate = narrow(rule.lr / (1 + static_cast<double>(rule.step - 1) * rule.lr_decay)),
      .eps = narrow(rule.eps),
      .decay = narrow(rule.weight_decay),
      .scale = narrow(slice.gradient_factor)};
  for_blocks(slice, {.num_states = 1}, k, [&](const Block& block) { k.adagrad(block, factors); });
}

void step(const Slice& slice, const RmsProp& rule, Instructions instructions) {
  const Kernels& k = detail::kernels(instructions);
  const detail::RmsPropFactors factors{.lr = narrow(rule.lr),
                                       .alpha = narrow(rule.alpha),
                                       .rest = narrow(1 - rule.alpha),
                                       .eps = narrow(rule.eps),
                                       .decay = narrow(rule.weight_decay),
                                       .momentum = narrow(rule.momentum),
                                       .scale = narrow(slice.gradient_factor),
                                       .has_momentum = rule.momentum > 0,
                                       .centered = rule.centered};
  // States that the options leave out take a place in the block all the same.
  Slice own = slice;
  if (!factors.has_momentum && own.states[1] == nullptr) own.states[1] = own.states[0];
  const int num_states = factors.centered ? 3 : factors.has_momentum ? 2 : 1;
  if (own.state_storage != Storage::kFloat32 && factors.centered && !factors.has_momentum) {
    // The unused second state must not be written back over the first.
    std::swap(own.states[1], own.states[2]);
    own.states[2] = nullptr;
    for_blocks(own, {.num_states = 2}, k, [&](Block block) {
      std::swap(block.s1, block.s2);
      k.rmsprop(block, factors);
    });
    return;
  }
  for_blocks(own, {.num_states = num_states}, k, [&](const Block& block) { k.rmsprop(block, factors); });
}

LambSums lamb_moments(const Slice& slice, const Lamb& rule, Instructions instructions) {
  const Kernels& k = detail::kernels(instructions);
  const auto factors = factors_of(rule, slice.gradient_factor, 0.0);
  LambSums sums;
  for_blocks(slice, {.num_states = 2, .writes_weight = false}, k,
             [&](const Block& block) { k.lamb_moments(block, factors, &sums.weight_squares, &sums.update_squares); });
  return sums;
}

double lamb_rate(const Lamb& rule, const LambSums& sums) noexcept {
  if (!rule.use_nvlamb && rule.weight_decay == 0) return rule.lr;
  if (sums.weight_squares == 0 || sums.update_squares == 0) return rule.lr;
  return rule.lr * std::sqrt(sums.weight_squares) / std::sqrt(sums.update_squares);
}

void lamb_apply(const Slice& slice, const Lamb& rule, double rate, Instructions instructions) {
  const Kernels& k = detail::kernels(instructions);
  const auto factors = factors_of(rule, slice.gradient_factor, rate);
  const Access access{.num_states = 2, .reads_gradient = false, .writes_states = false};
  for_blocks(slice, access, k, [&](const Block& block) { k.lamb_apply(block, factors); });
}

double novograd_moment(const NovoGrad& rule, NovoGradNorm kind, double previous, double norm) noexcept {
  const double keep = rule.beta2, add = 1 - rule.beta2;
  if (kind == NovoGradNorm::kInfinity) return keep * previous + add * norm;
  return std::sqrt(keep * previous * previous + add * norm * norm);
}

void step(const Slice& slice, const NovoGrad& rule, double moment, Instructions instructions) {
  const Kernels& k = detail::kernels(instructions);
  const double unbiased = moment / std::sqrt(correction(rule.beta2, rule.step, rule.bias_correction));
  const detail::NovoGradFactors factors{.lr = narrow(rule.lr),
                                        .beta1 = narrow(rule.beta1),
                                        .share = narrow(rule.grad_averaging ? 1 - rule.beta1 : 1.0),
                                        .correction1 = narrow(correction(rule.beta1, rule.step, rule.bias_correction)),
                                        .denominator = narrow(unbiased + rule.eps),
                                        .decay = narrow(rule.weight_decay),
                                        .scale = narrow(slice.gradient_factor),
                                        .inside = rule.reg_inside_moment};
  for_blocks(slice, {.num_states = 1}, k, [&](const Block& block) { k.novograd(block, factors); });
}

double sum_of_squares(const void* values, Storage storage, int64_t count, Instructions instructions) {
  const Kernels& k = detail::kernels(instructions);
  constexpr int64_t kRun = 4 * kBlock;
  float buffer[kRun];
  double total = 0;
  for (int64_t begin = 0; begin < count; begin += kRun) {
    const int64_t n = std::min(kRun, count - begin);
    const void* from = at_element(values, storage, begin);
    if (storage != Storage::kFloat32) k.load(buffer, from, storage, n);
    const float* block = storage == Storage::kFloat32 ? static_cast<const float*>(from) : buffer;
    double sum = k.sum_of_squares(block, n);
    if (!std::isfinite(sum)) {
      // Squares of large values overflow in float32, though the values are finite.
      sum = 0;
      for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(block[i]) * block[i];
    }
    total += sum;
  }
  return total;
}

double largest_magnitude(const void* values, Storage storage, int64_t count, Instructions instructions) {
  const Kernels& k = detail::kernels(instructions);
  float buffer[kBlock];
  double largest = 0;
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t n = std::min(kBlock, count - begin);
    const void* from = at_element(values, storage, begin);
    if (storage != Storage::kFloat32) k.load(buffer, from, storage, n);
    const double own = k.largest_magnitude(storage == Storage::kFloat32 ? static_cast<const float*>(from) : buffer, n);
    largest = std::isnan(own) || own > largest ? own : largest;
    if (std::isnan(largest)) return largest;
  }
  return largest;
}

}  // namespace hasten::optim::steps
