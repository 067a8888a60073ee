// Tokens of an indexed dataset as 64-bit integers, whatever integers the file has.
#pragma once

#include <cstdint>
#include <cstring>

#include "hasten/files/base/dtype.h"

namespace hasten::data {

template <class T>
void copy_integers(const char* from, int64_t count, int64_t* to) {
  for (int64_t i = 0; i < count; ++i) {
    T value;
    std::memcpy(&value, from + static_cast<size_t>(i) * sizeof(T), sizeof(T));
    to[i] = static_cast<int64_t>(value);
  }
}

// Copies `count` tokens at any address.
inline void copy_tokens(files::Dtype dtype, const char* from, int64_t count, int64_t* to) {
  switch (dtype) {
    case files::Dtype::kUInt8:
      return copy_integers<uint8_t>(from, count, to);
    case files::Dtype::kInt8:
      return copy_integers<int8_t>(from, count, to);
    case files::Dtype::kInt16:
      return copy_integers<int16_t>(from, count, to);
    case files::Dtype::kUInt16:
      return copy_integers<uint16_t>(from, count, to);
    case files::Dtype::kInt32:
      return copy_integers<int32_t>(from, count, to);
    default:
      return copy_integers<int64_t>(from, count, to);
  }
}

}  // namespace hasten::data
