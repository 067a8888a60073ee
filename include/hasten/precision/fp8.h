// Matrix products in 8-bit floating point: forward and both gradients of a linear layer.
//
// Recipes follow torchao's float8 training (tensorwise, rowwise, rowwise with high-precision weight gradients) and
// Transformer Engine's delayed scaling. On CUDA the products are libtorch's _scaled_mm. Elsewhere they are emulated in
// float32 on the quantised values, for tests. That gives the same numbers up to rounding. Scales: fp8_scaling.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "hasten/core/env.h"
#include "hasten/precision/fp8_scaling.h"

namespace torch::nn {
class Module;
}

namespace hasten::precision {

/// kTensorwise: one scale a tensor; activations and weights E4M3, gradients E5M2. kRowwise: all E4M3, a scale a row
/// along the product's inner dim, rounded down to powers of two. kRowwiseGradHp: as kRowwise, weight gradients in high
/// precision. kDelayed: one scale a tensor, from the amax of past windows.
enum class Fp8Recipe { kTensorwise, kRowwise, kRowwiseGradHp, kDelayed };

/// Selects the modules that take part, by name and module: any callable of that form. It is held in a list of at most
/// one. In options that are written in place, g++ 12 takes an empty std::function, or shared_ptr, for uninitialised.
class Fp8Filter {
 public:
  using Function = std::function<bool(const std::string&, const torch::nn::Module&)>;
  Fp8Filter() = default;
  template <class Fn>
    requires(std::is_invocable_r_v<bool, const Fn&, const std::string&, const torch::nn::Module&> &&
             !std::is_same_v<std::remove_cvref_t<Fn>, Fp8Filter>)
  Fp8Filter(Fn fn) : functions_{Function(std::move(fn))} {}
  explicit operator bool() const noexcept { return !functions_.empty(); }
  bool operator()(const std::string& name, const torch::nn::Module& module) const {
    return functions_.front()(name, module);
  }

 private:
  std::vector<Function> functions_ = {};
};

/// Accelerate's AORecipeKwargs and TERecipeKwargs in one.
struct Fp8Options {
  Fp8Recipe recipe = Fp8Recipe::kTensorwise;
  /// Which linear layers take part. Unset: all but the first and the last, whose sizes are divisible by 16.
  Fp8Filter filter = {};
  /// Zeros are added where the inner dim is not divisible by 16, instead of leaving the layer out.
  bool pad_inner_dim = true;
  bool enable_fsdp_float8_all_gather = true;
  /// kTensorwise: scales are rounded down to powers of two, as those of rows always are.
  bool round_scales_to_power_of_2 = false;
  // ---- kDelayed.
  bool use_autocast_during_eval = false;
  int64_t margin = 0;
  /// Windows between two changes of the scales.
  int64_t interval = 1;
  Fp8Formats fp8_format = Fp8Formats::kHybrid;
  int64_t amax_history_len = 1024;
  AmaxAlgorithm amax_compute_algo = AmaxAlgorithm::kMostRecent;
  /// Products of forward, input gradient, weight gradient in high precision instead.
  bool override_fprop = false, override_dgrad = false, override_wgrad = false;
};

/// Returns the options with the values of Accelerate's ACCELERATE_FP8_… variables. Options that are set in the program
/// and differ from their defaults win.
/// Throws: UsageError for the back end msamp, mxfp8 block scaling, and values out of range.
Fp8Options read_fp8_options(Fp8Options options, const Environment& environment);

/// A matrix in 8 bits, and its scale: [] for one of the whole tensor, [rows, 1] or [1, columns].
struct Quantized {
  at::Tensor values;
  at::Tensor scale;
};

/// Quantises with one dynamic scale. Values are cut to the format's range, so infinities become its largest.
Quantized quantize_tensorwise(const at::Tensor& matrix, Fp8Format format, bool power_of_two = false);
/// Quantises with a scale a row (`dim` 1: the amax runs over columns) or a column (`dim` 0).
Quantized quantize_rowwise(const at::Tensor& matrix, int64_t dim, Fp8Format format, bool power_of_two);
/// a [m, k] times b [k, n], in `dtype`.
at::Tensor scaled_mm(const Quantized& a, const Quantized& b, at::ScalarType dtype, bool fast_accumulation);

/// The three tensors of a layer whose scales are delayed: input, weight, gradient.
struct DelayedScales {
  DelayedScale input = {}, weight = {}, gradient = {};
  /// Largest magnitudes seen in the present window.
  float input_amax = 0, weight_amax = 0, gradient_amax = 0;
  /// Those that a device has seen, [3]; undefined for none. collect_amax reads them.
  at::Tensor device_amax = {};
  /// Ends the window: moves all three scales on. Amax of other ranks are to be joined in before.
  void end_window(const Fp8Options& options);
};

/// Joins what devices have seen into the largest magnitudes of the layers, with one wait for all.
/// Blocks: for the device, if there is one.
void collect_amax(const std::vector<DelayedScales*>& scales);

/// x [..., k] times weight [n, k] transposed, in x's dtype; differentiable in both. `scales` is needed for kDelayed,
/// must outlive the backward, and gets the amax. Throws: UsageError for kDelayed without
/// scales.
at::Tensor fp8_linear(const at::Tensor& x, const at::Tensor& weight, const Fp8Options& options,
                      DelayedScales* scales = nullptr);

/// Returns the names of the linear layers that take part, in module order.
/// Throws: the exceptions of the filter.
std::vector<std::string> fp8_layers(const torch::nn::Module& module, const Fp8Options& options);

}  // namespace hasten::precision
