// Rates by functions of the program's; see lambda.h.
#include "hasten/optim/schedulers/lambda.h"

#include "optim/parameter_groups.h"

namespace hasten::optim {
namespace {

std::vector<LrLambda> checked(const PerGroup<LrLambda>& lambdas, size_t num_groups, std::string_view name) {
  auto all = lambdas.expand(num_groups, name, "lr_lambda");
  for (const auto& lambda : all) {
    detail::require(lambda != nullptr, name, "lr_lambda", "an empty function", "one that can be called");
  }
  return all;
}

}  // namespace

LambdaLR::LambdaLR(torch::optim::Optimizer& optimizer, const Options& options)
    : Scheduler(optimizer, "LambdaLR"), lambdas_(checked(options.lr_lambda, num_groups(), "LambdaLR")) {
  start();
}

double LambdaLR::rate(size_t group, double, Moment) const {
  return base_lr(group) * lambdas_[group](last_epoch());
}

MultiplicativeLR::MultiplicativeLR(torch::optim::Optimizer& optimizer, const Options& options)
    : Scheduler(optimizer, "MultiplicativeLR"), lambdas_(checked(options.lr_lambda, num_groups(), "MultiplicativeLR")) {
  start();
}

double MultiplicativeLR::rate(size_t group, double before, Moment moment) const {
  return moment == Moment::kStart ? before : before * lambdas_[group](last_epoch());
}

}  // namespace hasten::optim
