// Reading settings of a transformers config.json, with errors that name the key.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "hasten/core/error.h"
#include "hasten/core/sentence.h"
#include "hasten/core/value.h"

namespace hasten::models::detail {

class ConfigReader {
 public:
  ConfigReader(const core::Value& config, std::string model) : config_(config), model_(std::move(model)) {}

  bool has(const std::string& key) const {
    const auto* value = config_.find(key);
    return value != nullptr && !value->is_null();
  }
  int64_t integer(const std::string& key, int64_t fallback) const {
    return has(key) ? config_.at(key).as_int() : fallback;
  }
  double number(const std::string& key, double fallback) const {
    return has(key) ? config_.at(key).as_double() : fallback;
  }
  bool flag(const std::string& key, bool fallback) const { return has(key) ? config_.at(key).as_bool() : fallback; }
  std::string string(const std::string& key, const std::string& fallback) const {
    return has(key) ? config_.at(key).as_string() : fallback;
  }
  const core::Value* map(const std::string& key) const { return has(key) ? config_.find(key) : nullptr; }

  const std::string& one_of(const std::string& key, const std::string& value,
                            const std::vector<std::string>& known) const {
    if (std::find(known.begin(), known.end(), value) != known.end()) return value;
    throw UsageError(Origin{"models"}, model_, ": ", key, " = '", value, "' is not supported", guess_end(value, known),
                     " Expected ", join(known), ".");
  }
  void require(const std::string& key, bool value, bool expected) const {
    if (value != expected)
      throw UsageError(Origin{"models"}, model_, ": ", key, " = ", value, " is not supported; expected ", expected,
                       ".");
  }
  void require_divides(const std::string& divisor, int64_t by, const std::string& key, int64_t value) const {
    if (by > 0 && value % by == 0) return;
    throw UsageError(Origin{"models"}, model_, ": ", key, " = ", value, " is no multiple of ", divisor, " = ", by, ".");
  }

 private:
  const core::Value& config_;
  std::string model_;
};

}  // namespace hasten::models::detail
