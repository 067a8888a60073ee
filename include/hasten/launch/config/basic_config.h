// Accelerate's configuration file without questions, from inside a program (Accelerate's write_basic_config).
//
// `hasten config default` does the same from a shell. Contents and place of the file: config_file.h.
#pragma once

#include <optional>
#include <string>

#include "hasten/core/env.h"

namespace hasten {

struct BasicConfigOptions {
  /// no, fp16, bf16 or fp8.
  std::string mixed_precision = "no";
  /// The file to write. Empty: the one that `hasten launch` reads if none is named (default_config_path).
  std::string path = {};
};

/// Writes the configuration of one process a GPU of this machine, or of one process on the CPU. Returns the file's
/// path, and nothing if it exists already, which leaves it as it is. The content is JSON, which readers of YAML take.
/// Throws: UsageError for another precision, or if the file cannot be written.
std::optional<std::string> write_basic_config(const BasicConfigOptions& options = {},
                                              const Environment& environment = Environment::current());

}  // namespace hasten
