// backward: loss.backward() through several distributed models, and on ranks that differ.
//
// A model's exchange is set off by its gradients, so a rank whose backward passes the model by would leave
// the others waiting. Here every rank calls for every batch, so that a rank can join an exchange without
// gradients: with one model always, with several after the ranks have said which models their losses depend
// on (a walk over the graph, and one small all-reduce).
#pragma once

#include <ATen/core/Tensor.h>

#include <nlohmann/json.hpp>
#include <optional>

#include "hasten/comm/group/group.h"
#include "hasten/parallel/ddp/ddp.h"

namespace hasten::parallel {

struct BackwardOptions {
  /// The gradient of `loss`, of its shape; needed where it is no scalar.
  at::Tensor gradient = {};
  /// As torch::Tensor::backward.
  std::optional<bool> retain_graph = {};
  bool create_graph = false;
  /// How much the loss counts, where it is a mean: over so many samples or tokens, 0 for none. Gradients
  /// become the mean over all ranks and batches of a window, by weight, and the loss is not divided by the
  /// number of batches. Every backward of a window has one, on every rank, or none has. Until the window's
  /// last exchange gradients are sums of this rank's, each times its weight.
  std::optional<double> weight = {};
};

/// What an Accelerator adds.
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
/// Collective: yes, unless all models are held back. Blocks: until gradients have been exchanged. Throws:
/// UsageError for an undefined loss, a weight that is negative or not finite, weights on some backwards only,
/// and a loss that depends on no parameter on any rank; CommError; what autograd throws.
void backward(const at::Tensor& loss, const BackwardOptions& options, const BackwardContext& context);

/// The key of what `describe` gives; its value is whether the batch is the window's last.
inline constexpr const char* kBackward = "backward";

/// In a loop of uneven length (join.h): what a rank announces before a backward.
/// Collective: no. Blocks: no. Throws: nothing.
nlohmann::json describe(const BackwardContext& context);
/// What a rank with data makes of the call that all have agreed on: its batch ends the window only if that of
/// all does. Gives the models that are held back then, though not yet on this rank. Collective: no. Blocks:
/// no. Throws: nothing.
Ddp::Models keep_window_open(const nlohmann::json& call, BackwardContext& context);
/// What a rank without data makes of it: completes `context`, drops gradients that a window before has left,
/// and gives the models that are held back. Collective: no. Blocks: no. Throws: nothing.
Ddp::Models read_description(const nlohmann::json& call, BackwardContext& context);

}  // namespace hasten::parallel
