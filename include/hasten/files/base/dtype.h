// Element types of tensors in files, with their names in safetensors and in PyTorch.
//
// The room is free of libtorch, so it has an enumeration of its own. checkpoint/ maps it to at::ScalarType.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace hasten::files {

enum class Dtype : uint8_t {
  kBool,
  kUInt8,
  kInt8,
  kUInt16,
  kInt16,
  kUInt32,
  kInt32,
  kUInt64,
  kInt64,
  kFloat16,
  kBFloat16,
  kFloat32,
  kFloat64,
  kComplex32,
  kComplex64,
  kComplex128,
  kFloat8E4M3Fn,
  kFloat8E5M2,
  kFloat8E4M3Fnuz,
  kFloat8E5M2Fnuz,
  kFloat8E8M0Fnu,
  kFloat4E2M1FnX2,  ///< two values of four bits in one byte
};

/// Returns the bytes of one element, as torch counts elements: 1 for kFloat4E2M1FnX2.
size_t element_bytes(Dtype dtype) noexcept;
/// Returns the size in bytes of the parts that byte order swaps: half an element for complex types.
size_t swap_bytes(Dtype dtype) noexcept;
bool is_floating_point(Dtype dtype) noexcept;

/// Returns PyTorch's name without "torch.": "float32", "float8_e4m3fn".
std::string_view torch_name(Dtype dtype) noexcept;
std::optional<Dtype> dtype_of_torch_name(std::string_view name) noexcept;

/// Returns safetensors' name: "F32", "F8_E4M3". Empty for complex32 and complex128, which that form lacks.
std::string_view safetensors_name(Dtype dtype) noexcept;
std::optional<Dtype> dtype_of_safetensors_name(std::string_view name) noexcept;

/// Returns the name of torch's typed storage class, "FloatStorage", or "" where only untyped storages exist.
std::string_view storage_class(Dtype dtype) noexcept;
std::optional<Dtype> dtype_of_storage_class(std::string_view name) noexcept;

}  // namespace hasten::files
