// Loaders of labelled image files, as fastai's ImageDataLoaders has them.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "hasten/data/image/image_transform.h"
#include "hasten/learner/loaders.h"

namespace hasten::learner {

/// Image files (.png, .jpg, .jpeg) below a folder, sorted. Blocks: on the folder. Throws: DataError.
std::vector<std::filesystem::path> image_files(const std::filesystem::path& folder);

/// Whether each of n files belongs to the validation data.
using ValidPart = std::function<std::vector<bool>(const std::vector<std::filesystem::path>& files)>;
/// Returns a random part of this size; rounded down. Throws: UsageError for a part outside
/// [0, 1].
ValidPart random_split(double part, uint64_t seed);
/// Returns the files below a folder of this name ("val").
ValidPart folder_split(std::string name);

/// Returns the class of a file: its name up to the last '_', as in the Oxford pets.
std::string name_before_number(const std::filesystem::path& file);
/// Returns the name of the folder that the file is in.
std::string folder_name(const std::filesystem::path& file);

struct ImageLoadersOptions {
  std::function<std::string(const std::filesystem::path&)> label = folder_name;
  ValidPart valid = random_split(0.2, 42);
  /// Side of the square that images become in both parts, unless steps say otherwise.
  int64_t resize = 224;
  std::vector<data::ImageStep> train_steps = {};
  std::vector<data::ImageStep> valid_steps = {};
  std::array<float, 3> mean = data::kImageNetMean;
  std::array<float, 3> std = data::kImageNetStd;
  int64_t batch_size = 64;
  uint64_t seed = 0;
  /// Threads that read ahead.
  int64_t workers = 0;
};

/// Training files shuffled by (seed, epoch), validation files in their order; classes sorted by name. Their loss is
/// cross_entropy.
/// Throws: UsageError for no file in the training part.
Loaders image_loaders(const std::vector<std::filesystem::path>& files, const ImageLoadersOptions& options = {});

}  // namespace hasten::learner
