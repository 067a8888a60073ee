// Accelerate's configuration file: its location, its contents, and how it is written.
//
// The file is the one that `accelerate config` writes (YAML 1.1, or JSON if its name ends so), also as older versions
// wrote it. This unit reads it, completes it with Accelerate's defaults, and checks it key by key. settings.h holds its
// meaning for a run.
#pragma once

#include <string>

#include "hasten/core/env.h"
#include "hasten/launch/config/config_value.h"

namespace hasten::launcher {

struct Config {
  std::string path = {};                    ///< the file it was read from
  bool sagemaker = false;                   ///< compute_environment is AMAZON_SAGEMAKER
  core::Value given = core::Value::map();   ///< contents of the file itself, in its order, old keys in their new form
  core::Value values = core::Value::map();  ///< the same with Accelerate's defaults; nothing in it is null or empty
};

/// Accelerate's folder: $HF_HOME, else $XDG_CACHE_HOME/huggingface, else ~/.cache/huggingface; in it
/// accelerate.
/// "~" and "~user" are replaced.
std::string config_folder(const Environment& environment);

/// Returns the file that is read if none is named: default_config.yaml in config_folder. It need not exist.
std::string default_config_path(const Environment& environment);

/// Reads and checks the file. Throws: UsageError if the file cannot be read, is of another kind than its name, or has
/// an unknown key or a wrong value. A single message lists all mistakes.
Config load_config(const std::string& path);

/// Reads the file's mapping as it is, without a check of its keys.
/// Throws: UsageError if it cannot be read, or is no mapping.
core::Value read_config_map(const std::string& path);

/// Returns the configuration of one process without a GPU, or of one process a GPU, that `hasten config default`
/// writes. `num_gpus` as machine.h counts them. Throws: UsageError for a mixed_precision other than no, fp16, bf16 and
/// fp8.
Config basic_config(const std::string& mixed_precision, int num_gpus);

/// Returns the values sorted by key, as Accelerate writes them. The second for files that end in .json.
std::string to_yaml(const core::Value& values);
std::string to_json(const core::Value& values);

/// Writes `content` to `path`; the folder is made. Throws: UsageError if that does not work.
void write_config(const std::string& content, const std::string& path);

/// Writes the values to `path`, as JSON if its name ends so. Throws: as write_config.
void save_config(const core::Value& values, const std::string& path);

}  // namespace hasten::launcher
