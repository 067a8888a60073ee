// Whole models in another dtype, and float32 masters of their weights: the tools of Apex's fp16_utils.
//
// Batch norms can stay in float32: their statistics lose too much in half precision, and libtorch's kernels take
// float32 statistics beside half inputs.
#pragma once

#include <torch/nn/module.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace hasten::precision {

struct ConvertOptions {
  /// Batch norms with affine parameters keep float32.
  bool keep_batchnorm = false;
};

/// Converts the module's floating-point parameters and buffers in place. Parameters keep their identity, so optimizers
/// may be made before or after. Apex's convert_network and convert_module.
void convert(torch::nn::Module& module, at::ScalarType dtype, const ConvertOptions& options = {});

/// How the floating-point buffers of a model are cast.
struct BufferCasts {
  /// Unset: they keep their dtypes. The statistics of batch norms keep theirs in any case: libtorch's kernels need
  /// float32 ones beside float32 weights.
  std::optional<at::ScalarType> dtype = {};
  /// Whole names of buffers in which one of these patterns is found stay, or become, float32. '*' stands for any
  /// characters, the rest is ECMAScript.
  std::vector<std::string> keep_float32 = {};
};

/// Casts the module's buffers in place; they keep their identity. FSDP's buffer_dtype, DeepSpeed's data_types. Returns
/// the number of buffers that have changed.
/// Throws: UsageError for text that is no pattern.
int64_t cast_buffers(torch::nn::Module& module, const BufferCasts& casts);

/// Float32 batch norms inside a converted model (Apex's BN_convert_float).
void batch_norms_to_float(torch::nn::Module& module);

/// convert to float16 with float32 batch norms (Apex's network_to_half, without the wrapper that casts inputs: use
/// Fp16Model for that).
void network_to_half(torch::nn::Module& module);

/// A float16 model whose inputs are cast (Apex's FP16Model, tofp16). `model(x)` calls forward.
template <class M>
class Fp16Model {
 public:
  /// Converts the module, which stays the caller's holder or shared_ptr.
  explicit Fp16Model(M module) : module_(std::move(module)) { network_to_half(*module_); }
  template <class... Inputs>
  auto operator()(const Inputs&... inputs) {
    return module_->forward(half(inputs)...);
  }
  auto* operator->() const { return &*module_; }

 private:
  static at::Tensor half(const at::Tensor& tensor) {
    return tensor.is_floating_point() ? tensor.to(at::kHalf) : tensor;
  }
  template <class T>
  static const T& half(const T& value) {
    return value;
  }
  M module_;
};

struct ParameterLists {
  std::vector<at::Tensor> model;
  /// Float32 copies in the same order, or one flat tensor of all of them.
  std::vector<at::Tensor> master;
};

/// Returns the model's trainable parameters and float32 masters of them (Apex's prep_param_lists). With `flat_master`,
/// one tensor holds all masters, one after the other.
/// Throws: UsageError for flat_master if the parameters' dtypes differ.
ParameterLists prep_param_lists(const torch::nn::Module& module, bool flat_master = false);
/// Copies gradients to the masters, which get theirs at the first call.
void model_grads_to_master_grads(const ParameterLists& lists);
/// Copies masters to the model, rounded.
void master_params_to_model_params(const ParameterLists& lists);

}  // namespace hasten::precision
