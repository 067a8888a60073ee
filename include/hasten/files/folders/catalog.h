// Catalog: names of tensors, and where each lies, whatever the files are.
//
// A Catalog is a TensorSource put together from others: a part, a prefix taken off, several merged. It reads headers
// only.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "hasten/files/base/tensor_source.h"

namespace hasten::files {

class Catalog : public TensorSource {
 public:
  Catalog() = default;
  explicit Catalog(const TensorSourcePtr& source);

  /// Opens a weight file, an index, a model's folder or an offload folder; see find_weights.
  /// Blocks: on the headers. Throws: UsageError if nothing is there; DataError for broken files.
  static Catalog open(const std::string& path);

  /// Returns the tensors whose names begin with `prefix`, without it.
  Catalog with_prefix(std::string_view prefix) const;
  /// Returns the tensors that are, or lie below, any of the modules. "t.h.1" takes "t.h.1.w" and not "t.h.10.w"; ""
  /// takes all. They stand in the order of `modules`, and of this catalog within each.
  Catalog under(const std::vector<std::string>& modules) const;
  /// Returns these tensors, then those of `other` whose names are new.
  Catalog merged_with(const Catalog& other) const;
  /// Returns the tensors under other names. Throws: UsageError if two get one name.
  Catalog renamed(const std::function<std::string(const std::string&)>& rename) const;
  size_t size() const noexcept { return names_.size(); }

  const std::vector<std::string>& names() const override { return names_; }
  bool contains(std::string_view name) const override { return places_.count(std::string(name)) > 0; }
  const TensorInfo& info(std::string_view name) const override { return at(name).info; }
  void read(std::string_view name, const Box& box, void* target) const override;
  std::optional<TensorLocation> location(std::string_view name) const override;
  const std::string& path() const override { return path_; }
  std::string_view form() const override { return form_; }
  std::vector<std::string> remarks() const override { return remarks_; }

 private:
  struct Entry {
    TensorInfo info;  ///< under the catalog's name
    TensorSourcePtr source;
    std::string name_there;
  };
  const Entry& at(std::string_view name) const;
  void add(Entry entry);
  Catalog without_entries() const;

  std::vector<std::string> names_;
  std::vector<Entry> entries_;
  std::unordered_map<std::string, size_t> places_;
  std::string path_, form_ = "catalog";
  std::vector<std::string> remarks_;
};

}  // namespace hasten::files
