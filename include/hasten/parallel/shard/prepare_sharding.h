// Sharding in a front door that may have it or not: null means that nothing is split.
#pragma once

#include <memory>
#include <vector>

#include "hasten/optim/steps/optimizer_step.h"
#include "hasten/parallel/ddp/ddp.h"
#include "hasten/parallel/shard/sharding.h"
#include "hasten/precision/policy.h"
#include "hasten/training/gradient_state.h"

namespace hasten::parallel {

/// Null for ShardStage::kNone, and in a world of one unless state or parameters rest in files. Prepared optimizers that
/// share `gradients` step in it, by the kernels that `optimizer` allows. `always`: also for kNone, since options will
/// change. Collective: no (the steps are). Throws: as Sharding's constructor.
std::shared_ptr<Sharding> make_sharding(const comm::Group& group, const ShardOptions& options,
                                        training::GradientState& gradients,
                                        const optim::PreparedOptimizerOptions& optimizer, bool always = false);

/// Gives models that are prepared from now on one copy a host of their parameters in autocast's dtype, instead of one a
/// rank. ShardOptions::param_dtype overrides it.
void share_casts(const std::shared_ptr<Sharding>& sharding, precision::Precision precision);

/// The step of a prepared optimizer on slices, with gradients that count `factor` times.
/// Collective: yes. Blocks: until all ranks have stepped. Throws: as Sharding::step.
void step_slices(Sharding& sharding, torch::optim::Optimizer& optimizer, double factor,
                 const optim::PreparedOptimizerOptions& options);

/// Returns the options of a model's Ddp.
DdpOptions with_sharding(DdpOptions options, const std::shared_ptr<Sharding>& sharding);

/// Returns true if backwards inside a window of accumulation exchange their gradients.
bool exchanges_each_backward(const std::shared_ptr<Sharding>& sharding) noexcept;

/// torch's functions of these names, on split gradients too.
/// Collective: where something is split. Blocks: then. Throws: CommError.
double clip_grad_norm_(const std::shared_ptr<Sharding>& sharding, const std::vector<at::Tensor>& parameters,
                       double max_norm, double norm_type);
void clip_grad_value_(const std::shared_ptr<Sharding>& sharding, const std::vector<at::Tensor>& parameters,
                      double limit);
/// Returns true if all gradients of these parameters are finite, on all ranks where something is split.
/// Collective: there. Blocks: there. Throws: CommError.
bool has_finite_gradients(const std::shared_ptr<Sharding>& sharding, const std::vector<at::Tensor>& parameters);

}  // namespace hasten::parallel
