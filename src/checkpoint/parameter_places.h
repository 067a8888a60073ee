// An optimizer's parameters with the names that saved state has them under.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace torch::optim {
class Optimizer;
}

namespace hasten::checkpoint {

/// The name of a parameter, or an empty one (ParameterNames of optimizer_state.h).
using NameOf = std::function<std::string(const at::Tensor& parameter)>;

struct Place {
  size_t group;
  std::string name;
  at::Tensor parameter;
};

/// A parameter without a name is "groupG.I". Throws: what `name_of` throws.
std::string place_name(const NameOf& name_of, const at::Tensor& parameter, size_t group, size_t index);

/// By group and number. Throws: what `name_of` throws.
std::vector<Place> places_of(const torch::optim::Optimizer& optimizer, const NameOf& name_of);

/// Returns the names of places_of(). Throws: what `name_of` throws.
std::vector<std::string> place_names(const torch::optim::Optimizer& optimizer, const NameOf& name_of);

}  // namespace hasten::checkpoint
