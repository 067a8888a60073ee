// Tensors in memory as a source, and a folder that is removed, for tests.
#pragma once

#include <stdlib.h>

#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "hasten/files/base/tensor_source.h"

namespace hasten::files::testing {

class MemorySource : public TensorSource {
 public:
  void add(TensorInfo info, std::string bytes) {
    names_.push_back(info.name);
    bytes_[info.name] = std::move(bytes);
    const std::string name = info.name;
    infos_[name] = std::move(info);
  }
  void add(const std::string& name, std::vector<int64_t> shape, const std::vector<float>& values) {
    std::string bytes(values.size() * 4, '\0');
    std::memcpy(bytes.data(), values.data(), bytes.size());
    add({name, Dtype::kFloat32, std::move(shape)}, bytes);
  }
  const std::vector<std::string>& names() const override { return names_; }
  bool contains(std::string_view name) const override { return infos_.contains(std::string(name)); }
  const TensorInfo& info(std::string_view name) const override { return infos_.at(std::string(name)); }
  void read(std::string_view name, const Box& box, void* target) const override {
    const TensorInfo& tensor = info(name);
    copy_common(bytes_.at(std::string(name)).data(), whole_box(tensor.shape), target, box, element_bytes(tensor.dtype));
  }
  std::optional<TensorLocation> location(std::string_view) const override { return std::nullopt; }
  const std::string& path() const override { return path_; }
  std::string_view form() const override { return "memory"; }

 private:
  std::string path_ = "memory";
  std::vector<std::string> names_;
  std::map<std::string, TensorInfo> infos_;
  std::map<std::string, std::string> bytes_;
};

inline std::string bytes_of_tensor(const TensorSource& source, const std::string& name) {
  std::string bytes(static_cast<size_t>(bytes_of(source.info(name))), '\0');
  source.read_all(name, bytes.data());
  return bytes;
}

/// A temporary folder of one test.
class ScratchFolder {
 public:
  ScratchFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "hasten_files_XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  ~ScratchFolder() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace hasten::files::testing
