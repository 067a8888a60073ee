#include "launch/rendezvous/etcd.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "hasten/core/base64.h"

namespace hasten::launcher {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Answers in turn, and keeps what was asked.
class Server {
 public:
  explicit Server(std::vector<HttpAnswer> answers) : answers_(std::move(answers)) {}

  EtcdClaim claim(const std::string& user = "") {
    return {[this](const HttpRequest& request) {
              asked.push_back(request.url.substr(request.url.rfind("/v3")));
              bodies.push_back(request.body);
              authorizations.push_back(request.authorization);
              if (next_ == answers_.size()) throw std::runtime_error("asked too often");
              return answers_[next_++];
            },
            {.url = "http://etcd:2379", .key = "/hasten/run/host", .user = user, .ttl_s = 5}};
  }

  std::vector<std::string> asked, bodies, authorizations;

 private:
  std::vector<HttpAnswer> answers_;
  size_t next_ = 0;
};

HttpAnswer granted(const std::string& lease) {
  return {200, R"({"header":{},"ID":")" + lease + R"(","TTL":"5"})"};
}
const HttpAnswer kMade = {200, R"({"header":{},"succeeded":true,"responses":[{"response_put":{}}]})"};
HttpAnswer held_by(const std::string& value) {
  return {200, R"({"header":{},"responses":[{"response_range":{"kvs":[{"key":"a","value":")" + base64(value) +
                   R"("}],"count":"1"}}]})"};
}

TEST(EtcdClaim, WhoCreatesTheKeyHoldsIt) {
  Server server({granted("77"), kMade});
  EtcdClaim claim = server.claim();

  EXPECT_EQ(claim.refresh("h:1"), "h:1");
  EXPECT_THAT(server.asked, ElementsAre("/v3/lease/grant", "/v3/kv/txn"));
  EXPECT_EQ(server.bodies[0], R"({"TTL":5})");
  EXPECT_THAT(server.bodies[1], HasSubstr(R"("create_revision":"0")"));
  EXPECT_THAT(server.bodies[1], HasSubstr(R"("lease":"77")"));
  EXPECT_THAT(server.bodies[1], HasSubstr(base64("/hasten/run/host")));
}

TEST(EtcdClaim, AUserLogsInAndOnceMoreWhenTheTokenHasRunOut) {
  const auto token = [](const std::string& word) { return HttpAnswer{200, R"({"token":")" + word + R"("})"}; };
  const HttpAnswer run_out = {401, R"({"error":"etcdserver: invalid auth token"})"};
  Server server({token("one"), granted("77"), kMade, run_out, token("two"), held_by("other:2")});
  EtcdClaim claim = server.claim("me:pass:word");

  EXPECT_EQ(claim.refresh("h:1"), "h:1");
  EXPECT_EQ(claim.look(), "");

  EXPECT_EQ(server.bodies[0], R"({"name":"me","password":"pass:word"})");
  EXPECT_THAT(server.authorizations, ElementsAre("", "one", "one", "one", "", "two"));
  EXPECT_EQ(server.asked[4], "/v3/auth/authenticate");
}

TEST(EtcdClaim, AUserWhoIsNotLetInIsNamedWithoutThePassword) {
  Server server({{400, R"({"error":"authentication failed, invalid user ID or password"})"}});
  EtcdClaim claim = server.claim("me:wrong");

  EXPECT_FALSE(claim.look());
  EXPECT_EQ(claim.error(),
            "user 'me' cannot log in: HTTP status 400: {\"error\":\"authentication failed, invalid user ID or "
            "password\"}. Correct HASTEN_ETCD_USER (name:password)");
}

TEST(EtcdClaim, WhoComesLaterLearnsWhoHoldsIt) {
  Server server({granted("77"), held_by("other:2")});

  EXPECT_EQ(server.claim().refresh("h:1"), "other:2");
}

TEST(EtcdClaim, ALeaseThatRanOutIsGrantedAnew) {
  Server server({granted("77"), kMade, {200, R"({"result":{"header":{},"ID":"77"}})"}, granted("78"), kMade});
  EtcdClaim claim = server.claim();
  claim.refresh("h:1");

  EXPECT_EQ(claim.refresh("h:1"), "h:1");
  EXPECT_THAT(server.asked,
              ElementsAre("/v3/lease/grant", "/v3/kv/txn", "/v3/lease/keepalive", "/v3/lease/grant", "/v3/kv/txn"));
}

TEST(EtcdClaim, IsGivenBackWithItsLease) {
  Server server({granted("77"), kMade, {200, "{}"}});
  EtcdClaim claim = server.claim();
  claim.refresh("h:1");

  claim.release();
  claim.release();

  EXPECT_EQ(server.asked.back(), "/v3/lease/revoke");
  EXPECT_EQ(server.asked.size(), 3u);
}

TEST(EtcdClaim, WhatGoesWrongIsNamed) {
  const std::vector<std::pair<HttpAnswer, std::string>> cases = {
      {{0, "", "Couldn't connect to server"}, "Couldn't connect to server"},
      {{404, "404 page not found"}, "HTTP status 404: 404 page not found"},
      {{200, "<html>"}, "it granted no lease: <html>"}};
  for (const auto& [answer, error] : cases) {
    Server server({answer});
    EtcdClaim claim = server.claim();

    EXPECT_FALSE(claim.refresh("h:1"));
    EXPECT_EQ(claim.error(), error);
  }
}

}  // namespace
}  // namespace hasten::launcher
