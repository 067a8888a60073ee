// fastai's vision_learner: a Learner over a ResNet with its head, groups and weights.
#pragma once

#include <cstdint>
#include <string>

#include "hasten/learner/learner.h"
#include "hasten/models/resnet.h"

namespace hasten::learner {

struct VisionLearnerOptions {
  /// Weights of the body, in torchvision's names: what pretrained_path takes. Empty: drawn.
  std::string weights = {};
  /// SHA-256 of `weights`, if they are an address.
  std::string sha256 = {};
  /// The body's and the head's settings (fastai's concat_pool, ps, lin_ftrs).
  models::ResNetOptions model = {};
  /// loss unset: the loaders', else cross entropy. Groups: body, late body, head.
  LearnerOptions learner = {.splitter = models::resnet_groups};
};

/// Returns a Learner over models::resnet(layers), with as many scores as the loaders have classes. With weights its
/// body is frozen, as in fastai: fine_tune trains the head, then everything. Blocks: on the weights.
/// Throws: UsageError for loaders without classes, or another number of layers; DataError for weights that lack a
/// tensor of the body, naming it; as pretrained_path and checkpoint::load_weights.
Learner vision_learner(Loaders loaders, int64_t layers = 34, VisionLearnerOptions options = {});

}  // namespace hasten::learner
