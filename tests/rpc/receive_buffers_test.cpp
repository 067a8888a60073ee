// Memory of tensors that arrive, from one use to the next.
#include "rpc/receive_buffers.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

namespace hasten::rpc {
namespace {

constexpr size_t kMb = size_t{1} << 20;

TEST(ReceiveBuffers, ALargeBlockIsUsedAgainForAboutItsSize) {
  auto& buffers = ReceiveBuffers::get();
  auto first = buffers.allocate(40 * kMb);
  void* const memory = first.get();
  std::memset(memory, 7, 40 * kMb);
  first.clear();

  EXPECT_NE(buffers.allocate(20 * kMb).get(), memory) << "half of it would be idle";
  const auto second = buffers.allocate(39 * kMb);

  EXPECT_EQ(second.get(), memory);
  std::memset(second.get(), 8, 39 * kMb);
}

TEST(ReceiveBuffers, SmallPiecesAreNotKept) {
  auto& buffers = ReceiveBuffers::get();
  const size_t kept_before = buffers.kept_bytes();

  buffers.allocate(ReceiveBuffers::kSmallestBytes - 1).clear();

  EXPECT_EQ(buffers.kept_bytes(), kept_before);
}

TEST(ReceiveBuffers, NoMoreThanTheMostIsKept) {
  auto& buffers = ReceiveBuffers::get();
  std::vector<c10::DataPtr> many;
  for (int i = 0; i < 10; ++i) many.push_back(buffers.allocate(60 * kMb));

  many.clear();
  EXPECT_LE(buffers.kept_bytes(), ReceiveBuffers::kMostKeptBytes);
  EXPECT_GT(buffers.kept_bytes(), ReceiveBuffers::kMostKeptBytes - 60 * kMb) << "what may be kept is";

  const size_t kept = buffers.kept_bytes();
  buffers.allocate(ReceiveBuffers::kMostKeptBytes + kMb).clear();
  EXPECT_EQ(buffers.kept_bytes(), kept);
}

}  // namespace
}  // namespace hasten::rpc
