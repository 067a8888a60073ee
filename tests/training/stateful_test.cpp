// States, tensors taken out of them and put back, and the registry of objects.
#include "hasten/training/stateful.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ops/arange.h>

#include <nlohmann/json.hpp>

#include "hasten/core/error.h"
#include "support/folder.h"

namespace hasten::training {
namespace {

using ::testing::HasSubstr;

struct Counter {
  int64_t count = 0;
  core::Value state() const { return core::Value::map({{"count", count}}); }
  void load_state(const core::Value& state) { count = state.at("count").as_int(); }
};

struct Ema {
  at::Tensor shadow;
  State state() const { return State::of({{"decay", 0.5}, {"shadow", State::of({{"a.b", shadow}})}}); }
  void load_state(const State& state) { shadow = state.at("shadow").at("a.b").tensor(); }
};

struct WithJson {
  nlohmann::json own = {{"x", 1}};
  nlohmann::json state() const { return own; }
  void load_state(const nlohmann::json& state) { own = state; }
};

struct NoState {
  int count = 0;
};

static_assert(Stateful<Counter> && Stateful<Ema> && Stateful<WithJson> && !Stateful<NoState>);

TEST(Stateful, TensorsAreTakenOutByPathAndPutBack) {
  Ema ema{at::arange(3)};

  const SplitState split = split_tensors(state_of(ema));
  ema.shadow = at::Tensor();
  load_state_of(ema, join_tensors(core::Value::parse_json(split.value.to_json()), [&](const std::string& path) {
                  EXPECT_EQ(path, "shadow.a%2Eb");
                  return split.tensors.at(0).second;
                }));

  EXPECT_TRUE(ema.shadow.equal(at::arange(3)));
}

TEST(Stateful, JsonStatesPassThroughValues) {
  WithJson one, other{{{"x", 7}, {"y", {1.5, nullptr}}}};

  load_state_of(one, state_of(other));

  EXPECT_EQ(one.own, other.own);
}

TEST(Stateful, AMissingNameIsNamedWithTheNearest) {
  const State state = State::of({{"decay", 0.5}, {"weight", at::arange(2)}});

  EXPECT_THAT(testing::words_of<UsageError>([&] { state.at("weigth"); }), HasSubstr("did you mean 'weight'"));
  EXPECT_THAT(testing::words_of<UsageError>([&] { state.at("weight").value(); }), HasSubstr("holds a tensor"));
}

TEST(StateRegistry, ObjectsAreFoundByNameAsLongAsTheyLive) {
  StateRegistry registry;
  auto first = std::make_shared<Counter>(Counter{1}), second = std::make_shared<Counter>(Counter{2});
  registry.add(StateKind::kScheduler, first);
  registry.add(StateKind::kScheduler, second);
  registry.add(StateKind::kScheduler, first);  // again: the same entry
  registry.add(StateKind::kCustom, std::make_shared<Counter>(Counter{3}), "kept");

  ASSERT_EQ(registry.all().size(), 3u);
  first = nullptr;
  const auto left = registry.all();

  ASSERT_EQ(left.size(), 2u);
  EXPECT_EQ(left[0].name, "1");
  EXPECT_EQ(left[0].state().at("count").value().as_int(), 2);
  EXPECT_EQ(left[1].name, "kept");
}

TEST(StateRegistry, AnObjectLivesAsLongAsAnyOfItsHandles) {
  StateRegistry registry;
  Counter counter{5};
  auto one = std::shared_ptr<Counter>(std::make_shared<int>(), &counter);
  const auto other = std::shared_ptr<Counter>(std::make_shared<int>(), &counter);
  registry.add(StateKind::kLoader, one);
  registry.add(StateKind::kLoader, other);

  one = nullptr;

  ASSERT_EQ(registry.all().size(), 1u);
  EXPECT_EQ(registry.all()[0].name, "0");
}

TEST(StateRegistry, ANameForTwoObjectsIsRefused) {
  StateRegistry registry;
  registry.add(StateKind::kCustom, std::make_shared<Counter>(), "ema");

  EXPECT_THAT(
      testing::words_of<UsageError>([&] { registry.add(StateKind::kCustom, std::make_shared<Counter>(), "ema"); }),
      HasSubstr("two objects are registered as custom 'ema' and 'ema'"));
}

TEST(StateRegistry, NamesUnderWhichTensorsOfTwoObjectsCouldMeetAreRefusedAtRegistration) {
  StateRegistry registry;
  registry.add(StateKind::kCustom, std::make_shared<Counter>(), "ema");
  const auto words_for = [&](const std::string& name) {
    return testing::words_of<UsageError>([&] { registry.add(StateKind::kCustom, std::make_shared<Counter>(), name); });
  };

  EXPECT_THAT(words_for("ema.slow"), HasSubstr("'ema' and 'ema.slow'"));
  registry.add(StateKind::kCustom, std::make_shared<Counter>(), "b.c");
  EXPECT_THAT(words_for("b"), HasSubstr("'b.c' and 'b'"));
  EXPECT_NO_THROW(registry.add(StateKind::kCustom, std::make_shared<Counter>(), "emas"));
}

}  // namespace
}  // namespace hasten::training
