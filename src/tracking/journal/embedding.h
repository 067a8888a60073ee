// The files of TensorBoard's projector: tensors.tsv, metadata.tsv, sprite.png in a folder of their own, and the
// configuration that lists such folders. Written by the thread of the images, read by the TensorBoard tracker.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "hasten/tracking/journal/tracker.h"

namespace hasten::tracking {

/// Throws: UsageError that names `key` where numbers, metadata and images do not fit together.
void require_embedding(const std::string& key, const Embedding& embedding);

/// Writes the files into `folder`, which it makes. Blocks: on the disk. Throws: std::runtime_error.
EmbeddingFiles write_embedding(const std::filesystem::path& folder, const Embedding& embedding);

/// Converts the facts of an embedding to those of a journal record, and back.
core::Value to_value(const EmbeddingFiles& files);
EmbeddingFiles embedding_files(const core::Value& value, const std::filesystem::path& folder);

/// Returns the folder's name of an embedding below a run, as torch.utils.tensorboard makes it: "00042/TAG", with "/" as
/// %2f.
std::string embedding_folder(std::string_view key, int64_t step);

/// Returns the entry of projector_config.pbtxt for an embedding that lies in embedding_folder(key, step).
std::string projector_entry(const std::string& key, int64_t step, const EmbeddingFiles& files);

}  // namespace hasten::tracking
