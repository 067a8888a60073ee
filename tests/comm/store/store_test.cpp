#include "hasten/comm/store/store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <filesystem>
#include <thread>

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

TEST(Store, TheServerListensOnItsAddressOnly) {
  const Store server = Store::tcp({.host = "127.0.0.1", .server = true});

  EXPECT_THROW(Store::tcp({.host = "127.0.0.2", .port = server.port(), .timeout = std::chrono::milliseconds(300)}),
               CommError);
}

}  // namespace
}  // namespace hasten::comm
