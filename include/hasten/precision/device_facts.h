// DeviceFacts: the instruction sets and capabilities that decide which precision a device can use, and how fast.
//
// Read once from /proc/cpuinfo and the CUDA runtime that libtorch has loaded. libtorch's own queries differ between its
// releases. Every decision takes the facts as a value.
#pragma once

#include <c10/core/Device.h>

#include <optional>
#include <string>

namespace hasten::precision {

enum class Precision;

struct DeviceFacts {
  c10::DeviceType type = c10::DeviceType::CPU;
  /// CPU: instructions for matrices (AMX), for dot products of bfloat16, for vectors of float16.
  bool amx_bf16 = false;
  bool amx_fp16 = false;
  bool avx512_bf16 = false;
  bool avx512_fp16 = false;
  /// CUDA: compute capability times ten (80 for 8.0). 0 if it is unknown, which refuses nothing.
  int capability = 0;
};

/// Returns the CPU's facts from the text of /proc/cpuinfo; the flags of its first processor.
DeviceFacts parse_cpuinfo(const std::string& text);

/// Returns the facts of a device of this process.
/// Throws: nothing; what cannot be found out stays false or 0.
DeviceFacts device_facts(c10::Device device);

/// Returns a sentence if the precision is slower than float32 on this device, with the measured factor. Nothing if it
/// is not. `has_convolutions`: whether the model has any, whose factors differ.
std::optional<std::string> speed_note(const DeviceFacts& facts, Precision precision, bool has_convolutions);

/// "CPU with AVX512 bf16 and fp16, without AMX"; "CUDA capability 9.0".
std::string describe(const DeviceFacts& facts);

}  // namespace hasten::precision
