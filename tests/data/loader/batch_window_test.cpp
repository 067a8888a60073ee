#include "data/loader/detail/batch_window.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include "hasten/core/error.h"

namespace hasten::data::detail {
namespace {

using List = std::vector<int>;

TEST(BatchWindow, PicksSamplesByPlaceAcrossBatches) {
  BatchWindow window(batch_operations<List, true, false>());
  window.keep_first(2);
  window.add(0, 3, any_batch(List{10, 11, 12}));
  window.add(3, 3, any_batch(List{13, 14, 15}));
  const auto pick = [&](const Indices& places) { return batch_in<List>(window.pick(places)); };

  EXPECT_EQ(pick({0, 1, 2}), (List{10, 11, 12}));
  EXPECT_EQ(pick({1, 2, 3, 0}), (List{11, 12, 13, 10}));
  window.forget_before(6);
  EXPECT_EQ(pick({0, 1}), (List{10, 11})) << "the first batch is kept for good";
  EXPECT_THROW(window.pick({3}), InternalError);
}

TEST(BatchWindow, WhatIsPickedBelongsToTheLoop) {
  BatchWindow window(batch_operations<List, true, false>());
  window.add(0, 2, any_batch(List{1, 2}));

  batch_in<List>(window.pick({0, 1})) = {};

  EXPECT_EQ(batch_in<List>(window.pick({0, 1})), (List{1, 2}));
}

TEST(BatchWindow, BatchesWithoutRowsAreGivenWhole) {
  struct Opaque {
    int value;
  };
  BatchWindow window(batch_operations<Opaque, true, false>());
  window.add(0, 4, any_batch(Opaque{5}));

  EXPECT_EQ(batch_in<Opaque>(window.pick({0, 1, 2, 3})).value, 5);
  EXPECT_THROW(window.pick({0, 1}), InternalError);
}

}  // namespace
}  // namespace hasten::data::detail
