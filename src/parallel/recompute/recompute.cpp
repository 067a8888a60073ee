// See recompute.h.
#include "hasten/parallel/recompute/recompute.h"

#include <c10/core/GradMode.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>

#include <algorithm>
#include <regex>
#include <utility>

#include "hasten/core/error.h"
#include "hasten/plan/module_tree.h"
#include "parallel/recompute/engine.h"
#include "parallel/recompute/recorder.h"

namespace hasten::parallel {
namespace {

using Regions = RecomputeRecorder::Regions;
using Module = torch::nn::Module;

constexpr Origin kOrigin{"recompute"};

// Numbers the parameters below a module, but those that a region has already.
void add_region(const Module& module, Regions& regions, int region) {
  for (const auto& parameter : module.parameters()) {
    if (parameter.defined()) regions.try_emplace(parameter.unsafeGetTensorImpl(), region);
  }
}

bool is_list(const Module& module) {
  return dynamic_cast<const torch::nn::ModuleListImpl*>(&module) != nullptr ||
         dynamic_cast<const torch::nn::SequentialImpl*>(&module) != nullptr;
}

// Children of the outermost lists of modules below a module.
void find_list_children(const Module& module, std::vector<std::shared_ptr<Module>>& found) {
  for (const auto& child : module.children()) {
    if (is_list(module)) {
      found.push_back(child);
    } else {
      find_list_children(*child, found);
    }
  }
}

std::vector<std::shared_ptr<Module>> default_regions(const Module& module) {
  std::vector<std::shared_ptr<Module>> found;
  find_list_children(module, found);
  if (found.empty()) found = module.children();
  return found;
}

std::regex pattern_of(const std::string& requested) {
  try {
    return std::regex(requested, std::regex::ECMAScript);
  } catch (const std::regex_error& error) {
    throw UsageError(kOrigin, "RecomputeOptions::modules: '", requested, "' is no name and no pattern: ", error.what());
  }
}

// Modules that an entry names, from outside to inside; those below a match belong to it.
std::vector<std::shared_ptr<Module>> matches(Module& module, const std::string& requested) {
  std::vector<std::shared_ptr<Module>> found;
  std::vector<std::string> prefixes;
  const std::regex pattern = pattern_of(requested);
  const std::string name = plan::short_class_name(requested);
  for (const auto& item : module.named_modules(std::string(), false)) {
    const bool is_below = std::any_of(prefixes.begin(), prefixes.end(),
                                      [&](const std::string& prefix) { return item.key().starts_with(prefix); });
    if (is_below) continue;
    if (!std::regex_match(item.key(), pattern) && plan::short_class_name(item.value()->name()) != name) continue;
    found.push_back(item.value());
    prefixes.push_back(item.key() + ".");
  }
  return found;
}

std::vector<std::shared_ptr<Module>> modules_of_regions(Module& module, const RecomputeOptions& options) {
  if (options.modules.empty()) return default_regions(module);
  std::vector<std::shared_ptr<Module>> found;
  for (const auto& requested : options.modules) {
    const auto here = matches(module, requested);
    if (here.empty()) {
      throw UsageError(kOrigin, "RecomputeOptions::modules names '", requested,
                       "', and no module has this name or class. Names are those of named_modules().");
    }
    found.insert(found.end(), here.begin(), here.end());
  }
  return found;
}

class RecomputeHook : public ForwardHook {
 public:
  RecomputeHook(std::vector<std::shared_ptr<Module>> modules, const RecomputeOptions& options)
      : modules_(std::move(modules)),
        offload_(options.offload),
        region_size_(static_cast<size_t>(options.region_size)) {
    if (options.max_modules >= 0) modules_.resize(std::min(modules_.size(), static_cast<size_t>(options.max_modules)));
    num_regions_ =
        options.num_regions > 0 ? std::min(static_cast<size_t>(options.num_regions), modules_.size()) : modules_.size();
  }

  std::unique_ptr<Entered> enter(Module& module) override {
    if (!at::GradMode::is_enabled()) return nullptr;
    Regions regions;  // anew each time: a program may have put in other parameters
    for (size_t i = 0; i < modules_.size(); ++i) add_region(*modules_[i], regions, static_cast<int>(region_of(i)));
    add_region(module, regions, is_one_region_ ? 0 : RecomputeRecorder::kNoRegion);
    return std::make_unique<Scope>(
        std::make_shared<RecomputeRecorder>(std::move(regions), offload_ ? std::make_shared<AwayTensors>() : nullptr));
  }

 private:
  struct Scope : Entered {
    explicit Scope(std::shared_ptr<RecomputeRecorder> recorder) : scope(std::move(recorder)) {}
    RecorderScope scope;
  };
  size_t region_of(size_t i) const { return region_size_ > 0 ? i / region_size_ : i * num_regions_ / modules_.size(); }
  std::vector<std::shared_ptr<Module>> modules_;
  bool offload_;
  size_t region_size_, num_regions_ = 0;
  bool is_one_region_ = modules_.empty();
};

}  // namespace

struct RecomputeRegion::Impl {
  RecorderScope scope{std::make_shared<RecomputeRecorder>(std::nullopt)};
};

RecomputeRegion::RecomputeRegion() {
  require_recompute_engine();
  impl_ = std::make_unique<Impl>();
}

RecomputeRegion::~RecomputeRegion() = default;

std::shared_ptr<ForwardHook> recompute_hook(Module& module, const RecomputeOptions& options) {
  if (options.num_regions < 0) {
    throw UsageError(kOrigin, "RecomputeOptions::num_regions is ", options.num_regions,
                     "; expected 0 for a region each, or the most regions.");
  }
  if (options.region_size < 0 || (options.region_size > 0 && options.num_regions > 0)) {
    throw UsageError(kOrigin, "RecomputeOptions::region_size is ", options.region_size, " beside num_regions ",
                     options.num_regions, "; expected one of them, and 0 or more.");
  }
  require_recompute_engine();
  return std::make_shared<RecomputeHook>(modules_of_regions(module, options), options);
}

RecomputeCounts recompute_counts() noexcept {
  return {.dropped = dropped_tensors(),
          .kept = kept_tensors(),
          .replayed = replayed_calls(),
          .bytes_sent = bytes_sent_away()};
}

}  // namespace hasten::parallel
