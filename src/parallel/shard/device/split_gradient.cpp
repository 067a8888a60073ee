// See split_gradient.h.
#include "parallel/shard/device/split_gradient.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/types.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string_view>

#include "hasten/core/error.h"
#include "hasten/interception/interceptor.h"
#include "parallel/shard/device/device_reads.h"

namespace hasten::parallel::shard {
namespace {

// Elementwise, in place, by a number: the same on parts as on the whole.
bool works_on_parts(const std::string& name) {
  constexpr std::array<std::string_view, 7> kNames = {
      "aten::mul_",          "aten::div_",          "aten::zero_",
      "aten::fill_",         "aten::_foreach_mul_", "aten::_amp_foreach_non_finite_check_and_unscale_",
      "aten::_foreach_zero_"};
  return std::find(kNames.begin(), kNames.end(), name) != kNames.end();
}

class SplitGradient : public interception::Interceptor {
 public:
  SplitGradient(std::string name, std::function<at::Tensor()> part) : name_(std::move(name)), part_(std::move(part)) {}

  interception::Level level() const override { return interception::Level::kEveryOperator; }

  bool intercept(const c10::OperatorHandle& op, interception::Stack& stack) override {
    const auto& name = op.schema().name();
    if (is_pure_view(op) || name == "aten::detach_") return false;
    const size_t begin = stack.size() - op.schema().arguments().size();
    bool by_number = works_on_parts(name);
    for (size_t i = begin + 1; i < stack.size(); ++i) {
      if (stack[i].isTensorList()) by_number = false;
      if (stack[i].isTensor() && stack[i].toTensor().defined() && stack[i].toTensor().numel() != 1) by_number = false;
    }
    if (!by_number) {
      throw UsageError(Origin{"shard"}, "gradients of '", name_, "' are split over the ranks, and ", name,
                       " needs them whole. Step with the prepared optimizer, clip with accelerator.clip_grad_norm_, "
                       "read with sharding()->full_gradient(x).");
    }
    const c10::IValue own = stack[begin];
    c10::List<at::Tensor> parts;
    for (const at::Tensor& tensor : own.isTensor() ? std::vector{own.toTensor()} : own.toTensorVector()) {
      const auto split = interception::find_interceptor<SplitGradient>(tensor);
      const at::Tensor part = split ? split->part_() : tensor;
      if (part.defined()) parts.push_back(part);
    }
    if (parts.empty()) {
      stack.resize(begin);
    } else {
      const at::NoGradGuard no_grad;
      stack[begin] = own.isTensor() ? c10::IValue(parts.get(0)) : c10::IValue(parts);
      op.callBoxed(&stack);
      stack.resize(begin);
    }
    if (!op.schema().returns().empty()) stack.push_back(own);
    return true;
  }

 private:
  std::string name_;
  std::function<at::Tensor()> part_;
};

}  // namespace

at::Tensor make_split_gradient(const at::Tensor& parameter, const std::string& name, std::function<at::Tensor()> part) {
  const at::NoGradGuard no_grad;
  const at::Tensor gradient = torch::empty({0}, parameter.options().requires_grad(false));
  auto& impl = *gradient.unsafeGetTensorImpl();
  impl.set_storage_keep_dtype(c10::Storage(c10::Storage::use_byte_size_t(), parameter.nbytes(),
                                           at::DataPtr(nullptr, parameter.device()), /*allocator=*/nullptr,
                                           /*resizable=*/false));
  impl.set_sizes_and_strides(parameter.sizes(), parameter.strides(), 0);
  interception::add_interceptor(gradient, std::make_shared<SplitGradient>(name, std::move(part)));
  return gradient;
}

}  // namespace hasten::parallel::shard
