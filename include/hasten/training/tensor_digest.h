// Digests of tensors: few numbers by which two runs compare large ones.
//
// A tensor is its norm and its products with four vectors of +1 and -1. A change of direction or of one element changes
// a product. Digests are linear but for the norm, so that differences of tensors are estimated from them.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <string_view>

namespace hasten::training {

/// The 2-norm, then four products.
using TensorDigest = std::array<double, 5>;

/// Returns the digest of a tensor of any dtype, layout and device. Signs are a pure function of `name` and the place of
/// an element in the flat tensor. Of an undefined tensor all numbers are 0.
/// Blocks: for a copy to the CPU. Throws: c10::Error of the copy.
TensorDigest digest_of(const at::Tensor& tensor, std::string_view name);

/// Adds the bytes of a tensor, its sizes and its dtype to a 64-bit hash. Blocks: for a copy to the CPU.
/// Throws: c10::Error of the copy.
uint64_t add_to_hash(uint64_t hash, const at::Tensor& tensor);
uint64_t add_to_hash(uint64_t hash, uint64_t value) noexcept;
uint64_t hash_of(std::string_view text) noexcept;

}  // namespace hasten::training
