#include "tracking/sinks/mlflow.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "hasten/core/error.h"
#include "support/http_server.h"
#include "tracking/sinks/mlflow_requests.h"
#include "tracking/tracking_support.h"

namespace hasten::tracking {
namespace {

using hasten::testing::HttpServer;
using hasten::testing::HttpServerAnswer;
using hasten::testing::HttpServerRequest;
using ::testing::HasSubstr;
using MlflowRuns = hasten::testing::InFolder;

TEST(MlflowRequests, KeysAreMappedOnceAndClashesGetANumber) {
  mlflow::KeyMap keys;
  std::string changed;

  EXPECT_EQ(keys.map("train/loss", changed), "train/loss");
  EXPECT_EQ(changed, "");
  EXPECT_EQ(keys.map("a%b", changed), "a_b");
  EXPECT_THAT(changed, HasSubstr("'a%b' is shown as 'a_b'"));
  EXPECT_EQ(keys.map("a#b", changed), "a_b_2");
  EXPECT_EQ(keys.map("a%b", changed), "a_b");
  EXPECT_EQ(changed, "");
  EXPECT_EQ(keys.map("/x//y/", changed), "_x/_y_");
  EXPECT_LE(keys.map(std::string(400, 'k'), changed).size(), 250u);
}

TEST(MlflowRequests, BatchesKeepTheServersLimits) {
  mlflow::Batch all;
  for (int i = 0; i < 2500; ++i) all.metrics.push_back({"m", 1.0 * i, 0, i});
  for (int i = 0; i < 250; ++i) all.params.push_back({text("p", i), "v"});
  for (int i = 0; i < 150; ++i) all.tags.push_back({text("t", i), std::string(5000, 'x')});

  const auto batches = mlflow::split(all);

  size_t metrics = 0, params = 0, tags = 0;
  for (const auto& batch : batches) {
    EXPECT_LE(batch.metrics.size(), 1000u);
    EXPECT_LE(batch.params.size(), 100u);
    EXPECT_LE(batch.tags.size(), 100u);
    EXPECT_LE(batch.size(), 1000u);
    EXPECT_LE(mlflow::log_batch_body("run", batch).size(), 1'000'000u);
    metrics += batch.metrics.size();
    params += batch.params.size();
    tags += batch.tags.size();
  }
  EXPECT_EQ(metrics, 2500u);
  EXPECT_EQ(params, 250u);
  EXPECT_EQ(tags, 150u);
}

TEST(MlflowRequests, BodiesAreThoseOfTheInterface) {
  mlflow::Batch batch{{{"loss", 0.5, 1000, 3}, {"nan", std::nan(""), 1, 0}}, {{"lr", "0.1"}}, {}};

  EXPECT_EQ(
      mlflow::log_batch_body("r", batch),
      R"({"run_id":"r","metrics":[{"key":"loss","value":0.5,"timestamp":1000,"step":3},{"key":"nan","value":"NaN","timestamp":1,"step":0}],)"
      R"("params":[{"key":"lr","value":"0.1"}],"tags":[]})");
  EXPECT_EQ(mlflow::image_path("a/b%c", 5, 9, "u"), "images/a~b_c+step+5+timestamp+9+u.png");
  const auto two = mlflow::halves(batch);
  EXPECT_EQ(two[0].size() + two[1].size(), 3u);
  EXPECT_GT(two[0].size(), 0u);
}

// A server that knows as much of MLflow as a run needs.
class FakeMlflow {
 public:
  explicit FakeMlflow(std::function<HttpServerAnswer(const HttpServerRequest&)> first = {})
      : server([this, first](const HttpServerRequest& request) {
          if (first) {
            HttpServerAnswer own = first(request);
            if (own.status != 0) return own;
          }
          return answer(request);
        }) {}

  std::string bodies(const std::string& call) const {
    std::string all;
    for (const auto& request : server.requests()) {
      if (request.path.find(call) != std::string::npos) all += request.body + "\n";
    }
    return all;
  }

 private:
  HttpServerAnswer answer(const HttpServerRequest& request) {
    if (request.path.find("get-by-name") != std::string::npos)
      return {404, R"({"error_code":"RESOURCE_DOES_NOT_EXIST"})"};
    if (request.path.find("experiments/create") != std::string::npos) return {200, R"({"experiment_id":"7"})"};
    if (request.path.find("runs/create") != std::string::npos) {
      return {200, R"({"run":{"info":{"run_id":"abc","artifact_uri":"mlflow-artifacts:/7/abc/artifacts"}}})"};
    }
    return {200, "{}"};
  }

 public:
  HttpServer server;
};

// Hands a run to the tracker through a follower, and returns what it said.
std::string follow(const std::filesystem::path& folder, FakeMlflow& fake,
                   const std::map<std::string, std::string>& more = {}, int num_metrics = 3) {
  auto setup = setup_in(folder, {"journal"});
  Trackers trackers(setup);
  trackers.init("p", {{"lr", 0.1}, {"long", std::string(7000, 'x')}});
  for (int step = 0; step < num_metrics; ++step) trackers.log({{"loss", step * 0.5}, {"word", "hi"}}, step);
  trackers.log_images({{"a/b", Image{1, 1, 3, {1, 2, 3}}}}, 2);
  trackers.log_table("t", {{"a"}, {{1}}}, 2);
  trackers.finish();
  auto variables = more;
  variables["MLFLOW_TRACKING_URI"] = fake.server.url();
  std::string said;
  Follower follower({.journal = folder / "p/run/journal.jsonl",
                     .sinks = {{.name = "mlflow", .options = {}, .tracker = {}}},
                     .environment = environment_with(variables),
                     .warn = [&](const std::string& line) { said += line + "\n"; },
                     .poll_interval = std::chrono::milliseconds(5),
                     .first_backoff_s = 0.01,
                     .most_failures = 5});
  follower.close();
  follower.wait(std::chrono::seconds(20));
  return said;
}

TEST_F(MlflowRuns, ARunIsMadeFilledAndEnded) {
  FakeMlflow fake;

  const std::string said =
      follow(folder_, fake, {{"MLFLOW_TRACKING_USERNAME", "u"}, {"MLFLOW_TRACKING_PASSWORD", "p"}});

  EXPECT_THAT(fake.bodies("experiments/create"), HasSubstr(R"("name":"p")"));
  EXPECT_THAT(fake.bodies("runs/create"), HasSubstr(R"("experiment_id":"7")"));
  EXPECT_THAT(fake.bodies("log-batch"), HasSubstr(R"({"key":"loss","value":1.0)"));
  EXPECT_THAT(fake.bodies("log-batch"), HasSubstr(R"({"key":"text/word","value":"hi"})"));
  EXPECT_THAT(fake.bodies("log-batch"), HasSubstr(R"({"key":"lr","value":"0.1"})"));
  EXPECT_THAT(fake.bodies("artifacts/7/abc/artifacts/images/a~b"), HasSubstr("PNG"));
  EXPECT_THAT(fake.bodies("artifacts/7/abc/artifacts/t.json"), HasSubstr(R"({"columns":["a"],"data":[[1]]})"));
  EXPECT_THAT(fake.bodies("artifacts/7/abc/artifacts/params/long.txt"), HasSubstr("xxx"));
  EXPECT_THAT(fake.bodies("runs/update"), HasSubstr(R"("status":"FINISHED")"));
  EXPECT_THAT(said, HasSubstr("'long' has 7000 bytes"));
  EXPECT_EQ(fake.server.requests()[0].headers.at("Authorization"), "Basic dTpw");
}

TEST_F(MlflowRuns, ABadEntryIsFoundNamedAndLeftOut) {
  FakeMlflow fake([](const HttpServerRequest& request) {
    const bool bad = request.path.find("log-batch") != std::string::npos &&
                     request.body.find(R"("value":1.0,)") != std::string::npos;
    return bad ? HttpServerAnswer{400, R"({"error_code":"INVALID_PARAMETER_VALUE"})"} : HttpServerAnswer{0};
  });

  const std::string said = follow(folder_, fake);

  EXPECT_THAT(said, HasSubstr("refused the metric 'loss' of step 2"));
  EXPECT_THAT(fake.bodies("runs/update"), HasSubstr("FINISHED"));
}

TEST_F(MlflowRuns, ATooBusyServerIsAskedAgainAfterTheTimeItNames) {
  std::atomic<int> refusals = 0;
  FakeMlflow fake([&](const HttpServerRequest& request) {
    const bool busy = request.path.find("log-batch") != std::string::npos && refusals++ == 0;
    return busy ? HttpServerAnswer{429, "", "Retry-After: 1\r\n"} : HttpServerAnswer{0};
  });

  const std::string said = follow(folder_, fake);

  EXPECT_EQ(said.find("failed"), std::string::npos) << said;
  EXPECT_THAT(fake.bodies("runs/update"), HasSubstr("FINISHED"));
}

TEST_F(MlflowRuns, AServerThatFailsForAWhileGetsEverything) {
  std::atomic<int> failures = 0;
  FakeMlflow fake([&](const HttpServerRequest&) {
    return failures++ < 3 ? HttpServerAnswer{.status = 503, .hang_up = failures % 2 == 0} : HttpServerAnswer{0};
  });

  follow(folder_, fake, {}, 1500);

  EXPECT_THAT(fake.bodies("log-batch"), HasSubstr(R"("step":1499)"));
  EXPECT_THAT(fake.bodies("runs/update"), HasSubstr("FINISHED"));
}

TEST_F(MlflowRuns, AWrongPasswordParksTheTrackerAtOnceAndSaysWhatToSet) {
  FakeMlflow fake([](const HttpServerRequest&) { return HttpServerAnswer{401, "who are you"}; });

  const std::string said = follow(folder_, fake);

  EXPECT_THAT(said, HasSubstr("is given up"));
  EXPECT_THAT(said, HasSubstr("MLFLOW_TRACKING_USERNAME"));
  EXPECT_THAT(said, HasSubstr("hasten track sync"));
  EXPECT_EQ(fake.server.requests().size(), 1u);
  EXPECT_TRUE(read_ack(folder_ / "p/run/journal.jsonl", "mlflow").parked);
}

}  // namespace
}  // namespace hasten::tracking
