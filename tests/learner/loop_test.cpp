// The loop's nesting against a model of 40 lines, under random cancels; schedules, suggestions and slices.
#include "learner/loop.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "hasten/core/env.h"
#include "hasten/core/error.h"
#include "hasten/learner/schedule.h"
#include "hasten/learner/scope.h"
#include "hasten/learner/suggest.h"

namespace hasten::learner {
namespace {

/// Cancels by the number of the event that they come in.
using Script = std::map<size_t, Scope>;

struct Size {
  int epochs, train, valid;
  bool targets;
};

/// fastai's own form: a cancel is an exception that each scope catches or passes on.
class ReferenceLoop {
 public:
  ReferenceLoop(Script script, Size size) : script_(std::move(script)), size_(size) {}
  std::vector<Event> run() {
    try {
      within(Scope::kFit, [&] {
        for (int i = 0; i < size_.epochs; ++i) within(Scope::kEpoch, [&] { epoch(); });
      });
    } catch (const Refused&) {
      refused = true;
    }
    return events_;
  }
  bool refused = false;

 private:
  struct Refused {};
  void call(Event event) {
    events_.push_back(event);
    const auto found = script_.find(events_.size() - 1);
    if (found == script_.end()) return;
    if (open_.count(found->second) == 0) throw Refused();
    throw Cancel(found->second);
  }
  template <class Body>
  void within(Scope scope, const Body& body) {
    const auto events = events_of(scope);
    open_.insert(scope);
    try {
      call(events.before);
      body();
    } catch (const Cancel& cancel) {
      open_.erase(scope);
      if (cancel.scope != scope) throw;
      try {
        call(events.after_cancel);
      } catch (const Refused&) {  // hasten's rule: what follows the scope is called all the same
        try {
          call(events.after);
        } catch (...) {
        }
        throw;
      }
    } catch (const Refused&) {
      open_.erase(scope);
      try {
        call(events.after);
      } catch (...) {
      }
      throw;
    }
    open_.erase(scope);
    call(events.after);
  }
  void epoch() {
    within(Scope::kTrain, [&] { batches(size_.train, true); });
    within(Scope::kValid, [&] { batches(size_.valid, false); });
  }
  void batches(int count, bool training) {
    for (int i = 0; i < count; ++i) {
      within(Scope::kBatch, [&] {
        call(Event::kAfterPred);
        call(Event::kAfterLoss);
        if (!training || !size_.targets) return;
        within(Scope::kBackward, [] {});
        within(Scope::kStep, [] {});
      });
    }
  }

  Script script_;
  Size size_;
  std::vector<Event> events_;
  std::set<Scope> open_;
};

/// A loop without a model.
class FakeActions : public LoopActions {
 public:
  FakeActions(Script script, Size size) : loop(*this), script_(std::move(script)), size_(size) {}
  void event(Event event) override {
    events.push_back(event);
    training_ = event == Event::kBeforeTrain ? true : event == Event::kBeforeValidate ? false : training_;
    if (const auto found = script_.find(events.size() - 1); found != script_.end()) loop.cancel(found->second);
  }
  void begin_epoch(int64_t) override {}
  void begin_batches() override {
    left_ = training_ ? size_.train : size_.valid;
    ++open_passes;
  }
  bool next_batch() override { return left_-- > 0; }
  void end_batches() noexcept override { --open_passes; }
  void forward() override {}
  bool has_targets() const override { return size_.targets; }
  void compute_loss() override {}
  void backward() override {}
  void step() override { ++num_steps; }
  void zero_grad() override {}

  Loop loop;
  std::vector<Event> events;
  int open_passes = 0, num_steps = 0;

 private:
  Script script_;
  Size size_;
  int left_ = 0;
  bool training_ = false;
};

TEST(Loop, NestsAsTheReferenceUnderRandomCancels) {
  const auto count = 400 * static_cast<int>(Environment::current().integer("HASTEN_TEST_SCALE").value_or(1));
  const unsigned seed = 20261124;
  SCOPED_TRACE(text("seed ", seed));
  std::mt19937 random(seed);
  int refusals = 0;
  for (int i = 0; i < count; ++i) {
    const Size size{static_cast<int>(random() % 3) + 1, static_cast<int>(random() % 3) + 1,
                    static_cast<int>(random() % 3), random() % 4 != 0};
    Script script;
    for (unsigned k = 0; k < random() % 5; ++k) script[random() % 60] = static_cast<Scope>(random() % kNumScopes);
    ReferenceLoop reference(script, size);
    FakeActions fake(script, size);

    const auto wanted = reference.run();
    bool refused = false;
    try {
      fake.loop.fit(size.epochs);
    } catch (const UsageError&) {
      refused = true;
    }

    ASSERT_EQ(fake.events, wanted) << "case " << i;
    ASSERT_EQ(refused, reference.refused) << "case " << i;
    ASSERT_EQ(fake.open_passes, 0) << "case " << i;
    refusals += refused ? 1 : 0;
  }
  EXPECT_GT(refusals, count / 20);
  EXPECT_LT(refusals, count * 19 / 20);
}

TEST(Loop, CallsAfterEventsOfOpenScopesWhenAnActionThrows) {
  class Throwing : public FakeActions {
   public:
    using FakeActions::FakeActions;
    void forward() override { throw std::runtime_error("forward"); }
  };
  Throwing fake({}, {1, 1, 0, true});

  EXPECT_THROW(fake.loop.fit(1), std::runtime_error);

  using enum Event;
  EXPECT_EQ(fake.events, (std::vector<Event>{kBeforeFit, kBeforeEpoch, kBeforeTrain, kBeforeBatch, kAfterBatch,
                                             kAfterTrain, kAfterEpoch, kAfterFit}));
}

TEST(Loop, CallsAfterEventsWhenAnAfterCancelEventThrows) {
  class Throwing : public FakeActions {
   public:
    using FakeActions::FakeActions;
    void event(Event event) override {
      FakeActions::event(event);
      if (event == Event::kAfterCancelTrain) throw std::runtime_error("after_cancel_train");
    }
  };
  Throwing fake({{2, Scope::kTrain}}, {1, 1, 0, true});

  EXPECT_THROW(fake.loop.fit(1), std::runtime_error);

  using enum Event;
  EXPECT_EQ(fake.events, (std::vector<Event>{kBeforeFit, kBeforeEpoch, kBeforeTrain, kAfterCancelTrain, kAfterTrain,
                                             kAfterEpoch, kAfterFit}));
  EXPECT_EQ(fake.open_passes, 0);
}

TEST(Loop, EndsABatchBehindItsBackwardWhereTheStepWaits) {
  class Waiting : public FakeActions {
   public:
    using FakeActions::FakeActions;
    bool steps() const override { return false; }
  };
  Waiting fake({}, {1, 1, 0, true});

  fake.loop.fit(1);

  EXPECT_EQ(fake.num_steps, 0);
  EXPECT_EQ(std::count(fake.events.begin(), fake.events.end(), Event::kAfterBackward), 1);
  EXPECT_EQ(std::count(fake.events.begin(), fake.events.end(), Event::kBeforeStep), 0);
  EXPECT_EQ(std::count(fake.events.begin(), fake.events.end(), Event::kAfterBatch), 1);
}

TEST(Loop, TakesACancelThrownFromInsideAForward) {
  class Cancelling : public FakeActions {
   public:
    using FakeActions::FakeActions;
    void forward() override { throw Cancel(Scope::kTrain); }
  };
  Cancelling fake({}, {1, 3, 0, true});

  fake.loop.fit(1);

  EXPECT_EQ(fake.num_steps, 0);
  EXPECT_EQ(fake.events[4], Event::kAfterCancelTrain);
}

TEST(Loop, NamesTheOpenScopesWhenACancelHasNone) {
  FakeActions fake({{0, Scope::kBatch}}, {1, 1, 0, true});

  try {
    fake.loop.fit(1);
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("cancel of batch, which is not open; open scopes: fit"), std::string::npos)
        << error.what();
  }
}

TEST(Schedule, RefusesPartsThatDoNotSumToOne) {
  EXPECT_THROW(combine({0.5, 0.6}, {sched_no(1), sched_no(2)}), UsageError);
  EXPECT_THROW(combine({1.0}, {sched_no(1), sched_no(2)}), UsageError);
  EXPECT_THROW(combine({1.5, -0.5}, {sched_no(1), sched_no(2)}), UsageError);
  EXPECT_THROW(sched_exp(1, 0), UsageError);
}

TEST(Schedule, ReachesTheEndOfEachPart) {
  const auto schedule = combine({0.25, 0.75}, {sched_lin(0, 1), sched_lin(5, 9)});

  EXPECT_EQ(schedule(0), 0);
  EXPECT_EQ(schedule(0.25), 5);
  EXPECT_EQ(schedule(1), 9);
}

TEST(Suggest, RefusesCurvesThatAreTooShort) {
  EXPECT_THROW(valley({}, {}), UsageError);
  EXPECT_THROW(slide({1, 2, 3}, {1, 2, 3}), UsageError);
  EXPECT_THROW(slide({1, 2, 3}, {1, 2, 3}, -1), UsageError);
  EXPECT_THROW(steep({1}, {1}), UsageError);
  EXPECT_THROW(minimum({1, 2}, {1}), UsageError);
}

TEST(Suggest, GivesTheFirstRateWhereNothingFalls) {
  EXPECT_EQ(valley({0.1, 0.2, 0.3}, {1, 2, 3}), 0.1);
}

}  // namespace
}  // namespace hasten::learner
