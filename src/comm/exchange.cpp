// See exchange.h.
#include "comm/exchange.h"

#include <torch/types.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <algorithm>
#include <utility>

#include "comm/codec.h"
#include "comm/shared/reduction.h"

namespace hasten::comm {
namespace {

// What a rank takes in at most: above, a ring is faster, which moves each byte less often and adds up parts
// while others are on their way.
constexpr int64_t kMostBytes = 256 << 10;

constexpr int kNumChannels = 64;
constexpr int kTagsOfAChannel = 1 << 24;

struct Messages {
  std::vector<c10::intrusive_ptr<c10d::Work>> works;
  /// This rank's tensor and what the others sent, by rank.
  std::vector<at::Tensor> parts;
  at::Tensor result;
  ReduceOp op;

  void finish() const {
    for (const auto& work : works) work->wait();
    std::vector<const void*> inputs;
    for (const at::Tensor& part : parts) inputs.push_back(part.const_data_ptr());
    const auto reduce = shared::reduction(result.scalar_type(), op);
    reduce(result.data_ptr(), inputs.data(), static_cast<int>(inputs.size()), result.numel());
  }
};

// Gloo tells only those who wait that a message has come: in the place of others a thread waits.
class ExchangeTransfer : public Backend::Transfer {
 public:
  ExchangeTransfer(Messages messages, std::shared_ptr<Line> line)
      : messages_(std::make_shared<Messages>(std::move(messages))), line_(std::move(line)) {}
  ~ExchangeTransfer() override {
    if (messages_) submit();
  }

  bool done() override {
    if (messages_) submit();
    return finished_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  }
  void wait() override {
    if (messages_) {
      std::exchange(messages_, nullptr)->finish();
    } else if (finished_.valid()) {
      finished_.get();
    }
  }

 private:
  void submit() {
    finished_ = line_->submit([messages = std::exchange(messages_, nullptr)] { messages->finish(); });
  }

  /// Until somebody waits.
  std::shared_ptr<Messages> messages_;
  std::shared_ptr<Line> line_;
  std::shared_future<void> finished_;
};

}  // namespace

bool Exchange::takes(const at::Tensor& tensor) const {
  return static_cast<int64_t>(tensor.nbytes()) * (native_.getSize() - 1) <= kMostBytes &&
         shared::reduction(tensor.scalar_type(), ReduceOp::kSum) != nullptr;
}

Exchange::Channel& Exchange::channel_for(int64_t num_bytes) {
  if (const auto found = channels_.find(num_bytes); found != channels_.end()) return found->second;
  const int number = std::min(static_cast<int>(channels_.size()), kNumChannels - 1);
  const bool is_last = number == kNumChannels - 1;
  const Channel channel{.first_tag = first_tag_ + number * kTagsOfAChannel, .is_last = is_last};
  return channels_.try_emplace(is_last ? -1 : num_bytes, channel).first->second;
}

Exchange::Inbox Exchange::open(Channel& channel, int64_t num_bytes) {
  const auto number = static_cast<int>(channel.num_opened++ % kTagsOfAChannel);
  Inbox inbox{.tag = channel.first_tag + number, .works = {}, .parts = {}};
  std::vector<at::Tensor> one(1);
  for (int peer = 0; peer < native_.getSize(); ++peer) {
    inbox.parts.emplace_back();
    if (peer == native_.getRank()) continue;
    one[0] = inbox.parts.back() = torch::empty({num_bytes}, at::kByte);
    inbox.works.push_back(native_.recv(one, peer, inbox.tag));
  }
  return inbox;
}

Backend::Started Exchange::all_reduce(const at::Tensor& tensor, ReduceOp op) {
  const auto num_bytes = static_cast<int64_t>(tensor.nbytes());
  const int rank = native_.getRank(), world_size = native_.getSize();
  Channel& channel = channel_for(num_bytes);
  auto ready = std::exchange(channel.next, std::nullopt);
  Inbox inbox = ready ? std::move(*ready) : open(channel, num_bytes);
  inbox.parts[static_cast<size_t>(rank)] = tensor;
  std::vector<at::Tensor> one{bytes_of(tensor)};
  for (int step = 1; step < world_size; ++step) {
    inbox.works.push_back(native_.send(one, (rank + step) % world_size, inbox.tag));
  }
  if (!channel.is_last) channel.next = open(channel, num_bytes);
  return std::make_unique<ExchangeTransfer>(
      Messages{std::move(inbox.works), std::move(inbox.parts), tensor, op}, line_);
}

}  // namespace hasten::comm
