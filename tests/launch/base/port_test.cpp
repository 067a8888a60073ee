#include "hasten/launch/base/port.h"

#include <gtest/gtest.h>

#include "launch/listener.h"

namespace hasten::launcher {
namespace {

TEST(Port, AFreePortCanBeListenedOn) {
  const int port = free_port();

  EXPECT_TRUE(port_is_free(port));
  EXPECT_TRUE(test::Listener(port).listening());
}

TEST(Port, IsNotFreeWhileSomeoneListensOnOneAddress) {
  const test::Listener listener;

  EXPECT_FALSE(port_is_free(listener.port()));
}

}  // namespace
}  // namespace hasten::launcher
