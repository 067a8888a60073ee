// Casts through float or double; see cast.h.
#include "hasten/files/base/cast.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "files/base/origin.h"

namespace hasten::files {
namespace {

float float_of_half(uint16_t half) {
  const uint32_t sign = uint32_t{half} >> 15 << 31, exponent = half >> 10 & 31, mantissa = half & 1023u;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | mantissa << 13);
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return sign != 0 ? -magnitude : magnitude;
  }
  return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
}

uint16_t half_of_float(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>(bits >> 31 << 15);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00);
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00);  // rounds to infinity
  if (magnitude < 0x38800000u) {
    // Adding 0.5 puts the subnormal's bits, rounded to nearest even, at the end of the mantissa.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u));
  }
  const uint32_t rounded = magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1u);
  return static_cast<uint16_t>(sign | rounded >> 13);
}

uint16_t bfloat16_of_float(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return static_cast<uint16_t>(bits >> 16 | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

struct Half {
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};

float wide(Half value) {
  return float_of_half(value.bits);
}
float wide(BFloat16 value) {
  return std::bit_cast<float>(uint32_t{value.bits} << 16);
}
float wide(float value) {
  return value;
}
double wide(double value) {
  return value;
}

template <class To, class From>
To narrow(From value) {
  if constexpr (std::is_same_v<To, Half>) {
    return {half_of_float(static_cast<float>(value))};
  } else if constexpr (std::is_same_v<To, BFloat16>) {
    return {bfloat16_of_float(static_cast<float>(value))};
  } else {
    return static_cast<To>(value);
  }
}

template <class From, class To>
void cast_all(const void* source, void* target, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    From from;
    std::memcpy(&from, static_cast<const char*>(source) + i * sizeof(From), sizeof(From));
    const To to = narrow<To>(wide(from));
    std::memcpy(static_cast<char*>(target) + i * sizeof(To), &to, sizeof(To));
  }
}

template <class From>
void cast_from(const void* source, Dtype to, void* target, size_t count) {
  switch (to) {
    case Dtype::kFloat64:
      return cast_all<From, double>(source, target, count);
    case Dtype::kFloat32:
      return cast_all<From, float>(source, target, count);
    case Dtype::kFloat16:
      return cast_all<From, Half>(source, target, count);
    default:
      return cast_all<From, BFloat16>(source, target, count);
  }
}

bool is_castable(Dtype dtype) {
  return dtype == Dtype::kFloat64 || dtype == Dtype::kFloat32 || dtype == Dtype::kFloat16 || dtype == Dtype::kBFloat16;
}

}  // namespace

bool can_cast(Dtype from, Dtype to) noexcept {
  return is_castable(from) && is_castable(to);
}

void cast_elements(Dtype from, const void* source, Dtype to, void* target, size_t count) {
  if (!can_cast(from, to))
    throw UsageError(kOrigin, "there is no cast from ", torch_name(from), " to ", torch_name(to), ".");
  if (from == to) {
    std::memmove(target, source, count * element_bytes(from));
    return;
  }
  switch (from) {
    case Dtype::kFloat64:
      return cast_from<double>(source, to, target, count);
    case Dtype::kFloat32:
      return cast_from<float>(source, to, target, count);
    case Dtype::kFloat16:
      return cast_from<Half>(source, to, target, count);
    default:
      return cast_from<BFloat16>(source, to, target, count);
  }
}

}  // namespace hasten::files
