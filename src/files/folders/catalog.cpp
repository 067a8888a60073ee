// See catalog.h.
#include "hasten/files/folders/catalog.h"

#include <algorithm>

#include "hasten/core/error.h"
#include "hasten/core/sentence.h"
#include "hasten/files/folders/offload_folder.h"
#include "hasten/files/folders/open_source.h"

namespace hasten::files {

Catalog::Catalog(const TensorSourcePtr& source)
    : path_(source->path()), form_(source->form()), remarks_(source->remarks()) {
  for (const std::string& name : source->names()) add({source->info(name), source, name});
}

Catalog Catalog::open(const std::string& path) {
  if (is_offload_folder(path)) return Catalog(open_offload_folder(path));
  return Catalog(open_source(path));
}

void Catalog::add(Entry entry) {
  const auto [place, is_new] = places_.try_emplace(entry.info.name, entries_.size());
  if (!is_new) {
    throw UsageError(Origin{"files"}, "two tensors of ", path_, " get the name '", entry.info.name,
                     "'. Rename one of them.");
  }
  names_.push_back(entry.info.name);
  entries_.push_back(std::move(entry));
}

Catalog Catalog::without_entries() const {
  Catalog catalog;
  catalog.path_ = path_;
  catalog.form_ = form_;
  catalog.remarks_ = remarks_;
  return catalog;
}

Catalog Catalog::with_prefix(std::string_view prefix) const {
  Catalog part = without_entries();
  for (const Entry& entry : entries_) {
    if (!entry.info.name.starts_with(prefix)) continue;
    Entry copy = entry;
    copy.info.name.erase(0, prefix.size());
    part.add(std::move(copy));
  }
  return part;
}

Catalog Catalog::under(const std::vector<std::string>& modules) const {
  const auto is_under = [](const std::string& name, const std::string& module) {
    return module.empty() || name == module || (name.starts_with(module) && name[module.size()] == '.');
  };
  Catalog part = without_entries();
  for (const std::string& module : modules) {
    for (const Entry& entry : entries_) {
      if (is_under(entry.info.name, module) && !part.contains(entry.info.name)) part.add(entry);
    }
  }
  return part;
}

Catalog Catalog::merged_with(const Catalog& other) const {
  Catalog merged = *this;
  for (const Entry& entry : other.entries_) {
    if (!merged.contains(entry.info.name)) merged.add(entry);
  }
  return merged;
}

Catalog Catalog::renamed(const std::function<std::string(const std::string&)>& rename) const {
  Catalog result = without_entries();
  for (const Entry& entry : entries_) {
    Entry copy = entry;
    copy.info.name = rename(entry.info.name);
    result.add(std::move(copy));
  }
  return result;
}

const Catalog::Entry& Catalog::at(std::string_view name) const {
  const auto found = places_.find(std::string(name));
  if (found != places_.end()) return entries_[found->second];
  throw UsageError(Origin{"files"}, path_.empty() ? "the catalog" : path_, " has no tensor '", name, "'",
                   guess_end(name, names_));
}

void Catalog::read(std::string_view name, const Box& box, void* target) const {
  const Entry& entry = at(name);
  entry.source->read(entry.name_there, box, target);
}

std::optional<TensorLocation> Catalog::location(std::string_view name) const {
  const Entry& entry = at(name);
  return entry.source->location(entry.name_there);
}

}  // namespace hasten::files
