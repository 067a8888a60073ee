// See dummy.h.
#include "hasten/plugins/dummy.h"

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <tuple>

#include "hasten/core/error.h"
#include "hasten/core/sentence.h"
#include "hasten/core/strings.h"
#include "hasten/optim/deepspeed.h"

namespace hasten::parallel {
namespace {

using core::Value;
const Origin kSection{"deepspeed"};

/// The params of an optimizer section. A key that is left over is an error.
class SectionParams {
 public:
  SectionParams(const std::string& type, const Value& params) : type_(type), params_(params) {
    if (!params.is_null() && !params.is_map())
      throw UsageError(kSection, "optimizer.params is ", params.to_json(), "; expected a map.");
  }

  double real(const char* key, double otherwise) {
    const auto* value = find(key);
    if (value == nullptr) return otherwise;
    if (!value->is_number()) fail(key, *value, "a number");
    return value->as_double();
  }
  bool flag(const char* key, bool otherwise) {
    const auto* value = find(key);
    if (value == nullptr) return otherwise;
    if (!value->is_bool()) fail(key, *value, "true or false");
    return value->as_bool();
  }
  std::tuple<double, double> betas(double second = 0.999) {
    const auto* value = find("betas");
    if (value == nullptr) return {0.9, second};
    const bool pair =
        value->is_list() && value->size() == 2 && value->as_list()[0].is_number() && value->as_list()[1].is_number();
    if (!pair) fail("betas", *value, "a list of two numbers");
    return {value->as_list()[0].as_double(), value->as_list()[1].as_double()};
  }
  /// Taken, but without a meaning here: which kernel computes it.
  void ignore(std::initializer_list<const char*> keys) {
    for (const char* key : keys) find(key);
  }

  void finish() const {
    if (params_.contains("max_grad_norm")) {
      throw UsageError(kSection,
                       "optimizer.params.max_grad_norm: an optimizer of a distributed model does not clip. Write "
                       "gradient_clipping.");
    }
    if (params_.is_null()) return;
    for (const auto& [key, value] : params_.as_map()) {
      if (std::find(known_.begin(), known_.end(), key) != known_.end()) continue;
      throw UsageError(kSection, "optimizer ", type_, " has no parameter ", key, guess_end(key, known_), " It has ",
                       join(known_), ".");
    }
  }

 private:
  const Value* find(const char* key) {
    known_.emplace_back(key);
    const auto* value = params_.find(key);
    return value == nullptr || value->is_null() ? nullptr : value;
  }
  [[noreturn]] void fail(const char* key, const Value& value, const char* expected) const {
    throw UsageError(kSection, "optimizer.params.", key, " is ", value.to_json(), "; expected ", expected, ".");
  }

  const std::string& type_;
  const Value& params_;
  std::vector<std::string> known_;
};

template <class O, class Options>
std::shared_ptr<torch::optim::Optimizer> make(const Options& defaults, const DummyOptim& dummy) {
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (const auto& group : dummy.groups()) {
    auto own = std::make_unique<Options>(defaults);
    if (group.lr) own->lr(*group.lr);
    if (group.weight_decay) own->weight_decay(*group.weight_decay);
    groups.emplace_back(group.params, std::move(own));
  }
  return std::make_shared<O>(std::move(groups), defaults);
}

template <class O, class Options>
std::shared_ptr<torch::optim::Optimizer> make_adam(SectionParams& params, const DummyOptim& dummy) {
  const Options options = Options(params.real("lr", 1e-3))
                              .betas(params.betas())
                              .eps(params.real("eps", 1e-8))
                              .weight_decay(params.real("weight_decay", 0.0))
                              .amsgrad(params.flag("amsgrad", false));
  params.ignore({"torch_adam", "adam_w_mode", "foreach", "fused", "bias_correction", "fp32_optimizer_states"});
  if (!params.flag("bias_correction", true))
    throw UsageError(kSection,
                     "optimizer.params.bias_correction is false, which libtorch's Adam does not have. Leave it out.");
  params.finish();
  return make<O, Options>(options, dummy);
}

std::shared_ptr<torch::optim::Optimizer> make_sgd(SectionParams& params, const DummyOptim& dummy) {
  const auto options = torch::optim::SGDOptions(params.real("lr", 1e-3))
                           .momentum(params.real("momentum", 0.0))
                           .dampening(params.real("dampening", 0.0))
                           .weight_decay(params.real("weight_decay", 0.0))
                           .nesterov(params.flag("nesterov", false));
  params.ignore({"foreach", "fused"});
  params.finish();
  return make<torch::optim::SGD, torch::optim::SGDOptions>(options, dummy);
}

std::shared_ptr<torch::optim::Optimizer> make_adagrad(SectionParams& params, const DummyOptim& dummy) {
  const auto options = torch::optim::AdagradOptions(params.real("lr", 1e-2))
                           .lr_decay(params.real("lr_decay", 0.0))
                           .eps(params.real("eps", 1e-10))
                           .weight_decay(params.real("weight_decay", 0.0))
                           .initial_accumulator_value(params.real("initial_accumulator_value", 0.0));
  params.ignore({"foreach", "fused", "amsgrad"});
  params.finish();
  return make<torch::optim::Adagrad, torch::optim::AdagradOptions>(options, dummy);
}

std::shared_ptr<torch::optim::Optimizer> make_rmsprop(SectionParams& params, const DummyOptim& dummy) {
  const auto options = torch::optim::RMSpropOptions(params.real("lr", 1e-2))
                           .alpha(params.real("alpha", 0.99))
                           .eps(params.real("eps", 1e-8))
                           .weight_decay(params.real("weight_decay", 0.0))
                           .momentum(params.real("momentum", 0.0))
                           .centered(params.flag("centered", false));
  params.ignore({"foreach"});
  params.finish();
  return make<torch::optim::RMSprop, torch::optim::RMSpropOptions>(options, dummy);
}

std::shared_ptr<torch::optim::Optimizer> make_lion(SectionParams& params, const DummyOptim& dummy) {
  const auto options = optim::deepspeed::LionOptions(params.real("lr", 1e-3))
                           .betas(params.betas(0.99))
                           .weight_decay(params.real("weight_decay", 0.0));
  params.finish();
  return make<optim::deepspeed::Lion, optim::deepspeed::LionOptions>(options, dummy);
}

std::shared_ptr<torch::optim::Optimizer> make_lamb(SectionParams& params, const DummyOptim& dummy) {
  const auto options = optim::deepspeed::LambOptions(params.real("lr", 1e-3))
                           .betas(params.betas())
                           .eps(params.real("eps", 1e-8))
                           .weight_decay(params.real("weight_decay", 0.0))
                           .bias_correction(params.flag("bias_correction", true))
                           .eps_inside_sqrt(params.flag("eps_inside_sqrt", false))
                           .max_coeff(params.real("max_coeff", 10.0))
                           .min_coeff(params.real("min_coeff", 0.01));
  params.finish();
  return make<optim::deepspeed::Lamb, optim::deepspeed::LambOptions>(options, dummy);
}

void refuse_type(const std::string& type, const std::string& lower) {
  if (lower.starts_with("onebit") || lower.starts_with("zeroone")) {
    throw UsageError(kSection, "optimizer.type ", type,
                     " sends one bit a gradient and loses the rest; it is not built. Write AdamW, and "
                     "communication_data_type for fewer bytes.");
  }
  if (lower == "lbfgs")
    throw UsageError(kSection, "optimizer.type ", type,
                     " needs dot products over all parameters. Write stage 0, and prepare an own LBFGS.");
  if (lower == "muon") {
    throw UsageError(
        kSection, "optimizer.type ", type,
        " is not built behind a configuration. Prepare an optimizer of the program's own, without the section.");
  }
}

}  // namespace

torch::optim::Optimizer& DummyScheduler::optimizer() const {
  if (!dummy_) return *optimizer_;
  if (dummy_->real()) return *dummy_->real();
  throw UsageError(kSection,
                   "a DummyScheduler whose DummyOptim is not prepared. Give both to prepare, the DummyOptim first.");
}

std::shared_ptr<torch::optim::Optimizer> make_deepspeed_optimizer(const std::string& type, const Value& params,
                                                                  const DummyOptim& dummy) {
  const std::string lower = core::lower(type);
  SectionParams own(type, params);
  const auto* mode = params.find("adam_w_mode");
  const bool decouples = lower == "adamw" || mode == nullptr || !mode->is_bool() || mode->as_bool();
  std::shared_ptr<torch::optim::Optimizer> real;
  if (lower == "adam" || lower == "adamw" || lower == "cpuadam") {
    real = decouples ? make_adam<torch::optim::AdamW, torch::optim::AdamWOptions>(own, dummy)
                     : make_adam<torch::optim::Adam, torch::optim::AdamOptions>(own, dummy);
  } else if (lower == "sgd") {
    real = make_sgd(own, dummy);
  } else if (lower == "adagrad") {
    real = make_adagrad(own, dummy);
  } else if (lower == "rmsprop") {
    real = make_rmsprop(own, dummy);
  } else if (lower == "lion") {
    real = make_lion(own, dummy);
  } else if (lower == "lamb" || lower == "fusedlamb") {
    real = make_lamb(own, dummy);
  } else {
    refuse_type(type, lower);
    const std::vector<std::string> names = {"Adam", "AdamW", "Adagrad", "SGD", "RMSprop", "Lion", "Lamb"};
    throw UsageError(kSection, "optimizer.type is ", type, "; expected one of ", join(names), guess_end(type, names));
  }
  dummy.set_real(real);
  return real;
}

int64_t widest_side(const torch::nn::Module& module) {
  int64_t widest = 0;
  for (const auto& parameter : module.parameters()) {
    if (parameter.dim() == 2) widest = std::max(widest, std::min(parameter.size(0), parameter.size(1)));
  }
  return std::max<int64_t>(1, widest);
}

}  // namespace hasten::parallel
