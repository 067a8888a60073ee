// Value: the tree itself, and its JSON text through nlohmann's library, whose types stay in this file.
#include "hasten/core/value.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_map>

#include "hasten/core/error.h"

namespace hasten::core {
namespace {

constexpr const char* kNames[] = {"null", "bool", "int", "double", "string", "list", "map"};

[[noreturn]] void wrong_kind(const Value& value, const char* wanted) {
  throw UsageError({"core"}, "a value is of kind ", kNames[static_cast<int>(value.kind())], ", but ", wanted,
                   " was asked for. Ask kind() first.");
}

using Json = nlohmann::ordered_json;

Json to_tree(const Value& value) {
  switch (value.kind()) {
    case Value::Kind::kNull:
      return nullptr;
    case Value::Kind::kBool:
      return value.as_bool();
    case Value::Kind::kInt:
      return value.as_int();
    case Value::Kind::kDouble: {
      const double number = value.as_double();
      if (std::isfinite(number)) return number;
      return Json{{"$double", std::isnan(number) ? "nan" : number > 0 ? "inf" : "-inf"}};
    }
    case Value::Kind::kString:
      return value.as_string();
    case Value::Kind::kList: {
      Json list = Json::array();
      for (const Value& element : value.as_list()) list.push_back(to_tree(element));
      return list;
    }
    case Value::Kind::kMap: {
      Json map = Json::object();
      // Keys of a Value differ, so none is looked for.
      auto& pairs = static_cast<Json::object_t::Container&>(map.get_ref<Json::object_t&>());
      for (const auto& [key, element] : value.as_map()) pairs.emplace_back(key, to_tree(element));
      return map;
    }
  }
  return nullptr;
}

// Of keys that occur twice in one map, the last value counts, at the place of the first.
void drop_doubled_keys(Value::Map& map) {
  if (map.size() < 2) return;
  std::unordered_map<std::string_view, size_t> first;
  first.reserve(map.size());
  std::vector<size_t> place(map.size());
  bool is_doubled = false;
  for (size_t i = 0; i < map.size(); ++i) {
    place[i] = first.emplace(map[i].first, i).first->second;
    is_doubled = is_doubled || place[i] != i;
  }
  if (!is_doubled) return;
  Value::Map kept;
  for (size_t i = 0; i < map.size(); ++i) {
    if (place[i] == i) {
      place[i] = kept.size();
      kept.push_back(std::move(map[i]));
    } else {
      kept[place[i] = place[place[i]]].second = std::move(map[i].second);
    }
  }
  map = std::move(kept);
}

// {"$double": "nan"} and the like, which to_json writes for numbers that JSON lacks.
std::optional<double> special_double(const Value::Map& map) {
  if (map.size() != 1 || map[0].first != "$double" || !map[0].second.is_string()) return std::nullopt;
  const std::string& word = map[0].second.as_string();
  if (word == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (word == "inf") return std::numeric_limits<double>::infinity();
  if (word == "-inf") return -std::numeric_limits<double>::infinity();
  return std::nullopt;
}

constexpr size_t kMostLevels = 10'000;  // a Value ends level by level, on the stack

// Builds the Value while nlohmann's parser reads: its own ordered map would compare each key with all keys before it.
class ValueBuilder : public nlohmann::json_sax<Json> {
 public:
  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override {
    const bool fits = value <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
    return fits ? add(static_cast<int64_t>(value)) : add(static_cast<double>(value));
  }
  bool number_float(number_float_t value, const string_t&) override { return add(value); }
  bool string(string_t& value) override { return add(std::move(value)); }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return open(Value::Map()); }
  bool key(string_t& value) override {
    open_.back().key = std::move(value);
    return true;
  }
  bool end_object() override {
    Value::Map& map = open_.back().value.as_map();
    drop_doubled_keys(map);
    const auto special = special_double(map);
    return close(special ? Value(*special) : std::move(open_.back().value));
  }
  bool start_array(std::size_t) override { return open(Value::List()); }
  bool end_array() override { return close(std::move(open_.back().value)); }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception& error) override {
    error_ = error.what();
    return false;
  }

  const std::string& error() const noexcept { return error_; }
  Value take() { return std::move(root_); }

 private:
  struct Open {
    Value value;
    std::string key = {};
  };

  bool open(Value value) {
    if (open_.size() >= kMostLevels) {
      error_ = text("it nests more than ", kMostLevels, " levels deep");
      return false;
    }
    open_.push_back({std::move(value)});
    return true;
  }
  bool close(Value value) {
    open_.pop_back();
    return add(std::move(value));
  }
  bool add(Value value) {
    if (open_.empty()) {
      root_ = std::move(value);
    } else if (open_.back().value.is_list()) {
      open_.back().value.as_list().push_back(std::move(value));
    } else {
      open_.back().value.as_map().emplace_back(std::move(open_.back().key), std::move(value));
    }
    return true;
  }

  Value root_;
  std::vector<Open> open_;
  std::string error_;
};

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
  throw UsageError({"core"}, "there is no key '", key, "' in a map of ", keys.size(), " keys", did_you_mean(key, keys),
                   keys.empty() ? "" : " It has: ", join(keys), ".");
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

std::string Value::to_json(int indent) const {
  return to_tree(*this).dump(indent, ' ', false, Json::error_handler_t::replace);
}

Value Value::parse_json(std::string_view text, const std::string& name) {
  ValueBuilder builder;
  if (Json::sax_parse(text, &builder)) return builder.take();
  throw DataError({"core"}, name, name, " is no JSON: ", builder.error(), ". Correct the text.");
}

}  // namespace hasten::core
