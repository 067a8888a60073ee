// Leaves of nested structures (nested.h) that are no tensors: numbers, texts, and lists with one entry a sample.
//
// A collective must not return a rank's own value where the caller reads a common one. So reduce adds up numbers,
// gather joins lists, broadcast sends both, and what they cannot treat does not compile. This file finds the leaves;
// nested_operations.h calls it.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "hasten/comm/nested/nested.h"
#include "hasten/comm/nested/objects.h"

namespace hasten::comm::detail {

/// Sequences whose entries travel as objects: std::vector of numbers, texts, and vectors, maps and pairs of these.
template <class T>
inline constexpr bool kIsList = false;
template <class T>
inline constexpr bool kIsList<std::vector<T>> = Serialisable<T> && !HasFields<T>;

/// Calls `fn(leaf)` for each leaf that is no tensor, in the order of the walk. With `whole_lists` a list is one leaf,
/// and otherwise its entries are.
template <bool whole_lists, class T, class Fn>
void visit_leaves(T& value, const Fn& fn);

template <bool whole_lists, class Map, class Fn>
void visit_leaves_by_key(Map& map, const Fn& fn) {
  std::vector<typename Map::value_type*> entries;
  for (auto& entry : map) entries.push_back(&entry);
  std::sort(entries.begin(), entries.end(), [](auto* a, auto* b) { return a->first < b->first; });
  for (auto* entry : entries) visit_leaves<whole_lists>(entry->second, fn);
}

template <bool whole_lists, class T, class Fn>
void visit_leaves(T& value, const Fn& fn) {
  [[maybe_unused]] const auto each = [&](auto&... parts) { (visit_leaves<whole_lists>(parts, fn), ...); };
  if constexpr (std::same_as<T, at::Tensor>) {
    return;
  } else if constexpr (HasFields<T>) {
    std::apply(each, hasten_fields(value));
  } else if constexpr (kIsLeaf<T> || (whole_lists && kIsList<T>)) {
    fn(value);
  } else if constexpr (std::same_as<T, std::vector<bool>>) {
    for (auto&& entry : value) {
      bool copy = entry;
      fn(copy);
      entry = copy;
    }
  } else if constexpr (kIs<T, std::vector> || kIsArray<T>) {
    for (auto& entry : value) visit_leaves<whole_lists>(entry, fn);
  } else if constexpr (kIs<T, std::pair> || kIs<T, std::tuple>) {
    std::apply(each, value);
  } else if constexpr (kIs<T, std::optional>) {
    if (value) visit_leaves<whole_lists>(*value, fn);
  } else if constexpr (kIs<T, std::map> || kIs<T, std::unordered_map>) {
    visit_leaves_by_key<whole_lists>(value, fn);
  } else if constexpr (kIsExample<T>) {
    visit_leaves<whole_lists>(value.data, fn);
    if constexpr (requires { value.target; }) visit_leaves<whole_lists>(value.target, fn);
  } else {
    static_assert(kUnsupported<T>, "hasten does not know how to find the values in this type.");
  }
}

/// Numbers of a structure as tensors, so that a reduction carries all of them at once. Integers, floating numbers and
/// booleans have one each, where there are some.
class NumberTensors {
 public:
  template <class T>
  void add(const T& number) {
    static_assert(std::is_arithmetic_v<T>,
                  "hasten: reduce adds up tensors and numbers. A structure with texts or enums cannot be reduced; give "
                  "the numbers alone, or use gather.");
    if constexpr (std::same_as<T, bool>) {
      flags_.push_back(number ? 1 : 0);
    } else if constexpr (std::is_floating_point_v<T>) {
      reals_.push_back(static_cast<double>(number));
    } else {
      constexpr T kMost = static_cast<T>(std::numeric_limits<int64_t>::max());
      const bool fits = std::is_signed_v<T> || sizeof(T) < sizeof(int64_t) || number <= kMost;
      integers_.push_back(checked_integer(fits, static_cast<int64_t>(number)));
    }
  }
  /// Sets `number` to the next one of its kind.
  template <class T>
  void take(T& number) {
    if constexpr (std::same_as<T, bool>) {
      number = flags_.at(next_flag_++) != 0;
    } else if constexpr (std::is_floating_point_v<T>) {
      number = static_cast<T>(reals_.at(next_real_++));
    } else {
      const int64_t value = integers_.at(next_integer_++);
      const bool fits = static_cast<int64_t>(static_cast<T>(value)) == value && (std::is_signed_v<T> || value >= 0);
      number = static_cast<T>(checked_integer(fits, value));
    }
  }
  /// Appends the tensors to a list, and reads them back from its end.
  void append_to(std::vector<at::Tensor>& tensors) const;
  void read_from(std::vector<at::Tensor>& tensors);

 private:
  /// Throws: UsageError if an integer does not fit its type.
  static int64_t checked_integer(bool fits, int64_t value);

  std::vector<int64_t> integers_;
  std::vector<double> reals_;
  std::vector<uint8_t> flags_;
  size_t next_integer_ = 0, next_real_ = 0, next_flag_ = 0;
};

/// Returns the tensors of a structure, and behind them those of its numbers.
template <class T>
std::vector<at::Tensor> with_numbers(const T& value) {
  std::vector<at::Tensor> tensors = tensors_of(value);
  NumberTensors numbers;
  T copy = value;
  visit_leaves<false>(copy, [&](auto& leaf) { numbers.add(leaf); });
  numbers.append_to(tensors);
  return tensors;
}

/// Returns the structure of `value` around the values of such a list.
template <class T>
T from_numbers(const T& value, std::vector<at::Tensor> tensors) {
  NumberTensors numbers;
  T copy = value;
  visit_leaves<false>(copy, [&](auto& leaf) { numbers.add(leaf); });
  numbers.read_from(tensors);
  visit_leaves<false>(copy, [&](auto& leaf) { numbers.take(leaf); });
  size_t next = 0;
  return map_tensors(copy, [&](const at::Tensor&) { return tensors.at(next++); });
}

/// Sets every list of a structure to `joined(list)`, that of all ranks.
template <class T, class Join>
void join_lists(T& value, const Join& joined) {
  visit_leaves<true>(value, [&]<class Leaf>(Leaf& leaf) {
    static_assert(
        kIsList<Leaf>,
        "hasten: gather joins tensors and std::vectors with one entry a sample. A single number or text has no "
        "place for the values of all ranks; put it into a vector, or use gather_object.");
    if constexpr (kIsList<Leaf>) leaf = joined(leaf);
  });
}

/// Returns the entries of all ranks' lists, in rank order.
template <class T>
std::vector<T> gather_list(const Group& group, const std::vector<T>& list, const Group::Site& site) {
  std::vector<T> all;
  for (auto& part : gather_object(group, list, site)) {
    all.insert(all.end(), std::make_move_iterator(part.begin()), std::make_move_iterator(part.end()));
  }
  return all;
}

/// Sets every leaf that is no tensor to that of rank `from`.
template <class T>
void broadcast_leaves(const Group& group, T& value, int from, const Group::Site& site) {
  visit_leaves<true>(value, [&]<class Leaf>(Leaf& leaf) {
    static_assert(
        Serialisable<Leaf>,
        "hasten: broadcast sends tensors, numbers, texts and lists of these. Convert the others, or leave them "
        "out of hasten_fields.");
    if constexpr (Serialisable<Leaf>) leaf = broadcast_object(group, leaf, from, site);
  });
}

}  // namespace hasten::comm::detail
