// Counting steps, averaging parameters; see local_sgd.h.
#include "hasten/parallel/local_sgd.h"

#include <map>
#include <utility>
#include <vector>

#include "hasten/core/error.h"
#include "hasten/parallel/join.h"

namespace hasten::parallel {

LocalSgd::Scope::Scope(std::shared_ptr<const Ddp> model) : model_(std::move(model)), no_sync_({model_}) {
  model_->apart() = {.now = true};
}

LocalSgd::Scope::~Scope() {
  if (model_) model_->apart().now = false;
}

LocalSgd::LocalSgd(std::shared_ptr<const void> keeps_alive, std::shared_ptr<const Ddp> model,
                   comm::Group group, const LocalSgdOptions& options)
    : keeps_alive_(std::move(keeps_alive)),
      model_(std::move(model)),
      group_(std::move(group)),
      options_(options) {
  if (options.num_steps < 1) {
    throw UsageError(Origin{"parallel", group_.rank(), group_.world_size()},
                     "LocalSgd: num_steps = ", options.num_steps, "; expected at least 1.");
  }
  if (options.enabled) scope_.emplace(model_);
}

void LocalSgd::step() {
  if (finished_) {
    throw UsageError(Origin{"parallel", group_.rank(), group_.world_size()},
                     "LocalSgd: step() after finish(). Make a new one to go on.");
  }
  if (!options_.enabled || ++model_->apart().num_steps < options_.num_steps) return;
  const bool joining = model_->announce(kAverage);
  average_parameters(*model_, joining ? group_.with_check(false) : group_, true);
}

void LocalSgd::finish() {
  if (finished_) return;
  if (options_.enabled && !model_->is_joining()) average_parameters(*model_, group_, true);
  finished_ = true;
  scope_.reset();
}

// One message for all parameters of a dtype and device.
void average_parameters(const Ddp& model, const comm::Group& group, bool took_part) {
  model.set_averaged();
  if (group.world_size() == 1) return;
  const torch::NoGradGuard no_grad;
  const at::Tensor num_ranks = at::full({}, took_part ? 1 : 0, at::kLong);
  group.all_reduce_(num_ranks);
  const auto count = num_ranks.item<int64_t>();
  if (count == 0) return;
  std::map<std::pair<std::string, at::ScalarType>, std::vector<at::Tensor>> alike;
  for (const auto& parameter : model.module().parameters()) {
    alike[{parameter.device().str(), parameter.scalar_type()}].push_back(parameter.detach());
  }
  for (auto& [kind, parameters] : alike) {
    std::vector<at::Tensor> flat;
    for (const auto& parameter : parameters) flat.push_back(parameter.reshape({-1}));
    const at::Tensor mean = torch::cat(flat);
    if (count == group.world_size()) {
      group.all_reduce_(mean, comm::ReduceOp::kMean);
    } else {
      if (!took_part) mean.zero_();
      group.all_reduce_(mean);
      mean.div_(count);
    }
    int64_t begin = 0;
    for (const auto& parameter : parameters) {
      parameter.copy_(mean.narrow(0, begin, parameter.numel()).view(parameter.sizes()));
      begin += parameter.numel();
    }
  }
}

}  // namespace hasten::parallel
