// See load.h.
#include "hasten/offload/load/load.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <bit>
#include <regex>
#include <set>
#include <unordered_map>

#include "hasten/core/error.h"
#include "hasten/core/log.h"
#include "hasten/files/folders/catalog.h"
#include "hasten/offload/load/empty.h"
#include "hasten/offload/map/tree_of.h"
#include "hasten/offload/units/set_tensor.h"

namespace hasten::offload {
namespace {

std::regex compiled(const std::string& pattern) {
  try {
    return std::regex(pattern);
  } catch (const std::regex_error& error) {
    throw UsageError(Origin{"offload"}, "'", pattern, "' is no regular expression: ", error.what(), ".");
  }
}

std::vector<std::regex> compiled(const std::vector<std::string>& patterns) {
  std::vector<std::regex> result;
  for (const auto& pattern : patterns) result.push_back(compiled(pattern));
  return result;
}

bool matches_any(const std::string& name, const std::vector<std::regex>& patterns) {
  return std::any_of(patterns.begin(), patterns.end(),
                     [&](const std::regex& pattern) { return std::regex_search(name, pattern); });
}

// Whole dotted parts: "norm" is in "layers.0.norm.weight" and not in "layers.0.norms.weight".
bool has_parts(const std::string& name, const std::string& parts) {
  return ("." + name + ".").find("." + parts + ".") != std::string::npos;
}

// A tensor object of the module, with all its names.
struct Target {
  std::vector<std::string> names;
  at::Tensor tensor;
  bool is_buffer;
};

std::vector<Target> targets_of(const torch::nn::Module& module) {
  std::vector<Target> targets;
  std::unordered_map<const c10::TensorImpl*, size_t> places;
  for (const auto& item : named_tensors(module)) {
    const auto [place, is_new] = places.try_emplace(item.tensor.unsafeGetTensorImpl(), targets.size());
    if (is_new) targets.push_back({{}, item.tensor, item.is_buffer});
    targets[place->second].names.push_back(item.name);
  }
  return targets;
}

class Loading {
 public:
  Loading(torch::nn::Module& module, const files::TensorSource& source, const LoadOptions& options)
      : module_(module),
        source_(source),
        options_(options),
        transposed_(compiled(options.transpose)),
        not_saved_(compiled(options.not_saved)) {
    for (const auto& [pattern, replacement] : options.rename) renames_.emplace_back(compiled(pattern), replacement);
    for (const std::string& name : source.names()) by_module_name_[renamed(name)] = name;
  }

  LoadReport run() {
    match();
    refuse_mismatches();
    const auto values = read_values();
    assign(values);
    report_.replayed = materialize_missing();
    return std::move(report_);
  }

 private:
  struct Match {
    const Target* target;
    std::string name, name_there;
  };

  std::string renamed(std::string name) const {
    for (const auto& [pattern, replacement] : renames_) name = std::regex_replace(name, pattern, replacement);
    return name;
  }

  std::optional<std::string> name_in_file(const std::string& name) const {
    if (options_.key_map) {
      const std::string mapped = options_.key_map(name);
      if (!mapped.empty() && source_.contains(mapped)) return mapped;
      if (mapped.empty()) return std::nullopt;
    }
    const auto found = by_module_name_.find(name);
    if (found == by_module_name_.end()) return std::nullopt;
    return found->second;
  }

  void match() {
    targets_ = targets_of(module_);
    std::set<std::string> used;
    for (const Target& target : targets_) {
      bool found = false;
      for (const std::string& name : target.names) {
        const auto there = name_in_file(name);
        if (!there) continue;
        used.insert(*there);
        if (!found) matches_.push_back({&target, name, *there});
        found = true;
      }
      if (!found && !options_.partial && !(target.is_buffer && matches_any(target.names.front(), not_saved_)))
        report_.missing.push_back(target.names.front());
    }
    for (const std::string& name : source_.names()) {
      // A name that a rename makes empty is left out on purpose.
      if (used.count(name) == 0 && !renamed(name).empty()) report_.unexpected.push_back(name);
    }
  }

  bool is_transposed(const std::string& name) const { return matches_any(name, transposed_); }

  void refuse_mismatches() const {
    std::vector<std::string> lines;
    for (const Match& match : matches_) {
      auto shape = source_.info(match.name_there).shape;
      if (is_transposed(match.name)) std::reverse(shape.begin(), shape.end());
      const auto type = scalar_type_of(source_.info(match.name_there).dtype), own = match.target->tensor.scalar_type();
      if (c10::isFloatingType(type) != c10::isFloatingType(own) ||
          c10::isComplexType(type) != c10::isComplexType(own)) {
        lines.push_back(hasten::text("'", match.name, "' is ", dtype_name(type), " in the file and ", dtype_name(own),
                                     " in the module"));
      }
      if (at::IntArrayRef(shape) == match.target->tensor.sizes()) continue;
      lines.push_back(hasten::text("'", match.name, "' is [", join(shape), "] in the file and [",
                                   join(match.target->tensor.sizes()), "] in the module"));
    }
    if (!lines.empty()) {
      throw DataError(Origin{"offload"}, source_.path(), source_.path(),
                      " does not fit the module: ", join(lines, "; "),
                      ". Nothing was loaded. Use the configuration that the weights were saved with.");
    }
    if (options_.strict && (!report_.missing.empty() || !report_.unexpected.empty())) {
      throw DataError(Origin{"offload"}, source_.path(), source_.path(),
                      " does not fit the module (strict): ", report_.text(),
                      " Nothing was loaded. Leave strict out, or name buffers that no file has in not_saved.");
    }
  }

  at::ScalarType wanted_type(const Match& match, at::ScalarType in_file) const {
    const at::ScalarType own = match.target->tensor.scalar_type();
    if (!c10::isFloatingType(own) || !c10::isFloatingType(in_file) || !options_.dtype) return own;
    const bool keeps = std::any_of(options_.keep_in_fp32_modules.begin(), options_.keep_in_fp32_modules.end(),
                                   [&](const std::string& parts) {
                                     return std::any_of(match.target->names.begin(), match.target->names.end(),
                                                        [&](const std::string& n) { return has_parts(n, parts); });
                                   });
    return keeps ? at::kFloat : *options_.dtype;
  }

  std::vector<at::Tensor> read_values() {
    const at::NoGradGuard no_grad;
    SourceReader reader(source_, options_.io, options_.resident);
    std::vector<at::Tensor> values;
    for (const Match& match : matches_) {
      LoadedPlace place;
      at::Tensor value = reader.tensor(match.name_there, &place);
      if (is_transposed(match.name)) value = value.t();
      const at::ScalarType type = wanted_type(match, value.scalar_type());
      if (type != value.scalar_type() && options_.cast_at_use && place.region) {
        report_.cast_at_use[match.target->names.front()] = type;
      } else if (type != value.scalar_type()) {
        value = value.to(type);
        place = {};
      }
      report_.places[match.target->names.front()] = place;
      (place.region ? report_.mapped_bytes : report_.copied_bytes) += static_cast<int64_t>(value.nbytes());
      values.push_back(std::move(value));
    }
    return values;
  }

  void assign(const std::vector<at::Tensor>& values) {
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < matches_.size(); ++i) {
      const at::Tensor& tensor = matches_[i].target->tensor;
      if (tensor.is_meta() || options_.replace_storage) {
        fill_empty(tensor, values[i]);
        continue;
      }
      tensor.copy_(values[i]);
      report_.places.erase(matches_[i].target->names.front());
    }
  }

  std::vector<std::string> materialize_missing() const {
    std::vector<std::string> empty;
    if (options_.partial) return empty;
    for (const Target& target : targets_) {
      if (target.tensor.is_meta()) empty.push_back(target.names.front());
    }
    return empty.empty() ? empty : materialize(module_, {empty});
  }

  torch::nn::Module& module_;
  const files::TensorSource& source_;
  const LoadOptions& options_;
  std::vector<std::regex> transposed_, not_saved_;
  std::vector<std::pair<std::regex, std::string>> renames_;
  std::unordered_map<std::string, std::string> by_module_name_;
  std::vector<Target> targets_;
  std::vector<Match> matches_;
  LoadReport report_;
};

}  // namespace

std::string LoadReport::text() const {
  std::string result;
  if (!missing.empty())
    result += hasten::text(missing.size(), " tensors of the module are not in the file: ", join(missing), ".");
  if (!unexpected.empty()) {
    result += hasten::text(result.empty() ? "" : " ", unexpected.size(),
                           " tensors of the file are not in the module: ", join(unexpected), ".");
  }
  return result;
}

struct SourceReader::Impl {
  const files::TensorSource& source;
  Io io;
  Resident resident;
  std::unordered_map<std::string, std::shared_ptr<MappedRegion>> regions = {};

  std::shared_ptr<MappedRegion> region(const std::string& path) {
    auto& found = regions[path];
    if (!found) found = MappedRegion::open(path);
    return found;
  }

  // Null where the file is to be read: a network, another byte order, an offset that the type cannot have.
  at::Tensor mapped(const std::string& name, at::ScalarType type, LoadedPlace& place) {
    if (io == Io::kRead || std::endian::native != std::endian::little) return {};
    const auto location = source.location(name);
    if (!location || location->offset % c10::elementSize(type) != 0) return {};
    const auto file = region(location->path);
    if (io == Io::kAuto && file->is_on_network()) return {};
    const auto& info = source.info(name);
    at::Tensor tensor = file->tensor(location->offset, info.shape, location->strides, type);
    place = {file, location->offset, tensor.nbytes()};
    return tensor;
  }
};

SourceReader::SourceReader(const files::TensorSource& source, Io io, Resident resident)
    : impl_(new Impl{source, io, resident}) {}

SourceReader::~SourceReader() = default;

at::Tensor SourceReader::tensor(const std::string& name, LoadedPlace* place) {
  const auto& info = impl_->source.info(name);
  const at::ScalarType type = scalar_type_of(info.dtype);
  LoadedPlace found;
  at::Tensor value = impl_->mapped(name, type, found);
  if (!value.defined()) {
    value = at::empty(info.shape, at::TensorOptions(type));
    if (value.numel() > 0) impl_->source.read_all(name, value.mutable_data_ptr());
  } else if (impl_->resident == Resident::kLocked) {
    value = value.clone();
    found = {};
  }
  if (place != nullptr) *place = found;
  return value;
}

LoadReport load_checkpoint_in_model(torch::nn::Module& module, const files::TensorSource& source,
                                    const LoadOptions& options) {
  const Logger logger("offload");
  for (const auto& remark : source.remarks()) logger.info(remark);
  auto report = Loading(module, source, options).run();
  if (!report.missing.empty() || !report.unexpected.empty()) logger.warning(source.path() + ": " + report.text());
  if (!report.replayed.empty()) logger.warning("initial values were computed for " + join(report.replayed) + ".");
  return report;
}

LoadReport load_checkpoint_in_model(torch::nn::Module& module, const std::string& checkpoint,
                                    const LoadOptions& options) {
  return load_checkpoint_in_model(module, files::Catalog::open(checkpoint), options);
}

}  // namespace hasten::offload
