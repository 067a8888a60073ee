// `hasten merge-weights`: shards of FSDP, DCP, DeepSpeed or hasten become one file, as `accelerate merge-weights` does
// it.
//
// The peer holds the whole model in memory; this streams.
#include <filesystem>
#include <iostream>

#include "commands.h"
#include "hasten/core/error.h"
#include "hasten/files/disk/durable_folder.h"
#include "hasten/files/folders/open_source.h"
#include "hasten/files/safetensors/shard_split.h"
#include "hasten/files/safetensors/weight_writer.h"
#include "help.h"
#include "weights_options.h"

namespace hasten::cli {
namespace {

const HelpText kMergeWeightsHelp = {
    "hasten merge-weights CHECKPOINT_DIRECTORY OUTPUT_PATH [OPTIONS]",
    "Merges the weights of a sharded checkpoint (FSDP, DCP, DeepSpeed, hasten) into model.safetensors in OUTPUT_PATH. "
    "CHECKPOINT_DIRECTORY may be the folder above pytorch_model_fsdp_0.",
    "A state_dict with one top key ({\"model\": …}) is opened. Memory does not grow with the model."};

}  // namespace

int merge_weights(const std::vector<std::string>& words) {
  const launcher::CommandLine line =
      read_words("merge-weights", merge_weights_options(), words, "CHECKPOINT_DIRECTORY and OUTPUT_PATH", 2, 2);
  if (line.help) {
    std::cout << help_of(kMergeWeightsHelp, merge_weights_options(), colours_wanted());
    return 0;
  }
  const std::string &from = line.rest[0], &to = line.rest[1];
  const bool remove = line.has("remove_checkpoint_dir");
  if (remove && is_inside(to, from)) {
    throw UsageError({"merge-weights"}, "'", to, "' lies inside '", from,
                     "', which --remove_checkpoint_dir would remove. Give another OUTPUT_PATH.");
  }
  const files::TensorSourcePtr source = files::open_source(from);
  require_other_files("merge-weights", *source, to);
  for (const std::string& remark : source->remarks()) std::cerr << "hasten: " << remark << "\n";
  files::WeightWriteOptions options{
      .safe_serialization = !line.has("unsafe_serialization"), .sync = remove, .verify = remove};
  if (line.has("max_shard_size")) options.max_shard_bytes = files::parse_shard_size(line.text("max_shard_size"));
  const files::WrittenWeights written = files::write_weights(files::real_disk(), *source, to, options);
  std::cout << source->names().size() << " tensors, " << size_words(written.tensor_bytes) << ", in";
  for (const std::string& file : written.files) std::cout << " " << file;
  std::cout << "\n";
  if (remove) {
    files::remove_durably(files::real_disk(), from);
    std::cout << "removed " << from << "\n";
  }
  return 0;
}

}  // namespace hasten::cli
