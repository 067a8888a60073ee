// Graphs and embeddings for TensorBoard: `accelerator.trackers().log_graph(tracking::graph_of(net))`.
//
// torch::nn modules cannot be traced. Two graphs can be had of them: the tree of modules, and the operations that
// autograd has recorded for a result. `log_graph` takes either; the last one given is the one that TensorBoard shows.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "hasten/tracking/journal/value.h"

namespace torch::nn {
class Module;
}

namespace hasten::tracking {

/// Returns the tree of a module: a node for each module, parameter and buffer, named by its path
/// ("net/encoder/0/weight"). A node's operation is the class, or "Parameter" and its shape. A module's inputs are its
/// parameters, buffers and submodules.
std::vector<GraphNode> graph_of(const torch::nn::Module& module);

/// Returns the operations that autograd has recorded for `result`, from the parameters on. A node's inputs are the
/// nodes whose results it took. Parameters of `names` have their names; other leaves are "leaf/N".
/// Throws: UsageError if nothing was recorded (no_grad, or a result that needs no gradient).
std::vector<GraphNode> graph_of(const at::Tensor& result, const torch::nn::Module& names);
std::vector<GraphNode> graph_of(const at::Tensor& result);

/// Returns points for log_embedding. `points`: [number, dims] of any dtype and device. `labels`: none, or one for each
/// point. `images`: none, or [number, channels, height, width] as log_images takes them.
/// Blocks: for a copy to the CPU. Throws: UsageError for other shapes.
Embedding embedding_of(const at::Tensor& points, const std::vector<std::string>& labels = {},
                       const at::Tensor& images = {});

}  // namespace hasten::tracking
