// See policy.h.
#include "hasten/precision/policy.h"

#include <array>
#include <utility>
#include <vector>

#include "hasten/core/error.h"
#include "hasten/core/strings.h"
#include "hasten/core/text.h"

namespace hasten::precision {
namespace {

constexpr std::array<std::pair<const char*, Precision>, 4> kNames = {
    {{"no", Precision::kNo}, {"fp16", Precision::kFp16}, {"bf16", Precision::kBf16}, {"fp8", Precision::kFp8}}};
// Other words for them that are too far off for a guess by spelling.
constexpr std::array<std::pair<const char*, const char*>, 8> kWords = {{{"half", "fp16"},
                                                                        {"float16", "fp16"},
                                                                        {"bfloat16", "bf16"},
                                                                        {"fp32", "no"},
                                                                        {"float32", "no"},
                                                                        {"none", "no"},
                                                                        {"float8", "fp8"},
                                                                        {"amp", "fp16"}}};

void refuse_capability(const DeviceFacts& facts, const ResolvedPrecision& requested, int needed, const char* nearest) {
  if (facts.capability == 0 || facts.capability >= needed) return;
  throw UsageError(Origin{"precision"}, requested.source, '=', name_of(requested.precision),
                   ", but this GPU has compute capability ", facts.capability / 10, '.', facts.capability % 10, "; ",
                   name_of(requested.precision), " needs ", needed / 10, '.', needed % 10, ". Use ", nearest, '.');
}

void check_device(const DeviceFacts& facts, const ResolvedPrecision& requested) {
  if (requested.precision == Precision::kNo || facts.type == c10::DeviceType::CPU) return;
  if (facts.type != c10::DeviceType::CUDA) {
    throw UsageError(Origin{"precision"}, requested.source, '=', name_of(requested.precision), ", but devices of type ",
                     c10::DeviceTypeName(facts.type, true),
                     " compute in float32 only here; expected a CPU or CUDA. Use no.");
  }
  if (requested.precision == Precision::kBf16) refuse_capability(facts, requested, 80, "fp16");
  if (requested.precision == Precision::kFp8)
    refuse_capability(facts, requested, 89, facts.capability >= 80 ? "bf16" : "fp16");
}

}  // namespace

const char* name_of(Precision precision) noexcept {
  return kNames[static_cast<size_t>(precision)].first;
}

Precision parse_precision(const std::string& text, const std::string& source) {
  const std::string small = core::lower(text);
  for (const auto& [name, precision] : kNames) {
    if (small == name) return precision;
  }
  std::string hint = did_you_mean(small, {"no", "fp16", "bf16", "fp8"});
  for (const auto& [word, name] : kWords) {
    if (small == word) hint = hasten::text(", did you mean '", name, "'?");
  }
  throw UsageError(Origin{"precision"}, source, " is '", text, "'; expected no, fp16, bf16 or fp8",
                   hint.empty() ? "." : hint);
}

std::optional<c10::ScalarType> compute_dtype(Precision precision) noexcept {
  if (precision == Precision::kNo) return {};
  return precision == Precision::kFp16 ? c10::ScalarType::Half : c10::ScalarType::BFloat16;
}

ResolvedPrecision resolve(std::optional<Precision> option, const std::optional<std::string>& environment,
                          const DeviceFacts& facts) {
  ResolvedPrecision result;
  // The variable is read even if the option wins, so that a misspelt one does not go unnoticed.
  if (environment) {
    result = {parse_precision(*environment, "ACCELERATE_MIXED_PRECISION"), "ACCELERATE_MIXED_PRECISION"};
  }
  if (option) result = {*option, "AcceleratorOptions::mixed_precision"};
  check_device(facts, result);
  return result;
}

}  // namespace hasten::precision
