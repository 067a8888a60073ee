// Frames and the handshake: pieces in any sizes, garbage, wrong keys.
#include "comm/messages/frame.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "comm/messages/handshake.h"
#include "hasten/core/error.h"
#include "rpc/wire.h"

namespace hasten::comm {
namespace {

struct Kept {
  std::vector<std::pair<std::string, std::string>> messages;
  std::vector<std::pair<FrameKind, uint64_t>> controls;
};

class KeptMessage final : public IncomingMessage {
 public:
  KeptMessage(Kept& kept, std::string head, int64_t size)
      : kept_(kept), head_(std::move(head)), bytes_(static_cast<size_t>(size), '\0') {
    const auto all = std::as_writable_bytes(std::span(bytes_));
    if (all.size() > 10) {
      body = {all.subspan(0, 7), all.subspan(7)};
    } else if (!all.empty()) {
      body = {all};
    }
  }
  void complete() override { kept_.messages.emplace_back(head_, bytes_); }

 private:
  Kept& kept_;
  std::string head_;
  std::string bytes_;
};

FrameReader reader_into(Kept& kept, int64_t limit = 1 << 26) {
  return FrameReader({.begin = [&kept](std::string_view head, int64_t size) -> std::unique_ptr<IncomingMessage> {
                        return std::make_unique<KeptMessage>(kept, std::string(head), size);
                      },
                      .pull = [](uint64_t, const std::vector<RemotePart>&, IncomingMessage&) {},
                      .control = [&kept](FrameKind kind, uint64_t value) { kept.controls.emplace_back(kind, value); }},
                     limit);
}

void feed(FrameReader& reader, std::string_view bytes, const std::function<size_t()>& piece) {
  while (!bytes.empty()) {
    const auto room = reader.room();
    ASSERT_FALSE(room.empty());
    const size_t size = std::min({bytes.size(), room.size(), piece()});
    std::memcpy(room.data(), bytes.data(), size);
    bytes.remove_prefix(size);
    reader.advance(size);
  }
}

std::string frame_of(std::string_view head, std::string_view body) {
  std::string frame(kFramePrefixBytes, '\0');
  write_prefix(frame.data(), FrameKind::kMessage, static_cast<uint32_t>(head.size()), body.size());
  return frame + std::string(head) + std::string(body);
}

TEST(Frame, MessagesOfAllSizesComeWholeHoweverTheBytesAreCut) {
  std::mt19937 random(3);
  for (const size_t most : {1u, 5u, 1000u, 100'000u}) {
    Kept kept;
    FrameReader reader = reader_into(kept);
    std::vector<std::pair<std::string, std::string>> sent;
    std::string stream;
    for (const size_t size : {0u, 1u, 9u, 11u, 3000u, most == 1 ? 10u : 200'000u}) {
      sent.emplace_back(std::string(size / 2, 'h'), std::string(size, static_cast<char>('a' + size % 26)));
      stream += frame_of(sent.back().first, sent.back().second);
      stream += control_frame(FrameKind::kHeartbeat, size);
    }

    feed(reader, stream, [&] { return 1 + random() % most; });

    EXPECT_EQ(kept.messages, sent);
    EXPECT_EQ(kept.controls.size(), sent.size());
  }
}

TEST(Frame, GarbageIsRefusedAndNeverCrashes) {
  std::mt19937 random(4);
  int refused = 0;
  for (int round = 0; round < 3000; ++round) {
    Kept kept;
    FrameReader reader = reader_into(kept, 1 << 16);
    std::string stream = frame_of("head", "body of some bytes") + frame_of(std::string(100, 'x'), "");
    for (int change = 0; change < 1 + round % 4; ++change)
      stream[random() % stream.size()] = static_cast<char>(random());
    try {
      feed(reader, stream, [&] { return 1 + random() % 50; });
    } catch (const DataError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 500);
}

TEST(Frame, AMessageAboveTheLimitIsRefusedByItsPrefix) {
  Kept kept;
  FrameReader reader = reader_into(kept, 1000);

  EXPECT_THROW(feed(reader, frame_of("h", std::string(1000, 'b')).substr(0, 20), [] { return 20; }), DataError);
}

TEST(Message, HeadsWithFlippedBytesAreRefusedOrFit) {
  rpc::detail::Packed packed;
  rpc::Writer writer(packed);
  writer.string("a value");
  writer.tensor(at::Tensor());
  auto message = rpc::encode({.kind = 1}, std::move(packed), {{.creator = 1, .owner = 2}}, nullptr);
  const std::string good = message.head.substr(kFramePrefixBytes);
  ASSERT_NO_THROW(rpc::decode(good, 0));
  std::mt19937 random(5);

  int refused = 0;
  for (int round = 0; round < 5000; ++round) {
    std::string bytes = good;
    for (int change = 0; change < 1 + round % 3; ++change) bytes[random() % bytes.size()] = static_cast<char>(random());
    if (round % 5 == 0) bytes.resize(random() % bytes.size());
    try {
      rpc::decode(bytes, static_cast<int64_t>(random() % 3 == 0 ? random() % 1000 : 0));
    } catch (const DataError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 1000);
}

const Bytes kKey(32, 'k');
bool no_probe(uint64_t, std::string_view) {
  return false;
}

TEST(Handshake, BothSidesProveTheKey) {
  auto connector = Handshake::connector(kKey, 3, 1, no_probe);
  auto acceptor = Handshake::acceptor(kKey, 1, 4, [](uint64_t address, std::string_view expected) {
    return std::memcmp(reinterpret_cast<const void*>(address), expected.data(), expected.size()) == 0;
  });

  const std::string hello = connector.start();
  EXPECT_EQ(hello.size(), acceptor.num_expected());
  const std::string challenge = acceptor.take(hello);
  const std::string proof = connector.take(challenge);
  acceptor.take(proof);

  EXPECT_TRUE(connector.done());
  EXPECT_TRUE(acceptor.done());
  EXPECT_EQ(acceptor.peer(), 3);
  EXPECT_TRUE(connector.peer_can_pull()) << "the acceptor has read the connector's memory";
  EXPECT_FALSE(acceptor.peer_can_pull());
}

TEST(Handshake, AnotherKeyAChangedByteOrAnImpossibleRankIsRefused) {
  const auto acceptor_of = [](Bytes key) { return Handshake::acceptor(std::move(key), 1, 4, no_probe); };
  {
    auto connector = Handshake::connector(kKey, 3, 1, no_probe);
    auto acceptor = acceptor_of(Bytes(32, 'x'));
    EXPECT_THROW(connector.take(acceptor.take(connector.start())), DataError);
  }
  for (size_t i = 0; i < 40; ++i) {
    auto connector = Handshake::connector(kKey, 3, 1, no_probe);
    auto acceptor = acceptor_of(kKey);
    std::string proof = connector.take(acceptor.take(connector.start()));
    proof[i] = static_cast<char>(proof[i] ^ 1);
    EXPECT_THROW(acceptor.take(proof), DataError) << "byte " << i;
  }
  auto acceptor = acceptor_of(kKey);
  EXPECT_THROW(acceptor.take(Handshake::connector(kKey, 7, 1, no_probe).start()), DataError);
  auto other = acceptor_of(kKey);
  EXPECT_THROW(other.take(std::string(other.num_expected(), 'G')), DataError);
}

}  // namespace
}  // namespace hasten::comm
