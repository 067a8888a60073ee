// The options of the commands on weights and checkpoints, and the reading of lines with options among the words.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "hasten/files/base/dtype.h"
#include "hasten/files/base/tensor_source.h"
#include "hasten/launch/options/command_line.h"

namespace hasten::cli {

const std::vector<launcher::OptionGroup>& merge_weights_options();
const std::vector<launcher::OptionGroup>& convert_options();
const std::vector<launcher::OptionGroup>& zero_to_fp32_options();
const std::vector<launcher::OptionGroup>& checkpoint_options();

/// Reads options before, between and after words; the words come out as `rest`. `names` are what they stand for.
/// Throws: UsageError for anything wrong with it, or a number of words outside [least, most].
launcher::CommandLine read_words(const std::string& command, const std::vector<launcher::OptionGroup>& options,
                                 const std::vector<std::string>& words, const std::string& names, size_t least,
                                 size_t most);

/// Returns true if `path` is the folder, or lies inside of it, whether either is there or not.
bool is_inside(const std::string& path, const std::string& folder);

/// Throws: UsageError if weights written to `output`, a file or a folder, would replace or remove files that are read.
void require_other_files(const std::string& command, const files::TensorSource& source, const std::string& output);

/// "1.5 GB": powers of ten, as sizes of shards are given.
std::string size_words(uint64_t bytes);

}  // namespace hasten::cli
