// state_dict: a module's tensors by name, in the order of PyTorch's nn.Module.state_dict().
//
// The order is that of Python: a module's parameters, its buffers, then its children, each the same way. It decides
// which tensors share a file where weights are split over several, so a map that sorts names will not do. Names never
// carry a prefix of a wrapper: prepared models are not wrapped.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace torch::nn {
class Module;
}

namespace hasten::checkpoint {

/// Tensors by name, in order. A value; tensors are handles, so copies share memory.
class StateDict {
 public:
  using Item = std::pair<std::string, at::Tensor>;

  StateDict() = default;
  StateDict(std::initializer_list<Item> items) {
    for (const auto& [name, tensor] : items) set(name, tensor);
  }

  /// Appends a tensor, or replaces the one of that name in its place.
  void set(const std::string& name, at::Tensor tensor);
  /// Returns the tensor; find returns null if there is none.
  /// Throws: UsageError, with the nearest name.
  const at::Tensor& at(std::string_view name) const;
  const at::Tensor* find(std::string_view name) const noexcept;
  bool contains(std::string_view name) const noexcept { return find(name) != nullptr; }
  size_t size() const noexcept { return items_.size(); }
  bool empty() const noexcept { return items_.empty(); }
  auto begin() const noexcept { return items_.begin(); }
  auto end() const noexcept { return items_.end(); }
  std::vector<std::string> names() const;

  /// Versions of module classes by module name ("" for the module itself), which Python keeps as `_metadata`.
  std::vector<std::pair<std::string, int64_t>> versions = {};

 private:
  std::vector<Item> items_;
  std::unordered_map<std::string, size_t> index_;
};

struct StateDictOptions {
  /// Python's keep_vars: tensors stay attached to autograd.
  bool keep_vars = false;
  /// Put before each name.
  std::string prefix = {};
  /// Full names, or patterns with '*', of buffers to leave out (Python's non-persistent ones, which libtorch does not
  /// mark).
  std::vector<std::string> exclude = {};
};

/// Parameters and buffers of a module and its children in Python's order, detached. The memory is the module's.
/// Undefined ones are left out. Each rank of a data-parallel or sharded run holds all of them. Parameters that are cut
/// over ranks are gathered, one after the other (keep_vars: this rank's parts).
/// Collective: with cut parameters. Blocks: then. Throws: CommError.
StateDict state_dict(const torch::nn::Module& module, const StateDictOptions& options = {});

struct GetStateDictOptions {
  /// Only rank 0 gets tensors; the other ranks an empty StateDict.
  bool rank0_only = false;
  /// Where tensors are copied to; unset: where they are, without a copy.
  std::optional<c10::Device> device = {};
  /// Floating tensors are cast to this dtype; unset: as they are.
  std::optional<c10::ScalarType> dtype = {};
};

/// Returns a copy of the tensors, by the options. Tensors of which ranks have parts (parallel/shard/in_parts.h) come
/// whole, on the CPU unless a device is given. Collective: with such tensors. Blocks: then. Throws: CommError.
StateDict converted(const StateDict& state, int rank, const GetStateDictOptions& options);

/// Returns the tensors with those of which ranks have parts whole, on the CPU, one after the other. `keep` false: takes
/// part, and returns nothing. Collective: with such tensors. Blocks: then. Throws: CommError.
StateDict whole(const StateDict& state, bool keep = true);

/// Returns true if `name` matches `pattern`, in which '*' matches any number of characters.
bool matches_pattern(std::string_view name, std::string_view pattern) noexcept;

}  // namespace hasten::checkpoint
