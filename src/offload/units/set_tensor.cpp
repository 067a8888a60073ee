// See set_tensor.h.
#include "hasten/offload/units/set_tensor.h"

#include <c10/core/TensorImpl.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "hasten/core/sentence.h"

namespace hasten::offload {
namespace {

using files::Dtype;

constexpr std::array<std::pair<Dtype, at::ScalarType>, 21> kTypes{{
    {Dtype::kBool, at::kBool},
    {Dtype::kUInt8, at::kByte},
    {Dtype::kInt8, at::kChar},
    {Dtype::kUInt16, at::ScalarType::UInt16},
    {Dtype::kInt16, at::kShort},
    {Dtype::kUInt32, at::ScalarType::UInt32},
    {Dtype::kInt32, at::kInt},
    {Dtype::kUInt64, at::ScalarType::UInt64},
    {Dtype::kInt64, at::kLong},
    {Dtype::kFloat16, at::kHalf},
    {Dtype::kBFloat16, at::kBFloat16},
    {Dtype::kFloat32, at::kFloat},
    {Dtype::kFloat64, at::kDouble},
    {Dtype::kComplex32, at::ScalarType::ComplexHalf},
    {Dtype::kComplex64, at::ScalarType::ComplexFloat},
    {Dtype::kComplex128, at::ScalarType::ComplexDouble},
    {Dtype::kFloat8E4M3Fn, at::ScalarType::Float8_e4m3fn},
    {Dtype::kFloat8E5M2, at::ScalarType::Float8_e5m2},
    {Dtype::kFloat8E4M3Fnuz, at::ScalarType::Float8_e4m3fnuz},
    {Dtype::kFloat8E5M2Fnuz, at::ScalarType::Float8_e5m2fnuz},
    {Dtype::kFloat8E8M0Fnu, at::ScalarType::Float8_e8m0fnu},
}};

}  // namespace

void set_tensor(const at::Tensor& tensor, const at::Tensor& value) {
  if (tensor.sizes() != value.sizes()) {
    throw UsageError(Origin{"offload"}, "a tensor of shape [", join(tensor.sizes()),
                     "] cannot have contents of shape [", join(value.sizes()), "]. Load a tensor of the same shape.");
  }
  tensor.unsafeGetTensorImpl()->shallow_copy_from(value.getIntrusivePtr());
}

at::ScalarType scalar_type_of(Dtype dtype) {
  for (const auto& [file, torch] : kTypes) {
    if (file == dtype) return torch;
  }
  throw UsageError(Origin{"offload"}, "libtorch has no computing type for ", files::torch_name(dtype),
                   ". Convert the file to another dtype.");
}

Dtype file_dtype_of(at::ScalarType type) {
  for (const auto& [file, torch] : kTypes) {
    if (torch == type) return file;
  }
  throw UsageError(Origin{"offload"}, "tensors of dtype ", c10::toString(type), " cannot be written to a file.");
}

std::string_view dtype_name(at::ScalarType type) {
  return files::torch_name(file_dtype_of(type));
}

at::ScalarType scalar_type_of_name(std::string_view name) {
  constexpr std::string_view kTorch = "torch.";
  if (name.starts_with(kTorch)) name.remove_prefix(kTorch.size());
  if (const auto dtype = files::dtype_of_torch_name(name)) return scalar_type_of(*dtype);
  std::vector<std::string> names;
  for (const auto& [file, torch] : kTypes) names.emplace_back(files::torch_name(file));
  throw UsageError(Origin{"offload"}, "'", name, "' is no dtype", guess_end(name, names), " Expected one of ",
                   join(names), ".");
}

}  // namespace hasten::offload
