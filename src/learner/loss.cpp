// See loss.h.
#include "hasten/learner/loss.h"

#include <ATen/ATen.h>

#include "hasten/core/error.h"

namespace hasten::learner {
namespace {

int64_t aten(Reduction reduction) {
  return reduction == Reduction::kMean  ? at::Reduction::Mean
         : reduction == Reduction::kSum ? at::Reduction::Sum
                                        : at::Reduction::None;
}

struct Rows {
  at::Tensor predictions, classes;
};
/// [rows, classes] and [rows]: the class axis goes to the end, all others keep their order.
Rows flattened(const at::Tensor& prediction, const at::Tensor& target, int64_t axis) {
  // A move of the last axis to its place would cost a view in the forward pass and a node in the backward pass.
  const auto last = axis == -1 || axis == prediction.dim() - 1 ? prediction : prediction.movedim(axis, -1);
  const auto classes = target.scalar_type() == at::kLong ? target : target.to(at::kLong);
  return {last.dim() == 2 ? last : last.reshape({-1, last.size(-1)}),
          classes.dim() == 1 ? classes : classes.reshape({-1})};
}

at::Tensor weight_like(const at::Tensor& weight, const at::Tensor& prediction) {
  return weight.defined() ? weight.to(prediction.options()) : weight;
}

Loss class_loss(std::string name, const ClassLossOptions& options, Loss::Reducible compute) {
  const int64_t axis = options.axis;
  return Loss(Loss::Parts{.name = std::move(name),
                          .compute = std::move(compute),
                          .reduction = options.reduction,
                          .activation = [axis](const at::Tensor& x) { return at::softmax(x, axis); },
                          .decodes = [axis](const at::Tensor& x) { return x.argmax(axis); },
                          .class_targets = true});
}

at::Tensor ce(const at::Tensor& prediction, const at::Tensor& target, const ClassLossOptions& o, Reduction reduction) {
  const auto rows = flattened(prediction, target, o.axis);
  return at::cross_entropy_loss(rows.predictions, rows.classes, weight_like(o.weight, prediction), aten(reduction),
                                o.ignore_index);
}

struct Flat {
  at::Tensor predictions, targets;
};
Flat flat_floats(const at::Tensor& prediction, const at::Tensor& target) {
  return {prediction.reshape({-1}), target.reshape({-1}).to(prediction.scalar_type())};
}

at::Tensor dice_values(const at::Tensor& prediction, const at::Tensor& target, const DiceLossOptions& o) {
  const auto p = at::softmax(prediction, o.axis);
  const int64_t classes = prediction.size(o.axis);
  const auto squeezed = target.dim() == prediction.dim() && target.size(o.axis) == 1 ? target.squeeze(o.axis) : target;
  const auto t = at::one_hot(squeezed.to(at::kLong), classes).movedim(-1, o.axis).to(p.scalar_type());
  std::vector<int64_t> dims;
  for (int64_t i = 2; i < prediction.dim(); ++i) dims.push_back(i);
  const auto both = (p * t).sum(dims);
  const auto either = o.square_in_union ? (p.pow(2) + t).sum(dims) : (p + t).sum(dims);
  return 1 - (both * 2 + o.smooth) / (either + o.smooth);
}

}  // namespace

at::Tensor reduce_values(const at::Tensor& values, Reduction reduction) {
  return reduction == Reduction::kMean ? values.mean() : reduction == Reduction::kSum ? values.sum() : values;
}

Loss::Loss(Parts parts) : parts_(std::make_shared<const Parts>(std::move(parts))) {}

Loss::Loss(Function function)
    : Loss(Parts{
          .name = "own loss",
          .compute = [function = std::move(function)](const at::Tensor& p, const at::Tensor& t, Reduction r) {
            const auto value = function(p, t);
            if (r == Reduction::kNone && value.dim() == 0) {
              throw UsageError(
                  Origin{"learner"},
                  "a loss made from a function gives one number, where a value for each sample is needed "
                  "(MixUp, get_preds with losses). Use a loss of learner/loss.h, or return values unreduced and let "
                  "Loss::Parts reduce them.");
            }
            return reduce_values(value, r);
          }}) {}

at::Tensor Loss::operator()(const at::Tensor& prediction, const at::Tensor& target) const {
  return parts_->compute(prediction, target, parts_->reduction);
}
at::Tensor Loss::compute(const at::Tensor& prediction, const at::Tensor& target, Reduction reduction) const {
  return parts_->compute(prediction, target, reduction);
}
at::Tensor Loss::activation(const at::Tensor& outputs) const {
  return parts_ && parts_->activation ? parts_->activation(outputs) : outputs;
}
at::Tensor Loss::decodes(const at::Tensor& activated) const {
  return parts_ && parts_->decodes ? parts_->decodes(activated) : activated;
}
Reduction Loss::reduction() const {
  return parts_->reduction;
}
bool Loss::class_targets() const {
  return parts_ && parts_->class_targets;
}
const std::string& Loss::name() const {
  return parts_->name;
}

Loss cross_entropy(const ClassLossOptions& o) {
  return class_loss("cross_entropy", o,
                    [o](const at::Tensor& p, const at::Tensor& t, Reduction r) { return ce(p, t, o, r); });
}

Loss focal(double gamma, const ClassLossOptions& o) {
  return class_loss("focal", o, [=](const at::Tensor& p, const at::Tensor& t, Reduction r) {
    const auto values = ce(p, t, o, Reduction::kNone);
    return reduce_values((1 - (-values).exp()).pow(gamma) * values, r);
  });
}

Loss label_smoothing(double eps, const ClassLossOptions& o) {
  return class_loss("label_smoothing", o, [=](const at::Tensor& p, const at::Tensor& t, Reduction r) {
    const auto rows = flattened(p, t, o.axis);
    const auto log_p = at::log_softmax(rows.predictions, -1);
    const auto smooth = reduce_values(-log_p.sum(-1), r);
    const auto nll = at::nll_loss(log_p, rows.classes, weight_like(o.weight, p), aten(r), o.ignore_index);
    return smooth * (eps / static_cast<double>(rows.predictions.size(-1))) + nll * (1 - eps);
  });
}

Loss bce_with_logits(const BinaryLossOptions& o) {
  return Loss(Loss::Parts{.name = "bce_with_logits",
                          .compute =
                              [o](const at::Tensor& p, const at::Tensor& t, Reduction r) {
                                const auto flat = flat_floats(p, t);
                                return at::binary_cross_entropy_with_logits(flat.predictions, flat.targets,
                                                                            weight_like(o.weight, p),
                                                                            weight_like(o.pos_weight, p), aten(r));
                              },
                          .reduction = o.reduction,
                          .activation = [](const at::Tensor& x) { return x.sigmoid(); },
                          .decodes = [o](const at::Tensor& x) { return x > o.thresh; }});
}

Loss bce(const BinaryLossOptions& o) {
  return Loss(Loss::Parts{.name = "bce",
                          .compute =
                              [o](const at::Tensor& p, const at::Tensor& t, Reduction r) {
                                const auto flat = flat_floats(p, t);
                                return at::binary_cross_entropy(flat.predictions, flat.targets,
                                                                weight_like(o.weight, p), aten(r));
                              },
                          .reduction = o.reduction,
                          .decodes = [o](const at::Tensor& x) { return x > o.thresh; }});
}

Loss mse(Reduction reduction) {
  return Loss(Loss::Parts{.name = "mse",
                          .compute =
                              [](const at::Tensor& p, const at::Tensor& t, Reduction r) {
                                const auto flat = flat_floats(p, t);
                                return at::mse_loss(flat.predictions, flat.targets, aten(r));
                              },
                          .reduction = reduction});
}

Loss l1(Reduction reduction) {
  return Loss(Loss::Parts{.name = "l1",
                          .compute =
                              [](const at::Tensor& p, const at::Tensor& t, Reduction r) {
                                const auto flat = flat_floats(p, t);
                                return at::l1_loss(flat.predictions, flat.targets, aten(r));
                              },
                          .reduction = reduction});
}

Loss dice(const DiceLossOptions& o) {
  return Loss(Loss::Parts{.name = "dice",
                          .compute = [o](const at::Tensor& p, const at::Tensor& t,
                                         Reduction r) { return reduce_values(dice_values(p, t, o), r); },
                          .reduction = o.reduction,
                          .activation = [o](const at::Tensor& x) { return at::softmax(x, o.axis); },
                          .decodes = [o](const at::Tensor& x) { return x.argmax(o.axis); }});
}

Loss bce_dice(double smooth) {
  return Loss(Loss::Parts{.name = "bce_dice",
                          .compute =
                              [smooth](const at::Tensor& p, const at::Tensor& t, Reduction r) {
                                const auto targets = t.to(p.scalar_type());
                                const auto probabilities = p.sigmoid();
                                const auto both = (probabilities * targets).sum(),
                                           either = probabilities.sum() + targets.sum();
                                const auto loss = at::binary_cross_entropy_with_logits(p, targets, {}, {}, aten(r));
                                return loss + (1 - (both * 2 + smooth) / (either + smooth));
                              },
                          .activation = [](const at::Tensor& x) { return x.sigmoid(); },
                          .decodes = [](const at::Tensor& x) { return x > 0.5; }});
}

}  // namespace hasten::learner
