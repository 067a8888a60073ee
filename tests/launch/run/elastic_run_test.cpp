#include "hasten/launch/run/elastic_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "hasten/core/error.h"

namespace hasten::launcher {
namespace {

// What runs is shown by tests/cli/elastic_cli_test.cpp, with launchers that can be killed.
std::string refused(const ElasticOptions& elastic, std::map<std::string, std::string> variables = {}) {
  try {
    run_elastic(1, {}, elastic, {.inherited = Environment::of(std::move(variables))},
                [](const WorkerPlace&, const Environment&) { return 0; });
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(ElasticRun, NeedsAnEndpointThatIsOne) {
  EXPECT_EQ(refused({.endpoint = "h:port"}),
            "[launch] --rdzv_endpoint: 'h:port' has no port between 0 and 65535 behind the colon.");
}

TEST(ElasticRun, NeedsASecretOnANetwork) {
  EXPECT_THAT(refused({.endpoint = "192.0.2.1:1"}), ::testing::HasSubstr("need a secret that they share"));
}

}  // namespace
}  // namespace hasten::launcher
