// Reading, judging and counting golden cases; see golden.h.
#include "support/golden.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <stdexcept>

#include "hasten/core/env.h"
#include "hasten/core/text.h"

namespace hasten::testing {

namespace {

using nlohmann::json;

// Also of bytes that are no text.
std::string shown(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

GoldenCase read_case(const json& entry) {
  GoldenCase golden;
  golden.name = entry.at("case");
  golden.family = golden.name.substr(0, golden.name.find('/'));
  golden.input = entry.at("input");
  golden.expected = entry.at("expected");
  golden.fixed = entry.value("fixed", json());
  golden.quirks = entry.value("quirks", std::vector<std::string>());
  for (const char* count : {"n", "n_a", "n_b", "samples", "batches"}) {
    const json value = golden.input.is_object() ? golden.input.value(count, json(0)) : json(0);
    if (value.is_number_integer() && value < 0)
      throw std::runtime_error(text("a dataset of ", shown(value), " samples"));
  }
  if (!golden.expected.is_object() || golden.expected.empty())
    throw std::runtime_error("an expectation that compares nothing");
  for (json* each : {&golden.expected, &golden.fixed}) {
    if (each->is_object() && each->contains("error")) each->erase("message");  // the kind counts, not the words
  }
  return golden;
}

/// What is given instead of an error replaces it, and an error replaces everything.
json patched(json values, const json& patch) {
  if (!patch.is_object() || patch.empty()) return values;
  if (patch.contains("error") || !values.is_object()) return patch;
  values.erase("error");
  values.update(patch);
  return values;
}

bool near(const json& given, const json& wanted, const Tolerance& tolerance) {
  if (tolerance.is_none() || given.type() != wanted.type()) return given == wanted;
  if (wanted.is_number_float()) {
    const double difference = std::abs(given.get<double>() - wanted.get<double>());
    return difference <= tolerance.relative * std::abs(wanted.get<double>()) + tolerance.absolute;
  }
  if (!wanted.is_structured()) return given == wanted;
  if (given.size() != wanted.size()) return false;
  if (wanted.is_array()) {
    return std::equal(given.begin(), given.end(), wanted.begin(),
                      [&](const json& a, const json& b) { return near(a, b, tolerance); });
  }
  for (const auto& [key, value] : wanted.items()) {
    if (!given.contains(key) || !near(given.at(key), value, tolerance)) return false;
  }
  return true;
}

}  // namespace

std::string golden_folder() {
  return Environment::current().text("HASTEN_GOLDEN_DIR").value_or(HASTEN_GOLDEN_DEFAULT);
}

GoldenTopic::GoldenTopic(std::string topic, const std::function<bool(const GoldenCase&)>& selected)
    : topic_(std::move(topic)) {
  const std::string path = golden_folder() + "/" + topic_ + ".json";
  // A folder of someone's own may hold some topics, and some families of one.
  const bool is_own = Environment::current().has("HASTEN_GOLDEN_DIR") && std::filesystem::is_directory(golden_folder());
  if (is_own && !std::filesystem::exists(path)) return;
  std::ifstream file(path);
  if (!file) throw std::runtime_error("golden cases: cannot read " + path + " (HASTEN_GOLDEN_DIR names the folder)");
  json content = json::parse(file);
  for (const auto& entry : content.at("cases")) {
    try {
      GoldenCase golden = read_case(entry);
      if (!selected || selected(golden)) cases_.push_back(std::move(golden));
    } catch (const std::exception& error) {
      malformed_.push_back(text(error.what(), ": ", shown(entry).substr(0, 300)));
    }
  }
  content.erase("cases");
  beside_ = std::move(content);
  if (cases_.empty() && !is_own) throw std::runtime_error("golden cases: nothing selected in " + path);
}

void GoldenTopic::for_each(const std::function<void(const GoldenCase&)>& fn) const {
  for (const GoldenCase& golden : cases_) {
    try {
      fn(golden);
    } catch (const std::exception& error) {
      ADD_FAILURE() << topic_ << " " << golden.name << ": " << error.what() << "\n   input " << shown(golden.input);
    }
  }
}

void GoldenTopic::judge(const GoldenCase& golden, const std::function<json()>& run) {
  judge(golden, outcome_of(run));
}

void GoldenTopic::judge(const GoldenCase& golden, const json& given) {
  const auto same = [&](const json& wanted) {
    if (!wanted.is_object() || wanted.empty()) return false;  // nothing would be compared
    for (const auto& [key, value] : wanted.items()) {
      if (!given.contains(key) || !near(given.at(key), value, tolerance_)) return false;
    }
    return !given.contains("exception");
  };
  json wanted = golden.expected;
  if (same(wanted)) {
    ++as_expected_;
    return;
  }
  wanted = patched(wanted, golden.fixed);
  if (!golden.fixed.is_null() && same(wanted)) {
    ++as_fixed_;
    return;
  }
  bool ruled = false;
  for (const auto& quirk : golden.quirks) {
    if (const auto rule = rules_.find(quirk); rule != rules_.end()) {
      wanted = patched(wanted, outcome_of([&] { return rule->second(golden); }));
      ruled = true;
    }
  }
  for (const auto& rule : everywhere_) {
    GoldenCase so_far = golden;
    so_far.expected = wanted;
    wanted = patched(wanted, outcome_of([&] { return rule(so_far); }));
    ruled = true;
  }
  if (ruled && same(wanted)) {
    ++by_difference_;
    return;
  }
  ADD_FAILURE() << topic_ << " " << golden.name << " [" << join(golden.quirks) << "]\n   input " << shown(golden.input)
                << "\nexpected " << shown(golden.expected) << "\n   fixed " << shown(golden.fixed) << "\n wanted "
                << shown(wanted) << "\n  given " << shown(given);
}

void GoldenTopic::finish() const {
  const size_t well = as_expected_ + as_fixed_ + by_difference_;
  const size_t all = cases_.size() + malformed_.size();
  for (const std::string& reason : malformed_) ADD_FAILURE() << topic_ << ": an entry that is no case: " << reason;
  std::cout << "golden " << topic_ << ": " << well << " of " << all << " cases (" << as_expected_ << " as expected, "
            << as_fixed_ << " as fixed, " << by_difference_ << " by a documented difference)" << std::endl;
  EXPECT_EQ(well, all) << topic_ << ": every case must be judged, and well";
}

json outcome_of(const std::function<json()>& run) {
  try {
    return run();
  } catch (const std::exception& error) {
    return {{"exception", error.what()}};
  }
}

int num_ranks_of(const GoldenCase& golden, const char* key) {
  const json number = golden.input.is_object() ? golden.input.value(key, json(1)) : json(1);
  return number.is_number_integer() && number > 0 && number <= 16 ? number.get<int>() : 1;
}

int64_t positive(const json& value) {
  if (value.is_number_integer() && value > 0) return value.get<int64_t>();
  throw std::runtime_error(text("a number above 0 is expected, not ", shown(value)));
}

json golden_error(const std::string& python_class) {
  return {{"error", python_class}};
}

}  // namespace hasten::testing
