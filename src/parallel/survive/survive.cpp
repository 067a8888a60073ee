// See survive.h.
#include "hasten/parallel/survive/survive.h"

#include <c10/util/ScopeExit.h>
#include <torch/types.h>

#include <algorithm>
#include <exception>
#include <string>
#include <utility>

#include "hasten/comm/group/rejoin.h"
#include "hasten/comm/types/purpose.h"
#include "hasten/core/error.h"
#include "hasten/core/number.h"
#include "hasten/flight/recorder.h"
#include "parallel/survive/heal.h"
#include "hasten/training/counted_optimizer.h"
#include "parallel/survive/unit_copy.h"

namespace hasten::parallel {
namespace {

using training::State;
using training::StateKind;
using Clock = std::chrono::steady_clock;
using LoaderCodec = training::StateCodec<data::LoaderState>;

// How often the same place may fail while every rank lives.
constexpr int kMostFailures = 3;

// Streams of the default generators.
enum class Draws : uint64_t { kEpoch = 1, kBatch, kAfterEpoch };

uint64_t mix(uint64_t seed, uint64_t word) {
  uint64_t z = seed + 0x9e3779b97f4a7c15U * (word + 1);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
  return z ^ (z >> 31);
}

data::LoaderState next_epoch(data::LoaderState state) {
  state.position = state.batches = 0;
  state.generator.clear();
  ++state.epoch;
  return state;
}

// The place in the run behind the last unit that was committed.
struct Progress {
  int64_t committed = 0;
  int64_t num_steps = 0;
  int64_t num_batches = 0;
  int64_t epoch = 0;
  bool is_behind_loop = false;
  int64_t accumulation = 0;
  uint64_t seed = 0;
  data::LoaderState loader = {};
  /// The parts of the meetings.
  std::vector<std::string> parts = {};

  State encode() const {
    return State::of({{"committed", committed},
                      {"num_steps", num_steps},
                      {"num_batches", num_batches},
                      {"epoch", epoch},
                      {"is_behind_loop", is_behind_loop},
                      {"accumulation", accumulation},
                      {"seed", text(seed)},
                      {"parts", core::Value(parts)},
                      {"loader", LoaderCodec::encode(loader)}});
  }
  static Progress decode(const State& state) {
    const auto number = [&](const char* name) { return state.at(name).value().as_int(); };
    std::vector<std::string> parts;
    const core::Value parts_value = state.at("parts").value();
    for (const auto& part : parts_value.as_list()) parts.push_back(part.as_string());
    return {.committed = number("committed"),
            .num_steps = number("num_steps"),
            .num_batches = number("num_batches"),
            .epoch = number("epoch"),
            .is_behind_loop = state.at("is_behind_loop").value().as_bool(),
            .accumulation = number("accumulation"),
            .seed = core::whole_number<uint64_t>(state.at("seed").value().as_string()).value_or(0),
            .loader = LoaderCodec::decode(state.at("loader")),
            .parts = std::move(parts)};
  }
};

// Looks at the steps of prepared optimizers.
class StepWatch : public training::StepPolicy {
 public:
  explicit StepWatch(std::shared_ptr<training::GradientState> gradients) : gradients_(std::move(gradients)) {}

  std::function<void()> before = [] {};
  int64_t num_steps = 0;
  bool stepped = false;

  void before_step(training::StepContext&) override { before(); }
  void after_step(training::StepContext& context) override {
    if (counted_.is(context.optimizer, gradients_->optimizers())) ++num_steps;
    stepped = true;
  }

 private:
  const std::shared_ptr<training::GradientState> gradients_;
  training::CountedOptimizer counted_;
};

class Survival {
 public:
  using AfterEpoch = std::function<void(int64_t)>;
  Survival(const SurviveParts& parts, const SurviveOptions& options, const SurvivedLoop& loop,
           const AfterEpoch& after_epoch)
      : parts_(parts),
        options_(options),
        loop_(loop),
        after_epoch_(after_epoch),
        group_(parts.process.group()),
        meetings_(comm::meetings_of(group_)),
        logger_(parts.process.logger("survive")) {
    parts_.gradients->step_policies().add(training::StepOrder::kUnscale, watch_);
  }
  ~Survival() { parts_.gradients->step_policies().remove(watch_.get()); }
  Survival(const Survival&) = delete;
  Survival& operator=(const Survival&) = delete;

  SurviveReport run_plain() {
    for (int64_t epoch = 0; epoch < options_.epochs; ++epoch) {
      const auto leave = c10::make_scope_exit([this] { loop_.leave(); });
      for (loop_.begin(); !loop_.at_end(); loop_.advance()) loop_.step();
      if (after_epoch_) after_epoch_(epoch);
    }
    return {.num_steps = watch_->num_steps};
  }

  SurviveReport run() {
    begin();
    auto deadline = Clock::now() + std::max<Clock::duration>(options_.replace_timeout, group_.options().timeout);
    bool have_met = false;
    while (true) {
      try {
        if (!have_met) meet(deadline);
        have_met = true;
        while (progress_.epoch < options_.epochs) {
          run_batches();
          end_epoch();
        }
        report_.num_steps = progress_.num_steps;
        return report_;
      } catch (const Error&) {
        if (!is_cut_off() || (!have_met && Clock::now() >= deadline)) throw;
        if (have_met) {
          if (num_failures_ >= kMostFailures) throw;
          deadline = Clock::now() + options_.replace_timeout;
          put_back();
        }
        have_met = false;
      }
    }
  }

 private:
  Origin origin() const { return {"survive", group_.rank(), group_.world_size()}; }

  void begin() {
    has_state_ = !meetings_->replaces();
    progress_.seed = at::detail::getDefaultCPUGenerator().current_seed();
    progress_.accumulation = parts_.accumulation.step();
    progress_.loader = loop_.state();
    progress_.parts = meetings_->states();
    is_single_ = parts_.registry.optimizers().size() == 1;
    watch_->before = [this] {
      require_unbroken();
      if (!is_single_) copy_.add_parameters();
    };
  }

  // In a handler: true if the end of a rank is behind the error, which may come as a DataError.
  bool is_cut_off() const {
    try {
      throw;
    } catch (const CommError&) {
      return true;
    } catch (const DataError&) {
      return comm::is_broken(group_) || group_.failure();
    } catch (...) {
      return false;
    }
  }

  // ---- Meetings.

  void meet(Clock::time_point deadline) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
    const bool is_first = meetings_->number() < 0 && has_state_;
    meetings_->meet(group_, std::max(left, std::chrono::milliseconds(1)));
    const comm::Purpose purpose("survive");
    const auto ranks = gather_standings(group_, {progress_.committed, has_state_, is_whole_});
    const auto root = choose_root(ranks);
    if (!root) {
      throw UsageError(origin(),
                       "every rank was replaced before another could take its state, so the run's state is "
                       "lost. Go on from a checkpoint (load_state), or start the run again.");
    }
    const auto replaced = std::count_if(ranks.begin(), ranks.end(), [](const Standing& one) { return !one.has_state; });
    count_failure(ranks[static_cast<size_t>(*root)].committed, replaced > 0);
    // A state that is overwritten in part is none, should the root end meanwhile.
    if (progress_.committed < ranks[static_cast<size_t>(*root)].committed) has_state_ = false;
    hasten::parallel::heal(parts_, *root);
    take(broadcast_state(group_, progress_.encode(), *root), *root);
    if (is_first) return;
    if (group_.rank() == *root) {
      logger_.info(text("the run goes on behind step ", progress_.num_steps, " with the state of rank ", *root, ", ",
                        replaced, " of ", group_.world_size(), " ranks were replaced"),
                   {.main_process_only = false});
    }
  }

  // Every rank lives, and the same place fails again: the ranks' calls differ.
  void count_failure(int64_t committed, bool has_newcomers) {
    const bool again = !has_newcomers && committed == last_committed_ && report_.num_recoveries > 0;
    num_failures_ = again ? num_failures_ + 1 : 0;
    last_committed_ = committed;
  }

  void take(const State& progress, int root) {
    progress_ = Progress::decode(progress);
    num_batches_ = progress_.num_batches;
    parts_.accumulation.set_step(progress_.accumulation);
    parts_.gradients->set_sync_gradients(true);
    auto& optimizers = parts_.gradients->optimizers();
    for (const auto& [name, optimizer] : parts_.registry.optimizers())
      optimizers.note_step(*optimizer, optimizers.step_was_skipped(*optimizer));
    for (const auto& one : parts_.registry.of(StateKind::kLoader)) {
      // A pass that was cut off begins anew.
      auto state = LoaderCodec::decode(broadcast_state(group_, one.state(), root));
      one.load_state(LoaderCodec::encode(state.position > 0 ? next_epoch(std::move(state)) : state));
    }
    loop_.load_state(progress_.loader);
    meetings_->load_states(progress_.parts);
    has_state_ = is_whole_ = true;
    if (parts_.healed) parts_.healed(progress_.num_steps);
  }

  // Behind an error: back to the last unit that was committed.
  void put_back() {
    ++report_.num_recoveries;
    if (is_open_) {
      copy_.restore();
      ++report_.num_repeated;
    }
    is_open_ = false;
    meetings_->leave();
  }

  // ---- Units.

  void open(bool is_end_of_epoch) {
    if (is_open_) return;
    copy_.begin(is_end_of_epoch);
    is_open_ = true;
  }

  void commit(bool is_whole) {
    ++progress_.committed;
    progress_.num_batches = num_batches_;
    progress_.accumulation = parts_.accumulation.step();
    progress_.parts = meetings_->states();
    is_whole_ = is_whole;
    is_open_ = false;
  }

  void commit_window(bool is_whole) {
    ++progress_.num_steps;
    progress_.is_behind_loop = parts_.gradients->end_of_dataloader();
    progress_.loader = loop_.state();
    if (progress_.is_behind_loop) progress_.loader = next_epoch(std::move(progress_.loader));
    commit(is_whole);
  }

  void draw(Draws draws, uint64_t number, bool by_rank) const {
    uint64_t seed = mix(mix(progress_.seed, static_cast<uint64_t>(draws)), number);
    if (by_rank) seed = mix(seed, static_cast<uint64_t>(group_.rank()));
    torch::manual_seed(seed);
  }

  void run_batches() {
    if (progress_.is_behind_loop) return;
    draw(Draws::kEpoch, static_cast<uint64_t>(progress_.epoch), false);
    const auto leave = c10::make_scope_exit([this] { loop_.leave(); });
    for (loop_.begin(); !loop_.at_end(); loop_.advance()) {
      open(false);
      draw(Draws::kBatch, static_cast<uint64_t>(num_batches_), true);
      run_step();
    }
    progress_.is_behind_loop = true;
    progress_.loader = loop_.state();
    if (is_open_) commit(true);  // batches that no step has followed
  }

  void run_step() {
    watch_->stepped = false;
    std::exception_ptr error;
    try {
      loop_.step();
      require_unbroken();
    } catch (const Error&) {
      if (!is_cut_off()) throw;
      error = std::current_exception();
    }
    const bool is_committed = watch_->stepped && (!error || is_single_);
    if (!error || is_committed) ++num_batches_;
    if (is_committed) commit_window(!error);
    if (error) std::rethrow_exception(error);
  }

  // A step that has caught the error of a collective goes on with gradients of this rank alone.
  void require_unbroken() const {
    if (!comm::is_broken(group_)) return;
    throw CommError(origin(), "survive", "a collective of this step has failed, and the program has caught its error.");
  }

  void end_epoch() {
    open(true);
    if (after_epoch_) {
      draw(Draws::kAfterEpoch, static_cast<uint64_t>(progress_.epoch), true);
      after_epoch_(progress_.epoch);
    }
    {
      const comm::Purpose purpose("survive: end of an epoch");
      group_.barrier();  // all have run it, or it runs again
    }
    ++progress_.epoch;
    progress_.is_behind_loop = false;
    commit(true);
  }

  const SurviveParts& parts_;
  const SurviveOptions options_;
  const SurvivedLoop& loop_;
  const AfterEpoch& after_epoch_;
  const comm::Group group_;
  const std::shared_ptr<comm::Meetings> meetings_;
  const Logger logger_;
  const std::shared_ptr<StepWatch> watch_ = std::make_shared<StepWatch>(parts_.gradients);
  UnitCopy copy_{parts_};
  Progress progress_ = {};
  SurviveReport report_ = {};
  int64_t num_batches_ = 0;
  int64_t last_committed_ = -1;
  int num_failures_ = 0;
  bool has_state_ = true;
  bool is_whole_ = true;
  bool is_open_ = false;
  bool is_single_ = true;
};

void check(const SurviveParts& parts, const SurviveOptions& options) {
  const Origin origin{"survive", parts.process.rank(), parts.process.world_size()};
  if (options.epochs < 0 || options.replace_timeout.count() < 1) {
    throw UsageError(origin, "survive with ", options.epochs, " epochs and a replace_timeout of ",
                     options.replace_timeout.count(), " s; expected 0 or more epochs, and 1 s or more.");
  }
  if (!comm::meetings_of(parts.process.group())) return;
  if (parts.registry.optimizers().empty()) {
    throw UsageError(origin,
                     "survive without a prepared optimizer: a step is committed when one has stepped. Hand the "
                     "optimizer to prepare, before survive.");
  }
  if (parts.gradients->in_dataloader()) {
    throw UsageError(origin,
                     "survive inside a loop over a prepared loader, which a replaced rank cannot come back into. Call "
                     "it outside.");
  }
}

}  // namespace

SurviveReport survive(const SurviveParts& parts, const SurviveOptions& options, const SurvivedLoop& loop,
                      const std::function<void(int64_t)>& after_epoch) {
  check(parts, options);
  Survival survival(parts, options, loop, after_epoch);
  return comm::meetings_of(parts.process.group()) ? survival.run() : survival.run_plain();
}

}  // namespace hasten::parallel
