// PerGroup: an option that is one value for all parameter groups of an optimizer, or one for each.
//
// PyTorch takes a number or a list in the same place, and so do the options of schedulers: `.max_lr = 0.1` or `.max_lr
// = {0.1, 0.02}`.
#pragma once

#include <concepts>
#include <initializer_list>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "hasten/core/error.h"

namespace hasten::optim {

/// A value for every parameter group, or a list with a value for each. It is empty until it is given.
template <class T>
class PerGroup {
 public:
  PerGroup() = default;
  template <class U>
    requires(std::convertible_to<U, T> && !std::same_as<std::remove_cvref_t<U>, PerGroup>)
  PerGroup(U&& value) : values_{T(std::forward<U>(value))} {}  // implicit, so that options read as PyTorch's
  PerGroup(std::initializer_list<T> values) : values_(values) {}
  PerGroup(std::vector<T> values) : values_(std::move(values)) {}

  bool empty() const noexcept { return values_.empty(); }

  /// Returns one value a group; `scheduler` and `option` name it in the error.
  /// Throws: UsageError if a list has another length, or nothing was given.
  std::vector<T> expand(size_t num_groups, std::string_view scheduler, std::string_view option) const {
    if (values_.size() == 1) return std::vector<T>(num_groups, values_[0]);
    if (values_.size() != num_groups) {
      throw UsageError(Origin{"optim"}, scheduler, ": ", option, " has ", values_.size(), " values, the optimizer ",
                       num_groups, " parameter groups; expected one value, or one for each group.");
    }
    return values_;
  }

 private:
  std::vector<T> values_;
};

}  // namespace hasten::optim
