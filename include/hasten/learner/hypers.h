// Hyper-parameters by layer group: lr, mom, sqr_mom, eps and wd of any optimizer, under fastai's names.
//
// A value is one number for all groups, one a group, or a slice as fastai has it. A layer group is up to two parameter
// groups of the optimizer: with and without weight decay (groups.h).
#pragma once

#include <torch/optim/optimizer.h>

#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace hasten::learner {

/// fastai's slice. With a start, rates grow geometrically from it to stop over the groups. Without it, all groups but
/// the last get stop / 10.
struct Slice {
  std::optional<double> start = {};
  double stop = 0;
};
inline Slice slice(double stop) {
  return {.stop = stop};
}
inline Slice slice(double start, double stop) {
  return {.start = start, .stop = stop};
}

/// A number, a slice, or one number a group.
class HyperValue {
 public:
  HyperValue(double value) : value_(value) {}  // NOLINT: implicit, so that fit(4, 1e-3) reads well
  HyperValue(Slice value) : value_(value) {}   // NOLINT: as above
  HyperValue(std::vector<double> values) : value_(std::move(values)) {}  // NOLINT: as above
  HyperValue(std::initializer_list<double> values) : value_(std::vector<double>(values)) {}

  /// One value a group. Throws: UsageError for a list of another length, naming the groups.
  std::vector<double> expand(size_t num_groups, std::string_view name,
                             const std::vector<std::string>& group_names = {}) const;
  /// Returns the same value, multiplied.
  HyperValue times(double factor) const;

 private:
  std::variant<double, Slice, std::vector<double>> value_;
};

/// Returns the names that an optimizer's options have: "lr", "mom", …
std::vector<std::string> hyper_names(const torch::optim::OptimizerOptions& options);
/// Reads or writes one; false if the options lack it.
std::optional<double> read_hyper(const torch::optim::OptimizerOptions& options, std::string_view name);
bool write_hyper(torch::optim::OptimizerOptions& options, std::string_view name, double value);

/// The parameter groups of the optimizer that make a layer group.
struct HyperGroup {
  std::string name = {};
  /// Index of the optimizer's group that decays, and of the group that does not. -1: there is none.
  int decaying = -1, plain = -1;
};

/// A view of an optimizer's options. Values that no parameter group can hold (an empty layer group) are stored here.
class Hypers {
 public:
  Hypers() = default;
  Hypers(std::shared_ptr<torch::optim::Optimizer> optimizer, std::vector<HyperGroup> groups);

  size_t num_groups() const noexcept { return groups_.size(); }
  std::vector<std::string> group_names() const;
  std::vector<std::string> names() const;
  bool has(std::string_view name) const;
  /// One value a group. Throws: UsageError for an unknown name, with the known ones.
  std::vector<double> get(std::string_view name) const;
  /// Returns the last group's value, without a list. Throws: as get.
  double last(std::string_view name) const;
  /// "wd" reaches decaying parameters only.
  /// Throws: as get and HyperValue::expand.
  void set(std::string_view name, const HyperValue& value);
  /// Sets a single value: the path that schedules take each batch. Throws: UsageError for
  /// an unknown name.
  void set(std::string_view name, size_t group, double value);

 private:
  void require(std::string_view name) const;
  std::shared_ptr<torch::optim::Optimizer> optimizer_;
  std::vector<HyperGroup> groups_;
};

}  // namespace hasten::learner
