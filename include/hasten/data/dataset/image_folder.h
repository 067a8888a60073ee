// A folder of images, one folder a class: root/cat/1.jpg, root/dog/a/2.png, as torchvision's ImageFolder.
//
// A worker thread reads, decodes and transforms an image when it is requested. image_transform.h has the transforms,
// image.h the decoding.
#pragma once

#include <torch/data/datasets/base.h>
#include <torch/data/datasets/map.h>
#include <torch/data/example.h>
#include <torch/data/transforms/stack.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "hasten/data/image/image_transform.h"

namespace hasten::data {

struct ImageFolderOptions {
  /// The transform of each image; unset: it keeps its size.
  std::vector<ImageStep> steps = {};
  /// Pixels become (value / 255 - mean) / std; by default numbers in [0, 1]. For published models
  /// kImageNetMean and kImageNetStd.
  std::array<float, 3> mean = {0, 0, 0};
  std::array<float, 3> std = {1, 1, 1};
  /// Seed of the random steps.
  uint64_t seed = 0;
};

class StackedImageFolder;

/// Examples: data float32 [3, height, width], target the class as int64 scalar. Copies share files and options. Each
/// has an epoch of its own, so that loops over parts of one folder do not disturb each other.
class ImageFolder : public torch::data::datasets::Dataset<ImageFolder> {
 public:
  static constexpr bool kThreadSafe = true;
  using Stack = torch::data::transforms::Stack<torch::data::Example<>>;

  /// Finds the images: .png, .jpg and .jpeg in any case of letters, at any depth below each class's folder, links
  /// followed. Classes and files are sorted by name as torchvision sorts them, so that targets are the same there.
  /// Names that begin with a dot are left alone, other files passed over. Blocks: on the folders.
  /// Throws: DataError if the root cannot be read, holds no folder, or a class holds no image; UsageError for steps
  /// that fit no image.
  explicit ImageFolder(const std::string& root, const ImageFolderOptions& options = {});

  /// Blocks: on the file. Throws: DataError (path, reason) for a damaged image, one too small
  /// for a crop, or an index out of range.
  torch::data::Example<> get(size_t index) override;
  std::optional<size_t> size() const override;

  /// The epoch whose random numbers the steps take, 0 at first. Loaders set it on their own copy before each pass
  /// (Loader::set_epoch, Loader::load_state), also through Subset, concat and map. Only code that reads batches without
  /// a loader calls it.
  void set_epoch(uint64_t epoch) noexcept { epoch_ = epoch; }
  uint64_t epoch() const noexcept { return epoch_; }

  /// Names of the classes; a target is the position here.
  const std::vector<std::string>& classes() const noexcept;
  /// Throws: DataError for an index out of range.
  const std::string& path(size_t index) const;
  int64_t target(size_t index) const;

  /// As for any dataset of torch's. Stacking is done while decoding, without single tensors.
  using Dataset::map;
  StackedImageFolder map(Stack) &;
  StackedImageFolder map(Stack) &&;
  StackedImageFolder map(Stack) const&;

 private:
  friend class StackedImageFolder;
  struct Contents;
  /// Returns the image after its steps, in memory of this thread.
  const Image& load(size_t index) const;

  std::shared_ptr<const Contents> contents_;
  uint64_t epoch_ = 0;
};

/// Whole batches: data float32 [n, 3, height, width], target int64 [n]. The same as ImageFolder::map(Stack<>()) gives.
class StackedImageFolder : public torch::data::datasets::BatchDataset<StackedImageFolder, torch::data::Example<>> {
 public:
  static constexpr bool kThreadSafe = true;
  explicit StackedImageFolder(ImageFolder folder);

  /// Blocks: on the files. Throws: as ImageFolder::get, and DataError with both paths and
  /// sizes if two images of the batch have different sizes after their steps.
  torch::data::Example<> get_batch(c10::ArrayRef<size_t> indices) override;
  std::optional<size_t> size() const override { return folder_.size(); }
  /// As ImageFolder::set_epoch.
  void set_epoch(uint64_t epoch) noexcept { folder_.set_epoch(epoch); }
  const ImageFolder& folder() const noexcept { return folder_; }

 private:
  ImageFolder folder_;
};

inline StackedImageFolder ImageFolder::map(Stack) & {
  return StackedImageFolder(*this);
}
inline StackedImageFolder ImageFolder::map(Stack) && {
  return StackedImageFolder(std::move(*this));
}
inline StackedImageFolder ImageFolder::map(Stack) const& {
  return StackedImageFolder(*this);
}

}  // namespace hasten::data
