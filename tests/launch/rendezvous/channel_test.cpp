#include "launch/rendezvous/channel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include "hasten/core/error.h"
#include "launch/rendezvous/rendezvous_wire.h"

namespace hasten::launcher {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Two ends of a connection, made by a listener on loopback.
struct Pair {
  Pair(const Bytes& server_key, const Bytes& client_key) : Pair(connected(), server_key, client_key) {}
  Pair(std::pair<Socket, Socket> ends, const Bytes& server_key, const Bytes& client_key)
      : server(std::move(ends.first), Channel::Side::kServer, server_key),
        client(std::move(ends.second), Channel::Side::kClient, client_key) {}

  static std::pair<Socket, Socket> connected() {
    const Socket listener = listen_at({"127.0.0.1", 0}).first;
    Socket client = connect_to(local_end(listener));
    Socket server = accept_from(listener).first;
    return {std::move(server), std::move(client)};
  }

  // Lets both read what the other has sent, until nothing is on its way; what has arrived at the server.
  std::vector<std::string> exchange() {
    std::vector<std::string> texts;
    for (int turn = 0; turn < 8; ++turn) {
      for (Channel* channel : {&client, &server}) {
        std::vector<pollfd> source;
        channel->add_source(source);
        if (source.empty() || poll(source.data(), 1, channel == &client ? 5 : 0) <= 0) continue;
        for (std::string& text : channel->pump()) {
          if (channel == &server) texts.push_back(std::move(text));
        }
      }
    }
    return texts;
  }

  Channel server, client;
};

const Bytes kKey(32, 'k');

TEST(Channel, CarriesTextsBetweenTwoThatKnowTheKey) {
  Pair pair(kKey, kKey);
  pair.client.send("one");
  pair.client.send(std::string(100000, 'x'));

  EXPECT_THAT(pair.exchange(), ElementsAre("one", std::string(100000, 'x')));
  EXPECT_TRUE(pair.server.ready());
  EXPECT_TRUE(pair.client.ready());
}

TEST(Channel, WhoDoesNotKnowTheKeyIsRefused) {
  Pair pair(kKey, Bytes(32, 'w'));
  pair.client.send("let me in");

  EXPECT_THAT(pair.exchange(), IsEmpty());
  EXPECT_TRUE(pair.server.refused());
  EXPECT_EQ(pair.server.why_closed(), "it does not know the run's secret");
  EXPECT_TRUE(pair.client.refused());
  EXPECT_EQ(pair.client.why_closed(), "it refused this node: the run's secret differs");
}

TEST(Channel, AServerThatEndsInTheHandshakeHasRefusedNobody) {
  auto [server, socket] = Pair::connected();
  Channel client(std::move(socket), Channel::Side::kClient, kKey);
  const std::string greeting = "hasten 1" + std::string(32, 's');
  send(server.handle(), greeting.data(), greeting.size(), 0);
  std::string sent(64, '\0');
  const auto next = [&] {
    std::vector<pollfd> source;
    client.add_source(source);
    poll(source.data(), source.size(), -1);
    client.pump();
  };

  for (size_t size = 0; size < sent.size();) {  // the client's nonce and proof
    next();
    const ssize_t more = recv(server.handle(), sent.data() + size, sent.size() - size, 0);
    size += static_cast<size_t>(std::max<ssize_t>(more, 0));
  }
  server = Socket();
  while (!client.closed()) next();

  EXPECT_FALSE(client.refused());
  EXPECT_EQ(client.why_closed(), "its connection was closed");
}

// A client that is a plain socket, to do what a Channel never would.
class Stranger : public ::testing::Test {
 protected:
  Stranger() : Stranger(Pair::connected()) {}
  explicit Stranger(std::pair<Socket, Socket> ends)
      : server_(std::move(ends.first), Channel::Side::kServer, kKey), socket_(std::move(ends.second)) {
    server_.flush();
    greeting_.resize(40);
    for (size_t size = 0; size < greeting_.size();) {
      pollfd source = {socket_.handle(), POLLIN, 0};
      poll(&source, 1, -1);
      const ssize_t more = recv(socket_.handle(), greeting_.data() + size, greeting_.size() - size, 0);
      size += static_cast<size_t>(std::max<ssize_t>(more, 0));
    }
  }

  std::vector<std::string> print_notice(const std::string& bytes) {
    EXPECT_EQ(send(socket_.handle(), bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
    std::vector<pollfd> source;
    server_.add_source(source);
    poll(source.data(), source.size(), -1);
    return server_.pump();
  }
  // An honest handshake; `nonces` for the keys that follow from it.
  std::string prove() {
    const std::string nonces = greeting_.substr(8) + std::string(32, 'n');
    print_notice(std::string(32, 'n') + hmac(kKey, "client" + nonces));
    EXPECT_TRUE(server_.ready());
    return nonces;
  }
  static std::string frame(const Bytes& key, char number, const std::string& text) {
    const std::string length = {0, 0, 0, static_cast<char>(text.size())};
    return length + hmac(key, std::string(7, '\0') + number + length + text) + text;
  }

  Channel server_;
  Socket socket_;
  std::string greeting_;
};

TEST_F(Stranger, IsGreetedWithANonceAndNotWithTheSecret) {
  EXPECT_EQ(greeting_.substr(0, 8), "hasten 1");
  EXPECT_THAT(greeting_, ::testing::Not(HasSubstr("kkkk")));
}

TEST_F(Stranger, CannotUseAProofOfAnotherConnection) {
  print_notice(std::string(32, 'n') + hmac(kKey, "client" + std::string(32, 'o') + std::string(32, 'n')));

  EXPECT_TRUE(server_.refused());
}

TEST_F(Stranger, CannotAnswerWithTheServersOwnProof) {
  print_notice(std::string(32, 'n') + hmac(kKey, "server" + greeting_.substr(8) + std::string(32, 'n')));

  EXPECT_TRUE(server_.refused());
}

TEST_F(Stranger, AChangedMessageEndsTheConnection) {
  const Bytes key = hmac(kKey, "from client" + prove());
  std::string bytes = frame(key, 0, "stop");
  bytes.back() = 'P';

  EXPECT_THAT(print_notice(bytes), IsEmpty());
  EXPECT_EQ(server_.why_closed(), "it sent a message that is not authentic");
}

TEST_F(Stranger, AMessageThatIsSentAgainEndsTheConnection) {
  const Bytes key = hmac(kKey, "from client" + prove());

  EXPECT_THAT(print_notice(frame(key, 0, "join")), ElementsAre("join"));
  EXPECT_THAT(print_notice(frame(key, 0, "join")), IsEmpty());
  EXPECT_EQ(server_.why_closed(), "it sent a message that is not authentic");
}

TEST_F(Stranger, AnEndlessMessageEndsTheConnectionBeforeItIsRead) {
  prove();

  print_notice(std::string(4, '\x7f') + std::string(32, ' '));

  EXPECT_EQ(server_.why_closed(), "it sent a message that is too long");
}

// Whoever is sent a longer frame takes its sender for lost.
TEST(Wire, WordsOfAnyLengthFitIntoAFrame) {
  for (const char letter : {'x', '\n', '\1', '\xff'}) {
    const std::string words(1'000'000, letter);
    const std::string order = to_wire(Order{.kind = Order::Kind::kClose, .text = words, .report = words});
    const std::string ended = to_wire(NodeMessage{.kind = NodeMessage::Kind::kStopped, .text = words});

    EXPECT_LT(order.size(), Channel::kMaxTextBytes);
    EXPECT_LT(ended.size(), Channel::kMaxTextBytes);
    EXPECT_GT(std::get<Order>(*from_wire(order)).report.size(), 5'000u);
  }
}

TEST(Wire, EveryMessageComesBackAsItWas) {
  const NodeMessage join{.kind = NodeMessage::Kind::kJoin,
                         .round = 3,
                         .node = {.id = "a", .name = "gpu01", .address = "10.0.0.1", .port = 5, .num_workers = 4},
                         .busy = true,
                         .restarts = 2};
  const Order start{.kind = Order::Kind::kStart,
                    .round = 4,
                    .assignment = {.round = 4, .first_rank = 8, .master_addr = "h", .successors = {join.node}}};
  const Order close{.kind = Order::Kind::kClose, .value = 3, .text = "over", .report = "b\xffx"};

  for (const WireMessage& message : {WireMessage(join), WireMessage(start), WireMessage(Ask{}),
                                     WireMessage(Claim{7, {"h", 1}}), WireMessage(Answer{.generation = 2})}) {
    const auto back = from_wire(to_wire(message));
    ASSERT_TRUE(back);
    EXPECT_EQ(to_wire(*back), to_wire(message));
  }
  const auto back = std::get<NodeMessage>(*from_wire(to_wire(join)));
  EXPECT_EQ(back.node.port, 5);
  EXPECT_TRUE(back.busy);
  EXPECT_EQ(std::get<Order>(*from_wire(to_wire(start))).assignment.successors[0].id, "a");
  EXPECT_EQ(std::get<Order>(*from_wire(to_wire(close))).value, 3);
}

TEST(Wire, WhatIsNoMessageIsNothing) {
  for (const char* text : {"", "{", "[]", "{\"type\":\"node\"}", "{\"type\":\"order\",\"kind\":99,\"round\":1}",
                           "{\"type\":\"node\",\"kind\":\"0\",\"round\":1}"}) {
    EXPECT_FALSE(from_wire(text)) << text;
  }
}

TEST(Endpoint, HasAHostAndAPort) {
  EXPECT_EQ(parse_endpoint("h:1", 9), (Endpoint{"h", 1}));
  EXPECT_EQ(parse_endpoint("h", 9), (Endpoint{"h", 9}));
  EXPECT_EQ(parse_endpoint("[::1]:1", 9), (Endpoint{"::1", 1}));
  EXPECT_EQ(parse_endpoint("[::1]", 9), (Endpoint{"::1", 9}));
  EXPECT_EQ(shown(Endpoint{"::1", 1}), "[::1]:1");
  EXPECT_THROW(parse_endpoint("h:x", 9), UsageError);
  EXPECT_THROW(parse_endpoint("h:65536", 9), UsageError);
}

// RFC 4231, case 2.
TEST(Hmac, IsThatOfTheStandard) {
  EXPECT_EQ(hex(hmac("Jefe", "what do ya want for nothing?")),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
}

}  // namespace
}  // namespace hasten::launcher
