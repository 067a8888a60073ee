// Conversions between callers' tensors and a backend's; see codec.h.
#include "comm/codec.h"

#include <torch/types.h>

namespace hasten::comm {
namespace {

void refuse(const Origin& origin, at::ScalarType dtype, const char* op, const char* remedy) {
  throw UsageError(origin, "the ", op, " of ", dtype, " tensors is not defined. ", remedy);
}

void check_op(at::ScalarType dtype, ReduceOp op, const Origin& origin) {
  if (op == ReduceOp::kMean && !at::isFloatingType(dtype) && !at::isComplexType(dtype)) {
    refuse(origin, dtype, "mean", "Convert to a floating dtype, or take the sum.");
  }
  if (!at::isComplexType(dtype) || op == ReduceOp::kSum || op == ReduceOp::kMean) return;
  refuse(origin, dtype, op == ReduceOp::kProduct ? "product" : "min or max",
         "Gather the tensors and combine them.");
}

at::ScalarType wider(at::ScalarType dtype) {
  if (dtype == at::kBool) return at::kByte;
  return at::isFloatingType(dtype) ? at::kFloat : at::kLong;
}

}  // namespace

at::Tensor stage(const at::Tensor& tensor, const Backend& backend) {
  at::Tensor plain = tensor.detach();
  if (plain.device().type() != backend.device_type()) plain = plain.to(backend.device_type());
  if (plain.is_conj() || plain.is_neg()) plain = plain.resolve_conj().resolve_neg();
  return plain.contiguous();
}

at::Tensor bytes_of(const at::Tensor& contiguous) {
  auto keep = [contiguous](void*) {};
  return torch::from_blob(contiguous.data_ptr(), {static_cast<int64_t>(contiguous.nbytes())}, keep,
                          at::TensorOptions().dtype(at::kByte).device(contiguous.device()));
}

Encoded encode(const at::Tensor& tensor, ReduceOp op, const Backend& backend, const Origin& origin) {
  const at::ScalarType dtype = tensor.scalar_type();
  check_op(dtype, op, origin);
  at::Tensor buffer = stage(tensor, backend);
  if (at::isComplexType(dtype)) buffer = at::view_as_real(buffer);
  if (!backend.reduces(buffer.scalar_type())) buffer = buffer.to(wider(buffer.scalar_type()));
  if (dtype == at::kBool && op == ReduceOp::kSum) op = ReduceOp::kMax;
  if (dtype == at::kBool && op == ReduceOp::kProduct) op = ReduceOp::kMin;
  if (op != ReduceOp::kMean || backend.averages(buffer.scalar_type())) return {buffer, op};
  return {buffer, ReduceOp::kSum, origin.world_size};
}

at::Tensor decode(const at::Tensor& buffer, int divisor, at::ScalarType dtype) {
  if (divisor != 1) buffer.div_(divisor);
  if (at::isComplexType(dtype)) return at::view_as_complex(buffer.reshape({-1, 2})).to(dtype);
  return buffer.reshape({-1}).to(dtype);
}

void write_back(const at::Tensor& to, const at::Tensor& from) {
  const at::NoGradGuard no_grad;
  const at::Tensor target = to.detach();
  if (!target.is_alias_of(from)) target.copy_(from.view(target.sizes()));
}

}  // namespace hasten::comm
