// Checkpoint folders of Megatron-LM: weights of GPT, Llama, BERT and T5, whole and under transformers' names.
//
// Layout: `latest_checkpointed_iteration.txt` names the iteration; iter_NNNNNNN/mp_rank_TT[_PPP]/model_optim_rng.pt
// holds the parts of tensor rank TT and stage PPP, or iter_NNNNNNN is a folder of DCP (torch_dist).
// docs/formats/megatron.md describes both.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "hasten/core/value.h"
#include "hasten/files/base/tensor_source.h"
#include "hasten/files/python/python_value.h"

namespace hasten::files {

/// Names and layouts of the weights.
enum class MegatronNames {
  kModel,  ///< transformers' names; linear layers of GPT-2 are [out, in], as models/gpt2.h has them
  /// As transformers' files have them: linear layers of GPT-2 are [in, out]. open_source's form megatron_transformers.
  kTransformers,
  /// Megatron-Core's own, whole, with layers numbered over all stages. open_source's form megatron_own.
  kMegatron,
};

struct MegatronOptions {
  /// A folder ("iter_0001000", "release") or a number; "": the one that latest_checkpointed_iteration.txt names.
  std::string tag = {};
  MegatronNames names = MegatronNames::kModel;
  /// Megatron's arguments that count before those in the files, for files without any: {"num_attention_heads": 12}.
  core::Value arguments = core::Value::map();
  /// Reads the optimizer's state as well; refused where its parameters have no names.
  bool optimizer = false;
};

/// Parameters of the optimizer with the same options.
struct MegatronGroup {
  /// Megatron's own: lr, betas, eps, weight_decay, wd_mult …
  PythonValue options = {};
  std::vector<std::string> parameters = {};
};

struct MegatronOptimizer {
  int64_t step = 0;
  std::vector<MegatronGroup> groups = {};
  /// By slot ("exp_avg", "exp_avg_sq", "momentum_buffer"): tensors under the names of the weights, cut and joined as
  /// these. Empty if the folder holds no state.
  std::map<std::string, TensorSourcePtr> slots = {};
  /// The weights in float32, where the run kept them beside others of lower precision; else null.
  TensorSourcePtr exact_weights = {};
};

struct MegatronFolder {
  std::string tag = {};
  int64_t iteration = 0;
  /// Ranks whose files were joined; 1 for torch_dist, which any ranks write.
  int64_t tp = 1, pp = 1;
  /// Numbers, texts and flags among the arguments of the run.
  core::Value arguments = core::Value::map();
  /// transformers' model_type: "gpt2", "llama", "bert", "megatron-bert" (norms before the layers) or "t5"; "" with
  /// kMegatron.
  std::string model = {};
  TensorSourcePtr weights = {};
  /// With MegatronOptions::optimizer.
  MegatronOptimizer optimizer = {};
};

/// Opens FOLDER or FOLDER/iter_NNNNNNN.
/// Experts, models that transformers lacks, and arguments that change what weights mean are refused by name.
/// Blocks: on the headers of all files. Throws: UsageError if there is no such folder or iteration, for an argument of
/// `options` that is not used, or a model without a counterpart; UsageError for an optimizer whose parameters have no
/// names; DataError if a rank's folder is missing, or its tensors do not go together with the other ranks' or with the
/// arguments.
MegatronFolder open_megatron_folder(const std::string& folder, const MegatronOptions& options = {});

/// Returns true if `folder` has latest_checkpointed_iteration.txt, folders mp_rank_*, or a metadata.json of
/// Megatron's.
bool is_megatron(const std::string& folder);

}  // namespace hasten::files
