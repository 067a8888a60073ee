// The MLflow tracker: runs of a tracking server, over its REST interface. mlflow_requests.h has the pure half.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "hasten/core/env.h"
#include "hasten/tracking/journal/tracker.h"

namespace hasten::tracking {

/// Makes the tracker for the server at MLFLOW_TRACKING_URI, with the MLFLOW_ variables for access and the run.
/// Throws: UsageError for a wrong option or setting.
std::unique_ptr<Tracker> make_mlflow(const core::Value& options, const Environment& environment);
std::vector<std::string> mlflow_options();

}  // namespace hasten::tracking
