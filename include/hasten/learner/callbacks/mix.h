// MixUp (Zhang, 2017) and CutMix (Yun, 2019): training on blends of samples.
//
// Draws come from a generator seeded by (seed, epoch, batch), so that a resumed fit draws the same. Where targets are
// classes losses are mixed, else targets.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>

#include "hasten/learner/callback.h"

namespace hasten::learner {

/// Random numbers that a batch is mixed with.
struct MixDraws {
  /// [samples] of Beta(alpha, alpha), or [1] for CutMix.
  at::Tensor beta = {};
  /// The sample that each one is mixed with.
  at::Tensor permutation = {};
  /// CutMix: the centre of the box.
  int64_t centre_x = 0, centre_y = 0;
};

/// The common part of MixUp and CutMix: the second target and its weight.
struct MixHandler : Callback {
  Phases phases() const override { return Phases::kTrain; }
  void before_fit(Learner& learn) override;
  void after_loss(Learner& learn) override;
  void after_cancel_fit(Learner& learn) override;
  void after_fit(Learner& learn) override;

  double alpha = 0.4;
  uint64_t seed = 0;
  /// In the place of own draws; for tests.
  std::function<MixDraws(const Learner&)> draws = {};
  /// The weight of a sample's own part, of the last batch.
  at::Tensor lam = {};

 protected:
  MixDraws draw(const Learner& learn, int64_t num_beta) const;
  void mix_targets(Learner& learn, const at::Tensor& permutation);
  at::Tensor other_target_ = {};
  bool mixes_losses_ = false;
};

/// Each sample is blended with another one: lerp(x[perm], x, max(lambda, 1 - lambda)).
struct MixUp : MixHandler {
  explicit MixUp(double strength = 0.4) { alpha = strength; }
  std::string_view name() const override { return "mixup"; }
  void before_batch(Learner& learn) override;
};

/// A box of another sample is pasted into each.
struct CutMix : MixHandler {
  explicit CutMix(double strength = 1.0) { alpha = strength; }
  std::string_view name() const override { return "cutmix"; }
  void before_batch(Learner& learn) override;
};

}  // namespace hasten::learner
