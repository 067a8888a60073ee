#include "hasten/comm/store/store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <thread>

#include "hasten/core/error.h"

namespace hasten::comm {
namespace {

using ::testing::HasSubstr;

// The stores of one process: of two kinds, and the client of a server.
struct KindOfStore {
  const char* name;
  Store store;
  Store served = store;
};

std::vector<KindOfStore> kinds() {
  const Store server = Store::tcp({.server = true});
  return {{"memory", Store::in_process()}, {"tcp", Store::tcp({.port = server.port()}), server}};
}

TEST(StoreRanks, CompareSetReplacesOnlyWhatIsExpected) {
  for (const auto& [name, store, served] : kinds()) {
    EXPECT_EQ(store.compare_set("k", "", "first"), "first") << name;
    EXPECT_EQ(store.compare_set("k", "other", "second"), "first") << name;
    EXPECT_EQ(store.compare_set("k", "first", "second"), "second") << name;
    EXPECT_EQ(store.get("k"), "second") << name;
    EXPECT_EQ(store.compare_set("absent", "something", "x"), "something") << name;
    EXPECT_EQ(store.get("absent"), std::nullopt) << name;
  }
}

TEST(StoreRanks, ADeletedKeyIsGoneAndCountedNoMore) {
  for (const auto& [name, store, served] : kinds()) {
    const int64_t before = store.num_keys();
    store.set("a", "1");
    store.set("b", "2");

    EXPECT_EQ(store.num_keys(), before + 2) << name;
    EXPECT_TRUE(store.delete_key("a")) << name;
    EXPECT_FALSE(store.delete_key("a")) << name;
    EXPECT_EQ(store.num_keys(), before + 1) << name;
    EXPECT_EQ(store.get("a"), std::nullopt) << name;
  }
}

TEST(StoreRanks, AWaitEndsWithTheLastKeyAndNamesTheMissingOnes) {
  for (const auto& [name, store, served] : kinds()) {
    const Store inner = store.scoped("p");
    std::jthread setter([&inner] {
      inner.set("x", "");
      inner.set("y", "");
    });

    inner.wait({"x", "y"});
    EXPECT_TRUE(inner.get("y").has_value()) << name;
    EXPECT_THAT(
        [&] {
          inner.wait({"x", "never", "neither"}, std::chrono::milliseconds(20));
        },
        ::testing::ThrowsMessage<CommError>(HasSubstr("after 0.02 s the store has no 'never', 'neither'")))
        << name;
  }
}

}  // namespace
}  // namespace hasten::comm
