// Datasets in IDX files, the format of the MNIST family: one file of images, one of labels, plain or gzipped.
//
// The pixels stay bytes in memory and become floats when they are fetched, a whole batch in one go. Errors in
// the files are found when the dataset is opened. Threads share one dataset.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/data/datasets/base.h>
#include <torch/data/datasets/map.h>
#include <torch/data/example.h>
#include <torch/data/transforms/stack.h>

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace hasten::data {

/// Returns the values of one IDX file of unsigned bytes: uint8, [count, …] as in the file.
/// Blocks: on the file. Throws: DataError (path, values) if the file is missing, damaged, truncated or
/// too long, holds another type of value, or is no IDX file.
at::Tensor read_idx(const std::string& path);

/// Images and labels of one set; copies share them.
struct IdxData {
  at::Tensor images;  ///< uint8, [count, rows, columns]
  at::Tensor labels;  ///< int64, [count]

  /// Pixels scaled to [0, 1], float32 [n, 1, rows, columns], and labels, int64 [n].
  /// Throws: DataError for an index out of range.
  torch::data::Example<> batch(c10::ArrayRef<size_t> indices) const;
  size_t size() const { return static_cast<size_t>(images.size(0)); }
};

/// Whole batches: data float32 [n, 1, rows, columns], target int64 [n]. The same as IdxDataset::map(Stack<>()) gives.
class StackedIdxDataset : public torch::data::datasets::BatchDataset<StackedIdxDataset, torch::data::Example<>> {
 public:
  static constexpr bool kThreadSafe = true;
  explicit StackedIdxDataset(IdxData data) : data_(std::move(data)) {}
  torch::data::Example<> get_batch(c10::ArrayRef<size_t> indices) override { return data_.batch(indices); }
  std::optional<size_t> size() const override { return data_.size(); }

 private:
  IdxData data_;
};

/// Examples: data float32 [1, rows, columns] in [0, 1], target int64 scalar.
class IdxDataset : public torch::data::datasets::Dataset<IdxDataset> {
 public:
  static constexpr bool kThreadSafe = true;
  using Stack = torch::data::transforms::Stack<torch::data::Example<>>;

  /// Blocks: on the files. Throws: DataError as read_idx, or if the files' counts differ.
  IdxDataset(const std::string& images_path, const std::string& labels_path);

  torch::data::Example<> get(size_t index) override;
  std::vector<torch::data::Example<>> get_batch(c10::ArrayRef<size_t> indices) override;
  std::optional<size_t> size() const override { return data_.size(); }
  const IdxData& data() const noexcept { return data_; }

  /// As for any dataset of torch's. Stacking examples is what most loops do, and is done without making them
  /// first.
  using Dataset::map;
  StackedIdxDataset map(Stack) & { return StackedIdxDataset(data_); }
  StackedIdxDataset map(Stack) && { return StackedIdxDataset(data_); }
  StackedIdxDataset map(Stack) const& { return StackedIdxDataset(data_); }

 private:
  IdxData data_;
};

/// Where the Debian package dataset-fashion-mnist puts its files.
inline constexpr const char* kFashionMnistRoot = "/usr/share/datasets/fashion-mnist";

/// Where its authors serve the same files.
inline constexpr const char* kFashionMnistSource = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com";

/// Fetches those of Fashion-MNIST's four files that `folder` lacks from `source`, an address or a folder, and returns
/// `folder`, for fashion_mnist. Their unpacked bytes are checked by known hashes. Several processes may call it.
/// Blocks: on the network and the disk. Throws: as files::fetch_file; DataError for other contents,
/// which are removed.
std::string fetch_fashion_mnist(const std::string& folder, const std::string& source = kFashionMnistSource);

/// Fashion-MNIST: 60,000 images for training, or 10,000 for validation (train = false), 28 x 28 pixels, 10 classes,
/// from {train,t10k}-{images-idx3,labels-idx1}-ubyte in `root`, with or without .gz.
/// Blocks: on the files. Throws: DataError that explains how to get the files; as IdxDataset.
IdxDataset fashion_mnist(const std::string& root = kFashionMnistRoot, bool train = true);

}  // namespace hasten::data
