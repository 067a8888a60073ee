// backward: loss.backward() through several distributed models, and on ranks that differ.
//
// A model's exchange is set off by its gradients. A rank whose backward passes the model by would leave the others
// waiting. Here every rank calls for every batch, so that a rank can join an exchange without gradients. With one model
// it always does. With several, the ranks first exchange which models their losses depend on (a walk over the graph,
// and one small all-reduce).
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "hasten/comm/group/group.h"
#include "hasten/parallel/ddp/ddp.h"
#include "hasten/training/joinable.h"

namespace hasten::parallel {

struct BackwardOptions {
  /// The gradient of `loss`, of its shape; needed where it is no scalar.
  at::Tensor gradient = {};
  /// As torch::Tensor::backward.
  std::optional<bool> retain_graph = {};
  bool create_graph = false;
  /// How much the loss counts, where it is a mean: its number of samples or tokens, 0 for none. Gradients
  /// become the mean over all ranks and batches of a window, by weight, and the loss is not divided by the
  /// number of batches. Every backward of a window has one, on every rank, or none has. Until the window's
  /// last exchange gradients are sums of this rank's, each times its weight.
  std::optional<double> weight = {};
};

/// The Accelerator's additions.
struct BackwardContext {
  Ddp::Models models = {};
  comm::Group group = {};
  /// Batches of a window, by which a loss without a weight is divided.
  int64_t num_batches = 1;
  /// Whether this batch is the window's last.
  bool ends_window = true;
  /// Steps of prepared optimizers so far, and how often they forgot gradients.
  int64_t optimizer_calls = 0;
};

/// Where all weights of a window are zero, gradients become undefined on every rank.
/// Collective: yes, unless all models are held back. Blocks: until gradients have been exchanged. Throws: UsageError
/// for an undefined loss, a weight that is negative or not finite, or weights on some backwards only; UsageError for a
/// loss that depends on no parameter on any rank; CommError; the exceptions of autograd.
void backward(const at::Tensor& loss, const BackwardOptions& options, const BackwardContext& context);

/// The name of distributed models in a loop of uneven length (training/joinable.h), and of their operations.
inline constexpr const char *kModelsComponent = "models", *kBackward = "backward", *kAverage = "average";

/// The call that a rank with data notifies before a backward; flags by model.
struct BackwardCall {
  /// Whether the batch is the window's last.
  bool ends_window = true;
  std::vector<bool> held = {}, local_sgd = {};

  /// Returns the call of the backward that a context describes.
  static BackwardCall of(const BackwardContext& context);
  training::JoinCall encode() const;
  static BackwardCall decode(const training::JoinCall& call);
};

/// Which ranks have data in the next exchanges: the first that has, whose buffers all get (rank 0 otherwise), and
/// whether all have. Those without take no steps, so parameters are not compared meanwhile.
void set_active(const Ddp& model, int first, bool all) noexcept;
/// Applies the call that all have agreed on, on a rank with data: its batch ends the window only if that of
/// all does. Returns the models that are held back then, though not yet on this rank.
Ddp::Models keep_window_open(const training::JoinCall& call, BackwardContext& context);
/// Applies it on a rank without data: completes `context`, drops gradients that a window before has left,
/// and returns the models that are held back.
Ddp::Models prepare_shadow(const BackwardCall& call, BackwardContext& context);

}  // namespace hasten::parallel
