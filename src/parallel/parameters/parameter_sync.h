// Making the ranks' copies of a module equal: the check that they can be, and the copy from rank 0.
#pragma once

#include <torch/nn/module.h>

#include <optional>
#include <string>
#include <vector>

#include "hasten/comm/group/group.h"

namespace hasten::parallel {

/// One line for each parameter and buffer: "weight: parameter Float [10, 64]".
std::vector<std::string> describe_module(const torch::nn::Module& module);

/// Returns the first difference between rank 0's description and another's, as a sentence. Nothing if all are equal.
std::optional<std::string> first_difference(const std::vector<std::vector<std::string>>& by_rank);

/// Collective: yes. Blocks: yes. Throws: UsageError on every rank, naming the first difference and the ranks.
void check_same_module(const torch::nn::Module& module, const comm::Group& group);

/// Gives every rank root's values; few large messages of bytes, whatever the dtypes.
/// Collective: yes. Blocks: yes. Throws: CommError.
void broadcast_tensors(const std::vector<at::Tensor>& tensors, const comm::Group& group, int root = 0);

/// The tensors become the mean over the ranks on which `took_part`, on all ranks. If it did on none, and for those of
/// integers, they stay. A single message serves all of a dtype and device.
/// Collective: yes. Blocks: yes. Throws: CommError.
void average_tensors(const std::vector<at::Tensor>& tensors, const comm::Group& group, bool took_part);

/// Compares sums over the bits of every parameter. Collective: yes. Blocks: yes. Throws: UsageError on every rank,
/// naming the first parameter that differs and the ranks that have another than rank 0; `inside`: values were changed
/// inside a window of accumulation, which names the cause.
void check_equal_parameters(const torch::nn::Module& module, const comm::Group& group, bool inside = false);

/// The same of parameters and buffers, for ranks that were to hold equal values from the start.
/// Collective: yes. Blocks: yes. Throws: UsageError on every rank, naming the first difference and the ranks.
void check_equal_states(const torch::nn::Module& module, const comm::Group& group);

/// Returns the tensors' bytes one after the other.
at::Tensor pack_bytes(const std::vector<at::Tensor>& tensors);
void unpack_bytes(const at::Tensor& bytes, const std::vector<at::Tensor>& tensors);
/// Starts the broadcast of packed buffers. Collective: yes. Throws: CommError.
comm::Work<> broadcast_packed(const at::Tensor& bytes, const comm::Group& group, int root);

}  // namespace hasten::parallel
