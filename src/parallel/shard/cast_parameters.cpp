// See cast_parameters.h.
#include "parallel/shard/cast_parameters.h"

#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/types.h>

namespace hasten::parallel::shard {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The copy in the parameter's place, as autograd sees it: a cast of the parameter.
struct UseCopy : torch::autograd::Function<UseCopy> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& parameter, const at::Tensor& copy) {
    context->saved_data["dtype"] = parameter.scalar_type();
    return copy.detach();
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    return {gradients[0].to(context->saved_data["dtype"].toScalarType()), at::Tensor()};
  }
};

}  // namespace

CastParameters::~CastParameters() = default;

// Those of autocast's lower-precision list that take weights, and the view that torch::nn::functional::linear makes.
std::vector<std::string_view> CastParameters::operators() const {
  return {"aten::linear",
          "aten::conv1d",
          "aten::conv2d",
          "aten::conv3d",
          "aten::conv_transpose1d",
          "aten::conv_transpose2d",
          "aten::conv_transpose3d",
          "aten::mm",
          "aten::matmul",
          "aten::addmm",
          "aten::bmm",
          "aten::baddbmm",
          "aten::t"};
}

bool CastParameters::intercept(const c10::OperatorHandle& op, interception::Stack& stack) {
  if (!at::autocast::is_autocast_enabled(at::kCPU) || at::autocast::get_autocast_dtype(at::kCPU) != dtype_) {
    return false;
  }
  for (size_t i = stack.size() - op.schema().arguments().size(); i < stack.size(); ++i) {
    if (!stack[i].isTensor() || !stack[i].toTensor().defined()) continue;
    const at::Tensor parameter = stack[i].toTensor();
    const auto copy = copies_.find(parameter.unsafeGetTensorImpl());
    // The program's writes count on this rank from then on.
    if (copy == copies_.end() || copy->second.home->is_private() || !copy->second.home->is_of(parameter)) continue;
    const bool differentiable = at::GradMode::is_enabled() && parameter.requires_grad();
    stack[i] = differentiable ? UseCopy::apply(parameter, copy->second.tensor) : copy->second.tensor;
  }
  return false;
}

void CastParameters::add(const at::Tensor& parameter, const comm::SharedRegion& region, int64_t offset,
                         const offload::Home& home) {
  const auto bytes = static_cast<int64_t>(c10::elementSize(dtype_));
  const c10::Storage storage(c10::Storage::use_byte_size_t(), static_cast<size_t>(parameter.numel() * bytes),
                             region.read_only(offset * bytes, parameter.numel() * bytes));
  at::Tensor copy = torch::empty({0}, parameter.options().dtype(dtype_).requires_grad(false));
  copy.set_(storage, 0, parameter.sizes(), parameter.strides());
  copies_.insert_or_assign(parameter.unsafeGetTensorImpl(), Copy{std::move(copy), &home});
}

void CastParameters::clear() {
  copies_.clear();
}

}  // namespace hasten::parallel::shard
