// Sending and receiving between two ranks; see group.h.
//
// Where operations are checked a message is preceded by its record. The receiver reads the record first and takes the
// data only if it fits. Gloo would end the process if the sizes of the two sides differ.
#include <torch/types.h>

#include <cstring>
#include <iterator>

#include "comm/backend/codec.h"
#include "comm/group/group_impl.h"
#include "comm/types/combined_work.h"

namespace hasten::comm {
namespace {

at::Tensor record_bytes(const Fingerprint& record) {
  const at::Tensor bytes = torch::empty({static_cast<int64_t>(sizeof(Fingerprint))}, at::kByte);
  std::memcpy(bytes.data_ptr(), &record, sizeof(Fingerprint));
  return bytes;
}

// Throws if the message of the record, which `from` sends, is not the one that this rank receives.
void require_same(const Group::Impl& group, const Fingerprint& mine, const at::Tensor& tensor, const at::Tensor& record,
                  int from) {
  Fingerprint theirs;
  std::memcpy(static_cast<void*>(&theirs), record.const_data_ptr(), sizeof(Fingerprint));
  if (mine.dtype == theirs.dtype && mine.dims == theirs.dims && mine.sizes == theirs.sizes &&
      mine.trailing == theirs.trailing) {
    return;
  }
  throw CommError(group.origin(), "receive", "rank ", from, " calls ", describe(theirs), ", but this rank receives ",
                  tensor.scalar_type(), " [", join(tensor.sizes()), "] at ", mine.file.data(), ':', mine.line,
                  ". Both sides must name the same dtype and shape.");
}

// A device's messages between two ranks arrive in the order in which they are sent.
void check_device_tag(const Group::Impl& group, const Backend& backend, int tag, CallName kind) {
  if (tag == 0 || backend.has_tags()) return;
  throw UsageError(group.origin(), name_of(kind), ": tag ", tag, ", but ", backend.name(),
                   " has no tags: messages between two ranks arrive in the order in which they are sent. Use tag 0, or "
                   "send a tensor of the CPU.");
}

void check_tag(const Group::Impl& group, int tag, CallName kind, const Group::Site& site) {
  group.enter(kind, site);
  if (tag < 0) throw UsageError(group.origin(), name_of(kind), ": tag ", tag, " is negative. Use 0 or more.");
  group.require_connected(kind);
}

void check_peer(const Group::Impl& group, int peer, int tag, CallName kind, const Group::Site& site) {
  check_tag(group, tag, kind, site);
  group.check_rank(peer, "the peer", kind);
  if (peer == group.rank) throw UsageError(group.origin(), name_of(kind), ": a rank cannot be its own peer.");
}

}  // namespace

/// A checked receive under way. Record and data of one message follow each other. So the next message from this rank
/// with this tag is requested only when this message's data have been requested. It is not requested at all if data
/// that did not fit are in the way.
class Receipt {
 public:
  Receipt(Group::Impl& group, Backend& backend, at::Tensor tensor, at::Tensor staged, Group::Impl::Sender sender,
          int tag, const std::source_location& site, std::shared_ptr<Receipt> before)
      : group_(group),
        backend_(backend),
        tensor_(std::move(tensor)),
        staged_(std::move(staged)),
        sender_(std::move(sender)),
        tag_(tag),
        mine_(Fingerprint::of(OpType::kSend, site).with_tensor(tensor_)),
        before_(std::move(before)) {}

  bool done() {
    if (!ask(/*may_wait=*/false)) return false;
    return error_ || !data_ || data_->done();
  }
  void wait() {
    ask(/*may_wait=*/true);
    if (error_) std::rethrow_exception(error_);
    if (data_) group_.wait(*data_, name());
  }

 private:
  /// Returns true if the data have been requested, or never will be.
  bool ask(bool may_wait) {
    std::unique_lock lock(mutex_, std::defer_lock);
    if (may_wait) {
      lock.lock();
    } else if (!lock.try_lock()) {
      return false;  // has a waiter
    }
    if (is_settled_) return true;
    if (before_ && !before_->ask(may_wait)) return false;
    before_.reset();
    try {
      if (const auto broken = group_.broken_channel({sender_.rank, tag_})) std::rethrow_exception(broken);
      if (!record_) record_ = request_record();
      if (!may_wait && !record_->done()) return false;
      group_.wait(*record_, name());
      require_same(group_, mine_, tensor_, record_bytes_, from());
      if (staged_.numel() > 0) data_ = backend_.receive(bytes_of(staged_), from(), tag_);
    } catch (...) {
      error_ = std::current_exception();
      group_.break_channel({sender_.rank, tag_}, error_);
    }
    return is_settled_ = true;
  }

  Backend::Started request_record() {
    if (!sender_.found) return group_.cpu().receive(record_bytes_, sender_.rank, tag_);
    return group_.cpu().receive_any(record_bytes_, tag_, sender_.found);
  }
  CallName name() const { return sender_.found ? kReceivingAny : kReceiving; }
  int from() const { return sender_.found ? *sender_.found : sender_.rank; }

  Group::Impl& group_;
  Backend& backend_;
  const at::Tensor tensor_, staged_;
  const Group::Impl::Sender sender_;
  const int tag_;
  const Fingerprint mine_;
  const at::Tensor record_bytes_ = torch::empty({static_cast<int64_t>(sizeof(Fingerprint))}, at::kByte);
  std::mutex mutex_;
  std::shared_ptr<Receipt> before_;
  Backend::Started record_, data_;
  std::exception_ptr error_;
  bool is_settled_ = false;
};

namespace {

class CheckedReceive : public Backend::Transfer {
 public:
  explicit CheckedReceive(std::shared_ptr<Receipt> receipt) : receipt_(std::move(receipt)) {}
  bool done() override { return receipt_->done(); }
  void wait() override { receipt_->wait(); }

 private:
  std::shared_ptr<Receipt> receipt_;
};

}  // namespace

Backend::Started Group::Impl::checked_receive(Backend& backend, const at::Tensor& tensor, const at::Tensor& staged,
                                              const Sender& sender, int tag, const std::source_location& site) {
  std::shared_ptr<Receipt> receipt;
  {
    const std::lock_guard lock(lanes_mutex_);
    std::weak_ptr<Receipt>& last = channels_[{sender.rank, tag}].last;
    receipt = std::make_shared<Receipt>(*this, backend, tensor, staged, sender, tag, site, last.lock());
    last = receipt;
  }
  (void)receipt->done();  // requests its record
  return std::make_unique<CheckedReceive>(receipt);
}

std::exception_ptr Group::Impl::broken_channel(const ChannelKey& key) {
  const std::lock_guard lock(lanes_mutex_);
  return channels_[key].broken;
}

void Group::Impl::break_channel(const ChannelKey& key, std::exception_ptr why) {
  const std::lock_guard lock(lanes_mutex_);
  channels_[key].broken = std::move(why);
}

Work<> Group::send_async(const at::Tensor& tensor, int to, int tag, Site site) const {
  Impl& group = *impl_;
  check_peer(group, to, tag, OpType::kSend, site);
  group.reap();
  const RecordedCall call =
      group.record(OpType::kSend, site, {.tensor = &tensor, .peer = to, .tag = tag, .kind = flight::CallKind::kSend});
  Backend& backend = group.backend_for(tensor);
  check_device_tag(group, backend, tag, OpType::kSend);
  std::vector<Backend::Started> transfers;
  if (check_) {
    transfers.push_back(
        group.cpu().send(record_bytes(Fingerprint::of(OpType::kSend, site).with_tensor(tensor)), to, tag));
  }
  if (tensor.numel() > 0) {
    transfers.push_back(
        group.started(OpType::kSend, [&] { return backend.send(bytes_of(stage(tensor, backend)), to, tag); }));
  }
  return group.work<void>(OpType::kSend, std::move(transfers), [] {});
}

Work<> Group::receive_async_(at::Tensor tensor, int from, int tag, Site site) const {
  Impl& group = *impl_;
  check_peer(group, from, tag, kReceiving, site);
  group.reap();
  check_result(tensor, "receive", group.origin());
  const RecordedCall call = group.record(
      OpType::kSend, site, {.tensor = &tensor, .peer = from, .tag = tag, .kind = flight::CallKind::kReceive});
  Backend& backend = group.backend_for(tensor);
  check_device_tag(group, backend, tag, kReceiving);
  const at::Tensor staged = stage(tensor, backend);
  std::vector<Backend::Started> transfers;
  if (check_) {
    transfers.push_back(group.checked_receive(backend, tensor, staged, {from}, tag, site));
  } else if (tensor.numel() > 0) {
    transfers.push_back(group.started(kReceiving, [&] { return backend.receive(bytes_of(staged), from, tag); }));
  }
  return group.work<void>(kReceiving, std::move(transfers), [tensor, staged] { write_back(tensor, staged); });
}

Work<int> Group::receive_any_async_(at::Tensor tensor, int tag, Site site) const {
  Impl& group = *impl_;
  check_tag(group, tag, kReceivingAny, site);
  group.reap();
  check_result(tensor, "receive_any", group.origin());
  if (group.alone()) {
    throw UsageError(group.origin(), "receive_any in a world of one: there is no rank that could send.");
  }
  if (tensor.numel() == 0) {
    throw UsageError(group.origin(), "receive_any of an empty tensor: nothing would come. Receive from a named rank.");
  }
  const RecordedCall call = group.record(
      OpType::kSend, site, {.tensor = &tensor, .peer = Impl::kAnyRank, .tag = tag, .kind = flight::CallKind::kReceive});
  Backend& backend = group.backend_for(tensor);
  check_device_tag(group, backend, tag, kReceivingAny);
  if (!backend.receives_from_any()) {
    throw UsageError(group.origin(), "receive_any: ", backend.name(),
                     " has two ways between ranks and cannot wait for both at once. Name the rank to receive from.");
  }
  const at::Tensor staged = stage(tensor, backend);
  const auto from = std::make_shared<int>(Impl::kAnyRank);
  std::vector<Backend::Started> transfers;
  if (check_) {
    transfers.push_back(group.checked_receive(backend, tensor, staged, {Impl::kAnyRank, from}, tag, site));
  } else {
    transfers.push_back(group.started(kReceivingAny, [&] { return backend.receive_any(bytes_of(staged), tag, from); }));
  }
  return group.work<int>(kReceivingAny, std::move(transfers), [tensor, staged, from] {
    write_back(tensor, staged);
    return *from;
  });
}

int Group::receive_any_(at::Tensor tensor, int tag, Site site) const {
  return receive_any_async_(std::move(tensor), tag, site).wait();
}

void Group::send(const at::Tensor& tensor, int to, int tag, Site site) const {
  send_async(tensor, to, tag, site).wait();
}

void Group::receive_(at::Tensor tensor, int from, int tag, Site site) const {
  receive_async_(std::move(tensor), from, tag, site).wait();
}

RecordedCall Group::Impl::record(const std::vector<PointToPoint>& messages, const std::source_location& site) {
  std::vector<RecordedFacts> facts;
  for (const auto& [kind, tensor, peer] : messages) {
    const bool is_send = kind == PointToPoint::Kind::kSend;
    facts.push_back({.tensor = &tensor,
                     .peer = peer,
                     .tag = 0,
                     .kind = is_send ? flight::CallKind::kSend : flight::CallKind::kReceive});
  }
  require_own_process(kSendingAndReceiving);
  connect();
  return RecordedCall(recorder_.get(), recorder_group_, site, facts);
}

// The headers of all messages go first, by way of the CPU. Then the device gets all of its messages in one call.
Work<> Group::Impl::exchange(const std::vector<PointToPoint>& messages, bool check, const std::source_location& site) {
  reap();
  const RecordedCall call = record(messages, site);
  std::vector<Backend::Started> transfers, records;
  std::vector<at::Tensor> theirs(messages.size()), staged;
  std::vector<Backend::Message> moves;
  Backend& backend = *device_backend(messages.at(0).tensor.device());
  for (size_t i = 0; i < messages.size(); ++i) {
    const auto& [kind, tensor, peer] = messages[i];
    const bool is_send = kind == PointToPoint::Kind::kSend;
    check_peer(*this, peer, 0, is_send ? CallName(OpType::kSend) : kReceiving, site);
    if (!is_send) check_result(tensor, "receive", origin());
    staged.push_back(stage(tensor, backend));
    if (tensor.numel() > 0) moves.push_back({bytes_of(staged.back()), peer, is_send});
    if (!check) continue;
    if (is_send) {
      transfers.push_back(cpu().send(record_bytes(Fingerprint::of(OpType::kSend, site).with_tensor(tensor)), peer, 0));
    } else {
      theirs[i] = torch::empty({static_cast<int64_t>(sizeof(Fingerprint))}, at::kByte);
      records.push_back(cpu().receive(theirs[i], peer, 0));
    }
  }
  for (const auto& record : records) wait(*record, kReceiving);
  for (size_t i = 0; i < messages.size(); ++i) {
    if (!theirs[i].defined()) continue;
    const auto& tensor = messages[i].tensor;
    require_same(*this, Fingerprint::of(OpType::kSend, site).with_tensor(tensor), tensor, theirs[i], messages[i].peer);
  }
  if (!moves.empty()) transfers.push_back(started(kSendingAndReceiving, [&] { return backend.exchange(moves); }));
  return work<void>(kSendingAndReceiving, std::move(transfers), [messages, staged] {
    for (size_t i = 0; i < messages.size(); ++i) {
      if (messages[i].kind == PointToPoint::Kind::kReceive) write_back(messages[i].tensor, staged[i]);
    }
  });
}

Work<> Group::batch_send_recv(const std::vector<PointToPoint>& messages, Site site) const {
  Impl& group = *impl_;
  std::vector<Work<>> sends, works;
  std::vector<PointToPoint> together, one_by_one;
  for (const PointToPoint& message : messages) {
    const bool is_send = message.kind == PointToPoint::Kind::kSend;
    check_peer(group, message.peer, 0, is_send ? CallName(OpType::kSend) : kReceiving, site);
    (group.backend_for(message.tensor).exchanges() ? together : one_by_one).push_back(message);
  }
  if (!together.empty()) works.push_back(group.exchange(together, check_, site));
  // Sends are started first on every rank, and receives are waited for first: no order of the list can
  // deadlock.
  for (const PointToPoint& message : one_by_one) {
    if (message.kind != PointToPoint::Kind::kSend) continue;
    sends.push_back(send_async(message.tensor, message.peer, 0, site));
  }
  for (const PointToPoint& message : one_by_one) {
    if (message.kind != PointToPoint::Kind::kReceive) continue;
    works.push_back(receive_async_(message.tensor, message.peer, 0, site));
  }
  std::move(sends.begin(), sends.end(), std::back_inserter(works));
  return when_all(std::move(works));
}

}  // namespace hasten::comm
