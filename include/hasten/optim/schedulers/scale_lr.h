// scale_lr: the learning rate for a global batch that grows with the number of processes.
#pragma once

namespace hasten::optim {

/// How the rate follows the batch size. Linear: Goyal et al., "Accurate, Large Minibatch SGD", 2017, for SGD
/// up to some thousand samples, with a warm-up (warmup.h). Square root: Krizhevsky, "One weird trick for
/// parallelizing convolutional neural networks", 2014; for Adam and its kin Malladi et al., "On the SDEs and
/// Scaling Rules for Adaptive Gradient Algorithms", 2022.
enum class LrScaling { kLinear, kSquareRoot };

/// Returns the rate for `world_size` times the batch that `base` is meant for: base * world_size, or base *
/// sqrt(world_size). With split_batches the global batch does not grow, and nothing is to be scaled.
/// Throws: UsageError if base is not above 0, or world_size < 1.
double scale_lr(double base, int world_size, LrScaling rule = LrScaling::kLinear);

}  // namespace hasten::optim
