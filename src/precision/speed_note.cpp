// Which precisions are slower than float32 on a device, see device_facts.h, and which convolutions are reported as bad,
// see known_limitations.h. The factors of the former are measured (docs/precision.md).
#include "hasten/core/text.h"
#include "hasten/precision/device_facts.h"
#include "hasten/precision/known_limitations.h"
#include "hasten/precision/policy.h"

namespace hasten::precision {
namespace {

// All for bfloat16 on CPUs with instructions for it, where oneDNN computes convolutions.
struct KnownBad {
  int64_t issue;
  bool ConvolutionFacts::*convolution;
  const char* what;
};
constexpr KnownBad kKnownBad[] = {
    {169688, &ConvolutionFacts::strided_volumes,
     "convolutions over volumes whose last dimension comes to 1 with a stride above 1 are wrong in bf16 on such a CPU. "
     "Open "
     "accelerator.autocast({.enabled = false}) around them"},
    {183815, &ConvolutionFacts::dilated_or_grouped,
     "convolutions with dilations or groups take 4 to 16 times as long in bf16 from libtorch 2.13 on some CPUs. "
     "Compare with "
     "mixed_precision no"},
};

}  // namespace

std::vector<std::string> known_limitations(const DeviceFacts& facts, Precision precision,
                                           const ConvolutionFacts& convolutions) {
  std::vector<std::string> notes;
  const bool has_bf16 = facts.amx_bf16 || facts.avx512_bf16;
  if (facts.type != c10::DeviceType::CPU || precision != Precision::kBf16 || !has_bf16) return notes;
  for (const KnownBad& each : kKnownBad) {
    if (convolutions.*each.convolution) notes.push_back(text("pytorch#", each.issue, " reports that ", each.what, '.'));
  }
  return notes;
}

std::optional<std::string> speed_note(const DeviceFacts& facts, Precision precision, bool has_convolutions) {
  if (facts.type != c10::DeviceType::CPU || precision == Precision::kNo) return {};
  const bool bf16 = precision == Precision::kBf16;
  if (bf16 && facts.amx_bf16) return {};
  if (precision == Precision::kFp16 && facts.amx_fp16) return {};
  const std::string how = text(name_of(precision), " on this ", describe(facts), ' ');
  if (precision == Precision::kFp8) {
    return text(how, "is emulated, in about 3 times float32's time: for tests, not for speed.");
  }
  if (bf16) {
    return text(how, facts.avx512_bf16 ? "takes about 1.7 times float32's time" : "takes several times float32's time",
                has_convolutions ? " (convolutions and linear layers)." : " (linear layers; less for small batches).",
                " mixed_precision no is faster here.");
  }
  if (has_convolutions) {
    return text(how, "runs the backward of convolutions on a reference kernel, 60 times and more slower than float32. ",
                "Use bf16, or no.");
  }
  if (facts.avx512_fp16) return {};
  return text(how, "takes several times float32's time. mixed_precision no is faster here.");
}

}  // namespace hasten::precision
