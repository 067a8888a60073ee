#include "hasten/core/http.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "hasten/core/error.h"
#include "support/folder.h"
#include "support/http_server.h"

namespace hasten {
namespace {

using hasten::testing::HttpServer;
using hasten::testing::HttpServerAnswer;
using hasten::testing::HttpServerRequest;
using ::testing::HasSubstr;

using Http = hasten::testing::InFolder;

TEST_F(Http, MethodBodyAndHeadersReachTheServerAndItsAnswerComesBack) {
  HttpServer server([](const HttpServerRequest& request) {
    return HttpServerAnswer{201, request.method + " " + request.path + " " + request.body, "X-Name: v\r\n"};
  });
  http::Client client({.use_proxy = false});

  const auto posted =
      client.send({.method = "POST", .url = server.url() + "/a?b=c", .headers = {{"X-Mine", "7"}}, .body = "{}"});
  const auto got = client.send({.url = server.url() + "/"});
  const auto head = client.send({.method = "HEAD", .url = server.url() + "/h"});
  const auto deleted = client.send({.method = "DELETE", .url = server.url() + "/d"});

  EXPECT_EQ(posted.status, 201);
  EXPECT_EQ(posted.body, "POST /a?b=c {}");
  EXPECT_EQ(posted.header("x-name"), "v");
  EXPECT_EQ(posted.header("x-other"), "");
  EXPECT_EQ(server.requests()[0].headers.at("X-Mine"), "7");
  EXPECT_EQ(got.body, "GET / ");
  EXPECT_EQ(head.status, 201);
  EXPECT_EQ(head.body, "");
  EXPECT_EQ(deleted.body, "DELETE /d ");
}

TEST_F(Http, AFileIsSentAsABody) {
  HttpServer server([](const HttpServerRequest&) { return HttpServerAnswer{200}; });
  const std::string file = write("body", std::string(300000, 'x'));
  http::Client client({.use_proxy = false});

  const auto answer =
      client.send({.method = "PUT", .url = server.url() + "/f", .headers = {{"Expect", ""}}, .body_file = file});

  EXPECT_EQ(answer.status, 200) << answer.error;
  EXPECT_EQ(server.requests()[0].method, "PUT");
  EXPECT_EQ(server.requests()[0].body.size(), 300000u);
  EXPECT_THROW(client.send({.method = "PUT", .url = server.url(), .body_file = path("none")}), DataError);
}

TEST_F(Http, ALongAnswerIsAnErrorUnlessItIsTakenPieceByPiece) {
  HttpServer server([](const HttpServerRequest&) { return HttpServerAnswer{200, std::string(5000, 'y')}; });
  http::Client client({.use_proxy = false, .max_body_bytes = 1000});
  size_t taken = 0;

  const auto refused = client.send({.url = server.url()});
  const auto whole = client.send(
      {.url = server.url(), .on_data = [&](std::string_view piece) { return taken += piece.size(), true; }});
  const auto ended = client.send({.url = server.url(), .on_data = [](std::string_view) { return false; }});

  EXPECT_EQ(refused.status, 0);
  EXPECT_THAT(refused.error, HasSubstr("longer than 1000 bytes"));
  EXPECT_EQ(whole.status, 200);
  EXPECT_EQ(taken, 5000u);
  EXPECT_EQ(ended.status, 0);
}

TEST_F(Http, NoAnswerIsAValueThatSaysWhy) {
  HttpServer server([](const HttpServerRequest&) { return HttpServerAnswer{.hang_up = true}; });
  http::Client client({.connect_timeout = std::chrono::seconds(2), .use_proxy = false});

  const auto hung_up = client.send({.url = server.url()});
  const auto refused = client.send({.url = "http://127.0.0.1:1/"});
  const auto nonsense = client.send({.url = "no scheme"});

  for (const auto& answer : {hung_up, refused, nonsense}) {
    EXPECT_EQ(answer.status, 0);
    EXPECT_NE(answer.error, "");
  }
}

TEST_F(Http, ARedirectIsFollowedOnlyIfAsked) {
  HttpServer server([](const HttpServerRequest& request) {
    return request.path == "/there" ? HttpServerAnswer{200, "found"}
                                    : HttpServerAnswer{302, "", "Location: /there\r\n"};
  });
  http::Client follows({.use_proxy = false, .follow_redirects = true});
  http::Client stays({.use_proxy = false});

  const auto found = follows.send({.url = server.url() + "/here"});
  const auto moved = stays.send({.url = server.url() + "/here"});

  EXPECT_EQ(found.body, "found");
  EXPECT_EQ(found.url, server.url() + "/there");
  EXPECT_EQ(moved.status, 302);
  EXPECT_EQ(moved.header("location"), "/there");
}

TEST_F(Http, ARequestCanBeCancelled) {
  HttpServer server([](const HttpServerRequest&) {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    return HttpServerAnswer{200};
  });
  http::Client client({.use_proxy = false, .cancelled = [] { return true; }});

  EXPECT_EQ(client.send({.url = server.url()}).error, "cancelled");
}

TEST(HttpText, IsEncodedAsTheStandardsSay) {
  EXPECT_EQ(http::basic_authorization("Aladdin", "open sesame"), "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==");
  EXPECT_EQ(http::percent_encoded("a b/\xc3\xa9-~"), "a%20b%2F%C3%A9-~");
  EXPECT_EQ(http::percent_encoded("a b/c", "/"), "a%20b/c");
}

}  // namespace
}  // namespace hasten
