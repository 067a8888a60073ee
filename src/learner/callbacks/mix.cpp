// See learner/callbacks/mix.h.
#include "hasten/learner/callbacks/mix.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <cmath>

#include "hasten/learner/learner.h"

namespace hasten::learner {

void MixHandler::before_fit(Learner& learn) {
  mixes_losses_ = learn.loss_func() && learn.loss_func().class_targets();
}

MixDraws MixHandler::draw(const Learner& learn, int64_t num_beta) const {
  if (draws) return draws(learn);
  if (!(alpha > 0)) throw UsageError(Origin{"learner"}, name(), " with alpha ", alpha, "; expected above 0.");
  const auto& x = learn.inputs().front();
  // Ranks draw apart, epochs and batches too.
  const uint64_t key = seed + 0x9E3779B97F4A7C15ULL * (static_cast<uint64_t>(learn.accelerator().rank()) + 1) +
                       0xBF58476D1CE4E5B9ULL * static_cast<uint64_t>(learn.epoch()) +
                       0x94D049BB133111EBULL * static_cast<uint64_t>(learn.iter());
  auto generator = at::make_generator<at::CPUGeneratorImpl>(key);
  const auto concentration = at::full({num_beta}, alpha);
  const auto a = at::_standard_gamma(concentration, generator), b = at::_standard_gamma(concentration, generator);
  MixDraws result{.beta = a / (a + b), .permutation = at::randperm(x.size(0), generator)};
  if (x.dim() >= 2) {
    const auto place = at::rand({2}, generator);
    result.centre_x = static_cast<int64_t>(place[0].item<double>() * static_cast<double>(x.size(-1)));
    result.centre_y = static_cast<int64_t>(place[1].item<double>() * static_cast<double>(x.size(-2)));
  }
  return result;
}

void MixHandler::mix_targets(Learner& learn, const at::Tensor& permutation) {
  if (learn.targets().empty()) return;
  auto& y = learn.targets().front();
  const auto other = y.index_select(0, permutation);
  if (mixes_losses_) {
    other_target_ = other;
    return;
  }
  auto shape = std::vector<int64_t>(static_cast<size_t>(y.dim()), 1);
  if (lam.numel() > 1) shape[0] = lam.numel();
  y = at::lerp(other, y, lam.reshape(shape).to(y.scalar_type()));
}

void MixHandler::after_loss(Learner& learn) {
  if (!other_target_.defined() || !learn.training()) return;
  const auto& loss = learn.loss_func();
  const auto& p = learn.predictions().front();
  const auto own = loss.compute(p, learn.targets().front(), Reduction::kNone),
             other = loss.compute(p, other_target_, Reduction::kNone);
  // Values a pixel: every pixel of a sample has the sample's weight.
  auto weight = lam.to(own.scalar_type());
  if (weight.numel() > 1 && own.numel() != weight.numel())
    weight = weight.repeat_interleave(own.numel() / weight.numel());
  learn.loss_grad() = reduce_values(at::lerp(other, own, weight), loss.reduction());
  learn.loss() = learn.loss_grad().detach();
  other_target_ = at::Tensor();
}

void MixHandler::after_cancel_fit(Learner& /*learn*/) {
  other_target_ = at::Tensor();
}
void MixHandler::after_fit(Learner& /*learn*/) {
  other_target_ = at::Tensor();
}

void MixUp::before_batch(Learner& learn) {
  auto& x = learn.inputs().front();
  const auto own = draw(learn, x.size(0));
  const auto beta = own.beta.to(x.device());
  lam = at::maximum(beta, 1 - beta);
  const auto permutation = own.permutation.to(x.device());
  auto shape = std::vector<int64_t>(static_cast<size_t>(x.dim()), 1);
  shape[0] = lam.numel();
  x = at::lerp(x.index_select(0, permutation), x, lam.reshape(shape).to(x.scalar_type()));
  mix_targets(learn, permutation);
}

void CutMix::before_batch(Learner& learn) {
  auto& x = learn.inputs().front();
  if (x.dim() < 3)
    throw UsageError(Origin{"learner"}, "cutmix of inputs of shape ", x.sizes(),
                     "; expected images [batch, channels, height, width].");
  const auto own = draw(learn, 1);
  const int64_t width = x.size(-1), height = x.size(-2);
  const double side = std::sqrt(1 - own.beta.item<double>());
  const auto box = [side](int64_t centre, int64_t size) {
    const auto length = static_cast<int64_t>(std::nearbyint(static_cast<double>(size) * side));
    return std::pair{std::clamp<int64_t>(centre - length / 2, 0, size),
                     std::clamp<int64_t>(centre + length / 2, 0, size)};
  };
  const auto [x1, x2] = box(own.centre_x, width);
  const auto [y1, y2] = box(own.centre_y, height);
  const auto permutation = own.permutation.to(x.device());
  const auto pasted = x.index_select(0, permutation).slice(-2, y1, y2).slice(-1, x1, x2);
  x = x.clone();
  x.slice(-2, y1, y2).slice(-1, x1, x2).copy_(pasted);
  lam =
      at::full({1}, 1 - static_cast<double>((x2 - x1) * (y2 - y1)) / static_cast<double>(width * height), x.options());
  mix_targets(learn, permutation);
}

}  // namespace hasten::learner
