// Safetensors files, mapped: names -> tensors that read their pages when they are used.
//
// The header is checked as the format's reference implementation checks it, and duplicate names besides,
// before any tensor is made. For a dataset hand the tensors to TensorDataset (tensor_dataset.h), or take
// rows().
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "hasten/data/dataset/tensor_dataset.h"

namespace hasten::data {

/// An open file. Copies and all its tensors share the mapping, which lasts as long as any of them. The file must not
/// change meanwhile. Writing to a tensor does not change the file.
class SafetensorsFile {
 public:
  /// Blocks: on the file. Throws: DataError (path, tensor, values) if the file is missing, truncated or
  /// too long; DataError if its header is no JSON of the format, is above 100 MB, names a tensor twice, or has a dtype
  /// that torch lacks; DataError for offsets that leave holes, overlap or do not fit dtype and shape.
  explicit SafetensorsFile(const std::string& path);

  /// Returns all tensors by name, on the CPU.
  const std::map<std::string, at::Tensor>& tensors() const noexcept { return contents_->tensors; }
  /// Returns the writer's notes (`__metadata__`).
  const std::map<std::string, std::string>& metadata() const noexcept { return contents_->metadata; }
  const std::string& path() const noexcept { return contents_->path; }

  /// Throws: UsageError with the nearest name if there is no such tensor.
  at::Tensor operator[](const std::string& name) const;

  /// Returns the rows of the named tensors as a dataset.
  /// Throws: UsageError if there is no such tensor, or their first sizes differ.
  NamedTensorDataset rows(const std::vector<std::string>& names) const;

 private:
  struct Contents {
    std::string path;
    std::map<std::string, at::Tensor> tensors;
    std::map<std::string, std::string> metadata;
  };
  std::shared_ptr<const Contents> contents_;
};

}  // namespace hasten::data
