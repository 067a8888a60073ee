#include "hasten/core/socket.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include "hasten/core/error.h"

namespace hasten::net {
namespace {

using std::chrono::milliseconds;

bool has_input(const Socket& socket) {
  pollfd source{socket.handle(), POLLIN, 0};
  return poll(&source, 1, 5000) == 1;
}

TEST(Socket, TwoThatAreConnectedKnowBothEnds) {
  const auto [listener, problem] = listen_at({"127.0.0.1", 0});
  ASSERT_GE(listener.handle(), 0) << problem;
  const Endpoint where = local_end(listener);
  EXPECT_EQ(where.host, "127.0.0.1");
  EXPECT_GT(where.port, 0);
  EXPECT_LT(accept_from(listener).first.handle(), 0);

  const auto caller = connect_within(where, milliseconds(5000)).first;
  ASSERT_GE(caller.handle(), 0);
  ASSERT_TRUE(has_input(listener));
  const auto [called, from] = accept_from(listener);
  EXPECT_EQ(from, "127.0.0.1");
  EXPECT_EQ(remote_end(caller), where);
  EXPECT_EQ(remote_end(called), local_end(caller));

  ASSERT_EQ(send(caller.handle(), "x", 1, 0), 1);
  char letter = 0;
  ASSERT_TRUE(has_input(called));
  EXPECT_EQ(recv(called.handle(), &letter, 1, 0), 1);
  EXPECT_EQ(letter, 'x');
}

TEST(Socket, ClosesItsHandleOnce) {
  Socket first = listen_at({"127.0.0.1", 0}).first;
  const Endpoint where = local_end(first);
  Socket second = std::move(first);
  EXPECT_EQ(local_end(second), where);
  second = Socket();
  const auto [nothing, problem] = connect_within(where, milliseconds(1000));
  EXPECT_LT(nothing.handle(), 0);
  EXPECT_EQ(problem, "Connection refused");
}

TEST(Socket, NamesThatAreUnknownAreSaidSo) {
  EXPECT_THAT(
      [] {
        connect_to({"no.such.host.invalid", 1});
      },
      ::testing::ThrowsMessage<UsageError>(::testing::HasSubstr("the address 'no.such.host.invalid' is unknown")));
  EXPECT_FALSE(listen_at({"no.such.host.invalid", 0}).second.empty());
}

TEST(Socket, AnInterfaceHasAnAddress) {
  EXPECT_EQ(address_of_interface("lo"), "127.0.0.1");
  EXPECT_EQ(address_of_interface("none0"), "");
  EXPECT_EQ(interface_towards("127.0.0.1"), "lo");
  EXPECT_EQ(address_towards({"127.0.0.1", 9}), "127.0.0.1");
}

TEST(Socket, EndpointsAreShownAsUsersWriteThem) {
  EXPECT_EQ(shown({"h", 1}), "h:1");
  EXPECT_EQ(shown({"::1", 2}), "[::1]:2");
  EXPECT_TRUE(is_loopback("127.0.1.1"));
  EXPECT_FALSE(is_loopback("10.0.0.1"));
  EXPECT_TRUE(is_this_machine(host_name()));
  EXPECT_FALSE(is_this_machine("192.0.2.1"));
}

}  // namespace
}  // namespace hasten::net
