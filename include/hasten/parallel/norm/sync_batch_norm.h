// SyncBatchNorm: batch normalisation over the batches of all ranks. Source: torch.nn.SyncBatchNorm; Ioffe and Szegedy
// 2015 over the global batch.
//
// No module is replaced, so types and state_dict names stay as they are. A tensor of each BatchNorm gets a spare
// dispatch key, which leads libtorch's batch_norm to this room whenever that module runs. The key:
// src/parallel/statistics/sync_group.h. The arithmetic: src/parallel/statistics/global_batch_norm.h.
#pragma once

#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <vector>

#include "hasten/comm/group/group.h"
#include "hasten/parallel/layout/layout.h"
#include "hasten/parallel/model/prepared_model.h"

namespace hasten::parallel {

/// Converts every BatchNorm1d, 2d and 3d in `model` (itself included). In training mode it then normalises with the
/// statistics of all ranks' batches together, [batch, channels, …]. Batch sizes may differ between ranks and be zero.
/// Output, gradients and running statistics equal those of one process with the concatenated batch. Gradients of weight
/// and bias are this rank's share, which Ddp averages with all others. In eval mode, and in a world of one, a BatchNorm
/// is what it was. Forward and backward in training mode become collective, over connections of their own, and throw
/// CommError. A rank may have one value a channel, if all together have more. Without running statistics
/// (track_running_stats(false)) libtorch's module refuses such a batch itself.
///
/// Before or after prepare. `to`, `clone` and torch::load keep the mark. Tensor::set_data with another tensor loses it.
/// The next backward through the module's weight then throws, naming the module, and converting again mends it. Without
/// a weight (affine(false)) that cannot be detected.
///
/// Collective: yes. Blocks: yes. Throws: UsageError for a BatchNorm without any tensor to carry the mark (neither
/// affine nor track_running_stats), naming it, also in a world of one; UsageError for models that differ between the
/// ranks; UsageError if the group has ranks that hold parts of one model (tp, pp); CommError.
void convert_sync_batchnorm(torch::nn::Module& model, const comm::Group& group);

/// The same for holders (TORCH_MODULE) and shared pointers.
template <class M>
  requires detail::is_module_pointer<M>::value
void convert_sync_batchnorm(M model, const comm::Group& group) {
  convert_sync_batchnorm(static_cast<torch::nn::Module&>(module_of(model)), group);
}

/// Returns the part of `group` in which `size` neighbouring ranks normalise together (Apex's
/// create_syncbn_process_group), for convert_sync_batchnorm. Collective: yes. Blocks: yes. Throws: UsageError if `size`
/// does not divide the world; CommError.
comm::Group create_syncbn_process_group(const comm::Group& group, int size);

/// For prepare of a model that several ranks hold (Layout::divides_model), which have one batch together. BatchNorms
/// that were converted over all ranks normalise over layout.data() from now on. Those of ranks within data() stay as
/// they are. Collective: yes, if any was converted. Blocks: then. Throws: UsageError for the ranks of one model;
/// CommError.
void fit_sync_batchnorm(torch::nn::Module& model, const Layout& layout, const comm::Group& everyone);

/// Undoes convert_sync_batchnorm on this rank: every BatchNorm in `model` normalises with its own batch again. Nothing
/// for modules that were not converted.
void revert_sync_batchnorm(torch::nn::Module& model);

/// For loops in which ranks run out of batches at different times. While it exists, the model's synchronised BatchNorms
/// announce each exchange, so that a rank without a batch can take part. That is a small message more each. All ranks
/// make it, and let it go, at the same point of their program. Not for several at once over one model.
/// Accelerator::join_uneven_inputs makes one for all prepared models.
class UnevenBatchNorms {
 public:
  explicit UnevenBatchNorms(torch::nn::Module& model);
  /// For several models, whose parts may have been converted together or apart.
  explicit UnevenBatchNorms(const std::vector<torch::nn::Module*>& models);
  ~UnevenBatchNorms();
  UnevenBatchNorms(const UnevenBatchNorms&) = delete;
  UnevenBatchNorms& operator=(const UnevenBatchNorms&) = delete;

  /// Returns true if the model has none, so that no rank need answer.
  bool empty() const noexcept;

  /// For a rank that has run out; every rank calls it in the end. Statistics and gradients are then those of
  /// the ranks that have a batch, as if this one's were empty. It answers in threads of its own, and
  /// meanwhile runs `beside` in this one, which may answer other collectives: the connections are not theirs.
  /// The rank's own running statistics stay behind. Collective: yes. Blocks: until every rank has called it.
  /// Throws: UsageError if ranks with batches do different things; CommError; what beside throws. The
  /// BatchNorms' connections are then closed on this rank.
  void answer(const std::function<void()>& beside = [] {}) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hasten::parallel
