// The values of a worker whose creator is lost before they exist.
#include "rpc/objects.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace hasten::rpc {
namespace {

constexpr uint32_t kCreator = 3;

struct Place {
  Pool pool{Pool::Options{.serve = {}, .wake = [] {}, .flush = {}, .enter = {}}};
  Objects objects{pool};
  // Whether a use of the value has ended with an error.
  bool use_fails(detail::ObjectId id) {
    auto failed = std::make_shared<bool>(false);
    objects.when_ready(id, [failed](const Objects::Found& found) { *failed = found.error != nullptr; });
    return *failed;
  }
  void lose_creator() { objects.lose(kCreator, std::make_exception_ptr(std::runtime_error("was lost"))); }
};

TEST(Objects, AUseWaitsForTheCreationAndEndsWithTheCreatorsLoss) {
  Place place;
  bool failed = false;
  place.objects.when_ready({kCreator, 1}, [&](const Objects::Found& found) { failed = found.error != nullptr; });
  EXPECT_FALSE(failed) << "the creation comes on another connection";

  place.lose_creator();

  EXPECT_TRUE(failed);
}

TEST(Objects, AUseThatComesAfterTheCreatorsLossFailsAtOnce) {
  Place place;

  place.lose_creator();

  EXPECT_TRUE(place.use_fails({kCreator, 1}));
  EXPECT_FALSE(place.use_fails({kCreator + 1, 1})) << "another creator's may come";
}

TEST(Objects, WhatHasComeBeforeTheLossStays) {
  Place place;
  place.objects.expect({kCreator, 1});

  place.lose_creator();

  EXPECT_FALSE(place.use_fails({kCreator, 1})) << "it is being created";
}

TEST(Objects, ANameOfAValueThatNeverCameIsForgotten) {
  Place place;
  place.objects.grant({kCreator, 1}, {2, 9}, 4, false);

  place.lose_creator();
  place.objects.forget(kCreator);
  EXPECT_EQ(place.objects.size(), 1u) << "rank 4 has a copy";
  place.objects.drop({kCreator, 1}, {2, 9});

  EXPECT_EQ(place.objects.size(), 0u);
}

}  // namespace
}  // namespace hasten::rpc
