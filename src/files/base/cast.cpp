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

// A number on its way: integers keep all their digits.
struct CastNumber {
  double real = 0;
  int64_t whole = 0;
  bool is_whole = false;
};

template <class T>
T element_of(const void* source, size_t i) {
  T value;
  std::memcpy(&value, static_cast<const char*>(source) + i * sizeof(T), sizeof(T));
  return value;
}

template <class T>
void put_element(void* target, size_t i, T value) {
  std::memcpy(static_cast<char*>(target) + i * sizeof(T), &value, sizeof(T));
}

template <class T>
CastNumber whole_element(T value) {
  return {static_cast<double>(value), static_cast<int64_t>(value), true};
}

CastNumber number_at(Dtype dtype, const void* source, size_t i) {
  switch (dtype) {
    case Dtype::kFloat64:
      return {.real = element_of<double>(source, i)};
    case Dtype::kFloat32:
      return {.real = element_of<float>(source, i)};
    case Dtype::kFloat16:
      return {.real = wide(element_of<Half>(source, i))};
    case Dtype::kBFloat16:
      return {.real = wide(element_of<BFloat16>(source, i))};
    case Dtype::kInt64:
      return whole_element(element_of<int64_t>(source, i));
    case Dtype::kInt32:
      return whole_element(element_of<int32_t>(source, i));
    case Dtype::kInt16:
      return whole_element(element_of<int16_t>(source, i));
    case Dtype::kInt8:
      return whole_element(element_of<int8_t>(source, i));
    default:  // kUInt8, kBool
      return whole_element(element_of<uint8_t>(source, i));
  }
}

int64_t whole_of(const CastNumber& number) {
  if (number.is_whole) return number.whole;
  return std::abs(number.real) < 0x1p63 ? static_cast<int64_t>(number.real) : INT64_MIN;
}

void put_number(Dtype dtype, void* target, size_t i, const CastNumber& number) {
  switch (dtype) {
    case Dtype::kFloat64:
      return put_element(target, i, number.real);
    case Dtype::kFloat32:
      return put_element(target, i, static_cast<float>(number.real));
    case Dtype::kFloat16:
      return put_element(target, i, narrow<Half>(number.real));
    case Dtype::kBFloat16:
      return put_element(target, i, narrow<BFloat16>(number.real));
    case Dtype::kInt64:
      return put_element(target, i, whole_of(number));
    case Dtype::kInt32:
      return put_element(target, i, static_cast<int32_t>(whole_of(number)));
    case Dtype::kInt16:
      return put_element(target, i, static_cast<int16_t>(whole_of(number)));
    case Dtype::kInt8:
      return put_element(target, i, static_cast<int8_t>(whole_of(number)));
    case Dtype::kBool:
      return put_element(target, i, static_cast<uint8_t>(number.is_whole ? number.whole != 0 : number.real != 0));
    default:
      return put_element(target, i, static_cast<uint8_t>(whole_of(number)));
  }
}

bool is_whole_dtype(Dtype dtype) {
  return dtype == Dtype::kInt64 || dtype == Dtype::kInt32 || dtype == Dtype::kInt16 || dtype == Dtype::kInt8 ||
         dtype == Dtype::kUInt8 || dtype == Dtype::kBool;
}

bool is_castable(Dtype dtype) {
  return dtype == Dtype::kFloat64 || dtype == Dtype::kFloat32 || dtype == Dtype::kFloat16 || dtype == Dtype::kBFloat16;
}

}  // namespace

bool can_cast(Dtype from, Dtype to) noexcept {
  return is_castable(from) && is_castable(to);
}

bool can_convert(Dtype from, Dtype to) noexcept {
  return (is_castable(from) || is_whole_dtype(from)) && (is_castable(to) || is_whole_dtype(to));
}

void convert_elements(Dtype from, const void* source, Dtype to, void* target, size_t count) {
  if (from == to || can_cast(from, to)) return cast_elements(from, source, to, target, count);
  if (!can_convert(from, to))
    throw UsageError(kOrigin, "there is no cast from ", torch_name(from), " to ", torch_name(to), ".");
  for (size_t i = 0; i < count; ++i) put_number(to, target, i, number_at(from, source, i));
}

void cast_elements(Dtype from, const void* source, Dtype to, void* target, size_t count) {
  if (!can_cast(from, to) && from != to)
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
