// See optimizer_state.h.
#include "parallel/shard/optimizer_state.h"

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <typeinfo>

namespace hasten::parallel::shard {
namespace {

template <class State>
bool visit_adam(torch::optim::OptimizerParamState& state, const VisitState& visit) {
  auto* adam = dynamic_cast<State*>(&state);
  if (adam == nullptr) return false;
  visit("exp_avg", adam->exp_avg());
  visit("exp_avg_sq", adam->exp_avg_sq());
  visit("max_exp_avg_sq", adam->max_exp_avg_sq());
  return true;
}

}  // namespace

StepKind step_kind(const torch::optim::Optimizer& optimizer) {
  const auto& type = typeid(optimizer);
  if (dynamic_cast<const torch::optim::LBFGS*>(&optimizer) != nullptr) return StepKind::kAll;
  const bool elementwise = type == typeid(torch::optim::SGD) || type == typeid(torch::optim::Adam) ||
                           type == typeid(torch::optim::AdamW) || type == typeid(torch::optim::Adagrad) ||
                           type == typeid(torch::optim::RMSprop);
  return elementwise ? StepKind::kElementwise : StepKind::kWhole;
}

bool visit_state(torch::optim::OptimizerParamState& state, const VisitState& visit) {
  using namespace torch::optim;
  if (visit_adam<AdamParamState>(state, visit) || visit_adam<AdamWParamState>(state, visit)) return true;
  if (auto* sgd = dynamic_cast<SGDParamState*>(&state)) {
    visit("momentum_buffer", sgd->momentum_buffer());
    return true;
  }
  if (auto* adagrad = dynamic_cast<AdagradParamState*>(&state)) {
    visit("sum", adagrad->sum());
    return true;
  }
  if (auto* rmsprop = dynamic_cast<RMSpropParamState*>(&state)) {
    visit("square_avg", rmsprop->square_avg());
    visit("momentum_buffer", rmsprop->momentum_buffer());
    visit("grad_avg", rmsprop->grad_avg());
    return true;
  }
  return false;
}

std::optional<int64_t> step_of(torch::optim::OptimizerParamState& state) {
  using namespace torch::optim;
  if (auto* adam = dynamic_cast<AdamParamState*>(&state)) return adam->step();
  if (auto* adamw = dynamic_cast<AdamWParamState*>(&state)) return adamw->step();
  if (auto* adagrad = dynamic_cast<AdagradParamState*>(&state)) return adagrad->step();
  if (auto* rmsprop = dynamic_cast<RMSpropParamState*>(&state)) return rmsprop->step();
  return std::nullopt;
}

std::vector<const char*> state_names(const torch::optim::Optimizer& optimizer) {
  const auto& type = typeid(optimizer);
  if (type == typeid(torch::optim::Adam) || type == typeid(torch::optim::AdamW)) {
    return {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"};
  }
  if (type == typeid(torch::optim::SGD)) return {"momentum_buffer"};
  if (type == typeid(torch::optim::Adagrad)) return {"sum"};
  if (type == typeid(torch::optim::RMSprop)) return {"square_avg", "momentum_buffer", "grad_avg"};
  return {};
}

std::unique_ptr<torch::optim::OptimizerParamState> make_state(const torch::optim::Optimizer& optimizer) {
  using namespace torch::optim;
  const auto& type = typeid(optimizer);
  if (type == typeid(Adam)) return std::make_unique<AdamParamState>();
  if (type == typeid(AdamW)) return std::make_unique<AdamWParamState>();
  if (type == typeid(SGD)) return std::make_unique<SGDParamState>();
  if (type == typeid(Adagrad)) return std::make_unique<AdagradParamState>();
  if (type == typeid(RMSprop)) return std::make_unique<RMSpropParamState>();
  return nullptr;
}

void set_step(torch::optim::OptimizerParamState& state, int64_t step) {
  using namespace torch::optim;
  if (auto* adam = dynamic_cast<AdamParamState*>(&state)) adam->step(step);
  if (auto* adamw = dynamic_cast<AdamWParamState*>(&state)) adamw->step(step);
  if (auto* adagrad = dynamic_cast<AdagradParamState*>(&state)) adagrad->step(step);
  if (auto* rmsprop = dynamic_cast<RMSpropParamState*>(&state)) rmsprop->step(step);
}

}  // namespace hasten::parallel::shard
