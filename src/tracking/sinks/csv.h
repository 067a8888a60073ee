// The CSV tracker: metrics.csv (step,time,key,value) and config.csv (key,value) in the run's folder.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "hasten/core/env.h"
#include "hasten/tracking/journal/tracker.h"

namespace hasten::tracking {

std::unique_ptr<Tracker> make_csv(const core::Value& options, const Environment& environment);
std::vector<std::string> csv_options();

}  // namespace hasten::tracking
