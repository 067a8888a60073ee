// Splitting a list of things to do between processes: prompts, files, rows.
//
// Contiguous shares in rank order, so that gathering them again restores the order. Which share a rank has
// is a pure function. For training data there are samplers (room data), which this is not.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "hasten/process/process.h"

namespace hasten::process {

/// The elements [begin, end) of a list, followed by `padding` repetitions of the list's last one.
struct Share {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t padding = 0;
};

/// length / world_size elements each, the first length % world_size ranks one more (Accelerate's shares). With padding
/// all ranks have as many as the first. An empty list has nothing to pad with.
Share share_of(int64_t length, int rank, int world_size, bool apply_padding = false);

namespace detail {

template <class T>
std::vector<T> take(const std::vector<T>& values, const Share& share) {
  std::vector<T> taken(values.begin() + share.begin, values.begin() + share.end);
  if (share.padding > 0) taken.insert(taken.end(), static_cast<size_t>(share.padding), values.back());
  return taken;
}
at::Tensor take(const at::Tensor& tensor, const Share& share);

template <class T>
int64_t length_of(const std::vector<T>& values) {
  return static_cast<int64_t>(values.size());
}
int64_t length_of(const at::Tensor& tensor);

[[noreturn]] void refuse_lengths(const Process& process, const std::string& one, int64_t its_length,
                                 const std::string& other, int64_t other_length);

template <class Map>
Map split_map(const Process& process, const Map& values, bool apply_padding) {
  Map result;
  for (const auto& [key, value] : values) {
    const int64_t length = length_of(value);
    const auto& [first_key, first] = *values.begin();
    if (length != length_of(first)) refuse_lengths(process, first_key, length_of(first), key, length);
    result.emplace(key, take(value, share_of(length, process.rank(), process.world_size(), apply_padding)));
  }
  return result;
}

}  // namespace detail

/// Returns this rank's share of the elements, or of a tensor's rows. `apply_padding` gives all ranks equally many by
/// repeating the last element, for a gather to follow. The caller drops the repetitions after it. Every rank passes the
/// same value. Tensors are views unless padded.
/// Throws: UsageError for a scalar tensor.
template <class T>
std::vector<T> split_between_processes(const Process& process, const std::vector<T>& values,
                                       bool apply_padding = false) {
  const auto length = static_cast<int64_t>(values.size());
  return detail::take(values, share_of(length, process.rank(), process.world_size(), apply_padding));
}
at::Tensor split_between_processes(const Process& process, const at::Tensor& values, bool apply_padding = false);

/// Splits each of the named lists or tensors, which all have the same length.
/// Throws: UsageError that names two of different lengths.
template <class V>
std::map<std::string, V> split_between_processes(const Process& process, const std::map<std::string, V>& values,
                                                 bool apply_padding = false) {
  return detail::split_map(process, values, apply_padding);
}
template <class V>
std::unordered_map<std::string, V> split_between_processes(const Process& process,
                                                           const std::unordered_map<std::string, V>& values,
                                                           bool apply_padding = false) {
  return detail::split_map(process, values, apply_padding);
}

}  // namespace hasten::process
