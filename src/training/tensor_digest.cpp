// See tensor_digest.h.
#include "hasten/training/tensor_digest.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <cstring>

namespace hasten::training {
namespace {

constexpr size_t kNumProducts = 4;
/// Elements whose signs come from one word of 64 bits.
constexpr int64_t kElementsOfWord = 64 / kNumProducts;

uint64_t mix(uint64_t value) noexcept {
  value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9;
  value = (value ^ value >> 27) * 0x94d049bb133111eb;
  return value ^ value >> 31;
}

template <class T>
TensorDigest digest(const T* values, int64_t count, uint64_t key) {
  TensorDigest sums{};
  for (int64_t begin = 0; begin < count; begin += kElementsOfWord) {
    uint64_t signs = mix(key + static_cast<uint64_t>(begin));
    const int64_t end = std::min(count, begin + kElementsOfWord);
    for (int64_t i = begin; i < end; ++i, signs >>= kNumProducts) {
      const auto value = static_cast<double>(values[i]);
      sums[0] += value * value;
      for (size_t k = 0; k < kNumProducts; ++k) sums[k + 1] += (signs >> k & 1) != 0 ? value : -value;
    }
  }
  sums[0] = std::sqrt(sums[0]);
  return sums;
}

}  // namespace

TensorDigest digest_of(const at::Tensor& tensor, std::string_view name) {
  if (!tensor.defined()) return {};
  at::Tensor values = tensor.detach();
  if (values.layout() != at::kStrided) values = values.to_dense();
  if (values.is_complex()) values = at::view_as_real(values.resolve_conj());
  const auto dtype = values.scalar_type() == at::kDouble || !values.is_floating_point() ? at::kDouble : at::kFloat;
  values = values.to(at::kCPU, dtype).contiguous();
  const uint64_t key = hash_of(name);
  return dtype == at::kDouble ? digest(values.const_data_ptr<double>(), values.numel(), key)
                              : digest(values.const_data_ptr<float>(), values.numel(), key);
}

uint64_t add_to_hash(uint64_t hash, uint64_t value) noexcept {
  return mix(hash + 0x9e3779b97f4a7c15 + value);
}

uint64_t add_to_hash(uint64_t hash, const at::Tensor& tensor) {
  if (!tensor.defined()) return add_to_hash(hash, uint64_t{1});
  const at::Tensor values = tensor.detach().to(at::kCPU).contiguous();
  hash = add_to_hash(hash, static_cast<uint64_t>(values.scalar_type()));
  for (const int64_t size : values.sizes()) hash = add_to_hash(hash, static_cast<uint64_t>(size));
  const auto* bytes = static_cast<const char*>(values.const_data_ptr());
  const size_t count = values.nbytes();
  for (size_t at = 0; at < count; at += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, bytes + at, std::min(sizeof word, count - at));
    hash = add_to_hash(hash, word);
  }
  return hash;
}

uint64_t hash_of(std::string_view text) noexcept {
  uint64_t hash = 14695981039346656037ULL;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ULL;
  return hash;
}

}  // namespace hasten::training
