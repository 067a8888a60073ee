// MixedPrecision: the precision of an Accelerator. It has the scopes of its models, the loss scale, and clipping with
// both. The front door forwards here.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "hasten/accelerator/options.h"
#include "hasten/core/env.h"
#include "hasten/core/log.h"
#include "hasten/optim/prepared/low_weights.h"
#include "hasten/parallel/ddp/distributed_models.h"
#include "hasten/parallel/join/join.h"
#include "hasten/parallel/parameters/forward_scope.h"
#include "hasten/precision/autocast.h"
#include "hasten/precision/window_scaler.h"
#include "hasten/process/process.h"
#include "hasten/training/gradient_state.h"

namespace hasten {

class MixedPrecision : public std::enable_shared_from_this<MixedPrecision> {
 public:
  /// Made by a shared_ptr: prepared objects may outlive it, and then work without it.
  MixedPrecision(const AcceleratorOptions& options, const Environment& environment, const process::Process& process,
                 std::shared_ptr<training::GradientState> gradients, const parallel::DistributedModels& models,
                 Logger log);

  precision::Precision precision() const noexcept { return resolved_.precision; }
  /// Returns the scopes of a module, made at the first call. All handles of a module share them.
  std::shared_ptr<parallel::ForwardScopes> scopes(torch::nn::Module& module);
  precision::Autocast autocast(const std::optional<precision::AutocastOptions>& options) const;
  /// Begins to scale losses, if the precision requires it. Call it once, before anything is prepared. `sharded`:
  /// gradients are whole on no rank, so overflows are always counted over all. `model`: the ranks that hold parts of
  /// one model.
  void start(const AcceleratorOptions& options, parallel::OptimizerRegistry& registry, bool sharded,
             const comm::Group& model);
  /// Null unless losses are scaled.
  precision::WindowScaler* scaler() const noexcept { return scaler_.get(); }
  /// Returns the scaler once pending updates of the scale are in; null unless losses are scaled.
  const precision::GradScaler* settled_scaler() const;
  /// Nothing unless losses are scaled.
  std::optional<precision::GradScalerState> scaler_state() const;
  /// Throws: UsageError if losses are not scaled, or for a state that does not fit.
  void load_scaler_state(const precision::GradScalerState& state) const;

  /// Casts buffers (PrecisionOptions::buffers). Weights below float32: gives all ranks rank 0's values, then converts
  /// the module. Nothing for Weights::kParameter.
  /// Collective: yes, there. Throws: as LowWeights::convert.
  void convert(torch::nn::Module& module);
  const std::shared_ptr<optim::LowWeights>& low_weights() const noexcept { return low_weights_; }
  /// Refuses what leaves the rest of such weights behind (averages, loops of uneven length). Throws: UsageError.
  void require_whole_weights(const char* what) const;
  void add(const std::shared_ptr<torch::optim::Optimizer>& optimizer);
  at::Tensor begin_backward(const at::Tensor& loss);
  /// Begins backwards that multiply losses by themselves: returns the scale, 1 if there is none.
  double begin_scaled();
  /// Unscales, then calls `clip`, which gives the norm before. In the middle of a window it only measures.
  double clip_grad_norm_(const std::vector<at::Tensor>& parameters, double norm_type,
                         const std::function<double()>& clip);
  /// All ranks go on with the least of their scales: those that skipped on their own have parted. Collective: yes.
  void share_least_scale();
  /// Divides the gradients of these parameters' owners by the scale, before something else is done with them.
  void unscale(const std::vector<at::Tensor>& parameters);
  /// The same for one optimizer, and for all. Nothing unless losses are scaled.
  void unscale(torch::optim::Optimizer& optimizer);
  void unscale_all();

 private:
  class AutocastHook;
  struct CastsHook;
  struct Fp8Windows;
  struct JoinedScaler;
  int64_t sum_overflows(const torch::optim::Optimizer& optimizer, int64_t own) const;
  std::string name_of(const at::Tensor& parameter) const;
  void mark(torch::nn::Module& module, parallel::ForwardScopes& scopes);
  void warn_of_unsupported(const torch::nn::Module& module) const;

  precision::PrecisionOptions options_;
  precision::AutocastOptions autocast_;
  precision::Fp8Options fp8_;
  precision::ResolvedPrecision resolved_;
  c10::Device device_;
  comm::Group group_, model_group_;
  std::shared_ptr<training::GradientState> gradients_;
  const parallel::DistributedModels* models_;
  Logger log_;
  std::shared_ptr<precision::WindowScaler> scaler_;
  bool sharded_ = false;
  std::shared_ptr<JoinedScaler> joined_;
  std::shared_ptr<AutocastHook> hook_;
  std::shared_ptr<optim::LowWeights> low_weights_;
  std::shared_ptr<Fp8Windows> fp8_windows_;
  std::map<const torch::nn::Module*, std::weak_ptr<parallel::ForwardScopes>> scopes_;
};

}  // namespace hasten
