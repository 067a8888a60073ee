// Counting steps, averaging parameters; see local_sgd.h.
#include "hasten/parallel/local_sgd.h"

#include <map>
#include <utility>
#include <vector>

#include "hasten/core/error.h"

namespace hasten::parallel {

LocalSgd::LocalSgd(std::shared_ptr<const void> keeps_alive, torch::nn::Module& module,
                   std::shared_ptr<const Ddp> ddp, comm::Group group, const LocalSgdOptions& options)
    : keeps_alive_(std::move(keeps_alive)), module_(&module), group_(std::move(group)), options_(options) {
  if (options.num_steps < 1) {
    throw UsageError(Origin{"parallel", group_.rank(), group_.world_size()},
                     "LocalSgd: num_steps = ", options.num_steps, "; expected at least 1.");
  }
  if (options.enabled) no_sync_.emplace(std::vector<std::shared_ptr<const Ddp>>{std::move(ddp)});
}

void LocalSgd::step() {
  if (finished_) {
    throw UsageError(Origin{"parallel", group_.rank(), group_.world_size()},
                     "LocalSgd: step() after finish(). Make a new one to go on.");
  }
  ++steps_;
  if (options_.enabled && steps_ % options_.num_steps == 0) average();
}

void LocalSgd::finish() {
  if (finished_) return;
  if (options_.enabled) average();
  finished_ = true;
  no_sync_.reset();
}

// One message for all parameters of a dtype and device.
void LocalSgd::average() const {
  if (group_.world_size() == 1) return;
  const torch::NoGradGuard no_grad;
  std::map<std::pair<std::string, at::ScalarType>, std::vector<at::Tensor>> alike;
  for (const auto& parameter : module_->parameters()) {
    alike[{parameter.device().str(), parameter.scalar_type()}].push_back(parameter.detach());
  }
  for (auto& [kind, parameters] : alike) {
    std::vector<at::Tensor> flat;
    for (const auto& parameter : parameters) flat.push_back(parameter.reshape({-1}));
    const at::Tensor mean = torch::cat(flat);
    group_.all_reduce_(mean, comm::ReduceOp::kMean);
    int64_t begin = 0;
    for (const auto& parameter : parameters) {
      parameter.copy_(mean.narrow(0, begin, parameter.numel()).view(parameter.sizes()));
      begin += parameter.numel();
    }
  }
}

}  // namespace hasten::parallel
