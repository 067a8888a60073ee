// See fastai_file.h. The file holds a state_dict, or {"model": state_dict, "opt": {"state": [one a parameter],
// "hypers": [one a group]}}.
#include "learner/fastai_file.h"

#include <ATen/ATen.h>
#include <torch/optim/adamw.h>

#include "hasten/checkpoint/python_tensor.h"
#include "hasten/checkpoint/weights.h"
#include "hasten/files/python/python_file.h"
#include "hasten/optim/fastai.h"
#include "learner/learner_impl.h"

namespace hasten::learner {
namespace {

/// Returns a list, also in fastcore's L.
const files::PythonValue::Items& items_of(const files::PythonValue& value) {
  const auto* items = value.is_object() ? value.as_object().attribute("items") : nullptr;
  return (items != nullptr ? *items : value).as_items();
}

/// Averages of a parameter.
void load_state_of(torch::optim::Optimizer& optimizer, const at::Tensor& parameter, const files::PythonValue& from) {
  const auto tensor = [&](const char* name) {
    const auto* found = from.find(name);
    return found == nullptr || !found->is_tensor()
               ? at::Tensor()
               : checkpoint::tensor_of(found->as_tensor()).to(parameter.options()).clone();
  };
  const auto average = tensor("grad_avg"), squares = tensor("sqr_avg");
  const auto* steps = from.find("step");
  const int64_t step = steps == nullptr ? 0 : steps->as_int();
  if (!average.defined() && !squares.defined()) return;
  if (dynamic_cast<torch::optim::AdamW*>(&optimizer) != nullptr) {
    auto own = std::make_unique<torch::optim::AdamWParamState>();
    own->step(step);
    own->exp_avg(average);
    own->exp_avg_sq(squares);
    optimizer.state()[parameter.unsafeGetTensorImpl()] = std::move(own);
    return;
  }
  auto own = std::make_unique<optim::fastai::State>();
  own->step(step);
  own->grad_avg(average);
  own->sqr_avg(squares);
  optimizer.state()[parameter.unsafeGetTensorImpl()] = std::move(own);
}

void load_optimizer_of(const Learner& learn, const std::string& path, const files::PythonValue& from) {
  const auto& states = items_of(from.at("state"));
  const auto& hypers = items_of(from.at("hypers"));
  const auto& groups = learn.groups();
  size_t count = 0;
  for (const auto& group : groups) count += group.parameters.size();
  if (states.size() != count || hypers.size() != groups.size()) {
    throw UsageError(Origin{"learner"}, path, " has an optimizer of ", states.size(), " parameters in ", hypers.size(),
                     " groups, this Learner of ", count, " in ", groups.size(),
                     "; load with the same model and splitter, or with_opt = false.");
  }
  auto& optimizer = learn.opt();
  optimizer.state().clear();
  auto state = states.begin();
  for (size_t i = 0; i < groups.size(); ++i) {
    for (const auto& parameter : groups[i].parameters) load_state_of(optimizer, parameter, *state++);
    for (const auto& [name, value] : hypers[i].as_pairs()) {
      if (name.is_string() && value.is_number() && learn.hypers().has(name.as_string()))
        learn.hypers().set(name.as_string(), i, value.as_double());
    }
  }
}

}  // namespace

void load_fastai_file(const Learner& learn, const std::string& path, const LoadOptions& options) {
  const auto file = files::PythonFile::open(path);
  const auto& whole = file.value();
  const auto* optimizer = whole.find("opt");
  const auto* model = whole.find("model");
  const bool has_both = model != nullptr && optimizer != nullptr && model->is_mapping();
  checkpoint::load_weights(*learn.model().module(), has_both ? *model : whole, {.strict = options.strict});
  if (!options.with_opt.value_or(has_both && learn.impl().optimizer != nullptr)) return;
  if (!has_both || !optimizer->is_mapping()) {
    throw DataError(Origin{"learner"}, path, "no optimizer state in ", path,
                    "; save with with_opt=True, or load with with_opt = false.");
  }
  load_optimizer_of(learn, path, *optimizer);
}

}  // namespace hasten::learner
