#include "comm/connecting/serial_executor.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <vector>

namespace hasten::comm {
namespace {

TEST(SerialExecutor, RunsJobsInOrderAndItsEndWaitsForThem) {
  std::vector<int> order;
  {
    SerialExecutor line;
    for (int i = 0; i < 100; ++i) line.submit([&order, i] { order.push_back(i); });
  }

  ASSERT_EQ(order.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(order[i], i);
}

TEST(SerialExecutor, AJobsExceptionIsItsFuturesAndTheNextJobRuns) {
  SerialExecutor line;

  auto fails = line.submit([] { throw std::runtime_error("on purpose"); });
  auto goes_on = line.submit([] {});

  EXPECT_THROW(fails.get(), std::runtime_error);
  EXPECT_NO_THROW(goes_on.get());
}

}  // namespace
}  // namespace hasten::comm
