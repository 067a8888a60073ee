// Counting steps, averaging parameters; see local_sgd.h.
#include "hasten/parallel/local_sgd/local_sgd.h"

#include <utility>

#include "hasten/core/error.h"
#include "hasten/parallel/ddp/backward.h"
#include "parallel/parameters/parameter_sync.h"

namespace hasten::parallel {

LocalSgd::Scope::Scope(std::shared_ptr<const Ddp> model) : model_(std::move(model)), no_sync_({model_}) {
  model_->step().local_sgd() = {.now = true};
}

LocalSgd::Scope::~Scope() {
  if (model_) model_->step().local_sgd().now = false;
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
  if (options.enabled && model_->shares_parameters()) {
    throw UsageError(Origin{"parallel", group_.rank(), group_.world_size()},
                     "LocalSgd lets ranks train apart, and those of a sharded model share their parameters. Use "
                     "ShardStage::kNone.");
  }
  if (options.enabled) scope_.emplace(model_);
}

void LocalSgd::step() {
  if (finished_) {
    throw UsageError(Origin{"parallel", group_.rank(), group_.world_size()},
                     "LocalSgd: step() after finish(). Make a new one to go on.");
  }
  if (!options_.enabled || ++model_->step().local_sgd().num_steps < options_.num_steps) return;
  const bool joining = model_->joined().notify(kAverage);
  average_parameters(*model_, joining ? group_.with_check(false) : group_, true);
  if (!joining && options_.on_average) options_.on_average();
}

void LocalSgd::finish() {
  if (finished_) return;
  if (options_.enabled && !model_->joined().is_joining()) {
    average_parameters(*model_, group_, true);
    if (options_.on_average) options_.on_average();
  }
  finished_ = true;
  scope_.reset();
}

void average_parameters(const Ddp& model, const comm::Group& group, bool took_part) {
  model.step().set_averaged();
  average_tensors(model.module().parameters(), group, took_part);
}

}  // namespace hasten::parallel
