#include "hasten/offload/units/named_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "hasten/core/memory_file.h"
#include "support/sanitizers.h"

namespace hasten::offload {
namespace {

class NamedMemoryTest : public ::testing::Test {
 protected:
  const Mapping pages_ = MemoryFile::create("test", 8192).map(Mapping::Access::kRead);
};

TEST_F(NamedMemoryTest, AWriteEndsTheProcessWithTheName) {
  EXPECT_EXIT(
      {
        const NamedMemory weight(pages_.data(), 100, "fc.weight");
        const NamedMemory bias(pages_.data() + 128, 64, "fc.bias");
        pages_.data()[160] = std::byte{1};
      },
      testing::ended_by(SIGSEGV), "'fc.bias' at byte 32");
}

TEST_F(NamedMemoryTest, AFaultElsewhereIsLeftToTheHandlerBefore) {
  EXPECT_EXIT(
      {
        signal(SIGSEGV, [](int) { _exit(17); });
        const NamedMemory weight(pages_.data(), 100, "fc.weight");
        pages_.data()[5000] = std::byte{1};
      },
      ::testing::ExitedWithCode(17), "^$");
}

TEST_F(NamedMemoryTest, ANameGoesWithItsObject) {
  EXPECT_EXIT(
      {
        { const NamedMemory weight(pages_.data(), 100, "fc.weight"); }
        pages_.data()[10] = std::byte{1};
      },
      testing::ended_by(SIGSEGV), ::testing::Not(::testing::HasSubstr("fc.weight")));
}

}  // namespace
}  // namespace hasten::offload
