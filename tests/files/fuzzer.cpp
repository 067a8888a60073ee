// The entry of libFuzzer: the first byte chooses the reader, the rest is its file. Built and run by scripts/fuzz.
//
// A reader gives a value, DataError or UsageError. Anything else, and whatever the sanitizers see, is a finding.
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "hasten/core/error.h"
#include "hasten/core/value.h"
#include "hasten/files/folders/dcp_folder.h"
#include "hasten/files/folders/manifest.h"
#include "hasten/files/python/python_file.h"
#include "hasten/files/safetensors/hf_index.h"
#include "hasten/files/safetensors/safetensors_header.h"

namespace hasten::files {
namespace {

// Reads the values as well, in exact buffers.
void read_values(const TensorSource& source) {
  for (const std::string& name : source.names()) {
    const int64_t bytes = bytes_of(source.info(name));
    if (bytes > (1 << 20)) continue;
    std::vector<char> values(static_cast<size_t>(bytes));
    source.read_all(name, values.data());
  }
}

void read_python(std::string_view bytes) {
  // A copy of exactly this size, so that one byte too many is seen.
  const auto copy = std::make_shared<std::vector<char>>(bytes.begin(), bytes.end());
  const PythonFile file = PythonFile::parse({copy->data(), copy->size()}, copy, "fuzzed");
  read_values(*python_source(file.value(), "fuzzed"));
}

void read_dcp(std::string_view bytes) {
  static const std::string folder = "/tmp/hasten_fuzz_" + std::to_string(::getpid());
  std::filesystem::create_directories(folder);
  std::ofstream(folder + "/.metadata", std::ios::binary) << bytes;
  DcpFolder::open(folder);
}

void read(unsigned char reader, std::string_view bytes) {
  switch (reader % 6) {
    case 0:
      return read_python(bytes);
    case 1:
      parse_safetensors_header("fuzzed", bytes, bytes.size());
      return;
    case 2:
      parse_hf_index(bytes, "fuzzed");
      return;
    case 3:
      parse_manifest(bytes, "fuzzed");
      return;
    case 4:
      core::Value::parse_json(bytes).to_json();
      return;
    default:
      read_dcp(bytes);
  }
}

}  // namespace
}  // namespace hasten::files

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  try {
    hasten::files::read(data[0], {reinterpret_cast<const char*>(data + 1), size - 1});
  } catch (const hasten::DataError&) {
  } catch (const hasten::UsageError&) {
  }
  return 0;
}
