// The fits of a Learner: optimizer, schedules, freezing, the range test. See learner.h.
#include <ATen/ATen.h>
#include <c10/util/ScopeExit.h>

#include <cmath>
#include <fstream>

#include "hasten/learner/callbacks/lr_finder.h"
#include "hasten/learner/callbacks/training.h"
#include "hasten/learner/distributed.h"
#include "hasten/learner/recorder.h"
#include "hasten/process/random.h"
#include "learner/checkpoint.h"
#include "learner/learner_impl.h"

namespace hasten::learner {
namespace {

/// Returns the rates that a fit starts from: lr set on the optimizer, then read by group.
std::vector<double> rates(const Learner& learn, const std::optional<HyperValue>& lr) {
  learn.hypers().set("lr", lr.value_or(learn.options().lr));
  return learn.hypers().get("lr");
}

template <class Make>
std::vector<Schedule> each(const std::vector<double>& rates, const Make& make) {
  std::vector<Schedule> schedules;
  for (const double rate : rates) schedules.push_back(make(rate));
  return schedules;
}

template <class Options>
FitOptions fit_options(const Options& options, Schedules schedules) {
  FitOptions fit{
      .wd = options.wd, .reset_opt = options.reset_opt, .start_epoch = options.start_epoch, .resume = options.resume};
  fit.cbs.push_back(entry_of(ParamScheduler(std::move(schedules))));
  fit.cbs.insert(fit.cbs.end(), options.cbs.begin(), options.cbs.end());
  return fit;
}

}  // namespace

void Learner::Impl::create_opt() {
  auto own = optimizer_groups(groups);
  // The number only starts it; each fit sets its own.
  optimizer = options.opt_func(own.groups, 1e-3);
  hypers = Hypers(optimizer, own.places);
  for (const auto& place : own.places) {
    if (place.plain >= 0) write_hyper(optimizer->param_groups()[static_cast<size_t>(place.plain)].options(), "wd", 0);
  }
  hypers.set("lr", options.lr);
}

void Learner::Impl::fit(int64_t num_epochs, const std::optional<HyperValue>& lr, const FitOptions& fit_options) {
  if (num_epochs < 0) throw UsageError(Origin{"learner"}, "fit of ", num_epochs, " epochs; expected at least 0.");
  if (!loaders.train) throw UsageError(Origin{"learner"}, "fit without training data; set Loaders::train.");
  self.added_cbs(fit_options.cbs, [&] {
    if (fit_options.reset_opt || !optimizer) create_opt();
    const auto wd = fit_options.wd ? fit_options.wd : options.wd;
    if (wd) hypers.set("wd", *wd);
    hypers.set("lr", lr.value_or(options.lr));
    Callbacks skip;
    if (fit_options.start_epoch > 0) skip.push_back(entry_of(SkipToEpoch(fit_options.start_epoch)));
    int64_t first = 0;
    self.added_cbs(skip, [&] {
      state.n_epoch = num_epochs;
      const auto leave = c10::make_scope_exit([&] { forget(); });
      std::optional<CheckpointReader> resumed;
      if (!fit_options.resume.empty()) {
        resumed.emplace(fit_options.resume);
        first = resumed->epoch(num_epochs);
        const auto after_before_fit = entry_of(ResumeCallback(*resumed));
        return self.added_cbs({after_before_fit}, [&] { loop.fit(num_epochs, first); });
      }
      loop.fit(num_epochs, first);
    });
  });
}

void Learner::fit(int64_t num_epochs, std::optional<HyperValue> lr, const FitOptions& options) const {
  impl_->fit(num_epochs, lr, options);
}

void Learner::fit_one_cycle(int64_t num_epochs, std::optional<HyperValue> lr_max, const OneCycleOptions& o) const {
  if (o.reset_opt) create_opt();
  const auto moms = o.moms.value_or(options().moms);
  Schedules schedules{{"lr", each(rates(*this, lr_max), [&](double rate) {
                         return combined_cos(o.pct_start, rate / o.div, rate, rate / o.div_final);
                       })}};
  if (hypers().has("mom")) schedules["mom"] = {combined_cos(o.pct_start, moms[0], moms[1], moms[2])};
  auto fit = fit_options(o, std::move(schedules));
  fit.reset_opt = false;
  impl_->fit(num_epochs, {}, fit);
}

void Learner::fit_flat_cos(int64_t num_epochs, std::optional<HyperValue> lr, const FlatCosOptions& o) const {
  if (o.reset_opt) create_opt();
  auto fit = fit_options(o, {{"lr", each(rates(*this, lr), [&](double rate) {
                                return combined_cos(o.pct_start, rate, rate, rate / o.div_final);
                              })}});
  fit.reset_opt = false;
  impl_->fit(num_epochs, {}, fit);
}

void Learner::fit_sgdr(int64_t num_cycles, int64_t cycle_len, std::optional<HyperValue> lr_max,
                       const SgdrOptions& o) const {
  if (num_cycles < 1 || cycle_len < 1 || o.cycle_mult < 1) {
    throw UsageError(Origin{"learner"}, "fit_sgdr of ", num_cycles, " cycles, the first of ", cycle_len,
                     " epochs, times ", o.cycle_mult, "; expected at least 1 each.");
  }
  if (o.reset_opt) create_opt();
  std::vector<double> lengths;
  int64_t epochs = 0, length = cycle_len;
  for (int64_t i = 0; i < num_cycles; ++i, length *= o.cycle_mult) {
    lengths.push_back(static_cast<double>(length));
    epochs += length;
  }
  for (auto& part : lengths) part /= static_cast<double>(epochs);
  auto fit = fit_options(o, {{"lr", each(rates(*this, lr_max), [&](double rate) {
                                return combine(lengths, std::vector<Schedule>(lengths.size(), sched_cos(rate, 0)));
                              })}});
  fit.reset_opt = false;
  impl_->fit(epochs, {}, fit);
}

void Learner::fine_tune(int64_t num_epochs, double base_lr, const FineTuneOptions& o) const {
  freeze();
  OneCycleOptions cycle{.div_final = o.div_final, .pct_start = 0.99, .wd = o.wd, .moms = o.moms, .cbs = o.cbs};
  fit_one_cycle(o.freeze_epochs, slice(base_lr), cycle);
  base_lr /= 2;
  unfreeze();
  cycle.pct_start = o.pct_start;
  cycle.div = o.div;
  fit_one_cycle(num_epochs, slice(base_lr / o.lr_mult, base_lr), cycle);
}

void Learner::freeze_to(int64_t n) const {
  const auto size = static_cast<int64_t>(impl_->groups.size());
  const int64_t first = n < 0 ? size + n : n;
  if (first < 0 || first > size) {
    std::vector<std::string> names;
    for (const auto& group : impl_->groups) names.push_back(group.name);
    throw UsageError(Origin{"learner"}, "freeze_to(", n, ") with ", size, " layer groups (", join(names),
                     "); expected ", -size, " to ", size, ". Split the model into more groups, or freeze fewer.");
  }
  impl_->frozen = static_cast<size_t>(first);
  freeze_groups(impl_->groups, impl_->frozen);
  if (impl_->optimizer) impl_->optimizer->state().clear();
}

size_t Learner::frozen_groups() const {
  return impl_->frozen;
}

void LrFinder::before_batch(Learner& learn) {
  const double position = static_cast<double>(learn.train_iter()) / static_cast<double>(num_it);
  lrs.push_back(options.start_lr * std::pow(options.end_lr / options.start_lr, position));
  learn.hypers().set("lr", lrs.back());
}

void LrFinder::after_loss(Learner& learn) {
  const auto& accelerator = learn.accelerator();
  // Ranks see one loss, so that they stop at the same batch.
  if (accelerator.world_size() > 1) learn.loss() = accelerator.reduce(learn.loss(), {.op = comm::ReduceOp::kMean});
}

void LrFinder::after_batch(Learner& learn) {
  smooth.update(learn.loss());
  const double loss = smooth.value();
  best = std::min(best, loss);
  if ((options.stop_div && loss > 4 * best) || learn.train_iter() >= num_it) learn.cancel(Scope::kFit);
}

void LrFinder::before_validate(Learner& learn) {
  learn.cancel(Scope::kValid);
}

namespace {

/// Weights, buffers, optimizer, hyper-parameters, modes and random state, in memory.
class Snapshot {
 public:
  explicit Snapshot(Learner::Impl& impl)
      : impl_(impl), random_(process::capture_random_state()), had_optimizer_(impl.optimizer != nullptr) {
    const at::NoGradGuard no_grad;
    for (const auto& one : impl.model.module()->parameters()) tensors_.push_back({one, one.detach().clone()});
    for (const auto& one : impl.model.module()->buffers()) tensors_.push_back({one, one.clone()});
    if (had_optimizer_) optimizer_ = save_optimizer(*impl.optimizer);
    for (auto& one : impl.model.module()->modules()) modes_.emplace_back(one, one->is_training());
  }
  void restore() {
    const at::NoGradGuard no_grad;
    for (auto& [tensor, before] : tensors_) tensor.copy_(before);
    if (had_optimizer_) {
      impl_.optimizer->state().clear();
      load_optimizer(*impl_.optimizer, optimizer_);
      impl_.optimizer->zero_grad();
    } else {
      impl_.optimizer.reset();
      impl_.hypers = {};
      impl_.model.module()->zero_grad();
    }
    impl_.gradients_wait = false;
    for (auto& [module, training] : modes_) module->train(training);
    process::restore_random_state(random_);
  }

 private:
  Learner::Impl& impl_;
  process::RandomState random_;
  bool had_optimizer_;
  std::vector<std::pair<at::Tensor, at::Tensor>> tensors_;
  std::string optimizer_;
  std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>> modes_;
};

std::vector<double> cut(const std::vector<double>& values, int64_t num_it) {
  // [num_it / 10, -5), up to the first NaN.
  const auto begin = static_cast<size_t>(num_it / 10);
  const size_t end = values.size() > 5 ? values.size() - 5 : 0;
  return begin < end ? std::vector<double>(values.begin() + static_cast<std::ptrdiff_t>(begin),
                                           values.begin() + static_cast<std::ptrdiff_t>(end))
                     : std::vector<double>{};
}

void write_curve(const std::filesystem::path& path, const LrFindResult& result) {
  std::ofstream file(path);
  file.imbue(std::locale::classic());
  file << "lr,loss\n";
  for (size_t i = 0; i < result.lrs.size(); ++i) file << result.lrs[i] << ',' << result.losses[i] << '\n';
  if (!file)
    throw DataError(Origin{"learner"}, path.string(), "cannot write ", path.string(),
                    "; give the Learner another path.");
}

}  // namespace

LrFindResult Learner::lr_find(const LrFindOptions& o) const {
  if (!(o.start_lr > 0) || !(o.end_lr > o.start_lr) || o.num_it < 1) {
    throw UsageError(Origin{"learner"}, "lr_find from ", o.start_lr, " to ", o.end_lr, " in ", o.num_it,
                     " batches; expected 0 < start_lr < end_lr and at least 1 batch.");
  }
  auto& impl = *impl_;
  const auto finder = std::make_shared<LrFinder>(o);
  Snapshot before(impl);
  if (!impl.loaders.train) throw UsageError(Origin{"learner"}, "lr_find without training data; set Loaders::train.");
  const auto size = static_cast<int64_t>(impl.train_loader()->size());
  const int64_t world = distributed_world_size(*this);
  const int64_t per_rank = std::max<int64_t>(1, (size + world - 1) / world);
  {
    const auto leave = c10::make_scope_exit([&] {
      impl.probe.reset();
      before.restore();
    });
    const Restore quiet(impl.logging, false);
    const Restore probing(impl.probing, true);
    const Restore kind(impl.pass_kind, PassKind::kLrFind);
    impl.fit(o.num_it / per_rank + 1, o.start_lr, {.cbs = {entry_of(finder)}});
  }
  LrFindResult result{.lrs = finder->lrs, .losses = finder->smooth.history()};
  if (o.write_csv && accelerator().is_main_process()) write_curve(options().path / "lr_find.csv", result);
  auto& trackers = accelerator().trackers();
  if (trackers.is_running()) {
    for (size_t i = 0; i < result.lrs.size(); ++i)
      trackers.log({{"lr_find", {{"lr", result.lrs[i]}, {"loss", result.losses[i]}}}}, static_cast<int64_t>(i));
  }
  auto lrs = cut(result.lrs, finder->num_it), losses = cut(result.losses, finder->num_it);
  size_t finite = 0;
  while (finite < losses.size() && !std::isnan(losses[finite])) ++finite;
  lrs.resize(finite);
  losses.resize(finite);
  for (const auto how : o.suggest) result.suggestions[name_of(how)] = suggest(how, lrs, losses);
  if (!o.suggest.empty()) result.valley = result.suggestions.at(name_of(o.suggest.front()));
  return result;
}

}  // namespace hasten::learner
