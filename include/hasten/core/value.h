// Value: a tree of plain values, with JSON text in and out.
//
// Saved state, settings and logged rows pass between rooms as a Value, so that no public header names a JSON library. A
// map keeps the order in which its keys were set, as Python's dict does. Tensors are not part of it:
// training/stateful.h puts them beside it. Python's own object tree is files::PythonValue.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace hasten::core {

class Value {
 public:
  using List = std::vector<Value>;
  using Map = std::vector<std::pair<std::string, Value>>;
  enum class Kind { kNull, kBool, kInt, kDouble, kString, kList, kMap };

  Value() = default;
  Value(std::nullptr_t) {}
  Value(bool value) : data_(value) {}
  template <class T>
    requires(std::is_integral_v<T> && !std::is_same_v<T, bool>)
  Value(T value) : data_(static_cast<int64_t>(value)) {}
  template <class T>
    requires std::is_floating_point_v<T>
  Value(T value) : data_(static_cast<double>(value)) {}
  Value(const char* value) : data_(std::string(value)) {}
  Value(std::string_view value) : data_(std::string(value)) {}
  Value(std::string value) : data_(std::move(value)) {}
  Value(List value) : data_(std::move(value)) {}
  Value(Map value) : data_(std::move(value)) {}
  template <class T>
    requires(std::is_constructible_v<Value, T> && !std::is_same_v<T, Value>)
  Value(const std::vector<T>& values) : data_(List(values.begin(), values.end())) {}

  /// Returns a list of the given values; `Value::list()` is the empty one.
  static Value list(std::initializer_list<Value> values = {}) { return Value(List(values)); }
  /// Returns a map of the given pairs: `Value::map({{"lr", 0.1}, {"name", "sgd"}})`; `Value::map()` is the empty one.
  static Value map(std::initializer_list<std::pair<std::string, Value>> pairs = {}) { return Value(Map(pairs)); }

  Kind kind() const noexcept { return static_cast<Kind>(data_.index()); }
  bool is_null() const noexcept { return kind() == Kind::kNull; }
  bool is_bool() const noexcept { return kind() == Kind::kBool; }
  bool is_int() const noexcept { return kind() == Kind::kInt; }
  /// Returns true for a double and for an int.
  bool is_number() const noexcept { return kind() == Kind::kInt || kind() == Kind::kDouble; }
  bool is_string() const noexcept { return kind() == Kind::kString; }
  bool is_list() const noexcept { return kind() == Kind::kList; }
  bool is_map() const noexcept { return kind() == Kind::kMap; }

  /// Return the value of that kind. as_double takes an int as well, as_int a double without a fraction.
  /// Throws: UsageError, naming the kind found and the kind asked for.
  bool as_bool() const;
  int64_t as_int() const;
  double as_double() const;
  const std::string& as_string() const;
  const List& as_list() const;
  List& as_list();
  const Map& as_map() const;
  Map& as_map();

  /// Returns the value at `key`, or null if this is no map or lacks the key.
  const Value* find(std::string_view key) const noexcept;
  Value* find(std::string_view key) noexcept;
  bool contains(std::string_view key) const noexcept { return find(key) != nullptr; }
  /// Returns the value at `key`. Throws: UsageError, with the nearest key, if it is not there.
  const Value& at(std::string_view key) const;
  /// Returns the value at `key`. A missing one is added at the end as null; a null value becomes a map first. Throws:
  /// UsageError for a value of another kind.
  Value& operator[](std::string_view key);
  /// Removes `key` and returns true if it was there. Throws: UsageError unless this is a map.
  bool erase(std::string_view key);
  /// Appends to a list; a null value becomes a list first. Throws: UsageError for a value of another kind.
  void push_back(Value value);
  /// Returns the number of elements of a list or a map, 0 for anything else.
  size_t size() const noexcept;
  bool empty() const noexcept { return size() == 0; }

  /// Returns true if kind, contents and the order of keys are equal. NaN equals NaN.
  bool operator==(const Value& other) const noexcept;

  /// Returns JSON text, in one line, or indented by `indent` spaces a level. A double that JSON cannot write becomes
  /// {"$double": "nan"}, "inf" or "-inf". parse_json turns it back. Bytes that are no UTF-8 are replaced.
  std::string to_json(int indent = -1) const;
  /// Reads JSON text. Integers above 2^63 become doubles. `name` appears in messages as the source of the text.
  /// Throws: DataError with line and column.
  static Value parse_json(std::string_view text, const std::string& name = "JSON text");

 private:
  std::variant<std::nullptr_t, bool, int64_t, double, std::string, List, Map> data_;
};

}  // namespace hasten::core
