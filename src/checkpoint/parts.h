// Parameters that are cut over ranks, as saved states see them: files hold whole tensors or boxes of them, and a rank
// has parts.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "checkpoint/parameter_places.h"
#include "hasten/checkpoint/checkpoints.h"
#include "hasten/checkpoint/optimizer_state.h"
#include "hasten/checkpoint/state_dict.h"

namespace hasten::checkpoint {

/// Returns a module's state_dict in which a parameter that is cut or on a stage is the parameter itself, so this rank's
/// part.
StateDict parts_dict(const torch::nn::Module& module, const std::vector<std::string>& exclude = {});

/// True if a model of the run is cut over ranks or on stages.
bool has_parts(const RunParts& run);

/// True if a parameter is cut over ranks or on a stage.
bool is_part(const at::Tensor& parameter);

/// True if this rank counts for a parameter: it holds a part, or is the first of the ranks that hold it whole. Only
/// ranks of the parameter's first stage count. Ranks of one model may have slices of different bounds of a whole
/// parameter.
bool counts_for(const RunParts& run, const at::Tensor& parameter);

/// The number of this rank's random stream, which the ranks of a model share, and how many there are.
int stream_of(const RunParts& run);
int num_streams(const RunParts& run);
/// The first of the ranks that share this rank's stream.
int first_rank_of_stream(const RunParts& run);

/// Makes tensors of whole parameters' sizes those of the parts that `places` hold, without those of other stages, or
/// the opposite. Collective: gather, over the ranks of the cuts and stages. Blocks: then. Throws: CommError.
void cut_state(OptimizerState& state, const std::vector<Place>& places);
void gather_state(OptimizerState& state, const std::vector<Place>& places);

/// Keeps this rank's slices of the state of parameters that ranks step in slices, flat and in the order of memory.
void keep_own_slices(const RunParts& run, const torch::optim::Optimizer& optimizer, OptimizerState& state,
                     const std::vector<Place>& places);
/// Options for state in slices, or whole, that only the optimizer uses from here on.
LoadOptimizerOptions options_for_own_state(const RunParts& run, const torch::optim::Optimizer& optimizer);

/// Throws: UsageError for an optimizer of cut parameters whose state has no known parts.
void require_known_parts(const RunParts& run, const torch::optim::Optimizer& optimizer, const char* what);

}  // namespace hasten::checkpoint
