// See recompute.h.
#include "hasten/parallel/recompute/recompute.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/GradMode.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>

#include <algorithm>
#include <regex>
#include <set>
#include <utility>

#include "hasten/core/error.h"
#include "hasten/core/log.h"
#include "hasten/core/sentence.h"
#include "hasten/core/text.h"
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

std::shared_ptr<const RecomputeRecorder::Names> chosen_of(const RecomputeOptions& options) {
  if (options.operators.empty()) return nullptr;
  return std::make_shared<const RecomputeRecorder::Names>(options.operators.begin(), options.operators.end());
}

void require_operators(const std::vector<std::string>& names) {
  if (names.empty()) return;
  std::set<std::string> known;
  for (const auto& op : c10::Dispatcher::singleton().getAllOpNames()) {
    if (op.name.starts_with("aten::")) known.insert(op.name.substr(6));
  }
  for (const std::string& name : names) {
    if (known.contains(name)) continue;
    throw UsageError(kOrigin, "RecomputeOptions::operators has '", name, "', which is no operator of libtorch",
                     guess_end(name, {known.begin(), known.end()}));
  }
}

class RecomputeHook : public ForwardHook {
 public:
  RecomputeHook(std::vector<std::shared_ptr<Module>> modules, const RecomputeOptions& options)
      : modules_(std::move(modules)),
        offload_(options.offload),
        chosen_(chosen_of(options)),
        names_(options.operators),
        region_size_(static_cast<size_t>(options.region_size)) {
    if (options.max_modules >= 0) modules_.resize(std::min(modules_.size(), static_cast<size_t>(options.max_modules)));
    num_regions_ =
        options.num_regions > 0 ? std::min(static_cast<size_t>(options.num_regions), modules_.size()) : modules_.size();
  }

  std::unique_ptr<Entered> enter(Module& module) override {
    if (!at::GradMode::is_enabled()) return nullptr;
    if (chosen_ && seen_->num_forwards > 0 && !seen_->met_chosen) say_nothing_is_dropped();
    Regions regions;  // anew each time: a program may have put in other parameters
    for (size_t i = 0; i < modules_.size(); ++i) add_region(*modules_[i], regions, static_cast<int>(region_of(i)));
    add_region(module, regions, is_one_region_ ? 0 : RecomputeRecorder::kNoRegion);
    auto away = offload_ ? std::make_shared<AwayTensors>() : nullptr;
    return std::make_unique<Scope>(std::make_shared<RecomputeRecorder>(std::move(regions), std::move(away), chosen_),
                                   seen_);
  }

 private:
  // What forwards so far have met.
  struct Seen {
    int64_t num_forwards = 0;
    bool met_chosen = false;
  };
  struct Scope : Entered {
    Scope(std::shared_ptr<RecomputeRecorder> own, std::shared_ptr<Seen> of)
        : recorder(own), seen(std::move(of)), scope(std::move(own)) {}
    ~Scope() override {
      ++seen->num_forwards;
      seen->met_chosen = seen->met_chosen || recorder->met_chosen();
    }
    std::shared_ptr<RecomputeRecorder> recorder;
    std::shared_ptr<Seen> seen;
    RecorderScope scope;
  };
  // Warns once, at the second forward.
  void say_nothing_is_dropped() {
    if (std::exchange(has_warned_, true)) return;
    Logger("recompute")
        .warning(text("no region calls any of RecomputeOptions::operators (", join(names_),
                      "), so nothing is dropped. scaled_dot_product_attention keeps no scores where it "
                      "is fused."));
  }
  size_t region_of(size_t i) const { return region_size_ > 0 ? i / region_size_ : i * num_regions_ / modules_.size(); }
  std::vector<std::shared_ptr<Module>> modules_;
  bool offload_;
  std::shared_ptr<const RecomputeRecorder::Names> chosen_;
  std::vector<std::string> names_;
  std::shared_ptr<Seen> seen_ = std::make_shared<Seen>();
  bool has_warned_ = false;
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
  require_operators(options.operators);
  require_recompute_engine();
  return std::make_shared<RecomputeHook>(modules_of_regions(module, options), options);
}

std::vector<std::string> attention_operators() {
  return {"softmax", "_softmax", "_safe_softmax", "dropout", "native_dropout"};
}

RecomputeCounts recompute_counts() noexcept {
  return {.dropped = dropped_tensors(),
          .kept = kept_tensors(),
          .replayed = replayed_calls(),
          .bytes_sent = bytes_sent_away()};
}

}  // namespace hasten::parallel
