#include "hasten/comm/store/store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <arpa/inet.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <filesystem>
#include <future>
#include <thread>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "comm/store/listener.h"
#include "hasten/core/error.h"
#include "support/processes.h"

namespace hasten::comm {
namespace {

using ::testing::HasSubstr;

void expect_it_keeps_values(const Store& store) {
  store.set("a", "1");
  EXPECT_EQ(store.get("a"), "1");
  EXPECT_EQ(store.get("b"), std::nullopt);
  EXPECT_TRUE(store.set_once("c", "first"));
  EXPECT_FALSE(store.set_once("c", "second"));
  EXPECT_EQ(store.get("c"), "first");
  EXPECT_EQ(store.add("n", 2), 2);
  EXPECT_EQ(store.add("n", 3), 5);
  EXPECT_EQ(store.scoped("inner").get("a"), std::nullopt);
}

TEST(Store, ATimeoutWithoutLengthIsRefused) {
  EXPECT_THAT(
      [] { Store::tcp({.host = "127.0.0.1", .server = true, .timeout = std::chrono::milliseconds(0)}); },
      ::testing::ThrowsMessage<UsageError>(HasSubstr("the store's timeout is 0 ms; expected the time to wait")));
}

TEST(Store, InProcessKeepsValues) {
  expect_it_keeps_values(Store::in_process());
}

TEST(Store, TcpKeepsValuesForServerAndClients) {
  const Store server = Store::tcp({.server = true});
  const Store client = Store::tcp({.port = server.port()});

  expect_it_keeps_values(client);
  EXPECT_EQ(server.get("c"), "first");
}

TEST(Store, FileKeepsValues) {
  const auto path = std::filesystem::temp_directory_path() / ("hasten-store-" + std::to_string(getpid()));
  expect_it_keeps_values(Store::file(path.string(), 1));
  std::filesystem::remove(path);
}

TEST(Store, AFileInAMissingFolderIsRefusedByName) {
  try {
    Store::file("/nowhere/at/all/store", 2);
    FAIL() << "no error";
  } catch (const DataError& error) {
    EXPECT_THAT(error.what(), HasSubstr("there is no folder '/nowhere/at/all'"));
  }
}

TEST(Store, ABusyPortIsNamedWithItsRemedy) {
  const Store first = Store::tcp({.server = true});

  try {
    Store::tcp({.port = first.port(), .server = true});
    FAIL() << "no error";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("127.0.0.1:" + std::to_string(first.port()) + ": Address already in use"));
    EXPECT_THAT(error.what(), HasSubstr("MASTER_PORT"));
  }
}

TEST(Store, ClientsMayComeBeforeTheServer) {
  const int port = testing::free_port();
  std::jthread client([&] { Store::tcp({.port = port}).set("from", "the client"); });

  const Store server = Store::tcp({.port = port, .server = true});
  client.join();

  EXPECT_EQ(server.get("from"), "the client");
}

TEST(Store, AServerThatIsNotThereIsNamed) {
  try {
    Store::tcp({.port = testing::free_port(), .timeout = std::chrono::milliseconds(300)});
    FAIL() << "no error";
  } catch (const CommError& error) {
    EXPECT_THAT(error.what(), HasSubstr("no store answered at 127.0.0.1:"));
  }
}

// A network without a way out, and with its loopback down, as an empty network namespace has it.
TEST(Store, NoWayToAnOwnAddressEndsAtOnceWithTheRemedy) {
  EXPECT_TRUE(is_no_way(ENETUNREACH) && is_no_way(EHOSTUNREACH) && is_no_way(EADDRNOTAVAIL));
  EXPECT_FALSE(is_no_way(ECONNREFUSED));
  sockaddr_in loopback{}, documentation{};
  loopback.sin_family = documentation.sin_family = AF_INET;
  loopback.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  documentation.sin_addr.s_addr = htonl(0xC0000201);  // 192.0.2.1, which no machine has
  EXPECT_TRUE(is_own_address(reinterpret_cast<const sockaddr&>(loopback)));
  EXPECT_FALSE(is_own_address(reinterpret_cast<const sockaddr&>(documentation)));
  EXPECT_THAT(words_of_no_way(ENETUNREACH, true), HasSubstr("ip link set lo up"));

  const pid_t child = fork();
  if (child == 0) {
    // Without the right to make a network the child reports that, and the rest is left to machines that have it.
    if (unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) _exit(77);
    addrinfo address{};
    address.ai_family = AF_INET;
    address.ai_socktype = SOCK_STREAM;
    loopback.sin_port = htons(29512);
    address.ai_addr = reinterpret_cast<sockaddr*>(&loopback);
    address.ai_addrlen = sizeof loopback;
    const ListenerAnswer asked = ask_listener(&address);
    _exit(asked.no_way && asked.no_way_here && !asked.listens ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == 77) << status;
}

TEST(Store, AServerThatHasEndedIsNamedWithoutLibtorchsStack) {
  auto server = std::make_unique<Store>(Store::tcp({.server = true}));
  const Store client = Store::tcp({.port = server->port()});
  ::testing::internal::CaptureStderr();
  server.reset();

  std::string words;
  try {
    client.set("a", "1");
  } catch (const CommError& error) {
    words = error.what();
  }
  const std::string log = ::testing::internal::GetCapturedStderr();

  EXPECT_THAT(words, HasSubstr("the store did not answer"));
  EXPECT_THAT(words, ::testing::Not(HasSubstr("frame #")));
  EXPECT_THAT(log, ::testing::Not(HasSubstr("frame #")));
}

TEST(Store, AStoppedServerIsWaitedForNoLongerThanTheTimeout) {
  std::array<int, 2> ports{};
  ASSERT_EQ(pipe(ports.data()), 0);
  const pid_t server = fork();
  if (server == 0) {
    const Store store = Store::tcp({.server = true});
    const int port = store.port();
    if (write(ports[1], &port, sizeof port) != sizeof port) _exit(1);
    while (true) pause();
  }
  int port = 0;
  ASSERT_EQ(read(ports[0], &port, sizeof port), ssize_t{sizeof port});
  const Store client = Store::tcp({.port = port, .timeout = std::chrono::milliseconds(500)});
  client.set("a", "1");
  client.set("b", "2");
  kill(server, SIGSTOP);
  int stopped = 0;
  ASSERT_EQ(waitpid(server, &stopped, WUNTRACED), server);  // it may still answer until then
  // Without a limit the query would wait as long as the server is stopped.
  std::promise<void> answered;
  std::thread rescue([&, end = answered.get_future()] {
    if (end.wait_for(std::chrono::seconds(20)) == std::future_status::timeout) kill(server, SIGKILL);
  });

  std::string words;
  try {
    (void)client.get("a");
  } catch (const CommError& error) {
    words = error.what();
  }
  answered.set_value();
  rescue.join();
  kill(server, SIGCONT);
  EXPECT_THAT(words, HasSubstr("is stopped, or its machine cannot be reached"));
  // An answer that comes late is nobody's.
  EXPECT_THROW((void)client.get("b"), CommError);
  kill(server, SIGKILL);
  waitpid(server, nullptr, 0);
  close(ports[0]);
  close(ports[1]);
}

TEST(Store, TheServerListensOnItsAddressOnly) {
  const Store server = Store::tcp({.host = "127.0.0.1", .server = true});

  EXPECT_THROW(Store::tcp({.host = "127.0.0.2", .port = server.port(), .timeout = std::chrono::milliseconds(300)}),
               CommError);
}

TEST(Store, OneOfLibtorchsIsAdoptedWithItsKeys) {
  auto native = c10::make_intrusive<c10d::HashStore>();
  native->set("theirs", std::vector<uint8_t>{'1'});
  const Store store = Store::adopt(*native);

  store.set("ours", "2");

  EXPECT_EQ(store.get("theirs"), "1");
  EXPECT_EQ(native->get("ours"), std::vector<uint8_t>{'2'});
  native.reset();
  expect_it_keeps_values(store);  // the handle keeps it alive
}

}  // namespace
}  // namespace hasten::comm
