// Counting steps, averaging parameters; see local_sgd.h.
#include "hasten/parallel/local_sgd/local_sgd.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "hasten/core/count_text.h"
#include "hasten/core/error.h"
#include "hasten/core/log.h"
#include "hasten/interception/interceptor.h"
#include "hasten/parallel/ddp/backward.h"
#include "parallel/parameters/parameter_sync.h"

namespace hasten::parallel {
namespace {

// The levels of the options, the last over all ranks. Throws: UsageError.
std::vector<LocalSgdLevel> checked_levels(const LocalSgdOptions& options, const comm::Group& group) {
  const Origin origin{"parallel", group.rank(), group.world_size()};
  if (options.num_steps < 1)
    throw UsageError(origin, "LocalSgd: num_steps = ", options.num_steps, "; expected at least 1.");
  if (options.warmup_steps < 0)
    throw UsageError(origin, "LocalSgd: warmup_steps = ", options.warmup_steps, "; expected at least 0.");
  if (options.levels.empty()) return {{options.num_steps, group}};
  int64_t before = 1;
  for (size_t i = 0; i < options.levels.size(); ++i) {
    const int64_t num_steps = options.levels[i].num_steps;
    const bool is_multiple = num_steps > 0 && num_steps % before == 0 && (i == 0 || num_steps > before);
    if (!is_multiple) {
      throw UsageError(
          origin, "LocalSgd: levels[", i, "].num_steps = ", num_steps, "; expected a ",
          i == 0 ? "number of at least 1." : text("multiple of the ", before, " of the level before, and more."));
    }
    before = num_steps;
  }
  if (const int widest = options.levels.back().group.world_size(); widest != group.world_size()) {
    throw UsageError(origin, "LocalSgd: the last level's group has ", widest, " ranks; expected all ",
                     group.world_size(), ". Add a level with the group of all ranks.");
  }
  return options.levels;
}

}  // namespace

LocalSgd::Scope::Scope(std::shared_ptr<const Ddp> model, LogIdentity rank)
    : model_(std::move(model)), rank_(rank), no_sync_({model_}) {
  model_->step().local_sgd() = {.now = true};
}

LocalSgd::Scope::~Scope() {
  if (!model_) return;
  auto& state = model_->step().local_sgd();
  state.now = false;
  const bool is_failing = std::uncaught_exceptions() > 0;
  if (rank_.world_size == 1 || state.num_steps == 0 || is_failing || model_->joined().is_joining()) return;
  Logger("parallel", rank_)
      .warning(
          text("LocalSgd ended ", count_text(state.num_steps, "step"),
               " behind the last average, without finish(): the ranks' parameters differ. Call finish() behind the "
               "loop."));
}

LocalSgd::LocalSgd(std::shared_ptr<const void> keeps_alive, std::shared_ptr<const Ddp> model, comm::Group group,
                   const LocalSgdOptions& options)
    : keeps_alive_(std::move(keeps_alive)),
      model_(std::move(model)),
      group_(std::move(group)),
      options_(options),
      levels_(checked_levels(options, group_)) {
  if (options.enabled && model_->shares_parameters()) {
    throw UsageError(Origin{"parallel", group_.rank(), group_.world_size()},
                     "LocalSgd lets ranks train apart, and those of a sharded model share their parameters. Use "
                     "ShardStage::kNone.");
  }
  if (options.enabled && options.warmup_steps == 0) begin();
}

void LocalSgd::begin() {
  scope_.emplace(model_, LogIdentity{group_.rank(), group_.world_size()});
}

void LocalSgd::step() {
  if (finished_) {
    throw UsageError(Origin{"parallel", group_.rank(), group_.world_size()},
                     "LocalSgd: step() after finish(). Make a new one to go on.");
  }
  if (!options_.enabled) return;
  const bool is_plain = levels_.size() == 1 && options_.warmup_steps == 0;
  if (!is_plain && model_->joined().is_joining()) {
    throw UsageError(
        Origin{"parallel", group_.rank(), group_.world_size()},
        "LocalSgd: warmup_steps and levels need steps that all ranks make, and ranks end join_uneven_inputs one by "
        "one. Use num_steps alone there.");
  }
  if (!scope_) {
    if (++num_warmup_steps_ == options_.warmup_steps) begin();
    return;
  }
  int64_t& num_steps = model_->step().local_sgd().num_steps;
  const int64_t num_done = ++num_steps;
  const auto due = std::find_if(levels_.rbegin(), levels_.rend(),
                                [&](const LocalSgdLevel& level) { return num_done % level.num_steps == 0; });
  if (due == levels_.rend()) return;
  if (due != levels_.rbegin()) {
    average_parameters(*model_, due->group, true);
    num_steps = num_done;  // the ranks still differ
    return;
  }
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
  // Parts of a model are memory here.
  const interception::PassScope pass;
  model.step().set_averaged();
  average_tensors(model.module().parameters(), group, took_part);
}

}  // namespace hasten::parallel
