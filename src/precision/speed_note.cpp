// Which precisions are slower than float32 on a device; see device_facts.h. The factors are measured (docs/precision.md).
#include "hasten/core/text.h"
#include "hasten/precision/device_facts.h"
#include "hasten/precision/policy.h"

namespace hasten::precision {

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
