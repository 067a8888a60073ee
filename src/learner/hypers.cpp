// See hypers.h.
#include "hasten/learner/hypers.h"

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <cmath>
#include <typeinfo>

#include "hasten/core/error.h"
#include "hasten/core/sentence.h"
#include "hasten/optim/apex_adam.h"
#include "hasten/optim/apex_sgd.h"
#include "hasten/optim/fastai.h"
#include "hasten/optim/lamb.h"
#include "hasten/optim/novograd.h"

namespace hasten::learner {
namespace {

using torch::optim::OptimizerOptions;

/// Where options keep a hyper-parameter; null if they do not have it.
template <class O>
double* find(O& o, std::string_view name) {
  if (name == "lr") return &o.lr();
  if (name == "eps") {
    if constexpr (requires { o.eps(); }) return &o.eps();
  }
  if (name == "wd") {
    if constexpr (requires { o.wd(); })
      return &o.wd();
    else if constexpr (requires { o.weight_decay(); })
      return &o.weight_decay();
  }
  if (name == "mom") {
    if constexpr (requires { o.mom(); })
      return &o.mom();
    else if constexpr (requires { o.momentum(); })
      return &o.momentum();
    else if constexpr (requires { o.betas(); })
      return &std::get<0>(o.betas());
  }
  if (name == "sqr_mom") {
    if constexpr (requires { o.sqr_mom(); })
      return &o.sqr_mom();
    else if constexpr (requires { o.alpha(); })
      return &o.alpha();
    else if constexpr (requires { o.betas(); })
      return &std::get<1>(o.betas());
  }
  if constexpr (std::is_same_v<O, optim::fastai::Options>) {
    if (name == "beta") return &o.beta();
    if (name == "nu_1") return &o.nu_1();
    if (name == "nu_2") return &o.nu_2();
    if (name == "trust_coeff") return &o.trust_coeff();
  }
  return nullptr;
}

template <class... O>
double* find_in(OptimizerOptions& options, std::string_view name) {
  double* found = nullptr;
  const auto& type = typeid(options);
  (void)((type == typeid(O) && (found = find(static_cast<O&>(options), name), true)) || ...);
  return found;
}

double* find_any(OptimizerOptions& options, std::string_view name) {
  using namespace torch::optim;
  return find_in<AdamWOptions, optim::fastai::Options, AdamOptions, SGDOptions, RMSpropOptions, AdagradOptions,
                 hasten::optim::LambOptions, hasten::optim::ApexAdamOptions, hasten::optim::ApexSgdOptions,
                 hasten::optim::NovoGradOptions>(options, name);
}

// Each rate is at least 0: a step of a negative one climbs.
void require_rate(double rate) {
  if (rate >= 0 && std::isfinite(rate)) return;
  throw UsageError(Origin{"learner"}, "a learning rate of ", rate, "; expected at least 0.");
}

constexpr std::string_view kNames[] = {"lr", "mom", "sqr_mom", "eps", "wd", "beta", "nu_1", "nu_2", "trust_coeff"};

}  // namespace

std::vector<double> HyperValue::expand(size_t num_groups, std::string_view name,
                                       const std::vector<std::string>& group_names) const {
  if (const auto* one = std::get_if<double>(&value_)) return std::vector<double>(num_groups, *one);
  if (const auto* range = std::get_if<Slice>(&value_)) {
    std::vector<double> values(num_groups, range->stop);
    const bool grows = range->start && *range->start != 0;
    for (size_t i = 0; i + 1 < num_groups; ++i) {
      const double step = grows ? std::pow(range->stop / *range->start, 1.0 / static_cast<double>(num_groups - 1)) : 0;
      values[i] = grows ? *range->start * std::pow(step, static_cast<double>(i)) : range->stop / 10;
    }
    return values;
  }
  const auto& list = std::get<std::vector<double>>(value_);
  if (list.size() == 1) return std::vector<double>(num_groups, list[0]);
  if (list.size() != num_groups) {
    throw UsageError(Origin{"learner"}, list.size(), " values for ", name, ", but there are ", num_groups,
                     " layer groups", group_names.empty() ? "" : " (" + join(group_names) + ")",
                     "; expected one value, one for each group, or slice(start, stop).");
  }
  return list;
}

HyperValue HyperValue::times(double factor) const {
  HyperValue result = *this;
  if (auto* one = std::get_if<double>(&result.value_)) *one *= factor;
  if (auto* range = std::get_if<Slice>(&result.value_)) {
    range->stop *= factor;
    if (range->start) *range->start *= factor;
  }
  if (auto* list = std::get_if<std::vector<double>>(&result.value_)) {
    for (auto& value : *list) value *= factor;
  }
  return result;
}

std::vector<std::string> hyper_names(const OptimizerOptions& options) {
  std::vector<std::string> names;
  for (const auto name : kNames) {
    if (read_hyper(options, name)) names.emplace_back(name);
  }
  return names;
}

std::optional<double> read_hyper(const OptimizerOptions& options, std::string_view name) {
  // The same accessors serve reading; nothing is written.
  const double* found = find_any(const_cast<OptimizerOptions&>(options), name);  // NOLINT
  if (found != nullptr) return *found;
  if (name == "lr") return options.get_lr();
  return std::nullopt;
}

bool write_hyper(OptimizerOptions& options, std::string_view name, double value) {
  if (double* found = find_any(options, name)) {
    *found = value;
    return true;
  }
  if (name != "lr") return false;
  options.set_lr(value);
  return true;
}

Hypers::Hypers(std::shared_ptr<torch::optim::Optimizer> optimizer, std::vector<HyperGroup> groups)
    : optimizer_(std::move(optimizer)), groups_(std::move(groups)) {}

std::vector<std::string> Hypers::group_names() const {
  std::vector<std::string> names;
  for (const auto& group : groups_) names.push_back(group.name);
  return names;
}

std::vector<std::string> Hypers::names() const {
  return optimizer_ ? hyper_names(optimizer_->param_groups().front().options()) : std::vector<std::string>{};
}

bool Hypers::has(std::string_view name) const {
  return optimizer_ && read_hyper(optimizer_->param_groups().front().options(), name).has_value();
}

void Hypers::require(std::string_view name) const {
  if (has(name)) return;
  throw UsageError(Origin{"learner"}, "the optimizer has no hyper-parameter '", name, "'", guess_end(name, names()),
                   " Known: ", join(names()), ".");
}

std::vector<double> Hypers::get(std::string_view name) const {
  require(name);
  std::vector<double> values;
  for (const auto& group : groups_) {
    const int index = group.decaying >= 0 ? group.decaying : group.plain;
    values.push_back(*read_hyper(optimizer_->param_groups()[static_cast<size_t>(std::max(index, 0))].options(), name));
  }
  return values;
}

double Hypers::last(std::string_view name) const {
  if (optimizer_ && !groups_.empty()) {
    const auto& group = groups_.back();
    const int index = group.decaying >= 0 ? group.decaying : group.plain;
    if (const auto value =
            read_hyper(optimizer_->param_groups()[static_cast<size_t>(std::max(index, 0))].options(), name))
      return *value;
  }
  require(name);
  return 0;
}

void Hypers::set(std::string_view name, const HyperValue& value) {
  require(name);
  const auto values = value.expand(groups_.size(), name, group_names());
  if (name == "lr") std::for_each(values.begin(), values.end(), require_rate);
  for (size_t i = 0; i < groups_.size(); ++i) set(name, i, values[i]);
}

void Hypers::set(std::string_view name, size_t group, double value) {
  auto& groups = optimizer_->param_groups();
  const auto& own = groups_[group];
  bool known = own.decaying < 0 && own.plain < 0;
  if (own.decaying >= 0) known = write_hyper(groups[static_cast<size_t>(own.decaying)].options(), name, value);
  if (own.plain >= 0)
    known = (name == "wd" ? has(name) : write_hyper(groups[static_cast<size_t>(own.plain)].options(), name, value)) ||
            known;
  if (!known) require(name);
}

}  // namespace hasten::learner
