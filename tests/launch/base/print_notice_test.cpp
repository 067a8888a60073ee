#include "launch/base/print_notice.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

namespace hasten::launcher {
namespace {

TEST(Say, ALineIsOneWrite) {
  int ends[2];  // each write is a message
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends), 0);
  const int before = dup(STDERR_FILENO);
  dup2(ends[1], STDERR_FILENO);

  print_notice("stopping");

  dup2(before, STDERR_FILENO);
  char message[64];
  const ssize_t size = recv(ends[0], message, sizeof message, MSG_DONTWAIT);
  EXPECT_EQ(std::string(message, static_cast<size_t>(std::max<ssize_t>(size, 0))), "hasten: stopping\n");
  for (const int descriptor : {before, ends[0], ends[1]}) close(descriptor);
}

}  // namespace
}  // namespace hasten::launcher
