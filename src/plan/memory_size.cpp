// See memory_size.h.
#include "hasten/plan/memory_size.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <limits>
#include <utility>

#include "hasten/core/error.h"
#include "hasten/core/number.h"
#include "hasten/core/strings.h"

namespace hasten::plan {
namespace {

std::string_view without_prefix(std::string_view dtype) {
  constexpr std::string_view kTorch = "torch.";
  if (dtype.starts_with(kTorch)) dtype.remove_prefix(kTorch.size());
  return dtype;
}

[[noreturn]] void refuse_size(const std::string& size) {
  throw UsageError(Origin{"plan"}, "'", size,
                   "' is no size; expected bytes as a number, or a number with KB, MB, GB, KiB, "
                   "MiB or GiB ('5.0GB', '20GiB').");
}

// A finite number as Python's float() takes it.
double number_in(const std::string& text, const std::string& whole) {
  const auto value = core::python_number(text);
  if (!value || !std::isfinite(*value)) refuse_size(whole);
  return *value;
}

int64_t parse_text(const std::string& size) {
  const std::string upper = core::upper(size);
  static constexpr std::array<std::pair<std::string_view, double>, 6> kUnits{
      {{"GIB", 1073741824.0}, {"MIB", 1048576.0}, {"KIB", 1024.0}, {"GB", 1e9}, {"MB", 1e6}, {"KB", 1e3}}};
  for (const auto& [unit, factor] : kUnits) {
    if (!upper.ends_with(unit)) continue;
    const double bytes = number_in(size.substr(0, size.size() - unit.size()), size) * factor;
    if (bytes >= static_cast<double>(std::numeric_limits<int64_t>::max())) refuse_size(size);
    auto whole = static_cast<int64_t>(bytes);
    if (unit.size() == 2 && size.back() == 'b') whole /= 8;
    if (whole < 0) refuse_size(size);
    return whole;
  }
  refuse_size(size);
}

constexpr std::array<const char*, 6> kUnitNames{"bytes", "KB", "MB", "GB", "TB", "PB"};

// Python's text of a number rounded to two places: "1.5", "440.0", "976.56".
std::string rounded(double value) {
  std::string result = core::fixed_text(value, 2);
  if (result.ends_with("0")) result.pop_back();
  return result;
}

}  // namespace

double dtype_byte_size(std::string_view dtype) {
  const std::string_view name = without_prefix(dtype);
  if (name == "bool") return 0.125;
  if (name.starts_with("float8")) return 1;
  size_t end = name.size();
  while (end > 0 && std::isdigit(static_cast<unsigned char>(name[end - 1]))) --end;
  double bits = 0;
  if (end < name.size() && end > 0) std::from_chars(name.data() + end, name.data() + name.size(), bits);
  static constexpr std::array<std::string_view, 9> kKinds{"float", "bfloat",  "int",  "uint",  "qint",
                                                          "quint", "complex", "bits", "float8"};
  const bool known = std::find(kKinds.begin(), kKinds.end(), name.substr(0, end)) != kKinds.end();
  if (known && bits > 0) return bits / 8;
  throw UsageError(Origin{"plan"}, "'", dtype,
                   "' is no dtype with a known size; expected float32, float16, bfloat16, int8, "
                   "int4, bool or another of PyTorch's.");
}

bool is_floating_dtype(std::string_view dtype) {
  const std::string_view name = without_prefix(dtype);
  return !name.starts_with("int") && !name.starts_with("uint") && name != "bool";
}

int64_t parse_bytes(const Bytes& size) {
  if (const auto* number = std::get_if<int64_t>(&size)) {
    if (*number < 0) refuse_size(std::to_string(*number));
    return *number;
  }
  return parse_text(std::get<std::string>(size));
}

std::string convert_bytes(int64_t size) {
  if (size < 1024) return text(size, " bytes");  // "1 bytes", as Accelerate writes it
  return convert_bytes(static_cast<double>(size));
}

std::string convert_bytes(double size) {
  size_t unit = 0;
  while (size >= 1024 && unit + 1 < kUnitNames.size()) {
    size /= 1024;
    ++unit;
  }
  return rounded(size) + " " + kUnitNames[unit];
}

}  // namespace hasten::plan
