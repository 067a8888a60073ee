// See steps_of_parts.h.
#include "accelerator/steps_of_parts.h"

#include <torch/optim/lbfgs.h>

#include <algorithm>
#include <string>

#include "hasten/core/text.h"
#include "hasten/optim/deepspeed.h"
#include "hasten/optim/fastai.h"
#include "hasten/optim/lamb.h"
#include "hasten/optim/larc.h"
#include "hasten/optim/novograd.h"
#include "hasten/parallel/layout/placement.h"
#include "hasten/parallel/layout/stages.h"

namespace hasten {
namespace {

// The norms in a step.
struct StepNorms {
  const char* name = "";
  /// It needs a norm of each parameter.
  bool of_each = false;
  /// It needs a norm of all gradients together. `remedy` says what to do about it.
  bool of_all = false;
  const char* remedy = "Use AdamW.";
};

StepNorms norms_of_fastai(const optim::fastai::Optimizer& optimizer) {
  if (optimizer.fixed().rule == optim::fastai::Rule::kLamb) return {.name = "fastai's Lamb", .of_each = true};
  if (optimizer.fixed().rule == optim::fastai::Rule::kLarc) return {.name = "fastai's Larc", .of_each = true};
  return {};
}

bool clips_all(const optim::Lamb& lamb) {
  const auto& groups = lamb.param_groups();
  return std::any_of(groups.begin(), groups.end(), [](const auto& group) {
    return static_cast<const optim::LambOptions&>(group.options()).max_grad_norm() > 0;
  });
}

StepNorms norms_of(const torch::optim::Optimizer& optimizer) {
  if (dynamic_cast<const torch::optim::LBFGS*>(&optimizer) != nullptr)
    return {.name = "LBFGS", .of_each = true, .of_all = true};
  if (const auto* const lamb = dynamic_cast<const optim::Lamb*>(&optimizer)) {
    return {
        .name = "Lamb",
        .of_each = true,
        .of_all = clips_all(*lamb),
        .remedy = "Set max_grad_norm(0), and call accelerator.clip_grad_norm_ before the step: it is the same norm."};
  }
  if (dynamic_cast<const optim::deepspeed::Lamb*>(&optimizer) != nullptr) return {.name = "FusedLamb", .of_each = true};
  if (dynamic_cast<const optim::NovoGrad*>(&optimizer) != nullptr) return {.name = "NovoGrad", .of_each = true};
  if (const auto* const larc = dynamic_cast<const optim::Larc*>(&optimizer)) {
    return {.name = "Larc",
            .of_each = true,
            .of_all = norms_of(larc->wrapped()).of_all,
            .remedy = "Put it around an optimizer without such norms: SGD, AdamW, or Lamb with max_grad_norm(0)."};
  }
  if (const auto* const fastai = dynamic_cast<const optim::fastai::Optimizer*>(&optimizer))
    return norms_of_fastai(*fastai);
  return {};
}

}  // namespace

void require_steps_of_parts(const torch::optim::Optimizer& optimizer, const PartedRanks& ranks, const Origin& origin) {
  const StepNorms norms = norms_of(optimizer);
  if (!norms.of_each && !norms.of_all) return;
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      // A stage has whole parameters.
      const bool is_cut = norms.of_each && parallel::placed_by(parameter) != nullptr;
      const bool is_elsewhere = norms.of_all && parallel::staged_by(parameter) != nullptr;
      if (!is_cut && !is_elsewhere) continue;
      throw UsageError(origin, norms.name, " with ", is_cut ? text("tp = ", ranks.tp) : text("pp = ", ranks.pp),
                       ": it needs norms of ", is_cut ? "whole" : "all", " parameters, and this rank has parts. ",
                       is_cut ? "Use AdamW." : norms.remedy);
    }
  }
}

}  // namespace hasten
