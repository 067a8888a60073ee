// See device_facts.h.
#include "hasten/precision/device_facts.h"

#include <dlfcn.h>

#include <iterator>
#include <sstream>

#include "hasten/core/file.h"
#include "hasten/core/text.h"

namespace hasten::precision {
namespace {

// The CUDA runtime is libtorch's. It is looked up, not linked, so that one build serves both kinds of libtorch.
int cuda_capability(c10::DeviceIndex index) {
  using Query = int (*)(int* value, int attribute, int device);
  const auto query = reinterpret_cast<Query>(dlsym(RTLD_DEFAULT, "cudaDeviceGetAttribute"));
  constexpr int kMajor = 75, kMinor = 76;
  int major = 0, minor = 0;
  const int device = index < 0 ? 0 : index;
  if (query == nullptr || query(&major, kMajor, device) != 0 || query(&minor, kMinor, device) != 0) return 0;
  return major * 10 + minor;
}

}  // namespace

DeviceFacts parse_cpuinfo(const std::string& text) {
  DeviceFacts facts;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind("flags", 0) != 0 && line.rfind("Features", 0) != 0) continue;
    std::istringstream words(line);
    for (std::string word; words >> word;) {
      facts.amx_bf16 = facts.amx_bf16 || word == "amx_bf16";
      facts.amx_fp16 = facts.amx_fp16 || word == "amx_fp16";
      facts.avx512_bf16 = facts.avx512_bf16 || word == "avx512_bf16";
      facts.avx512_fp16 = facts.avx512_fp16 || word == "avx512_fp16";
    }
    break;
  }
  return facts;
}

DeviceFacts device_facts(c10::Device device) {
  if (!device.is_cpu()) {
    return {.type = device.type(), .capability = device.is_cuda() ? cuda_capability(device.index()) : 0};
  }
  return parse_cpuinfo(core::read_file("/proc/cpuinfo").value_or(""));
}

std::string describe(const DeviceFacts& facts) {
  if (facts.type == c10::DeviceType::CUDA) {
    if (facts.capability == 0) return "CUDA device of unknown capability";
    return text("CUDA device of capability ", facts.capability / 10, '.', facts.capability % 10);
  }
  if (facts.type != c10::DeviceType::CPU) return c10::DeviceTypeName(facts.type, true) + " device";
  std::string with;
  const auto add = [&with](bool has, const char* name) {
    if (has) with += (with.empty() ? "" : ", ") + std::string(name);
  };
  add(facts.amx_bf16, "AMX bf16");
  add(facts.amx_fp16, "AMX fp16");
  add(facts.avx512_bf16, "AVX512 bf16");
  add(facts.avx512_fp16, "AVX512 fp16");
  std::string result = "CPU";
  if (!with.empty()) result += " with " + with;
  if (!facts.amx_bf16) result += with.empty() ? " without AMX" : ", without AMX";
  return result;
}

}  // namespace hasten::precision
