// DistributedOptimizer: steps parameters where they are, with the gradients of an autograd context.
//
// Each owner has one local optimizer over its parameters, made with the same options. A step of several trainers at one
// owner is one after the other, or without a lock (HogWild at the server).
#pragma once

#include <torch/optim.h>
#include <torch/serialize/archive.h>

#include <map>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "hasten/core/error.h"
#include "hasten/optim/steps/optimizer_step.h"
#include "hasten/rpc/agent.h"

namespace hasten::optim {
class ApexAdam;
struct ApexAdamOptions;
class ApexSgd;
struct ApexSgdOptions;
class Lamb;
struct LambOptions;
class NovoGrad;
struct NovoGradOptions;
}  // namespace hasten::optim

namespace hasten::rpc {

namespace detail {

/// The options type of an optimizer of torch::optim or of hasten::optim.
template <class O>
struct OptionsOf;
template <>
struct OptionsOf<torch::optim::SGD> {
  using type = torch::optim::SGDOptions;
};
template <>
struct OptionsOf<torch::optim::Adam> {
  using type = torch::optim::AdamOptions;
};
template <>
struct OptionsOf<torch::optim::AdamW> {
  using type = torch::optim::AdamWOptions;
};
template <>
struct OptionsOf<torch::optim::Adagrad> {
  using type = torch::optim::AdagradOptions;
};
template <>
struct OptionsOf<torch::optim::RMSprop> {
  using type = torch::optim::RMSpropOptions;
};
template <>
struct OptionsOf<optim::ApexAdam> {
  using type = optim::ApexAdamOptions;
};
template <>
struct OptionsOf<optim::ApexSgd> {
  using type = optim::ApexSgdOptions;
};
template <>
struct OptionsOf<optim::Lamb> {
  using type = optim::LambOptions;
};
template <>
struct OptionsOf<optim::NovoGrad> {
  using type = optim::NovoGradOptions;
};

/// An owner's part. The optimizer steps tensors of its own that share the parameters' memory. So .grad() of the
/// parameters stays as it is, and steps of several trainers do not use each other's gradients. Their versions are their
/// own, too: a trainer's backward may come after the step of another one (HogWild), which torch's refuses.
template <class O>
class LocalOptimizer {
 public:
  using Options = typename OptionsOf<O>::type;
  LocalOptimizer(const std::vector<RRef<at::Tensor>>& parameters, const std::string& options, bool lock, bool fused)
      : fused_(fused) {
    for (const auto& one : parameters) {
      parameters_.push_back(one.local_value());
      stepped_.push_back(parameters_.back().variable_data().requires_grad_());
    }
    if (lock && !parameters.empty()) locks_ = parameters[0].reference()->core->locks_of(parameters_);
    Options read(1e-3);
    std::istringstream stream(options);
    torch::serialize::InputArchive archive;
    archive.load_from(stream);
    read.serialize(archive);
    optimizer_ = std::make_unique<O>(stepped_, read);
  }

  /// Steps the parameters that have a gradient in the context.
  void step(const AutogradContext& context) {
    const std::lock_guard own(mutex_);
    std::vector<std::unique_lock<std::mutex>> locks;
    for (const auto& one : locks_) locks.emplace_back(*one);
    for (size_t i = 0; i < parameters_.size(); ++i) {
      if (!stepped_[i].is_alias_of(parameters_[i])) stepped_[i].set_data(parameters_[i].variable_data());
      stepped_[i].mutable_grad() = context.gradient(parameters_[i]);
    }
    optim::optimizer_step(*optimizer_, {.fused = fused_});
    for (at::Tensor& one : stepped_) one.mutable_grad() = at::Tensor();
  }

 private:
  const bool fused_;
  std::mutex mutex_;  // an optimizer's own state
  std::vector<std::shared_ptr<std::mutex>> locks_;
  std::vector<at::Tensor> parameters_, stepped_;
  std::unique_ptr<O> optimizer_;
};

template <class Options>
std::string options_as_bytes(const Options& options) {
  torch::serialize::OutputArchive archive;
  options.serialize(archive);
  std::ostringstream stream;
  archive.save_to(stream);
  return stream.str();
}

}  // namespace detail

struct DistributedOptimizerOptions {
  /// If true, steps of the same parameters go one after the other, also those of other workers' optimizers. False:
  /// HogWild at the server.
  bool lock = true;
  /// PreparedOptimizerOptions::fused of the steps.
  bool fused = true;
};

/// O is an optimizer of torch::optim, or ApexAdam, ApexSgd, Lamb or NovoGrad of hasten::optim, whose headers the caller
/// includes. Norms over all gradients (LambOptions::max_grad_norm) are those of one owner. A step needs the
/// AutogradContext that its backward ran in.
template <class O>
class DistributedOptimizer {
 public:
  using Options = typename detail::OptionsOf<O>::type;
  /// Makes a local optimizer at each owner of a parameter. SGD, Adam, AdamW, Adagrad, RMSprop, ApexAdam, ApexSgd, Lamb
  /// and NovoGrad are served by every agent. Blocks: until the owners have them. Throws: UsageError (no
  /// parameters); RemoteError, CommError.
  DistributedOptimizer(const Agent& agent, const std::vector<RRef<at::Tensor>>& parameters, const Options& options,
                       const DistributedOptimizerOptions& how = {}) {
    if (parameters.empty()) throw UsageError({"rpc"}, "a DistributedOptimizer needs at least one parameter.");
    std::map<int, std::vector<RRef<at::Tensor>>> by_owner;
    for (const auto& one : parameters) by_owner[one.owner().id].push_back(one);
    const std::string bytes = detail::options_as_bytes(options);
    for (const auto& [owner, theirs] : by_owner)
      locals_.push_back(agent.remote<detail::LocalOptimizer<O>>(owner, theirs, bytes, how.lock, how.fused));
    for (const auto& local : locals_) local.ready().wait();
  }

  /// Steps all owners at once, with the gradients of `context`. Blocks: until all have stepped.
  /// Throws: one error that lists those of all owners.
  void step(const AutogradContext& context) const {
    std::vector<Future<void>> steps;
    for (const auto& local : locals_) steps.push_back(local.template async<&detail::LocalOptimizer<O>::step>(context));
    std::string problems;
    for (const auto& one : steps) {
      try {
        one.wait();
      } catch (const std::exception& error) {
        problems += std::string(problems.empty() ? "" : "; ") + error.what();
      }
    }
    if (!problems.empty()) throw CommError({"rpc"}, "step", "an optimizer's step failed: ", problems);
  }

 private:
  std::vector<RRef<detail::LocalOptimizer<O>>> locals_;
};

/// Serves DistributedOptimizer<O> of other workers. Agents serve those with OptionsOf by themselves.
template <class O>
Functions& add_optimizer(Functions& functions) {
  return functions.add_class<detail::LocalOptimizer<O>, std::vector<RRef<at::Tensor>>, std::string, bool, bool>()
      .template add<&detail::LocalOptimizer<O>::step>();
}

}  // namespace hasten::rpc
