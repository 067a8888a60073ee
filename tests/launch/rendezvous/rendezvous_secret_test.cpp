#include "launch/rendezvous/rendezvous_secret.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "hasten/core/error.h"

namespace hasten::launcher {
namespace {

using ::testing::HasSubstr;

class RunSecretTest : public ::testing::Test {
 protected:
  RunSecretTest() {
    std::string name = ::testing::TempDir() + "hasten_secret_XXXXXX";
    folder_ = mkdtemp(name.data());
  }
  ~RunSecretTest() override { std::filesystem::remove_all(folder_); }

  std::string file(const std::string& text, int mode) const {
    const std::string path = folder_ / "secret";
    std::ofstream(path) << text;
    chmod(path.c_str(), static_cast<mode_t>(mode));
    return path;
  }
  Environment here(std::map<std::string, std::string> more = {}) const {
    more["TMPDIR"] = folder_;
    return Environment::of(std::move(more));
  }
  static std::string refused(const Environment& environment, bool one_machine = false) {
    try {
      RunSecret(environment, "run", 1, one_machine);
    } catch (const UsageError& error) {
      return error.what();
    }
    return "";
  }

  std::filesystem::path folder_;
};

TEST_F(RunSecretTest, TheFileAndTheVariableGiveTheSameKeyForARunOnly) {
  const std::string secret = "0123456789abcdef0123456789abcdef";
  const Environment by_file = here({{"HASTEN_RDZV_SECRET_FILE", file(secret + "\n", 0600)}});
  const Environment by_value = here({{"HASTEN_RDZV_SECRET", secret}});

  EXPECT_EQ(RunSecret(by_file, "run", 1, false).run_key(), RunSecret(by_value, "run", 2, true).run_key());
  EXPECT_NE(RunSecret(by_file, "run", 1, false).run_key(), RunSecret(by_file, "other", 1, false).run_key());
}

TEST_F(RunSecretTest, OnOneMachineTheFirstMakesItAndTheOthersReadIt) {
  const RunSecret first(here(), "run", 1, true), second(here(), "run", 1, true), other(here(), "run", 2, true);

  EXPECT_EQ(first.run_key(), second.run_key());
  EXPECT_NE(first.run_key(), other.run_key());
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_)) {
    const auto others =
        entry.status().permissions() & (std::filesystem::perms::group_all | std::filesystem::perms::others_all);
    EXPECT_EQ(others, std::filesystem::perms::none) << entry;
  }
  first.remove();
  other.remove();
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
}

TEST_F(RunSecretTest, WhatIsNoSecretIsRefusedWithTheRemedy) {
  EXPECT_THAT(refused(here()), HasSubstr("nodes on several machines need a secret that they share"));
  EXPECT_THAT(refused(here({{"HASTEN_RDZV_SECRET", "short"}})),
              HasSubstr("(HASTEN_RDZV_SECRET) has 5 characters; expected at least 16"));
  EXPECT_THAT(refused(here({{"HASTEN_RDZV_SECRET_FILE", file(std::string(32, 'x'), 0644)}})),
              HasSubstr("others can read or change it"));
  EXPECT_THAT(refused(here({{"HASTEN_RDZV_SECRET_FILE", folder_ / "none"}})), HasSubstr("there is no such file"));
}

TEST_F(RunSecretTest, AFolderThatOthersCanReadIsNotUsed) {
  const std::string path = folder_ / ("hasten_" + std::to_string(geteuid()));
  mkdir(path.c_str(), 0700);
  chmod(path.c_str(), 0755);

  EXPECT_THAT(refused(here(), true), HasSubstr("must be a folder that only you can read"));
}

}  // namespace
}  // namespace hasten::launcher
