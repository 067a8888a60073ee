// Samples with their predictions, as texts, tables and images of a run's trackers.
#pragma once

#include <string>
#include <vector>

#include "hasten/learner/loaders.h"
#include "hasten/learner/predictions.h"
#include "hasten/tracking/run/trackers.h"

namespace hasten::learner {

/// Returns a class's name, a number, or the sizes of a larger value.
std::string sample_text(const at::Tensor& value, const std::vector<std::string>& vocab);

/// Returns an image with values from 0 to 1; undefined for an input that is none.
at::Tensor sample_image(const at::Tensor& input);

/// The first rows of `results` (inputs, targets, decoded) as the table "predictions" and, if they are images, the
/// images "inputs".
void show_in_trackers(tracking::Trackers& trackers, const Loaders& loaders, const Predictions& results,
                      int64_t num_samples, std::optional<int64_t> step = {});

}  // namespace hasten::learner
