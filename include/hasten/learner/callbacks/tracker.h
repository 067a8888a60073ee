// Callbacks that watch a column of the table: SaveModel, EarlyStopping, ReduceLROnPlateau.
//
// Values are the same on all ranks (metrics are summed over them), and rank 0's value decides, so that ranks never
// diverge.
#pragma once

#include <limits>
#include <optional>
#include <string>

#include "hasten/learner/callback.h"

namespace hasten::learner {

/// When a monitored value counts as better.
enum class Better { kLess, kGreater };

struct TrackerOptions {
  /// A column of the table.
  std::string monitor = "valid_loss";
  /// Unset: kLess if the name has "loss" or "error".
  std::optional<Better> comp = {};
  /// Better by less than this is no better.
  double min_delta = 0.0;
  /// The best value is forgotten when a fit begins.
  bool reset_on_fit = true;
};

/// Keeps the best value of a column.
struct TrackerCallback : Callback {
  explicit TrackerCallback(TrackerOptions given = {});
  std::string_view name() const override { return "tracker"; }
  int order() const override { return 60; }
  PassSet passes() const override { return passes_of(PassKind::kFit); }
  bool removed_for_predictions() const override { return true; }
  void before_fit(Learner& learn) override;
  void before_train(Learner& learn) override;
  void after_epoch(Learner& learn) override;
  core::Value state() const override;
  void load_state(const core::Value& state) override;

  TrackerOptions options;
  double best = 0;
  bool new_best = false;

 protected:
  bool is_better(double value) const;
  double worst() const;
  /// A row was written in this epoch.
  bool has_row = false;
  /// A validation alone is no epoch.
  bool trained = false;
};

struct SaveModelOptions {
  std::string monitor = "valid_loss";
  std::optional<Better> comp = {};
  double min_delta = 0.0;
  bool reset_on_fit = true;
  std::string fname = "model";
  /// Saves FNAME_EPOCH where the epoch is a multiple, in the place of the best; 0: not.
  int64_t every_epoch = 0;
  /// Saves at the end of the fit, in the place of loading the best.
  bool at_end = false;
  bool with_opt = false;
};
/// Saves the best weights and loads them at the end of the fit.
struct SaveModel : TrackerCallback {
  /// Throws: UsageError for every_epoch with at_end.
  explicit SaveModel(SaveModelOptions given = {});
  std::string_view name() const override { return "save_model"; }
  int order() const override { return 61; }
  void before_fit(Learner& learn) override;
  void after_epoch(Learner& learn) override;
  void after_fit(Learner& learn) override;
  SaveModelOptions save;
  bool saved = false;
};

struct EarlyStoppingOptions {
  std::string monitor = "valid_loss";
  std::optional<Better> comp = {};
  double min_delta = 0.0;
  int64_t patience = 1;
  bool reset_on_fit = true;
};
/// Cancels the fit after `patience` epochs without a better value.
struct EarlyStopping : TrackerCallback {
  /// Throws: UsageError for a patience below 1.
  explicit EarlyStopping(EarlyStoppingOptions given = {});
  std::string_view name() const override { return "early_stopping"; }
  int order() const override { return 63; }
  void before_fit(Learner& learn) override;
  void after_epoch(Learner& learn) override;
  core::Value state() const override;
  void load_state(const core::Value& state) override;
  int64_t patience;
  int64_t wait = 0;
  /// The epoch of the last improvement when it stopped; unset if it did not stop.
  std::optional<int64_t> no_improvement_since = {};
};

struct ReduceLROnPlateauOptions {
  std::string monitor = "valid_loss";
  std::optional<Better> comp = {};
  double min_delta = 0.0;
  int64_t patience = 1;
  double factor = 10.0;
  double min_lr = 0.0;
  bool reset_on_fit = true;
};
/// Divides all groups' rates by `factor` after `patience` epochs without a better value, down to min_lr.
struct ReduceLROnPlateau : TrackerCallback {
  /// Throws: UsageError for a patience below 1 or a factor not above 1.
  explicit ReduceLROnPlateau(ReduceLROnPlateauOptions given = {});
  std::string_view name() const override { return "reduce_lr_on_plateau"; }
  int order() const override { return 62; }
  void before_fit(Learner& learn) override;
  void after_epoch(Learner& learn) override;
  core::Value state() const override;
  void load_state(const core::Value& state) override;
  ReduceLROnPlateauOptions plateau;
  int64_t wait = 0;
};

}  // namespace hasten::learner
