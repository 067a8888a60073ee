// The common part of all tensor sources: names, their order, look-up and checks. It is private to the room.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "files/base/posix_file.h"
#include "hasten/files/base/tensor_source.h"

namespace hasten::files {

class NamedSource : public TensorSource {
 public:
  explicit NamedSource(std::string path) : path_(std::move(path)) {}
  const std::vector<std::string>& names() const override { return names_; }
  bool contains(std::string_view name) const override { return index_.contains(std::string(name)); }
  const TensorInfo& info(std::string_view name) const override { return infos_[index_of(name)]; }
  void read(std::string_view name, const Box& box, void* target) const override;
  std::optional<TensorLocation> location(std::string_view) const override { return std::nullopt; }
  const std::string& path() const override { return path_; }
  std::vector<std::string> remarks() const override { return remarks_; }

 protected:
  /// Adds a tensor and returns its index. Throws: DataError if the name is there.
  size_t add(TensorInfo info);
  size_t index_of(std::string_view name) const;
  void remark(std::string words) { remarks_.push_back(std::move(words)); }
  /// Reads a box that has been checked to lie inside tensor number `index`.
  virtual void read_tensor(size_t index, const Box& box, void* target) const = 0;

 private:
  std::string path_;
  std::vector<std::string> names_;
  std::vector<TensorInfo> infos_;
  std::unordered_map<std::string, size_t> index_;
  std::vector<std::string> remarks_;
};

/// Reads `box` of a contiguous tensor that begins at `offset` of a file. Neighbouring runs are read at once.
void read_box(const PosixFile& file, uint64_t offset, std::span<const int64_t> shape, const Box& box, size_t item_bytes,
              void* target);

}  // namespace hasten::files
