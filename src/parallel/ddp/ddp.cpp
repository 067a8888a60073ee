// Puts the parts together: check, copy, plan, hooks; see hasten/parallel/ddp.h.
#include "hasten/parallel/ddp.h"

#include "parallel/ddp/gradient_hooks.h"
#include "parallel/ddp/reducer.h"
#include "parallel/ddp/replica.h"

namespace hasten::parallel {

struct Ddp::Impl {
  Reducer reducer;
  GradientHooks hooks;

  Impl(std::vector<std::string> names, const std::vector<at::Tensor>& parameters,
       std::vector<at::Tensor> buffers, const comm::Group& group, const DdpOptions& options)
      : reducer(std::move(names), parameters, std::move(buffers), group, options),
        hooks(parameters, [this](size_t i) { reducer.on_gradient(i); }) {}
};

Ddp::Ddp(torch::nn::Module& module, comm::Group group, const DdpOptions& options) {
  if (group.world_size() == 1) return;
  check_same_module(module, group);
  auto all = module.parameters();
  const auto buffers = module.buffers();
  all.insert(all.end(), buffers.begin(), buffers.end());
  broadcast_tensors(all, group);
  std::vector<std::string> names;
  std::vector<at::Tensor> trainable;
  for (const auto& item : module.named_parameters()) {
    if (!item.value().requires_grad()) continue;
    names.push_back(item.key());
    trainable.push_back(item.value());
  }
  if (trainable.empty()) return;
  impl_ =
      std::make_unique<Impl>(std::move(names), trainable,
                             options.broadcast_buffers ? buffers : std::vector<at::Tensor>{}, group, options);
}

Ddp::~Ddp() = default;
Ddp::Ddp(Ddp&&) noexcept = default;
Ddp& Ddp::operator=(Ddp&&) noexcept = default;

void Ddp::hold_back(bool more) const noexcept {
  if (impl_) impl_->reducer.hold_back(more);
}

const BucketPlan& Ddp::plan() const noexcept {
  static const BucketPlan kNone;
  return impl_ ? impl_->reducer.plan() : kNone;
}

}  // namespace hasten::parallel
