// See fp8.h.
#include "hasten/precision/fp8.h"

#include <ATen/ops/_scaled_mm.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/exp2.h>
#include <ATen/ops/floor.h>
#include <ATen/ops/fmax.h>
#include <ATen/ops/full.h>
#include <ATen/ops/log2.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "hasten/core/error.h"

namespace hasten::precision {
namespace {

at::ScalarType dtype_of(Fp8Format format) {
  return format == Fp8Format::kE4M3 ? at::kFloat8_e4m3fn : at::kFloat8_e5m2;
}

at::Tensor scale_of(const at::Tensor& amax, Fp8Format format, bool power_of_two) {
  const auto scale = (largest(format) / amax.to(at::kDouble).clamp_min(1e-12)).to(at::kFloat);
  return power_of_two ? at::exp2(at::floor(at::log2(scale))) : scale;
}

// Cut first: a cast of infinity gives 448 on a CPU and NaN on CUDA.
Quantized quantized(const at::Tensor& matrix, const at::Tensor& scale, Fp8Format format) {
  const double limit = largest(format);
  return {(matrix.to(at::kFloat) * scale).clamp(-limit, limit).to(dtype_of(format)), scale};
}

at::Tensor padded(const at::Tensor& values, int64_t dim) {
  const int64_t missing = (16 - values.size(dim) % 16) % 16;
  if (missing == 0) return values;
  const std::vector<int64_t> by = dim == 1 ? std::vector<int64_t>{0, missing} : std::vector<int64_t>{0, 0, 0, missing};
  // Padded as bytes: not every release pads 8-bit floats, and zero is zero.
  return at::constant_pad_nd(values.view(at::kByte), by, 0).view(values.scalar_type());
}

at::Tensor device_mm(const Quantized& a, const Quantized& b, at::ScalarType dtype, bool fast_accumulation) {
  const int64_t rows = a.values.size(0), columns = b.values.size(1);
  const bool by_row = a.scale.dim() > 0;
  auto left = padded(padded(a.values, 1), 0).contiguous();
  auto right = padded(padded(b.values, 0), 1).t().contiguous().t();
  auto left_scale = a.scale.reciprocal(), right_scale = b.scale.reciprocal();
  if (by_row) {
    left_scale = at::constant_pad_nd(left_scale, {0, 0, 0, left.size(0) - rows}, 1).contiguous();
    right_scale = at::constant_pad_nd(right_scale, {0, right.size(1) - columns}, 1).contiguous();
  }
  // By rows the kernel gives bfloat16 only.
  const auto out = by_row ? at::kBFloat16 : dtype;
  return at::_scaled_mm(left, right, left_scale, right_scale, {}, {}, out, fast_accumulation)
      .narrow(0, 0, rows)
      .narrow(1, 0, columns)
      .to(dtype);
}

struct Formats {
  Fp8Format forward = Fp8Format::kE4M3, backward = Fp8Format::kE5M2;
};

Formats formats_of(const Fp8Options& options) {
  if (options.recipe == Fp8Recipe::kTensorwise) return {};
  if (options.recipe != Fp8Recipe::kDelayed) return {Fp8Format::kE4M3, Fp8Format::kE4M3};
  if (options.fp8_format == Fp8Formats::kE4M3) return {Fp8Format::kE4M3, Fp8Format::kE4M3};
  if (options.fp8_format == Fp8Formats::kE5M2) return {Fp8Format::kE5M2, Fp8Format::kE5M2};
  return {};
}

// Which of a layer's tensors, by its place in device_amax.
enum class Seen { kInput, kWeight, kGradient };

// A device's magnitudes stay there until the window ends. fmax passes NaN over, as std::max does.
void note_amax(const at::Tensor& matrix, DelayedScales& scales, Seen seen) {
  if (matrix.numel() == 0) return;
  const at::NoGradGuard no_grad;
  const at::Tensor largest_here = matrix.abs().max();
  if (matrix.is_cpu()) {
    float& amax = seen == Seen::kInput    ? scales.input_amax
                  : seen == Seen::kWeight ? scales.weight_amax
                                          : scales.gradient_amax;
    amax = std::max(amax, largest_here.item<float>());
    return;
  }
  if (!scales.device_amax.defined()) scales.device_amax = at::zeros({3}, matrix.options().dtype(at::kFloat));
  const at::Tensor place = scales.device_amax.select(0, static_cast<int64_t>(seen));
  place.copy_(at::fmax(place, largest_here.to(at::kFloat)));
}

Quantized delayed(const at::Tensor& matrix, Fp8Format format, const DelayedScale& state) {
  return quantized(matrix, at::full({}, state.scale, matrix.options().dtype(at::kFloat)), format);
}

at::Tensor forward_product(const at::Tensor& x, const at::Tensor& weight, const Fp8Options& options,
                           DelayedScales* scales) {
  const auto dtype = x.scalar_type();
  const auto format = formats_of(options).forward;
  if (options.recipe == Fp8Recipe::kTensorwise) {
    const bool round = options.round_scales_to_power_of_2;
    return scaled_mm(quantize_tensorwise(x, format, round), quantize_tensorwise(weight.t(), format, round), dtype,
                     true);
  }
  if (options.recipe == Fp8Recipe::kDelayed) {
    if (options.override_fprop) return x.mm(weight.to(dtype).t());
    note_amax(x, *scales, Seen::kInput);
    note_amax(weight, *scales, Seen::kWeight);
    return scaled_mm(delayed(x, format, scales->input), delayed(weight.t(), format, scales->weight), dtype, true);
  }
  return scaled_mm(quantize_rowwise(x, 1, format, true), quantize_rowwise(weight.t(), 0, format, true), dtype, true);
}

at::Tensor input_gradient(const at::Tensor& gradient, const at::Tensor& weight, const Fp8Options& options,
                          DelayedScales* scales) {
  const auto dtype = gradient.scalar_type();
  const auto [forward, backward] = formats_of(options);
  switch (options.recipe) {
    case Fp8Recipe::kTensorwise:
      return scaled_mm(quantize_tensorwise(gradient, backward, options.round_scales_to_power_of_2),
                       quantize_tensorwise(weight, forward, options.round_scales_to_power_of_2), dtype, false);
    case Fp8Recipe::kRowwise:
      return scaled_mm(quantize_rowwise(gradient, 1, backward, true), quantize_rowwise(weight, 0, forward, true), dtype,
                       false);
    case Fp8Recipe::kRowwiseGradHp: {
      // The weight has a single scale, written once a column so that both operands are scaled in the same way.
      auto w = quantize_tensorwise(weight, forward);
      const auto power = at::exp2(at::floor(at::log2(w.scale)));
      w = quantized(weight, power, forward);
      w.scale = w.scale.expand({1, weight.size(1)});
      return scaled_mm(quantize_rowwise(gradient, 1, backward, true), w, dtype, false);
    }
    case Fp8Recipe::kDelayed:
      break;
  }
  if (options.override_dgrad) return gradient.mm(weight.to(dtype));
  note_amax(gradient, *scales, Seen::kGradient);
  return scaled_mm(delayed(gradient, backward, scales->gradient), delayed(weight, forward, scales->weight), dtype,
                   false);
}

at::Tensor weight_gradient(const at::Tensor& gradient, const at::Tensor& x, const Fp8Options& options,
                           DelayedScales* scales) {
  const auto dtype = gradient.scalar_type();
  const auto [forward, backward] = formats_of(options);
  switch (options.recipe) {
    case Fp8Recipe::kTensorwise:
      return scaled_mm(quantize_tensorwise(gradient.t(), backward, options.round_scales_to_power_of_2),
                       quantize_tensorwise(x, forward, options.round_scales_to_power_of_2), dtype, false);
    case Fp8Recipe::kRowwise:
      return scaled_mm(quantize_rowwise(gradient.t(), 1, backward, true), quantize_rowwise(x, 0, forward, true), dtype,
                       false);
    case Fp8Recipe::kRowwiseGradHp:
      return gradient.t().mm(x.to(dtype));
    case Fp8Recipe::kDelayed:
      break;
  }
  if (options.override_wgrad) return gradient.t().mm(x.to(dtype));
  note_amax(gradient, *scales, Seen::kGradient);
  return scaled_mm(delayed(gradient.t(), backward, scales->gradient), delayed(x, forward, scales->input), dtype, false);
}

// The node keeps its own copy of the options: the caller's may be gone by the backward.
struct SavedOptions : torch::CustomClassHolder {
  SavedOptions(Fp8Options given, DelayedScales* state) : options(std::move(given)), scales(state) {}
  Fp8Options options;
  DelayedScales* scales;
};

struct Fp8Product : torch::autograd::Function<Fp8Product> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            const c10::intrusive_ptr<SavedOptions>& saved) {
    context->save_for_backward({x, weight});
    context->saved_data["options"] = c10::IValue::make_capsule(saved);
    return forward_product(x, weight, saved->options, saved->scales);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const auto own = c10::static_intrusive_pointer_cast<SavedOptions>(context->saved_data["options"].toCapsule());
    const at::Tensor gradient = gradients[0].contiguous();
    at::Tensor to_x, to_weight;
    if (context->needs_input_grad(0)) to_x = input_gradient(gradient, saved[1], own->options, own->scales);
    if (context->needs_input_grad(1)) {
      to_weight = weight_gradient(gradient, saved[0], own->options, own->scales).to(saved[1].scalar_type());
    }
    return {to_x, to_weight, at::Tensor()};
  }
};

}  // namespace

Quantized quantize_tensorwise(const at::Tensor& matrix, Fp8Format format, bool power_of_two) {
  const auto amax = matrix.numel() == 0 ? at::zeros({}, matrix.options()) : matrix.abs().max();
  return quantized(matrix, scale_of(amax, format, power_of_two), format);
}

Quantized quantize_rowwise(const at::Tensor& matrix, int64_t dim, Fp8Format format, bool power_of_two) {
  return quantized(matrix, scale_of(matrix.abs().amax({dim}, /*keepdim=*/true), format, power_of_two), format);
}

at::Tensor scaled_mm(const Quantized& a, const Quantized& b, at::ScalarType dtype, bool fast_accumulation) {
  if (a.values.is_cuda()) return device_mm(a, b, dtype, fast_accumulation);
  const auto product = a.values.to(at::kFloat).mm(b.values.to(at::kFloat));
  return (product * a.scale.reciprocal() * b.scale.reciprocal()).to(dtype);
}

void collect_amax(const std::vector<DelayedScales*>& scales) {
  std::map<std::string, std::vector<DelayedScales*>> by_device;
  for (auto* each : scales) {
    if (each->device_amax.defined()) by_device[each->device_amax.device().str()].push_back(each);
  }
  for (const auto& [device, layers] : by_device) {
    std::vector<at::Tensor> seen;
    for (auto* layer : layers) seen.push_back(std::exchange(layer->device_amax, at::Tensor()));
    const at::Tensor values = at::stack(seen).cpu();
    const auto* amax = values.const_data_ptr<float>();
    for (size_t i = 0; i < layers.size(); ++i) {
      layers[i]->input_amax = std::max(layers[i]->input_amax, amax[3 * i]);
      layers[i]->weight_amax = std::max(layers[i]->weight_amax, amax[3 * i + 1]);
      layers[i]->gradient_amax = std::max(layers[i]->gradient_amax, amax[3 * i + 2]);
    }
  }
}

void DelayedScales::end_window(const Fp8Options& options) {
  collect_amax({this});
  const auto [forward, backward] = formats_of(options);
  const auto of = [&options](Fp8Format format) {
    return DelayedScalingOptions{.format = format,
                                 .margin = options.margin,
                                 .amax_history_len = options.amax_history_len,
                                 .amax_compute_algo = options.amax_compute_algo};
  };
  input = delayed_scale(std::move(input), input_amax, of(forward));
  weight = delayed_scale(std::move(weight), weight_amax, of(forward));
  gradient = delayed_scale(std::move(gradient), gradient_amax, of(backward));
  input_amax = weight_amax = gradient_amax = 0;
}

at::Tensor fp8_linear(const at::Tensor& x, const at::Tensor& weight, const Fp8Options& options, DelayedScales* scales) {
  if (options.recipe == Fp8Recipe::kDelayed && scales == nullptr) {
    throw UsageError(Origin{"precision"},
                     "delayed scaling needs the scales of the layer's past windows. Give fp8_linear a "
                     "DelayedScales that outlives the backward.");
  }
  const auto flat = x.reshape({-1, x.size(-1)});
  const auto y = Fp8Product::apply(flat, weight, c10::make_intrusive<SavedOptions>(options, scales));
  auto sizes = x.sizes().vec();
  sizes.back() = weight.size(0);
  return y.view(sizes);
}

std::vector<std::string> fp8_layers(const torch::nn::Module& module, const Fp8Options& options) {
  std::vector<std::string> linears;
  for (const auto& item : module.named_modules("", /*include_self=*/false)) {
    if (dynamic_cast<const torch::nn::LinearImpl*>(item.value().get()) != nullptr) linears.push_back(item.key());
  }
  std::vector<std::string> chosen;
  for (const auto& item : module.named_modules("", /*include_self=*/false)) {
    const auto* linear = dynamic_cast<const torch::nn::LinearImpl*>(item.value().get());
    if (linear == nullptr) continue;
    const bool divisible = linear->weight.size(0) % 16 == 0 && linear->weight.size(1) % 16 == 0;
    const bool at_an_end = item.key() == linears.front() || item.key() == linears.back();
    if (options.filter ? options.filter(item.key(), *item.value()) : !at_an_end && divisible)
      chosen.push_back(item.key());
  }
  return chosen;
}

namespace {

template <class T>
void take(T& option, const T& standard, const std::optional<T>& read) {
  if (read && option == standard) option = *read;
}

}  // namespace

Fp8Options read_fp8_options(Fp8Options options, const Environment& environment) {
  const Fp8Options standard;
  const auto backend = environment.choice("ACCELERATE_FP8_BACKEND", {"ao", "te", "msamp"});
  if (backend && *backend == "msamp") {
    throw UsageError(Origin{"precision"}, "ACCELERATE_FP8_BACKEND=", *backend,
                     ": MS-AMP is a Python library; expected ao or te.");
  }
  if (environment.flag("ACCELERATE_FP8_USE_MXFP8_BLOCK_SCALING").value_or(false)) {
    throw UsageError(Origin{"precision"},
                     "ACCELERATE_FP8_USE_MXFP8_BLOCK_SCALING asks for block scaling, which needs "
                     "compute capability 10 and is not here. Leave it out.");
  }
  if (backend && *backend == "te") {
    take(options.recipe, standard.recipe, std::optional(Fp8Recipe::kDelayed));
  }
  take(options.pad_inner_dim, standard.pad_inner_dim, environment.flag("ACCELERATE_FP8_PAD_INNER_DIM"));
  take(options.enable_fsdp_float8_all_gather, standard.enable_fsdp_float8_all_gather,
       environment.flag("ACCELERATE_FP8_ENABLE_FSDP_FLOAT8_ALL_GATHER"));
  take(options.use_autocast_during_eval, standard.use_autocast_during_eval,
       environment.flag("ACCELERATE_FP8_USE_AUTOCAST_DURING_EVAL"));
  take(options.margin, standard.margin, environment.integer("ACCELERATE_FP8_MARGIN", 0, 60));
  take(options.interval, standard.interval, environment.integer("ACCELERATE_FP8_INTERVAL", 1));
  take(options.amax_history_len, standard.amax_history_len,
       environment.integer("ACCELERATE_FP8_AMAX_HISTORY_LEN", 1, 1 << 20));
  if (const auto format = environment.choice("ACCELERATE_FP8_FORMAT", {"hybrid", "e4m3", "e5m2"})) {
    take(options.fp8_format, standard.fp8_format,
         std::optional(*format == "e4m3"   ? Fp8Formats::kE4M3
                       : *format == "e5m2" ? Fp8Formats::kE5M2
                                           : Fp8Formats::kHybrid));
  }
  if (const auto algorithm = environment.choice("ACCELERATE_FP8_AMAX_COMPUTE_ALGO", {"max", "most_recent"})) {
    take(options.amax_compute_algo, standard.amax_compute_algo,
         std::optional(*algorithm == "max" ? AmaxAlgorithm::kMax : AmaxAlgorithm::kMostRecent));
  }
  take(options.override_fprop, standard.override_fprop, environment.flag("ACCELERATE_FP8_OVERRIDE_FPROP"));
  take(options.override_dgrad, standard.override_dgrad, environment.flag("ACCELERATE_FP8_OVERRIDE_DGRAD"));
  take(options.override_wgrad, standard.override_wgrad, environment.flag("ACCELERATE_FP8_OVERRIDE_WGRAD"));
  return options;
}

}  // namespace hasten::precision
