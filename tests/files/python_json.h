// Python's values as the golden cases write them: a tree with one key a node.
#pragma once

#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "hasten/core/hash.h"
#include "hasten/files/python/python_file.h"

namespace hasten::files::testing {

using nlohmann::json;

/// A double as a golden file has it: not-finite ones are words.
inline json real_json(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return value;
}

/// A float32, by way of the shortest decimal that reads back as it.
inline json float_json(float value) {
  if (!std::isfinite(value)) return real_json(value);
  char digits[64];
  const auto end = std::to_chars(digits, digits + sizeof digits, value).ptr;
  *end = '\0';
  return std::strtod(digits, nullptr);
}

inline float small_float(uint32_t bits, int exponent_bits, int mantissa_bits, int bias, bool has_infinity,
                         bool is_fnuz) {
  const uint32_t sign = bits >> (exponent_bits + mantissa_bits), top = (1u << exponent_bits) - 1;
  const uint32_t exponent = bits >> mantissa_bits & top, mantissa = bits & ((1u << mantissa_bits) - 1);
  if (is_fnuz && sign == 1 && exponent == 0 && mantissa == 0) return NAN;
  if (!is_fnuz && exponent == top) {
    if (has_infinity) return mantissa == 0 ? (sign ? -INFINITY : INFINITY) : NAN;
    if (mantissa == (1u << mantissa_bits) - 1) return NAN;
  }
  const float magnitude = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), 1 - bias - mantissa_bits)
                                        : std::ldexp(static_cast<float>(mantissa | 1u << mantissa_bits),
                                                     static_cast<int>(exponent) - bias - mantissa_bits);
  return sign ? -magnitude : magnitude;
}

template <class T>
T element(const std::string& bytes, size_t index) {
  T value;
  std::memcpy(&value, bytes.data() + index * sizeof(T), sizeof(T));
  return value;
}

/// Element `i` of values of `dtype`.
inline json element_json(Dtype dtype, const std::string& bytes, size_t i) {
  switch (dtype) {
    case Dtype::kBool:
      return element<uint8_t>(bytes, i) != 0;
    case Dtype::kUInt8:
      return element<uint8_t>(bytes, i);
    case Dtype::kInt8:
      return element<int8_t>(bytes, i);
    case Dtype::kUInt16:
      return element<uint16_t>(bytes, i);
    case Dtype::kInt16:
      return element<int16_t>(bytes, i);
    case Dtype::kUInt32:
      return element<uint32_t>(bytes, i);
    case Dtype::kInt32:
      return element<int32_t>(bytes, i);
    case Dtype::kUInt64:
      return element<uint64_t>(bytes, i);
    case Dtype::kInt64:
      return element<int64_t>(bytes, i);
    case Dtype::kFloat16:
      return float_json(small_float(element<uint16_t>(bytes, i), 5, 10, 15, true, false));
    case Dtype::kBFloat16:
      return float_json(std::bit_cast<float>(uint32_t{element<uint16_t>(bytes, i)} << 16));
    case Dtype::kFloat32:
      return float_json(element<float>(bytes, i));
    case Dtype::kFloat64:
      return real_json(element<double>(bytes, i));
    case Dtype::kComplex64:
      return json::array({float_json(element<float>(bytes, 2 * i)), float_json(element<float>(bytes, 2 * i + 1))});
    case Dtype::kComplex128:
      return json::array({real_json(element<double>(bytes, 2 * i)), real_json(element<double>(bytes, 2 * i + 1))});
    case Dtype::kFloat8E4M3Fn:
      return float_json(small_float(element<uint8_t>(bytes, i), 4, 3, 7, false, false));
    case Dtype::kFloat8E5M2:
      return float_json(small_float(element<uint8_t>(bytes, i), 5, 2, 15, true, false));
    case Dtype::kFloat8E4M3Fnuz:
      return float_json(small_float(element<uint8_t>(bytes, i), 4, 3, 8, false, true));
    case Dtype::kFloat8E5M2Fnuz:
      return float_json(small_float(element<uint8_t>(bytes, i), 5, 2, 16, false, true));
    default:
      return nullptr;
  }
}

inline json elements_json(Dtype dtype, const std::string& bytes, size_t count) {
  json values = json::array();
  for (size_t i = 0; i < count; ++i) values.push_back(element_json(dtype, bytes, i));
  return values;
}

/// All elements of a tensor of a source or a file, in logical order.
inline json values_json(const PythonTensor& tensor) {
  std::string bytes(static_cast<size_t>(numel_of(tensor.shape)) * element_bytes(tensor.dtype), '\0');
  read_tensor(tensor, whole_box(tensor.shape), bytes.data());
  return elements_json(tensor.dtype, bytes, static_cast<size_t>(numel_of(tensor.shape)));
}
inline json values_json(const TensorSource& source, const std::string& name) {
  const TensorInfo& info = source.info(name);
  std::string bytes(static_cast<size_t>(bytes_of(info)), '\0');
  source.read_all(name, bytes.data());
  return elements_json(info.dtype, bytes, static_cast<size_t>(numel_of(info.shape)));
}

class ToJson {
 public:
  json operator()(const PythonValue& value) { return convert(value); }

 private:
  using Kind = PythonValue::Kind;

  json list(const PythonValue::Items& items) {
    json list = json::array();
    for (const PythonValue& item : items) list.push_back(convert(item));
    return list;
  }
  json pairs(const PythonValue& value) {
    json list = json::array();
    for (const auto& [key, item] : value.as_pairs()) list.push_back(json::array({convert(key), convert(item)}));
    return list;
  }

  json tensor(const PythonTensor& tensor) {
    // A list for each dimension.
    const auto rows_json = [](const nlohmann::json& flat, const std::vector<int64_t>& shape) {
      nlohmann::json rows = nlohmann::json::array();
      for (int64_t row = 0; row < shape.at(0); ++row) {
        nlohmann::json& one = rows.emplace_back(nlohmann::json::array());
        for (int64_t i = 0; i < shape.at(1); ++i) one.push_back(flat.at(static_cast<size_t>(row * shape.at(1) + i)));
      }
      return rows;
    };
    if (tensor.is_sparse()) {
      return {{"sparse",
               {{"dtype", torch_name(tensor.dtype)},
                {"shape", tensor.shape},
                {"indices", rows_json(values_json(*tensor.indices), tensor.indices->shape)},
                {"values", values_json(*tensor.values)}}}};
    }
    json out{{"dtype", torch_name(tensor.dtype)},
             {"shape", tensor.shape},
             {"stride", tensor.stride},
             {"offset", tensor.offset}};
    if (tensor.is_meta()) {
      out["meta"] = true;
    } else {
      out["storage"] = storages_.emplace(tensor.storage.get(), storages_.size()).first->second;
      out["storage_bytes"] = tensor.storage->bytes;
      out["values"] = values_json(tensor);
    }
    if (tensor.parameter) out["parameter"] = true;
    if (tensor.requires_grad) out["requires_grad"] = true;
    if (tensor.conj) out["conj"] = true;
    if (tensor.neg) out["neg"] = true;
    return {{"tensor", out}};
  }

  json array(const PythonArray& array) {
    static const std::map<std::string, Dtype> kTypes{
        {"f8", Dtype::kFloat64},   {"f4", Dtype::kFloat32},    {"f2", Dtype::kFloat16}, {"i8", Dtype::kInt64},
        {"i4", Dtype::kInt32},     {"i2", Dtype::kInt16},      {"i1", Dtype::kInt8},    {"u1", Dtype::kUInt8},
        {"u2", Dtype::kUInt16},    {"u4", Dtype::kUInt32},     {"u8", Dtype::kUInt64},  {"b1", Dtype::kBool},
        {"c8", Dtype::kComplex64}, {"c16", Dtype::kComplex128}};
    const auto known = kTypes.find(array.dtype);
    if (known == kTypes.end()) return {{"numpy", {{"dtype", array.dtype}, {"shape", array.shape}}}};
    const size_t count = static_cast<size_t>(numel_of(array.shape));
    return {{"numpy",
             {{"dtype", torch_name(known->second)},
              {"shape", array.shape},
              {"values", elements_json(known->second, array.bytes, count)}}}};
  }

  json mapping(const PythonValue& value) {
    if (value.kind() == Kind::kDict) return {{"dict", pairs(value)}};
    if (value.kind() == Kind::kCounter) return {{"counter", pairs(value)}};
    json out{{"odict", pairs(value)}};
    const PythonValue* metadata = value.attributes() == nullptr ? nullptr : value.attributes()->find("_metadata");
    if (metadata == nullptr) return out;
    out["metadata"] = json::object();
    for (const auto& [name, facts] : metadata->as_pairs())
      out["metadata"][name.as_string()] = facts.at("version").as_int();
    return out;
  }

  json convert(const PythonValue& value) {
    if (value.is_mapping()) return mapping(value);
    switch (value.kind()) {
      case Kind::kNone:
        return {{"none", true}};
      case Kind::kBool:
        return {{"bool", value.as_bool()}};
      case Kind::kInt:
        return {{"int", value.int_text()}};
      case Kind::kFloat:
        return {{"float", real_json(value.as_double())}};
      case Kind::kComplex:
        return {{"complex", {real_json(value.as_complex().first), real_json(value.as_complex().second)}}};
      case Kind::kString:
        return {{"str", value.as_string()}};
      case Kind::kBytes:
        return {{"bytes", core::hex_digits(value.as_bytes())}};
      case Kind::kByteArray:
        return {{"bytearray", core::hex_digits(value.as_bytes())}};
      case Kind::kList:
        return {{"list", list(value.as_items())}};
      case Kind::kTuple:
        return {{"tuple", list(value.as_items())}};
      case Kind::kSize: {
        json sizes = json::array();
        for (const PythonValue& size : value.as_items()) sizes.push_back(size.as_int());
        return {{"size", sizes}};
      }
      case Kind::kSet:
      case Kind::kFrozenSet:
        return {{"set", list(value.as_items())}};
      case Kind::kTensor:
        return tensor(value.as_tensor());
      case Kind::kArray:
        return array(value.as_array());
      case Kind::kDtype:
        return {{"dtype", torch_name(value.as_dtype())}};
      case Kind::kDevice:
        return {{"device", value.as_string()}};
      default:
        return {{"object", value.type_name()}};
    }
  }

  std::map<const PythonStorage*, size_t> storages_;
};

}  // namespace hasten::files::testing
