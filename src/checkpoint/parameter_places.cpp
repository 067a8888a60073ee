// See parameter_places.h.
#include "checkpoint/parameter_places.h"

#include <torch/optim/optimizer.h>

#include <utility>

#include "hasten/core/text.h"

namespace hasten::checkpoint {

std::string place_name(const NameOf& name_of, const at::Tensor& parameter, size_t group, size_t index) {
  std::string name = name_of ? name_of(parameter) : std::string();
  return name.empty() ? text("group", group, '.', index) : name;
}

std::vector<Place> places_of(const torch::optim::Optimizer& optimizer, const NameOf& name_of) {
  std::vector<Place> places;
  for (size_t g = 0; g < optimizer.param_groups().size(); ++g) {
    const auto& parameters = optimizer.param_groups()[g].params();
    for (size_t i = 0; i < parameters.size(); ++i) {
      places.push_back({g, place_name(name_of, parameters[i], g, i), parameters[i]});
    }
  }
  return places;
}

std::vector<std::string> place_names(const torch::optim::Optimizer& optimizer, const NameOf& name_of) {
  std::vector<std::string> names;
  for (auto& place : places_of(optimizer, name_of)) names.push_back(std::move(place.name));
  return names;
}

}  // namespace hasten::checkpoint
