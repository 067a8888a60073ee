// See optimizer_state.h.
#include "parallel/shard/optimizer_state.h"

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <tuple>
#include <type_traits>
#include <typeinfo>

#include "hasten/optim/deepspeed.h"
#include "hasten/optim/moment_state.h"

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
                           type == typeid(torch::optim::RMSprop) || type == typeid(hasten::optim::deepspeed::Lion);
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
  // Lion's; others with this type have more.
  auto* loop = dynamic_cast<hasten::optim::detail::MomentState*>(&state);
  if (loop != nullptr && !loop->second().defined() && !loop->master().defined() && loop->moment() == 0) {
    visit("exp_avg", loop->first());
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
  if (auto* loop = dynamic_cast<hasten::optim::detail::MomentState*>(&state)) return loop->step();
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
  if (type == typeid(hasten::optim::deepspeed::Lion)) return {"exp_avg"};
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
  if (type == typeid(hasten::optim::deepspeed::Lion)) return std::make_unique<hasten::optim::detail::MomentState>();
  return nullptr;
}

void set_step(torch::optim::OptimizerParamState& state, int64_t step) {
  using namespace torch::optim;
  if (auto* adam = dynamic_cast<AdamParamState*>(&state)) adam->step(step);
  if (auto* adamw = dynamic_cast<AdamWParamState*>(&state)) adamw->step(step);
  if (auto* adagrad = dynamic_cast<AdagradParamState*>(&state)) adagrad->step(step);
  if (auto* rmsprop = dynamic_cast<RMSpropParamState*>(&state)) rmsprop->step(step);
  if (auto* loop = dynamic_cast<hasten::optim::detail::MomentState*>(&state)) loop->step(step);
}

namespace {

// Calls `number(get, set)` for each option of a group.
template <class Number>
void visit_options(torch::optim::OptimizerOptions& options, const Number& number) {
  using namespace torch::optim;
  const auto adam = [&](auto& own) {
    number(own.lr());
    number(std::get<0>(own.betas()));
    number(std::get<1>(own.betas()));
    number(own.eps());
    number(own.weight_decay());
    number(own.amsgrad());
  };
  if (auto* own = dynamic_cast<AdamOptions*>(&options)) return adam(*own);
  if (auto* own = dynamic_cast<AdamWOptions*>(&options)) return adam(*own);
  if (auto* own = dynamic_cast<SGDOptions*>(&options)) {
    number(own->lr());
    number(own->momentum());
    number(own->dampening());
    number(own->weight_decay());
    return number(own->nesterov());
  }
  if (auto* own = dynamic_cast<AdagradOptions*>(&options)) {
    number(own->lr());
    number(own->lr_decay());
    number(own->weight_decay());
    return number(own->eps());
  }
  if (auto* own = dynamic_cast<RMSpropOptions*>(&options)) {
    number(own->lr());
    number(own->alpha());
    number(own->eps());
    number(own->weight_decay());
    number(own->momentum());
    return number(own->centered());
  }
  double rate = options.get_lr();
  number(rate);
  options.set_lr(rate);
}

}  // namespace

std::vector<double> group_numbers(const torch::optim::OptimizerParamGroup& group) {
  std::vector<double> numbers;
  const auto copy = group.options().clone();
  visit_options(*copy, [&](auto& value) { numbers.push_back(static_cast<double>(value)); });
  return numbers;
}

void set_group_numbers(torch::optim::OptimizerParamGroup& group, const std::vector<double>& numbers) {
  size_t next = 0;
  visit_options(group.options(), [&](auto& value) {
    if (next < numbers.size()) value = static_cast<std::remove_reference_t<decltype(value)>>(numbers[next++]);
  });
}

}  // namespace hasten::parallel::shard
