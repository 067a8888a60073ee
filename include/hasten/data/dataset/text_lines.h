// The lines of a text file as a dataset: indexed once when it is opened, read at their use.
//
// The file is mapped, so it may be larger than memory. The index takes 8 bytes a line. The meaning of a line (tokens,
// JSON) is the business of a transform.
#pragma once

#include <torch/data/datasets/base.h>
#include <torch/data/datasets/map.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace hasten::data {

/// Sample i is line i without its end (LF or CR LF) and without a byte order mark before the first. A last line needs
/// no end, and an empty file has no lines. Empty lines are samples. Copies and workers share the file, which must not
/// change meanwhile.
class TextLines : public torch::data::datasets::Dataset<TextLines, std::string> {
 public:
  static constexpr bool kThreadSafe = true;

  /// Blocks: until the file has been read through once. Throws: DataError if it cannot be.
  explicit TextLines(const std::string& path);

  /// Blocks: on the file. Throws: DataError for an index out of range.
  std::string get(size_t index) override { return std::string(line(index)); }
  std::optional<size_t> size() const override;

  /// Returns the line without a copy; valid as long as a copy of the dataset exists.
  std::string_view line(size_t index) const;

 private:
  struct Index;
  std::shared_ptr<const Index> index_;
};

}  // namespace hasten::data
