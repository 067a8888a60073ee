// Until files/open_source.h is there.
#pragma once
#if __has_include("hasten/files/open_source.h")
#include "hasten/files/open_source.h"
#else
#include "hasten/core/error.h"
#include "hasten/files/python_file.h"
#include "hasten/files/safetensors_source.h"
#include "hasten/files/weight_search.h"
namespace hasten::files {
inline TensorSourcePtr open_source(const std::string& path) {
  const auto found = find_weights(path);
  if (found.files.at(0).size() > 12 && found.files[0].ends_with(".safetensors")) return open_safetensors(path, found.files);
  return open_python_source(found.files[0]);
}
inline PythonValue read_dcp_value(const std::string&, const std::string&) { return {}; }
}  // namespace hasten::files
#endif
