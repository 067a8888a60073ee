// Sources of the tensors of Megatron's folders: parts of ranks joined, stacked layers taken apart, and rows under other
// names. Private to the room.
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "files/base/named_source.h"
#include "files/base/origin.h"
#include "files/base/pieces.h"
#include "files/folders/megatron_names.h"
#include "files/python/tensor_files.h"
#include "hasten/files/base/cast.h"

namespace hasten::files {

// Parts of tensors in the files of ranks.
class RankSource : public NamedSource {
 public:
  using NamedSource::NamedSource;
  std::string_view form() const override { return "megatron"; }

  struct Part {
    PythonTensor tensor;
    Box box;
  };
  void add_tensor(TensorInfo info, std::vector<Part> parts) {
    add(std::move(info));
    parts_.push_back(std::move(parts));
  }
  std::optional<TensorLocation> location(std::string_view name) const override {
    const auto& parts = parts_[index_of(name)];
    return parts.size() == 1 ? plain_location(parts.front().tensor) : std::nullopt;
  }

 protected:
  void read_tensor(size_t index, const Box& box, void* target) const override {
    const size_t item = element_bytes(info(names()[index]).dtype);
    for (const Part& part : parts_[index]) {
      read_common(part.box, box, item, target,
                  [&](const Box& local, void* into) { files_.read(part.tensor, local, into); });
    }
  }

 private:
  std::vector<std::vector<Part>> parts_;
  TensorFiles files_;
};

// Layers that lie in one tensor, one after the other, as tensors of their own.
class StackedSource : public NamedSource {
 public:
  StackedSource(std::string path, TensorSourcePtr there) : NamedSource(std::move(path)), there_(std::move(there)) {}
  std::string_view form() const override { return "megatron"; }

  void add_whole(const std::string& name, const std::string& name_there) {
    const TensorInfo& info = there_->info(name_there);
    add({name, info.dtype, info.shape});
    places_.push_back({name_there, -1});
  }
  void add_layer(const std::string& name, const std::string& name_there, int64_t layer) {
    const TensorInfo& info = there_->info(name_there);
    add({name, info.dtype, {info.shape.begin() + 1, info.shape.end()}});
    places_.push_back({name_there, layer});
  }

 protected:
  void read_tensor(size_t index, const Box& box, void* target) const override {
    const auto& [name, layer] = places_[index];
    if (layer < 0) return there_->read(name, box, target);
    Box inner = box;
    inner.offset.insert(inner.offset.begin(), layer);
    inner.size.insert(inner.size.begin(), 1);
    there_->read(name, inner, target);
  }

 private:
  TensorSourcePtr there_;
  std::vector<std::pair<std::string, int64_t>> places_;
};

inline void scale_elements(Dtype dtype, void* values, size_t count, double scale) {
  std::vector<double> wide(count);
  cast_elements(dtype, values, Dtype::kFloat64, wide.data(), count);
  for (double& value : wide) value *= scale;
  cast_elements(Dtype::kFloat64, wide.data(), dtype, values, count);
}

class ConvertedSource : public NamedSource {
 public:
  ConvertedSource(std::string path, TensorSourcePtr own) : NamedSource(std::move(path)), own_(std::move(own)) {}
  std::string_view form() const override { return "megatron"; }
  using NamedSource::remark;

  void add_tensor(MegatronTensor tensor) {
    TensorInfo info = own_->info(tensor.rows.front().name);
    info.name = tensor.name;
    info.shape[0] = 0;
    for (const auto& rows : tensor.rows) info.shape[0] += rows.count;
    if (tensor.is_transposed) std::swap(info.shape[0], info.shape[1]);
    if (tensor.scale != 1 && !can_cast(info.dtype, Dtype::kFloat64)) {
      fail_data(path(), "tensor '", tensor.name, "' is ", torch_name(info.dtype), ", expected a floating-point dtype.");
    }
    add(std::move(info));
    tensors_.push_back(std::move(tensor));
  }
  std::optional<TensorLocation> location(std::string_view name) const override {
    const MegatronTensor& tensor = tensors_[index_of(name)];
    if (tensor.rows.size() > 1 || tensor.is_transposed || tensor.scale != 1 || tensor.rows[0].from > 0)
      return std::nullopt;
    return own_->location(tensor.rows[0].name);
  }

 protected:
  void read_tensor(size_t index, const Box& box, void* target) const override {
    const MegatronTensor& tensor = tensors_[index];
    const TensorInfo& info = this->info(names()[index]);
    const size_t item = element_bytes(info.dtype);
    if (!tensor.is_transposed) {
      read_rows(tensor, box, target, item);
    } else {
      const Box turned{{box.offset[1], box.offset[0]}, {box.size[1], box.size[0]}};
      std::string bytes(static_cast<size_t>(numel_of(box)) * item, '\0');
      read_rows(tensor, turned, bytes.data(), item);
      const std::vector<int64_t> from = {1, box.size[0]}, to = contiguous_strides(box.size);
      copy_elements(bytes.data(), from, target, to, box.size, item);
    }
    if (tensor.scale != 1) scale_elements(info.dtype, target, static_cast<size_t>(numel_of(box)), tensor.scale);
  }

 private:
  // Rows of a box follow each other in memory, so each run of rows is read to its place.
  void read_rows(const MegatronTensor& tensor, const Box& box, void* target, size_t item) const {
    const int64_t first = box.offset[0], end = first + box.size[0], width = numel_of(box) / box.size[0];
    for (const auto& rows : tensor.rows) {
      const int64_t begin = std::max(first, rows.to), stop = std::min(end, rows.to + rows.count);
      if (begin >= stop) continue;
      Box there = box;
      there.offset[0] = rows.from + begin - rows.to;
      there.size[0] = stop - begin;
      own_->read(rows.name, there, static_cast<char*>(target) + static_cast<size_t>((begin - first) * width) * item);
    }
  }

  TensorSourcePtr own_;
  std::vector<MegatronTensor> tensors_;
};

}  // namespace hasten::files
