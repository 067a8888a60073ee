// Conversions between callers' tensors and a backend's; see codec.h.
#include "comm/backend/codec.h"
#include "compat/versions.h"

#include <ATen/MemoryOverlap.h>
#include <torch/types.h>

#include <cstdint>

namespace hasten::comm {
namespace {

void refuse(const Origin& origin, at::ScalarType dtype, const char* op, const char* remedy) {
  throw UsageError(origin, "the ", op, " of ", dtype, " tensors is not defined. ", remedy);
}

at::ScalarType wider(at::ScalarType dtype) {
  if (dtype == at::kBool) return at::kByte;
  return at::isFloatingType(dtype) ? at::kFloat : at::kLong;
}

bool compares(ReduceOp op) {
  return op == ReduceOp::kMin || op == ReduceOp::kMax;
}

// Between the bits of a float and an integer that is as much larger as the float is: below zero floats count
// the other way. The same way back.
at::Tensor reordered(const at::Tensor& bits) {
  const int64_t all_but_sign = bits.scalar_type() == at::kInt ? INT32_MAX : INT64_MAX;
  return at::where(bits.lt(0), bits.bitwise_xor(all_but_sign), bits);
}

// The largest and the smallest integer represent NaN, each where it wins.
at::Tensor to_ordered_integers(const at::Tensor& floats, ReduceOp op) {
  const bool is_double = floats.scalar_type() == at::kDouble;
  const at::Tensor plain = is_double ? floats : floats.to(at::kFloat);
  const at::Tensor numbers = reordered(plain.view(is_double ? at::kLong : at::kInt));
  const int64_t most = is_double ? INT64_MAX : INT32_MAX;
  return numbers.masked_fill(plain.isnan(), op == ReduceOp::kMax ? most : -most - 1);
}

at::Tensor from_ordered_integers(const at::Tensor& numbers) {
  return reordered(numbers).view(numbers.scalar_type() == at::kInt ? at::kFloat : at::kDouble);
}

}  // namespace

void check_reduction(at::ScalarType dtype, ReduceOp op, const Origin& origin) {
  if (op == ReduceOp::kMean && !at::isFloatingType(dtype) && !at::isComplexType(dtype)) {
    refuse(origin, dtype, "mean", "Convert to a floating dtype, or take the sum.");
  }
  if (compares(op) && dtype == at::kUInt64)
    refuse(origin, dtype, "min or max", "Convert to int64, or gather the tensors and combine them.");
  if (is_bitwise(op)) {
    if (at::isIntegralType(dtype, /*includeBool=*/true)) return;
    refuse(origin, dtype, name_of(op), "Give whole numbers or booleans; view(dtype) shows the bits of others as such.");
  }
  if (!at::isComplexType(dtype) || op == ReduceOp::kSum || op == ReduceOp::kMean) return;
  refuse(origin, dtype, op == ReduceOp::kProduct ? "product" : "min or max", "Gather the tensors and combine them.");
}

void check_result(const at::Tensor& result, const char* operation, const Origin& origin) {
  if (result.layout() != at::kStrided) {
    throw UsageError(origin, operation, ": a tensor of shape [", join(result.sizes()), "] with layout ",
                     result.layout(),
                     "; collectives exchange dense tensors. Give to_dense() of it, or gather indices and values.");
  }
  if (result.is_contiguous() || at::has_internal_overlap(result) != at::MemOverlap::Yes) return;
  throw UsageError(origin, operation, ": elements of the tensor, of shape [", join(result.sizes()), "] and strides [",
                   join(result.strides()), "], share memory, so that it cannot hold a result. Give a clone of it.");
}

at::Tensor stage(const at::Tensor& tensor, const Backend& backend) {
  at::Tensor plain = tensor.detach();
  if (plain.device().type() != backend.device_type()) plain = plain.to(backend.device_type());
  if (plain.is_conj() || plain.is_neg()) plain = plain.resolve_conj().resolve_neg();
  return plain.contiguous();
}

at::Tensor bytes_of(const at::Tensor& contiguous) {
  // A device has no pointer to nothing, which from_blob asks for its device.
  if (contiguous.numel() == 0) return at::empty({0}, at::TensorOptions(contiguous.device()).dtype(at::kByte));
  auto keep = [contiguous](void*) {};
  return torch::from_blob(contiguous.data_ptr(), {static_cast<int64_t>(contiguous.nbytes())}, keep,
                          at::TensorOptions().dtype(at::kByte).device(contiguous.device()));
}

Encoded encode(const at::Tensor& tensor, ReduceOp op, const Backend& backend, const Origin& origin) {
  const at::ScalarType dtype = tensor.scalar_type();
  check_reduction(dtype, op, origin);
  at::Tensor buffer = stage(tensor, backend);
  if (at::isComplexType(dtype)) buffer = at::view_as_real(buffer);
  if (!backend.reduces(buffer.scalar_type())) buffer = buffer.to(wider(buffer.scalar_type()));
  if (compares(op) && at::isFloatingType(dtype) && !backend.keeps_nan()) buffer = to_ordered_integers(buffer, op);
  if (dtype == at::kBool && op == ReduceOp::kSum) op = ReduceOp::kMax;
  if (dtype == at::kBool && op == ReduceOp::kProduct) op = ReduceOp::kMin;
  if (op != ReduceOp::kMean || backend.averages(buffer.scalar_type())) return {buffer, op};
  return {buffer, ReduceOp::kSum, origin.world_size};
}

at::Tensor decode(const at::Tensor& buffer, int divisor, at::ScalarType dtype) {
  if (divisor != 1) buffer.div_(divisor);
  const bool is_reordered = at::isFloatingType(dtype) && !at::isFloatingType(buffer.scalar_type());
  if (is_reordered) return from_ordered_integers(buffer).reshape({-1}).to(dtype);
  if (at::isComplexType(dtype)) return at::view_as_complex(buffer.reshape({-1, 2})).to(dtype);
  return buffer.reshape({-1}).to(dtype);
}

void write_back(const at::Tensor& to, const at::Tensor& from) {
  const at::NoGradGuard no_grad;
  const at::Tensor target = to.detach();
  // Parts of one tensor may be the input and the output.
  const bool is_there = target.is_contiguous() && target.data_ptr() == from.data_ptr();
  if (!is_there) {
    target.copy_(from.view(target.sizes()));
  } else {
    compat::bump_version(to);
  }
}

}  // namespace hasten::comm
