// Options and results of a Learner's evaluation.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "hasten/learner/callback.h"
#include "hasten/learner/loaders.h"

namespace hasten::learner {

struct ValidateOptions {
  /// 0: the training data in its order; 1: the validation data.
  int ds_idx = 1;
  /// In their place.
  std::optional<Loader> loader = {};
  Callbacks cbs = {};
};

struct PredsOptions {
  int ds_idx = 1;
  std::optional<Loader> loader = {};
  bool with_input = false;
  bool with_decoded = false;
  /// A loss a sample.
  bool with_loss = false;
  bool with_preds = true;
  bool with_targs = true;
  /// In the place of the loss's activation.
  std::function<at::Tensor(const at::Tensor&)> act = {};
  /// Called from a callback inside a fit: no events of fit and epoch.
  bool inner = false;
  /// Training data: in the dataset's order. False: as the sampler gives them.
  bool reorder = true;
  /// Folders for a file a batch, as fastai writes it: named by the batch's number, in torch.save's format, outputs
  /// without activation. Rank 0 writes. What memory does not hold needs with_preds or with_targs off. Empty: no files.
  std::filesystem::path save_preds = {};
  std::filesystem::path save_targs = {};
  int64_t concat_dim = 0;
  Callbacks cbs = {};
};

/// Undefined if not requested.
struct Predictions {
  /// The first input.
  at::Tensor inputs = {};
  /// Activated.
  at::Tensor preds = {};
  at::Tensor targets = {};
  at::Tensor decoded = {};
  at::Tensor losses = {};
};

struct Prediction {
  /// The class's name, or the decoded value as text.
  std::string decoded = {};
  /// The decoded value: for classes their index.
  at::Tensor label = {};
  at::Tensor probabilities = {};
};

struct TtaOptions {
  int64_t n = 4;
  double beta = 0.25;
  /// The element-wise maximum in the place of means.
  bool use_max = false;
  int ds_idx = 1;
  std::optional<Loader> loader = {};
};

}  // namespace hasten::learner
