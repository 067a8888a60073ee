// What feeds of units share: the order of reads, and memory that waits for its readers.
#include "hasten/offload/units/device_buffer.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include "hasten/offload/units/read_order.h"
#include "support/device.h"
#include "support/pretend/launch.h"

namespace hasten::offload {
namespace {

TEST(ReadOrderTest, RemembersWhatFollowedEachPair) {
  ReadOrder order;
  EXPECT_FALSE(order.last());
  for (const size_t unit : {0, 1, 1, 2, 1, 0}) order.note(unit);

  EXPECT_EQ(order.last(), 0U);
  EXPECT_FALSE(order.after(order.place())) << "2, 1, 0 was the end";
  order.restart();
  EXPECT_FALSE(order.last());
  order.note(0);
  order.note(1);
  EXPECT_EQ(order.after(order.place()), 2U) << "forward";
  order.note(2);
  EXPECT_EQ(order.after(order.place()), 1U) << "and back";
  EXPECT_EQ(order.after(ReadOrder::behind(order.place(), 1)), 0U);
}

TEST(DeviceBufferTest, AStreamThatWritesNextWaitsForTheReaders) {
  const auto cuda = c10::impl::VirtualGuardImpl(c10::kCUDA);
  const auto reader = cuda.getStreamFromGlobalPool(testing::kGpu), writer = cuda.getStreamFromGlobalPool(testing::kGpu);
  DeviceBuffer buffer{at::zeros({4}, at::TensorOptions(testing::kGpu))};
  bool was_read = false;
  testing::pretend::launch(reader, [&] { was_read = true; });
  std::vector<c10::Stream> readers{reader};

  buffer.note_readers(readers);
  EXPECT_TRUE(readers.empty());
  EXPECT_EQ(buffer.after.size(), 1U);
  buffer.block(writer);
  EXPECT_TRUE(buffer.after.empty());
  bool read_first = false;
  testing::pretend::launch(writer, [&] { read_first = was_read; });
  testing::pretend::settle(writer);

  EXPECT_TRUE(read_first);
}

TEST(DeviceBufferTest, OperatorsInPlainModeRecordNothing) {
  const at::Tensor weight = at::ones({2}, at::TensorOptions().requires_grad(true));
  const c10::InferenceMode inference;
  const PlainMode plain;

  const at::Tensor twice = weight * 2;

  EXPECT_FALSE(twice.requires_grad());
  EXPECT_FALSE(twice.is_inference());
}

}  // namespace
}  // namespace hasten::offload
