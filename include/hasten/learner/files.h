// load_learner: a Learner from a folder that Learner::export_to wrote; no code lies in its files.
#pragma once

#include <filesystem>

#include "hasten/learner/learner.h"

namespace hasten::learner {

/// Loads weights, classes and options of the folder. Model, loss and data are arguments, as the program makes them.
/// Blocks: on files. Throws: DataError for a folder that is none; UsageError for another model or loss.
Learner load_learner(const std::filesystem::path& folder, AnyModel model, LearnerOptions options, Loaders loaders = {});

}  // namespace hasten::learner
