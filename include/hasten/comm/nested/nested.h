// Walks nested structures of tensors in a fixed order: vectors, arrays, pairs, tuples, optionals, maps, libtorch's
// Example and own structs. Every operation on "a batch" uses this walk.
//
// A structure is flattened to its tensors and built again around others, as JAX's and torch's pytrees are. So
// everything that moves data is ordinary code on a list of tensors. Own structs join through one function found by
// argument-dependent lookup. nested_operations.h has the operations (gather, pad, slice …).
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <array>
#include <concepts>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "hasten/core/text.h"

namespace torch::data {
template <class Data, class Target>
struct Example;  // <torch/data/example.h>; only named here, because that header costs every includer seconds
}

namespace hasten::comm {

/// A struct joins by naming the members that hold data, usually as a friend inside it:
///   friend auto hasten_fields(Batch& batch) { return std::tie(batch.pixels, batch.labels); }
/// Members that are not named pass through unchanged. std::tie() means that there is nothing to walk.
template <class T>
concept HasFields = requires(T& value) { hasten_fields(value); };

namespace detail {

/// The elements of a walk, in order. Tensors may be replaced.
class Walker {
 public:
  virtual ~Walker() = default;
  virtual void tensor(at::Tensor& tensor) = 0;    ///< never an undefined one
  virtual void open(char /*bracket*/) {}          ///< '[' sequence, '(' tuple or struct, '{' named elements
  virtual void name(std::string_view /*key*/) {}  ///< of the element that follows
  virtual void leaf() {}                          ///< something that holds no tensor
  virtual void none() {}                          ///< an empty optional or an undefined tensor
  virtual void close(char /*bracket*/) {}
};

template <class T, template <class...> class Template>
inline constexpr bool kIs = false;
template <template <class...> class Template, class... Args>
inline constexpr bool kIs<Template<Args...>, Template> = true;
template <class T>
inline constexpr bool kIsArray = false;
template <class T, size_t n>
inline constexpr bool kIsArray<std::array<T, n>> = true;
template <class T>
inline constexpr bool kIsExample = false;
template <class Data, class Target>
inline constexpr bool kIsExample<torch::data::Example<Data, Target>> = true;
template <class T>
inline constexpr bool kIsLeaf =
    std::is_arithmetic_v<T> || std::is_enum_v<T> || std::convertible_to<T, std::string_view>;
template <class T>
inline constexpr bool kOwnsElements = false;
template <template <class...> class Tuple, class... Args>
inline constexpr bool kOwnsElements<Tuple<Args...>> = (!std::is_reference_v<Args> && ...);
template <class T>
inline constexpr bool kUnsupported = false;

template <class T>
void walk(T& value, Walker& walker);

template <class Range>
void walk_elements(Range& range, Walker& walker) {
  walker.open('[');
  for (auto&& element : range) {
    using Element = typename Range::value_type;
    if constexpr (kIsLeaf<Element>) {
      walker.leaf();  // vector<bool> has no references to its elements
    } else {
      walk<Element>(element, walker);
    }
  }
  walker.close(']');
}

template <class Tuple>
void walk_tuple(Tuple&& tuple, Walker& walker) {
  walker.open('(');
  std::apply([&](auto&... elements) { (walk(elements, walker), ...); }, tuple);
  walker.close(')');
}

template <class Map>
void walk_map(Map& map, Walker& walker) {
  // By key: the order inside an unordered_map may differ between ranks that hold the same keys.
  std::vector<typename Map::value_type*> entries;
  for (auto& entry : map) entries.push_back(&entry);
  std::sort(entries.begin(), entries.end(), [](auto* a, auto* b) { return a->first < b->first; });
  walker.open('{');
  for (auto* entry : entries) {
    walker.name(text(entry->first));
    walk(entry->second, walker);
  }
  walker.close('}');
}

template <class T>
void walk(T& value, Walker& walker) {
  if constexpr (std::same_as<T, at::Tensor>) {
    value.defined() ? walker.tensor(value) : walker.none();
  } else if constexpr (HasFields<T>) {
    walk_tuple(hasten_fields(value), walker);
  } else if constexpr (kIsLeaf<T>) {
    walker.leaf();
  } else if constexpr (kIs<T, std::vector> || kIsArray<T>) {
    walk_elements(value, walker);
  } else if constexpr (kIs<T, std::pair> || kIs<T, std::tuple>) {
    static_assert(kOwnsElements<T>, "hasten: a tuple of references cannot be copied; use one of values.");
    walk_tuple(value, walker);
  } else if constexpr (kIs<T, std::optional>) {
    value ? walk(*value, walker) : walker.none();
  } else if constexpr (kIs<T, std::map> || kIs<T, std::unordered_map>) {
    walk_map(value, walker);
  } else if constexpr (kIsExample<T>) {
    walker.open('{');
    walker.name("data");
    walk(value.data, walker);
    if constexpr (requires { value.target; }) {
      walker.name("target");
      walk(value.target, walker);
    }
    walker.close('}');
  } else {
    static_assert(kUnsupported<T>,
                  "hasten does not know how to find the tensors in this type. For a struct of yours, name its data: "
                  "friend auto hasten_fields(S& s) { return std::tie(s.a, s.b); }");
  }
}

template <class Fn>
class Mapper final : public Walker {
 public:
  explicit Mapper(Fn& fn) : fn_(fn) {}
  void tensor(at::Tensor& tensor) override { tensor = fn_(std::as_const(tensor)); }

 private:
  Fn& fn_;
};

}  // namespace detail

/// Returns the same structure with `fn(const at::Tensor&)` in the place of each tensor. The order is fixed: elements in
/// sequence, map entries by key. Other leaves are copied. Undefined tensors and empty optionals stay so. T: at::Tensor;
/// std::vector, array, pair, tuple, optional, map, unordered_map of such. T may also be torch::data::Example; numbers,
/// enums, strings; structs with hasten_fields. Other types do not compile.
/// Throws: the exceptions of fn.
template <class T, class Fn>
T map_tensors(const T& value, Fn&& fn) {
  T result = value;
  detail::Mapper<std::remove_reference_t<Fn>> mapper(fn);
  detail::walk(result, mapper);
  return result;
}

/// Returns the tensors of a structure, in the order of map_tensors; they share their data with it.
template <class T>
std::vector<at::Tensor> tensors_of(const T& value) {
  std::vector<at::Tensor> tensors;
  map_tensors(value, [&](const at::Tensor& tensor) { return tensors.emplace_back(tensor); });
  return tensors;
}

}  // namespace hasten::comm
