// One table serves all names; see dtype.h.
#include "hasten/files/base/dtype.h"

#include <algorithm>
#include <array>

namespace hasten::files {
namespace {

struct Row {
  Dtype dtype;
  uint8_t bytes, swap;
  bool floating;
  std::string_view torch, safetensors, storage;
};

constexpr std::array kRows = {
    Row{Dtype::kBool, 1, 1, false, "bool", "BOOL", "BoolStorage"},
    Row{Dtype::kUInt8, 1, 1, false, "uint8", "U8", "ByteStorage"},
    Row{Dtype::kInt8, 1, 1, false, "int8", "I8", "CharStorage"},
    Row{Dtype::kUInt16, 2, 2, false, "uint16", "U16", ""},
    Row{Dtype::kInt16, 2, 2, false, "int16", "I16", "ShortStorage"},
    Row{Dtype::kUInt32, 4, 4, false, "uint32", "U32", ""},
    Row{Dtype::kInt32, 4, 4, false, "int32", "I32", "IntStorage"},
    Row{Dtype::kUInt64, 8, 8, false, "uint64", "U64", ""},
    Row{Dtype::kInt64, 8, 8, false, "int64", "I64", "LongStorage"},
    Row{Dtype::kFloat16, 2, 2, true, "float16", "F16", "HalfStorage"},
    Row{Dtype::kBFloat16, 2, 2, true, "bfloat16", "BF16", "BFloat16Storage"},
    Row{Dtype::kFloat32, 4, 4, true, "float32", "F32", "FloatStorage"},
    Row{Dtype::kFloat64, 8, 8, true, "float64", "F64", "DoubleStorage"},
    Row{Dtype::kComplex32, 4, 2, false, "complex32", "", ""},
    Row{Dtype::kComplex64, 8, 4, false, "complex64", "C64", "ComplexFloatStorage"},
    Row{Dtype::kComplex128, 16, 8, false, "complex128", "", "ComplexDoubleStorage"},
    Row{Dtype::kFloat8E4M3Fn, 1, 1, true, "float8_e4m3fn", "F8_E4M3", ""},
    Row{Dtype::kFloat8E5M2, 1, 1, true, "float8_e5m2", "F8_E5M2", ""},
    Row{Dtype::kFloat8E4M3Fnuz, 1, 1, true, "float8_e4m3fnuz", "F8_E4M3FNUZ", ""},
    Row{Dtype::kFloat8E5M2Fnuz, 1, 1, true, "float8_e5m2fnuz", "F8_E5M2FNUZ", ""},
    Row{Dtype::kFloat8E8M0Fnu, 1, 1, true, "float8_e8m0fnu", "F8_E8M0", ""},
    Row{Dtype::kFloat4E2M1FnX2, 1, 1, true, "float4_e2m1fn_x2", "F4", ""},
};

constexpr bool in_order() {
  for (size_t i = 0; i < kRows.size(); ++i) {
    if (static_cast<size_t>(kRows[i].dtype) != i) return false;
  }
  return true;
}
static_assert(in_order());

const Row& row_of(Dtype dtype) noexcept {
  return kRows[static_cast<size_t>(dtype)];
}

std::optional<Dtype> search(std::string_view name, std::string_view Row::*column) noexcept {
  if (name.empty()) return std::nullopt;
  const auto* found = std::find_if(kRows.begin(), kRows.end(), [&](const Row& row) { return row.*column == name; });
  return found == kRows.end() ? std::nullopt : std::optional(found->dtype);
}

}  // namespace

size_t element_bytes(Dtype dtype) noexcept {
  return row_of(dtype).bytes;
}
size_t swap_bytes(Dtype dtype) noexcept {
  return row_of(dtype).swap;
}
bool is_floating_point(Dtype dtype) noexcept {
  return row_of(dtype).floating;
}
std::string_view torch_name(Dtype dtype) noexcept {
  return row_of(dtype).torch;
}
std::string_view safetensors_name(Dtype dtype) noexcept {
  return row_of(dtype).safetensors;
}
std::string_view storage_class(Dtype dtype) noexcept {
  return row_of(dtype).storage;
}

std::optional<Dtype> dtype_of_torch_name(std::string_view name) noexcept {
  return search(name, &Row::torch);
}
std::optional<Dtype> dtype_of_safetensors_name(std::string_view name) noexcept {
  return search(name, &Row::safetensors);
}
std::optional<Dtype> dtype_of_storage_class(std::string_view name) noexcept {
  return search(name, &Row::storage);
}

}  // namespace hasten::files
