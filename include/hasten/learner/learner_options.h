// The options of a Learner and of its calls, with fastai's names and defaults.
#pragma once

#include <array>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "hasten/learner/callback.h"
#include "hasten/learner/groups.h"
#include "hasten/learner/hypers.h"
#include "hasten/learner/loaders.h"
#include "hasten/learner/loss.h"
#include "hasten/learner/metric.h"
#include "hasten/learner/suggest.h"
#include "hasten/optim/fastai.h"

namespace hasten::learner {

struct LearnerOptions {
  /// Loss of the first output and the first target. Unset: Loaders::loss.
  Loss loss = {};
  /// In the place of `loss`: of all outputs and all targets.
  std::function<at::Tensor(const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& targets)>
      loss_of_all = {};
  optim::fastai::Factory opt_func = optim::fastai::adam();
  HyperValue lr = 1e-3;
  std::vector<Metric> metrics = {};
  Splitter splitter = one_group();
  Callbacks cbs = {};
  std::filesystem::path path = ".";
  std::filesystem::path model_dir = "models";
  /// TrainEval, Recorder and Progress.
  bool default_cbs = true;
  /// Weight decay of all fits; unset: the optimizer's.
  std::optional<double> wd = {};
  /// Weight decay also for norm layers and biases.
  bool wd_bn_bias = false;
  /// Norm layers train in frozen groups.
  bool train_bn = true;
  /// Momentum of fit_one_cycle: start, middle, end.
  std::array<double, 3> moms = {0.95, 0.85, 0.95};
  /// The world that fits train in outside a distributed context. Unset: this process alone.
  std::optional<Accelerator> accelerator = {};
};

struct FitOptions {
  std::optional<double> wd = {};
  /// For this fit only.
  Callbacks cbs = {};
  /// A new optimizer first.
  bool reset_opt = false;
  /// Earlier epochs are cancelled in before_epoch, so that schedules have the right position.
  int64_t start_epoch = 0;
  /// A folder of save_checkpoint: the fit goes on in mid-epoch. Empty: from the start.
  std::filesystem::path resume = {};
};

struct OneCycleOptions {
  double div = 25.0;
  double div_final = 1e5;
  double pct_start = 0.25;
  std::optional<double> wd = {};
  /// Unset: LearnerOptions::moms.
  std::optional<std::array<double, 3>> moms = {};
  Callbacks cbs = {};
  bool reset_opt = false;
  int64_t start_epoch = 0;
  std::filesystem::path resume = {};
};

struct FlatCosOptions {
  double div_final = 1e5;
  double pct_start = 0.75;
  std::optional<double> wd = {};
  Callbacks cbs = {};
  bool reset_opt = false;
  int64_t start_epoch = 0;
  std::filesystem::path resume = {};
};

struct SgdrOptions {
  int64_t cycle_mult = 2;
  std::optional<double> wd = {};
  Callbacks cbs = {};
  bool reset_opt = false;
  int64_t start_epoch = 0;
  std::filesystem::path resume = {};
};

struct FineTuneOptions {
  int64_t freeze_epochs = 1;
  double lr_mult = 100;
  /// pct_start of the epochs after unfreezing.
  double pct_start = 0.3;
  double div = 5.0;
  double div_final = 1e5;
  std::optional<double> wd = {};
  std::optional<std::array<double, 3>> moms = {};
  Callbacks cbs = {};
};

struct LrFindOptions {
  double start_lr = 1e-7;
  double end_lr = 10;
  /// At least 6; smaller values count as 6.
  int64_t num_it = 100;
  /// Stops when the smoothed loss is 4 times the best.
  bool stop_div = true;
  /// Empty: none are made.
  std::vector<Suggestion> suggest = {Suggestion::kValley};
  /// Writes lr_find.csv into LearnerOptions::path.
  bool write_csv = false;
};

struct LrFindResult {
  std::vector<double> lrs = {};
  /// Smoothed.
  std::vector<double> losses = {};
  std::map<std::string, double> suggestions = {};
  /// The first that was requested; 0 if none was.
  double valley = 0;
};

struct DistributedOptions {
  /// BatchNorm over all ranks, while it lasts.
  bool sync_bn = true;
  /// Order of the training data; validation shares samples in turns, each counted once.
  LoaderOrder order = LoaderOrder::kTurns;
};

struct LoadOptions {
  /// Optimizer state as well, if the file has it; unset: if there is an optimizer.
  std::optional<bool> with_opt = {};
  /// Missing and unexpected names are errors.
  bool strict = true;
};

}  // namespace hasten::learner
