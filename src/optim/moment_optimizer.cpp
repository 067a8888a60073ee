// The common part of the steps of ApexAdam, ApexSgd, Lamb and NovoGrad; see moment_optimizer.h.
#include "optim/moment_optimizer.h"
#include "compat/versions.h"

#include <cmath>

namespace hasten::optim {

void detail::MomentState::serialize(torch::serialize::OutputArchive& archive) const {
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(step);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(first);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(second);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(master);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(moment);
}

void detail::MomentState::serialize(torch::serialize::InputArchive& archive) {
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(int64_t, step);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(at::Tensor, first);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(at::Tensor, second);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(at::Tensor, master);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, moment);
}

namespace detail {
namespace {

bool is_half(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kHalf || tensor.scalar_type() == at::kBFloat16;
}

bool lies_in_one_piece(const at::Tensor& tensor, const at::Tensor& like) {
  return tensor.is_non_overlapping_and_dense() && tensor.strides() == like.strides();
}

}  // namespace

steps::Storage storage_of(at::ScalarType dtype) {
  return dtype == at::kBFloat16 ? steps::Storage::kBFloat16
         : dtype == at::kHalf   ? steps::Storage::kFloat16
                                : steps::Storage::kFloat32;
}

MomentState& moment_state(torch::optim::Optimizer& optimizer, const at::Tensor& parameter) {
  auto& place = optimizer.state()[parameter.unsafeGetTensorImpl()];
  if (!place) place = std::make_unique<MomentState>();
  return static_cast<MomentState&>(*place);
}

at::Tensor moment_like(const at::Tensor& parameter) {
  const auto dtype = parameter.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return at::zeros_like(parameter, parameter.options().dtype(dtype), at::MemoryFormat::Preserve);
}

Target::Target(const at::Tensor& own, MomentState& state, bool with_master) : parameter(own), weight(own) {
  if (own.grad().is_sparse()) {
    throw UsageError(Origin{"optim"}, "a sparse gradient of sizes ", own.sizes(),
                     "; this optimizer expected dense ones. Make the embedding with sparse(false).");
  }
  if (is_half(own)) {
    if (with_master) {
      if (!state.master().defined()) state.master(own.to(at::kFloat));
      weight = state.master();
    } else {
      weight = own.to(at::kFloat);
    }
  }
  gradient = own.grad();
  const bool dense = lies_in_one_piece(weight, own) && own.is_non_overlapping_and_dense();
  loops = own.is_cpu() && weight.scalar_type() == at::kFloat && dense && gradient.is_cpu() &&
          gradient.scalar_type() != at::kDouble;
  if (loops && !lies_in_one_piece(gradient, own))
    gradient = at::empty_like(own, own.options().dtype(gradient.scalar_type())).copy_(gradient);
  if (!loops) gradient = gradient.to(weight.scalar_type());
}

steps::Slice Target::slice(const at::Tensor& first, const at::Tensor& second) const {
  steps::Slice result;
  result.count = weight.numel();
  result.weight = weight.mutable_data_ptr();
  if (!weight.is_same(parameter)) {
    result.copy = parameter.mutable_data_ptr();
    result.copy_storage = storage_of(parameter.scalar_type());
  }
  compat::bump_version(parameter);
  result.gradient = gradient.const_data_ptr();
  result.gradient_storage = storage_of(gradient.scalar_type());
  result.states = {first.defined() ? first.mutable_data_ptr() : nullptr,
                   second.defined() ? second.mutable_data_ptr() : nullptr, nullptr};
  result.gradient_factor = factor;
  return result;
}

void Target::finish() const {
  if (!loops && !weight.is_same(parameter)) parameter.copy_(weight);
}

double squares_of(const Target& target) {
  if (target.loops) {
    return steps::sum_of_squares(target.gradient.const_data_ptr(), storage_of(target.gradient.scalar_type()),
                                 target.gradient.numel());
  }
  return target.gradient.to(at::kDouble).square().sum().item<double>();
}

double largest_of(const Target& target) {
  if (target.gradient.numel() == 0) return 0;
  if (target.loops) {
    return steps::largest_magnitude(target.gradient.const_data_ptr(), storage_of(target.gradient.scalar_type()),
                                    target.gradient.numel());
  }
  return target.gradient.abs().max().item<double>();
}

void require_at_least_0(const char* optimizer, const char* option, double value) {
  if (value >= 0 && std::isfinite(value)) return;
  throw UsageError(Origin{"optim"}, optimizer, ": ", option, " = ", value, "; expected a finite number of at least 0.");
}

}  // namespace detail
}  // namespace hasten::optim
