// The Learner: its callbacks and the values that they read. See learner.h; learner_construction.cpp makes it,
// loop_actions.cpp trains, fit.cpp has the fits.
#include "hasten/learner/learner.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <c10/util/ScopeExit.h>

#include <algorithm>
#include <iostream>
#include <set>

#include "hasten/core/sentence.h"
#include "hasten/process/random.h"
#include "learner/learner_impl.h"

namespace hasten::learner {
namespace {

using Handler = void (Callback::*)(Learner&);
constexpr std::array<Handler, kNumEvents> kHandlers = {&Callback::after_create,
                                                       &Callback::before_fit,
                                                       &Callback::before_epoch,
                                                       &Callback::before_train,
                                                       &Callback::before_batch,
                                                       &Callback::after_pred,
                                                       &Callback::after_loss,
                                                       &Callback::before_backward,
                                                       &Callback::after_cancel_backward,
                                                       &Callback::after_backward,
                                                       &Callback::before_step,
                                                       &Callback::after_cancel_step,
                                                       &Callback::after_step,
                                                       &Callback::after_cancel_batch,
                                                       &Callback::after_batch,
                                                       &Callback::after_cancel_train,
                                                       &Callback::after_train,
                                                       &Callback::before_validate,
                                                       &Callback::after_cancel_validate,
                                                       &Callback::after_validate,
                                                       &Callback::after_cancel_epoch,
                                                       &Callback::after_epoch,
                                                       &Callback::after_cancel_fit,
                                                       &Callback::after_fit};

std::vector<std::string> names_of(const Callbacks& entries) {
  std::vector<std::string> names;
  for (const auto& entry : entries) names.emplace_back(entry.callback->name());
  return names;
}

}  // namespace

void Learner::Impl::add(CallbackEntry entry) {
  const auto name = entry.callback->name();
  for (const auto& other : entries) {
    if (other.callback->name() == name) {
      throw UsageError(Origin{"learner"}, "two callbacks of the name '", name,
                       "'; expected unique names. Remove the other one first, "
                       "or give this one another name().");
    }
  }
  entries.push_back(std::move(entry));
  arrange();
}

CallbackEntry Learner::Impl::remove(std::string_view name) {
  const auto found =
      std::find_if(entries.begin(), entries.end(), [&](const auto& entry) { return entry.callback->name() == name; });
  if (found == entries.end()) {
    throw UsageError(Origin{"learner"}, "no callback '", name, "' to remove", guess_end(name, names_of(entries)),
                     " There are: ", join(names_of(entries)), ".");
  }
  auto entry = *found;
  entries.erase(found);
  arrange();
  return entry;
}

void Learner::Impl::arrange() {
  auto sorted = entries;
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.callback->order() < b.callback->order(); });
  auto next = std::make_shared<Lists>();
  for (const auto& entry : sorted) {
    for (size_t i = 0; i < kNumEvents; ++i) {
      if ((entry.events >> i) & 1U) (*next)[i].push_back(entry);
    }
  }
  lists = std::move(next);
}

void Learner::Impl::event(Event event) {
  if ((*lists)[static_cast<size_t>(event)].empty()) return;
  // The list stays as it is while its callbacks add and remove others.
  const auto running = lists;
  const bool inner = is_inner(event);
  std::exception_ptr error;
  for (const auto& entry : (*running)[static_cast<size_t>(event)]) {
    auto& callback = *entry.callback;
    if ((callback.passes() & passes_of(pass_kind)) == 0) continue;
    if (inner) {
      const auto phases = callback.phases();
      if (phases != Phases::kBoth && (phases == Phases::kTrain) != state.training) continue;
    }
    try {
      call(callback, event);
    } catch (const Cancel&) {
      throw;
    } catch (...) {
      if (!ends_scope(event)) throw;
      // The callbacks behind this one put back what they have changed, too.
      if (!error) error = std::current_exception();
      loop.begin_unwinding();
    }
    if (loop.is_cancelled() && !error) return;
  }
  if (error) std::rethrow_exception(error);
}

void Learner::Impl::call(Callback& callback, Event event) {
  try {
    (callback.*kHandlers[static_cast<size_t>(event)])(self);
  } catch (const Cancel& thrown) {
    if (!loop.is_open(thrown.scope)) {
      try {
        loop.cancel(thrown.scope);
      } catch (const std::exception&) {
        rethrow(callback.name(), event);
      }
    }
    throw;
  } catch (const std::exception&) {
    rethrow(callback.name(), event);
  }
}

void Learner::Impl::rethrow(std::string_view callback, Event event) const {
  const int rank = current ? current->accelerator.rank() : 0, world = current ? current->accelerator.world_size() : 1;
  const Origin origin{"learner", rank, world};
  const auto front = message_prefix(origin) + text("callback '", callback, "' in ", name_of(event), ": ");
  try {
    throw;
  } catch (const UsageError& error) {
    throw UsageError(front + error.what());
  } catch (const CommError& error) {
    throw CommError(origin, error.operation(), "callback '", callback, "' in ", name_of(event), ": ", error.what());
  } catch (const DataError& error) {
    throw DataError(origin, error.path(), "callback '", callback, "' in ", name_of(event), ": ", error.what());
  } catch (const std::exception& error) {
    throw Error(front + error.what());
  }
}

void Learner::add_entry(CallbackEntry entry) const {
  impl_->add(entry);
  if ((entry.events >> static_cast<unsigned>(Event::kAfterCreate)) & 1U) entry.callback->after_create(impl_->self);
}

void Learner::remove_cb(std::string_view name) const {
  impl_->remove(name);
}

void Learner::added_cbs(const Callbacks& callbacks, const std::function<void()>& fn) const {
  std::vector<std::string> added;
  const auto leave = c10::make_scope_exit([&] {
    for (const auto& name : added) {
      const auto& entries = impl_->entries;
      if (std::any_of(entries.begin(), entries.end(),
                      [&](const auto& entry) { return entry.callback->name() == name; }))
        impl_->remove(name);
    }
  });
  for (const auto& entry : callbacks) {
    add_entry(entry);
    added.emplace_back(entry.callback->name());
  }
  fn();
}

void Learner::removed_cbs(const std::vector<std::string>& names, const std::function<void()>& fn) const {
  const auto before = impl_->entries;
  const auto leave = c10::make_scope_exit([&] {
    impl_->entries = before;
    impl_->arrange();
  });
  for (const auto& name : names) impl_->remove(name);
  fn();
}

std::vector<std::shared_ptr<Callback>> Learner::ordered_cbs(Event event) const {
  std::vector<std::shared_ptr<Callback>> result;
  for (const auto& entry : (*impl_->lists)[static_cast<size_t>(event)]) result.push_back(entry.callback);
  return result;
}

const Callbacks& Learner::cbs() const {
  return impl_->entries;
}

std::string Learner::show_training_loop() const {
  constexpr std::pair<int, std::string_view> kLines[] = {
      {0, "before_fit"},  {1, "before_epoch"},    {2, "before_train"},    {3, "before_batch"}, {4, "after_pred"},
      {4, "after_loss"},  {4, "before_backward"}, {4, "after_backward"},  {4, "before_step"},  {4, "after_step"},
      {3, "after_batch"}, {2, "after_train"},     {2, "before_validate"}, {3, "before_batch"}, {4, "after_pred"},
      {4, "after_loss"},  {3, "after_batch"},     {2, "after_validate"},  {1, "after_epoch"},  {0, "after_fit"}};
  std::string lines;
  for (const auto& [depth, name] : kLines) {
    std::vector<std::string_view> called;
    for (size_t i = 0; i < kNumEvents; ++i) {
      if (name_of(static_cast<Event>(i)) != name) continue;
      for (const auto& entry : (*impl_->lists)[i]) called.push_back(entry.callback->name());
    }
    lines +=
        text(std::string(static_cast<size_t>(depth) * 2, ' '), name, called.empty() ? "" : ": ", join(called), "\n");
  }
  return lines;
}

void Learner::no_bar(const std::function<void()>& fn) const {
  const Restore off(impl_->bars, false);
  fn();
}
void Learner::no_logging(const std::function<void()>& fn) const {
  const Restore off(impl_->logging, false);
  fn();
}
void Learner::with_events(const std::function<void()>& fn) const {
  impl_->loop.within(Scope::kFit, [&] { impl_->loop.within(Scope::kEpoch, fn); });
}

void Learner::cancel(Scope scope) const {
  impl_->loop.cancel(scope);
}
bool Learner::is_unwinding() const {
  return impl_->loop.is_unwinding();
}
int64_t Learner::epoch() const {
  return impl_->state.epoch;
}
int64_t Learner::n_epoch() const {
  return impl_->state.n_epoch;
}
int64_t Learner::iter() const {
  return impl_->state.iter;
}
int64_t Learner::n_iter() const {
  return impl_->state.n_iter;
}
int64_t Learner::train_iter() const {
  return impl_->state.train_iter;
}
double Learner::pct_train() const {
  return impl_->state.pct_train;
}
bool Learner::training() const {
  return impl_->state.training;
}
std::vector<at::Tensor>& Learner::inputs() const {
  return impl_->state.batch.inputs;
}
std::vector<at::Tensor>& Learner::targets() const {
  return impl_->state.batch.targets;
}
std::vector<at::Tensor>& Learner::predictions() const {
  return impl_->state.predictions;
}
at::Tensor& Learner::loss() const {
  auto& state = impl_->state;
  // A detached tensor without the operator, which would take longer.
  if (state.attached_loss.defined()) state.loss = std::exchange(state.attached_loss, at::Tensor()).tensor_data();
  return state.loss;
}
at::Tensor& Learner::loss_grad() const {
  return impl_->state.loss_grad;
}
bool Learner::loss_is_finite() const {
  return !loss().defined() || loss().isfinite().all().item<bool>();
}
bool Learner::gradients_wait() const noexcept {
  return impl_->gradients_wait;
}
void Learner::set_loaders(Loaders loaders) const {
  if (impl_->in_pass()) {
    throw UsageError(
        Origin{"learner"},
        "set_loaders inside a pass over batches; call it between fits, or in before_epoch or after_epoch.");
  }
  impl_->loaders = std::move(loaders);
  ++impl_->data_version;
}
torch::optim::Optimizer& Learner::opt() const {
  if (!impl_->optimizer) impl_->create_opt();
  return *impl_->optimizer;
}
void Learner::create_opt() const {
  impl_->create_opt();
}
Hypers& Learner::hypers() const {
  opt();
  return impl_->hypers;
}
const Accelerator& Learner::accelerator() const {
  return impl_->engine().accelerator;
}
const AnyModel& Learner::model() const {
  return impl_->model;
}
const Loaders& Learner::loaders() const {
  return impl_->loaders;
}
const Loss& Learner::loss_func() const {
  return impl_->options.loss;
}
const LearnerOptions& Learner::options() const {
  return impl_->options;
}
const std::vector<LayerGroup>& Learner::groups() const {
  return impl_->groups;
}
std::filesystem::path Learner::model_path(const std::string& name) const {
  return impl_->options.path / impl_->options.model_dir / name;
}

bool Learner::logs() const {
  return impl_->logging && (!impl_->current || impl_->current->accelerator.is_main_process());
}
bool Learner::shows_bar() const {
  return impl_->bars && logs();
}
void Learner::log(const std::string& line) const {
  if (logs()) std::cout << line << std::endl;
}

void Learner::set_seed(uint64_t seed, bool reproducible) const {
  process::set_seed(accelerator().process(), seed, {.reproducible = reproducible});
}

}  // namespace hasten::learner
