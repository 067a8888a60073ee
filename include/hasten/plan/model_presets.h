// Presets of published models, by the names that people give them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "hasten/plan/model_shape.h"

namespace hasten::plan {

/// Returns the shape of "gpt2", "llama3-70b", "gpt-175b" …; nothing for another name.
std::optional<ModelShape> preset_model(const std::string& name);

/// Returns all names of preset_model.
std::vector<std::string> preset_model_names();

}  // namespace hasten::plan
