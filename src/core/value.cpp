// Value: the tree itself. src/core/json.cpp holds the members that read and write its text.
#include "hasten/core/value.h"

#include <algorithm>
#include <cmath>

#include "hasten/core/count_text.h"
#include "hasten/core/error.h"
#include "hasten/core/sentence.h"

namespace hasten::core {
namespace {

constexpr const char* kNames[] = {"null", "bool", "int", "double", "string", "list", "map"};

[[noreturn]] void wrong_kind(const Value& value, const char* expected) {
  throw UsageError({"core"}, "a value is of kind ", kNames[static_cast<int>(value.kind())], ", but ", expected,
                   " was asked for. Ask kind() first.");
}

}  // namespace

bool Value::as_bool() const {
  if (const auto* value = std::get_if<bool>(&data_)) return *value;
  wrong_kind(*this, "bool");
}

int64_t Value::as_int() const {
  if (const auto* value = std::get_if<int64_t>(&data_)) return *value;
  if (const auto* value = std::get_if<double>(&data_);
      value && std::trunc(*value) == *value && std::abs(*value) < 0x1p63) {
    return static_cast<int64_t>(*value);
  }
  wrong_kind(*this, "int");
}

double Value::as_double() const {
  if (const auto* value = std::get_if<double>(&data_)) return *value;
  if (const auto* value = std::get_if<int64_t>(&data_)) return static_cast<double>(*value);
  wrong_kind(*this, "double");
}

const std::string& Value::as_string() const {
  if (const auto* value = std::get_if<std::string>(&data_)) return *value;
  wrong_kind(*this, "string");
}

const Value::List& Value::as_list() const {
  if (const auto* value = std::get_if<List>(&data_)) return *value;
  wrong_kind(*this, "list");
}

Value::List& Value::as_list() {
  return const_cast<List&>(std::as_const(*this).as_list());
}

const Value::Map& Value::as_map() const {
  if (const auto* value = std::get_if<Map>(&data_)) return *value;
  wrong_kind(*this, "map");
}

Value::Map& Value::as_map() {
  return const_cast<Map&>(std::as_const(*this).as_map());
}

const Value* Value::find(std::string_view key) const noexcept {
  const auto* map = std::get_if<Map>(&data_);
  if (!map) return nullptr;
  const auto found = std::find_if(map->begin(), map->end(), [&](const auto& pair) { return pair.first == key; });
  return found == map->end() ? nullptr : &found->second;
}

Value* Value::find(std::string_view key) noexcept {
  return const_cast<Value*>(std::as_const(*this).find(key));
}

const Value& Value::at(std::string_view key) const {
  if (const Value* found = find(key)) return *found;
  std::vector<std::string> keys;
  for (const auto& pair : as_map()) keys.push_back(pair.first);
  throw UsageError({"core"}, "there is no key '", key, "' in a map of ", count_text(keys.size(), "key"),
                   guess_end(key, keys), keys.empty() ? "" : text(" It has: ", join(keys), "."));
}

Value& Value::operator[](std::string_view key) {
  if (is_null()) data_ = Map();
  if (Value* found = find(key)) return *found;
  return as_map().emplace_back(std::string(key), Value()).second;
}

bool Value::erase(std::string_view key) {
  return std::erase_if(as_map(), [&](const auto& pair) { return pair.first == key; }) > 0;
}

void Value::push_back(Value value) {
  if (is_null()) data_ = List();
  as_list().push_back(std::move(value));
}

size_t Value::size() const noexcept {
  if (const auto* list = std::get_if<List>(&data_)) return list->size();
  if (const auto* map = std::get_if<Map>(&data_)) return map->size();
  return 0;
}

bool Value::operator==(const Value& other) const noexcept {
  if (kind() == Kind::kDouble && other.kind() == Kind::kDouble) {
    const double mine = std::get<double>(data_);
    const double theirs = std::get<double>(other.data_);
    return mine == theirs || (std::isnan(mine) && std::isnan(theirs));
  }
  return data_ == other.data_;
}

}  // namespace hasten::core
