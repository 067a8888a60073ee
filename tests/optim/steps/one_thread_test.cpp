#include "optim/steps/one_thread.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <thread>

namespace hasten::optim::detail {
namespace {

TEST(OneThread, LibtorchStaysOnTheCallingThreadInItsScopeOnly) {
  at::set_num_threads(3);
  int elsewhere = 0;
  {
    const OneThread scope(true);
    EXPECT_EQ(at::get_num_threads(), 1);
    std::thread([&] { elsewhere = at::get_num_threads(); }).join();
  }
  EXPECT_EQ(at::get_num_threads(), 3);
  EXPECT_EQ(elsewhere, 3) << "other threads' number is theirs";

  const OneThread nothing(false);
  EXPECT_EQ(at::get_num_threads(), 3);
}

}  // namespace
}  // namespace hasten::optim::detail
