// Tensors over a mapped safetensors file; see safetensors.h. The header is read and checked by the room files.
#include "hasten/data/dataset/safetensors.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "data/dataset/data_file.h"
#include "data/origin.h"
#include "hasten/core/error.h"
#include "hasten/core/sentence.h"
#include "hasten/files/safetensors/safetensors_header.h"

namespace hasten::data {

namespace {

template <class... Parts>
[[noreturn]] void fail(const std::string& path, const Parts&... parts) {
  throw DataError(kOrigin, path, "'", path, "' is no good safetensors file: ", parts...,
                  ". Get the file again, or write it anew.");
}

at::ScalarType scalar_type(const std::string& path, const files::TensorInfo& info) {
  using files::Dtype;
  static constexpr std::pair<Dtype, at::ScalarType> kTypes[] = {{Dtype::kBool, at::kBool},
                                                                {Dtype::kUInt8, at::kByte},
                                                                {Dtype::kInt8, at::kChar},
                                                                {Dtype::kUInt16, at::kUInt16},
                                                                {Dtype::kInt16, at::kShort},
                                                                {Dtype::kUInt32, at::kUInt32},
                                                                {Dtype::kInt32, at::kInt},
                                                                {Dtype::kUInt64, at::kUInt64},
                                                                {Dtype::kInt64, at::kLong},
                                                                {Dtype::kFloat16, at::kHalf},
                                                                {Dtype::kBFloat16, at::kBFloat16},
                                                                {Dtype::kFloat32, at::kFloat},
                                                                {Dtype::kFloat64, at::kDouble},
                                                                {Dtype::kComplex64, at::kComplexFloat},
                                                                {Dtype::kFloat8E4M3Fn, at::kFloat8_e4m3fn},
                                                                {Dtype::kFloat8E5M2, at::kFloat8_e5m2},
                                                                {Dtype::kFloat8E4M3Fnuz, at::kFloat8_e4m3fnuz},
                                                                {Dtype::kFloat8E5M2Fnuz, at::kFloat8_e5m2fnuz},
                                                                {Dtype::kFloat8E8M0Fnu, at::kFloat8_e8m0fnu},
                                                                {Dtype::kFloat4E2M1FnX2, at::kFloat4_e2m1fn_x2}};
  for (const auto& [known, dtype] : kTypes) {
    if (known == info.dtype) return dtype;
  }
  fail(path, "tensor '", info.name, "' has the dtype ", files::torch_name(info.dtype), ", which torch has not");
}

std::vector<int64_t> strides_of(const std::vector<int64_t>& shape) {
  std::vector<int64_t> strides(shape.size(), 1);
  for (size_t i = shape.size(); i-- > 1;) strides[i - 1] = strides[i] * std::max<int64_t>(shape[i], 1);
  return strides;
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::string& path) {
  const auto file = open_data_file(path, "a safetensors file");
  const files::SafetensorsHeader header = files::parse_safetensors_header(path, file->bytes(), file->bytes().size());
  const auto contents = std::make_shared<Contents>();
  contents->path = path;
  for (const auto& [key, value] : header.metadata) contents->metadata.emplace(key, value);
  for (const files::SafetensorsEntry& entry : header.entries) {
    const std::string_view values = file->bytes().substr(header.body_offset + entry.begin, entry.end - entry.begin);
    const at::ScalarType dtype = scalar_type(path, entry.info);
    if (dtype == at::kBool && std::any_of(values.begin(), values.end(), [](char value) { return value & ~1; })) {
      fail(path, "tensor '", entry.info.name, "' of BOOL holds a value that is neither 0 nor 1");
    }
    contents->tensors.emplace(entry.info.name, tensor_over(file, header.body_offset + entry.begin, entry.info.shape,
                                                           strides_of(entry.info.shape), dtype));
  }
  contents_ = contents;
}

at::Tensor SafetensorsFile::operator[](const std::string& name) const {
  const auto found = tensors().find(name);
  if (found != tensors().end()) return found->second;
  std::vector<std::string> names;
  for (const auto& [known, unused] : tensors()) names.push_back(known);
  throw UsageError(kOrigin, "'", path(), "' has no tensor '", name, "'", guess_end(name, names), " It has ",
                   names.size(), names.size() <= 20 ? ": " + join(names) : "", ". Correct the name.");
}

NamedTensorDataset SafetensorsFile::rows(const std::vector<std::string>& names) const {
  std::map<std::string, at::Tensor> chosen;
  for (const std::string& name : names) chosen.emplace(name, (*this)[name]);
  return NamedTensorDataset(std::move(chosen));
}

}  // namespace hasten::data
