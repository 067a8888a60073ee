// What happens on a machine that was started on; the whole way is tests/cli/hostfile_cli_test.cpp's.
#include "hasten/launch/remote/remote_run.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "hasten/core/error.h"

namespace hasten::launcher {
namespace {

int no_launch(const RemoteTask&) {
  return 0;
}

TEST(RemoteRun, TheTaskIsDoneInItsFolderWithItsVariables) {
  const std::string task = to_text({"/usr", {{"HASTEN_LOG_LEVEL", "debug"}}, {"--cpu", "true"}});
  const auto launch = [](const RemoteTask& given) {
    const bool good = given.words == std::vector<std::string>{"--cpu", "true"} &&
                      std::filesystem::current_path() == "/usr" &&
                      Environment::current().text("HASTEN_LOG_LEVEL") == "debug";
    return good ? 9 : 1;
  };

  EXPECT_EXIT(std::exit(serve_remote("watch-parent", task, launch)), ::testing::ExitedWithCode(9), "");
}

TEST(RemoteRun, SaysWhatIsWrongWithATaskOrItsFolder) {
  EXPECT_THROW(serve_remote("wait", "", no_launch), UsageError);
  EXPECT_EXIT(std::exit(serve_remote("watch-parent", "xyz", no_launch)), ::testing::ExitedWithCode(2),
              "Is the same version of hasten on all machines");
  EXPECT_EXIT(std::exit(serve_remote("watch-parent", to_text({"/no/such", {}, {}}), no_launch)),
              ::testing::ExitedWithCode(2), "the folder '/no/such' of this run is not on this machine");
}

}  // namespace
}  // namespace hasten::launcher
