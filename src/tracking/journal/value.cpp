// Values, settings and histograms; see value.h.
#include "hasten/tracking/journal/value.h"

#include <algorithm>
#include <cmath>

#include "hasten/core/error.h"

namespace hasten::tracking {
namespace {

class ReadyImages : public PendingImages {
 public:
  explicit ReadyImages(std::vector<Image> images) : images_(std::move(images)) {}
  std::vector<Image> take() override { return std::move(images_); }
  int64_t num_bytes() const noexcept override {
    int64_t sum = 0;
    for (const Image& image : images_) sum += static_cast<int64_t>(image.pixels.size());
    return sum;
  }

 private:
  std::vector<Image> images_;
};

bool is_pair(const Config& element) {
  const core::Value& value = element.value();
  return value.is_list() && value.size() == 2 && value.as_list().front().is_string();
}

void flatten_into(const core::Value& value, const std::string& key,
                  std::vector<std::pair<std::string, core::Value>>& leaves) {
  const auto joined = [&](const std::string& inner) { return key.empty() ? inner : key + "/" + inner; };
  if (value.is_map() && !value.empty()) {
    for (const auto& [inner, element] : value.as_map()) flatten_into(element, joined(inner), leaves);
  } else if (value.is_list() && !value.empty()) {
    size_t index = 0;
    for (const core::Value& element : value.as_list()) flatten_into(element, joined(text(index++)), leaves);
  } else if (!key.empty()) {
    leaves.emplace_back(key, value);
  }
}

void flatten_into(const Values& values, const std::string& prefix, Values& leaves) {
  for (const auto& [key, value] : values) {
    if (value.kind() == Value::Kind::kGroup) {
      flatten_into(value.as_group(), prefix + key + "/", leaves);
    } else {
      leaves.emplace_back(prefix + key, value);
    }
  }
}

// Torch's default limits for a histogram.
std::vector<double> tensorflow_limits() {
  std::vector<double> positive;
  for (double limit = 1e-12; limit < 1e20; limit *= 1.1) positive.push_back(limit);
  std::vector<double> limits(positive.rbegin(), positive.rend());
  for (double& limit : limits) limit = -limit;
  limits.push_back(0);
  limits.insert(limits.end(), positive.begin(), positive.end());
  return limits;
}

}  // namespace

Value::Value(std::initializer_list<Entry> group) : Value(Values(group)) {}
Value::Value(Values group) : data_(std::make_shared<const Values>(std::move(group))) {}

Value Value::invalid(std::string what) {
  return Value(Invalid{std::move(what)});
}

double Value::as_number() const {
  switch (kind()) {
    case Kind::kInt:
      return static_cast<double>(std::get<int64_t>(data_));
    case Kind::kBool:
      return std::get<bool>(data_) ? 1 : 0;
    default:
      return std::get<double>(data_);
  }
}

const Values& Value::as_group() const {
  return *std::get<std::shared_ptr<const Values>>(data_);
}

Config::Config(std::initializer_list<Config> elements) {
  if (elements.size() > 0 && std::all_of(elements.begin(), elements.end(), is_pair)) {
    value_ = core::Value::map();
    for (const Config& element : elements) {
      const auto& pair = element.value().as_list();
      value_[pair.front().as_string()] = pair.back();
    }
    return;
  }
  value_ = core::Value::list();
  for (const Config& element : elements) value_.push_back(element.value());
}

std::vector<std::pair<std::string, core::Value>> flatten(const core::Value& config) {
  std::vector<std::pair<std::string, core::Value>> leaves;
  flatten_into(config, "", leaves);
  return leaves;
}

Values flatten(const Values& values) {
  Values leaves;
  flatten_into(values, "", leaves);
  return leaves;
}

Images::Images(std::vector<Image> images) {
  for (const Image& image : images) {
    const auto expected = static_cast<int64_t>(image.width) * image.height * image.channels;
    const bool known = image.channels == 1 || image.channels == 3 || image.channels == 4;
    if (!known || image.width <= 0 || image.height <= 0 || static_cast<int64_t>(image.pixels.size()) != expected) {
      throw UsageError(Origin{"tracking"}, "an image of width ", image.width, ", height ", image.height, " and ",
                       image.channels, " channels with ", image.pixels.size(),
                       " bytes; expected width * height * channels bytes and 1, 3 or 4 channels. Correct the image.");
    }
  }
  pending_ = std::make_shared<ReadyImages>(std::move(images));
}

Histogram histogram(const double* values, size_t num_values) {
  Histogram result;
  static const std::vector<double> kLimits = tensorflow_limits();
  std::vector<double> counts(kLimits.size() + 1, 0);
  result.min = INFINITY;
  result.max = -INFINITY;
  for (size_t i = 0; i < num_values; ++i) {
    const double value = values[i];
    if (!std::isfinite(value)) continue;
    result.min = std::min(result.min, value);
    result.max = std::max(result.max, value);
    result.num += 1;
    result.sum += value;
    result.sum_squares += value * value;
    // As numpy.histogram: bucket k holds limits[k-1] <= value < limits[k].
    counts[static_cast<size_t>(std::upper_bound(kLimits.begin(), kLimits.end(), value) - kLimits.begin())] += 1;
  }
  if (result.num == 0) return {};
  size_t first = 0, last = counts.size() - 1;
  while (counts[first] == 0) ++first;
  while (counts[last] == 0) --last;
  const auto limit = [&](size_t bucket) { return bucket < kLimits.size() ? kLimits[bucket] : 1.7976931348623157e308; };
  if (first > 0) {
    result.limits.push_back(limit(first - 1));
    result.counts.push_back(0);
  }
  for (size_t bucket = first; bucket <= last; ++bucket) {
    result.limits.push_back(limit(bucket));
    result.counts.push_back(counts[bucket]);
  }
  return result;
}

}  // namespace hasten::tracking
