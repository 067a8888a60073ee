// MLflow's REST requests as pure functions: which keys are allowed, how values are written, how entries are split into
// batches. https://mlflow.org/docs/latest/rest-api.html has the limits.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "hasten/core/value.h"

namespace hasten::tracking::mlflow {

struct Metric {
  std::string key = {};
  double value = 0;
  int64_t timestamp_ms = 0;
  int64_t step = 0;
};

struct Pair {
  std::string key = {};
  std::string value = {};
};

/// Entries of one runs/log-batch.
struct Batch {
  std::vector<Metric> metrics = {};
  std::vector<Pair> params = {};
  std::vector<Pair> tags = {};

  size_t size() const noexcept { return metrics.size() + params.size() + tags.size(); }
};

/// Maps keys of ours to keys that MLflow takes (letters, digits, "_-. :/", up to 250 bytes), the same key always to the
/// same.
class KeyMap {
 public:
  /// `changed` holds the new form of a key that had to be changed, at its first use; "" otherwise.
  std::string map(const std::string& key, std::string& changed);

 private:
  std::map<std::string, std::string> known_;
  std::set<std::string> used_;
};

/// Splits into batches of at most 1000 metrics, 100 params, 100 tags, 1000 entries and 1 MB.
std::vector<Batch> split(const Batch& entries);
/// Two halves of a batch of at least two entries.
std::vector<Batch> halves(const Batch& batch);
/// "metric 'loss' of step 3": the first entry, for a message.
std::string describe(const Batch& batch);

/// Returns the request's body. NaN is "NaN", infinity "Infinity".
std::string log_batch_body(const std::string& run_id, const Batch& batch);

/// Name of a logged image: "images/<key, / as ~>+step+<n>+timestamp+<ms>+<unique>.png".
std::string image_path(const std::string& key, int64_t step, int64_t timestamp_ms, const std::string& unique);

/// Longest value of a param.
constexpr size_t kMostParamBytes = 6000;

}  // namespace hasten::tracking::mlflow
