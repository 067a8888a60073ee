// Capture: a rank's part of a save: pieces with global names, and plain values beside them.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "checkpoint/save/save_plan.h"
#include "hasten/checkpoint/checkpoints.h"
#include "hasten/checkpoint/optimizer_state.h"

namespace hasten::checkpoint {

struct Capture {
  std::vector<PieceInfo> infos = {};
  /// The values, one for each info; the run's own memory.
  std::vector<at::Tensor> data = {};
  /// Equal on all ranks, or rank 0's.
  core::Value parts = core::Value::map();
  /// Values that this rank alone has.
  core::Value own_parts = core::Value::map();
  /// Cut parameters by name in the manifest. Their piece in `infos` is the whole one, and `data` has this rank's part.
  /// The writer gathers it, and all ranks of the cut take part.
  std::unordered_map<std::string, at::Tensor> cut = {};
  /// Names whose tensor is stored under another name.
  std::vector<std::pair<std::string, std::string>> tied = {};

  void add(PieceInfo info, at::Tensor tensor) {
    infos.push_back(std::move(info));
    data.push_back(std::move(tensor));
  }
};

/// Returns the run's models in order of preparation.
std::vector<ModelEntry> models_of(const RunParts& run);
/// Names of parameters over all models, as the manifest has them.
ParameterNames manifest_names(const RunParts& run);

/// True for classes whose state is stepped in slices. Others step whole parameters, dealt to the ranks. `type`: a
/// codec's name.
bool steps_in_slices(const std::string& type);

/// `writer`: this rank's number among those that write one folder together, from 0. The first one provides the pieces
/// without equal copies on all ranks. Throws: UsageError for an optimizer whose state
/// cannot be split; the exceptions of a registered object's state().
Capture capture_state(const RunParts& run, const std::vector<ModelEntry>& models, int writer);

/// Returns the key of a kind in the manifest: "optimizers", "schedulers", "loaders", "scaler", "custom".
std::string part_name(training::StateKind kind);
/// "optimizer.0.weight.exp_avg"
std::string state_name(const std::string& kind, const std::string& object, const std::string& path);

/// Returns the name of the generator's state of a pipeline's rank.
std::string stage_random_name(int64_t stream, int stage_rank, size_t model);

/// Returns a state that is not stored slot by slot: libtorch's archive of the optimizer in bytes.
at::Tensor archive_of(const torch::optim::Optimizer& optimizer);
void load_archive(torch::optim::Optimizer& optimizer, const at::Tensor& bytes);

}  // namespace hasten::checkpoint
