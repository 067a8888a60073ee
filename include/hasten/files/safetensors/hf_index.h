// Hugging Face's index of a model in several files: model.safetensors.index.json, pytorch_model.bin.index.json.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hasten/core/value.h"

namespace hasten::files {

struct HfIndex {
  core::Value metadata = core::Value::map();                         ///< {"total_size": bytes, …}
  std::vector<std::pair<std::string, std::string>> weight_map = {};  ///< tensor -> file, in the file's order
  /// Returns the files, each once, sorted by name.
  std::vector<std::string> files() const;
};

/// Reads an index. A flat object tensor -> file (without "weight_map") is one as well.
/// Throws: DataError if it is no JSON object of texts, or names a file outside its folder.
HfIndex parse_hf_index(std::string_view json, const std::string& path);
HfIndex read_hf_index(const std::string& path);

/// Returns the text as huggingface_hub writes it: keys sorted, two spaces, a line end.
std::string to_json(const HfIndex& index);

}  // namespace hasten::files
